/* SPDX-License-Identifier: Apache-2.0 */
/* The life of steps, with real rows on the CPU. */
#include <math.h>

#include "c_api/check.h"

lariat_cache_config BaseConfig(void) {
  static lariat_layer layers[2];
  static lariat_rope rope;
  const lariat_layer layer = {sizeof layer, LARIAT_LAYER_FULL, kHeads, kKeyDim, kValueDim, -1, 0};
  layers[0] = layer;
  layers[1] = layer;
  layers[1].rope = 0;
  memset(&rope, 0, sizeof rope);
  rope.struct_size = sizeof rope;
  rope.rotary_dim = kKeyDim;
  lariat_cache_config config = {.struct_size = sizeof config};
  config.dtype = LARIAT_FP32;
  config.layers = layers;
  config.num_layers = 2;
  config.ropes = &rope;
  config.num_ropes = 1;
  config.backend = LARIAT_BACKEND_CPU;
  config.num_blocks = kBlocks;
  config.block_size = kBlock;
  config.max_tokens_per_sequence = 32;
  config.max_sequences = 8;
  return config;
}

lariat_cache* MakeCache(void) {
  const lariat_cache_config config = BaseConfig();
  lariat_cache* cache = NULL;
  OK(NULL, lariat_cache_create(&config, &cache));
  return cache;
}

int64_t RunStep(lariat_cache* cache, uint64_t sequence, int64_t rows, const float* k,
                const float* v) {
  const lariat_step_item item = {sizeof item, 0, sequence, rows, 0, NULL};
  uint64_t step = 0;
  OK(cache, lariat_step_plan(cache, &item, 1, NULL, NULL, &step));
  lariat_rows planned = {.struct_size = sizeof planned};
  OK(cache, lariat_step_get_rows(cache, step, 0, &planned));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  if (k != NULL) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      lariat_append_inputs inputs = {.struct_size = sizeof inputs};
      inputs.dtype = LARIAT_FP32;
      inputs.k = k + planned.start * kHeads * kKeyDim;
      inputs.v = v + planned.start * kHeads * kValueDim;
      OK(cache, lariat_step_append(cache, step, layer, &inputs, NULL));
    }
  }
  OK(cache, lariat_step_commit(cache, step, NULL, 0, NULL));
  return planned.hit;
}

enum { kTokens = 10 };
static float k_rows[kTokens * kHeads * kKeyDim], v_rows[kTokens * kHeads * kValueDim];

static void FillRows(void) {
  for (int i = 0; i < kTokens * kHeads * kKeyDim; ++i) k_rows[i] = (float)((i * 37) % 101) - 50.5F;
  for (int i = 0; i < kTokens * kHeads * kValueDim; ++i) v_rows[i] = (float)((i * 53) % 89) * 0.25F;
}

/* Element `i` of a key head of layer 1: pairs (i, i + 4) turned by position / 10000^(2i / 8). */
static float Turned(const float* head, int i, int position) {
  const int pair = i % (kKeyDim / 2);
  const double angle = (double)position * pow(10000.0, -2.0 * pair / kKeyDim);
  const float c = (float)cos(angle), s = (float)sin(angle);
  const float x = head[pair], y = head[pair + kKeyDim / 2];
  const float xc = x * c, ys = y * s, yc = y * c, xs = x * s; /* each product is rounded */
  return i < kKeyDim / 2 ? xc - ys : yc + xs;
}

/* Each of the sequence's rows in the pool, found by the block table and the view's strides. */
static void CheckRows(lariat_cache* cache, uint64_t sequence) {
  const int32_t* blocks = NULL;
  int64_t num_blocks = 0;
  OK(cache, lariat_sequence_block_table(cache, sequence, 0, &blocks, &num_blocks));
  CHECK(num_blocks == 3);
  for (int32_t layer = 0; layer < 2 && failures == 0; ++layer) {
    lariat_layer_view view = {.struct_size = sizeof view};
    OK(cache, lariat_cache_layer(cache, layer, &view));
    CHECK(view.dtype == LARIAT_FP32 && view.group == 0 && view.kv_heads == kHeads);
    CHECK(view.k_dim == kKeyDim && view.v_dim == kValueDim);
    CHECK(view.block_size == kBlock && view.num_blocks == kBlocks);
    CHECK((view.cos != NULL) == (layer == 1) && (view.sin != NULL) == (layer == 1));
    for (int t = 0; t < kTokens; ++t) {
      const int64_t block = blocks[t / kBlock], row = t % kBlock;
      for (int h = 0; h < kHeads; ++h) {
        const float* k = (const float*)view.k + block * view.k_block_stride +
                         row * view.k_row_stride + h * view.k_head_stride;
        const float* v = (const float*)view.v + block * view.v_block_stride +
                         row * view.v_row_stride + h * view.v_head_stride;
        const float* k_in = k_rows + (t * kHeads + h) * kKeyDim;
        for (int i = 0; i < kKeyDim; ++i)
          CHECK(k[i] == (layer == 0 ? k_in[i] : Turned(k_in, i, t)));
        CHECK(memcmp(v, v_rows + (t * kHeads + h) * kValueDim, kValueDim * sizeof(float)) == 0);
      }
    }
  }
}

