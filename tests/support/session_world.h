// SPDX-License-Identifier: Apache-2.0
// A session over a small null cache and a scripted model.
#pragma once
#include <numeric>
#include <optional>
#include <utility>

#include "lariat/session.h"
#include "support/catch.h"
#include "support/scripted_executor.h"

namespace lariat::test {

inline KVCache MakeCache(std::int64_t blocks, int block_size = 4) {
  CacheConfig config;
  config.layers = {LayerSpec{.kv_heads = 1, .k_dim = 2, .v_dim = 2}};
  config.backend = BackendKind::kNull;
  config.memory.num_blocks = blocks;
  config.block_size = block_size;
  config.max_sequences = 9;
  config.max_tokens_per_sequence = 200;
  config.max_tokens_per_step = 64;
  Result<KVCache> cache = KVCache::Create(config);
  REQUIRE(cache.ok());
  return *std::move(cache);
}

// `first`: two requests with the same one share their whole prompt.
inline Request MakeRequest(std::uint64_t tag, std::int64_t prompt, std::int64_t output,
                           TokenId first) {
  Request request;
  request.prompt.resize(static_cast<std::size_t>(prompt));
  std::iota(request.prompt.begin(), request.prompt.end(), first);
  request.max_new_tokens = output;
  request.tag = tag;
  return request;
}

// Steps until nothing waits or runs.
inline void RunAll(Session& session) {
  for (int i = 0; i < 1000; ++i) {
    const Result<bool> ran = session.RunStep();
    INFO(ran.status().ToString());
    REQUIRE(ran.ok());
    if (!*ran) return;
  }
  FAIL("1000 steps and no end");
}

// Every block is back, and nobody holds a place in host memory.
inline void CheckEmpty(const KVCache& cache) {
  const Stats stats = cache.GetStats();
  CHECK(stats.held_blocks == 0);
  CHECK(stats.reserved_blocks == 0);
  CHECK(stats.in_transit_blocks == 0);
  CHECK(stats.host_held == 0);
  CHECK(stats.sequences == 0);
  CHECK(stats.free_blocks + stats.idle_blocks == stats.total_blocks);
}

// A session over its own cache, model and observer.
struct World {
  explicit World(std::int64_t blocks,
                 SessionConfig config = {.max_batch = 8, .max_step_tokens = 64})
      : cache(MakeCache(blocks)), observer(&cache) {
    Result<Session> made = Session::Create(cache, model, config, &observer);
    REQUIRE(made.ok());
    session.emplace(*std::move(made));
  }
  RequestId Add(Request request) {
    const Result<RequestId> id = session->Add(std::move(request));
    REQUIRE(id.ok());
    return *id;
  }
  void Run() { RunAll(*session); }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) REQUIRE(*session->RunStep());
  }
  void CheckEmpty() const { test::CheckEmpty(cache); }

  KVCache cache;
  ScriptedExecutor model;
  RecordingObserver observer;
  std::optional<Session> session;
};

}  // namespace lariat::test
