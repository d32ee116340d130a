// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/block_pool.h"
#include "lariat/kv_cache.h"
#include "lariat/types.h"

namespace lariat::blocks {

// Where a path begins: everything that must agree besides the tokens. Negative, so that it cannot
// be taken for a block.
using RootId = std::int32_t;

// Which full blocks are cached, and for which tokens: a trie whose nodes are the blocks themselves.
// A node is found from (parent, its tokens) through one hash table, so a node's number of children
// does not matter; tokens are always compared, so equal hashes cannot mix up prompts.
// Cost: O(block_size) per call unless said otherwise. No allocation once Reserve has made room.
// Threads: externally synchronised.
class PrefixIndex {
 public:
  explicit PrefixIndex(int block_size) : block_size_(block_size) {}

  // Makes room for block ids below `blocks`.
  void Reserve(std::size_t blocks);

  // The root for these options and rope table, made when new; holds one reference until DropRoot.
  RootId AcquireRoot(const OpenOptions& options, std::uint32_t rope_choice);
  void AddRootReference(RootId root);
  void DropRoot(RootId root);
  // The root if there is one with cached blocks or open sequences; 0: none.
  RootId FindRoot(const OpenOptions& options, std::uint32_t rope_choice) const;

  // The cached block that follows `parent` (a block or a root) with these tokens, or kNoBlock.
  BlockId Find(std::int32_t parent, std::span<const TokenId> tokens) const;
  // REQUIRES: `block` is not indexed, and Find(parent, tokens) is kNoBlock.
  void Insert(std::int32_t parent, std::span<const TokenId> tokens, BlockId block);
  // REQUIRES: `block` is indexed and nothing below it is (or goes with it).
  void Erase(BlockId block);

  bool contains(BlockId block) const { return nodes_[block].parent != kNotIndexed; }
  std::int32_t parent(BlockId block) const { return nodes_[block].parent; }
  std::span<const TokenId> tokens(BlockId block) const {
    return {tokens_.data() + static_cast<std::size_t>(block) * block_size_,
            static_cast<std::size_t>(block_size_)};
  }
  std::int64_t size() const { return size_; }
  std::size_t capacity() const { return nodes_.size(); }

 private:
  static constexpr std::int32_t kNotIndexed = -1;
  struct Node {
    std::uint64_t hash = 0;
    std::int32_t parent = kNotIndexed;  // block, or root (<= -2)
    BlockId next = kNoBlock;            // in the same bucket
  };
  struct RootKey {
    std::string salt;
    std::string adapter;
    std::vector<std::uint64_t> extra_keys;
    std::uint32_t rope_choice = 0;
    auto operator<=>(const RootKey&) const = default;
  };
  struct Root {
    std::int64_t references = 0;  // open sequences and child blocks
    std::map<RootKey, RootId>::iterator entry;
  };
  static RootKey KeyOf(const OpenOptions& options, std::uint32_t rope_choice);
  Root& root(RootId id) { return roots_[static_cast<std::size_t>(-2 - id)]; }
  std::uint64_t Hash(std::int32_t parent, std::span<const TokenId> tokens) const;

  const int block_size_;
  std::vector<Node> nodes_;       // by block
  std::vector<TokenId> tokens_;   // [blocks, block_size]
  std::vector<BlockId> buckets_;  // power of two
  std::int64_t size_ = 0;
  std::map<RootKey, RootId> root_ids_;
  std::vector<Root> roots_;
  std::vector<RootId> free_roots_;
};

}  // namespace lariat::blocks