void TestLife(void) {
  FillRows();
  lariat_cache* cache = MakeCache();
  const int32_t prompt[kTokens] = {5, -6, 7, 8, 9, 10, 11, 12, 13, 14};
  uint64_t first = 0;
  OK(cache, lariat_sequence_open(cache, prompt, kTokens, NULL, &first));

  /* One step, piece by piece. */
  const lariat_step_item item = {sizeof item, 0, first, kTokens, 0, NULL};
  const lariat_step_shape shape = {sizeof shape, 3, 16};
  uint64_t step = 0;
  OK(cache, lariat_step_plan(cache, &item, 1, &shape, NULL, &step));
  CHECK(step == 1);
  lariat_step_info info = {.struct_size = sizeof info};
  OK(cache, lariat_step_get_info(cache, step, &info));
  CHECK(info.num_sequences == 1 && info.num_tokens == kTokens);
  CHECK(info.padded_tokens == 16 && info.padded_sequences == 3);
  lariat_rows rows = {.struct_size = sizeof rows};
  OK(cache, lariat_step_get_rows(cache, step, 0, &rows));
  CHECK(rows.sequence == first && rows.first_row == 0 && rows.start == 0);
  CHECK(rows.count == kTokens && rows.hit == 0);
  OK(cache, lariat_step_prepare(cache, step, NULL));
  lariat_step_view view = {.struct_size = sizeof view};
  OK(cache, lariat_cache_view(cache, 0, &view));
  const int32_t* blocks = NULL;
  int64_t num_blocks = 0;
  OK(cache, lariat_sequence_block_table(cache, first, 0, &blocks, &num_blocks));
  for (int t = 0; t < kTokens; ++t) {
    CHECK(view.slots[t] == (int64_t)blocks[t / kBlock] * kBlock + t % kBlock);
    CHECK(view.positions[t] == t);
  }
  CHECK(view.slots[kTokens] == -1 && view.cu_seqlens[1] == kTokens && view.seqused_k[0] == kTokens);
  CHECK(view.block_table[2] == blocks[2] && view.block_table_stride == 32 / kBlock);
  CHECK(view.rope_choice == NULL);
  /* The 16 rows of the shape are read. */
  float k[16 * kHeads * kKeyDim] = {0}, v[16 * kHeads * kValueDim] = {0};
  float q[16 * kKeyDim] = {0};
  memcpy(k, k_rows, sizeof k_rows);
  memcpy(v, v_rows, sizeof v_rows);
  q[kKeyDim] = 1.0F; /* of token 1 */
  lariat_append_inputs inputs = {.struct_size = sizeof inputs};
  inputs.dtype = LARIAT_FP32;
  inputs.k = k;
  inputs.v = v;
  OK(cache, lariat_step_append(cache, step, 0, &inputs, NULL));
  inputs.q = q;
  inputs.q_heads = 1;
  OK(cache, lariat_step_append(cache, step, 1, &inputs, NULL));
  CHECK(q[kKeyDim] == (float)cos(1.0) && q[kKeyDim + 4] == (float)sin(1.0));
  OK(cache, lariat_step_commit(cache, step, NULL, 0, NULL));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "there is no step 1",
          lariat_step_commit(cache, step, NULL, 0, NULL));
  CheckRows(cache, first);
  lariat_poll_report report = {.struct_size = sizeof report};
  OK(cache, lariat_cache_poll(cache, &report));
  CHECK(report.live_steps == 0 && report.pending_events == 0 && report.num_faults == 0);

  /* Read back by the cache itself. */
  float read_k[2 * kHeads * kKeyDim], read_v[2 * kHeads * kValueDim];
  OK(cache, lariat_sequence_read_rows(cache, first, 0, 8, 2, read_k, read_v));
  CHECK(memcmp(read_k, k_rows + 8 * kHeads * kKeyDim, sizeof read_k) == 0);
  CHECK(memcmp(read_v, v_rows + 8 * kHeads * kValueDim, sizeof read_v) == 0);
  OK(cache, lariat_sequence_read_rows(cache, first, 0, 8, 2, NULL, read_v));

  /* The same prompt again: two whole blocks are found, and the rest is computed. */
  lariat_prefix_match match = {.struct_size = sizeof match};
  OK(cache, lariat_cache_match(cache, prompt, kTokens, NULL, &match));
  CHECK(match.tokens == 8 && match.blocks == 2 && match.idle_blocks == 0);
  uint64_t second = 0;
  OK(cache, lariat_sequence_open(cache, prompt, kTokens, NULL, &second));
  OK(cache, lariat_sequence_match(cache, second, &match));
  CHECK(match.tokens == 8 && match.host_tokens == 8);
  CHECK(RunStep(cache, second, kTokens, k_rows, v_rows) == 8);
  CheckRows(cache, second);

  lariat_stats stats = {.struct_size = sizeof stats};
  OK(NULL, lariat_cache_stats(cache, &stats));
  CHECK(stats.total_blocks == kBlocks && stats.hit_tokens == 8 && stats.sequences == 2);
  CHECK(stats.tokens_committed == kTokens + 2 && stats.held_blocks == 4);
  CHECK(stats.free_blocks + stats.idle_blocks + stats.held_blocks + stats.reserved_blocks +
            stats.in_transit_blocks ==
        kBlocks);
  OK(cache, lariat_sequence_close(cache, first));
  OK(cache, lariat_sequence_close(cache, second));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "sequence", lariat_sequence_close(cache, second));
  OK(cache, lariat_cache_clear(cache));
  OK(NULL, lariat_cache_stats(cache, &stats));
  CHECK(stats.free_blocks == kBlocks && stats.indexed_blocks == 0);
  lariat_cache_destroy(cache);
}

