// SPDX-License-Identifier: Apache-2.0
// The life of a step with real bytes: what readers on the stream see, however late it runs.
#include <cmath>

#include "support/late_world.h"

namespace lariat {
namespace {

using testing::Cpu;
using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldItem;
using testing::WorldOptions;
using testing::WorldSequence;

Status Feed(RowWorld& world, SequenceId id, Stream stream = {}) {
  const WorldSequence& sequence = world.sequences().at(id);
  if (Status status = world.Run(
          {{.sequence = id, .num_tokens = std::ssize(sequence.prompt) - std::ssize(sequence.rows)}},
          stream);
      !status.ok()) {
    return status;
  }
  return world.Commit(stream);
}

TEST_CASE("No block is reused before its last reader", "[cache]") {
  LateWorld late({.blocks = 6});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 8)), b = *world.Open(Tokens(50, 6));
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 8}, {.sequence = b, .num_tokens = 6}}, {}).ok());
  REQUIRE(world.Run({{.sequence = a}, {.sequence = b}}, {}).ok());
  // Both steps are in flight, nothing has run; a is cancelled.
  REQUIRE(world.Close(a).ok());
  CHECK(world.cache().GetStats().free_blocks == 1);
  REQUIRE(world.Commit({}).ok());
  CHECK(world.cache().GetStats().free_blocks == 1);  // the second step still names a's blocks
  REQUIRE(world.Commit({}).ok());
  // Five blocks for a newcomer, a's among them, while no reader has run.
  CHECK(world.readers_run() == 0);
  const SequenceId c = *world.Open(Tokens(200, 15));
  REQUIRE(world.Run({{.sequence = c, .num_tokens = 15}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  CHECK(late.backend->pending() > 0);
  late.Finish();
  CHECK(world.readers_run() == 3);
  world.CheckRows();
  CHECK(world.errors() == "");
}

TEST_CASE("A new stream waits for the last step's", "[cache]") {
  LateWorld late({.blocks = 4});
  RowWorld& world = late.world;
  const Stream first = *late.backend->CreateStream(), second = *late.backend->CreateStream();
  const SequenceId a = *world.Open(Tokens(0, 16));
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 16}}, first).ok());
  REQUIRE(world.Commit(first).ok());
  REQUIRE(world.Close(a).ok());
  const SequenceId b = *world.Open(Tokens(100, 16));
  REQUIRE(world.Run({{.sequence = b, .num_tokens = 16}}, second).ok());
  REQUIRE(world.Commit(second).ok());
  late.Finish(second);  // must run the first stream's reader before it writes
  late.Finish(first);
  world.CheckRows();
  CHECK(world.errors() == "");
  late.backend->DestroyStream(first);
  late.backend->DestroyStream(second);
}

TEST_CASE("Steps in flight do not overwrite each other's staging", "[cache]") {
  // More steps than places in flight pass while nothing runs: each upload must be its own.
  LateWorld late({.blocks = 40, .max_tokens_per_sequence = 120});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 3)), b = *world.Open(Tokens(9, 5));
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 3}, {.sequence = b, .num_tokens = 5}}, {}).ok());
  for (int i = 0; i < 30; ++i) {
    const std::vector<WorldItem> items = {
        {.sequence = i % 2 == 0 ? a : b, .num_tokens = 1 + i % 3}};
    REQUIRE(world.Run(items, {}, {8, 3}).ok());
    REQUIRE(world.Commit({}).ok());
  }
  REQUIRE(world.Commit({}).ok());
  late.Finish();
  world.CheckRows();
  CHECK(world.readers_run() == 31);
  CHECK(world.errors() == "");
}

TEST_CASE("Copy-on-write: forks part ways, each with its own bytes", "[cache]") {
  LateWorld late({});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 6));
  REQUIRE(Feed(world, a).ok());
  const SequenceId b = *world.Fork(a), c = *world.Fork(a, 5);
  const std::int64_t copied = world.cache().GetStats().copied_blocks;
  REQUIRE(world
              .Run({{.sequence = a, .tokens = {70}},
                    {.sequence = b, .tokens = {71}},
                    {.sequence = c, .tokens = {72}}},
                   {})
              .ok());
  // c copies too, though it is the last: it begins where the others have a row.
  CHECK(world.cache().GetStats().copied_blocks == copied + 3);
  REQUIRE(world.Commit({}).ok());
  REQUIRE(world.Run({{.sequence = c, .num_tokens = 3}, {.sequence = a}, {.sequence = b}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  CHECK(world.cache().GetStats().copied_blocks == copied + 3);
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
}

TEST_CASE("Speculation: rejected rows are overwritten and never hit", "[cache]") {
  const std::int64_t accepted = GENERATE(0, 1, 2, 3, 4);
  LateWorld late({});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 5));
  REQUIRE(Feed(world, a).ok());
  REQUIRE(
      world
          .Run({{.sequence = a, .num_tokens = 5, .num_drafts = 4, .tokens = {20, 21, 22, 23, 24}}},
               {})
          .ok());
  // Undecided drafts block planning of their sequence only.
  CHECK(world.Run({{.sequence = a}}, {}).code() == Code::kNotReady);
  const SequenceId b = *world.Open(Tokens(60, 4));
  REQUIRE(world.Run({{.sequence = b, .num_tokens = 4}}, {}).ok());
  REQUIRE(world.Commit({}, {{a, 1 + accepted}}).ok());
  REQUIRE(world.Commit({}).ok());
  CHECK(world.cache().GetExtent(a)->settled == 6 + accepted);
  // What was fed, and then what was rejected: only the former can be found.
  std::vector<TokenId> asked = Tokens(0, 5);
  for (TokenId token = 20; token < 27; ++token) asked.push_back(token);
  CHECK(world.cache().Match(asked).tokens == (6 + accepted) / 4 * 4);
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 5, .tokens = {40, 41, 42, 43, 44}}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
}

