// SPDX-License-Identifier: Apache-2.0
// Speculation and beams, replayed with every stored row compared: what is rejected must be gone,
// and what is shared must stay as it was.
#include <algorithm>
#include <array>
#include <cmath>
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

// What a pool may be used for, summed over cases, so that none is left out.
struct Used {
  std::int64_t preemptions = 0;
  std::int64_t evictions = 0;
  std::int64_t hits = 0;
  std::int64_t recomputed = 0;
  std::int64_t rejected = 0;
  std::int64_t accepted = 0;
  std::int64_t copies = 0;

  void Add(const SimulationResult& result) {
    preemptions += result.session.preemptions;
    evictions += result.cache.evicted_blocks;
    hits += result.session.hit_tokens;
    recomputed += result.session.recomputed_tokens;
    rejected += result.session.drafted_tokens - result.session.accepted_tokens;
    accepted += result.session.accepted_tokens;
    copies += result.cache.copied_blocks;
  }
};

// Outputs that are alike, so that blocks of generated tokens are found, and of different lengths.
Trace AlikeTrace() {
  return test::Tokens(
      R"({"arrival_ms": 0, "prompt": [1,2,3,4,5], "output": [7,8,9,10,11,12,13,14]})"
      "\n"
      R"({"arrival_ms": 0, "prompt": [1,2,3,4,5], "output": [7,8,9,10,11,12,13,14]})"
      "\n"
      R"({"arrival_ms": 0, "prompt": [1,2,3,4,5,7,8,9], "output": [10,11,12]})"
      "\n"
      R"({"arrival_ms": 9e5, "prompt": [1,2,3,4,5,7,8,9,10,11,12], "output_length": 30})"
      "\n"
      R"({"arrival_ms": 9e5, "prompt": [1,2,3], "output_length": 1})"
      "\n"
      R"({"arrival_ms": 9e5, "prompt": [1,2,3,4,5,7,8], "output_length": 2})"
      "\n");
}

// No token identity: nothing is found cached, not even what a request had itself.
Trace BlindTrace() {
  std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (int i = 0; i < 5; ++i) text += "2023-11-16 18:17:00,21,30\n";
  Result<Trace> trace = ParseTrace(text, "made", {.format = TraceFormat::kAzure});
  REQUIRE(trace.ok());
  return *std::move(trace);
}

struct Pool {
  Trace trace;
  std::int64_t blocks;
  int block_size;
  std::int64_t chunk;
  Reuse reuse = Reuse::kBlock;
};

void CheckSpeculation(BackendKind backend) {
  const std::vector<Pool> pools = {
      {Workload("in=64,out=60,n=8,prefix=37"), 36, 16, 300},
      {Workload("in=64,out=60,n=8,prefix=37"), 36, 16, 300, Reuse::kToken},
      {Workload("in=30,out=40,n=6,prefix=20"), 25, 7, 25},
      {Workload("in=10,out=20,n=6,prefix=5"), 40, 1, 9},
      {Workload("in=33,out=50,n=8,prefix=32"), 40, 4, 64, Reuse::kToken},
      {AlikeTrace(), 24, 2, 40},
      {AlikeTrace(), 14, 3, 10, Reuse::kToken},
      {BlindTrace(), 18, 8, 30},
  };
  Used used;
  test::CaseCounter counter;
  for (const Pool& pool : pools) {
    for (const int drafts : {1, 3, 9}) {
      for (const double acceptance : {0.0, 0.6, 1.0}) {
        if (counter.LeaveOut()) continue;
        INFO(pool.blocks << " blocks of " << pool.block_size << ", " << drafts << " drafts, "
                         << acceptance);
        SimulatorConfig config = MakeConfig(backend, pool.blocks, pool.block_size);
        config.prefill_chunk = pool.chunk;
        config.reuse = pool.reuse;
        config.draft_tokens = drafts;
        config.acceptance = acceptance;
        config.seed = static_cast<std::uint64_t>(drafts);
        const SimulationResult result = RunChecked(pool.trace, config);
        CHECK(result.session.drafted_tokens > 0);
        if (acceptance == 0.0) CHECK(result.session.accepted_tokens == 0);
        if (acceptance == 1.0) {
          CHECK(result.session.accepted_tokens == result.session.drafted_tokens);
        }
        used.Add(result);
      }
    }
  }
  if (test::FewCases()) return;
  CHECK(used.preemptions > 20);
  CHECK(used.evictions > 20);
  CHECK(used.hits > 500);
  CHECK(used.recomputed > 200);
  CHECK(used.rejected > 1000);
  CHECK(used.accepted > 1000);
}

