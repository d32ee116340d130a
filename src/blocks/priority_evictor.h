// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks/block_treap.h"
#include "blocks/evictor.h"

namespace lariat::blocks {

// The block of the lowest priority first, the least recently used one among equals.
//
// Only leaves are offered: blocks with no idle block below. That keeps a block for as long as
// anything below it is kept, so that in effect it has the greatest priority of its own and those,
// and nothing needs to be told upwards when one of them changes.
// Cost: O(1) per call for a block that others stand below, O(log leaves) for a leaf; a chain of
// blocks is one leaf.
class PriorityEvictor final : public Evictor {
 public:
  void Grow(std::size_t blocks, std::size_t lanes) override;
  void Add(BlockId block, std::int32_t parent, std::size_t lane) override;
  void Remove(BlockId block, std::size_t lane) override;
  void Restore(BlockId block, std::size_t lane) override;
  void SetPriority(BlockId block, int priority) override {
    nodes_[block].priority = static_cast<std::int16_t>(priority);
  }
  BlockId Victim(std::size_t lane) const override { return leaves_.First(tops_[lane]); }
  void NextVictims(std::size_t lane, std::size_t count, std::vector<BlockId>& out) override;
  void ByAge(std::size_t lane, std::vector<BlockId>& out) const override;

 private:
  struct Node {
    std::uint64_t used = 0;  // when it became idle, counted
    std::int32_t parent = kNoBlock;
    std::int32_t below = 0;  // idle children
    std::int16_t priority = kDefaultPriority;
    bool idle = false;
    std::uint32_t lane = 0;  // where idle
  };
  struct Before {
    const std::vector<Node>& nodes;
    bool operator()(BlockId a, BlockId b) const {
      const Node &one = nodes[a], &other = nodes[b];
      return one.priority != other.priority ? one.priority < other.priority : one.used < other.used;
    }
  };

  std::vector<Node> nodes_;  // by block
  BlockTreap leaves_;
  std::vector<BlockId> tops_;  // of the leaves, by lane
  std::uint64_t clock_ = 0;
};

}  // namespace lariat::blocks
