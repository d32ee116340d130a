/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, and calls that are wrong. */
#include "c_api/check.h"
#include "lariat/dlpack.h"

/* The sizes of version 1; of structs that have grown, where their last field was. A struct that
 * grows keeps its old size as the least one that is taken (kFirstSize in src/c_api/structs.h); one
 * that shrinks or moves a field is another version. */
_Static_assert(LARIAT_ABI_VERSION == 1, "the sizes below are those of version 1");
_Static_assert(sizeof(lariat_layer) == 28, "lariat_layer");
_Static_assert(sizeof(lariat_rope) == 152, "lariat_rope");
_Static_assert(offsetof(lariat_cache_config, host_clean_blocks) == 144, "lariat_cache_config");
_Static_assert(offsetof(lariat_footprint, padding_bytes) == 80, "lariat_footprint");
_Static_assert(offsetof(lariat_stats, host_evicted) == 192, "lariat_stats");
_Static_assert(sizeof(lariat_poll_report) == 20, "lariat_poll_report");
_Static_assert(sizeof(lariat_fault) == 32, "lariat_fault");
_Static_assert(sizeof(lariat_transfer_report) == 16, "lariat_transfer_report");
_Static_assert(sizeof(lariat_retention) == 32, "lariat_retention");
_Static_assert(sizeof(lariat_open_options) == 72, "lariat_open_options");
_Static_assert(sizeof(lariat_prefix_match) == 40, "lariat_prefix_match");
_Static_assert(sizeof(lariat_extent) == 40, "lariat_extent");
_Static_assert(sizeof(lariat_event) == 80, "lariat_event");
_Static_assert(sizeof(lariat_step_item) == 40, "lariat_step_item");
_Static_assert(sizeof(lariat_step_shape) == 16, "lariat_step_shape");
_Static_assert(sizeof(lariat_plan_failure) == 56, "lariat_plan_failure");
_Static_assert(sizeof(lariat_step_info) == 32, "lariat_step_info");
_Static_assert(sizeof(lariat_rows) == 48, "lariat_rows");
_Static_assert(sizeof(lariat_commit) == 32, "lariat_commit");
_Static_assert(sizeof(lariat_append_inputs) == 88, "lariat_append_inputs");
_Static_assert(sizeof(lariat_mla_append_inputs) == 104, "lariat_mla_append_inputs");
_Static_assert(sizeof(lariat_mla_expand_inputs) == 104, "lariat_mla_expand_inputs");
_Static_assert(offsetof(lariat_mla_compress_inputs, q_head_stride) == 128,
               "lariat_mla_compress_inputs");
_Static_assert(sizeof(lariat_step_view) == 104, "lariat_step_view");
_Static_assert(sizeof(lariat_layer_view) == 136, "lariat_layer_view");
/* DLPack's own, of 0.8 and 1.x. */
_Static_assert(sizeof(DLTensor) == 48, "DLTensor");
_Static_assert(sizeof(DLManagedTensor) == 64, "DLManagedTensor");
_Static_assert(offsetof(DLTensor, byte_offset) == 40, "DLTensor");

void TestVersions(void) {
  CHECK(lariat_abi_version() == LARIAT_ABI_VERSION);
  CHECK(strchr(lariat_version(), '.') != NULL);
  CHECK(strcmp(lariat_code_name(LARIAT_OK), "Ok") == 0);
  CHECK(strcmp(lariat_code_name(LARIAT_DEVICE_ERROR), "DeviceError") == 0);
  CHECK(strcmp(lariat_code_name(99), "Unknown") == 0);
}

#define NULL_CACHE(call) REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "cache: null", call)
#define NULL_ARGUMENT(name, call) REFUSES(cache, LARIAT_INVALID_ARGUMENT, name ": null", call)
#define NO_STEP(call) REFUSES(cache, LARIAT_INVALID_ARGUMENT, "there is no step 5", call)

