// SPDX-License-Identifier: Apache-2.0
#include "blocks/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace lariat::blocks {

namespace {

// Ranks a node in a treap: the same on every machine, and as good as random. Odd factors and
// shifts can be undone, so no two nodes have the same rank.
std::uint32_t RankOf(NodeId node) {
  auto rank = static_cast<std::uint32_t>(node) * 0x9E3779B1U;  // golden ratio
  rank ^= rank >> 15;
  rank *= 0x85EBCA77U;
  return rank ^ rank >> 13;
}

// Whether two texts of so many tokens are one.
inline bool Agree(const TokenId* a, const TokenId* b, std::size_t count) {
  constexpr std::size_t kAtOnce = 16;  // a cache line, without a call
  if (count % kAtOnce != 0) return std::memcmp(a, b, count * sizeof(TokenId)) == 0;
  for (std::size_t first = 0; first < count; first += kAtOnce) {
    std::uint64_t differ = 0;
    for (std::size_t i = first; i < first + kAtOnce; i += 2) {
      std::uint64_t one, other;
      std::memcpy(&one, a + i, sizeof(one));
      std::memcpy(&other, b + i, sizeof(other));
      differ |= one ^ other;
    }
    if (differ != 0) return false;
  }
  return true;
}

}  // namespace

