// SPDX-License-Identifier: Apache-2.0
// The check of stored rows: it passes where it must, and fails where one write is broken.
#include <string>
#include <vector>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/few_cases.h"
#include "support/same_results.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::CheckSame;
using test::MakeConfig;
using test::Run;
using test::SmallTrace;
using test::Workload;

// The model's keys and values, or latents.
SimulatorConfig ConfigOf(bool mla, BackendKind backend, std::int64_t blocks, int block_size) {
  SimulatorConfig config = MakeConfig(backend, blocks, block_size);
  if (mla) config.model = test::SmallMla();
  return config;
}

// Served on `backend`, checked, and equal to what null does.
void CheckCases(BackendKind backend, bool mla = false) {
  struct Case {
    std::string name;
    Trace trace;
    std::int64_t blocks;
    int block_size;
    DType dtype;
    Reuse reuse = Reuse::kBlock;
  };
  const std::vector<Case> cases = {
      {"small trace, evictions", SmallTrace(), 82, 16, DType::kBF16},
      {"small trace, contiguous blocks", SmallTrace(), 4, 1303, DType::kBF16},
      {"preemptions", Workload("in=64,out=160,n=10,prefix=32"), 60, 16, DType::kBF16},
      {"blocks of one token, fp16", Workload("in=10,out=20,n=6,prefix=5"), 70, 1, DType::kFP16},
      {"odd blocks, fp32", Workload("in=30,out=40,n=6,prefix=20"), 25, 7, DType::kFP32},
      {"given outputs that are alike",
       test::Tokens("{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5], \"output\": [7,8,9,10,11,12]}\n"
                    "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5], \"output\": [7,8,9,10,11,12]}\n"
                    "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,7,8,9], \"output\": [10,11,12]}\n"),
       9, 2, DType::kBF16},
      {"prompts that part inside a block",
       test::Tokens("{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7], \"output_length\": 12}\n"
                    "{\"arrival_ms\": 9e5, \"prompt\": [1,2,3,4,5,6,9,9], \"output_length\": 2}\n"
                    "{\"arrival_ms\": 9e6, \"prompt\": [1,2,3,4,5,6,7], \"output_length\": 5}\n"
                    "{\"arrival_ms\": 9e6, \"prompt\": [1,2,8,8,8], \"output_length\": 9}\n"),
       20, 4, DType::kBF16, Reuse::kToken},
      {"small trace, hits of single tokens", SmallTrace(), 82, 16, DType::kBF16, Reuse::kToken},
      {"preemptions, hits of single tokens", Workload("in=64,out=160,n=10,prefix=37"), 60, 16,
       DType::kBF16, Reuse::kToken},
  };
  test::CaseCounter counter;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (counter.LeaveOut()) continue;
    const Case& c = cases[i];
    INFO(c.name);
    SimulatorConfig config = ConfigOf(mla, backend, c.blocks, c.block_size);
    config.dtype = c.dtype;
    config.reuse = c.reuse;
    config.prefill_chunk = 300;
    config.check = true;
    config.seed = 3;
    config.layout = i % 3 == 1 ? Layout::kLayerMajor : Layout::kBlockMajor;
    config.order = i % 2 == 1 ? Order::kHND : Order::kNHD;
    const SimulationResult result = Run(c.trace, config);
    REQUIRE(result.check.has_value());
    CHECK(result.check->sequences == c.trace.size());
    CHECK(result.check->mismatches == 0);
    CHECK_FALSE(result.check->fault_fired);
    test::CheckEquation(c.trace, result);

    // Null serves the same without the bytes, and a second run is the first.
    config.check = false;
    config.layout = Layout::kBlockMajor;
    config.order = Order::kNHD;
    config.backend = BackendKind::kNull;
    CheckSame(Run(c.trace, config), result);
    CheckSame(Run(c.trace, config), result);
  }
}

// Every fault at several steps is seen.
void CheckFaults(BackendKind backend, bool mla = false) {
  const Trace workload = Workload("in=40,out=30,n=5,prefix=16");
  test::CaseCounter counter;
  for (const InjectedFault fault :
       {InjectedFault::kStale, InjectedFault::kShift, InjectedFault::kBit}) {
    for (const int block_size : {1, 4, 16}) {
      for (const std::int64_t step : {1, 2, 9, 40}) {
        if (counter.LeaveOut()) continue;
        INFO("fault " << static_cast<int>(fault) << ", block " << block_size << ", step " << step);
        SimulatorConfig config = ConfigOf(mla, backend, 160 / block_size, block_size);
        config.check = true;
        config.fault = fault;
        config.fault_step = step;
        config.layout = step % 2 == 0 ? Layout::kLayerMajor : Layout::kBlockMajor;
        config.order = block_size == 4 ? Order::kHND : Order::kNHD;
        const SimulationResult result = Run(workload, config);
        CHECK(result.check->sequences == 5);
        CHECK(result.check->mismatches > 0);
        CHECK(result.check->fault_fired);
      }
    }
  }
}