static void NoCache(void) {
  NULL_CACHE(lariat_cache_footprint(NULL, NULL));
  NULL_CACHE(lariat_cache_stats(NULL, NULL));
  NULL_CACHE(lariat_cache_clear(NULL));
  NULL_CACHE(lariat_cache_release(NULL));
  NULL_CACHE(lariat_cache_reacquire(NULL));
  NULL_CACHE(lariat_cache_poll(NULL, NULL));
  NULL_CACHE(lariat_cache_drain_events(NULL, NULL, 0, NULL));
  NULL_CACHE(lariat_cache_list_blocks(NULL, NULL, NULL, 0, NULL));
  NULL_CACHE(lariat_cache_fault(NULL, 0, NULL));
  NULL_CACHE(lariat_cache_finished_transfer(NULL, 0, NULL));
  NULL_CACHE(lariat_cache_match(NULL, NULL, 0, NULL, NULL));
  NULL_CACHE(lariat_sequence_open(NULL, NULL, 0, NULL, NULL));
  NULL_CACHE(lariat_sequence_match(NULL, 1, NULL));
  NULL_CACHE(lariat_sequence_close(NULL, 1));
  NULL_CACHE(lariat_sequence_truncate(NULL, 1, 0));
  NULL_CACHE(lariat_sequence_fork(NULL, 1, 0, NULL));
  NULL_CACHE(lariat_sequence_set_tokens(NULL, 1, NULL, 0));
  NULL_CACHE(lariat_sequence_extent(NULL, 1, NULL));
  NULL_CACHE(lariat_sequence_block_table(NULL, 1, 0, NULL, NULL));
  NULL_CACHE(lariat_sequence_first_row(NULL, 1, 0, NULL));
  NULL_CACHE(lariat_cache_blocks_for(NULL, 0, 1, 0, NULL));
  NULL_CACHE(lariat_sequence_read_rows(NULL, 1, 0, 0, 1, NULL, NULL));
  NULL_CACHE(lariat_sequence_fetch(NULL, 1, NULL));
  NULL_CACHE(lariat_sequence_suspend(NULL, 1, NULL));
  NULL_CACHE(lariat_sequence_resume(NULL, 1, NULL));
  NULL_CACHE(lariat_transfer_accept(NULL, 1, NULL));
  NULL_CACHE(lariat_cache_pin(NULL, NULL, 0, NULL));
  NULL_CACHE(lariat_cache_unpin(NULL, NULL, 0, NULL));
  NULL_CACHE(lariat_cache_remove(NULL, NULL, 0, NULL, NULL));
  NULL_CACHE(lariat_cache_remove_salt(NULL, NULL, 0, NULL));
  NULL_CACHE(lariat_cache_expire(NULL, 0));
  NULL_CACHE(lariat_cache_set_quota(NULL, NULL, 0, 0));
  NULL_CACHE(lariat_step_plan(NULL, NULL, 0, NULL, NULL, NULL));
  NULL_CACHE(lariat_step_drop(NULL, 5));
  NULL_CACHE(lariat_step_get_info(NULL, 5, NULL));
  NULL_CACHE(lariat_step_get_rows(NULL, 5, 0, NULL));
  NULL_CACHE(lariat_step_prepare(NULL, 5, NULL));
  NULL_CACHE(lariat_step_commit(NULL, 5, NULL, 0, NULL));
  NULL_CACHE(lariat_step_discard(NULL, 5, NULL));
  NULL_CACHE(lariat_step_append(NULL, 5, 0, NULL, NULL));
  NULL_CACHE(lariat_step_mla_append(NULL, 5, 0, NULL, NULL));
  NULL_CACHE(lariat_step_mla_expand(NULL, 5, 0, NULL, NULL));
  NULL_CACHE(lariat_step_mla_compress(NULL, 5, 0, NULL, NULL));
  NULL_CACHE(lariat_warmup_mla_append(NULL, 0, NULL, NULL));
  NULL_CACHE(lariat_warmup_mla_expand(NULL, 0, NULL, NULL));
  NULL_CACHE(lariat_warmup_mla_compress(NULL, 0, NULL, NULL));
  NULL_CACHE(lariat_cache_view(NULL, 0, NULL));
  NULL_CACHE(lariat_cache_host_view(NULL, 0, NULL));
  NULL_CACHE(lariat_cache_layer(NULL, 0, NULL));
  NULL_CACHE(lariat_cache_layer_tensor(NULL, 0, LARIAT_K, NULL));
  lariat_cache_destroy(NULL);
}

