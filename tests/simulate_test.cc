// SPDX-License-Identifier: Apache-2.0
// Simulate against answers that were counted by hand, and against its own equations.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::CheckEquation;
using test::MakeConfig;
using test::Run;
using test::SmallTrace;
using test::Tokens;
using test::Workload;

// A few roundings of double apart: sums of a handful of terms in another order.
bool Near(double value, double wanted) { return std::abs(value - wanted) <= 1e-14 * wanted; }

TEST_CASE("Requests one after another: hits of the small trace", "[simulate]") {
  // tests/data/README.md counts the hits. Rows: input + output - 1 summed is 5,359.
  struct Row {
    int block_size;
    std::int64_t hits;
  };
  for (const Row row : {Row{16, 2720}, Row{64, 2624}, Row{512, 2048}}) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 0, row.block_size);
    config.concurrency = 1;
    const SimulationResult result = Run(SmallTrace(), config);
    CHECK(result.session.hit_tokens == row.hits);
    CHECK(result.session.lookup_tokens == 5348);
    CHECK(result.session.tokens_appended == 5359 - row.hits);
    CHECK(result.session.finished == 6);
    CHECK(result.cache.evicted_blocks == 0);
    // One prefill each (2,048 rows of budget are enough), and output - 1 decodes.
    CHECK(result.session.steps == 17);
    // 30 layers of K and V, 3 heads of 64 elements of 2 bytes.
    CHECK(result.bytes_per_token == 23040);
    CHECK(result.bytes_per_block == 23040 * row.block_size);
  }
}

TEST_CASE("Prompts in chunks take more steps and append the same", "[simulate]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 0);
  config.concurrency = 1;
  config.prefill_chunk = 300;
  const SimulationResult result = Run(SmallTrace(), config);
  // Rows to compute: 1024, 276, 16, 700, 12, 600: 4 + 1 + 1 + 3 + 1 + 2 chunks, and 17 - 6 decodes.
  CHECK(result.session.steps == 12 + 11);
  CHECK(result.session.tokens_appended == 5359 - 2720);
}

TEST_CASE("A pool that is too small for all evicts, and never what is needed", "[simulate]") {
  // Blocks of 16, 82 of them, one request after another.
  // 0: 1,027 rows in 65 blocks; 64 full ones stay cached.
  // 1: finds those, takes the 18 free ones for its 1,302 rows: all are used. 81 stay, 1 is free.
  // 2: finds 63, needs 65 for 1,025 rows: 1 free, 1 goes. Block 64, computed again, is merged into
  //    the cached one, and the last is partial: 80 stay, 2 are free.
  // 3: 704 rows in 44 blocks: 2 free, 42 go. All 44 are full: 38 + 44 stay, none is free.
  // 4: finds 43, needs 44 for 700 rows: 1 goes; it is partial, so 81 stay and 1 is free.
  // 5: 601 rows in 38 blocks: 1 free, 37 go.
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 82);
  config.concurrency = 1;
  const SimulationResult result = Run(SmallTrace(), config);
  CHECK(result.cache.peak_used_blocks == 82);
  CHECK(result.cache.evicted_blocks == 1 + 42 + 1 + 37);
  CHECK(result.session.hit_tokens == 2720);
  CheckEquation(SmallTrace(), result);
}

TEST_CASE("Two requests in a pool for one and a bit: preemption", "[simulate]") {
  // As "The latest arrival gives way" in session_test.cc.
  SimulatorConfig config = MakeConfig(BackendKind::kCpu, 5, 4);
  config.check = true;
  const Trace trace = Workload("in=8,out=8,n=2");
  const SimulationResult result = Run(trace, config);
  CHECK(result.session.preemptions == 1);
  CHECK(result.session.steps == 15);
  CHECK(result.session.recomputed_tokens == 4);
  CHECK(result.session.hit_tokens == 0);
  CHECK(result.session.tokens_appended == 34);
  CHECK(result.cache.evicted_blocks == 3);
  CHECK(result.cache.peak_used_blocks == 4);
  CHECK(result.check->sequences == 2);
  CHECK(result.check->mismatches == 0);
}

