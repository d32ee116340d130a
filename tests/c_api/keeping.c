/* SPDX-License-Identifier: Apache-2.0 */
/* No room, what is kept, and the host tier. */
#include "c_api/check.h"

static const int32_t kPrompt[20] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                    11, 12, 13, 14, 15, 16, 17, 18, 19, 20};

static int64_t FreeBlocks(const lariat_cache* cache) {
  lariat_stats stats = {.struct_size = sizeof stats};
  OK(NULL, lariat_cache_stats(cache, &stats));
  return stats.free_blocks;
}

void TestExhaustion(void) {
  lariat_cache* cache = MakeCache(); /* 12 blocks of 4 */
  uint64_t sequences[3], step = 77;
  for (int i = 0; i < 3; ++i) OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequences[i]));
  lariat_step_item items[3];
  for (int i = 0; i < 3; ++i) {
    const lariat_step_item item = {sizeof item, 0, sequences[i], 18, 0, NULL};
    items[i] = item;
  }
  uint64_t who[2] = {0, 0};
  int64_t need[2] = {0, 0};
  lariat_plan_failure failure = {.struct_size = sizeof failure};
  failure.capacity = 2;
  failure.sequences = who;
  failure.blocks = need;
  REFUSES(cache, LARIAT_RESOURCE_EXHAUSTED, "15",
          lariat_step_plan(cache, items, 3, NULL, &failure, &step));
  CHECK(step == 77); /* results stay as they were */
  CHECK(failure.needed == 15 && failure.available == 12 && failure.in_transit == 0);
  CHECK(failure.num_sequences == 3 && failure.capacity == 2);
  CHECK(who[0] == sequences[0] && who[1] == sequences[1] && need[0] == 5 && need[1] == 5);
  /* Without room for the list, and without a failure. */
  lariat_plan_failure brief = {.struct_size = sizeof brief};
  ANSWERS(cache, LARIAT_RESOURCE_EXHAUSTED, lariat_step_plan(cache, items, 3, NULL, &brief, &step));
  CHECK(brief.needed == 15 && brief.num_sequences == 3);
  ANSWERS(cache, LARIAT_RESOURCE_EXHAUSTED, lariat_step_plan(cache, items, 3, NULL, NULL, &step));
  /* All that was refused changed nothing. */
  CHECK(FreeBlocks(cache) == kBlocks);
  OK(cache, lariat_step_plan(cache, items, 2, NULL, &brief, &step));
  OK(cache, lariat_step_drop(cache, step));
  CHECK(FreeBlocks(cache) == kBlocks);
  lariat_cache_destroy(cache);

  lariat_cache_config config = BaseConfig();
  config.num_blocks = 2;
  OK(NULL, lariat_cache_create(&config, &cache));
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequences[0]));
  items[0].sequence = sequences[0];
  ANSWERS(cache, LARIAT_NEVER_FITS, lariat_step_plan(cache, items, 1, NULL, &brief, &step));
  CHECK(brief.needed == 5 && brief.available == 2);
  lariat_cache_destroy(cache);
}

/* Computes a prompt and lets go of it: its whole blocks stay cached. */
static void Cache(lariat_cache* cache, int64_t tokens, const lariat_open_options* options) {
  uint64_t sequence = 0;
  OK(cache, lariat_sequence_open(cache, kPrompt, tokens, options, &sequence));
  (void)RunStep(cache, sequence, tokens, NULL, NULL);
  OK(cache, lariat_sequence_close(cache, sequence));
}

static int64_t Found(lariat_cache* cache, int64_t tokens, const lariat_open_options* options) {
  lariat_prefix_match match = {.struct_size = sizeof match};
  OK(cache, lariat_cache_match(cache, kPrompt, tokens, options, &match));
  return match.tokens;
}

