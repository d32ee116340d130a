// SPDX-License-Identifier: Apache-2.0
// A cache of MLA layers: what it takes, what it refuses, and what readers on a late stream see.
// Random lives of such caches are in cache_steps_random_test.cc.
#include <functional>
#include <string>
#include <vector>

#include "support/fault_backend.h"
#include "support/late_world.h"
#include "support/mla_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::kLatentRank;
using testing::kLatentWidth;
using testing::LatentConfig;
using testing::LateWorld;
using testing::MlaWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

KVCache Make(const CacheConfig& config) {
  return testing::Make(config, *Device::Create(config.backend));
}

// --- What it takes ----------------------------------------------------------------------------

TEST_CASE("DeepSeek-V3's latents: 70,272 bytes a token, on every rank", "[mla]") {
  CacheConfig config;
  config.layers.assign(61, {.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = 576, .rope = 0});
  config.ropes.emplace_back().rotary_dim = 64;
  config.block_size = 64;
  config.memory.num_blocks = 1000;
  config.max_tokens_per_sequence = 4096;
  for (const Shard shard : {Shard{0, 1}, Shard{7, 8}, Shard{2, 3}, Shard{1000, 65536}}) {
    config.shard = shard;
    const auto footprint = KVCache::Footprint(config);
    REQUIRE(footprint.ok());
    CHECK(footprint->bytes_per_token == 70272);
    CHECK(footprint->bytes_per_block == 64 * 70272);
    CHECK(footprint->pool_bytes == 1000 * std::int64_t{64} * 70272);
    CHECK(footprint->rope_table_bytes == 2 * 4096 * 32 * 4);
  }
  config.dtype = DType::kFP32;
  CHECK(KVCache::Footprint(config)->bytes_per_token == 2 * 70272);
  // Layers may differ, in odd and in very wide rows, with and without RoPE.
  config.layers = {{.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = 1},
                   {.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = 131072},
                   {.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = 64, .rope = 0}};
  CHECK(KVCache::Footprint(config)->bytes_per_token == 4 * (1 + 131072 + 64));
}

TEST_CASE("A cache of latents takes of the device what its footprint says", "[mla]") {
  for (const Layout layout : {Layout::kBlockMajor, Layout::kLayerMajor}) {
    CacheConfig config = LatentConfig(3);
    config.layout = layout;
    if (layout == Layout::kLayerMajor) config.block_size = 40;
    const auto want = KVCache::Footprint(config);
    REQUIRE(want.ok());
    CHECK(want->pool_bytes == 16 * config.block_size * std::int64_t{3} * kLatentWidth * 2);
    const auto backend =
        std::make_shared<testing::FaultBackend>(*MakeBackend(BackendKind::kCpu, 0));
    const auto cache = KVCache::Create(config, Device(backend));
    REQUIRE(cache.ok());
    CHECK(static_cast<std::int64_t>(backend->bytes(MemoryKind::kDevice)) ==
          want->pool_bytes + want->rope_table_bytes + want->step_array_bytes);
  }
}

