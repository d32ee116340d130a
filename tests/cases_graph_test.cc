// SPDX-License-Identifier: Apache-2.0
// Faults that users of other caches reported where steps are replayed from captured graphs: what a
// graph relies on, shown without one. cache_graph_test.cc replays.
#include <memory>
#include <vector>

#include "support/case_cache.h"
#include "support/late_world.h"
#include "support/window_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
constexpr auto Range = CaseCache::Range;
constexpr auto Join = CaseCache::Join;

TEST_CASE("K163, K167, K168: padding after a fuller batch, at the same addresses", "[cases]") {
  CaseCache c(CaseCache::Config(16, 40, BackendKind::kCpu));
  const StepView view = c->View();
  std::vector<StepItem> items;
  for (const std::int64_t rows : {3, 6, 11, 11}) {
    items.push_back({c.Open(Join({static_cast<TokenId>(-rows)}, Range(0, rows - 1))), rows, 0, {}});
  }
  items[3].sequence = c.Open(Range(500, 11));
  Step step = *c->Plan(items, {64, 4});
  CaseCache::Must(c->Prepare(step, {}));
  const std::vector<int> full(view.cu_seqlens, view.cu_seqlens + 5);
  CHECK(full == std::vector<int>{0, 3, 9, 20, 31});
  CaseCache::Must(c->Commit(step, {}, {}));
  const SequenceId a = c.Open(Range(1000, 30)), b = c.Open(Range(2000, 25));
  const StepItem two[] = {{a, 30, 0, {}}, {b, 25, 0, {}}};
  step = *c->Plan(two, {64, 4});
  CaseCache::Must(c->Prepare(step, {}));
  CHECK(c->View().cu_seqlens == view.cu_seqlens);
  CHECK(c->View().slots == view.slots);
  CHECK(c->View().block_table == view.block_table);
  const std::vector<int> cu(view.cu_seqlens, view.cu_seqlens + 5);
  CHECK(cu == std::vector<int>{0, 30, 55, 55, 55});
  const std::vector<int> used(view.seqused_k, view.seqused_k + 4);
  CHECK(used == std::vector<int>{30, 25, 0, 0});
  for (int t = 0; t < 64; ++t) CHECK((view.slots[t] < 0) == (t >= 55));
  for (std::int64_t i = 2 * view.block_table_stride; i < 4 * view.block_table_stride; ++i) {
    CHECK(view.block_table[i] == 0);
  }
  CaseCache::Must(c->Commit(step, {}, {}));
}

TEST_CASE("K164: steps in flight have tables of their own", "[cases]") {
  testing::WorldOptions options;
  options.blocks = 40;
  options.steps_in_flight = 3;
  testing::LateWorld late(options);
  testing::RowWorld& world = late.world;
  std::vector<SequenceId> ids;
  for (TokenId i = 0; i < 4; ++i) ids.push_back(*world.Open(testing::Tokens(100 * i, 5 + 3 * i)));
  // Nothing has run when the third one is prepared. Each batch is another one.
  CaseCache::Must(world.Run({{.sequence = ids[0], .num_tokens = 5}}, {}));
  CaseCache::Must(world.Run(
      {{.sequence = ids[2], .num_tokens = 7}, {.sequence = ids[1], .num_tokens = 8}}, {}, {24, 4}));
  CaseCache::Must(world.Run(
      {{.sequence = ids[3], .num_tokens = 14}, {.sequence = ids[0], .num_tokens = 4}}, {}));
  CHECK(world.readers_run() == 0);
  CHECK(late.backend->pending() > 0);
  // Nor when two of them are over for the host, and two more follow.
  for (int i = 0; i < 2; ++i) {
    CaseCache::Must(world.Commit({}));
    CaseCache::Must(world.Run({{.sequence = ids[1], .num_tokens = 2}}, {}));
  }
  CHECK(world.readers_run() == 0);
  while (!world.live().empty()) CaseCache::Must(world.Commit({}));
  late.Finish();
  CHECK(world.readers_run() == 5);
  world.CheckRows();
  CHECK(world.errors() == "");
}

