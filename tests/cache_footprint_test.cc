// SPDX-License-Identifier: Apache-2.0
// What a cache takes, what it refuses, and that a steady step takes nothing.
#include <cstdlib>
#include <functional>

#include "support/case_cache.h"
#include "support/count_new.h"
#include "support/fault_backend.h"

namespace lariat {
namespace {

using testing::CaseCache;

// 3 layers of 5 heads, keys of 12 and values of 6 elements, blocks of 8 tokens.
CacheConfig Odd() {
  CacheConfig config;
  LayerSpec layer;
  layer.kv_heads = 5;
  layer.k_dim = 12;
  layer.v_dim = 6;
  layer.rope = 0;
  config.layers.assign(3, layer);
  RopeSpec& rope = config.ropes.emplace_back();
  rope.rotary_dim = 10;
  config.dtype = DType::kBF16;
  config.backend = BackendKind::kCpu;
  config.memory.num_blocks = 7;
  config.block_size = 8;
  config.max_sequences = 9;
  config.max_tokens_per_sequence = 100;
  config.max_tokens_per_step = 50;
  return config;
}

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
  for (const int variant : {0, 1, 2, 3}) {
    CAPTURE(variant);
    CacheConfig config = Odd();
    if (variant == 1) config.max_steps_in_flight = 16;
    if (variant == 2) {
      config.layout = Layout::kLayerMajor;
      config.block_size = 100;
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

// --- What is refused ------------------------------------------------------------------------

struct Refusal {
  const char* name;  // must be in the message
  Code code;
  std::function<void(CacheConfig&)> change;
};

void CheckRefused(const Refusal& refusal) {
  CAPTURE(refusal.name);
  CacheConfig config = Odd();
  refusal.change(config);
  const Status create = KVCache::Create(config).status();
  const Status footprint = KVCache::Footprint(config).status();
  CHECK(create.code() == refusal.code);
  CHECK(footprint.code() == refusal.code);
  CHECK(create.message().find(refusal.name) != std::string::npos);
  CHECK_FALSE(KVCache::Supports(config, Feature::kTransfers).ok());
}

TEST_CASE("Create names the field that is out of range", "[cache]") {
  const Code bad = Code::kInvalidArgument;
  const std::vector<Refusal> refusals = {
      {"layers", bad, [](CacheConfig& c) { c.layers.clear(); }},
      {"kv_heads", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.kv_heads = 0;
       }},
      {"kv_heads", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.kv_heads = -5;
       }},
      {"k_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.k_dim = 0;
       }},
      {"k_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.k_dim = 13;
       }},
      {"k_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.k_dim = 514;
       }},
      {"v_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.v_dim = 0;
       }},
      {"v_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.v_dim = 7;
       }},
      {"v_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.v_dim = -2;
       }},
      {"v_dim", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.v_dim = 514;
       }},
      {"rope", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.rope = 1;
       }},
      {"rope", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.rope = -2;
       }},
      {"window", bad,
       [](CacheConfig& c) {
         for (auto& l : c.layers) l.window = 4;
       }},
      {"rotary_dim", bad, [](CacheConfig& c) { c.ropes[0].rotary_dim = 14; }},  // above k_dim
      {"rotary_dim", bad, [](CacheConfig& c) { c.ropes[0].rotary_dim = 5; }},
      {"theta", bad, [](CacheConfig& c) { c.ropes[0].theta = 0; }},
      {"shard", bad,
       [](CacheConfig& c) {
         c.shard = {0, 0};
       }},
      {"shard", bad,
       [](CacheConfig& c) {
         c.shard = {5, 5};
       }},
      {"shard", bad,
       [](CacheConfig& c) {
         c.shard = {-1, 5};
       }},
      {"kv_heads", bad,
       [](CacheConfig& c) {
         c.shard = {0, 2};
       }},
      {"kv_heads", bad,
       [](CacheConfig& c) {
         c.shard = {0, 6};
       }},
      {"memory", bad, [](CacheConfig& c) { c.memory = {}; }},
      {"memory", bad, [](CacheConfig& c) { c.memory.bytes = 1 << 20; }},
      {"num_blocks", bad, [](CacheConfig& c) { c.memory.num_blocks = -1; }},
      {"bytes", bad,
       [](CacheConfig& c) {
         c.memory = {};
         c.memory.bytes = 4319;
       }},
      {"bytes", bad,
       [](CacheConfig& c) {
         c.memory = {};
         c.memory.bytes = -4320;
       }},
      {"unlimited", bad,
       [](CacheConfig& c) {
         c.memory = {};
         c.memory.unlimited = true;
       }},
      {"block_size", bad, [](CacheConfig& c) { c.block_size = 0; }},
      {"block_size", bad, [](CacheConfig& c) { c.block_size = -8; }},
      {"max_steps_in_flight", bad, [](CacheConfig& c) { c.max_steps_in_flight = 0; }},
      {"max_steps_in_flight", bad, [](CacheConfig& c) { c.max_steps_in_flight = 17; }},
      {"max_sequences", bad, [](CacheConfig& c) { c.max_sequences = 0; }},
      {"max_tokens_per_sequence", bad, [](CacheConfig& c) { c.max_tokens_per_sequence = 0; }},
      {"max_tokens_per_sequence", bad, [](CacheConfig& c) { c.max_tokens_per_sequence = -1; }},
      {"max_tokens_per_step", bad, [](CacheConfig& c) { c.max_tokens_per_step = 0; }},
  };
  for (const Refusal& refusal : refusals) CheckRefused(refusal);
}