void CheckBeams(BackendKind backend) {
  const std::vector<Pool> pools = {
      {Workload("in=64,out=60,n=4,prefix=37"), 36, 16, 300},
      {Workload("in=64,out=60,n=4,prefix=37"), 36, 16, 300, Reuse::kToken},
      {Workload("in=30,out=40,n=4,prefix=20"), 45, 7, 25},
      {Workload("in=10,out=20,n=4,prefix=5"), 110, 1, 9},
      {Workload("in=33,out=30,n=5,prefix=32"), 60, 4, 64, Reuse::kToken},
      {AlikeTrace(), 70, 2, 40},
      {AlikeTrace(), 60, 3, 10, Reuse::kToken},
      {BlindTrace(), 30, 8, 30},
  };
  Used used;
  std::int64_t forks = 0;
  test::CaseCounter counter;
  for (const Pool& pool : pools) {
    for (const int beams : {2, 4}) {
      if (counter.LeaveOut()) continue;
      INFO(pool.blocks << " blocks of " << pool.block_size << ", " << beams << " beams");
      SimulatorConfig config = MakeConfig(backend, pool.blocks, pool.block_size);
      config.prefill_chunk = pool.chunk;
      config.reuse = pool.reuse;
      config.beams = beams;
      config.seed = static_cast<std::uint64_t>(beams);
      const SimulationResult result = RunChecked(pool.trace, config);
      CHECK(result.session.drafted_tokens == 0);
      used.Add(result);
      forks += result.session.forks;
    }
  }
  if (test::FewCases()) return;
  CHECK(used.preemptions > 10);
  CHECK(used.evictions > 20);
  CHECK(used.hits > 100);
  CHECK(used.recomputed > 100);
  CHECK(used.copies > 50);
  CHECK(forks > 200);
}

// Requests of random lengths with beginnings in common, some of whose outputs are given, and alike.
Trace RandomTrace(std::mt19937_64& random, int requests) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto list = [](std::int64_t first, std::int64_t count) {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) text += std::to_string(first + i) + ",";
    return text;
  };
  std::string text;
  for (int i = 0; i < requests; ++i) {
    const std::int64_t family = 100 * below(3);
    text += "{\"arrival_ms\": " + std::to_string(i * below(3)) + ", \"prompt\": [" +
            list(family, below(40)) + list(1000 + below(3), below(10)) + "7], ";
    const std::int64_t output = 1 + below(25);
    text += below(2) == 0 ? "\"output_length\": " + std::to_string(output)
                          : "\"output\": [" + list(5000, output - 1) + "7]";
    text += "}\n";
  }
  return test::Tokens(text);
}

// The most blocks that a request's beams may come to hold: the least pool that serves all.
std::int64_t LeastPool(const Trace& trace, std::int64_t block_size, std::int64_t beams) {
  std::int64_t least = 0;
  for (const TraceRequest& request : trace.requests()) {
    const std::int64_t rows = request.input_length + request.output_length - 1;
    const std::int64_t blocks = (rows + block_size - 1) / block_size;
    least = std::max(least, blocks + (beams - 1) * (blocks - request.input_length / block_size));
  }
  return least;
}

