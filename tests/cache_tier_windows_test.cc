// SPDX-License-Identifier: Apache-2.0
// Random lives of sequences with real bytes, a host tier and layers with windows: what every row
// attends to is what was written, wherever the blocks of its group have been meanwhile.
#include <memory>
#include <random>
#include <vector>

#include "backend/deferred_backend.h"
#include "support/failing_copies.h"
#include "support/fault_backend.h"
#include "support/late_world.h"
#include "support/random_tier.h"
#include "support/sanitized.h"

namespace lariat {
namespace {

using testing::Add;
using testing::Cpu;
using testing::Done;
using testing::FailingCopies;
using testing::FaultBackend;
using testing::LateWorld;
using testing::MlaWorld;
using testing::RandomTier;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

LayerSpec Windowed(LayerKind kind, std::int64_t window) {
  return {.kind = kind, .kv_heads = 1, .k_dim = 6, .v_dim = 4, .window = static_cast<int>(window)};
}

// Layers beside the full one, by number: of one or two groups, with windows below a block, of one,
// and of several; chunks that end with blocks and such that do not; latents; more layers of a
// window than go into one group.
std::vector<LayerSpec> Sides(int number, std::int64_t block) {
  constexpr LayerKind kSliding = LayerKind::kSliding, kChunked = LayerKind::kChunked;
  const LayerSpec latents{.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = 11, .v_dim = 0};
  switch (number % 10) {
    case 0: return {Windowed(kSliding, std::max<std::int64_t>(1, block - 1))};
    case 1: return {Windowed(kSliding, block), Windowed(kChunked, 2 * block)};
    case 2: return {Windowed(kSliding, 3 * block + 1), Windowed(kSliding, 2)};
    case 3: return {Windowed(kChunked, block + 2)};
    case 4: return {Windowed(kSliding, 2 * block), Windowed(kChunked, 5)};
    case 5: return {latents, Windowed(kSliding, block + 1)};
    case 6: return {Windowed(kSliding, 1), Windowed(kChunked, block)};
    case 7:
      return {Windowed(kChunked, 3 * block),
              Windowed(kChunked, std::max<std::int64_t>(1, block / 2))};
    default: return {Windowed(kSliding, 4)};
  }
}

WorldOptions OptionsOf(int seed) {
  constexpr std::int64_t kBlockSizes[] = {1, 3, 4, 16}, kBlocks[] = {40, 15, 12, 7};
  WorldOptions options;
  options.layers = 1;
  options.latent = MlaWorld().latent;
  options.block_size = kBlockSizes[seed % 4];
  options.more = Sides(seed, options.block_size);
  options.blocks = kBlocks[seed % 4] * (2 + std::min<std::int64_t>(2, std::ssize(options.more)));
  if (seed % 13 == 12) options = MlaWorld(options);
  if (seed % 17 == 16) {  // the widest window is the first group
    options.layers = 0;
    options.more.push_back(Windowed(LayerKind::kSliding, 40));
  }
  if (seed % 11 == 10) options.blocks = options.blocks * 3 / 4;
  if (options.block_size == 16) options.max_tokens_per_sequence = 96;
  options.steps_in_flight = 1 + seed % 3;
  options.max_sequences = 7;
  options.reuse = seed / 4 % 2 == 1 ? Reuse::kToken : Reuse::kBlock;
  options.eviction = seed / 2 % 2 == 1 ? EvictionPolicy::kPriority : EvictionPolicy::kLru;
  options.max_pinned_blocks = options.blocks / 6;
  options.host.num_blocks = options.blocks * (1 + seed % 5) / 3;
  options.host.write = static_cast<WritePolicy>(seed % 5 % 3);
  options.host.write_after_hits = 1 + seed % 2;
  options.host.clean_blocks =
      seed % 7 == 6 ? 0 : std::min(options.host.num_blocks, options.blocks / 2);
  options.reader_arrays = seed % 2 == 0;
  options.order = seed / 3 % 2 == 1 ? Order::kHND : Order::kNHD;
  options.layout = seed / 2 % 3 == 1 ? Layout::kLayerMajor : Layout::kBlockMajor;
  if (!KVCache::Footprint(RowWorld::Config(options)).ok()) options.layout = Layout::kBlockMajor;
  return options;
}

constexpr int kSeeds = testing::HalfIfSanitized(36);

void AtOnce(Stream, const std::function<void()>& work) { work(); }

// A chunk ends inside of a block: behind it nobody reads the block's first rows, but they are in
// it.
TEST_CASE("A hit where a chunk ends has all rows of its block, whatever was evicted", "[cache]") {
  std::int64_t hits = 0;
  for (std::int64_t taken = 1; taken < 48; ++taken) {
    CAPTURE(taken);
    WorldOptions options;
    options.layers = 1;
    options.blocks = 14;
    options.reuse = Reuse::kToken;
    options.more = {Windowed(LayerKind::kChunked, 6)};
    RowWorld world(options, *Device::Create(BackendKind::kCpu), AtOnce);
    // A sequence that begins with the tokens of others, up to `same`.
    const auto live = [&](std::int64_t same, std::int64_t more, TokenId first) {
      std::vector<TokenId> prompt = Tokens(0, same);
      for (const TokenId token : Tokens(first, more)) prompt.push_back(token);
      const SequenceId id = *world.Open(prompt);
      for (std::int64_t n = 0; n < same + more; n += 4) {
        if (world.sequences().at(id).settled >= same + more) break;
        REQUIRE(world.Run({{id, 4}}, {}).ok());
        hits += world.live().front().rows[0].hit;
        REQUIRE(world.Commit({}).ok());
      }
      world.CheckRows();
      REQUIRE(world.errors() == "");
      REQUIRE(world.Close(id).ok());
    };
    live(8, 0, 0);
    live(0, taken, 100);  // evicts some of it, one block after the other
    live(6, 4, 200);
    live(5, 3, 300);
  }
  CHECK(hits > 100);
}

// The longer sequence takes a copy of a block that it shares; when that is thrown away it goes on
// in the block, in which the shorter one must not have written over its rows.
TEST_CASE("A discarded copy gives back a block whose rows are those of the longer one", "[cache]") {
  for (const bool one_step : {true, false}) {
    CAPTURE(one_step);
    WorldOptions options;
    options.more = {Windowed(LayerKind::kSliding, 3)};
    RowWorld world(options, *Device::Create(BackendKind::kCpu), AtOnce);
    const SequenceId a = *world.Open({});
    REQUIRE(world.Run({{a, 7}}, {}).ok());
    REQUIRE(world.Commit({}).ok());
    const SequenceId b = *world.Fork(a, 6);
    if (one_step) {
      REQUIRE(world.Run({{a, 1}, {b, 1}}, {}).ok());
    } else {
      REQUIRE(world.Run({{a, 1}}, {}).ok());
      REQUIRE(world.Run({{b, 1}}, {}).ok());
      REQUIRE(world.DiscardLast({}).ok());
    }
    REQUIRE(world.DiscardLast({}).ok());
    world.CheckRows();
    CHECK(world.errors() == "");
  }
}

TEST_CASE("Tier windows: copies late and poisoned, steps at once", "[tier]") {
  Done sum;
  for (int seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    const Device device = *Device::CreateDeferred(BackendKind::kCpu, static_cast<unsigned>(seed));
    RowWorld world(options, device, AtOnce);
    RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
    tier.Calls(4000);
    Add(sum, tier.done());
    CHECK(world.readers_run() > 0);
  }
  INFO(Text(sum));
  CHECK(sum.offloaded > 30000);
}

TEST_CASE("Tier windows: everything late, streams in any order", "[tier]") {
  Done sum;
  for (int seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    LateWorld late(options);
    std::mt19937_64 random(static_cast<unsigned>(seed));
    RandomTier tier(late.world, options, static_cast<unsigned>(seed + 100), [&] {
      late.backend->RunSome(static_cast<std::int64_t>(random() % 24), random);
    });
    tier.Calls(4000);
    late.Finish();
    REQUIRE(late.world.errors() == "");
    Add(sum, tier.done());
  }
  INFO(Text(sum));
  CHECK(sum.onboarded > testing::HalfIfSanitized(5000));
}

TEST_CASE("Tier windows: no state depends on how long a copy takes", "[tier]") {
  for (int seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    std::vector<std::string> states[4];
    const auto unsigned_seed = static_cast<unsigned>(seed + 500);
    for (unsigned i = 0; i < 3; ++i) {
      const Device device = i == 0 ? *Device::Create(BackendKind::kCpu)
                                   : *Device::CreateDeferred(BackendKind::kCpu, 1000 * i + 7);
      RowWorld world(options, device, AtOnce);
      RandomTier tier(world, options, unsigned_seed, [] {});
      tier.Note(states[i]);
      tier.Calls(600);
    }
    LateWorld late(options);
    std::mt19937_64 random(unsigned_seed);
    RandomTier tier(late.world, options, unsigned_seed, [&] {
      late.backend->RunSome(static_cast<std::int64_t>(random() % 24), random);
    });
    tier.Note(states[3]);
    tier.Calls(600);
    late.Finish();
    REQUIRE(states[0].size() == 600);
    for (int i = 1; i < 4; ++i) {
      CAPTURE(i);
      CHECK((states[0] == states[i]));
    }
  }
}

TEST_CASE("Tier windows: copies that fail are misses, never hits", "[tier]") {
  Done sum;
  for (int seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    const auto failing =
        std::make_shared<FailingCopies>(MakeDeferredBackend(Cpu(), static_cast<unsigned>(seed)));
    RowWorld world(options, Device(failing), AtOnce);
    RandomTier tier(
        world, options, static_cast<unsigned>(seed + 200), [] {},
        {[&](std::int64_t n) { failing->FailAt(n); }, [&] { return failing->failed(); }});
    tier.Calls(4000);
    Add(sum, tier.done());
  }
  INFO(Text(sum));
  CHECK(sum.failed > testing::HalfIfSanitized(2000));
}

TEST_CASE("Tier windows: whatever call of the device fails", "[tier]") {
  Done sum;
  for (int seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    const auto faulty =
        std::make_shared<FaultBackend>(MakeDeferredBackend(Cpu(), static_cast<unsigned>(seed)));
    std::int64_t count = 0;
    {
      RowWorld world(options, Device(faulty), AtOnce);
      RandomTier tier(world, options, static_cast<unsigned>(seed + 300), [] {},
                      {[&](std::int64_t n) {
                         count += faulty->failed();
                         faulty->FailAt(n == 0 ? 0 : n * 3);
                       },
                       [&] { return count; }});
      tier.Calls(3000);
      Add(sum, tier.done());
    }
    CHECK(faulty->outstanding() == 0);
    CHECK(faulty->wrong_frees() == 0);
  }
  INFO(Text(sum));
  CHECK(sum.failed > testing::HalfIfSanitized(4000));
}

}  // namespace
}  // namespace lariat
