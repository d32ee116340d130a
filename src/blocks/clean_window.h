// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "blocks/block_pool.h"

namespace lariat::blocks {

// How far the next victims are known to have copies in the host tier: a run of idle blocks from the
// oldest one on, in the order in which they will be evicted. It is told of every block that joins or
// leaves the idle ones.
// Cost: O(1) per call. Threads: externally synchronised.
class CleanWindow {
 public:
  // Makes room for block ids below `blocks`.
  void Grow(std::size_t blocks) { mark_.resize(blocks); }

  std::int64_t size() const { return size_; }
  BlockId last() const { return last_; }  // kNoBlock: it is empty

  // The block behind the last one has a copy.
  void Extend(BlockId block) {
    mark_[block] = life_;
    last_ = block;
    ++size_;
  }
  // Nothing is known any more.
  void Reset() {
    ++life_;
    last_ = kNoBlock;
    size_ = 0;
  }
  // previous: the idle block before it
  void Removed(BlockId block, BlockId previous) {
    if (mark_[block] != life_) return;
    --size_;
    if (block == last_) last_ = previous;
  }
  // The exact inverse of Removed.
  void PutBack(BlockId block, BlockId previous) {
    if (mark_[block] != life_) return;
    ++size_;
    if (previous == last_) last_ = block;
  }
  void Pushed(BlockId block) { mark_[block] = 0; }  // as the newest
  bool has(BlockId block) const { return mark_[block] == life_; }

 private:
  std::vector<std::uint64_t> mark_;  // by block: the life of the window that it was in
  std::uint64_t life_ = 1;
  BlockId last_ = kNoBlock;
  std::int64_t size_ = 0;
};

}  // namespace lariat::blocks