TEST_CASE("What is valid and not built is unsupported, at Create", "[cache]") {
  const Code no = Code::kUnsupported;
  std::vector<Refusal> refusals = {
      {"order", no, [](CacheConfig& c) { c.order = Order::kHND; }},
      {"reuse", no, [](CacheConfig& c) { c.reuse = Reuse::kToken; }},
      {"dtype", no, [](CacheConfig& c) { c.dtype = DType::kFP8E4M3; }},
      {"caller_memory", no, [](CacheConfig& c) { c.memory.caller_memory = &c; }},
      {"layout", no, [](CacheConfig& c) { c.layout = Layout::kLayerMajor; }},  // blocks of 8
  };
  for (const LayerKind kind :
       {LayerKind::kSliding, LayerKind::kChunked, LayerKind::kMla, LayerKind::kLinear}) {
    refusals.push_back({"kind", no, [kind](CacheConfig& c) {
                          for (LayerSpec& layer : c.layers) {
                            layer.kind = kind;
                            if (kind == LayerKind::kSliding) layer.window = 16;
                          }
                        }});
  }
  for (const Refusal& refusal : refusals) CheckRefused(refusal);
  // fp64 is RopeUpdate's alone: whether that is wrong or not built, it is refused.
  CacheConfig config = Odd();
  config.dtype = DType::kFP64;
  CHECK_FALSE(KVCache::Create(config).ok());
}

