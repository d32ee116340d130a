// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "lariat/simulator.h"
#include "lariat/status.h"
#include "lariat/trace.h"

namespace CLI {
class App;
}

namespace lariat::tools {

// The flags of `lariat simulate`, as written.
struct SimulateOptions {
  // --- what is replayed ---
  std::string trace;
  std::string workload;
  std::string format = "auto";
  bool strict = false;
  std::int64_t limit = 0;  // 0: all
  double rate = 1.0;
  std::int64_t concurrency = 0;  // 0: open loop
  bool sequential = false;
  bool follow_turns = false;

  // --- on what ---
  std::string model = "llama-3.1-8b";
  std::string dtype;  // empty: the model's
  std::string device = "h200";
  std::string backend = "auto";

  // --- the cache ---
  int block_size = 0;  // 0: by the model
  std::string layout = "block-major";
  std::string order = "nhd";
  std::int64_t blocks = 0;  // 0: by memory
  std::string memory = "8GiB";
  bool unlimited = false;
  std::string policy = "lru";
  std::string preempt = "recompute";
  std::string reuse = "block";
  std::string host_memory;  // empty: no host tier
  std::string write_policy = "back";
  bool late_copies = false;

  // --- the session ---
  int max_batch = 256;
  std::int64_t prefill_chunk = 2048;
  std::string max_length = "model";  // a number, "model" or "none"
  std::string speculate;             // "K:P"; empty: none
  int beams = 0;                     // 0: one, and nothing is said of it

  // --- data and checks ---
  std::uint64_t seed = 0;
  bool check = false;
  std::string fault;  // empty: none
  std::int64_t fault_step = 1;

  // --- results ---
  std::string json;          // empty: none; "-": stdout
  std::string requests_out;  // empty: none
  std::string trace_out;     // empty: none

  std::string not_built;  // a flag of a later version that was given
};

void DefineSimulateOptions(CLI::App& command, SimulateOptions& options);

// What the flags name: loads the trace, the model and the device. Everything is checked.
struct SimulateInputs {
  Trace trace;
  SimulatorConfig config;
};
Result<SimulateInputs> LoadSimulateInputs(const SimulateOptions& options);

}  // namespace lariat::tools
