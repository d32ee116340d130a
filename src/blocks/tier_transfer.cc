// SPDX-License-Identifier: Apache-2.0
// Fetch and Resume: from the host tier to the device, until Accept.
#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "blocks/block_manager.h"

namespace lariat::blocks {

namespace {

std::string NameOf(TransferId id) {
  return "transfer " + std::to_string(static_cast<std::uint64_t>(id));
}

// A transfer of up to so many blocks, with room for all that it will need.
Transfer MakeTransfer(SequenceId sequence, std::size_t blocks) {
  Transfer transfer;
  transfer.sequence = sequence;
  transfer.items.reserve(blocks);
  transfer.copies.reserve(blocks);
  transfer.undo.reserve(blocks);
  transfer.victims.reserve(blocks);
  return transfer;
}

}  // namespace

// --- Start ------------------------------------------------------------------------------------

Result<TransferId> BlockManager::Fetch(SequenceId id) {
  if (Status s = CheckTier(); !s.ok()) return s;
  Result<Sequence*> found = FindUsable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.started) {
    return InvalidArgument(NameOf(id) + " was planned already: its prefix hit is decided");
  }
  ExtendMatch(sequence);
  if (sides_.any()) {
    const TierPath path = FindInTiers(sequence.prompt(), sequence.root);
    if (path.tokens <= MatchTokens(sequence)) return TransferId::kNone;
    transfers_.push_back(
        MakeTransfer(id, path.nodes.size() * static_cast<std::size_t>(GroupCount())));
    AddTierPath(path, transfers_.back());
    return OpenTransfer();
  }
  std::vector<HostId> path;
  HostTokens(sequence, &path);
  if (path.empty()) return TransferId::kNone;
  transfers_.push_back(MakeTransfer(id, sequence.match_path.size() + path.size()));
  Transfer& transfer = transfers_.back();
  for (const BlockId block : sequence.match_path) AddBlock(block, kNoHost, -1, transfer);
  for (const HostId host : path) AddCopy(host, -1, transfer);
  return OpenTransfer();
}

// The path, and what the windows before its end want.
void BlockManager::AddTierPath(const TierPath& path, Transfer& transfer) {
  for (int side = -1; side < static_cast<int>(sides_.count()); ++side) {
    std::int64_t first = 0;
    if (side >= 0) {
      const Reach& reach = sides_.reach(static_cast<std::size_t>(side));
      first = reach.First(path.tokens) / config_.block_size;
    }
    for (auto n = static_cast<std::size_t>(first); n < path.nodes.size(); ++n) {
      const BlockId block = BlockOf(path.nodes[n], side);
      block == kNoBlock ? AddCopy(HostOf(path.nodes[n], side), side, transfer)
                        : AddBlock(block, kNoHost, side, transfer);
    }
  }
}

// A cached copy, which the transfer holds.
void BlockManager::AddCopy(HostId host, int side, Transfer& transfer) {
  const HostId previous = host_.Hold(host, HostPool::kAlone);
  AddPlace(host, side, transfer);
  transfer.items.back().previous = previous;
}

Result<TransferId> BlockManager::Resume(SequenceId id) {
  if (Status s = CheckTier(); !s.ok()) return s;
  Result<Sequence*> found = FindSound(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.in_transit) return CheckHere(sequence);
  if (!sequence.suspended) return InvalidArgument(NameOf(id) + " is not suspended");
  transfers_.push_back(
      MakeTransfer(id, sequence.places.size() * static_cast<std::size_t>(GroupCount())));
  Transfer& transfer = transfers_.back();
  transfer.resumes = true;
  bool waits = AddToResume(sequence.places, -1, transfer);
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    waits |= AddToResume(sequence.sides[side].places, static_cast<int>(side), transfer);
  }
  if (waits) return OpenTransfer();
  Depart(transfer);
  Land(transfer, /*failed=*/false);
  transfers_.pop_back();
  EnforceQuotas();
  KeepClean();
  return TransferId::kNone;
}

// The blocks that a suspended sequence has of one group. Whether some are not on the device.
bool BlockManager::AddToResume(std::span<const HostId> places, int side, Transfer& transfer) {
  bool waits = false;
  for (const HostId host : places) {
    const NodeId node = host_.node(host);
    const BlockId block = node == kNoNode ? kNoBlock : BlockOf(node, side);
    waits |= block == kNoBlock;
    block == kNoBlock ? AddPlace(host, side, transfer) : AddBlock(block, host, side, transfer);
  }
  return waits;
}

