// SPDX-License-Identifier: Apache-2.0
#include "session/simulator_fault.h"

#include <algorithm>
#include <utility>

namespace lariat::session {

bool FaultInjector::MergedAway(const KVCache& cache) const {
  const Result<std::span<const std::int32_t>> table = cache.BlockTable(sequence_);
  return !table.ok() || block_index_ >= table->size() || (*table)[block_index_] != block_;
}

Status FaultInjector::BeginStep(const ExecutorStep& step) {
  corrupts_ = false;
  if (fault_ == InjectedFault::kNone) return Status::Ok();
  ++steps_;
  if (state_ == State::kFired && MergedAway(step.cache)) state_ = State::kArmed;
  if (state_ != State::kArmed || steps_ < from_) return Status::Ok();

  // The first item's rows in the first block that it writes.
  const ExecutorItem& item = step.items.front();
  const std::int64_t block_size = step.cache.config().block_size;
  const std::int64_t in_block = block_size - item.start % block_size;
  const Status broken = BreakSlots(step, std::min(item.count, in_block));
  if (!broken.ok()) return broken;
  sequence_ = item.sequence;
  block_index_ = static_cast<std::size_t>(item.start / block_size);
  state_ = State::kFired;
  corrupts_ = fault_ == InjectedFault::kBit;
  return Status::Ok();
}

// Notes the block of the first `rows` rows of the step, and changes their slots on the device.
Status FaultInjector::BreakSlots(const ExecutorStep& step, std::int64_t rows) {
  Device& device = step.cache.device();
  const std::int64_t* const on_device = step.cache.View().slots;
  slots_.resize(static_cast<std::size_t>(step.step.num_tokens()));
  const std::size_t bytes = slots_.size() * sizeof(std::int64_t);
  Status copied = device.CopyToHost(slots_.data(), on_device, bytes, step.stream);
  if (copied.ok()) copied = device.Synchronize(step.stream);
  if (!copied.ok()) return copied;

  const int block_size = step.cache.config().block_size;
  block_ = static_cast<std::int32_t>(slots_.front() / block_size);
  if (fault_ == InjectedFault::kBit) return Status::Ok();
  if (fault_ == InjectedFault::kStale) {
    std::fill_n(slots_.begin(), rows, -1);
  } else {
    Shift(block_size, rows, step.cache.GetStats().total_blocks * block_size);
  }
  // The view is read-only for those who mean well.
  return device.CopyToDevice(const_cast<std::int64_t*>(on_device), slots_.data(), bytes,
                             step.stream);
}

// One slot further, and from a block's last slot to its first, so that no two rows of the step
// meet.
void FaultInjector::Shift(int block_size, std::int64_t rows, std::int64_t num_slots) {
  if (block_size > 1) {
    for (std::int64_t i = 0; i < rows; ++i) {
      std::int64_t& slot = slots_[static_cast<std::size_t>(i)];
      slot += slot % block_size == block_size - 1 ? 1 - block_size : 1;
    }
  } else if (slots_.size() > 1) {
    std::swap(slots_[0], slots_[1]);
  } else {
    slots_[0] += slots_[0] + 1 < num_slots ? 1 : -1;
  }
}

void FaultInjector::Corrupt(int layer, int num_layers, std::byte* byte, int bit) {
  if (!corrupts_ || layer != num_layers / 2) return;
  *byte ^= std::byte{1} << bit;
}

void FaultInjector::Checked(SequenceId sequence, bool mismatched) {
  if (state_ != State::kFired || sequence != sequence_) return;
  state_ = mismatched ? State::kSeen : State::kArmed;
}

}  // namespace lariat::session