// A broken write is found in a run with either.
void CheckFaults(BackendKind backend) {
  test::CaseCounter counter;
  for (const InjectedFault fault :
       {InjectedFault::kStale, InjectedFault::kShift, InjectedFault::kBit}) {
    for (const int beams : {1, 3}) {
      for (const int block_size : {1, 4, 16}) {
        for (const std::int64_t step : {1, 2, 5, 12}) {
          if (counter.LeaveOut()) continue;
          INFO("fault " << static_cast<int>(fault) << ", beams " << beams << ", block "
                        << block_size << ", step " << step);
          SimulatorConfig config = MakeConfig(backend, 320 / block_size, block_size);
          config.check = true;
          config.fault = fault;
          config.fault_step = step;
          config.beams = beams;
          config.draft_tokens = beams == 1 ? 4 : 0;
          config.acceptance = 0.5;
          const SimulationResult result = Run(Workload("in=40,out=30,n=5,prefix=16"), config);
          CHECK(result.check->sequences == 5 * beams);
          CHECK(result.check->mismatches > 0);
          CHECK(result.check->fault_fired);
        }
      }
    }
  }
}

TEST_CASE("Every request is served by the least pool: random traces", "[check]") {
  std::mt19937_64 random(11);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Used used;
  for (int round = 0; round < 60; ++round) {
    const Trace trace = RandomTrace(random, 20);
    const auto block_size = static_cast<int>(1 + below(6));
    // Some with every row compared; the others are soon done.
    const bool check = round % 3 == 0;
    SimulatorConfig config =
        MakeConfig(check ? BackendKind::kCpu : BackendKind::kNull, 0, block_size);
    config.check = check;
    config.beams = static_cast<int>(1 + round % 4);
    config.draft_tokens = config.beams == 1 ? static_cast<int>(1 + below(5)) : 0;
    config.acceptance = 0.5;
    config.prefill_chunk = config.beams + below(30);
    config.max_batch = static_cast<int>(config.beams + below(9));
    config.seed = static_cast<std::uint64_t>(round);
    config.reuse = std::array{Reuse::kNone, Reuse::kBlock, Reuse::kToken}[below(3)];
    config.memory.unlimited = false;
    config.memory.num_blocks = LeastPool(trace, block_size, config.beams) + below(3);
    INFO("round " << round << ", beams " << config.beams);
    const SimulationResult result = Run(trace, config);
    CHECK(result.session.finished == trace.size());
    test::CheckEquation(trace, result, config.beams);
    if (check) CHECK(result.check->mismatches == 0);
    used.Add(result);

    config.backend = BackendKind::kNull;
    config.check = false;
    config.memory.num_blocks = LeastPool(trace, block_size, config.beams) - 1;
    if (config.memory.num_blocks > 0) CHECK(Run(trace, config).session.refused_never_fits > 0);
  }
  CHECK(used.preemptions > 200);
  CHECK(used.recomputed > 1000);
  CHECK(used.hits > 1000);
  CHECK(used.copies > 300);
}

TEST_CASE("As many drafts are accepted as are said to be", "[simulate]") {
  const Trace trace = Workload("in=10,out=1000,n=8");
  for (const double acceptance : {0.2, 0.8}) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 0);
    config.draft_tokens = 1;
    config.acceptance = acceptance;
    const SessionStats one = Run(trace, config).session;
    // A binomial number of accepted ones; six deviations.
    const auto drafted = static_cast<double>(one.drafted_tokens);
    const double six = 6 * std::sqrt(drafted * acceptance * (1 - acceptance));
    CHECK(drafted > 4000);
    CHECK(std::abs(static_cast<double>(one.accepted_tokens) - drafted * acceptance) < six);
    // Of three, p + p^2 + p^3 are accepted on average, each step 0 to 3: its deviation is at most
    // 1.5. The last steps of a request have fewer drafts: at most 3 less each.
    config.draft_tokens = 3;
    const SessionStats three = Run(trace, config).session;
    const double steps = static_cast<double>(three.drafted_tokens) / 3;
    const double mean = acceptance + acceptance * acceptance + std::pow(acceptance, 3);
    CHECK(std::abs(static_cast<double>(three.accepted_tokens) - steps * mean) <
          6 * 1.5 * std::sqrt(steps) + 3 * 8);
  }
}