TEST_CASE("Truncation in flight", "[cache]") {
  const std::int64_t length = GENERATE(1, 4, 7, 8, 9, 10, 11, 12, 13);
  LateWorld late({.steps_in_flight = 3});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 9));
  REQUIRE(Feed(world, a).ok());
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 2}}, {}).ok());
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 2}}, {}).ok());
  REQUIRE(world.Truncate(a, length).ok());
  // On over what was cut, while the steps that wrote it have not run.
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 6}}, {}).ok());
  for (int i = 0; i < 3; ++i) REQUIRE(world.Commit({}).ok());
  CHECK(world.cache().GetExtent(a)->settled == length + 6);
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
}

TEST_CASE("Prefix hits read what another sequence wrote, still unwritten or not", "[cache]") {
  LateWorld late({});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 11));
  REQUIRE(Feed(world, a).ok());
  const SequenceId b = *world.Open(Tokens(0, 9)), other = *world.Open(Tokens(0, 9), "salt");
  REQUIRE(
      world.Run({{.sequence = b, .num_tokens = 9}, {.sequence = other, .num_tokens = 9}}, {}).ok());
  CHECK(world.live().back().rows[0].hit == 8);
  CHECK(world.live().back().rows[1].hit == 0);
  REQUIRE(world.Commit({}).ok());
  CHECK(late.backend->pending() > 0);
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
}

TEST_CASE("Positions of the caller's choice", "[cache]") {
  LateWorld late({});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 6));
  REQUIRE(
      world.Run({{.sequence = a, .num_tokens = 6, .positions = {5, 4, 40, 3, 0, 47}}}, {}, {9, 2})
          .ok());
  REQUIRE(world.Commit({}).ok());
  const auto plan = [&](std::vector<std::int32_t> positions) {
    Step step;
    return world
        .Plan({{.sequence = a, .num_tokens = 2, .positions = std::move(positions)}}, {}, step)
        .code();
  };
  CHECK(plan({0, -1}) == Code::kInvalidArgument);
  CHECK(plan({48, 0}) == Code::kInvalidArgument);  // max_tokens_per_sequence is 48
  CHECK(plan({0}) == Code::kInvalidArgument);
  CHECK(plan({0, 1, 2}) == Code::kInvalidArgument);
  CHECK(plan({0, 47}) == Code::kOk);
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
}

TEST_CASE("Keys that were turned by other positions are not shared by mistake", "[cache]") {
  // In every case nine rows, two full blocks of four, of one prompt.
  const auto matches = [](const OpenOptions& options, std::vector<std::int32_t> positions) {
    auto made = KVCache::Create(RowWorld::Config({}), Device(Cpu()));
    REQUIRE(made.ok());
    KVCache cache = *std::move(made);
    const std::vector<TokenId> prompt = Tokens(0, 9);
    const SequenceId id = *cache.Open(prompt, options);
    const StepItem item{id, 9, 0, positions};
    Step step = *cache.Plan(std::span(&item, 1));
    REQUIRE(cache.Prepare(step, {}).ok());
    REQUIRE(cache.Commit(step, {}, {}).ok());
    return cache.Match(prompt, options).tokens;
  };
  CHECK(matches({}, {0, 1, 2, 3, 4, 5, 6, 7, 8}) == 8);  // the default, spelled out
  CHECK(matches({}, {5, 4, 40, 3, 0, 47, 6, 7, 8}) == 0);
  CHECK(matches({}, {0, 1, 2, 3, 4, 5, 6, 8, 7}) <= 4);
  // A key of the caller's own says that the positions are part of it.
  const std::uint64_t image[] = {99};
  CHECK(matches({.extra_keys = image}, {5, 4, 40, 3, 0, 47, 6, 7, 8}) == 8);
  CHECK(matches({.salt = "other"}, {5, 4, 40, 3, 0, 47, 6, 7, 8}) == 8);
}

