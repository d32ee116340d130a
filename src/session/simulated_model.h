// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/simulator.h"
#include "session/simulator_data.h"
#include "session/simulator_script.h"

namespace lariat::session {

// Stands for the model: the cost model's seconds, the script's tokens and, where there is memory,
// made-up K and V, or latents. Drafts are verified as greedy decoding does: those stay that are
// what the model puts out itself, up to the first that is not.
class SimulatedModel final : public Executor {
 public:
  // data: null where the backend has no memory. All must outlive this.
  SimulatedModel(const Trace& trace, const SimulatorConfig& config, const OutputScript& script,
                 const ModelCost& cost, SimulatedData* data);

  Status Run(const ExecutorStep& step, ExecutorOutput& output) override;
  const SimulatedStep& last_step() const { return last_step_; }
  double TransferSeconds(const TransferWork& work) override;
  // Against the steps that would compute the rows again, with nothing else in them.
  bool PrefersSwap(std::int64_t tokens, const TransferWork& work) override;

  // Tokens that a request has put out, or each of its beams.
  std::int64_t generated(std::uint64_t tag) const { return generated_[tag]; }

 private:
  std::size_t SparePerItem() const;
  void Sample(const ExecutorItem& item, std::size_t i, ExecutorOutput& output);

  const Trace& trace_;
  const OutputScript& script_;
  const ModelCost& cost_;
  const DeviceSpec& device_;
  const std::int64_t prefill_chunk_;
  const int num_drafts_;
  SimulatedData* const data_;
  std::vector<std::int64_t> generated_;
  SimulatedStep last_step_;
  std::vector<TokenId> spare_;  // [items][SparePerItem()]
};

}  // namespace lariat::session