TEST_CASE("A layer of latents is one plane of rows", "[mla]") {
  // FlashMLA's [blocks, 64, 1, 576], of one layer.
  CacheConfig config;
  config.layers = {{.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = 576}};
  config.backend = BackendKind::kCpu;
  config.block_size = 64;
  config.memory.num_blocks = 3;
  config.max_tokens_per_sequence = 100;
  config.shard = {1, 4};
  const KVCache one = Make(config);
  const LayerView view = *one.Layer(0);
  CHECK(view.kv_heads == 1);
  CHECK(view.k_dim == 576);
  CHECK(view.v_dim == 0);
  CHECK(view.k != nullptr);
  CHECK(view.v == nullptr);
  CHECK(view.k_block_stride == 64 * 576);
  CHECK(view.k_row_stride == 576);
  CHECK(view.k_head_stride == 576);
  CHECK(view.v_block_stride == 0);
  CHECK(view.v_row_stride == 0);
  CHECK(view.v_head_stride == 0);

  const auto element = [](const LayerView& of, const LayerView& from) {
    return static_cast<const std::uint16_t*>(of.k) - static_cast<const std::uint16_t*>(from.k);
  };
  const KVCache three = Make(LatentConfig(3));
  const LayerView first = *three.Layer(0), last = *three.Layer(2);
  CHECK(first.k_block_stride == 4 * 3 * kLatentWidth);
  CHECK(first.k_row_stride == kLatentWidth);
  CHECK(element(last, first) == 2 * 4 * kLatentWidth);
  CHECK(last.v == nullptr);
  CHECK(last.cos != nullptr);

  config = LatentConfig(3);
  config.layout = Layout::kLayerMajor;
  config.block_size = 40;
  const KVCache contiguous = Make(config);
  CHECK(contiguous.Layer(2)->k_block_stride == 40 * kLatentWidth);
  CHECK(element(*contiguous.Layer(2), *contiguous.Layer(0)) == 2 * 16 * 40 * kLatentWidth);
}

// --- What it refuses --------------------------------------------------------------------------

TEST_CASE("Create names the field of an MLA layer that is out of range", "[mla]") {
  struct Refusal {
    const char* text;
    Code code;
    std::function<void(CacheConfig&)> change;
  };
  const Code bad = Code::kInvalidArgument, no = Code::kUnsupported;
  const std::vector<Refusal> refusals = {
      {"layers[1].kv_heads 2: allowed are 1 for MLA", bad,
       [](CacheConfig& c) { c.layers[1].kv_heads = 2; }},
      {"layers[1].kv_heads 0", bad, [](CacheConfig& c) { c.layers[1].kv_heads = 0; }},
      {"layers[1].k_dim 0", bad, [](CacheConfig& c) { c.layers[1].k_dim = 0; }},
      {"layers[1].k_dim 131073: allowed are 1 to 131072", bad,
       [](CacheConfig& c) { c.layers[1].k_dim = 131073; }},
      {"layers[1].v_dim 2: allowed are 0 for MLA", bad,
       [](CacheConfig& c) { c.layers[1].v_dim = 2; }},
      {"layers[1].v_dim -2", bad, [](CacheConfig& c) { c.layers[1].v_dim = -2; }},
      {"layers[1].window 8", bad, [](CacheConfig& c) { c.layers[1].window = 8; }},
      {"layers[1].rope 1", bad, [](CacheConfig& c) { c.layers[1].rope = 1; }},
      {"layers[1].rope -2", bad, [](CacheConfig& c) { c.layers[1].rope = -2; }},
      {"ropes[0].rotary_dim 8: allowed are those up to layers[1].k_dim 7", bad,
       [](CacheConfig& c) { c.layers[1].k_dim = 7; }},
      {"ropes[0].mrope_sections", no,
       [](CacheConfig& c) {
         c.ropes[0].mrope_sections = {2, 1, 1};
       }},
      {"layout layer_major with layers[0].k_dim", no,
       [](CacheConfig& c) {
         c.layers[1] = {.kv_heads = 1, .k_dim = kLatentWidth - 1, .v_dim = 100};
         c.layout = Layout::kLayerMajor;
       }},
      {"layers[1].kind", no, [](CacheConfig& c) { c.layers[1].kind = LayerKind::kLinear; }},
  };
  for (const Refusal& refusal : refusals) {
    CacheConfig config = LatentConfig(3);
    refusal.change(config);
    const Status status = KVCache::Create(config).status();
    INFO(status.ToString());
    CHECK(status.code() == refusal.code);
    CHECK(status.message().find(refusal.text) != std::string::npos);
    CHECK(KVCache::Footprint(config).status().code() == refusal.code);
  }
  // A rope with sections is no matter to layers that do not turn by it.
  CacheConfig config = LatentConfig();
  config.ropes.push_back(config.ropes[0]);
  config.ropes[1].mrope_sections = {2, 1, 1};
  CHECK(KVCache::Create(config).ok());
}

