// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/session.h"
#include "lariat/simulator.h"
#include "lariat/status.h"

namespace lariat::session {

// Breaks one write of a run, as SimulatorConfig::fault says: from a given step on, at that step's
// first rows. Works from outside, as a broken kernel or a broken bus would: it changes the slots on
// the device before the appends, or the rows before they are uploaded.
//
// A fault may leave no trace: its block is merged into an equal one, or a row is not written where
// the same row stands already. Then it counts as not fired, and the next step is broken instead.
class FaultInjector {
 public:
  FaultInjector(InjectedFault fault, std::int64_t from_step) : fault_(fault), from_(from_step) {}

  // Before a step's appends. Counts the steps.
  Status BeginStep(const ExecutorStep& step);
  // When the rows of `layer` are made and not uploaded: a byte of the first row, and the bit of it
  // that is to flip.
  void Corrupt(int layer, int num_layers, std::byte* byte, int bit);
  // A sequence was compared.
  void Checked(SequenceId sequence, bool mismatched);

  // Some row was broken, and a check saw it or is still to come.
  bool fired() const { return state_ == State::kFired || state_ == State::kSeen; }

 private:
  enum class State : std::uint8_t { kArmed, kFired, kSeen };

  Status BreakSlots(const ExecutorStep& step, std::int64_t rows);
  void Shift(int block_size, std::int64_t rows, std::int64_t num_slots);
  bool MergedAway(const KVCache& cache) const;

  const InjectedFault fault_;
  const std::int64_t from_;
  std::int64_t steps_ = 0;
  State state_ = State::kArmed;
  bool corrupts_ = false;  // this step's rows

  // Where it fired.
  SequenceId sequence_ = SequenceId::kNone;
  std::size_t block_index_ = 0;
  std::int32_t block_ = 0;
  std::vector<std::int64_t> slots_;
};

}  // namespace lariat::session
