// SPDX-License-Identifier: Apache-2.0
// What Create and the calls refuse, and how they say so.
#include <functional>

#include "support/case_cache.h"
#include "support/odd_config.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Odd;

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
      {"layers[0].window 0: allowed are 1 to 1073741824", bad,
       [](CacheConfig& c) { c.layers[0].kind = LayerKind::kSliding; }},
      {"layers[0].window -3", bad,
       [](CacheConfig& c) {
         c.layers[0].kind = LayerKind::kChunked;
         c.layers[0].window = -3;
       }},
      {"layers[0].window 16: allowed are 0", bad, [](CacheConfig& c) { c.layers[0].window = 16; }},
      {"block_size", bad, [](CacheConfig& c) { c.block_size = 0; }},
      {"block_size", bad, [](CacheConfig& c) { c.block_size = -8; }},
      {"layout 2", bad, [](CacheConfig& c) { c.layout = static_cast<Layout>(2); }},
      {"order 2", bad, [](CacheConfig& c) { c.order = static_cast<Order>(2); }},
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
      {"dtype", no, [](CacheConfig& c) { c.dtype = DType::kFP8E4M3; }},
  };
  refusals.push_back({"kind linear", no, [](CacheConfig& c) {
                        for (LayerSpec& layer : c.layers) layer.kind = LayerKind::kLinear;
                      }});
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
  CHECK(c->Fetch(id).status().code() == Code::kUnsupported);
  CHECK(c->Suspend(id).status().code() == Code::kUnsupported);
  CHECK(c->Resume(id).status().code() == Code::kUnsupported);
  float row[2];
  CHECK(c->ReadRows(id, 0, 0, 1, row, row).code() == Code::kUnsupported);  // null backend
  CHECK(c->Snapshot() == before);
  CHECK(KVCache::Supports(c->config(), Feature::kTokenReuse).ok());
  for (const Feature feature : {Feature::kTransfers, Feature::kCheckSlots}) {
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

}  // namespace
}  // namespace lariat
