// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/evictor.h"
#include "blocks/lru_evictor.h"

namespace lariat::blocks {

// The idle blocks (cached, held by nobody), and which of them goes next.
// Threads: externally synchronised.
class IdleBlocks {
 public:
  IdleBlocks() : order_(std::make_unique<LruEvictor>()) { order_->Grow(0, 1); }

  // Makes room for block ids below `blocks`.
  void Grow(std::size_t blocks) { order_->Grow(blocks, 1); }

  // Whether Add looks at the parent: to find it takes time.
  bool needs_parent() const { return false; }

  // See Evictor.
  void Add(BlockId block, std::int32_t parent) { order_->Add(block, parent, 0); }
  void Remove(BlockId block) {
    order_->Remove(block, 0);
    ++removed_;
  }
  void Restore(BlockId block) {
    order_->Restore(block, 0);
    --removed_;
  }
  BlockId Victim() const { return order_->Victim(0); }
  void NextVictims(std::size_t count, std::vector<BlockId>& out) const {
    order_->NextVictims(0, count, out);
  }
  // Blocks that were removed so far, and not restored: so many victims fewer are as they were.
  std::int64_t removed() const { return removed_; }

 private:
  std::int64_t removed_ = 0;
  std::unique_ptr<Evictor> order_;
};

}  // namespace lariat::blocks
