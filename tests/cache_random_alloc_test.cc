// SPDX-License-Identifier: Apache-2.0
// Random calls against the naive model, each made first with memory for 0, 1, 2, .. allocations:
// until it has enough it must fail, and change nothing.
#include <algorithm>

#include "support/count_new.h"
#include "support/random_calls.h"

namespace lariat {
namespace {

// Calls and, of those, failures for want of memory.
struct Sums {
  std::int64_t calls = 0, failures = 0, most = 0;
};

Status Insist(const std::function<Status()>& call, const KVCache& cache, Sums& sums) {
  ++sums.calls;
  const std::string before = cache.Snapshot();
  for (std::int64_t allowed = 0;; ++allowed) {
    Status status;
    bool thrown = false;
    {
      const testing::FailNewAfter failing(allowed);
      try {
        status = call();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
    }
    if (thrown) FAIL("an exception came out of a call");
    if (status.code() != Code::kResourceExhausted || status.message() != "out of memory") {
      sums.most = std::max(sums.most, allowed);
      return status;
    }
    ++sums.failures;
    if (cache.Snapshot() != before) FAIL("a call without memory changed the cache");
    if (allowed == 500) FAIL("a call takes more than 500 allocations");
  }
}

TEST_CASE("Random calls that run out of memory at each place change nothing", "[cache]") {
  using testing::Setting;
  Sums sums;
  unsigned seed = 1000;
  // Few sequences, by whose number a cache's first memory is measured, and short runs: vectors keep
  // their memory, so a cache that has run for long lacks none.
  for (int run = 0; run < 18; ++run) {
    for (const std::int64_t block_size : {1, 4, 16}) {
      for (const int steps : {1, 3}) {
        for (const Reuse reuse : {Reuse::kBlock, Reuse::kToken}) {
          INFO("block size " << block_size << ", " << steps << " steps in flight, seed " << ++seed);
          HostTier host;
          if (run % 2 == 1 && run < 12) {
            host.num_blocks = 60;
            host.clean_blocks = 9;
          }
          host.write = static_cast<WritePolicy>(run / 2 % 3);
          const EvictionPolicy eviction =
              run % 3 != 0 ? EvictionPolicy::kLru : EvictionPolicy::kPriority;
          Setting setting{block_size, 100, steps, reuse, host, 2, 40, eviction};
          if (run >= 15) setting.backend = BackendKind::kCpu;
          if (run >= 12) setting.sides = {{false, block_size + 1}, {true, 2 * block_size - 1}};
          testing::RandomCalls calls(setting, seed);
          calls.SetAttempts([&](const std::function<Status()>& call, const KVCache& cache) {
            return Insist(call, cache, sums);
          });
          for (int i = 0; i < 250; ++i) calls.One();
          calls.Drain();
        }
      }
    }
  }
  // The memory that a cache has from the start is not enough for everything.
  CHECK(sums.failures > sums.calls / 20);
}

}  // namespace
}  // namespace lariat
