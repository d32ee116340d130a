// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/prefix_index.h"
#include "blocks/transfer.h"
#include "lariat/cache_config.h"

namespace lariat::blocks {

// Which tokens before the next one a group's layers still read.
//   kSliding: the last window - 1;  kChunked: those of the next one's chunk;  else all
struct Reach {
  LayerKind kind = LayerKind::kFull;
  std::int64_t window = 0;

  // The first token that a row at `length` reads; `length` where it reads none but itself.
  std::int64_t First(std::int64_t length) const {
    if (kind == LayerKind::kSliding) return std::max<std::int64_t>(0, length - window + 1);
    if (kind == LayerKind::kChunked) return length - length % window;
    return 0;
  }
  // The least length from which on First is not below `token`.
  std::int64_t Shortest(std::int64_t token) const {
    if (token == 0) return 0;
    if (kind == LayerKind::kSliding) return token + window - 1;
    return (token + window - 1) / window * window;  // kFull holds every token
  }
};

// The blocks of a cache's other groups that are cached beside the blocks of its first one. A text
// in the index has a block of the first group, and of each other group ("side") one or none.
//
// Whoever holds a side's block of a text holds the first group's block too, and lets go of the
// side's one before it: so a side's block is as a leaf below the first group's, and is evicted
// before it.
// Cost: O(1) per call; nothing but Grow and Clear takes longer, or allocates.
class SidePages {
 public:
  explicit SidePages(std::vector<Reach> sides) : sides_(std::move(sides)) {}

  std::size_t count() const { return sides_.size(); }
  bool any() const { return !sides_.empty(); }
  const Reach& reach(std::size_t side) const { return sides_[side]; }

  // Makes room for block ids below `blocks` and, where there is a host tier, for nodes below
  // `nodes`.
  void Grow(std::size_t blocks, std::size_t nodes) {
    if (!any() || blocks <= owners_.size()) return;
    owners_.resize(blocks);
    pages_.resize(blocks * count(), kNoBlock);
    hosts_.resize(nodes * count(), kNoHost);
  }

  // The side's block of a text whose block of the first group is `block`.
  BlockId page(BlockId block, std::size_t side) const { return pages_[Index(block, side)]; }
  // The first group's block beside which a side's block is cached; kNoBlock: it is not.
  BlockId owner(BlockId page) const { return any() ? owners_[page].block : kNoBlock; }
  std::size_t side(BlockId page) const { return static_cast<std::size_t>(owners_[page].side); }
  std::int64_t size() const { return size_; }  // blocks of sides that are cached

  // The side's place in the host tier of a text.
  HostId host(NodeId node, std::size_t side) const {
    return hosts_.empty() ? kNoHost : hosts_[Index(node, side)];
  }
  void SetHost(NodeId node, std::size_t side, HostId host) { hosts_[Index(node, side)] = host; }

  void Attach(BlockId block, std::size_t side, BlockId page) {
    pages_[Index(block, side)] = page;
    owners_[page] = {block, static_cast<std::int32_t>(side)};
    ++size_;
  }
  void Detach(BlockId page) {
    Owner& owner = owners_[page];
    pages_[Index(owner.block, static_cast<std::size_t>(owner.side))] = kNoBlock;
    owner = {};
    --size_;
  }
  void Clear() {
    std::fill(pages_.begin(), pages_.end(), kNoBlock);
    std::fill(owners_.begin(), owners_.end(), Owner{});
    size_ = 0;
  }

 private:
  struct Owner {
    BlockId block = kNoBlock;
    std::int32_t side = 0;
  };
  std::size_t Index(std::int32_t of, std::size_t side) const {
    return static_cast<std::size_t>(of) * count() + side;
  }

  const std::vector<Reach> sides_;
  std::vector<BlockId> pages_;  // [blocks, sides]
  std::vector<Owner> owners_;   // by block of a side
  std::vector<HostId> hosts_;   // [nodes, sides]; empty: there is no host tier
  std::int64_t size_ = 0;
};

}  // namespace lariat::blocks