TEST_CASE("Sizes that overflow are refused", "[cache]") {
  CacheConfig config = Odd();
  for (LayerSpec& layer : config.layers) layer.kv_heads = 1 << 30;
  for (const std::int64_t blocks : {std::int64_t{1} << 31, std::int64_t{1} << 62}) {
    config.memory.num_blocks = blocks;
    CHECK_FALSE(KVCache::Footprint(config).ok());
    CHECK_FALSE(KVCache::Create(config).ok());
  }
  config = Odd();
  config.max_tokens_per_sequence = std::int64_t{1} << 62;
  CHECK_FALSE(KVCache::Create(config).ok());
  config = Odd();
  config.max_tokens_per_step = std::int64_t{1} << 62;
  CHECK_FALSE(KVCache::Create(config).ok());
  // A pool that no machine has: valid to ask for, not there.
  config = Odd();
  config.memory.num_blocks = 2'000'000'000;
  CHECK(KVCache::Footprint(config)->pool_bytes == 2'000'000'000 * std::int64_t{4320});
}

TEST_CASE("Calls that are not built answer so and change nothing", "[cache]") {
  CaseCache c(4, 8);
  const SequenceId id = c.Start(CaseCache::Range(0, 5));
  const std::string before = c->Snapshot();
  CHECK(c->Release().code() == Code::kUnsupported);
  CHECK(c->Reacquire().code() == Code::kUnsupported);
  CHECK(c->Fetch(id).code() == Code::kUnsupported);
  CHECK(c->Suspend(id).code() == Code::kUnsupported);
  CHECK(c->Resume(id).code() == Code::kUnsupported);
  float row[2];
  CHECK(c->ReadRows(id, 0, 0, 1, row, row).code() == Code::kUnsupported);  // null backend
  CHECK(c->Snapshot() == before);
  for (const Feature feature : {Feature::kTransfers, Feature::kReleaseReacquire,
                                Feature::kTokenReuse, Feature::kCheckSlots}) {
    CHECK(KVCache::Supports(c->config(), feature).code() == Code::kUnsupported);
  }
  const StepView view = c->View();
  CHECK(view.slots == nullptr);
  CHECK(view.block_table == nullptr);
}

TEST_CASE("Reads and views of what is not there", "[cache]") {
  CaseCache c(CaseCache::Config(4, 8, BackendKind::kCpu));
  const SequenceId id = c.Start(CaseCache::Range(0, 5));
  float rows[64];
  CHECK(c->ReadRows(id, 0, 0, 5, rows, nullptr).ok());
  CHECK(c->ReadRows(id, 0, 0, 5, nullptr, rows).ok());
  CHECK(c->ReadRows(id, 0, 4, 2, rows, rows).code() == Code::kInvalidArgument);
  CHECK(c->ReadRows(id, 0, -1, 2, rows, rows).code() == Code::kInvalidArgument);
  CHECK(c->ReadRows(id, 0, 0, -1, rows, rows).code() == Code::kInvalidArgument);
  CHECK(c->ReadRows(id, 1, 0, 1, rows, rows).code() == Code::kInvalidArgument);
  CHECK(c->ReadRows(id, -1, 0, 1, rows, rows).code() == Code::kInvalidArgument);
  CHECK(c->ReadRows(SequenceId{77}, 0, 0, 1, rows, rows).code() == Code::kInvalidArgument);
  CHECK(c->Layer(1).status().code() == Code::kInvalidArgument);
  CHECK(c->Layer(-1).status().code() == Code::kInvalidArgument);
  Step step = c.Prepared(id, 1);
  const AppendInputs good{.dtype = DType::kFP32, .k = rows, .v = rows};
  const auto append = [&](int layer, const std::function<void(AppendInputs&)>& change) {
    AppendInputs inputs = good;
    change(inputs);
    return c->Append(step, layer, inputs, {}).code();
  };
  CHECK(append(1, [](AppendInputs&) {}) == Code::kInvalidArgument);
  CHECK(append(-1, [](AppendInputs&) {}) == Code::kInvalidArgument);
  CHECK(append(0, [](AppendInputs& in) { in.k = nullptr; }) == Code::kInvalidArgument);
  CHECK(append(0, [](AppendInputs& in) { in.v = nullptr; }) == Code::kInvalidArgument);
  CHECK(append(0, [&](AppendInputs& in) { in.q = rows, in.q_heads = -1; }) ==
        Code::kInvalidArgument);
  CHECK(append(0, [](AppendInputs& in) { in.dtype = DType::kBF16; }) != Code::kOk);
  CHECK(append(0, [](AppendInputs&) {}) == Code::kOk);
  CHECK(c->Append(Step(), 0, good, {}).code() != Code::kOk);
  Step none;
  CHECK(c->Prepare(none, {}).code() == Code::kInvalidArgument);
  CHECK_FALSE(c->Commit(none, {}, {}).ok());
  CHECK_FALSE(c->Discard(none, {}).ok());
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