TEST_CASE("Times are those of the cost model", "[simulate]") {
  const SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  const SimulationResult result = Run(Workload("in=32,out=3,n=1"), config);
  const Result<ModelCost> cost = MakeModelCost(config.model, config.dtype);
  REQUIRE(cost.ok());
  const auto seconds = [&](std::int64_t rows, std::int64_t context) {
    StepWork work;
    work.Add(rows, context, true);
    return StepSeconds(*cost, config.device, work);
  };
  const double prefill = seconds(32, 32);
  const double decodes = seconds(1, 33) + seconds(1, 34);
  CHECK(Near(result.virtual_s, prefill + decodes));
  CHECK(Near(result.ttft->mean, 1e3 * prefill));
  CHECK(Near(result.tpot->p99, 1e3 * decodes / 2));
  CHECK(Near(result.e2e->max, 1e3 * (prefill + decodes)));
  CHECK(result.queue->max == 0.0);
  CHECK(Near(result.output_tok_s, 3 / (prefill + decodes)));
  CHECK(Near(result.busy_fraction, 1.0));
}

TEST_CASE("Percentiles are values that occurred, by nearest rank", "[simulate]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 0);
  config.concurrency = 1;
  const SimulationResult result = Run(SmallTrace(), config);
  std::vector<double> e2e;
  for (const RequestResult& r : result.requests) e2e.push_back(1e3 * (r.end_s - r.arrival_s));
  std::sort(e2e.begin(), e2e.end());
  REQUIRE(e2e.size() == 6);
  CHECK(e2e[2] < e2e[3]);
  CHECK(result.e2e->p50 == e2e[2]);  // ceil(0.5 * 6) = 3rd
  CHECK(result.e2e->p90 == e2e[5]);  // ceil(0.9 * 6) = 6th
  CHECK(result.e2e->p99 == e2e[5]);
  CHECK(result.e2e->max == e2e[5]);
  CHECK(Near(result.e2e->mean, std::accumulate(e2e.begin(), e2e.end(), 0.0) / 6));
}

TEST_CASE("Arrivals go by the trace's clock, counted from the first", "[simulate]") {
  const Trace trace = test::Tokens(
      "{\"arrival_ms\": 5000, \"prompt\": [1, 2, 3], \"output_length\": 2}\n"
      "{\"arrival_ms\": 65000, \"prompt\": [4, 5, 6], \"output_length\": 2}\n");
  const SimulationResult result = Run(trace, MakeConfig(BackendKind::kNull, 100));
  REQUIRE(result.requests.size() == 2);
  CHECK(result.requests[0].arrival_s == 0.0);
  CHECK(result.requests[1].arrival_s == 60.0);
  CHECK(result.requests[1].admitted_s == 60.0);
  CHECK(result.virtual_s == result.requests[1].end_s);
  CHECK(result.arrival_span_s == 60.0);
  REQUIRE(result.offered.has_value());
  CHECK(Near(*result.offered, result.session.busy_s / 60.0));
  CHECK_FALSE(result.saturated);
  CHECK(result.busy_fraction < 0.1);
}

TEST_CASE("More work than time between arrivals is saturation", "[simulate]") {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "{\"timestamp\": " + std::to_string(i) +
            ", \"input_length\": 2048, \"output_length\": "
            "20, \"hash_ids\": [" +
            std::to_string(4 * i) + "," + std::to_string(4 * i + 1) + "," +
            std::to_string(4 * i + 2) + "," + std::to_string(4 * i + 3) + "]}\n";
  }
  const Result<Trace> trace = ParseTrace(text, "made", {.format = TraceFormat::kMooncake});
  REQUIRE(trace.ok());
  const SimulationResult result = Run(*trace, MakeConfig(BackendKind::kNull, 10000));
  CHECK(result.saturated);
  CHECK(*result.offered > 1.0);

  // Everything at once has no span to measure; one request alone is no load.
  const SimulationResult at_once =
      Run(Workload("in=8,out=2,n=2"), MakeConfig(BackendKind::kNull, 100));
  CHECK(at_once.saturated);
  CHECK_FALSE(at_once.offered.has_value());
  const SimulationResult alone =
      Run(Workload("in=8,out=2,n=1"), MakeConfig(BackendKind::kNull, 100));
  CHECK_FALSE(alone.saturated);
}

