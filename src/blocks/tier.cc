// SPDX-License-Identifier: Apache-2.0
// Copies of blocks in the host tier: when they are made, what they are good for, and when they go.
#include <algorithm>
#include <cassert>

#include "blocks/block_manager.h"

namespace lariat::blocks {

Status BlockManager::CheckTier() const {
  if (!has_tier()) return Unsupported("host: the cache has no host tier");
  return CheckIdle();
}

// --- Places -----------------------------------------------------------------------------------

// A place for a copy that is good to have, held; kNoHost: there is none.
HostId BlockManager::TakePlace() {
  const HostId host = host_.TakeFree();
  if (host != kNoHost) return host;
  const HostId oldest = host_.oldest(HostPool::kAlone);
  // Copies of what is on the device stay: to write one victim is not worth another one's copy.
  if (oldest == kNoHost) return kNoHost;
  ++host_evicted_;
  const NodeId node = host_.node(oldest);
  host_.side(oldest) < 0 ? static_cast<void>(Forget(node)) : DropPlace(node, host_.side(oldest));
  return host_.TakeFree();
}

void BlockManager::GivePlace(NodeId node, int side, HostId host) {
  const BlockId block = BlockOf(node, side);
  SetHost(node, side, host);
  host_.SetNode(host, node, side);
  host_.source(host) = {block, pool_.generation(block)};
}

// The node has no copy of this group's block any more.
void BlockManager::DropPlace(NodeId node, int side) {
  const HostId host = HostOf(node, side);
  if (host == kNoHost) return;
  const HostPool::List list = ListOf(host);
  SetHost(node, side, kNoHost);
  host_.DropNode(host, list);
}

// Nor of any other.
void BlockManager::DropPlaces(NodeId node) {
  for (int side = -1; side < static_cast<int>(sides_.count()); ++side) DropPlace(node, side);
}

void BlockManager::Unhold(HostId host) {
  const NodeId node = host_.node(host);
  host_.Unhold(host, node == kNoNode ? HostPool::kAlone : ListOf(host));
}

// --- Eviction from the device -----------------------------------------------------------------

// The block of a victim, which is not idle any more, serves something else from now on.
void BlockManager::Evict(BlockId victim) {
  idle_.Leave(victim);
  if (const BlockId owner = sides_.owner(victim); owner != kNoBlock) {
    const NodeId node = index_.node(owner);
    const HostId copy = sides_.host(node, sides_.side(victim));
    index_.NoteSide(node, sides_.side(victim), Tier::kDevice, /*stored=*/false);
    sides_.Detach(victim);
    if (copy != kNoHost) host_.Move(copy, HostPool::kOnDevice, HostPool::kAlone);
    return;
  }
  const NodeId node = index_.node(victim);
  assert(!HasSides(victim));  // those are evicted before it
  if (!has_tier()) return index_.Erase(node);
  const HostId host = index_.host(node);
  if (host != kNoHost) {
    index_.TakeBlock(node);
    host_.Move(host, HostPool::kOnDevice, HostPool::kAlone);
    return;
  }
  // Nobody finds what is below it in the host tier without it.
  for (NodeId child; (child = index_.HostChild(node)) != kNoNode;) Forget(child);
  DropPlaces(node);
  index_.Erase(node);
}

// --- Writes -----------------------------------------------------------------------------------

// Makes a copy of a node's block on the device, unless it has one. False: there is no place for it.
bool BlockManager::Write(NodeId node, int side) {
  if (HostOf(node, side) != kNoHost) return true;
  const HostId host = TakePlace();
  if (host == kNoHost) return false;
  GivePlace(node, side, host);
  host_.Unhold(host, HostPool::kOnDevice);
  writes_.push_back({BlockOf(node, side), host});  // a block is written once, so there is room
  return true;
}

void BlockManager::NoteIndexed(NodeId node) {
  if (config_.write == WritePolicy::kThrough) Write(node, -1);
}

// The hit of a first plan that was prepared.
void BlockManager::NoteHits(const StepRows& rows, const Sequence& sequence) {
  if (config_.write != WritePolicy::kAfterHits) return;
  const std::int64_t blocks = rows.hit / config_.block_size;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const NodeId node = index_.node(sequence.table[static_cast<std::size_t>(b)]);
    if (index_.Hit(node) < config_.write_after_hits) continue;
    Write(node, -1);
    for (std::size_t side = 0; side < sides_.count(); ++side) {
      const bool claimed = b >= sequence.sides[side].slid;
      if (claimed) Write(node, static_cast<int>(side));
    }
  }
}