// One of the sequence's blocks is on the device.
void BlockManager::AddBlock(BlockId block, HostId host, int side, Transfer& transfer) {
  Claim(block, transfer.undo);
  transfer.items.push_back({.block = block, .host = host, .side = side});
}

// One is not, but may be on its way.
void BlockManager::AddPlace(HostId host, int side, Transfer& transfer) {
  const BlockId incoming = host_.incoming(host);
  if (incoming != kNoBlock) Claim(incoming, transfer.undo);
  transfer.items.push_back(
      {.block = incoming, .host = host, .copied = incoming == kNoBlock, .side = side});
}

// Takes the blocks that the last transfer's copies go to, or takes it all back.
Result<TransferId> BlockManager::OpenTransfer() {
  Transfer& transfer = transfers_.back();
  transfer.id = TransferId{next_transfer_++};
  const std::int64_t needed = std::count_if(transfer.items.begin(), transfer.items.end(),
                                            [](const Transfer::Item& i) { return i.copied; });
  const std::int64_t available = pool_.count(BlockState::kFree) + pool_.count(BlockState::kIdle);
  if (needed > available) {
    UndoTransfer(transfer.id);
    return ResourceExhausted(std::to_string(needed) + " blocks needed, " +
                             std::to_string(available) + " of " + std::to_string(pool_.total()) +
                             " available");
  }
  for (Transfer::Item& item : transfer.items) {
    if (!item.copied) continue;
    item.block = Take(transfer.undo, transfer.victims);
    transfer.copies.push_back({item.block, item.host});
    transfer.fence = std::max({transfer.fence, host_.batch(item.host), read_by_[item.block]});
  }
  return transfer.id;
}

void BlockManager::UndoTransfer(TransferId id) {
  Transfer& transfer = transfers_.back();
  assert(transfer.id == id && !transfer.started);
  UndoAll(transfer.undo);
  if (!transfer.resumes) {
    for (auto item = transfer.items.rbegin(); item != transfer.items.rend(); ++item) {
      if (item->host != kNoHost) host_.UndoHold(item->host, HostPool::kAlone, item->previous);
    }
  }
  // What was in these blocks may be overwritten.
  for (const BlockId victim : transfer.victims) {
    idle_.Remove(victim);
    Evict(victim);
    pool_.FreeIdle(victim);
  }
  evicted_ += std::ssize(transfer.victims);
  next_transfer_ = static_cast<std::uint64_t>(id);
  transfers_.pop_back();
}

void BlockManager::TransferStarted(TransferId id) {
  Transfer& transfer = transfers_.back();
  assert(transfer.id == id && !transfer.started);
  static_cast<void>(id);
  for (const BlockId victim : transfer.victims) Evict(victim);
  evicted_ += std::ssize(transfer.victims);
  for (const TierCopy& copy : transfer.copies) {
    pool_.Depart(copy.block);
    host_.incoming(copy.host) = copy.block;
  }
  Depart(transfer);
  sequences_.Find(transfer.sequence)->in_transit = true;
  KeepClean();
}

// From here on the transfer owns what the sequence held in the host tier.
void BlockManager::Depart(Transfer& transfer) {
  transfer.started = true;
  transfer.undo.clear();
  pool_.NotePeak();
  Sequence& sequence = *sequences_.Find(transfer.sequence);
  sequence.places.clear();
  for (SideTable& side : sequence.sides) side.places.clear();
  sequence.suspended = false;
}

// --- End --------------------------------------------------------------------------------------

const Transfer* BlockManager::FindTransfer(TransferId id) const {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(),
                                  [&](const Transfer& transfer) { return transfer.id == id; });
  return found == transfers_.end() ? nullptr : &*found;
}

// That an open sequence waits for.
TransferId BlockManager::TransferOf(const Sequence& sequence) const {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(),
                                  [&](const Transfer& t) { return t.sequence == sequence.id; });
  return found == transfers_.end() ? TransferId::kNone : found->id;
}

TransferId BlockManager::oldest_transfer() const {
  return transfers_.empty() ? TransferId::kNone : transfers_.front().id;
}