TEST_CASE("A closed loop sends the next when one has ended", "[simulate]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  config.concurrency = 3;
  const SimulationResult result = Run(Workload("in=16,out=4,n=9"), config);
  CHECK(result.session.finished == 9);
  // Three at a time, all alike: they begin and end together, in 4 steps each.
  CHECK(result.session.steps == 12);
  CHECK(result.queue->max == 0.0);
  CHECK_FALSE(result.offered.has_value());
  CHECK_FALSE(result.saturated);
  for (std::size_t i = 3; i < 9; ++i) {
    CHECK(result.requests[i].arrival_s == result.requests[i - 3].end_s);
  }
}

TEST_CASE("Requests that are too long are refused, and the rest is served", "[simulate]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 70);
  config.concurrency = 1;
  config.max_length = 1100;
  const SimulationResult result = Run(SmallTrace(), config);
  CHECK(result.session.refused_max_length == 1);  // 1,303 tokens
  CHECK(result.session.refused_never_fits == 0);  // 1,027 rows take 65 blocks
  CHECK(result.session.finished == 5);
  CHECK(result.session.lookup_tokens == 5348 - 1300);
  CheckEquation(SmallTrace(), result);

  config.memory.num_blocks = 64;
  const SimulationResult smaller = Run(SmallTrace(), config);
  CHECK(smaller.session.refused_max_length == 1);
  CHECK(smaller.session.refused_never_fits == 2);  // 1,027 and 1,025 rows take 65 blocks
  CHECK(smaller.session.finished == 3);
  CheckEquation(SmallTrace(), smaller);

  config.max_length = 1;  // nobody is served
  const SimulationResult none = Run(SmallTrace(), config);
  CHECK(none.session.refused_max_length == 6);
  CHECK(none.session.steps == 0);
  CHECK_FALSE(none.e2e.has_value());
}

TEST_CASE("A trace without token identity has no prefix to find", "[simulate]") {
  const Result<Trace> trace = ReadTrace(std::string(LARIAT_TEST_DATA).append("/azure_small.csv"));
  REQUIRE(trace.ok());
  const SimulationResult result = Run(*trace, MakeConfig(BackendKind::kNull, 100));
  CHECK_FALSE(result.has_prefix);
  CHECK(result.session.hit_tokens == 0);
  CHECK(result.session.tokens_appended == 1000 + 100 - 4);
}

TEST_CASE("Tenants do not share prompts", "[simulate]") {
  const auto line = [](const char* tenant) {
    return std::string(
               "{\"arrival_ms\": 0, \"prompt\": [1,2,3,4,5,6,7,8,9], \"output_length\": 1, "
               "\"tenant\": \"") +
           tenant + "\"}\n";
  };
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100, 4);
  config.concurrency = 1;
  const SimulationResult result = Run(test::Tokens(line("a") + line("b") + line("a")), config);
  CHECK(result.session.hit_tokens == 8);
}