void PrefixIndex::Reserve(std::size_t blocks, std::size_t hosts) {
  if (blocks <= capacity_) return;
  // Each node has a block or a place; any of them may lack its block's number.
  const std::size_t spare = hosts == 0 ? 0 : blocks + hosts;
  tokens_.resize((blocks + spare) * block_size_);
  if (log_ != nullptr) log_->Reserve(blocks + spare);
  nodes_.resize(blocks + spare);
  if (spare > 0) {
    on_host_.resize(blocks + spare);
    spare_of_.resize(blocks, kNoNode);
  }
  spare_.reserve(spare);
  for (std::size_t n = blocks + spare; n > blocks; --n) {
    spare_.push_back(static_cast<NodeId>(n - 1));
  }
  capacity_ = blocks;
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
  if (log_ != nullptr) root(id).hash = HashRoot(options, rope_choice);
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

// Whether `tokens` come before the node's own or are where those begin.
//   same: tokens known to agree; becomes how many do
bool PrefixIndex::NotAfter(std::span<const TokenId> tokens, NodeId id, std::size_t& same) const {
  const Node& node = nodes_[id];
  const std::size_t both = std::min(tokens.size(), static_cast<std::size_t>(node.count));
  for (; same < std::min(both, kHead); ++same) {
    if (tokens[same] != node.head[same]) return tokens[same] < node.head[same];
  }
  const TokenId* const mine = tokens.data();
  const TokenId* const theirs = tokens_.data() + static_cast<std::size_t>(id) * block_size_;
  // What is looked for is there more often than not.
  if (std::memcmp(mine + same, theirs + same, (both - same) * sizeof(TokenId)) == 0) same = both;
  for (; same + 2 <= both; same += 2) {
    if (std::memcmp(mine + same, theirs + same, 2 * sizeof(TokenId)) != 0) break;
  }
  while (same < both && mine[same] == theirs[same]) ++same;
  if (same == tokens.size()) return true;
  return same < both && mine[same] < theirs[same];
}

NearestChild PrefixIndex::NearestIn(NodeId at, std::span<const TokenId> tokens) const {
  NodeId before = kNoNode, after = kNoNode;     // the nearest ones on each side so far
  std::size_t same_before = 0, same_after = 0;  // tokens that they share with `tokens`
  while (at != kNoNode) {
    // What lies between two nodes begins as both do.
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
  const NodeId nearest = same_before >= same_after ? before : after;
  return {nearest, nodes_[nearest].block,
          static_cast<std::int64_t>(std::max(same_before, same_after))};
}

NearestChild PrefixIndex::Follow(std::int32_t& parent, std::span<const TokenId> tokens,
                                 std::vector<BlockId>& path) const {
  const std::size_t size = block_size_;
  const Node* const nodes = nodes_.data();
  const TokenId* const texts = tokens_.data();
  const TokenId* next = tokens.data();
  std::size_t left = tokens.size();
  std::int32_t last = parent;
  NearestChild nearest;
  NodeId top = last < 0 ? root(last).child : nodes[last].child;
  for (; left > 0 && top != kNoNode; top = nodes[last].child) {
    // What is looked for is there more often than not, as an only child.
    const bool whole = left >= size && static_cast<std::size_t>(nodes[top].count) == size &&
                       Agree(texts + static_cast<std::size_t>(top) * size, next, size);
    if (!whole) {
      nearest = NearestIn(top, {next, std::min(left, size)});
      if (static_cast<std::size_t>(nearest.tokens) < size) break;
      top = nearest.node;
      nearest = {};
    }
    if (nodes[top].ahead != kNoNode) Prefetch(nodes[top].ahead);
    path.push_back(nodes[top].block);
    last = top;
    next += size;
    left -= size;
  }
  parent = last;
  return nearest;
}

// Cuts a treap in two: what comes before `tokens`, and what comes after.
void PrefixIndex::Split(NodeId top, std::span<const TokenId> tokens, NodeId& before,
                        NodeId& after) {
  NodeId* left = &before;
  NodeId* right = &after;
  while (top != kNoNode) {
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
  *left = kNoNode;
  *right = kNoNode;
}

// The inverse: all of the one comes before all of the other.
NodeId PrefixIndex::Join(NodeId before, NodeId after) {
  NodeId top = kNoNode;
  NodeId* link = &top;
  while (before != kNoNode && after != kNoNode) {
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
  *link = before == kNoNode ? after : before;
  return top;
}

// Puts a node with these tokens into a treap of siblings.
void PrefixIndex::Link(NodeId& top, NodeId id, std::span<const TokenId> tokens) {
  NodeId* link = &top;
  const std::uint32_t rank = RankOf(id);
  while (*link != kNoNode && RankOf(*link) > rank) {
    std::size_t same = 0;
    link = NotAfter(tokens, *link, same) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  Node& node = nodes_[id];
  Split(*link, tokens, node.left, node.right);
  *link = id;
}

void PrefixIndex::Unlink(NodeId& top, NodeId id) {
  NodeId* link = &top;
  while (*link != id) {
    std::size_t same = 0;
    link = NotAfter(tokens(id), *link, same) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  const Node& node = nodes_[id];
  *link = Join(node.left, node.right);
}

NodeId PrefixIndex::Insert(std::int32_t parent, std::span<const TokenId> tokens, BlockId block) {
  assert(!contains(block) && !tokens.empty() && tokens.size() <= block_size_);
  NodeId id = block;
  if (used(id)) {  // by a text that has lost the block
    id = spare_.back();
    spare_.pop_back();
    spare_of_[block] = id;
  }
  Node& node = nodes_[id];
  node.parent = parent;
  node.block = block;
  node.count = static_cast<std::int32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(block_size_) * id);
  std::copy_n(tokens.begin(), std::min(kHead, tokens.size()), node.head);
  Link(TopOf(parent), id, tokens);
  if (parent < 0) ++root(parent).references;
  ++size_;
  if (log_ != nullptr) {
    log_->Name(id, NameOf(parent), tokens);
    LogStored(id, Tier::kDevice);
  }
  return id;
}

void PrefixIndex::Erase(NodeId id) {
  Node& node = nodes_[id];
  assert(used(id) && node.child == kNoNode && HostChild(id) == kNoNode);
  if (node.block != kNoBlock) {
    if (log_ != nullptr) LogRemoved(id, Tier::kDevice);
    Unlink(TopOf(node.parent), id);
    if (node.block != id) spare_of_[node.block] = kNoNode;
    --size_;
  } else {
    Unlink(HostTopOf(node.parent), id);
  }
  if (node.parent < 0) DropRoot(node.parent);
  node = {};
  if (!on_host_.empty()) on_host_[id] = {};
  if (is_spare(id)) spare_.push_back(id);
}

void PrefixIndex::GiveBlock(NodeId id, BlockId block) {
  Node& node = nodes_[id];
  assert(used(id) && node.block == kNoBlock && !contains(block));
  Unlink(HostTopOf(node.parent), id);
  Link(TopOf(node.parent), id, tokens(id));
  node.block = block;
  if (block != id) spare_of_[block] = id;
  ++size_;
  if (log_ != nullptr) LogStored(id, Tier::kDevice);
}

void PrefixIndex::TakeBlock(NodeId id) {
  Node& node = nodes_[id];
  assert(node.block != kNoBlock && node.child == kNoNode && host(id) != kNoHost);
  Unlink(TopOf(node.parent), id);
  Link(HostTopOf(node.parent), id, tokens(id));
  if (node.block != id) spare_of_[node.block] = kNoNode;
  node.block = kNoBlock;
  --size_;
  if (log_ != nullptr) LogRemoved(id, Tier::kDevice);
}

// --- The log, where there is one --------------------------------------------------------------

void PrefixIndex::LogStored(NodeId id, Tier tier, std::int32_t group) {
  log_->Stored(id, NameOf(parent(id)), tokens(id), tier, group);
}

void PrefixIndex::LogRemoved(NodeId id, Tier tier, std::int32_t group) {
  log_->Removed(id, NameOf(parent(id)), tier, group);
}

// The node's place is about to become `next`.
void PrefixIndex::LogHost(NodeId id, HostId next) {
  const bool had = on_host_[id].host != kNoHost, has = next != kNoHost;
  if (has && !had) LogStored(id, Tier::kHost);
  if (had && !has) LogRemoved(id, Tier::kHost);
}

void PrefixIndex::Clear() {
  for (NodeId id = 0; id < end(); ++id) {
    Node& node = nodes_[id];
    if (!used(id)) continue;
    if (node.parent < kNotUsed) {
      root(node.parent).child = root(node.parent).host_child = kNoNode;
      DropRoot(node.parent);
    }
    if (node.block != kNoBlock && node.block != id) spare_of_[node.block] = kNoNode;
    node = {};
    if (!on_host_.empty()) on_host_[id] = {};
    if (is_spare(id)) spare_.push_back(id);
  }
  size_ = 0;
}

}  // namespace lariat::blocks