// Sees to it that the next victims have copies. Once that is true of clean_blocks of them, it looks
// again when half of those may be gone, so that a look costs each of them little.
void BlockManager::KeepClean() {
  if (!has_tier() || config_.write != WritePolicy::kBack) return;
  const std::int64_t known = clean_ - (idle_.changes() - looked_at_);
  const std::int64_t wanted = (config_.clean_blocks + 1) / 2;
  if (known >= std::min(wanted, pool_.count(BlockState::kIdle))) return;
  if (host_.free() == 0 && host_.cached(HostPool::kAlone) == 0) return;
  next_victims_.clear();
  idle_.NextVictims(static_cast<std::size_t>(config_.clean_blocks), next_victims_);
  clean_ = 0;
  looked_at_ = idle_.changes();
  for (const BlockId block : next_victims_) {
    const BlockId owner = sides_.owner(block);
    const bool written = owner == kNoBlock
                             ? Write(index_.node(block), -1)
                             : Write(index_.node(owner), static_cast<int>(sides_.side(block)));
    if (!written) break;
    ++clean_;
  }
}

void BlockManager::WritesStarted() {
  if (writes_.empty()) return;
  for (const TierCopy& copy : writes_) {
    read_by_[copy.block] = next_batch_;
    host_.batch(copy.host) = next_batch_;
  }
  offloaded_ += std::ssize(writes_);
  writes_.clear();
  ++next_batch_;
}

void BlockManager::WritesFailed() {
  for (const TierCopy& copy : writes_) {
    if (host_.used(copy.host)) Spoil(copy.host);
  }
  writes_.clear();
  clean_ = 0;
}

void BlockManager::BatchFailed(std::uint64_t batch) {
  for (HostId host = 0; host < static_cast<HostId>(host_.total()); ++host) {
    if (host_.used(host) && host_.batch(host) == batch) Spoil(host);
  }
  clean_ = 0;
  NoteSpoiled();
}

// What the place holds is not what it should be.
void BlockManager::Spoil(HostId host) {
  host_.SetBad(host);
  const NodeId node = host_.node(host);
  if (node == kNoNode) return;
  if (host_.side(host) < 0 && index_.block(node) == kNoBlock) {
    Forget(node);
  } else if (host_.side(host) < 0) {
    // Who brings what is beside it holds the first group's block too: so none of it is left alone.
    DropPlaces(node);
  } else {
    DropPlace(node, host_.side(host));
  }
}

// Suspended sequences do not come back from spoilt places.
void BlockManager::NoteSpoiled() {
  for (const auto& sequence : sequences_.entries()) {
    bool bad = false;
    ForEachPlace(*sequence, [&](HostId host) { bad |= host_.bad(host); });
    if (!bad) continue;
    sequence->corrupt = true;
    sequence->indexable = false;
  }
}

// The last batch of writes that reads a block that the step writes to.
std::uint64_t BlockManager::FenceOf(const PlannedStep& step) const {
  std::uint64_t fence = 0;
  for (const UndoEntry& entry : step.undo) {
    if (entry.kind != UndoEntry::kTakeFree && entry.kind != UndoEntry::kTakeIdle) continue;
    fence = std::max(fence, read_by_[entry.block]);
  }
  for (const PlannedItem& item : step.items) {
    if (item.tail_block != kNoBlock) fence = std::max(fence, read_by_[item.tail_block]);
  }
  for (const BlockId tail : step.side_tails) {
    if (tail != kNoBlock) fence = std::max(fence, read_by_[tail]);
  }
  return fence;
}

// --- Matches ----------------------------------------------------------------------------------

// The length of the longest match where the host tier counts too.
//   parent: the last whole block that the device has of it, or the root
//   blocks: whole blocks up to there;  in_tail: tokens that the device has of one more
//   path: if not null, gets the places of what is in the host tier alone
std::int64_t BlockManager::HostTokens(std::int32_t parent, std::span<const TokenId> tokens,
                                      std::size_t blocks, std::int64_t in_tail,
                                      std::vector<HostId>* path) const {
  const auto size = static_cast<std::int64_t>(config_.block_size);
  std::int64_t best = static_cast<std::int64_t>(blocks) * size + in_tail;
  while (true) {
    const auto next = NextTokens(tokens, blocks, std::ssize(tokens));
    if (next.empty()) return best;
    const NearestChild nearest = index_.NearestOnHost(parent, next);
    const std::int64_t here = static_cast<std::int64_t>(blocks) * size + nearest.tokens;
    const bool whole = nearest.tokens == size;
    if (!whole && (!config_.token_reuse || here <= best)) return best;
    best = here;
    if (path != nullptr) path->push_back(index_.host(nearest.node));
    if (!whole) return best;
    ++blocks;
    parent = nearest.node;
  }
}

// The same of a sequence whose match on the device was brought up to date.
std::int64_t BlockManager::HostTokens(const Sequence& sequence, std::vector<HostId>* path) const {
  if (sides_.any()) {
    return std::max(MatchTokens(sequence), FindInTiers(sequence.prompt(), sequence.root).tokens);
  }
  const auto& blocks = sequence.match_path;
  const std::int32_t parent = blocks.empty() ? sequence.root : index_.node(blocks.back());
  const std::int64_t reusable = ReusableTokens(sequence.prompt_length);
  return HostTokens(parent, sequence.ids.all().first(static_cast<std::size_t>(reusable)),
                    blocks.size(), sequence.match_partial.tokens, path);
}

}  // namespace lariat::blocks
