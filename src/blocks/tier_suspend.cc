// SPDX-License-Identifier: Apache-2.0
// Suspend: a sequence gives its device blocks away and keeps what they hold in the host tier.
#include <cassert>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

Status BlockManager::BeginSuspend(SequenceId id) {
  if (Status s = CheckTier(); !s.ok()) return s;
  Result<Sequence*> found = FindUsable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (!sequence.started) {
    return InvalidArgument(NameOf(id) + " was not planned yet: it has no blocks to suspend");
  }
  if (sequence.live_steps > 0) {
    return NotReady(NameOf(id) + " is in a live step: end the step first");
  }
  assert(writes_.empty());
  return ChoosePlaces(sequence);
}

// Whether the index holds the sequence's n-th block of this side (-1: of the first group). Of
// others the sequence makes copies of its own.
bool BlockManager::IsIndexed(const Sequence& sequence, std::size_t n, int side) const {
  if (static_cast<std::int64_t>(n) >= sequence.indexed) return false;
  if (side < 0) return true;
  const auto s = static_cast<std::size_t>(side);
  return sides_.owner(sequence.sides[s].table[n]) == sequence.table[n];
}

// The place of a block of the sequence that is cached in the host tier, or kNoHost.
HostId BlockManager::PlaceOf(const Sequence& sequence, std::size_t n, int side) const {
  return IsIndexed(sequence, n, side) ? HostOf(index_.node(sequence.table[n]), side) : kNoHost;
}

// Calls f(n, side, block, place) for each block of the sequence, from the root on, those of the
// first group first. place: where the list of its places has it
template <class F>
void BlockManager::ForEachToSuspend(Sequence& sequence, F f) {
  const std::size_t blocks = sequence.table.size();
  for (std::size_t n = 0; n < blocks; ++n) f(n, -1, sequence.table[n], sequence.places[n]);
  for (std::size_t s = 0; s < sequence.sides.size(); ++s) {
    SideTable& side = sequence.sides[s];
    const auto slid = static_cast<std::size_t>(side.slid);
    for (std::size_t n = slid; n < blocks; ++n) {
      f(n, static_cast<int>(s), side.table[n], side.places[n - slid]);
    }
  }
}

// Holds the places of blocks that have one, then chooses some for the others: free ones, then those
// that are cached, least recent first. Cached ones stay what they are until FinishSuspend.
Status BlockManager::ChoosePlaces(Sequence& sequence) {
  const std::size_t blocks = sequence.table.size();
  sequence.places.reserve(blocks);
  suspending_.chosen.reserve(blocks * static_cast<std::size_t>(GroupCount()));
  for (SideTable& side : sequence.sides) {
    side.places.resize(blocks - static_cast<std::size_t>(side.slid), kNoHost);
  }
  sequence.places.resize(blocks, kNoHost);  // nothing fails from here on but for lack of places
  suspending_.sequence = &sequence;
  std::int64_t missing = 0;
  ForEachToSuspend(sequence, [&](std::size_t n, int side, BlockId, HostId& place) {
    place = PlaceOf(sequence, n, side);
    place == kNoHost ? static_cast<void>(++missing) : Choose(place);
  });
  const std::int64_t available =
      host_.free() + host_.cached(HostPool::kAlone) + host_.cached(HostPool::kOnDevice);
  if (missing > available) {
    UndoSuspend();
    return ResourceExhausted(std::to_string(missing) + " places of the host tier needed, " +
                             std::to_string(available) + " of " + std::to_string(host_.total()) +
                             " available");
  }
  ForEachToSuspend(sequence, [&](std::size_t, int, BlockId block, HostId& place) {
    if (place != kNoHost) return;
    place = host_.TakeFree();
    if (place != kNoHost) {
      suspending_.chosen.push_back({place, kNoHost, /*taken=*/true});
    } else {
      const HostId alone = host_.oldest(HostPool::kAlone);
      place = alone != kNoHost ? alone : host_.oldest(HostPool::kOnDevice);
      Choose(place);
    }
    writes_.push_back({block, place});
  });
  return {};
}

// Holds a cached place.
void BlockManager::Choose(HostId host) {
  suspending_.chosen.push_back({host, host_.Hold(host, ListOf(host)), false});
}

void BlockManager::UndoSuspend() {
  auto& chosen = suspending_.chosen;
  for (auto place = chosen.rbegin(); place != chosen.rend(); ++place) {
    if (place->taken) {
      host_.UndoTakeFree(place->host);
    } else {
      host_.UndoHold(place->host, ListOf(place->host), place->previous);
    }
  }
  chosen.clear();
  suspending_.sequence->places.clear();
  for (SideTable& side : suspending_.sequence->sides) side.places.clear();
  suspending_.sequence = nullptr;
  if (!writes_.empty()) WritesFailed();
}

TransferId BlockManager::FinishSuspend() {
  Sequence& sequence = *suspending_.sequence;
  for (const TierCopy& copy : writes_) TakeOver(copy.host);
  ForEachToSuspend(sequence, [&](std::size_t n, int side, BlockId block, HostId host) {
    if (PlaceOf(sequence, n, side) == host) return;
    host_.source(host) = {block, pool_.generation(block)};
    if (IsIndexed(sequence, n, side)) GivePlace(index_.node(sequence.table[n]), side, host);
  });
  const bool copies = !writes_.empty();
  WritesStarted();
  ForEachHeld(sequence, [&](BlockId block) { DropReference(block, /*late=*/true); });
  sequence.table.clear();
  sequence.owns_tail = false;
  for (SideTable& side : sequence.sides) side.table.clear();
  sequence.first_dirty = 0;
  sequence.suspended = true;
  suspending_.chosen.clear();
  suspending_.sequence = nullptr;
  EnforceQuotas();
  KeepClean();
  return copies ? TransferId{next_transfer_++} : TransferId::kNone;
}

// A place that was chosen holds nothing from before any more.
void BlockManager::TakeOver(HostId host) {
  const NodeId node = host_.node(host);
  if (node == kNoNode) return;
  ++host_evicted_;
  const int side = host_.side(host);
  host_.SetNode(host, kNoNode);
  SetHost(node, side, kNoHost);
  if (side < 0 && index_.block(node) == kNoBlock) {
    Forget(node);
  } else {
    clean_ = 0;  // it may have been one of the next victims
  }
}

}  // namespace lariat::blocks