static void NoArgument(lariat_cache* cache, uint64_t sequence) {
  NULL_ARGUMENT("footprint", lariat_cache_footprint(cache, NULL));
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "stats: null", lariat_cache_stats(cache, NULL));
  NULL_ARGUMENT("report", lariat_cache_poll(cache, NULL));
  NULL_ARGUMENT("fault", lariat_cache_fault(cache, 0, NULL));
  NULL_ARGUMENT("report", lariat_cache_finished_transfer(cache, 0, NULL));
  NULL_ARGUMENT("prompt", lariat_cache_match(cache, NULL, 1, NULL, NULL));
  NULL_ARGUMENT("match", lariat_cache_match(cache, NULL, 0, NULL, NULL));
  NULL_ARGUMENT("sequence", lariat_sequence_open(cache, NULL, 0, NULL, NULL));
  NULL_ARGUMENT("match", lariat_sequence_match(cache, sequence, NULL));
  NULL_ARGUMENT("fork", lariat_sequence_fork(cache, sequence, 0, NULL));
  NULL_ARGUMENT("tokens", lariat_sequence_set_tokens(cache, sequence, NULL, 1));
  NULL_ARGUMENT("extent", lariat_sequence_extent(cache, sequence, NULL));
  const int32_t* blocks = NULL;
  NULL_ARGUMENT("blocks", lariat_sequence_block_table(cache, sequence, 0, NULL, NULL));
  NULL_ARGUMENT("num_blocks", lariat_sequence_block_table(cache, sequence, 0, &blocks, NULL));
  NULL_ARGUMENT("first", lariat_sequence_first_row(cache, sequence, 0, NULL));
  NULL_ARGUMENT("blocks", lariat_cache_blocks_for(cache, 0, 1, 0, NULL));
  NULL_ARGUMENT("transfer", lariat_sequence_fetch(cache, sequence, NULL));
  NULL_ARGUMENT("transfer", lariat_sequence_suspend(cache, sequence, NULL));
  NULL_ARGUMENT("transfer", lariat_sequence_resume(cache, sequence, NULL));
  NULL_ARGUMENT("salt", lariat_cache_remove_salt(cache, NULL, 1, NULL));
  NULL_ARGUMENT("salt", lariat_cache_set_quota(cache, NULL, 1, 0));
  NULL_ARGUMENT("step", lariat_step_plan(cache, NULL, 0, NULL, NULL, NULL));
  uint64_t step = 0;
  NULL_ARGUMENT("items", lariat_step_plan(cache, NULL, 1, NULL, NULL, &step));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "items: -1 elements",
          lariat_step_plan(cache, NULL, -1, NULL, NULL, &step));
  lariat_plan_failure failure = {.struct_size = sizeof failure};
  failure.capacity = 1;
  NULL_ARGUMENT("failure.sequences", lariat_step_plan(cache, NULL, 0, NULL, &failure, &step));
  failure.sequences = &step;
  NULL_ARGUMENT("failure.blocks", lariat_step_plan(cache, NULL, 0, NULL, &failure, &step));
  NULL_ARGUMENT("view", lariat_cache_view(cache, 0, NULL));
  NULL_ARGUMENT("view", lariat_cache_host_view(cache, 0, NULL));
  NULL_ARGUMENT("view", lariat_cache_layer(cache, 0, NULL));
  NULL_ARGUMENT("tensor", lariat_cache_layer_tensor(cache, 0, LARIAT_K, NULL));
  NULL_ARGUMENT("inputs", lariat_warmup_mla_append(cache, 0, NULL, NULL));
  NULL_ARGUMENT("inputs", lariat_warmup_mla_expand(cache, 0, NULL, NULL));
  NULL_ARGUMENT("inputs", lariat_warmup_mla_compress(cache, 0, NULL, NULL));
  lariat_open_options options = {.struct_size = sizeof options};
  options.salt_size = 1;
  NULL_ARGUMENT("options.salt", lariat_sequence_open(cache, NULL, 0, &options, &step));
  options.salt = "s";
  options.adapter_size = 1;
  NULL_ARGUMENT("options.adapter", lariat_sequence_open(cache, NULL, 0, &options, &step));
  options.adapter = "a";
  options.num_extra_keys = 1;
  NULL_ARGUMENT("options.extra_keys", lariat_sequence_open(cache, NULL, 0, &options, &step));
  options.num_extra_keys = 0;
  options.num_retention = 1;
  NULL_ARGUMENT("options.retention", lariat_sequence_open(cache, NULL, 0, &options, &step));
  options.num_retention = 0;
  options.reserved = 1;
  REFUSES(cache, LARIAT_UNSUPPORTED, "options.reserved is 1",
          lariat_sequence_open(cache, NULL, 0, &options, &step));
}

static void NoStep(lariat_cache* cache) {
  NO_STEP(lariat_step_drop(cache, 5));
  NO_STEP(lariat_step_get_info(cache, 5, NULL));
  NO_STEP(lariat_step_get_rows(cache, 5, 0, NULL));
  NO_STEP(lariat_step_prepare(cache, 5, NULL));
  NO_STEP(lariat_step_commit(cache, 5, NULL, 0, NULL));
  NO_STEP(lariat_step_discard(cache, 5, NULL));
  NO_STEP(lariat_step_append(cache, 5, 0, NULL, NULL));
  NO_STEP(lariat_step_mla_append(cache, 5, 0, NULL, NULL));
  NO_STEP(lariat_step_mla_expand(cache, 5, 0, NULL, NULL));
  NO_STEP(lariat_step_mla_compress(cache, 5, 0, NULL, NULL));
}

