// SPDX-License-Identifier: Apache-2.0
// What a cache takes, and that a steady step takes nothing.
#include <cstdlib>

#include "support/case_cache.h"
#include "support/count_new.h"
#include "support/fault_backend.h"
#include "support/odd_config.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Odd;

TEST_CASE("The footprint, to the byte", "[cache]") {
  CacheConfig config = Odd();
  const auto footprint = KVCache::Footprint(config);
  REQUIRE(footprint.ok());
  CHECK(footprint->bytes_per_token == 3 * 5 * (12 + 6) * 2);
  CHECK(footprint->bytes_per_block == 8 * 540);
  CHECK(footprint->num_blocks == 7);
  CHECK(footprint->pool_bytes == 7 * 4320);
  CHECK(footprint->rope_table_bytes == 2 * 100 * 5 * 4);  // cos and sin, fp32
  // A rank of five holds one head, a rank of ten too.
  for (const int ranks : {5, 10}) {
    config.shard = {ranks - 1, ranks};
    CHECK(KVCache::Footprint(config)->bytes_per_token == 540 / 5);
  }
  config.shard = {};
  // Layers may differ.
  config.layers[1].v_dim = 2;
  config.layers[2].kv_heads = 10;
  CHECK(KVCache::Footprint(config)->bytes_per_token == (5 * 18 + 5 * 14 + 10 * 18) * 2);
  config.layers = Odd().layers;
  config.dtype = DType::kFP32;
  CHECK(KVCache::Footprint(config)->bytes_per_token == 1080);
  // As many whole blocks as fit.
  config.dtype = DType::kBF16;
  config.memory = {};
  for (const auto& [bytes, blocks] : {std::pair{4320, 1}, {4321, 1}, {8639, 1}, {8640, 2}}) {
    config.memory.bytes = bytes;
    CHECK(KVCache::Footprint(config)->num_blocks == blocks);
    CHECK(KVCache::Footprint(config)->pool_bytes == blocks * 4320);
  }
  config.backend = BackendKind::kNull;
  config.memory = {};
  config.memory.unlimited = true;
  CHECK(KVCache::Footprint(config)->num_blocks == 0);
}

TEST_CASE("The footprint is what Create takes of the device", "[cache]") {
  for (const int variant : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(variant);
    CacheConfig config = Odd();
    if (variant == 1) config.max_steps_in_flight = 16;
    if (variant == 2) {
      config.layout = Layout::kLayerMajor;
      config.block_size = 100;
    }
    if (variant == 5) config.reader_arrays = true;
    if (variant == 4) {
      config.layout = Layout::kLayerMajor;
      config.order = Order::kHND;
    }
    if (variant == 3) {
      config.max_sequences = 1;
      config.max_tokens_per_step = 1;
      config.ropes.clear();
      for (LayerSpec& layer : config.layers) layer.rope = -1;
    }
    const auto want = KVCache::Footprint(config);
    REQUIRE(want.ok());
    const auto backend =
        std::make_shared<testing::FaultBackend>(*MakeBackend(BackendKind::kCpu, 0));
    auto cache = KVCache::Create(config, Device(backend));
    REQUIRE(cache.ok());
    CHECK(want->pool_bytes == 7 * want->bytes_per_block);
    CHECK(want->rope_table_bytes == (variant == 3 ? 0 : 4000));
    CHECK(static_cast<std::int64_t>(backend->bytes(MemoryKind::kDevice)) ==
          want->pool_bytes + want->rope_table_bytes + want->step_array_bytes);
    CHECK(static_cast<std::int64_t>(backend->bytes(MemoryKind::kPinnedHost) +
                                    backend->bytes(MemoryKind::kMappedHost)) ==
          want->pinned_host_bytes);
    const MemoryFootprint got = cache->footprint();
    CHECK(got.pool_bytes == want->pool_bytes);
    CHECK(got.rope_table_bytes == want->rope_table_bytes);
    CHECK(got.step_array_bytes == want->step_array_bytes);
    CHECK(got.pinned_host_bytes == want->pinned_host_bytes);
  }
}