TEST_CASE("Rows are counted once, whatever is preempted: random traces", "[simulate]") {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::int64_t preemptions = 0;
  std::int64_t hits = 0;
  std::int64_t recomputed = 0;
  for (int round = 0; round < 60; ++round) {
    // Prompts share beginnings of a few lengths; some outputs are given, and alike.
    std::string text;
    for (int i = 0; i < 30; ++i) {
      const std::int64_t family = below(3);
      const std::int64_t shared = below(40);
      const std::int64_t own = 1 + below(10);
      text += "{\"arrival_ms\": " + std::to_string(i * below(3)) + ", \"prompt\": [";
      for (std::int64_t t = 0; t < shared; ++t) text += std::to_string(family * 100 + t) + ",";
      for (std::int64_t t = 0; t < own; ++t) {
        text += std::to_string(1000 + below(3) + t) + (t + 1 < own ? "," : "");
      }
      text += "], \"output\": [";
      const std::int64_t output = 1 + below(25);
      for (std::int64_t t = 0; t < output; ++t) {
        text += std::to_string(5000 + t) + (t + 1 < output ? "," : "");
      }
      text += "]}\n";
    }
    const int block_size = static_cast<int>(1 + below(6));
    SimulatorConfig config =
        MakeConfig(BackendKind::kNull, (90 + below(100)) / block_size, block_size);
    config.prefill_chunk = 1 + below(30);
    config.max_batch = static_cast<int>(1 + below(8));
    const Trace trace = test::Tokens(text);
    const SimulationResult result = Run(trace, config);
    CHECK(std::ssize(result.requests) == trace.size());
    CheckEquation(trace, result);
    preemptions += result.session.preemptions;
    hits += result.session.hit_tokens;
    recomputed += result.session.recomputed_tokens;
  }
  // Else the rounds would not have tried what they are for.
  CHECK(preemptions > 100);
  CHECK(hits > 1000);
  CHECK(recomputed > 100);
}

TEST_CASE("With priorities the trace says whose blocks stay", "[simulate]") {
  // Blocks of 16, a pool of 4. The first request's two full blocks are asked for again at the end;
  // what comes between pushes two out: the oldest, or the ones worth least.
  const auto line = [](int ms, int first, int prompt, const std::string& more) {
    std::ostringstream text;
    text << R"({"arrival_ms": )" << ms << R"(, "prompt": [)" << first;
    for (int t = 1; t < prompt; ++t) text << ", " << first + t;
    text << R"(], "output_length": 1)" << more << "}\n";
    return text.str();
  };
  const auto hits = [&](EvictionPolicy policy, const std::string& priority) {
    const Trace trace = Tokens(line(0, 0, 32, priority) + line(1, 1000, 32, "") +
                               line(2, 2000, 32, "") + line(3, 0, 33, ""));
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 4);
    config.concurrency = 1;
    config.eviction = policy;
    const SimulationResult result = Run(trace, config);
    CheckEquation(trace, result);
    return result.session.hit_tokens;
  };
  const std::string high = R"(, "priority": 1)", low = R"(, "priority": -40)";
  CHECK(hits(EvictionPolicy::kLru, high) == 0);
  CHECK(hits(EvictionPolicy::kPriority, "") == 0);
  CHECK(hits(EvictionPolicy::kPriority, high) == 32);
  CHECK(hits(EvictionPolicy::kPriority, low) == 0);
  CHECK(hits(EvictionPolicy::kPriority, R"(, "priority": 2000000000)") == 32);
}

TEST_CASE("What Simulate refuses", "[simulate]") {
  const auto refused = [](const Trace& trace, const SimulatorConfig& config, const char* text) {
    const Result<SimulationResult> result = Simulate(trace, config);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == Code::kInvalidArgument);
    CHECK(result.status().message().find(text) != std::string::npos);
  };
  const Trace trace = Workload("in=8,out=8,n=2");
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  refused(Trace(), config, "no requests");
  config.check = true;
  refused(trace, config, "null backend");
  config.check = false;
  config.fault = InjectedFault::kBit;
  refused(trace, config, "check");
  config.fault = InjectedFault::kNone;
  config.concurrency = -1;
  refused(trace, config, "concurrency = -1");
  config.concurrency = 0;
  config.max_batch = 0;
  CHECK_FALSE(Simulate(trace, config).ok());
}

}  // namespace
}  // namespace lariat
