// SPDX-License-Identifier: Apache-2.0
#include "blocks/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace lariat::blocks {

namespace {

// Ranks a block in a treap: the same on every machine, and as good as random. Odd factors and
// shifts can be undone, so no two blocks have the same rank.
std::uint32_t RankOf(BlockId block) {
  auto rank = static_cast<std::uint32_t>(block) * 0x9E3779B1U;  // golden ratio
  rank ^= rank >> 15;
  rank *= 0x85EBCA77U;
  return rank ^ rank >> 13;
}

}  // namespace

void PrefixIndex::Reserve(std::size_t blocks) {
  if (blocks <= nodes_.size()) return;
  tokens_.resize(blocks * block_size_);
  nodes_.resize(blocks);
}

PrefixIndex::RootKey PrefixIndex::KeyOf(const OpenOptions& options, std::uint32_t rope_choice) {
  return {std::string(options.salt),
          std::string(options.adapter),
          {options.extra_keys.begin(), options.extra_keys.end()},
          rope_choice};
}

RootId PrefixIndex::AcquireRoot(const OpenOptions& options, std::uint32_t rope_choice) {
  RootKey key = KeyOf(options, rope_choice);
  if (const auto found = root_ids_.find(key); found != root_ids_.end()) {
    ++root(found->second).references;
    return found->second;
  }
  if (free_roots_.empty()) {
    free_roots_.reserve(roots_.size() + 1);
    roots_.emplace_back();
    free_roots_.push_back(-1 - static_cast<RootId>(roots_.size()));
  }
  const RootId id = free_roots_.back();
  root(id).entry = root_ids_.emplace(std::move(key), id).first;
  root(id).references = 1;
  free_roots_.pop_back();
  return id;
}

void PrefixIndex::AddRootReference(RootId id) { ++root(id).references; }

void PrefixIndex::DropRoot(RootId id) {
  Root& dropped = root(id);
  assert(dropped.references > 0);
  if (--dropped.references > 0) return;
  root_ids_.erase(dropped.entry);
  free_roots_.push_back(id);  // reserved when the root was made
}

RootId PrefixIndex::FindRoot(const OpenOptions& options, std::uint32_t rope_choice) const {
  const auto found = root_ids_.find(KeyOf(options, rope_choice));
  return found == root_ids_.end() ? 0 : found->second;
}

// Whether `tokens` come before the block's own or are where those begin.
//   same: tokens known to agree; becomes how many do
bool PrefixIndex::NotAfter(std::span<const TokenId> tokens, BlockId block,
                           std::size_t& same) const {
  const Node& node = nodes_[block];
  const std::size_t both = std::min(tokens.size(), static_cast<std::size_t>(node.count));
  for (; same < std::min(both, kHead); ++same) {
    if (tokens[same] != node.head[same]) return tokens[same] < node.head[same];
  }
  const TokenId* const mine = tokens.data();
  const TokenId* const theirs = tokens_.data() + static_cast<std::size_t>(block) * block_size_;
  for (; same + 2 <= both; same += 2) {
    if (std::memcmp(mine + same, theirs + same, 2 * sizeof(TokenId)) != 0) break;
  }
  while (same < both && mine[same] == theirs[same]) ++same;
  if (same == tokens.size()) return true;
  return same < both && mine[same] < theirs[same];
}

NearestChild PrefixIndex::Nearest(std::int32_t parent, std::span<const TokenId> tokens) const {
  BlockId before = kNoBlock, after = kNoBlock;  // the nearest ones on each side so far
  std::size_t same_before = 0, same_after = 0;  // tokens that they share with `tokens`
  BlockId at = parent < 0 ? root(parent).child : nodes_[parent].child;
  while (at != kNoBlock) {
    // What lies between two blocks begins as both do.
    std::size_t same = std::min(same_before, same_after);
    if (NotAfter(tokens, at, same)) {
      after = at;
      same_after = same;
      if (same == block_size_) break;
      at = nodes_[at].left;
    } else {
      before = at;
      same_before = same;
      at = nodes_[at].right;
    }
  }
  if (same_before == 0 && same_after == 0) return {};
  if (same_before >= same_after) return {before, static_cast<std::int64_t>(same_before)};
  return {after, static_cast<std::int64_t>(same_after)};
}

// Cuts a treap in two: what comes before `tokens`, and what comes after.
void PrefixIndex::Split(BlockId top, std::span<const TokenId> tokens, BlockId& before,
                        BlockId& after) {
  BlockId* left = &before;
  BlockId* right = &after;
  while (top != kNoBlock) {
    std::size_t same = 0;
    if (NotAfter(tokens, top, same)) {
      *right = top;
      right = &nodes_[top].left;
      top = *right;
    } else {
      *left = top;
      left = &nodes_[top].right;
      top = *left;
    }
  }
  *left = kNoBlock;
  *right = kNoBlock;
}

// The inverse: all of the one comes before all of the other.
BlockId PrefixIndex::Join(BlockId before, BlockId after) {
  BlockId top = kNoBlock;
  BlockId* link = &top;
  while (before != kNoBlock && after != kNoBlock) {
    if (RankOf(before) > RankOf(after)) {
      *link = before;
      link = &nodes_[before].right;
      before = *link;
    } else {
      *link = after;
      link = &nodes_[after].left;
      after = *link;
    }
  }
  *link = before == kNoBlock ? after : before;
  return top;
}

void PrefixIndex::Insert(std::int32_t parent, std::span<const TokenId> tokens, BlockId block) {
  assert(!contains(block) && !tokens.empty() && tokens.size() <= block_size_);
  Node& node = nodes_[block];
  node.parent = parent;
  node.count = static_cast<std::int32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(block_size_) * block);
  std::copy_n(tokens.begin(), std::min(kHead, tokens.size()), node.head);
  BlockId* link = &TopOf(parent);
  const std::uint32_t rank = RankOf(block);
  while (*link != kNoBlock && RankOf(*link) > rank) {
    std::size_t same = 0;
    link = NotAfter(tokens, *link, same) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  Split(*link, tokens, node.left, node.right);
  *link = block;
  if (parent < 0) ++root(parent).references;
  ++size_;
}

void PrefixIndex::Erase(BlockId block) {
  assert(contains(block));
  Node& node = nodes_[block];
  BlockId* link = &TopOf(node.parent);
  while (*link != block) {
    std::size_t same = 0;
    link = NotAfter(tokens(block), *link, same) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  *link = Join(node.left, node.right);
  if (node.parent < 0) DropRoot(node.parent);
  node = {};
  --size_;
}

void PrefixIndex::Clear() {
  for (Node& node : nodes_) {
    if (node.parent < kNotIndexed) {
      root(node.parent).child = kNoBlock;
      DropRoot(node.parent);
    }
    node = {};
  }
  size_ = 0;
}

}  // namespace lariat::blocks