void TestDrafts(void) {
  FillRows();
  lariat_cache* cache = MakeCache();
  const int32_t prompt[6] = {1, 2, 3, 4, 5, 6};
  uint64_t sequence = 0, fork = 0, step = 0;
  OK(cache, lariat_sequence_open(cache, prompt, 6, NULL, &sequence));
  RunStep(cache, sequence, 6, k_rows, v_rows);

  /* Four rows, three of them drafts; two rows stay. */
  const int32_t positions[4] = {6, 7, 8, 9};
  const lariat_step_item item = {sizeof item, 4, sequence, 4, 3, positions};
  OK(cache, lariat_step_plan(cache, &item, 1, NULL, NULL, &step));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  lariat_extent extent = {.struct_size = sizeof extent};
  OK(cache, lariat_sequence_extent(cache, sequence, &extent));
  CHECK(extent.settled == 6 && extent.planned == 7 && extent.known == 6);
  const int32_t sampled[1] = {70};
  const lariat_commit commit = {sizeof commit, 1, sequence, 2, sampled};
  OK(cache, lariat_step_commit(cache, step, &commit, 1, NULL));
  const int32_t late[1] = {80};
  OK(cache, lariat_sequence_set_tokens(cache, sequence, late, 1));
  OK(cache, lariat_sequence_extent(cache, sequence, &extent));
  CHECK(extent.settled == 8 && extent.planned == 8 && extent.known == 8);

  OK(cache, lariat_sequence_fork(cache, sequence, 7, &fork));
  OK(cache, lariat_sequence_extent(cache, fork, &extent));
  CHECK(extent.settled == 7);
  OK(cache, lariat_sequence_truncate(cache, sequence, 5));
  OK(cache, lariat_sequence_extent(cache, sequence, &extent));
  CHECK(extent.settled == 5);

  /* A plan that is dropped, and a step that is discarded, leave nothing. */
  const lariat_step_item next = {sizeof next, 0, fork, 1, 0, NULL};
  OK(cache, lariat_step_plan(cache, &next, 1, NULL, NULL, &step));
  REFUSES(cache, LARIAT_NOT_READY, "", lariat_sequence_close(cache, fork));
  OK(cache, lariat_step_drop(cache, step));
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT, lariat_step_prepare(cache, step, NULL));
  OK(cache, lariat_step_plan(cache, &next, 1, NULL, NULL, &step));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  OK(cache, lariat_step_discard(cache, step, NULL));
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT, lariat_step_discard(cache, step, NULL));

  /* Two steps in flight; the last one is left to destroy. */
  uint64_t later = 0;
  const lariat_step_item other = {sizeof other, 0, sequence, 1, 0, NULL};
  OK(cache, lariat_step_plan(cache, &next, 1, NULL, NULL, &step));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  OK(cache, lariat_step_plan(cache, &other, 1, NULL, NULL, &later));
  OK(cache, lariat_step_prepare(cache, later, NULL));
  lariat_append_inputs inputs = {.struct_size = sizeof inputs};
  inputs.dtype = LARIAT_FP32;
  inputs.k = k_rows;
  inputs.v = v_rows;
  ANSWERS(cache, LARIAT_NOT_READY, lariat_step_append(cache, step, 0, &inputs, NULL));
  OK(cache, lariat_step_append(cache, later, 0, &inputs, NULL));
  ANSWERS(cache, LARIAT_NOT_READY, lariat_step_commit(cache, later, NULL, 0, NULL));
  OK(cache, lariat_step_commit(cache, step, NULL, 0, NULL));
  OK(cache, lariat_sequence_extent(cache, fork, &extent));
  CHECK(extent.settled == 8);
  lariat_cache_destroy(cache);
}

