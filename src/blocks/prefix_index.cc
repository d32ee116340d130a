// SPDX-License-Identifier: Apache-2.0
#include "blocks/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "base/hash.h"

namespace lariat::blocks {

void PrefixIndex::Reserve(std::size_t blocks) {
  if (blocks <= nodes_.size()) return;
  // Everything that can fail comes before the first change.
  std::vector<BlockId> buckets(std::bit_ceil(blocks), kNoBlock);
  tokens_.resize(blocks * block_size_);
  nodes_.resize(blocks);
  buckets_ = std::move(buckets);
  const std::uint64_t mask = buckets_.size() - 1;
  for (std::size_t b = 0; b < nodes_.size(); ++b) {
    Node& node = nodes_[b];
    if (node.parent == kNotIndexed) continue;
    BlockId& bucket = buckets_[node.hash & mask];
    node.next = bucket;
    bucket = static_cast<BlockId>(b);
  }
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

std::uint64_t PrefixIndex::Hash(std::int32_t parent, std::span<const TokenId> tokens) const {
  return HashTokens(static_cast<std::uint32_t>(parent), tokens);
}

BlockId PrefixIndex::Find(std::int32_t parent, std::span<const TokenId> tokens) const {
  if (buckets_.empty()) return kNoBlock;
  const std::uint64_t hash = Hash(parent, tokens);
  for (BlockId b = buckets_[hash & (buckets_.size() - 1)]; b != kNoBlock; b = nodes_[b].next) {
    const Node& node = nodes_[b];
    if (node.hash == hash && node.parent == parent &&
        std::equal(tokens.begin(), tokens.end(), this->tokens(b).begin())) {
      return b;
    }
  }
  return kNoBlock;
}

void PrefixIndex::Insert(std::int32_t parent, std::span<const TokenId> tokens, BlockId block) {
  assert(!contains(block) && tokens.size() == static_cast<std::size_t>(block_size_));
  Node& node = nodes_[block];
  node.hash = Hash(parent, tokens);
  node.parent = parent;
  BlockId& bucket = buckets_[node.hash & (buckets_.size() - 1)];
  node.next = bucket;
  bucket = block;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(block) * block_size_);
  if (parent < 0) ++root(parent).references;
  ++size_;
}

void PrefixIndex::Erase(BlockId block) {
  assert(contains(block));
  Node& node = nodes_[block];
  BlockId* link = &buckets_[node.hash & (buckets_.size() - 1)];
  while (*link != block) link = &nodes_[*link].next;
  *link = node.next;
  if (node.parent < 0) DropRoot(node.parent);
  node = {};
  --size_;
}

}  // namespace lariat::blocks
