// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <compare>
#include <cstdint>
#include <iterator>
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

// The child of a path that agrees with some tokens the longest.
struct NearestChild {
  BlockId block = kNoBlock;
  std::int64_t tokens = 0;  // the first ones, that agree; > 0 where there is a block
};

// Which blocks are cached, and for which tokens: a trie whose nodes are the blocks themselves. A
// block that is not full has nothing below it.
// The children of a node are a treap in order of their tokens, threaded through arrays indexed by
// block; so the one that shares most with a prompt lies on one way down, however many there are,
// and the only child of a node, which is what most nodes have, is found at once. Tokens are always
// compared: nothing relies on a hash.
// Cost: O(block_size + log(children)) per call unless said otherwise. No allocation once Reserve
// has made room.
// Threads: externally synchronised.
class PrefixIndex {
 public:
  explicit PrefixIndex(int block_size) : block_size_(static_cast<std::size_t>(block_size)) {}

  // Makes room for block ids below `blocks`.
  void Reserve(std::size_t blocks);

  // The root for these options and rope table, made when new; holds one reference until DropRoot.
  RootId AcquireRoot(const OpenOptions& options, std::uint32_t rope_choice);
  void AddRootReference(RootId root);
  void DropRoot(RootId root);
  // What the root stands for; its strings live as long as the root.
  OpenOptions OptionsOf(RootId id) const {
    const RootKey& key = root(id).entry->first;
    return {.salt = key.salt, .adapter = key.adapter, .extra_keys = key.extra_keys};
  }
  // The root if there is one with cached blocks or open sequences; 0: none.
  RootId FindRoot(const OpenOptions& options, std::uint32_t rope_choice) const;

  // Of the cached blocks that follow `parent` (a block or a root), the one that begins with the
  // most of these tokens. Of several the last one before `tokens` in the order of their own tokens,
  // or else the first one after.
  //   tokens: 1 to block_size; all block_size agree where that block is cached
  NearestChild Nearest(std::int32_t parent, std::span<const TokenId> tokens) const;
  // The cached block that follows `parent` with these block_size tokens, or kNoBlock.
  BlockId Find(std::int32_t parent, std::span<const TokenId> tokens) const {
    const NearestChild nearest = Nearest(parent, tokens);
    return static_cast<std::size_t>(nearest.tokens) == block_size_ ? nearest.block : kNoBlock;
  }
  //   tokens: 1 to block_size
  // REQUIRES: `block` is not indexed, `parent` is full, and no child of it begins with `tokens`.
  void Insert(std::int32_t parent, std::span<const TokenId> tokens, BlockId block);
  // REQUIRES: `block` is indexed and nothing below it is.
  void Erase(BlockId block);
  // A block that is indexed, at `top` or below it, with nothing below itself.
  BlockId LeafBelow(BlockId top) const {
    while (nodes_[top].child != kNoBlock) top = nodes_[top].child;
    return top;
  }
  // A block with nothing above it, or kNoBlock.
  BlockId AnyChild(RootId id) const { return root(id).child; }
  // The roots there are, one after the other; 0: no more. In order of their keys.
  RootId FirstRoot() const { return root_ids_.empty() ? 0 : root_ids_.begin()->second; }
  RootId NextRoot(RootId id) const {
    const auto next = std::next(root(id).entry);
    return next == root_ids_.end() ? 0 : next->second;
  }
  std::string_view salt(RootId id) const { return root(id).entry->first.salt; }
  // Erases everything. O(blocks).
  void Clear();

  bool contains(BlockId block) const { return nodes_[block].parent != kNotIndexed; }
  std::int32_t parent(BlockId block) const { return nodes_[block].parent; }
  std::span<const TokenId> tokens(BlockId block) const {
    return {tokens_.data() + static_cast<std::size_t>(block) * block_size_,
            static_cast<std::size_t>(nodes_[block].count)};
  }
  std::int64_t size() const { return size_; }
  std::size_t capacity() const { return nodes_.size(); }

 private:
  static constexpr std::int32_t kNotIndexed = -1;
  static constexpr std::size_t kHead = 2;
  struct Node {
    std::int32_t parent = kNotIndexed;  // block, or root (<= -2)
    BlockId child = kNoBlock;           // top of the treap of its children
    BlockId left = kNoBlock;            // in the treap of its siblings
    BlockId right = kNoBlock;
    std::int32_t count = 0;    // of its tokens
    TokenId head[kHead] = {};  // the first of them: what most comparisons come down to
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
    BlockId child = kNoBlock;     // top of the treap of its children
    std::map<RootKey, RootId>::const_iterator entry;
  };
  static RootKey KeyOf(const OpenOptions& options, std::uint32_t rope_choice);
  Root& root(RootId id) { return roots_[static_cast<std::size_t>(-2 - id)]; }
  const Root& root(RootId id) const { return roots_[static_cast<std::size_t>(-2 - id)]; }
  BlockId& TopOf(std::int32_t parent) {
    return parent < 0 ? root(parent).child : nodes_[parent].child;
  }
  bool NotAfter(std::span<const TokenId> tokens, BlockId block, std::size_t& same) const;
  void Split(BlockId top, std::span<const TokenId> tokens, BlockId& before, BlockId& after);
  BlockId Join(BlockId before, BlockId after);

  const std::size_t block_size_;
  std::vector<Node> nodes_;      // by block
  std::vector<TokenId> tokens_;  // [blocks, block_size]
  std::int64_t size_ = 0;
  std::map<RootKey, RootId> root_ids_;
  std::vector<Root> roots_;
  std::vector<RootId> free_roots_;
};

}  // namespace lariat::blocks
