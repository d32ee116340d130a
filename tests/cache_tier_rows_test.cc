// SPDX-License-Identifier: Apache-2.0
// Random lives of sequences with real bytes and a host tier: whatever moves, is evicted, fetched or
// suspended, every row that is read is the one that was written.
#include <memory>
#include <random>

#include "backend/deferred_backend.h"
#include "support/cache_pair.h"
#include "support/device_vector.h"
#include "support/failing_copies.h"
#include "support/fault_backend.h"
#include "support/late_world.h"
#include "support/random_tier.h"

namespace lariat {
namespace {

using testing::Add;
using testing::Cpu;
using testing::Done;
using testing::FailingCopies;
using testing::FaultBackend;
using testing::LateWorld;
using testing::RandomTier;
using testing::RowWorld;
using testing::WorldOptions;

WorldOptions OptionsOf(int seed) {
  WorldOptions options;
  options.block_size = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 8 : 4;
  options.blocks = options.block_size == 1 ? 60 : options.block_size == 8 ? 10 : 18;
  options.steps_in_flight = 1 + seed % 3;
  options.max_sequences = 7;
  options.reuse = seed % 4 == 3 ? Reuse::kToken : Reuse::kBlock;
  options.rope = seed % 2 == 0;
  options.layout = seed / 2 % 3 == 1 ? Layout::kLayerMajor : Layout::kBlockMajor;
  options.order = seed / 3 % 2 == 1 ? Order::kHND : Order::kNHD;
  options.host.num_blocks = options.blocks * (1 + seed % 5) / 2;
  options.host.write = static_cast<WritePolicy>(seed % 5 % 3);
  options.host.write_after_hits = 1 + seed % 2;
  options.host.clean_blocks = seed % 7 == 6 ? 0 : options.blocks / 2;
  return options;
}

void AtOnce(Stream, const std::function<void()>& work) { work(); }

TEST_CASE("Tier rows: copies late and poisoned, steps at once", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    WorldOptions options = OptionsOf(seed);
    if (seed >= 24) options = testing::MlaWorld(options);
    const Device device = *Device::CreateDeferred(BackendKind::kCpu, static_cast<unsigned>(seed));
    RowWorld world(options, device, AtOnce);
    RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
    tier.Calls(4000);
    Add(sum, tier.done());
    CHECK(world.readers_run() > 0);
  }
  INFO(Text(sum));
  CHECK(sum.offloaded > 8000);
  CHECK(sum.onboarded > 4000);
  CHECK(sum.fetches > 800);
  CHECK(sum.resumes > 400);
}

TEST_CASE("Tier rows: everything late, streams in any order", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 24; ++seed) {
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
  CHECK(sum.onboarded > 2500);
}

TEST_CASE("Tier rows: no state depends on how long a copy takes", "[tier]") {
  for (int seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    std::vector<std::string> states[3];
    for (unsigned i = 0; i < 2; ++i) {
      const Device device = *Device::CreateDeferred(BackendKind::kCpu, 1000 * i + 7);
      RowWorld world(options, device, AtOnce);
      RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
      tier.Note(states[i]);
      tier.Calls(800);
    }
    LateWorld late(options);
    std::mt19937_64 random(static_cast<unsigned>(seed));
    RandomTier tier(late.world, options, static_cast<unsigned>(seed), [&] {
      late.backend->RunSome(static_cast<std::int64_t>(random() % 24), random);
    });
    tier.Note(states[2]);
    tier.Calls(800);
    late.Finish();
    REQUIRE(states[0].size() == 800);
    CHECK(states[0] == states[1]);
    CHECK(states[0] == states[2]);
  }
}

TEST_CASE("Tier rows: copies that fail are misses, never hits", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 24; ++seed) {
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
  CHECK(sum.failed > 1000);
  CHECK(sum.onboarded > 1500);
}

TEST_CASE("Tier rows: whatever call of the device fails", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 24; ++seed) {
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
      tier.Calls(4000);
      Add(sum, tier.done());
    }
    CHECK(faulty->outstanding() == 0);
    CHECK(faulty->wrong_frees() == 0);
  }
  INFO(Text(sum));
  CHECK(sum.failed > 4000);
  CHECK(sum.onboarded > 1500);
}

TEST_CASE("Tier rows: as every device runs them, read back", "[tier]") {
  for (const Device& device : testing::AvailableDevices()) {
    CAPTURE(device.name());
    Done sum;
    for (int seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      const WorldOptions options = OptionsOf(seed);
      RowWorld world(options, device, nullptr);
      RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
      tier.Calls(1000);
      Add(sum, tier.done());
    }
    INFO(Text(sum));
    CHECK(sum.onboarded > 200);
  }
}

}  // namespace
}  // namespace lariat
