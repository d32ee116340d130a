/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the index, and the names of blocks. */
#include "c_api/check.h"

enum { kTokens = 10, kRoom = 8 };
static const int32_t kPrompt[kTokens] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

static lariat_cache* Make(int64_t max_events) {
  lariat_cache_config config = BaseConfig();
  config.max_events = max_events;
  lariat_cache* cache = NULL;
  OK(NULL, lariat_cache_create(&config, &cache));
  return cache;
}

static void Begin(lariat_event* events) {
  memset(events, 0, kRoom * sizeof *events);
  for (int i = 0; i < kRoom; ++i) events[i].struct_size = sizeof *events;
}

static void CheckDrained(lariat_cache* cache, const lariat_open_options* options) {
  lariat_event events[kRoom];
  int64_t count = 77;
  Begin(events);
  OK(cache, lariat_cache_drain_events(cache, events, kRoom, &count));
  CHECK(count == 2);
  uint8_t parent[LARIAT_HASH_SIZE], hash[LARIAT_HASH_SIZE];
  OK(NULL, lariat_hash_root(options, 0, parent));
  for (int i = 0; i < 2; ++i) {
    const lariat_event* event = &events[i];
    CHECK(event->struct_size == sizeof *event && event->kind == LARIAT_EVENT_STORED);
    CHECK(event->tier == LARIAT_TIER_DEVICE && event->group == 0);
    CHECK(event->number == (uint64_t)i + 1);
    CHECK(event->first_token == i * kBlock && event->num_tokens == kBlock);
    CHECK(memcmp(event->tokens, kPrompt + i * kBlock, kBlock * sizeof(int32_t)) == 0);
    OK(NULL, lariat_hash_block(parent, kPrompt + i * kBlock, kBlock, hash));
    CHECK(memcmp(event->parent, parent, LARIAT_HASH_SIZE) == 0);
    CHECK(memcmp(event->hash, hash, LARIAT_HASH_SIZE) == 0);
    memcpy(parent, hash, LARIAT_HASH_SIZE);
  }
  OK(cache, lariat_cache_drain_events(cache, events, kRoom, &count));
  CHECK(count == 0);
}

static void CheckWrong(lariat_cache* cache) {
  lariat_event events[kRoom];
  int64_t count = 77, cursor = 0;
  Begin(events);
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "events: null",
          lariat_cache_drain_events(cache, NULL, 1, &count));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "events: -1 elements",
          lariat_cache_drain_events(cache, events, -1, &count));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "count: null",
          lariat_cache_drain_events(cache, events, kRoom, NULL));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "cursor: null",
          lariat_cache_list_blocks(cache, NULL, events, kRoom, &count));
  events[3].struct_size = 8;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "events[3].struct_size is 8",
          lariat_cache_drain_events(cache, events, kRoom, &count));
  events[3].struct_size = sizeof *events + 8;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "events[3].struct_size differs",
          lariat_cache_drain_events(cache, events, kRoom, &count));
  cursor = -1;
  Begin(events);
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "cursor -1",
          lariat_cache_list_blocks(cache, &cursor, events, kRoom, &count));
  uint8_t hash[LARIAT_HASH_SIZE];
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "hash: null", lariat_hash_root(NULL, 0, NULL));
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "parent: null", lariat_hash_block(NULL, NULL, 0, hash));
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "hash: null", lariat_hash_block(hash, NULL, 0, NULL));
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "tokens: null", lariat_hash_block(hash, NULL, 1, hash));
  CHECK(count == 77); /* results stay as they were */
}

void TestEvents(void) {
  lariat_cache* cache = Make(kRoom);
  lariat_open_options options = {.struct_size = sizeof options};
  options.salt = "tenant";
  options.salt_size = 6;
  options.adapter = "lora";
  options.adapter_size = 4;
  uint64_t sequence = 0;
  OK(cache, lariat_sequence_open(cache, kPrompt, kTokens, &options, &sequence));
  RunStep(cache, sequence, kTokens, NULL, NULL);
  CheckWrong(cache); /* takes nothing */
  CheckDrained(cache, &options);

  /* Structs of a later version, and a list in pieces. */
  struct {
    lariat_event now;
    unsigned char more[8];
  } later[1];
  memset(later, 9, sizeof later);
  later[0].now.struct_size = sizeof later[0];
  int64_t cursor = 0, count = 0, listed = 0;
  do {
    OK(cache, lariat_cache_list_blocks(cache, &cursor, &later[0].now, 1, &count));
    listed += count;
    CHECK(count == 0 || (later[0].more[7] == 0 && later[0].now.number == 2));
  } while (count == 1);
  CHECK(listed == 2);

  OK(cache, lariat_cache_clear(cache));
  lariat_event events[kRoom];
  Begin(events);
  OK(cache, lariat_cache_drain_events(cache, events, 1, &count));
  CHECK(count == 1 && events[0].kind == LARIAT_EVENT_CLEARED && events[0].number == 3);
  CHECK(events[0].tokens == NULL && events[0].num_tokens == 0);
  lariat_stats stats = {.struct_size = sizeof stats};
  OK(NULL, lariat_cache_stats(cache, &stats));
  CHECK(stats.events == 3 && stats.lost_events == 0);
  lariat_footprint footprint = {.struct_size = sizeof footprint};
  OK(cache, lariat_cache_footprint(cache, &footprint));
  CHECK(footprint.event_log_bytes > 0);
  /* A program of before there were events. */
  lariat_stats old = {.struct_size = offsetof(lariat_stats, events)};
  old.events = 55;
  OK(NULL, lariat_cache_stats(cache, &old));
  CHECK(old.total_blocks == kBlocks && old.events == 55);
  lariat_cache_destroy(cache);

  lariat_cache_config config = BaseConfig();
  config.struct_size = offsetof(lariat_cache_config, max_events);
  config.max_events = -1; /* behind what is read */
  OK(NULL, lariat_cache_create(&config, &cache));
  REFUSES(cache, LARIAT_UNSUPPORTED, "max_events 0",
          lariat_cache_list_blocks(cache, &cursor, events, 1, &count));
  OK(cache, lariat_cache_drain_events(cache, events, kRoom, &count));
  CHECK(count == 0);
  lariat_cache_destroy(cache);
  config.struct_size = sizeof config;
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "max_events -1", lariat_cache_create(&config, &cache));
}
