// SPDX-License-Identifier: Apache-2.0
// A host tier, replayed with every stored row compared, while copies are as late as they may be.
#include <random>
#include <string>
#include <vector>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/checked_simulation.h"
#include "support/few_cases.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::MakeConfig;
using test::Run;
using test::RunChecked;
using test::SmallTrace;
using test::Workload;

struct Used {
  std::int64_t fetches = 0, swaps = 0, host_hits = 0, host_evicted = 0, onboarded = 0;
  void Add(const SimulationResult& r) {
    fetches += r.session.fetches;
    swaps += r.session.swaps;
    host_hits += r.session.host_hit_tokens;
    host_evicted += r.cache.host_evicted;
    onboarded += r.cache.onboarded_blocks;
  }
};

// Four texts of 60 tokens, each asked for again when the others have been, with a few tokens more.
Trace ReturningTrace() {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    text += "{\"arrival_ms\": " + std::to_string(1000 * i) + ", \"prompt\": [";
    for (int t = 0; t < 60; ++t) text += std::to_string(1000 * (i % 4) + t) + ",";
    text += std::to_string(100000 + i) + ",7,8], \"output_length\": 6}\n";
  }
  return test::Tokens(text);
}

struct Pool {
  Trace trace;
  std::int64_t blocks, host_blocks;
  int block_size;
  std::int64_t chunk;
  std::int64_t concurrency = 0;
};

void CheckPools(BackendKind backend, const std::vector<Preempt>& ways) {
  const std::vector<Pool> pools = {
      {Workload("in=64,out=60,n=8,prefix=37"), 30, 200, 16, 300},
      {Workload("in=64,out=60,n=8,prefix=37"), 30, 12, 16, 300},
      {Workload("in=30,out=40,n=6,prefix=20"), 22, 100, 7, 25},
      {Workload("in=10,out=20,n=6,prefix=5"), 40, 500, 1, 9},
      {ReturningTrace(), 24, 200, 4, 2048, 1},
      {ReturningTrace(), 40, 50, 4, 40, 3},
      {SmallTrace(), 90, 70, 16, 512, 2},
  };
  Used used;
  test::CaseCounter counter;
  for (const Pool& pool : pools) {
    for (const WritePolicy write :
         {WritePolicy::kBack, WritePolicy::kThrough, WritePolicy::kAfterHits}) {
      for (const Preempt preempt : ways) {
        if (counter.LeaveOut()) continue;
        INFO("blocks " << pool.blocks << ", host " << pool.host_blocks << ", write "
                       << static_cast<int>(write) << ", preempt " << static_cast<int>(preempt));
        SimulatorConfig config = MakeConfig(backend, pool.blocks, pool.block_size);
        config.prefill_chunk = pool.chunk;
        config.concurrency = pool.concurrency;
        config.host.num_blocks = pool.host_blocks;
        config.host.write = write;
        config.preempt = preempt;
        config.seed = 3;
        used.Add(RunChecked(pool.trace, config));
      }
    }
  }
  if (test::FewCases()) return;
  CHECK(used.fetches > 0);
  CHECK(used.swaps > 0);
  CHECK(used.host_hits > 0);
  CHECK(used.host_evicted > 0);
  CHECK(used.onboarded > 0);
}

}  // namespace

TEST_CASE("simulate: a host tier on the CPU, every row compared") {
  CheckPools(BackendKind::kCpu, {Preempt::kRecompute, Preempt::kSwap, Preempt::kAuto});
}

TEST_CASE("simulate: a host tier on CUDA, every row compared") {
  if (!Device::Create(BackendKind::kCuda).ok()) LARIAT_SKIP("no CUDA device");
  CheckPools(BackendKind::kCuda, {Preempt::kSwap});
}

TEST_CASE("simulate: a host tier brings hits that a small pool has lost") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 24, 4);
  config.concurrency = 1;
  const Trace trace = ReturningTrace();
  const SimulationResult without = Run(trace, config);
  config.host.num_blocks = 100000;
  config.host.write = WritePolicy::kThrough;
  const SimulationResult with = Run(trace, config);
  SimulatorConfig unlimited = MakeConfig(BackendKind::kNull, 0, 4);
  unlimited.concurrency = 1;
  const SimulationResult all = Run(trace, unlimited);
  CHECK(without.session.hit_tokens < with.session.hit_tokens);
  CHECK(with.session.host_hit_tokens == 12 * 60);
  // Nothing is lost where everything is written and the tier is large.
  CHECK(with.session.hit_tokens == all.session.hit_tokens);
  CHECK(with.cache.host_evicted == 0);
}

TEST_CASE("simulate: what a host tier refuses") {
  const Trace trace = Workload("in=8,out=2,n=1");
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 64);
  config.preempt = Preempt::kSwap;
  CHECK(Simulate(trace, config).status().code() == Code::kInvalidArgument);
  config.preempt = Preempt::kRecompute;
  config.late_copies = true;
  CHECK(Simulate(trace, config).status().code() == Code::kInvalidArgument);
  config = MakeConfig(BackendKind::kNull, 0);
  config.host.num_blocks = 8;
  CHECK(Simulate(trace, config).status().code() == Code::kUnsupported);
}

}  // namespace lariat