Step Prepared(KVCache& cache, SequenceId id, std::int64_t rows) {
  return testing::Prepared(cache, {{id, rows, 0, {}}}, {});
}

void CheckSays(const Status& status, const std::string& text) {
  INFO(status.ToString());
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find(text) != std::string::npos);
}

TEST_CASE("A call for another kind of layer says which to use", "[mla]") {
  for (const BackendKind backend : {BackendKind::kNull, BackendKind::kCpu}) {
    CacheConfig config = LatentConfig();
    config.backend = backend;
    KVCache latents = Make(config);
    const Step step = Prepared(latents, *latents.Open(Tokens(0, 3)), 3);
    CheckSays(latents.Append(step, 1, {}, {}), "layer 1 is an MLA layer: use MlaAppend");
    CheckSays(latents.MlaCompress(step, 1, {}, {}), "layer 1 is an MLA layer: use MlaAppend");
    CheckSays(latents.Warmup(1, MlaCompressInputs{}, {}), "layer 1 is an MLA layer");
    CheckSays(latents.MlaAppend(step, 2, {}, {}), "layer 2: allowed are 0 to 1");
    CheckSays(latents.MlaExpand(step, -1, {}, {}), "layer -1: allowed are 0 to 1");
    CheckSays(latents.Warmup(2, MlaAppendInputs{}, {}), "layer 2: allowed are 0 to 1");

    KVCache full = Make(CaseCache::Config(4, 8, backend));
    const Step other = Prepared(full, *full.Open(Tokens(0, 3)), 3);
    const std::string use = "layer 0 has keys and values: use Append or MlaCompress";
    CheckSays(full.MlaAppend(other, 0, {}, {}), use);
    CheckSays(full.MlaExpand(other, 0, {}, {}), use);
    CheckSays(full.Warmup(0, MlaAppendInputs{}, {}), use);
    CheckSays(full.Warmup(0, MlaExpandInputs{}, {}), use);
    CheckSays(full.MlaCompress(other, 1, {}, {}), "layer 1: allowed are 0 to 0");
  }
}

TEST_CASE("A rank that is not the layer's is named", "[mla]") {
  for (const BackendKind backend : {BackendKind::kNull, BackendKind::kCpu}) {
    CacheConfig config = LatentConfig();
    config.backend = backend;
    KVCache cache = Make(config);
    Step step = Prepared(cache, *cache.Open(Tokens(0, 3)), 3);
    // 8 of 47 elements turn.
    for (const int rank : {0, -1, 40, 47, 48}) {
      const std::string text = "kv_lora_rank " + std::to_string(rank) + ": allowed are 1 to 39";
      CheckSays(cache.MlaAppend(step, 0, {.kv_lora_rank = rank}, {}), text);
      CheckSays(cache.MlaExpand(step, 0, {.kv_lora_rank = rank}, {}), text);
      CheckSays(cache.Warmup(0, MlaAppendInputs{.kv_lora_rank = rank}, {}), text);
      CheckSays(cache.Warmup(0, MlaExpandInputs{.kv_lora_rank = rank}, {}), text);
    }
  }
  // Rows so wide that one part would be wider than the operation takes.
  CacheConfig config = LatentConfig(1);
  config.layers[0].k_dim = 100000;
  config.backend = BackendKind::kNull;
  KVCache wide = Make(config);
  const Step step = Prepared(wide, *wide.Open(Tokens(0, 3)), 3);
  CheckSays(wide.MlaAppend(step, 0, {.kv_lora_rank = 34463}, {}), "allowed are 34464 to 65536");
  CheckSays(wide.MlaAppend(step, 0, {.kv_lora_rank = 65537}, {}), "allowed are 34464 to 65536");
  CHECK(wide.MlaAppend(step, 0, {.kv_lora_rank = 34464}, {}).ok());
}

