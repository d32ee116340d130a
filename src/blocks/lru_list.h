// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cassert>
#include <cstddef>
#include <vector>

#include "blocks/block_pool.h"

namespace lariat::blocks {

// The idle blocks, least recently used first, as a list threaded through arrays indexed by block.
//
// Leaf first comes for free: whoever holds a block holds its whole path, and paths are released
// deepest block first, so a block always stands behind the blocks below it.
// Cost: O(1) per call. Threads: externally synchronised.
class LruList {
 public:
  // Makes room for block ids below `blocks`.
  void Grow(std::size_t blocks) {
    if (links_.size() < blocks) links_.resize(blocks);
  }

  BlockId oldest() const { return head_; }
  BlockId next(BlockId block) const { return links_[block].next; }

  void PushNewest(BlockId block) { InsertAfter(block, tail_); }

  // Takes a block out; returns the one before it (kNoBlock: it was the oldest) for InsertAfter.
  BlockId Remove(BlockId block) {
    const Link link = links_[block];
    (link.previous == kNoBlock ? head_ : links_[link.previous].next) = link.next;
    (link.next == kNoBlock ? tail_ : links_[link.next].previous) = link.previous;
    links_[block] = {};
    return link.previous;
  }

  // Puts a block back behind `previous`; kNoBlock: as the oldest.
  void InsertAfter(BlockId block, BlockId previous) {
    assert(static_cast<std::size_t>(block) < links_.size());
    const BlockId next = previous == kNoBlock ? head_ : links_[previous].next;
    links_[block] = {previous, next};
    (previous == kNoBlock ? head_ : links_[previous].next) = block;
    (next == kNoBlock ? tail_ : links_[next].previous) = block;
  }

 private:
  struct Link {
    BlockId previous = kNoBlock;
    BlockId next = kNoBlock;
  };
  std::vector<Link> links_;
  BlockId head_ = kNoBlock;
  BlockId tail_ = kNoBlock;
};

}  // namespace lariat::blocks