void TestNulls(void) {
  NoCache();
  lariat_cache* cache = MakeCache();
  CHECK(strcmp(lariat_last_error(cache), "") == 0); /* nothing failed yet */
  uint64_t sequence = 0, step = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
  NoArgument(cache, sequence);
  NoStep(cache);

  /* With a live step: its own arguments. */
  const int32_t positions[1] = {0};
  lariat_step_item item = {sizeof item, 1, sequence, 1, 0, NULL};
  NULL_ARGUMENT("items.positions", lariat_step_plan(cache, &item, 1, NULL, NULL, &step));
  item.positions = positions;
  OK(cache, lariat_step_plan(cache, &item, 1, NULL, NULL, &step));
  NULL_ARGUMENT("info", lariat_step_get_info(cache, step, NULL));
  NULL_ARGUMENT("rows", lariat_step_get_rows(cache, step, 0, NULL));
  lariat_rows rows = {.struct_size = sizeof rows};
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "index is 1",
          lariat_step_get_rows(cache, step, 1, &rows));
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT, lariat_step_get_rows(cache, step, -1, &rows));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  NULL_ARGUMENT("inputs", lariat_step_append(cache, step, 0, NULL, NULL));
  lariat_append_inputs inputs = {.struct_size = sizeof inputs};
  inputs.dtype = 3;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "dtype is 3; allowed are 0 to 2",
          lariat_step_append(cache, step, 0, &inputs, NULL));
  inputs.dtype = LARIAT_FP32;
  inputs.dependent_launch = -1;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "dependent_launch is -1",
          lariat_step_append(cache, step, 0, &inputs, NULL));
  inputs.dependent_launch = 0;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "k = null",
          lariat_step_append(cache, step, 0, &inputs, NULL));
  lariat_commit commit = {sizeof commit, 1, sequence, 1, NULL};
  NULL_ARGUMENT("commits.tokens", lariat_step_commit(cache, step, &commit, 1, NULL));
  commit.num_tokens = 0;
  commit.kept = 2;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "kept",
          lariat_step_commit(cache, step, &commit, 1, NULL));
  commit.kept = 1;
  OK(cache, lariat_step_commit(cache, step, &commit, 1, NULL));
  /* A text stays until the next failure. */
  CHECK(strstr(lariat_last_error(cache), "kept") != NULL);
  lariat_cache_destroy(cache);
}

/* A struct followed by bytes that a later version might have. */
#define LATER(type)        \
  struct {                 \
    type now;              \
    unsigned char more[8]; \
  }

void TestSizes(void) {
  lariat_cache* cache = MakeCache();
  lariat_stats stats = {.struct_size = 4};
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "stats.struct_size is 4; set it to sizeof the struct",
          lariat_cache_stats(cache, &stats));
  const uint32_t wrong[] = {0, sizeof(lariat_extent) - 1, sizeof(lariat_extent) + 1, 1U << 20};
  uint64_t sequence = 0, step = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
  for (int i = 0; i < 4; ++i) {
    lariat_extent extent = {.struct_size = wrong[i]};
    extent.settled = -7;
    REFUSES(cache, LARIAT_INVALID_ARGUMENT, "extent.struct_size",
            lariat_sequence_extent(cache, sequence, &extent));
    CHECK(extent.settled == -7);
  }

  /* A caller that knows more: what it does not set is no matter, what it sets is. */
  LATER(lariat_open_options) options = {.now = {.struct_size = sizeof options}};
  OK(cache, lariat_sequence_open(cache, NULL, 0, &options.now, &sequence));
  options.more[3] = 1;
  REFUSES(cache, LARIAT_UNSUPPORTED, "options: byte 75",
          lariat_sequence_open(cache, NULL, 0, &options.now, &sequence));
  LATER(lariat_extent) extent = {.now = {.struct_size = sizeof extent}};
  extent.more[0] = extent.more[7] = 9;
  OK(cache, lariat_sequence_extent(cache, sequence, &extent.now));
  CHECK(extent.now.struct_size == sizeof extent && extent.more[0] == 0 && extent.more[7] == 0);

  /* Arrays step by the first element's size. */
  LATER(lariat_step_item) items[2];
  memset(items, 0, sizeof items);
  for (int i = 0; i < 2; ++i) {
    OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
    items[i].now.struct_size = sizeof items[0];
    items[i].now.sequence = sequence;
    items[i].now.num_tokens = i + 1;
  }
  OK(cache, lariat_step_plan(cache, &items[0].now, 2, NULL, NULL, &step));
  lariat_step_info info = {.struct_size = sizeof info};
  OK(cache, lariat_step_get_info(cache, step, &info));
  CHECK(info.num_sequences == 2 && info.num_tokens == 3);
  OK(cache, lariat_step_drop(cache, step));
  items[1].now.struct_size -= 8;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "items[1].struct_size differs",
          lariat_step_plan(cache, &items[0].now, 2, NULL, NULL, &step));
  items[1].now.struct_size = 8;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "items[1].struct_size is 8",
          lariat_step_plan(cache, &items[0].now, 2, NULL, NULL, &step));
  lariat_step_shape shape = {.struct_size = 12};
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "shape.struct_size",
          lariat_step_plan(cache, &items[0].now, 1, &shape, NULL, &step));
  lariat_plan_failure failure = {.struct_size = 0};
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "failure.struct_size",
          lariat_step_plan(cache, &items[0].now, 1, NULL, &failure, &step));
  lariat_cache_destroy(cache);
}