TEST_CASE("Steps with drafts cost what their rows do", "[simulate]") {
  // All of 4 drafts stay: the prompt, then 5 tokens a step and 2 more, of which one was a draft.
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  config.draft_tokens = 4;
  config.acceptance = 1;
  const SimulationResult result = Run(Workload("in=32,out=13,n=1"), config);
  const Result<ModelCost> cost = MakeModelCost(config.model, config.dtype);
  REQUIRE(cost.ok());
  double seconds = 0;
  for (const auto& [rows, context, logits] :
       std::vector<std::array<std::int64_t, 3>>{{32, 32, 1}, {5, 37, 5}, {5, 42, 5}, {2, 44, 2}}) {
    StepWork work;
    work.Add(rows, context, true);
    work.logit_rows = logits;
    seconds += StepSeconds(*cost, config.device, work);
  }
  CHECK(result.session.steps == 4);
  CHECK(result.session.drafted_tokens == 9);
  CHECK(result.session.accepted_tokens == 9);
  CHECK(std::abs(result.virtual_s - seconds) <= 1e-14 * seconds);

  config.acceptance = 0;  // nothing is gained, and the rows are paid for
  const SimulationResult rejected = Run(Workload("in=32,out=13,n=1"), config);
  config.draft_tokens = 0;
  const SimulationResult plain = Run(Workload("in=32,out=13,n=1"), config);
  CHECK(rejected.session.steps == plain.session.steps);
  CHECK(rejected.session.tokens_appended == plain.session.tokens_appended);
  CHECK(rejected.virtual_s > plain.virtual_s);
}

TEST_CASE("What Simulate refuses of drafts and beams", "[simulate]") {
  const auto refused = [](auto change, const char* text) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
    config.max_batch = 20;
    change(config);
    const Result<SimulationResult> result = Simulate(Workload("in=8,out=8,n=2"), config);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == Code::kInvalidArgument);
    INFO(result.status().message());
    CHECK(result.status().message().find(text) != std::string::npos);
  };
  refused([](SimulatorConfig& c) { c.draft_tokens = -1; }, "draft_tokens = -1");
  refused([](SimulatorConfig& c) { c.draft_tokens = 65; }, "draft_tokens = 65");
  refused([](SimulatorConfig& c) { c.acceptance = 1.5; }, "acceptance = 1.5");
  refused([](SimulatorConfig& c) { c.acceptance = std::nan(""); }, "acceptance = nan");
  refused([](SimulatorConfig& c) { c.beams = 0; }, "beams = 0");
  refused([](SimulatorConfig& c) { c.beams = 21; }, "beams = 21; allowed: 1 to 20");
  refused([](SimulatorConfig& c) { c.beams = c.draft_tokens = 2; }, "both given");
}

TEST_CASE("A rejected row that is left where it stood is seen", "[check]") {
  // One request, whose drafts are all rejected. In step 4 nothing is written, so that row 22 stays
  // what step 3 tried there; step 5 writes the next ones.
  SimulatorConfig config = MakeConfig(BackendKind::kCpu, 10);
  config.draft_tokens = 2;
  config.check = true;
  CHECK(Run(Workload("in=20,out=10,n=1"), config).check->mismatches == 0);
  config.fault = InjectedFault::kStale;
  config.fault_step = 4;
  const SimulationResult result = Run(Workload("in=20,out=10,n=1"), config);
  CHECK(result.check->mismatches == std::ssize(config.model.layers));
  CHECK(result.check->fault_fired);
}

TEST_CASE("Rejected rows are gone, whatever is preempted and evicted", "[check]") {
  CheckSpeculation(BackendKind::kCpu);
}

TEST_CASE("Beams share, part and are restored, and every row is right", "[check]") {
  CheckBeams(BackendKind::kCpu);
}

TEST_CASE("A broken write is seen among drafts and beams", "[check]") {
  CheckFaults(BackendKind::kCpu);
}

TEST_CASE("On CUDA too drafts and beams leave every row right", "[check]") {
  if (!Device::Create(BackendKind::kCuda).ok()) LARIAT_SKIP("no CUDA device");
  CheckSpeculation(BackendKind::kCuda);
  CheckBeams(BackendKind::kCuda);
  CheckFaults(BackendKind::kCuda);
}

}  // namespace
}  // namespace lariat