// Keeps what each append was launched with.
struct LaunchSpy : testing::BackendDecorator {
  using BackendDecorator::BackendDecorator;
  Status AppendRope(const AppendRopeParams& params, Stream stream) override {
    launches.push_back(params);
    return BackendDecorator::AppendRope(params, stream);
  }
  std::vector<AppendRopeParams> launches;
};

TEST_CASE("K161, K162, K165: what a graph captures is the same for all steps of a shape",
          "[cases]") {
  const auto backend = std::make_shared<LaunchSpy>(testing::Cpu());
  CacheConfig config = testing::WindowConfig(4, 200, {{4}}, BackendKind::kCpu);
  config.ropes.emplace_back().rotary_dim = 2;
  for (LayerSpec& layer : config.layers) layer.rope = 0;
  CaseCache c(config, Device(backend));
  std::vector<float> rows(2 * 64, 1.0F);
  const AppendInputs inputs{
      .dtype = DType::kFP32, .k = rows.data(), .v = rows.data(), .q = rows.data(), .q_heads = 1};
  const SequenceId a = c.Open(Range(0, 3)), b = c.Open({});
  // From 1 to 250 tokens, over all edges of blocks and of the window, one sequence or two.
  std::int64_t length = 0;
  for (const std::int64_t count : {3, 1, 1, 60, 1, 59, 64, 60, 1}) {
    std::vector<StepItem> items = {{a, count, 0, {}}};
    if (count == 1) items.push_back({b, 2, 0, {}});
    Step step = *c->Plan(items, {64, 4});
    CaseCache::Must(c->Prepare(step, {}));
    for (int layer = 0; layer < 2; ++layer) CaseCache::Must(c->Append(step, layer, inputs, {}));
    CaseCache::Must(c->Commit(step, {}, {}));
    length += count;
  }
  CHECK(c.Settled(a) == 250);
  CHECK(length == 250);
  REQUIRE(backend->launches.size() == 2 * 9);
  for (std::size_t i = 2; i < backend->launches.size(); ++i) {
    CAPTURE(i);
    const AppendRopeParams &first = backend->launches[i % 2], &now = backend->launches[i];
    CHECK(now.num_tokens == 64);
    CHECK(now.slots == first.slots);
    CHECK(now.positions == first.positions);
    CHECK(now.table_choice == first.table_choice);
    CHECK(now.cos == first.cos);
    CHECK(now.sin == first.sin);
    CHECK(now.num_positions == first.num_positions);
    CHECK(now.k_cache == first.k_cache);
    CHECK(now.v_cache == first.v_cache);
    CHECK(now.num_slots == first.num_slots);
    CHECK(now.fault_indirect == first.fault_indirect);
  }
}

// Counts what is asked of it.
struct CountingBackend : testing::BackendDecorator {
  using BackendDecorator::BackendDecorator;
  Result<void*> Allocate(MemoryKind kind, std::size_t bytes) override {
    ++count;
    return BackendDecorator::Allocate(kind, bytes);
  }
  int count = 0;
};

TEST_CASE("K169: all device memory is there before the first step", "[cases]") {
  const auto backend = std::make_shared<CountingBackend>(testing::Cpu());
  CacheConfig config = CaseCache::Config(4, 12, BackendKind::kCpu);
  config.ropes.emplace_back().rotary_dim = 2;
  config.layers[0].rope = 0;
  config.host = {.num_blocks = 12, .write = WritePolicy::kThrough};
  CaseCache c(config, Device(backend));
  const int made = backend->count;
  CHECK(made > 0);
  SequenceId id = c.Open(Range(0, 9));
  std::vector<float> rows(32);
  for (const std::int64_t count : {9, 1, 1}) {
    Step step = c.Prepared(id, count);
    const AppendInputs inputs{
        .dtype = DType::kFP32, .k = rows.data(), .v = rows.data(), .q = rows.data(), .q_heads = 1};
    CaseCache::Must(c->Append(step, 0, inputs, {}));
    CaseCache::Must(c->Commit(step, {}, {}));
  }
  id = *c->Fork(id);
  c.Feed(id, 1);
  CHECK(c->GetStats().copied_blocks == 1);
  CaseCache::Must(c->Suspend(id).status());
  CHECK(backend->count == made);
}

}  // namespace
}  // namespace lariat