Status BlockManager::CheckAccept(TransferId id) const {
  if (Status s = CheckTier(); !s.ok()) return s;
  if (id != TransferId::kNone && static_cast<std::uint64_t>(id) < next_transfer_) return {};
  return InvalidArgument(NameOf(id) + ": allowed are those up to " +
                         std::to_string(next_transfer_ - 1) + " that were started");
}

void BlockManager::Accept(TransferId id, bool failed) {
  assert(!transfers_.empty() && transfers_.front().id == id);
  static_cast<void>(id);
  Land(transfers_.front(), failed);
  transfers_.pop_front();
  EnforceQuotas();
  KeepClean();
}

// Gives the nodes that were brought their blocks; then the sequence, or nobody, has them.
void BlockManager::Land(Transfer& transfer, bool failed) {
  for (const TierCopy& copy : transfer.copies) {
    host_.incoming(copy.host) = kNoBlock;
    pool_.Arrive(copy.block);
    if (failed) Spoil(copy.host);
  }
  failed ? NoteSpoiled() : static_cast<void>(onboarded_ += std::ssize(transfer.copies));
  bool others = false;                           // blocks that were computed meanwhile
  for (Transfer::Item& item : transfer.items) {  // from the root on: parents first
    if (item.host == kNoHost) continue;
    transfer.bad |= host_.bad(item.host);
    // Another transfer that waits for a side's block does not hold such a one above it yet.
    if (item.side >= 0 && others && pool_.references(item.block) > 1) continue;
    const BlockId brought = item.block;
    Attach(item);
    others |= item.side < 0 && item.block != brought;
  }
  Sequence* sequence = sequences_.Find(transfer.sequence);
  if (sequence != nullptr) sequence->in_transit = false;
  if (!transfer.resumes || sequence == nullptr) return LetGo(transfer);
  if (transfer.bad) {
    sequence->corrupt = true;
    sequence->indexable = false;
    sequence->indexed = 0;
    return LetGo(transfer);
  }
  for (SideTable& side : sequence->sides) {
    side.table.clear();
    side.table.resize(static_cast<std::size_t>(side.slid));
  }
  for (const Transfer::Item& item : transfer.items) {
    auto& table = item.side < 0 ? sequence->table
                                : sequence->sides[static_cast<std::size_t>(item.side)].table;
    table.push_back(item.block);
  }
  sequence->retained = 0;  // blocks that were away have lost what they were given
  RetainNewBlocks(*sequence);
  for (auto item = transfer.items.rbegin(); item != transfer.items.rend(); ++item) {
    Unhold(item->host);
  }
}

// Makes the item's block its node's, or the node's block the item's.
void BlockManager::Attach(Transfer::Item& item) {
  const NodeId node = host_.node(item.host);
  if (node == kNoNode) return;  // forgotten since, spoilt, or never cached
  const BlockId block = index_.block(node);
  if (item.side >= 0) {
    if (block != kNoBlock) AttachToSide(item, block, static_cast<std::size_t>(item.side));
    return;
  }
  if (block == item.block) return;
  if (block == kNoBlock) {
    const std::int32_t parent = index_.parent(node);
    if (parent >= 0 && index_.block(parent) == kNoBlock) return;
    index_.GiveBlock(node, item.block);
    NoteCached(node);
    return;
  }
  // Computed meanwhile: whoever holds what is below it must hold this one, and so must other
  // transfers that wait for the same copy, for they hold what is below it too.
  const BlockId brought = item.block;
  for (Transfer& transfer : transfers_) {
    for (Transfer::Item& other : transfer.items) {
      if (other.block != brought) continue;
      HoldCached(block);
      DropReference(brought);
      other.block = block;
    }
  }
}

// The same of a block of a side.
void BlockManager::AttachToSide(Transfer::Item& item, BlockId owner, std::size_t side) {
  const BlockId page = sides_.page(owner, side);
  if (page == item.block) return;
  if (page == kNoBlock) return AttachSide(owner, side, item.block);
  HoldCached(page);
  DropReference(item.block);
  item.block = page;
}

// Nobody needs what the transfer holds: it stays cached, as the most recent.
void BlockManager::LetGo(Transfer& transfer) {
  for (auto item = transfer.items.rbegin(); item != transfer.items.rend(); ++item) {
    DropReference(item->block);
    if (item->host != kNoHost) Unhold(item->host);
  }
}

}  // namespace lariat::blocks