TEST_CASE("Calls of MLA at a wrong time or with wrong inputs", "[mla]") {
  KVCache cache = Make(LatentConfig());
  std::vector<std::uint16_t> rows(8 * kLatentWidth);
  MlaAppendInputs good;
  good.kv_lora_rank = kLatentRank;
  good.c_kv = rows.data();
  good.k_pe = rows.data() + kLatentRank;
  good.c_kv_stride = good.k_pe_stride = kLatentWidth;
  const SequenceId id = *cache.Open(Tokens(0, 3));
  CHECK(cache.MlaAppend(Step(), 0, good, {}).code() == Code::kInvalidArgument);
  CHECK(cache.MlaExpand(Step(), 0, {}, {}).code() == Code::kInvalidArgument);
  CHECK(cache.MlaCompress(Step(), 0, {}, {}).code() == Code::kInvalidArgument);
  const StepItem item{id, 3, 0, {}};
  Step first = *cache.Plan(std::span(&item, 1));
  CHECK(cache.MlaAppend(first, 0, good, {}).code() == Code::kNotReady);
  CHECK(cache.MlaExpand(first, 0, {.kv_lora_rank = kLatentRank}, {}).code() == Code::kNotReady);
  CaseCache::Must(cache.Prepare(first, {}));
  CHECK(cache.MlaAppend(first, 0, good, {}).ok());
  const auto with = [&](const std::function<void(MlaAppendInputs&)>& change) {
    MlaAppendInputs inputs = good;
    change(inputs);
    return cache.MlaAppend(first, 0, inputs, {}).code();
  };
  CHECK(with([](MlaAppendInputs& in) { in.c_kv = nullptr; }) == Code::kInvalidArgument);
  CHECK(with([](MlaAppendInputs& in) { in.k_pe = nullptr; }) == Code::kInvalidArgument);
  CHECK(with([](MlaAppendInputs& in) { in.eps = -1; }) == Code::kInvalidArgument);
  CHECK(with([](MlaAppendInputs& in) { in.hidden = in.c_kv; }) == Code::kInvalidArgument);
  CHECK(with([](MlaAppendInputs& in) { in.dtype = DType::kFP16; }) == Code::kUnsupported);
  // The step before the last one is no more to be appended to.
  const StepItem next{id, 1, 0, {}};
  Step second = *cache.Plan(std::span(&next, 1));
  CHECK(cache.MlaAppend(first, 0, good, {}).code() == Code::kNotReady);
  CaseCache::Must(cache.Prepare(second, {}));
  CHECK(cache.MlaAppend(first, 0, good, {}).code() == Code::kNotReady);
  CHECK(cache.MlaAppend(second, 0, good, {}).ok());
  CaseCache::Must(cache.Commit(first, {}, {}));
  CaseCache::Must(cache.Commit(second, {}, {}));
  // V of latents is nothing, whatever is passed for it.
  std::vector<std::uint16_t> got(4 * kLatentWidth, 7), v(16, 7);
  CHECK(cache.ReadRows(id, 0, 0, 4, got.data(), v.data()).ok());
  CHECK(v == std::vector<std::uint16_t>(16, 7));
  CHECK(cache.ReadRows(id, 0, 0, 4, got.data(), nullptr).ok());
  CHECK(cache.ReadRows(id, 0, 0, 4, nullptr, v.data()).ok());
}

// --- What is stored -----------------------------------------------------------------------------

void Fed(RowWorld& world, SequenceId id, std::int64_t rows) {
  CaseCache::Must(world.Run({{.sequence = id, .num_tokens = rows}}, {}));
  CaseCache::Must(world.Commit({}));
}

// Runs all that is queued, and looks at every row.
void FinishAndCheck(LateWorld& late) {
  late.Finish();
  late.world.CheckRows();
  CHECK(late.world.readers_run() > 0);
  CHECK(late.world.errors() == "");
}

