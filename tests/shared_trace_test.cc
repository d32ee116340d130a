// SPDX-License-Identifier: Apache-2.0
// The public traces: answers of an independent count, and the time and memory that a run takes.
#include <sys/resource.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <string>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/sanitized.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::MakeConfig;
using test::Run;

// Sanitized and unoptimised runs take some ten times as long; they read the shorter trace only.
#ifdef NDEBUG
constexpr bool kSlow = testing::kSanitized;
#else
constexpr bool kSlow = true;
#endif

std::string PathOf(const std::string& name) {
  return std::string(LARIAT_SHARED_DATA) + "/traces/mooncake/" + name + "_trace.jsonl";
}

bool HasTraces() {
  return std::filesystem::exists(PathOf("conversation")) &&
         std::filesystem::exists(PathOf("synthetic"));
}

constexpr const char* kAbsent = "the public traces are absent";

// limit 0: all of it.
Trace Load(const std::string& name, std::int64_t limit = 0) {
  Result<Trace> trace = ReadTrace(PathOf(name), {.limit = limit, .strict = true});
  INFO(trace.status().ToString());
  REQUIRE(trace.ok());
  return *std::move(trace);
}

// First, because it measures the most memory that this process ever had.
TEST_CASE("The whole conversation trace at once, in seconds and little memory", "[shared]") {
  if (!HasTraces()) LARIAT_SKIP(kAbsent);
  // Of this process: what else the machine does must not count.
  const std::clock_t start = std::clock();
  const Trace trace = Load("conversation", kSlow ? 3000 : 0);
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 0);
  Result<ModelConfig> model = ModelPreset("llama-3.1-8b");
  REQUIRE(model.ok());
  config.model = *std::move(model);
  config.memory = {.bytes = std::int64_t{60} << 30};
  config.max_length = config.model.max_position_embeddings;
  const SimulationResult result = Run(trace, config);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;

  CHECK(result.session.finished == (kSlow ? 3000 : 12'031));
  CHECK(result.session.refused_max_length + result.session.refused_never_fits == 0);
  CHECK(result.cache.total_blocks == 30'720);
  CHECK(result.cache.peak_used_blocks <= 30'720);
  test::CheckEquation(trace, result);
  if (kSlow) return;
  CHECK(seconds <= 10);
  rusage usage{};
  REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
  CHECK(usage.ru_maxrss < 1024 * 1024);  // KiB
}

struct Answer {
  const char* trace;
  int block_size;
  std::int64_t blocks;  // 0: unlimited
  std::int64_t hits;
  std::int64_t evicted;
  Reuse reuse = Reuse::kBlock;
};

TEST_CASE("Hits and evictions of the public traces, one request after another", "[shared]") {
  if (!HasTraces()) LARIAT_SKIP(kAbsent);
  const Answer answers[] = {
      {"synthetic", 512, 0, 39'802'880, 0},
      {"synthetic", 64, 0, 39'846'336, 0},
      {"synthetic", 16, 0, 39'850'800, 0},
      {"synthetic", 512, 4000, 15'362'048, 84'702},
      {"synthetic", 16, 0, 39'852'448, 0, Reuse::kToken},
      {"synthetic", 64, 0, 39'852'448, 0, Reuse::kToken},
      {"conversation", 16, 0, 54'098'293, 0, Reuse::kToken},
      {"conversation", 512, 0, 54'063'104, 0},
      {"conversation", 64, 0, 54'093'952, 0},
      {"conversation", 16, 0, 54'097'440, 0},
      {"conversation", 512, 4000, 12'881'408, 255'624},
      {"conversation", 64, 40000, 16'364'992, 2'025'000},
  };
  for (const Answer& answer : answers) {
    INFO(answer.trace << ", block " << answer.block_size << ", pool " << answer.blocks);
    if (kSlow && (std::string(answer.trace) != "synthetic" || answer.block_size < 512)) continue;
    const Trace trace = Load(answer.trace);
    SimulatorConfig config = MakeConfig(BackendKind::kNull, answer.blocks, answer.block_size);
    config.concurrency = 1;
    config.reuse = answer.reuse;
    const SimulationResult result = Run(trace, config);
    // A pool that is bounded may differ in how a block that is computed again enters the LRU order.
    const double allowed = answer.blocks == 0 ? 0 : 0.001;
    const auto near = [&](std::int64_t value, std::int64_t wanted) {
      return std::abs(static_cast<double>(value - wanted)) <= allowed * static_cast<double>(wanted);
    };
    CHECK(near(result.session.hit_tokens, answer.hits));
    CHECK(near(result.cache.evicted_blocks, answer.evicted));
    CHECK(result.session.finished == trace.size());
    CHECK(result.session.preemptions == 0);
    CHECK(result.session.tokens_appended ==
          trace.input_tokens() + trace.output_tokens() - trace.size() - result.session.hit_tokens);
  }
}

TEST_CASE("The check on a real trace, in a pool that evicts", "[shared]") {
  if (!HasTraces()) LARIAT_SKIP(kAbsent);
  Result<Trace> trace = ReadTrace(PathOf("conversation"), {.limit = kSlow ? 6 : 24});
  REQUIRE(trace.ok());
  SimulatorConfig config = MakeConfig(BackendKind::kCpu, 1600);
  config.check = true;
  const SimulationResult result = Run(*trace, config);
  CHECK(result.check->mismatches == 0);
  CHECK(result.check->sequences == result.session.finished);
  CHECK(result.session.finished >= trace->size() - 3);  // some are longer than the pool
  CHECK(result.cache.evicted_blocks > 0);
  test::CheckEquation(*trace, result);
}

}  // namespace
}  // namespace lariat
