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

#include "base/huge_pages.h"
#include "blocks/block_pool.h"
#include "blocks/event_log.h"
#include "blocks/transfer.h"
#include "lariat/kv_cache.h"
#include "lariat/types.h"

namespace lariat::blocks {

// A cached text of one block: on the device, in the host tier, or in both.
using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

// Where a path begins: everything that must agree besides the tokens. Negative, so that it cannot
// be taken for a node.
using RootId = std::int32_t;

// The child of a path that agrees with some tokens the longest.
struct NearestChild {
  NodeId node = kNoNode;
  BlockId block = kNoBlock;  // the node's
  std::int64_t tokens = 0;   // the first ones, that agree; > 0 where there is a block
};

// Which texts are cached, and in which blocks: a trie whose nodes are blocks full of tokens. A node
// that is not full has nothing below it. A node has a block on the device, a place in the host
// tier, or both; one with a block has one above it too, up to the root. The children of a node are
// two treaps in order of their tokens, threaded through arrays indexed by node: those on the
// device, and those in the host tier alone. So the child that shares most with a prompt lies on one
// way down, however many there are, and the only child of a node, which is what most nodes have, is
// found at once. Tokens are always compared: nothing relies on a hash. A node that is made for a
// block has its number where that is not in use; without a host tier it always has. Cost:
// O(block_size + log(children)) per call unless said otherwise. No allocation once Reserve has made
// room. Threads: externally synchronised.
class PrefixIndex {
 public:
  // log: what is told of each change; null: nobody
  explicit PrefixIndex(int block_size, EventLog* log = nullptr)
      : block_size_(static_cast<std::size_t>(block_size)), log_(log) {}

  // Makes room for block ids below `blocks`, and for as many nodes more as `hosts` places need.
  // hosts: 0, or at the first call alone
  void Reserve(std::size_t blocks, std::size_t hosts = 0);

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

  // Of the device's nodes that follow `parent` (a node or a root), the one that begins with the
  // most of these tokens. Of several the last one before `tokens` in the order of their own tokens,
  // or else the first one after.
  //   tokens: 1 to block_size; all block_size agree where that text is cached
  NearestChild Nearest(std::int32_t parent, std::span<const TokenId> tokens) const {
    return NearestIn(parent < 0 ? root(parent).child : nodes_[parent].child, tokens);
  }
  // Goes down from `parent` as far as whole blocks agree with `tokens`, and appends theirs to
  // `path`. Returns the nearest child of where it stops, by as many of the next block's tokens as
  // there are. Allocates only where `path` lacks the room.
  //   parent: becomes the node, or root, where it stops
  NearestChild Follow(std::int32_t& parent, std::span<const TokenId> tokens,
                      std::vector<BlockId>& path) const;
  // The same of those in the host tier alone.
  NearestChild NearestOnHost(std::int32_t parent, std::span<const TokenId> tokens) const {
    return NearestIn(HostTopOf(parent), tokens);
  }
  // The device's node that follows `parent` with these block_size tokens, or kNoNode.
  NodeId Find(std::int32_t parent, std::span<const TokenId> tokens) const {
    return Exact(Nearest(parent, tokens), tokens);
  }
  // The one in the host tier alone with just these tokens, block_size or fewer.
  NodeId FindOnHost(std::int32_t parent, std::span<const TokenId> tokens) const {
    return Exact(NearestOnHost(parent, tokens), tokens);
  }
  //   tokens: 1 to block_size
  // REQUIRES: `block` has no node, `parent` is full and on the device or a root, and no child of it
  // begins with `tokens` (of those in the host tier alone: has just these).
  NodeId Insert(std::int32_t parent, std::span<const TokenId> tokens, BlockId block);
  // REQUIRES: nothing is below the node.
  void Erase(NodeId node);
  // The node gets a block. REQUIRES: it has a place alone, and its parent a block.
  void GiveBlock(NodeId node, BlockId block);
  // The node loses its block. REQUIRES: it has a place, and no node with a block is below it.
  void TakeBlock(NodeId node);
  // kNoHost: the node loses its place. REQUIRES: there is a host tier.
  void SetHost(NodeId node, HostId host) {
    if (log_ != nullptr) LogHost(node, host);
    on_host_[node].host = host;
  }