TEST_CASE("Latents: a prefix hit reads what another sequence wrote, unwritten as yet", "[mla]") {
  for (const RopeStyle style :
       {RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf}) {
    for (const DType dtype : {DType::kFP32, DType::kFP16, DType::kBF16}) {
      LateWorld late(MlaWorld({.dtype = dtype, .style = style}));
      RowWorld& world = late.world;
      Fed(world, *world.Open(Tokens(0, 11)), 11);
      const SequenceId b = *world.Open(Tokens(0, 9)), other = *world.Open(Tokens(0, 9), "salt");
      CaseCache::Must(world.Run(
          {{.sequence = b, .num_tokens = 9}, {.sequence = other, .num_tokens = 9}}, {}, {20, 4}));
      CHECK(world.live().back().rows[0].hit == 8);
      CHECK(world.live().back().rows[1].hit == 0);
      CaseCache::Must(world.Commit({}));
      CHECK(late.backend->pending() > 0);
      FinishAndCheck(late);
    }
  }
}

TEST_CASE("Latents: forks part ways, each with its own copy", "[mla]") {
  const bool contiguous = GENERATE(false, true);
  WorldOptions options = MlaWorld();
  if (contiguous) {
    options.block_size = options.max_tokens_per_sequence;
    options.blocks = 6;
    options.layout = Layout::kLayerMajor;
  }
  LateWorld late(options);
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 6));
  Fed(world, a, 6);
  const SequenceId b = *world.Fork(a), c = *world.Fork(a, 5);
  CaseCache::Must(world.Run({{.sequence = a, .tokens = {70}},
                             {.sequence = b, .tokens = {71}},
                             {.sequence = c, .tokens = {72}}},
                            {}));
  CHECK(world.cache().GetStats().copied_blocks == 3);  // c begins where the others have a row
  CaseCache::Must(world.Commit({}));
  CaseCache::Must(world.Run({{.sequence = c, .num_tokens = 3}, {.sequence = a}}, {}));
  CaseCache::Must(world.Commit({}));
  FinishAndCheck(late);
}

TEST_CASE("Latents: evicted blocks are another's before their last reader ran", "[mla]") {
  LateWorld late(MlaWorld({.blocks = 6}));
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 8)), b = *world.Open(Tokens(50, 6));
  CaseCache::Must(
      world.Run({{.sequence = a, .num_tokens = 8}, {.sequence = b, .num_tokens = 6}}, {}));
  CaseCache::Must(world.Run({{.sequence = a}, {.sequence = b}}, {}));  // two steps in flight
  CaseCache::Must(world.Commit({}));
  CaseCache::Must(world.Close(a));
  CaseCache::Must(world.Commit({}));
  const SequenceId c = *world.Open(Tokens(200, 15));
  Fed(world, c, 15);
  CHECK(world.cache().GetStats().evicted_blocks > 0);
  CHECK(world.readers_run() == 0);
  FinishAndCheck(late);
  CHECK(world.readers_run() == 3);
}

TEST_CASE("Latents: rejected drafts and truncations are written over", "[mla]") {
  const std::int64_t accepted = GENERATE(0, 2, 4);
  LateWorld late(MlaWorld({.steps_in_flight = 3}));
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 5));
  Fed(world, a, 5);
  CaseCache::Must(world.Run(
      {{.sequence = a, .num_tokens = 5, .num_drafts = 4, .tokens = {20, 21, 22, 23, 24}}}, {}));
  CaseCache::Must(world.Commit({}, {{a, 1 + accepted}}));
  CaseCache::Must(
      world.Run({{.sequence = a, .num_tokens = 5, .tokens = {40, 41, 42, 43, 44}}}, {}));
  CaseCache::Must(world.Run({{.sequence = a, .num_tokens = 2}}, {}));
  CaseCache::Must(world.Truncate(a, 7));
  CaseCache::Must(world.Run({{.sequence = a, .num_tokens = 6}}, {}));
  for (int i = 0; i < 3; ++i) CaseCache::Must(world.Commit({}));
  CHECK(world.cache().GetExtent(a)->settled == 13);
  FinishAndCheck(late);
}

}  // namespace
}  // namespace lariat
