// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/huge_pages.h"

namespace lariat::blocks {

using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

// What a block is to the pool. Every block is exactly one of these.
enum class BlockState : std::uint8_t {
  kFree,       // holds nothing
  kIdle,       // cached, held by nobody: may be evicted
  kHeld,       // named by at least one sequence
  kReserved,   // taken by a step that was not committed yet
  kInTransit,  // taken by a transfer that was not accepted yet
};

// Counts references to blocks and keeps the free ones. Knows nothing of tokens, sequences or
// memory. All calls are O(1). Free blocks are given out last in, first out; fresh ones after that,
// in order of their ids; and those that were returned as late ones at the end, first in, first out.
// A pool without a limit makes fresh blocks for ever.
// Threads: externally synchronised.
class BlockPool {
 public:
  // total: blocks there are; unlimited: there is always one more, and total is where it starts (0)
  BlockPool(std::int64_t total, bool unlimited);

  std::int64_t total() const { return unlimited_ ? next_fresh_ : total_; }
  bool unlimited() const { return unlimited_; }
  std::int64_t count(BlockState state) const { return counts_[static_cast<int>(state)]; }
  std::int64_t used() const {
    return count(BlockState::kHeld) + count(BlockState::kReserved) + count(BlockState::kInTransit);
  }
  std::int64_t peak_used() const { return peak_used_; }
  BlockState state(BlockId block) const { return blocks_[block].state; }
  std::int32_t references(BlockId block) const { return blocks_[block].references; }
  // Whether more than one reference is there to stay.
  bool shared(BlockId block) const { return blocks_[block].references - blocks_[block].pins > 1; }
  // Tells two lives of one block id apart: counts the times it was taken.
  std::uint32_t generation(BlockId block) const { return blocks_[block].generation; }

  // Has what is known of a block fetched: it will be asked for soon.
  void Prefetch(BlockId block) const { __builtin_prefetch(&blocks_[block]); }

  // Makes room for block ids below `blocks`, of a pool without a limit.
  void Reserve(std::size_t blocks);
  // Takes a free block: reserved, one reference. kNoBlock when there is none. Allocates nothing
  // below the ids that there is room for.
  BlockId TakeFree();
  // Takes an idle block that was chosen as a victim: reserved, one reference.
  void TakeIdle(BlockId block) {
    Block& taken = blocks_[block];
    assert(taken.state == BlockState::kIdle && taken.references == 0);
    Move(taken, BlockState::kReserved);
    taken.references = 1;
    ++taken.generation;
  }
  // Exact inverses, called in reverse order of the calls they undo.
  void UndoTakeFree(BlockId block);
  void UndoTakeIdle(BlockId block);

  // One more reference to an idle or used block; an idle one becomes held. Returns whether it was.
  bool Claim(BlockId block) {
    Block& claimed = blocks_[block];
    assert(claimed.state != BlockState::kFree);
    const bool idle = claimed.state == BlockState::kIdle;
    if (idle) Move(claimed, BlockState::kHeld);
    ++claimed.references;
    return idle;
  }
  // One reference less. With none left the block becomes idle or free, as told.
  //   late: where it becomes free, others are to be taken first: a copy still reads it
  // Returns whether it was the last.
  //   REQUIRES: the pool has a limit, where late
  bool Unclaim(BlockId block, bool stays_cached, bool late = false) {
    Block& released = blocks_[block];
    assert(released.references > 0);
    if (--released.references > 0) return false;
    Move(released, stays_cached ? BlockState::kIdle : BlockState::kFree);
    released.late = late && !stays_cached;
    if (!stays_cached) PutFree(block, late);
    return true;
  }
  // Says of one reference that it only waits for a step to end, and takes that back.
  void Pin(BlockId block) { ++blocks_[block].pins; }
  void Unpin(BlockId block) { --blocks_[block].pins; }
  // An idle block that is no longer cached becomes free.
  void FreeIdle(BlockId block);
  // A reserved block becomes held: its step was committed.
  void Settle(BlockId block) {
    if (blocks_[block].state == BlockState::kReserved) Move(blocks_[block], BlockState::kHeld);
  }
  // A reserved block is on its way from the host tier; it has arrived, and is held.
  void Depart(BlockId block) { Move(blocks_[block], BlockState::kInTransit); }
  void Arrive(BlockId block) { Move(blocks_[block], BlockState::kHeld); }
  // Notes the most blocks used at once; called where they grow for good (a plan may be undone).
  void NotePeak();

  // Free blocks in the order in which they will be taken, fresh ones left out.
  std::vector<BlockId> FreeList() const;
  std::int64_t next_fresh() const { return next_fresh_; }

 private:
  struct Block {
    std::int32_t references = 0;
    std::int32_t pins = 0;  // of the references
    std::uint32_t generation = 0;
    BlockState state = BlockState::kFree;
    bool late = false;  // stands, or stood when it was taken, in late_
  };
  void Move(Block& block, BlockState to) {
    --counts_[static_cast<int>(block.state)];
    ++counts_[static_cast<int>(to)];
    block.state = to;
  }
  void PutFree(BlockId block, bool late) {
    if (late) {
      late_[(late_first_ + late_count_++) % late_.size()] = block;
    } else {
      free_.push_back(block);
    }
  }

  const bool unlimited_;
  const std::int64_t total_;
  HugePageVector<Block> blocks_;
  std::vector<BlockId> free_;  // returned blocks, the next one to take last
  // Those to take when there are no others, as a ring of total() places.
  std::vector<BlockId> late_;
  std::size_t late_first_ = 0, late_count_ = 0;
  std::int64_t next_fresh_ = 0;  // blocks from here on were never taken
  std::int64_t counts_[5] = {};
  std::int64_t peak_used_ = 0;
};

}  // namespace lariat::blocks