  // A node at `top` or below it with nothing below itself.
  NodeId LeafBelow(NodeId top) const {
    while (true) {
      NodeId next = nodes_[top].child;
      if (next == kNoNode && !on_host_.empty()) next = on_host_[top].child;
      if (next == kNoNode) return top;
      top = next;
    }
  }
  // A node with nothing above it, or kNoNode.
  NodeId AnyChild(RootId id) const {
    return root(id).child == kNoNode ? root(id).host_child : root(id).child;
  }
  // A node below this one that is in the host tier alone, or kNoNode.
  NodeId HostChild(NodeId node) const { return HostTopOf(node); }
  // The roots there are, one after the other; 0: no more. In order of their keys.
  RootId FirstRoot() const { return root_ids_.empty() ? 0 : root_ids_.begin()->second; }
  RootId NextRoot(RootId id) const {
    const auto next = std::next(root(id).entry);
    return next == root_ids_.end() ? 0 : next->second;
  }
  std::string_view salt(RootId id) const { return root(id).entry->first.salt; }
  // Erases everything. O(nodes).
  void Clear();

  // Tells that a node is kAhead blocks below another one, of which it may be the only word: Follow
  // has it fetched as soon as it comes by that one. Nothing else depends on it.
  static constexpr std::size_t kAhead = 12;
  void NoteBelow(NodeId above, NodeId node) { nodes_[above].ahead = node; }

  // Has a node and its tokens fetched: they will be asked for soon.
  void Prefetch(NodeId node) const {
    __builtin_prefetch(&nodes_[node]);
    __builtin_prefetch(&tokens_[static_cast<std::size_t>(node) * block_size_]);
  }

  // Of a block.
  bool contains(BlockId block) const { return node(block) != kNoNode; }
  NodeId node(BlockId block) const {
    if (nodes_[block].block == block) return block;
    return on_host_.empty() ? kNoNode : spare_of_[block];
  }
  // Of a node.
  bool used(NodeId node) const { return nodes_[node].parent != kNotUsed; }
  BlockId block(NodeId node) const { return nodes_[node].block; }
  HostId host(NodeId node) const { return on_host_.empty() ? kNoHost : on_host_[node].host; }
  // Times that Hit was called since the node was made.
  std::int32_t Hit(NodeId node) { return ++on_host_[node].hits; }
  std::int32_t hits(NodeId node) const { return on_host_[node].hits; }
  std::int32_t parent(NodeId node) const { return nodes_[node].parent; }
  std::span<const TokenId> tokens(NodeId node) const {
    return {tokens_.data() + static_cast<std::size_t>(node) * block_size_,
            static_cast<std::size_t>(nodes_[node].count)};
  }
  std::int64_t size() const { return size_; }         // nodes with a block
  std::size_t capacity() const { return capacity_; }  // blocks
  NodeId end() const { return static_cast<NodeId>(nodes_.size()); }
  // Tells the log of a block that the index does not see: another group's, beside the node's.
  void NoteSide(NodeId node, std::size_t side, Tier tier, bool stored) {
    if (log_ == nullptr) return;
    const auto group = static_cast<std::int32_t>(side) + 1;
    stored ? LogStored(node, tier, group) : LogRemoved(node, tier, group);
  }
  // A node's block of a tier and group, as an event says it. REQUIRES: there is a log.
  KVEvent Describe(NodeId node, Tier tier, std::int32_t group) const {
    const BlockName above = NameOf(parent(node));
    return {.tier = tier,
            .group = group,
            .number = log_->last_number(),
            .hash = log_->name(node).hash,
            .parent = above.hash,
            .first_token = above.end,
            .tokens = tokens(node)};
  }

