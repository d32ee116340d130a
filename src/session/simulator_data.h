// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lariat/cost_model.h"
#include "lariat/kv_cache.h"
#include "lariat/model.h"
#include "lariat/session.h"
#include "lariat/simulator.h"
#include "lariat/status.h"
#include "lariat/trace.h"
#include "session/simulator_fault.h"
#include "session/simulator_script.h"
#include "session/synthetic_kv.h"

namespace lariat::session {

// The keys and values, or the latents, of a simulated model, where the backend has memory: makes
// them from the token ids, appends them, and compares what is stored with what the trace says must
// be stored.
// Threads: one.
class SimulatedData {
 public:
  struct Options {
    std::uint64_t seed = 0;
    MlaDims mla;  // of MLA layers
    InjectedFault fault = InjectedFault::kNone;
    std::int64_t fault_step = 1;
    bool check = false;  // windows of prefix hits, at the first step of a sequence
  };
  // Errors: kResourceExhausted (staging memory), kDeviceError, kInvalidArgument (a rope).
  // script: must outlive this.
  static Result<std::unique_ptr<SimulatedData>> Create(KVCache& cache, const Trace& trace,
                                                       const OutputScript& script,
                                                       const Options& options);

  // Every layer's rows of a step; returns when they are stored.
  Status AppendStep(const ExecutorStep& step);
  // What the step's output made of its rows: which are kept, and who goes on from whom.
  void EndStep(const ExecutorStep& step, const ExecutorOutput& output);

  // Compares a sequence's rows in every layer, bit for bit. The token ids are those of the trace
  // and the script for a beam that has put out `generated` tokens, never those that the cache was
  // given.
  Status CheckSequence(const SequenceEnd& end, std::int64_t generated);

  CheckResult check_result() const;
  double device_s() const { return device_s_; }  // wall seconds of uploads and appends

 private:
  // One layer's rows on their way to the device; MLA's are K's. On the CPU, host and device are
  // one.
  struct Stage {
    DeviceBuffer k_host, v_host, k_device, v_device;
  };
  struct LayerShape {
    bool mla = false;
    int heads = 0;
    int k_dim = 0;
    int v_dim = 0;
    int rope = -1;
    AttentionWindow window;  // tokens 0: none
  };

  SimulatedData(KVCache& cache, const Trace& trace, const OutputScript& script,
                const Options& options);
  Status MakeStages();
  Status MakeRopes();
  Status MakeNormWeights();
  std::size_t NormWords() const;  // of one layer in norm_host_
  void MakeChains(const ExecutorStep& step);
  Status AppendLayer(const ExecutorStep& step, int layer);
  void FillStage(const Stage& stage, int layer);
  Status Append(const ExecutorStep& step, int layer, const void* k, const void* v);
  void FillExpected(std::span<const std::uint64_t> chains, int layer, std::int64_t first);
  std::int64_t CompareRows(int layer, std::int64_t first, std::int64_t count);
  // Compares a layer's rows [first, end) of a sequence whose chains are expected_chains_.
  Result<std::int64_t> CheckRows(SequenceId sequence, int layer, std::int64_t first,
                                 std::int64_t end);
  Status CheckHit(const ExecutorItem& item);
  std::uint64_t& Chain(const ExecutorItem& item, int beam) {
    return running_[item.tag * static_cast<std::size_t>(script_.beams()) +
                    static_cast<std::size_t>(beam)];
  }
  std::size_t KeyBytes(const LayerShape& shape) const;
  std::size_t ValueBytes(const LayerShape& shape) const;

  // --- constant after Create ---
  KVCache& cache_;
  const OutputScript& script_;
  const DType dtype_;
  const std::uint64_t chain_start_;
  const int kv_lora_rank_;  // of MLA layers
  const float norm_eps_;    // of their norms
  const bool checks_hits_;
  bool uploads_ = false;  // host and device memory are two
  std::vector<LayerShape> layers_;
  std::vector<std::uint32_t> norm_host_;  // raw: [MLA layers, kv_lora_rank], each on a word
  DeviceBuffer norm_device_;              // the same

  FaultInjector fault_;
  std::vector<Stage> stages_;    // a ring
  std::vector<RopeRows> ropes_;  // of the cache's config; one more for layers without
  // By request and beam: the chain of what it has in the cache.
  std::vector<std::uint64_t> running_;
  std::vector<std::uint64_t> parents_;  // those of a request before its beams are exchanged
  std::vector<std::uint64_t> chains_;   // by row of the step
  double device_s_ = 0;

  // --- the check ---
  CheckResult check_;
  std::vector<TokenId> tokens_;
  std::vector<std::uint64_t> expected_chains_;
  std::vector<std::uint32_t> stored_k_, stored_v_, expected_k_, expected_v_;  // raw, aligned
};

}  // namespace lariat::session