TEST_CASE("A contiguous cache: layer-major, one block a sequence", "[cache]") {
  LateWorld late({.block_size = 48, .blocks = 4, .layout = Layout::kLayerMajor});
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 7)), b = *world.Open(Tokens(0, 9));
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 7}, {.sequence = b, .num_tokens = 9}}, {}).ok());
  for (int i = 0; i < 5; ++i) {
    REQUIRE(world.Run({{.sequence = b, .num_tokens = 2}, {.sequence = a}}, {}).ok());
    REQUIRE(world.Commit({}).ok());
  }
  REQUIRE(world.Commit({}).ok());
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
  // One plane of all blocks: consecutive blocks are block_size rows apart.
  const LayerView view = *world.cache().Layer(1);
  CHECK(view.k_block_stride == 48 * view.k_row_stride);
  CHECK(view.v_block_stride == 48 * view.v_row_stride);
}

TEST_CASE("Layers of other heads, widths and rotation side by side", "[cache]") {
  CacheConfig config = RowWorld::Config({.layers = 1});
  const int heads[] = {2, 3, 1}, k_dims[] = {4, 8, 6}, v_dims[] = {6, 2, 4};
  config.layers.assign(3, config.layers[0]);
  for (int l = 0; l < 3; ++l) {
    config.layers[l].kv_heads = heads[l];
    config.layers[l].k_dim = k_dims[l];
    config.layers[l].v_dim = v_dims[l];
    config.layers[l].rope = l == 1 ? 0 : -1;
  }
  auto made = KVCache::Create(config, Device(Cpu()));
  REQUIRE(made.ok());
  KVCache cache = *std::move(made);
  const SequenceId id = *cache.Open(Tokens(0, 7));
  const StepItem item{.sequence = id, .num_tokens = 7};
  Step step = *cache.Plan(std::span(&item, 1));
  REQUIRE(cache.Prepare(step, {}).ok());
  std::vector<std::vector<float>> k(3), v(3);
  for (int l = 0; l < 3; ++l) {
    for (int i = 0; i < 7 * heads[l] * k_dims[l]; ++i)
      k[l].push_back(static_cast<float>(l * 1000 + i));
    for (int i = 0; i < 7 * heads[l] * v_dims[l]; ++i)
      v[l].push_back(static_cast<float>(-l * 1000 - i));
    const AppendInputs inputs{.dtype = DType::kFP32, .k = k[l].data(), .v = v[l].data()};
    REQUIRE(cache.Append(step, l, inputs, {}).ok());
  }
  REQUIRE(cache.Commit(step, {}, {}).ok());
  for (int l = 0; l < 3; ++l) {
    std::vector<float> got_k(k[l].size(), -0.5F), got_v(v[l].size(), -0.5F);
    REQUIRE(cache.ReadRows(id, l, 0, 7, got_k.data(), got_v.data()).ok());
    CHECK(got_v == v[l]);
    CHECK((got_k == k[l]) == (l != 1));  // the one with a rope turned
    const LayerView view = *cache.Layer(l);
    CHECK(view.kv_heads == heads[l]);
    CHECK(view.k_dim == k_dims[l]);
    CHECK(view.v_dim == v_dims[l]);
    CHECK((view.cos != nullptr) == (l == 1));
  }
}

TEST_CASE("The query turns in place with its row's position", "[cache]") {
  WorldOptions options;
  auto made = KVCache::Create(RowWorld::Config(options), Device(Cpu()));
  REQUIRE(made.ok());
  KVCache cache = *std::move(made);
  const SequenceId id = *cache.Open(Tokens(0, 3));
  const StepItem item{.sequence = id, .num_tokens = 3};
  Step step = *cache.Plan(std::span(&item, 1));
  REQUIRE(cache.Prepare(step, {}).ok());
  // q is [3, 3, 4] inside rows of 20, so that strides matter; half style: (0, 2) and (1, 3).
  std::vector<float> k(3 * 2 * 4, 0.5F), v(3 * 2 * 6, 0.25F), q(60, 7.0F);
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < 12; ++i) q[t * 20 + i] = static_cast<float>(i % 4 < 2 ? 1 : 0);
  }
  AppendInputs inputs{
      .dtype = DType::kFP32, .k = k.data(), .v = v.data(), .q = q.data(), .q_heads = 3};
  inputs.q_token_stride = 20;
  inputs.q_head_stride = 4;
  REQUIRE(cache.Append(step, 0, inputs, {}).ok());
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < 20; ++i) {
      const double angle = i % 2 == 0 ? t : t * 0.1;  // 100^(-1/2)
      const double want = i >= 12 ? 7.0 : i % 4 < 2 ? std::cos(angle) : std::sin(angle);
      // One product, one table entry and one sum are rounded, all at most 1: 3 * 2^-24.
      CHECK(std::abs(q[t * 20 + i] - want) <= 3 * 0x1p-24);
    }
  }
  REQUIRE(cache.Commit(step, {}, {}).ok());
}

}  // namespace
}  // namespace lariat