 private:
  static constexpr std::int32_t kNotUsed = -1;
  static constexpr std::size_t kHead = 1;
  struct Node {
    std::int32_t parent = kNotUsed;  // node, or root (<= -2)
    NodeId child = kNoNode;          // top of the treap of its children on the device
    NodeId left = kNoNode;           // in the treap of its siblings
    NodeId right = kNoNode;
    BlockId block = kNoBlock;
    std::int32_t count = 0;    // of its tokens
    NodeId ahead = kNoNode;    // one kAhead blocks below it, or what was; see NoteBelow
    TokenId head[kHead] = {};  // its first tokens: what most comparisons come down to
  };
  static_assert(sizeof(Node) == 32);
  // What a node has besides where there is a host tier.
  struct OnHost {
    HostId host = kNoHost;
    NodeId child = kNoNode;  // top of the treap of its children in the host tier alone
    std::int32_t hits = 0;
  };
  struct RootKey {
    std::string salt;
    std::string adapter;
    std::vector<std::uint64_t> extra_keys;
    std::uint32_t rope_choice = 0;
    auto operator<=>(const RootKey&) const = default;
  };
  struct Root {
    std::int64_t references = 0;  // open sequences and child nodes
    NodeId child = kNoNode;       // top of the treap of its children on the device
    NodeId host_child = kNoNode;  // and in the host tier alone
    BlockHash hash;               // where there is a log
    std::map<RootKey, RootId>::const_iterator entry;
  };
  static RootKey KeyOf(const OpenOptions& options, std::uint32_t rope_choice);
  Root& root(RootId id) { return roots_[static_cast<std::size_t>(-2 - id)]; }
  const Root& root(RootId id) const { return roots_[static_cast<std::size_t>(-2 - id)]; }
  NodeId& TopOf(std::int32_t parent) {
    return parent < 0 ? root(parent).child : nodes_[parent].child;
  }
  NodeId& HostTopOf(std::int32_t parent) {
    return parent < 0 ? root(parent).host_child : on_host_[parent].child;
  }
  NodeId HostTopOf(std::int32_t parent) const {
    if (on_host_.empty()) return kNoNode;
    return parent < 0 ? root(parent).host_child : on_host_[parent].child;
  }
  bool is_spare(NodeId node) const { return static_cast<std::size_t>(node) >= capacity_; }
  NodeId Exact(const NearestChild& nearest, std::span<const TokenId> tokens) const {
    const auto wanted = static_cast<std::int64_t>(tokens.size());
    if (nearest.tokens < wanted || nodes_[nearest.node].count != wanted) return kNoNode;
    return nearest.node;
  }
  NearestChild NearestIn(NodeId top, std::span<const TokenId> tokens) const;
  bool NotAfter(std::span<const TokenId> tokens, NodeId node, std::size_t& same) const;
  void Split(NodeId top, std::span<const TokenId> tokens, NodeId& before, NodeId& after);
  NodeId Join(NodeId before, NodeId after);
  void Link(NodeId& top, NodeId node, std::span<const TokenId> tokens);
  void Unlink(NodeId& top, NodeId node);
  BlockName NameOf(std::int32_t parent) const {
    return parent < 0 ? BlockName{root(parent).hash} : log_->name(parent);
  }
  void LogStored(NodeId node, Tier tier, std::int32_t group = 0);
  void LogRemoved(NodeId node, Tier tier, std::int32_t group = 0);
  void LogHost(NodeId node, HostId host);

  const std::size_t block_size_;
  EventLog* const log_;
  HugePageVector<Node> nodes_;      // by node; the first ones have the blocks' numbers
  std::vector<NodeId> spare_of_;    // by block, with a host tier: its node of another number
  std::vector<OnHost> on_host_;     // by node; empty: there is no host tier
  HugePageVector<TokenId> tokens_;  // [nodes, block_size]
  std::vector<NodeId> spare_;       // nodes without a block's number, the next one to take last
  std::size_t capacity_ = 0;
  std::int64_t size_ = 0;
  std::map<RootKey, RootId> root_ids_;
  std::vector<Root> roots_;
  std::vector<RootId> free_roots_;
};

}  // namespace lariat::blocks
