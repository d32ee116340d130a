// SPDX-License-Identifier: Apache-2.0
// Traces and configurations for tests of Simulate.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "lariat/simulator.h"
#include "support/catch.h"

namespace lariat::test {

inline Trace Workload(const std::string& spec) {
  Result<Trace> trace = MakeWorkload(spec);
  REQUIRE(trace.ok());
  return *std::move(trace);
}

inline Trace Tokens(const std::string& text) {
  Result<Trace> trace = ParseTrace(text, "made", {.format = TraceFormat::kTokens, .strict = true});
  REQUIRE(trace.ok());
  return *std::move(trace);
}

inline Trace SmallTrace() {
  Result<Trace> trace = ReadTrace(std::string(LARIAT_TEST_DATA).append("/mooncake_small.jsonl"));
  REQUIRE(trace.ok());
  return *std::move(trace);
}

// blocks 0: unlimited.
inline SimulatorConfig MakeConfig(BackendKind backend, std::int64_t blocks, int block_size = 16) {
  SimulatorConfig config;
  Result<ModelConfig> model = ModelPreset("smollm2-135m");
  REQUIRE(model.ok());
  config.model = *std::move(model);
  Result<DeviceSpec> device = LoadDevice("h200");
  REQUIRE(device.ok());
  config.device = *std::move(device);
  config.backend = backend;
  config.memory.num_blocks = blocks;
  config.memory.unlimited = blocks == 0;
  config.block_size = block_size;
  return config;
}

// DeepSeek-V3 of three layers: latents of 512, k_pe of 64.
inline ModelConfig SmallMla() {
  Result<ModelConfig> model = ModelPreset("deepseek-v3");
  REQUIRE(model.ok());
  model->layers.resize(3);
  model->num_layers = 3;
  return *std::move(model);
}

inline SimulationResult Run(const Trace& trace, const SimulatorConfig& config) {
  Result<SimulationResult> result = Simulate(trace, config);
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  return *std::move(result);
}

// tokens_appended = sum(input + output - 1) - hit_tokens + recomputed_tokens over what was served,
// in total and for each request; and each request has its whole output.
// With beams each of them has rows for its own output.
inline void CheckEquation(const Trace& trace, const SimulationResult& result,
                          std::int64_t beams = 1) {
  std::int64_t rows = 0;
  std::int64_t hits = 0;
  std::int64_t recomputed = 0;
  std::int64_t prompts = 0;
  for (const RequestResult& request : result.requests) {
    if (request.outcome != Outcome::kFinished) continue;
    const TraceRequest& asked = trace.requests()[request.tag];
    CHECK(request.output_tokens == asked.output_length);
    CHECK(request.hit_tokens <= asked.input_length - 1);
    rows += asked.input_length + beams * (asked.output_length - 1);
    prompts += asked.input_length;
    hits += request.hit_tokens;
    recomputed += request.recomputed_tokens;
  }
  CHECK(result.session.hit_tokens == hits);
  CHECK(result.session.recomputed_tokens == recomputed);
  CHECK(result.session.lookup_tokens == prompts);
  CHECK(result.session.tokens_appended == rows - hits + recomputed);
  // The cache's own count.
  CHECK(result.cache.tokens_committed == result.session.tokens_appended);
}

}  // namespace lariat::test
