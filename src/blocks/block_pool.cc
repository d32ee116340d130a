// SPDX-License-Identifier: Apache-2.0
#include "blocks/block_pool.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace lariat::blocks {

BlockPool::BlockPool(std::int64_t total, bool unlimited)
    : unlimited_(unlimited), total_(unlimited ? 0 : total) {
  blocks_.resize(static_cast<std::size_t>(total_));
  free_.reserve(static_cast<std::size_t>(total_));
  late_.resize(static_cast<std::size_t>(total_));
  counts_[static_cast<int>(BlockState::kFree)] = total_;
}

void BlockPool::Reserve(std::size_t blocks) {
  if (!unlimited_ || blocks <= blocks_.size()) return;
  // Returned blocks need a place in the free list too; grow both before anything changes.
  const std::size_t size = std::max({std::size_t{1024}, blocks, blocks_.size() * 2});
  free_.reserve(size);
  blocks_.resize(size);
}

BlockId BlockPool::TakeFree() {
  BlockId block = kNoBlock;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (unlimited_ || next_fresh_ < total_) {
    if (next_fresh_ == std::numeric_limits<BlockId>::max()) return kNoBlock;
    Reserve(static_cast<std::size_t>(next_fresh_) + 1);
    block = static_cast<BlockId>(next_fresh_++);
    if (unlimited_) ++counts_[static_cast<int>(BlockState::kFree)];
  } else if (late_count_ > 0) {
    block = late_[late_first_];
    late_first_ = (late_first_ + 1) % late_.size();
    --late_count_;
  } else {
    return kNoBlock;
  }
  Block& taken = blocks_[block];
  Move(taken, BlockState::kReserved);
  taken.references = 1;
  ++taken.generation;
  return block;
}

void BlockPool::UndoTakeFree(BlockId block) {
  Block& taken = blocks_[block];
  assert(taken.state == BlockState::kReserved && taken.references == 1);
  Move(taken, BlockState::kFree);
  taken.references = 0;
  --taken.generation;
  if (taken.late) {
    late_first_ = (late_first_ + late_.size() - 1) % late_.size();
    late_[late_first_] = block;
    ++late_count_;
    return;
  }
  // A fresh block was never in the free list: its generation tells.
  if (taken.generation == 0 && block == next_fresh_ - 1) {
    --next_fresh_;
    if (unlimited_) --counts_[static_cast<int>(BlockState::kFree)];
  } else {
    free_.push_back(block);
  }
}

void BlockPool::UndoTakeIdle(BlockId block) {
  Block& taken = blocks_[block];
  assert(taken.state == BlockState::kReserved && taken.references == 1);
  Move(taken, BlockState::kIdle);
  taken.references = 0;
  --taken.generation;
}

void BlockPool::FreeIdle(BlockId block) {
  assert(blocks_[block].state == BlockState::kIdle);
  Move(blocks_[block], BlockState::kFree);
  blocks_[block].late = false;
  free_.push_back(block);
}

void BlockPool::NotePeak() { peak_used_ = std::max(peak_used_, used()); }

std::vector<BlockId> BlockPool::FreeList() const {
  std::vector<BlockId> list(free_.rbegin(), free_.rend());
  for (std::size_t i = 0; i < late_count_; ++i) {
    list.push_back(late_[(late_first_ + i) % late_.size()]);
  }
  return list;
}

}  // namespace lariat::blocks