void TestKeeping(void) {
  lariat_cache_config config = BaseConfig();
  config.eviction = LARIAT_EVICT_PRIORITY;
  config.max_pinned_blocks = 2;
  lariat_cache* cache = NULL;
  OK(NULL, lariat_cache_create(&config, &cache));

  /* Salt, adapter and extra keys tell texts apart. */
  const uint64_t keys[2] = {3, 4};
  lariat_open_options salted = {.struct_size = sizeof salted};
  salted.salt = "a\0b";
  salted.salt_size = 3;
  lariat_open_options other = salted;
  other.salt = "a\0c";
  lariat_open_options adapted = salted, keyed = salted;
  adapted.adapter = "lora";
  adapted.adapter_size = 4;
  keyed.extra_keys = keys;
  keyed.num_extra_keys = 2;
  Cache(cache, 9, &salted);
  CHECK(Found(cache, 9, &salted) == 8);
  CHECK(Found(cache, 9, NULL) == 0 && Found(cache, 9, &other) == 0);
  CHECK(Found(cache, 9, &adapted) == 0 && Found(cache, 9, &keyed) == 0);
  Cache(cache, 9, &keyed);
  CHECK(Found(cache, 9, &keyed) == 8);

  /* Pins. */
  OK(cache, lariat_cache_pin(cache, kPrompt, 9, &salted));
  REFUSES(cache, LARIAT_RESOURCE_EXHAUSTED, "max_pinned_blocks",
          lariat_cache_pin(cache, kPrompt, 9, &keyed));
  OK(cache, lariat_cache_unpin(cache, kPrompt, 9, &salted));
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT, lariat_cache_unpin(cache, kPrompt, 9, &salted));

  /* Removal: of the texts that begin so, and of a salt. */
  int64_t removed = 0;
  OK(cache, lariat_cache_remove(cache, kPrompt, 8, &keyed, &removed));
  CHECK(removed == 1 && Found(cache, 9, &keyed) == 4 && Found(cache, 9, &salted) == 8);
  OK(cache, lariat_cache_remove_salt(cache, "a\0b", 3, NULL));
  CHECK(Found(cache, 9, &salted) == 0 && FreeBlocks(cache) == kBlocks);

  /* Quotas and time. */
  OK(cache, lariat_cache_set_quota(cache, "a\0b", 3, 1));
  Cache(cache, 9, &salted);
  CHECK(Found(cache, 9, &salted) == 4);
  ANSWERS(cache, LARIAT_INVALID_ARGUMENT, lariat_cache_set_quota(cache, "a\0b", 3, -2));
  const lariat_retention retention[2] = {{sizeof retention[0], 90, 0, 4, 1000},
                                         {sizeof retention[0], 20, 4, -1, 0}};
  lariat_open_options kept = {.struct_size = sizeof kept};
  kept.retention = retention;
  kept.num_retention = 2;
  Cache(cache, 9, &kept);
  OK(cache, lariat_cache_expire(cache, 1500));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "now_ms", lariat_cache_expire(cache, 1499));
  lariat_stats stats = {.struct_size = sizeof stats};
  OK(NULL, lariat_cache_stats(cache, &stats));
  CHECK(stats.expired_blocks == 1);
  kept.max_length = 33;
  uint64_t sequence = 0;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "max_length",
          lariat_sequence_open(cache, kPrompt, 9, &kept, &sequence));
  lariat_cache_destroy(cache);
}