#define BAD(words, change)                                                                       \
  do {                                                                                           \
    lariat_cache_config config = BaseConfig();                                                   \
    change;                                                                                      \
    REFUSES(NULL, LARIAT_INVALID_ARGUMENT, words, lariat_cache_create(&config, &cache));         \
    REFUSES(NULL, LARIAT_INVALID_ARGUMENT, words, lariat_config_footprint(&config, &footprint)); \
  } while (0)

void TestConfig(void) {
  lariat_cache* const untouched = (lariat_cache*)&failures;
  lariat_cache* cache = untouched;
  lariat_footprint footprint = {.struct_size = sizeof footprint};
  lariat_cache_config good = BaseConfig();
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "config: null", lariat_cache_create(NULL, &cache));
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "cache: null", lariat_cache_create(&good, NULL));
  BAD("config.struct_size is 0", config.struct_size = 0);
  BAD("dtype is 3", config.dtype = 3);
  BAD("backend is -1", config.backend = -1);
  BAD("layout is 2", config.layout = 2);
  BAD("order is 2", config.order = 2);
  BAD("reuse is 3", config.reuse = 3);
  BAD("eviction is 2", config.eviction = 2);
  BAD("host_write is 3", config.host_write = 3);
  BAD("layers: null", config.layers = NULL);
  BAD("ropes: -1 elements", config.num_ropes = -1);
  BAD("max_tokens_per_sequence", config.max_tokens_per_sequence = 0);
  BAD("block_size", config.block_size = -1);
  BAD("max_steps_in_flight", config.max_steps_in_flight = 17);
  lariat_layer layer = good.layers[0];
  layer.kind = 5;
  BAD("layers.kind is 5", (config.layers = &layer, config.num_layers = 1));
  layer.kind = LARIAT_LAYER_FULL;
  layer.struct_size = 20;
  BAD("layers[0].struct_size is 20", (config.layers = &layer, config.num_layers = 1));
  lariat_rope rope = good.ropes[0];
  rope.type = 7;
  BAD("ropes.type is 7", config.ropes = &rope);
  rope.type = LARIAT_ROPE_LLAMA3;
  BAD("original_max_position_embeddings", config.ropes = &rope);
  rope.type = LARIAT_ROPE_DEFAULT;
  rope.num_mrope_sections = 5;
  BAD("num_mrope_sections is 5", config.ropes = &rope);
  CHECK(cache == untouched);

  layer = good.layers[0];
  layer.kind = LARIAT_LAYER_LINEAR;
  good.layers = &layer;
  good.num_layers = 1;
  ANSWERS(NULL, LARIAT_UNSUPPORTED, lariat_cache_create(&good, &cache));
  CHECK(cache == untouched);
  /* What is 0 has its default. */
  lariat_cache_config plain = BaseConfig();
  plain.block_size = 0;
  plain.dtype = LARIAT_BF16;
  plain.max_sequences = 0;
  OK(NULL, lariat_config_footprint(&plain, &footprint));
  CHECK(footprint.bytes_per_block == 16 * 2 * kHeads * (kKeyDim + kValueDim) * 2);
  footprint.struct_size = 8;
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "footprint.struct_size is 8",
          lariat_config_footprint(&plain, &footprint));
}