/* A layer of full attention and one with a window of 6 tokens: two groups, each with a table. */
void TestWindows(void) {
  FillRows();
  lariat_layer layers[2];
  lariat_cache_config config = BaseConfig();
  memcpy(layers, config.layers, sizeof layers);
  layers[1].kind = LARIAT_LAYER_SLIDING;
  layers[1].window = 6;
  config.layers = layers;
  lariat_cache* cache = NULL;
  OK(NULL, lariat_cache_create(&config, &cache));
  lariat_footprint footprint = {.struct_size = sizeof footprint};
  OK(cache, lariat_cache_footprint(cache, &footprint));
  CHECK(footprint.num_groups == 2 && footprint.padding_bytes == 0);
  lariat_layer_view full = {.struct_size = sizeof full}, sliding = full;
  OK(cache, lariat_cache_layer(cache, 0, &full));
  OK(cache, lariat_cache_layer(cache, 1, &sliding));
  CHECK(full.group == 0 && full.kind == LARIAT_LAYER_FULL && full.window == 0);
  CHECK(sliding.group == 1 && sliding.kind == LARIAT_LAYER_SLIDING && sliding.window == 6);

  uint64_t sequence = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
  for (int t = 0; t < kTokens; ++t) RunStep(cache, sequence, 1, k_rows, v_rows);
  const int32_t *all = NULL, *windowed = NULL;
  int64_t num_all = 0, num_windowed = 0, first = -1;
  OK(cache, lariat_sequence_block_table(cache, sequence, 0, &all, &num_all));
  OK(cache, lariat_sequence_block_table(cache, sequence, 1, &windowed, &num_windowed));
  CHECK(num_all == 3 && all[0] >= 0 && num_windowed == 3 && windowed[0] == -1 && windowed[1] >= 0);
  OK(cache, lariat_sequence_first_row(cache, sequence, 0, &first));
  CHECK(first == 0);
  OK(cache, lariat_sequence_first_row(cache, sequence, 1, &first));
  CHECK(first == 4); /* row 10 reads 5 to 10, and block 1 begins with 4 */
  const float* k =
      (const float*)sliding.k + windowed[2] * sliding.k_block_stride + 1 * sliding.k_row_stride;
  for (int i = 0; i < kKeyDim; ++i) {
    CHECK(k[i] == Turned(k_rows + 9 * kHeads * kKeyDim, i, 9));
  }
  lariat_step_view one = {.struct_size = sizeof one}, other = one;
  OK(cache, lariat_cache_view(cache, 0, &one));
  OK(cache, lariat_cache_view(cache, 1, &other));
  CHECK(one.slots[0] == (int64_t)all[2] * kBlock + 1);
  CHECK(other.slots[0] == (int64_t)windowed[2] * kBlock + 1);
  CHECK(one.cu_seqlens == other.cu_seqlens && one.block_table != other.block_table);
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "group is 2; allowed are 0 to 1",
          lariat_cache_view(cache, 2, &one));
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT,
          lariat_sequence_block_table(cache, sequence, -1, &all, &num_all));
  int64_t blocks = 0;
  OK(cache, lariat_cache_blocks_for(cache, 0, 10, 1, &blocks));
  CHECK(blocks >= 3 + 2 && blocks <= 3 + 3);
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "max_tokens_per_sequence (32)",
          lariat_cache_blocks_for(cache, 0, 33, 0, &blocks));
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT, lariat_cache_blocks_for(cache, 2, 1, 0, &blocks));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "min", lariat_sequence_truncate(cache, sequence, 1));
  lariat_cache_destroy(cache);
}