void TestTier(void) {
  static float k[20 * kHeads * kKeyDim], v[20 * kHeads * kValueDim], back[20 * kHeads * kKeyDim];
  for (int i = 0; i < 20 * kHeads * kKeyDim; ++i) k[i] = (float)i;
  lariat_cache_config config = BaseConfig();
  lariat_cache* cache = NULL;
  uint64_t sequence = 0, transfer = 9;
  OK(NULL, lariat_cache_create(&config, &cache));
  OK(cache, lariat_sequence_open(cache, kPrompt, 10, NULL, &sequence));
  RunStep(cache, sequence, 10, k, v);
  REFUSES(cache, LARIAT_UNSUPPORTED, "host", lariat_sequence_suspend(cache, sequence, &transfer));
  CHECK(transfer == 9);
  lariat_cache_destroy(cache);

  config.host_num_blocks = 8;
  config.host_write = LARIAT_WRITE_THROUGH;
  OK(NULL, lariat_cache_create(&config, &cache));
  lariat_footprint footprint = {.struct_size = sizeof footprint}, same = footprint;
  OK(NULL, lariat_config_footprint(&config, &footprint));
  OK(cache, lariat_cache_footprint(cache, &same));
  CHECK(memcmp(&footprint, &same, sizeof same) == 0);
  CHECK(footprint.bytes_per_token == 2 * kHeads * (kKeyDim + kValueDim) * 4);
  CHECK(footprint.num_blocks == kBlocks && footprint.num_host_blocks == 8);
  CHECK(footprint.pool_bytes == kBlocks * footprint.bytes_per_block);

  OK(cache, lariat_sequence_open(cache, kPrompt, 10, NULL, &sequence));
  RunStep(cache, sequence, 10, k, v);
  OK(cache, lariat_sequence_suspend(cache, sequence, &transfer));
  CHECK(transfer != 0 && FreeBlocks(cache) > 9 - 1);
  /* Others take the device's blocks. */
  uint64_t big = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &big));
  RunStep(cache, big, 32, NULL, NULL);
  OK(cache, lariat_sequence_truncate(cache, big, 1));
  uint64_t resumed = 0;
  OK(cache, lariat_sequence_resume(cache, sequence, &resumed));
  CHECK(resumed > transfer);
  ANSWERS(cache, LARIAT_NOT_READY, lariat_sequence_truncate(cache, sequence, 9));
  lariat_poll_report report = {.struct_size = sizeof report};
  int64_t polls = 0, told = 0;
  while (told == 0 && ++polls < 100) {
    OK(cache, lariat_cache_poll(cache, &report));
    for (int32_t i = 0; i < report.num_finished_transfers; ++i) {
      lariat_transfer_report one = {.struct_size = sizeof one};
      OK(cache, lariat_cache_finished_transfer(cache, i, &one));
      CHECK(one.failed == 0);
      told += one.transfer == resumed;
    }
  }
  CHECK(told == 1);
  lariat_transfer_report accepted = {.struct_size = sizeof accepted};
  OK(cache, lariat_transfer_accept(cache, resumed, &accepted));
  CHECK(accepted.transfer == resumed && accepted.failed == 0);
  OK(cache, lariat_transfer_accept(cache, resumed, NULL));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "transfer",
          lariat_transfer_accept(cache, resumed + 1000, NULL));
  OK(cache, lariat_sequence_read_rows(cache, sequence, 0, 0, 10, back, NULL));
  CHECK(memcmp(back, k, 10 * kHeads * kKeyDim * sizeof(float)) == 0);
  OK(cache, lariat_sequence_close(cache, sequence));

  /* What was evicted comes back by a fetch. */
  OK(cache, lariat_sequence_truncate(cache, big, 0));
  RunStep(cache, big, 32, NULL, NULL);
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &resumed));
  RunStep(cache, resumed, 16, NULL, NULL);
  OK(cache, lariat_sequence_close(cache, resumed));
  OK(cache, lariat_sequence_open(cache, kPrompt, 10, NULL, &sequence));
  lariat_prefix_match match = {.struct_size = sizeof match};
  OK(cache, lariat_sequence_match(cache, sequence, &match));
  CHECK(match.tokens == 0 && match.host_tokens == 8);
  OK(cache, lariat_sequence_fetch(cache, sequence, &transfer));
  CHECK(transfer != 0);
  OK(cache, lariat_transfer_accept(cache, transfer, NULL));
  OK(cache, lariat_sequence_match(cache, sequence, &match));
  CHECK(match.tokens == 8);
  CHECK(RunStep(cache, sequence, 10, k, v) == 8);
  OK(cache, lariat_sequence_read_rows(cache, sequence, 0, 0, 10, back, NULL));
  CHECK(memcmp(back, k, 10 * kHeads * kKeyDim * sizeof(float)) == 0);
  lariat_cache_destroy(cache);
}
