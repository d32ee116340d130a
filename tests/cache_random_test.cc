// SPDX-License-Identifier: Apache-2.0
// Random calls against the naive model (tests/reference/cache_model.h), on the null backend.
#include "support/random_calls.h"

// Calls over all seeds and settings.
#ifndef LARIAT_RANDOM_OPERATIONS
#define LARIAT_RANDOM_OPERATIONS 100000
#endif

namespace lariat {
namespace {

TEST_CASE("Random calls answer as the model does", "[cache]") {
  using testing::Setting;
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
  // Short runs too: a fresh cache meets other cases than a full one.
  constexpr std::int64_t kCallsPerRun = 500;
  const std::int64_t runs = (LARIAT_RANDOM_OPERATIONS + kCallsPerRun - 1) / kCallsPerRun;
  for (std::int64_t run = 0; run < runs; ++run) {
    const Setting& setting = settings[static_cast<std::size_t>(run) % settings.size()];
    INFO("run " << run << ": block size " << setting.block_size << ", " << setting.blocks
                << " blocks, " << setting.steps_in_flight << " steps in flight");
    testing::RandomCalls calls(setting, static_cast<unsigned>(run) + 1);
    for (std::int64_t i = 0; i < kCallsPerRun; ++i) calls.One();
    calls.Drain();
  }
}

}  // namespace
}  // namespace lariat
