// SPDX-License-Identifier: Apache-2.0
// What may be called from several threads. The tsan preset runs this program.
#include <atomic>
#include <thread>
#include <vector>

#include "lariat/kv_cache.h"
#include "support/catch.h"

namespace lariat {
namespace {

CacheConfig SmallConfig() {
  CacheConfig config;
  config.layers.assign(2, {.kv_heads = 1, .k_dim = 8, .v_dim = 8});
  config.backend = BackendKind::kCpu;
  config.memory.num_blocks = 12;
  config.block_size = 4;
  config.max_sequences = 4;
  config.max_tokens_per_sequence = 32;
  config.max_tokens_per_step = 64;
  return config;
}

// Opens, fills and closes one sequence; its first block may be found cached.
void Serve(KVCache& cache, TokenId first) {
  std::vector<TokenId> prompt(18, first);
  const Result<SequenceId> sequence = cache.Open(prompt);
  REQUIRE(sequence.ok());
  const StepItem items[] = {{.sequence = *sequence, .num_tokens = 18}};
  Result<Step> step = cache.Plan(items);
  REQUIRE(step.ok());
  REQUIRE(cache.Prepare(*step, {}).ok());
  REQUIRE(cache.Commit(*step, {}, {}).ok());
  REQUIRE(cache.Close(*sequence).ok());
}

TEST_CASE("stats may be read from other threads, and always add up") {
  Result<KVCache> cache = KVCache::Create(SmallConfig());
  REQUIRE(cache.ok());
  std::atomic<bool> done = false;
  std::atomic<std::int64_t> reads = 0, wrong = 0;
  const auto watch = [&] {
    std::int64_t committed = 0;
    while (!done) {
      const Stats stats = cache->GetStats();
      const bool whole = stats.free_blocks + stats.idle_blocks + stats.held_blocks +
                             stats.reserved_blocks + stats.in_transit_blocks ==
                         stats.total_blocks;
      if (!whole || stats.total_blocks != 12 || stats.tokens_committed < committed) ++wrong;
      committed = stats.tokens_committed;
      ++reads;
    }
  };
  std::thread one(watch), two(watch);
  // At least so many calls, and until both have read.
  TokenId request = 0;
  while (request < 3000 || reads < 1000) Serve(*cache, request++ % 7);
  done = true;
  one.join();
  two.join();
  CHECK(wrong == 0);
  CHECK(cache->GetStats().tokens_committed >= 3000 * 2);
}

TEST_CASE("caches of their own may be used from threads of their own") {
  std::vector<std::thread> threads;
  std::vector<std::string> snapshots(3);
  for (std::string& snapshot : snapshots) {
    threads.emplace_back([&snapshot] {
      Result<KVCache> cache = KVCache::Create(SmallConfig());
      if (!cache.ok()) return;
      for (TokenId request = 0; request < 200; ++request) {
        const std::vector<TokenId> prompt(9, request % 5);
        const Result<SequenceId> sequence = cache->Open(prompt);
        if (!sequence.ok()) return;
        const StepItem items[] = {{.sequence = *sequence, .num_tokens = 9}};
        Result<Step> step = cache->Plan(items);
        if (!step.ok() || !cache->Prepare(*step, {}).ok()) return;
        if (!cache->Commit(*step, {}, {}).ok() || !cache->Close(*sequence).ok()) return;
      }
      snapshot = cache->Snapshot();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(snapshots[0].empty());
  CHECK(snapshots[1] == snapshots[0]);
  CHECK(snapshots[2] == snapshots[0]);
}

}  // namespace
}  // namespace lariat