TEST_CASE("Every row is what the trace says, evicted and preempted or not", "[check]") {
  CheckCases(BackendKind::kCpu);
}

TEST_CASE("Every latent is what the trace says too", "[check]") {
  CheckCases(BackendKind::kCpu, /*mla=*/true);
}

TEST_CASE("A broken write is seen", "[check]") { CheckFaults(BackendKind::kCpu); }

TEST_CASE("A broken write of latents is seen", "[check]") {
  CheckFaults(BackendKind::kCpu, /*mla=*/true);
}

TEST_CASE("On CUDA too every row is right, and a broken write is seen", "[check]") {
  if (!Device::Create(BackendKind::kCuda).ok()) LARIAT_SKIP("no CUDA device");
  for (const bool mla : {false, true}) {
    CheckCases(BackendKind::kCuda, mla);
    CheckFaults(BackendKind::kCuda, mla);
  }
}

TEST_CASE("The cases above evict, preempt and hit inside blocks", "[check]") {
  const Trace parting = test::Tokens(
      "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7], \"output_length\": 1}\n"
      "{\"arrival_ms\": 9e5, \"prompt\": [1,2,3,4,5,6,9,9], \"output_length\": 2}\n");
  SimulatorConfig by_token = MakeConfig(BackendKind::kNull, 20, 4);
  by_token.reuse = Reuse::kToken;
  CHECK(Run(parting, by_token).session.hit_tokens == 6);
  CHECK(Run(parting, by_token).cache.copied_blocks == 1);
  CHECK(Run(SmallTrace(), MakeConfig(BackendKind::kNull, 82)).cache.evicted_blocks > 0);
  const SimulationResult tight =
      Run(Workload("in=64,out=160,n=10,prefix=32"), MakeConfig(BackendKind::kNull, 60));
  CHECK(tight.session.preemptions > 3);
  CHECK(tight.session.recomputed_tokens > 0);
}

TEST_CASE("One bit in one row is one mismatch", "[check]") {
  for (const bool mla : {false, true}) {
    SimulatorConfig config = ConfigOf(mla, BackendKind::kCpu, 100, 16);
    config.check = true;
    config.fault = InjectedFault::kBit;
    config.fault_step = 3;  // a decode of the first request: nobody shares the row
    CHECK(Run(Workload("in=20,out=10,n=3"), config).check->mismatches == 1);
  }
}

TEST_CASE("A fault that leaves no trace moves on to the next step", "[check]") {
  // Both prompts are alike and fill their blocks. The second finds the first block and computes the
  // second one again, which is merged into the cached one, with whatever was done to it. Its next
  // row, the only decode, stays.
  const Trace trace = test::Tokens(
      "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7,8], \"output_length\": 1}\n"
      "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7,8], \"output_length\": 2}\n");
  for (const InjectedFault fault :
       {InjectedFault::kStale, InjectedFault::kShift, InjectedFault::kBit}) {
    SimulatorConfig config = MakeConfig(BackendKind::kCpu, 20, 4);
    config.concurrency = 1;
    config.check = true;
    config.fault = fault;
    config.fault_step = 2;
    const SimulationResult result = Run(trace, config);
    CHECK(result.session.steps == 3);
    CHECK(result.session.hit_tokens == 4);
    CHECK(result.cache.merged_blocks == 1);
    CHECK(result.check->fault_fired);
    CHECK(result.check->mismatches > 0);
  }
}

TEST_CASE("A fault that left no trace in the last step has not fired", "[check]") {
  // As above, but the merged block is the last that is written.
  const Trace trace = test::Tokens(
      "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7,8], \"output_length\": 1}\n"
      "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7,8], \"output_length\": 1}\n");
  SimulatorConfig config = MakeConfig(BackendKind::kCpu, 20, 4);
  config.concurrency = 1;
  config.check = true;
  config.fault = InjectedFault::kBit;
  config.fault_step = 2;
  const SimulationResult result = Run(trace, config);
  CHECK(result.cache.merged_blocks == 1);
  CHECK(result.check->mismatches == 0);
  CHECK_FALSE(result.check->fault_fired);
}

TEST_CASE("A fault that comes too late has not fired", "[check]") {
  SimulatorConfig config = MakeConfig(BackendKind::kCpu, 100);
  config.check = true;
  config.fault = InjectedFault::kStale;
  config.fault_step = 11;
  const SimulationResult result = Run(Workload("in=20,out=10,n=3"), config);
  CHECK(result.session.steps == 10);
  CHECK(result.check->mismatches == 0);
  CHECK_FALSE(result.check->fault_fired);
}

}  // namespace
}  // namespace lariat
