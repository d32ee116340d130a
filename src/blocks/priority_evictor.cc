// SPDX-License-Identifier: Apache-2.0
#include "blocks/priority_evictor.h"

#include <algorithm>

namespace lariat::blocks {

void PriorityEvictor::Grow(std::size_t blocks, std::size_t lanes) {
  leaves_.Grow(blocks);
  if (tops_.size() < lanes) tops_.resize(lanes, kNoBlock);
  if (nodes_.size() < blocks) nodes_.resize(blocks);
}

void PriorityEvictor::Add(BlockId block, std::int32_t parent, std::size_t lane) {
  nodes_[block].used = ++clock_;
  nodes_[block].parent = parent;
  Restore(block, lane);
}

void PriorityEvictor::Restore(BlockId block, std::size_t lane) {
  Node& node = nodes_[block];
  node.idle = true;
  node.lane = static_cast<std::uint32_t>(lane);
  const Before before{nodes_};
  if (node.below == 0) leaves_.Insert(tops_[lane], block, before);
  if (node.parent < 0) return;
  Node& parent = nodes_[node.parent];
  if (parent.below++ == 0 && parent.idle) leaves_.Erase(tops_[lane], node.parent, before);
}

void PriorityEvictor::Remove(BlockId block, std::size_t lane) {
  Node& node = nodes_[block];
  node.idle = false;
  const Before before{nodes_};
  if (node.below == 0) leaves_.Erase(tops_[lane], block, before);
  if (node.parent < 0) return;
  Node& parent = nodes_[node.parent];
  if (--parent.below == 0 && parent.idle) leaves_.Insert(tops_[lane], node.parent, before);
}

// Tells each by removing it, and puts all of them back.
void PriorityEvictor::NextVictims(std::size_t lane, std::size_t count, std::vector<BlockId>& out) {
  const std::size_t first = out.size();
  out.reserve(first + std::min(count, nodes_.size()));
  for (BlockId victim; count > 0 && (victim = Victim(lane)) != kNoBlock; --count) {
    Remove(victim, lane);
    out.push_back(victim);
  }
  for (std::size_t i = out.size(); i > first; --i) Restore(out[i - 1], lane);
}

void PriorityEvictor::ByAge(std::size_t lane, std::vector<BlockId>& out) const {
  const auto first = out.size();
  for (std::size_t b = 0; b < nodes_.size(); ++b) {
    if (nodes_[b].idle && nodes_[b].lane == lane) out.push_back(static_cast<BlockId>(b));
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
            [&](BlockId a, BlockId b) { return nodes_[a].used < nodes_[b].used; });
}

}  // namespace lariat::blocks
