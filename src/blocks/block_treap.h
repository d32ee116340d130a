// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks/block_pool.h"

namespace lariat::blocks {

// Sets of blocks in the order of keys that the caller keeps, as treaps threaded through arrays
// indexed by block. A block is in at most one set; a set is named by its top, kNoBlock when empty.
// `before(a, b)` is a strict order of all blocks, and what it says of those in a set stays.
// Cost: O(log blocks) per call; nothing but Grow allocates.
class BlockTreap {
 public:
  void Grow(std::size_t blocks) {
    if (links_.size() < blocks) links_.resize(blocks);
  }

  template <class Before>
  void Insert(BlockId& top, BlockId block, const Before& before) {
    BlockId* link = &top;
    while (*link != kNoBlock && RankOf(*link) > RankOf(block)) {
      link = before(block, *link) ? &links_[*link].left : &links_[*link].right;
    }
    // What was here goes below the block, cut in two.
    BlockId* left = &links_[block].left;
    BlockId* right = &links_[block].right;
    for (BlockId rest = *link; rest != kNoBlock;) {
      if (before(block, rest)) {
        *right = rest;
        right = &links_[rest].left;
        rest = *right;
      } else {
        *left = rest;
        left = &links_[rest].right;
        rest = *left;
      }
    }
    *left = *right = kNoBlock;
    *link = block;
  }

  template <class Before>
  void Erase(BlockId& top, BlockId block, const Before& before) {
    BlockId* link = &top;
    while (*link != block) {
      link = before(block, *link) ? &links_[*link].left : &links_[*link].right;
    }
    BlockId left = links_[block].left, right = links_[block].right;
    while (left != kNoBlock && right != kNoBlock) {
      if (RankOf(left) > RankOf(right)) {
        *link = left;
        link = &links_[left].right;
        left = *link;
      } else {
        *link = right;
        link = &links_[right].left;
        right = *link;
      }
    }
    *link = left == kNoBlock ? right : left;
  }

  BlockId First(BlockId top) const {
    if (top == kNoBlock) return kNoBlock;
    while (links_[top].left != kNoBlock) top = links_[top].left;
    return top;
  }

  // Appends the first `count` blocks of a set, in order.
  void List(BlockId top, std::size_t count, std::vector<BlockId>& out) const {
    std::vector<BlockId> path;
    while (count > 0 && (top != kNoBlock || !path.empty())) {
      for (; top != kNoBlock; top = links_[top].left) path.push_back(top);
      top = path.back();
      path.pop_back();
      out.push_back(top);
      --count;
      top = links_[top].right;
    }
  }

 private:
  struct Links {
    BlockId left = kNoBlock;
    BlockId right = kNoBlock;
  };
  // As good as random, no two blocks alike: odd factors and shifts can be undone.
  static std::uint32_t RankOf(BlockId block) {
    auto rank = static_cast<std::uint32_t>(block) * 0x9E3779B1U;  // golden ratio
    rank ^= rank >> 15;
    rank *= 0x85EBCA77U;
    return rank ^ rank >> 13;
  }

  std::vector<Links> links_;
};

}  // namespace lariat::blocks
