// SPDX-License-Identifier: Apache-2.0
// Random calls against the naive model (tests/reference/cache_model.h), on the null backend.
#include "support/random_calls.h"
#include "support/sanitized.h"

// Calls over all seeds and settings.
#ifndef LARIAT_RANDOM_OPERATIONS
#define LARIAT_RANDOM_OPERATIONS 100000
#endif

namespace lariat {
namespace {

using testing::Setting;

// Short runs too: a fresh cache meets other cases than a full one. (With a sanitizer the runs are
// as many, and shorter.)
constexpr std::int64_t kCallsPerRun = 500;
constexpr std::int64_t kCallsMade = testing::HalfIfSanitized(kCallsPerRun);

std::string Name(const std::vector<reference::ModelSide>& sides) {
  std::string name;
  for (const reference::ModelSide& side : sides) {
    name.append(side.window == 0 ? ", MLA "
                : side.chunked   ? ", chunks of "
                                 : ", window ")
        .append(std::to_string(side.window));
  }
  return name;
}

void Run(const std::vector<Setting>& settings, std::int64_t calls_in_all) {
  const std::int64_t runs = (calls_in_all + kCallsPerRun - 1) / kCallsPerRun;
  for (std::int64_t run = 0; run < runs; ++run) {
    const Setting& setting = settings[static_cast<std::size_t>(run) % settings.size()];
    INFO("run " << run << ": block size " << setting.block_size << ", " << setting.blocks
                << " blocks, " << setting.host.num_blocks << " in host memory, policy "
                << static_cast<int>(setting.host.write) << ", " << setting.steps_in_flight
                << " steps in flight" << Name(setting.sides));
    testing::RandomCalls calls(setting, static_cast<unsigned>(run) + 1);
    for (std::int64_t i = 0; i < kCallsMade; ++i) calls.One();
    calls.Drain();
  }
}

TEST_CASE("Random calls answer as the model does", "[cache]") {
  std::vector<Setting> settings;
  for (const std::int64_t block_size : {1, 4, 16, 64}) {
    for (const int steps : {1, 2, 3}) {
      for (const std::int64_t blocks : {5, 17, 64}) {
        for (const Reuse reuse : {Reuse::kBlock, Reuse::kToken}) {
          Setting setting{block_size, blocks, steps, reuse};
          settings.push_back(setting);
          setting.eviction = EvictionPolicy::kPriority;
          settings.push_back(setting);
        }
      }
    }
    settings.push_back({block_size, 20, 2, Reuse::kNone});
  }
  Run(settings, LARIAT_RANDOM_OPERATIONS);
}

TEST_CASE("Random calls answer as the model does with a host tier", "[cache]") {
  std::vector<Setting> settings;
  for (const std::int64_t block_size : {1, 4, 16, 64}) {
    for (const std::int64_t blocks : {5, 11, 40}) {
      for (const std::int64_t places : {3, 12, 80}) {
        for (const WritePolicy write :
             {WritePolicy::kBack, WritePolicy::kThrough, WritePolicy::kAfterHits}) {
          HostTier host{.num_blocks = places, .write = write};
          host.write_after_hits = places == 12 ? 2 : 1;
          host.clean_blocks = std::min(places, blocks / 3 + 1);
          const int steps = 1 + static_cast<int>(settings.size() % 3);
          const Reuse reuse = settings.size() % 2 == 0 ? Reuse::kBlock : Reuse::kToken;
          Setting setting{block_size, blocks, steps, reuse, host};
          settings.push_back(setting);
          setting.eviction = EvictionPolicy::kPriority;
          settings.push_back(setting);
        }
      }
    }
    HostTier host{.num_blocks = 20, .clean_blocks = 5};
    settings.push_back({block_size, 20, 2, Reuse::kNone, host});
  }
  Run(settings, LARIAT_RANDOM_OPERATIONS);
}

// Windows smaller than a block, as large, and larger, alone and two together.
TEST_CASE("Random calls answer as the model does with windows", "[cache]") {
  std::vector<Setting> settings;
  for (const std::int64_t size : {1, 3, 4, 16}) {
    const std::vector<std::vector<reference::ModelSide>> windows = {
        {{false, 1}},
        {{false, size}},
        {{false, size + 1}},
        {{false, 3 * size + 1}},
        {{true, size + 1}},
        {{true, 3 * size - 1}},
        {{false, std::max<std::int64_t>(1, size - 1)}, {false, 2 * size}},
        {{true, 2 * size}, {false, size + 2}},
        {{false, size + 1}, {false, size + 1}},
        {{false, 0}, {false, 2}},
    };
    for (const std::int64_t blocks : {9, 26, 64}) {
      for (const auto& sides : windows) {
        Setting setting{size, blocks};
        setting.steps_in_flight = 1 + static_cast<int>(settings.size() % 3);
        setting.reuse = settings.size() / 2 % 2 == 0 ? Reuse::kBlock : Reuse::kToken;
        setting.sides = sides;
        settings.push_back(setting);
        setting.eviction = EvictionPolicy::kPriority;
        settings.push_back(setting);
      }
    }
    settings.push_back({size, 26, 2, Reuse::kNone});
    settings.back().sides = {{false, size + 1}};
  }
  Run(settings, LARIAT_RANDOM_OPERATIONS);
}

}  // namespace
}  // namespace lariat
