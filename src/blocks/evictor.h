// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blocks/block_pool.h"
#include "lariat/kv_cache.h"

namespace lariat::blocks {

// In which order idle blocks (cached, held by nobody) are evicted: one policy, one class.
//
// Leaf first always holds: of the blocks here, none is a victim before those below it. Whoever
// holds a block holds its whole path, so what is below an idle block is idle too, and became so no
// later.
// Blocks stand in lanes, each with an order of its own; a block is in one of them.
// Nothing but Grow allocates or fails. Threads: externally synchronised.
class Evictor {
 public:
  virtual ~Evictor() = default;

  // Makes room for block ids below `blocks` and for lanes below `lanes`. What throws here changes
  // nothing that can be seen.
  virtual void Grow(std::size_t blocks, std::size_t lanes) = 0;

  // The block is idle now, and the most recently used one.
  //   parent: the cached block above it; negative: none
  virtual void Add(BlockId block, std::int32_t parent, std::size_t lane) = 0;
  // Add of each of these blocks, the last one first. REQUIRES: the policy does not look at parents.
  virtual void AddPath(std::span<const BlockId> path, std::size_t lane) {
    for (std::size_t i = path.size(); i-- > 0;) Add(path[i], kNoBlock, lane);
  }
  // It is claimed, evicted or forgotten. Any block may be taken out, but one that is forgotten only
  // after those below it.
  virtual void Remove(BlockId block, std::size_t lane) = 0;
  // Remove of each of these blocks of one path, in order.
  virtual void RemovePath(std::span<const BlockId> path, std::size_t lane) {
    for (const BlockId block : path) Remove(block, lane);
  }
  // The exact inverse of a Remove. REQUIRES: everything since that Remove was undone before.
  virtual void Restore(BlockId block, std::size_t lane) = 0;
  // What its user wants it kept for, 0 to 100; kDefaultPriority until told. A policy may not care.
  // REQUIRES: the block is not here: held, free, or removed and about to be restored.
  virtual void SetPriority(BlockId block, int priority) = 0;

  // The one to evict next; kNoBlock: the lane is empty.
  virtual BlockId Victim(std::size_t lane) const = 0;
  // Appends the next `count` victims, in order, to `out`: what Victim would tell if each were
  // removed in its turn and nothing else happened. O(count), or O(count log blocks). Changes
  // nothing; allocates only where `out` lacks the room.
  virtual void NextVictims(std::size_t lane, std::size_t count, std::vector<BlockId>& out) = 0;
  // Appends all blocks of the lane, the least recently used one first. Allocates.
  virtual void ByAge(std::size_t lane, std::vector<BlockId>& out) const = 0;
};

}  // namespace lariat::blocks
