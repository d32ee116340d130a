// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lariat/cost_model.h"
#include "lariat/kv_cache.h"
#include "lariat/model.h"
#include "lariat/session.h"
#include "lariat/status.h"
#include "lariat/trace.h"
#include "lariat/types.h"

// Replays a trace through a Session and a KVCache, as `lariat simulate` does: the cache is real,
// the model is a cost model and, where the backend has memory, made-up K and V rows. Part of
// lariat::session. docs/simulator.md says what each figure means.

namespace lariat {

// Faults that a checked run can be given, so that the check can be seen to fail.
enum class InjectedFault : std::uint8_t {
  kNone,
  kStale,  // the write of one block's rows is skipped
  kShift,  // they are written one slot off
  kBit,    // one bit of one row is flipped
};

// One step of a simulation.
struct SimulatedStep {
  std::int64_t number = 0;  // counts up from 1
  double begin_s = 0, end_s = 0;
  std::int64_t tokens = 0;      // rows, drafts included
  std::int64_t sequences = 0;   // each beam counts
  std::int64_t drafts = 0;      // of the rows
  std::int64_t hit_tokens = 0;  // that this step added to SessionStats::hit_tokens
};

// What happens in a simulation, told as it happens. Times are on its clock, which is not the
// machine's; requests are told by their index in the trace, as RequestResult::tag is.
class SimulationObserver {
 public:
  virtual ~SimulationObserver() = default;
  // A step has ended; with the counters as it left them.
  virtual void OnStep(const SimulatedStep&, const Stats&, const SessionStats&) {}
  // As SessionObserver's.
  virtual void OnPhase(std::int64_t /*request*/, RequestPhase, double /*now_s*/) {}
  virtual void OnTransfer(const TransferWork&, double /*begin_s*/, double /*end_s*/) {}
  virtual void OnDone(const RequestResult&) {}
};

// A model, a device and how its cache and scheduler are set.
struct SimulatorConfig {
  ModelConfig model;
  DeviceSpec device;  // whose time is simulated; the backend's own does not matter

  // --- the cache ---
  BackendKind backend = BackendKind::kAuto;
  DType dtype = DType::kBF16;
  MemoryConfig memory;
  int block_size = 16;
  Layout layout = Layout::kBlockMajor;
  Order order = Order::kNHD;
  Reuse reuse = Reuse::kBlock;  // of traces with token identity
  HostTier host;                // a second tier in host memory
  // On cpu and null: copies between the tiers complete only when somebody waits for them, in an
  // order drawn by the seed, and what they write is poisoned till then.
  bool late_copies = false;
  // kPriority: a request's blocks are worth kDefaultPriority + TraceRequest::priority, at least 0
  // and at most kMaxPriority.
  EvictionPolicy eviction = EvictionPolicy::kLru;

  // --- the session ---
  int max_batch = 256;
  std::int64_t prefill_chunk = 2048;  // rows of a step
  std::int64_t max_length = 0;        // prompt + output of a request; 0: the trace's longest
  std::int64_t concurrency = 0;       // requests that wait or run at any time; 0: as the trace says
  Preempt preempt = Preempt::kRecompute;
  // A request with TraceRequest::parent comes when that one has ended, and not before its own time.
  bool follow_turns = false;

  // Speculation: drafts that each decode step of a request proposes, 0..64 (0: none), each one
  // accepted with this probability, 0..1, until the first that is not. Not with beams.
  int draft_tokens = 0;
  double acceptance = 0;
  // Sequences that each request forks into behind its prompt, 1..64; not more than max_batch or
  // prefill_chunk.
  int beams = 1;

  // --- the data ---
  std::uint64_t seed = 0;  // of the K and V rows, of what is accepted, and of beams
  bool check = false;      // compare every row of every sequence; not on the null backend
  InjectedFault fault = InjectedFault::kNone;  // needs check
  std::int64_t fault_step = 1;                 // from this step on, >= 1

  SimulationObserver* observer = nullptr;  // borrowed; may be null
  // Told after each step how many of the trace's requests have ended; may be empty.
  std::function<void(std::int64_t ended, std::int64_t total)> progress;
};

// Of one latency over all finished requests.
struct LatencySummary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;  // milliseconds
};

// What the comparison of the stored rows with the trace found.
struct CheckResult {
  std::int64_t sequences = 0;   // of finished requests, each beam, that were compared
  std::int64_t mismatches = 0;  // rows of a layer that differ, preempted and dropped ones' too
  bool fault_fired = false;     // the injected one
};

// What a simulation counted. Latencies and throughput are in virtual time.
struct SimulationResult {
  BackendKind backend = BackendKind::kNull;
  std::string backend_name;  // "cpu", "NVIDIA H200"
  SessionStats session;
  Stats cache;
  std::int64_t bytes_per_token = 0;
  std::int64_t bytes_per_block = 0;
  bool has_prefix = false;  // the trace has token identity

  double wall_s = 0;               // of the whole replay
  std::optional<double> device_s;  // of which in the backend's appends and copies; null: none
  double virtual_s = 0;            // from the first arrival to the last end
  double arrival_span_s = 0;       // from the first arrival to the last, as they came
  std::optional<double> offered;   // busy time over arrival span; none where there is no span
  bool saturated = false;
  double busy_fraction = 0;
  double output_tok_s = 0;
  double req_s = 0;

  std::optional<LatencySummary> queue, ttft, tpot, e2e;  // none where no request counts
  std::optional<CheckResult> check;
  std::vector<RequestResult> requests;  // in order of their end; tag: index in the trace
};

// Errors: kInvalidArgument (a field out of range; check on the null backend; a fault without
//   check), and what KVCache::Create, MakeModelCost and Session answer.
Result<SimulationResult> Simulate(const Trace& trace, const SimulatorConfig& config);

}  // namespace lariat
