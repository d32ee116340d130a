// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/huge_pages.h"
#include "blocks/evictor.h"

namespace lariat::blocks {

// The least recently used block first, as lists threaded through arrays indexed by block.
//
// Leaf first comes for free: paths are released deepest block first, so a block always stands
// behind the blocks below it.
// Cost: O(1) per call, NextVictims O(count).
class LruEvictor final : public Evictor {
 public:
  void Grow(std::size_t blocks, std::size_t lanes) override {
    if (links_.size() < blocks) links_.resize(blocks);
    if (lanes_.size() < lanes) lanes_.resize(lanes);
  }

  void Add(BlockId block, std::int32_t /*parent*/, std::size_t lane) override {
    links_[block] = {lanes_[lane].newest, kNoBlock};
    Link(block, lane);
  }

  // The block's own links stay: they say where Restore puts it back.
  void Remove(BlockId block, std::size_t lane) override {
    const Neighbours at = links_[block];
    (at.older == kNoBlock ? lanes_[lane].oldest : links_[at.older].newer) = at.newer;
    (at.newer == kNoBlock ? lanes_[lane].newest : links_[at.newer].older) = at.older;
  }

  void RemovePath(std::span<const BlockId> path, std::size_t lane) override {
    for (std::size_t i = 0; i < path.size();) {
      // Those that stand one behind the other, as they were released, have the same neighbour.
      const BlockId newer = links_[path[i]].newer;
      BlockId older = links_[path[i]].older;
      for (++i; i < path.size() && older == path[i]; ++i) {
        Neighbours& next = links_[path[i]];
        next.newer = newer;
        older = next.older;
      }
      (older == kNoBlock ? lanes_[lane].oldest : links_[older].newer) = newer;
      (newer == kNoBlock ? lanes_[lane].newest : links_[newer].older) = older;
    }
  }

  void AddPath(std::span<const BlockId> path, std::size_t lane) override {
    BlockId newest = lanes_[lane].newest;
    for (std::size_t i = path.size(); i-- > 0;) {
      const BlockId block = path[i];
      (newest == kNoBlock ? lanes_[lane].oldest : links_[newest].newer) = block;
      links_[block] = {newest, kNoBlock};
      newest = block;
    }
    lanes_[lane].newest = newest;
  }

  void Restore(BlockId block, std::size_t lane) override { Link(block, lane); }

  void SetPriority(BlockId /*block*/, int /*priority*/) override {}

  BlockId Victim(std::size_t lane) const override { return lanes_[lane].oldest; }

  void NextVictims(std::size_t lane, std::size_t count, std::vector<BlockId>& out) override {
    List(lane, count, out);
  }
  void ByAge(std::size_t lane, std::vector<BlockId>& out) const override {
    List(lane, links_.size(), out);
  }

 private:
  struct Neighbours {
    BlockId older = kNoBlock;
    BlockId newer = kNoBlock;
  };
  struct Lane {
    BlockId oldest = kNoBlock;
    BlockId newest = kNoBlock;
  };

  void List(std::size_t lane, std::size_t count, std::vector<BlockId>& out) const {
    for (BlockId b = lanes_[lane].oldest; b != kNoBlock && count > 0;
         b = links_[b].newer, --count) {
      out.push_back(b);
    }
  }

  void Link(BlockId block, std::size_t lane) {
    const Neighbours at = links_[block];
    (at.older == kNoBlock ? lanes_[lane].oldest : links_[at.older].newer) = block;
    (at.newer == kNoBlock ? lanes_[lane].newest : links_[at.newer].older) = block;
  }

  HugePageVector<Neighbours> links_;  // by block
  std::vector<Lane> lanes_;
};

}  // namespace lariat::blocks