TEST_CASE("An unlimited pool grows and evicts nothing", "[cache]") {
  CacheConfig config = CaseCache::Config(4, 0);
  config.memory = {};
  config.memory.unlimited = true;
  CaseCache c(config);
  std::int64_t total = 0;
  for (TokenId i = 0; i < 200; ++i) {
    CaseCache::Must(c->Close(c.Start(CaseCache::Range(1000 * i, 41))));
    const Stats stats = c->GetStats();
    REQUIRE(stats.evicted_blocks == 0);
    REQUIRE(stats.indexed_blocks == 10 * (i + 1));
    REQUIRE(stats.free_blocks + stats.idle_blocks + stats.held_blocks == stats.total_blocks);
    REQUIRE(stats.total_blocks >= total);
    total = stats.total_blocks;
  }
  for (TokenId i = 0; i < 200; ++i) CHECK(c.Match(CaseCache::Range(1000 * i, 41)) == 40);
}

TEST_CASE("Reuse switched off: nothing is kept for others", "[cache]") {
  CacheConfig config = CaseCache::Config(4, 16);
  config.reuse = Reuse::kNone;
  CaseCache c(config);
  const SequenceId a = c.Start(CaseCache::Range(0, 9));
  CHECK(c.Match(CaseCache::Range(0, 9)) == 0);
  CHECK(c.Feed(c.Open(CaseCache::Range(0, 9)), 9) == 0);
  CHECK(c->GetStats().indexed_blocks == 0);
  CaseCache::Must(c->Close(a));
  CHECK(c->GetStats().idle_blocks == 0);
}

// --- Steady steps ---------------------------------------------------------------------------

// Decode of a full batch, ids given at Commit, blocks filled, indexed and (where the pool is small)
// evicted on the way. Returns what 1000 steps allocate.
std::int64_t AllocationsOfSteadySteps(BackendKind backend, std::int64_t blocks, bool in_flight) {
  CacheConfig config = CaseCache::Config(16, blocks, backend);
  config.max_sequences = 8;
  config.max_tokens_per_sequence = 4096;
  CaseCache c(config);
  std::vector<SequenceId> batch;
  std::vector<StepItem> items;
  for (TokenId i = 0; i < 8; ++i) {
    batch.push_back(c.Start(CaseCache::Range(10000 * i, 20)));
    items.push_back({batch.back(), 1, 0, {}});
  }
  std::vector<float> rows(64, 1.0F);
  std::vector<TokenId> tokens(8);
  std::vector<StepCommit> commits(8);
  TokenId next = 0;
  Step flying;
  const auto commit = [&](Step& step) {
    for (std::size_t i = 0; i < 8; ++i) {
      tokens[i] = --next;
      commits[i] = {batch[i], 1, std::span<const TokenId>(&tokens[i], 1)};
    }
    if (!c->Commit(step, commits, {}).ok()) std::abort();
  };
  const auto run = [&] {
    auto step = c->Plan(items, {16, 8});
    if (!step.ok() || !c->Prepare(*step, {}).ok()) std::abort();
    if (!c->Append(*step, 0, {.dtype = DType::kFP32, .k = rows.data(), .v = rows.data()}, {})
             .ok()) {
      std::abort();
    }
    if (!in_flight) return commit(*step);
    if (flying.valid()) commit(flying);
    flying = *std::move(step);
  };
  for (int i = 0; i < 40; ++i) run();
  const std::int64_t before = testing::CountOfNew();
  for (int i = 0; i < 1000; ++i) run();
  const std::int64_t after = testing::CountOfNew();
  if (flying.valid()) commit(flying);
  return after - before;
}

TEST_CASE("1000 steady steps allocate nothing", "[cache]") {
  for (const BackendKind backend : {BackendKind::kNull, BackendKind::kCpu}) {
    CHECK(AllocationsOfSteadySteps(backend, 600, false) == 0);
    CHECK(AllocationsOfSteadySteps(backend, 600, true) == 0);
  }
}

TEST_CASE("The count of allocations counts", "[cache]") {
  const std::int64_t before = testing::CountOfNew();
  delete new int(1);
  std::vector<int> some(100);
  CHECK(testing::CountOfNew() >= before + 1);
  CHECK(some.size() == 100);
}

}  // namespace
}  // namespace lariat
