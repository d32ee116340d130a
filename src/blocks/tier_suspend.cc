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

// The place of a block of the sequence that is cached in the host tier, or kNoHost.
HostId BlockManager::PlaceOf(const Sequence& sequence, std::size_t index) const {
  // Of those beyond `indexed` the sequence makes copies of its own.
  if (static_cast<std::int64_t>(index) >= sequence.indexed) return kNoHost;
  return index_.host(index_.node(sequence.table[index]));
}

// Holds the places of blocks that have one, then chooses some for the others: free ones, then those
// that are cached, least recent first. Cached ones stay what they are until FinishSuspend.
Status BlockManager::ChoosePlaces(Sequence& sequence) {
  const std::size_t blocks = sequence.table.size();
  sequence.places.reserve(blocks);
  suspending_.chosen.reserve(blocks);
  suspending_.sequence = &sequence;
  std::int64_t missing = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const HostId host = PlaceOf(sequence, i);
    sequence.places.push_back(host);
    host == kNoHost ? static_cast<void>(++missing) : Choose(host);
  }
  const std::int64_t available =
      host_.free() + host_.cached(HostPool::kAlone) + host_.cached(HostPool::kOnDevice);
  if (missing > available) {
    UndoSuspend();
    return ResourceExhausted(std::to_string(missing) + " places of the host tier needed, " +
                             std::to_string(available) + " of " + std::to_string(host_.total()) +
                             " available");
  }
  for (std::size_t i = 0; i < blocks; ++i) {
    if (sequence.places[i] != kNoHost) continue;
    HostId host = host_.TakeFree();
    if (host != kNoHost) {
      suspending_.chosen.push_back({host, kNoHost, /*taken=*/true});
    } else {
      const HostId alone = host_.oldest(HostPool::kAlone);
      host = alone != kNoHost ? alone : host_.oldest(HostPool::kOnDevice);
      Choose(host);
    }
    sequence.places[i] = host;
    writes_.push_back({sequence.table[i], host});
  }
  return {};
}

// Holds a cached place.
void BlockManager::Choose(HostId host) {
  suspending_.chosen.push_back({host, host_.Hold(host, ListOf(host_.node(host))), false});
}

void BlockManager::UndoSuspend() {
  auto& chosen = suspending_.chosen;
  for (auto place = chosen.rbegin(); place != chosen.rend(); ++place) {
    if (place->taken) {
      host_.UndoTakeFree(place->host);
    } else {
      host_.UndoHold(place->host, ListOf(host_.node(place->host)), place->previous);
    }
  }
  chosen.clear();
  suspending_.sequence->places.clear();
  suspending_.sequence = nullptr;
  if (!writes_.empty()) WritesFailed();
}

TransferId BlockManager::FinishSuspend() {
  Sequence& sequence = *suspending_.sequence;
  for (const TierCopy& copy : writes_) TakeOver(copy.host);
  for (std::size_t i = 0; i < sequence.table.size(); ++i) {
    const HostId host = sequence.places[i];
    const BlockId block = sequence.table[i];
    if (PlaceOf(sequence, i) == host) continue;
    host_.source(host) = {block, pool_.generation(block)};
    if (static_cast<std::int64_t>(i) < sequence.indexed) GivePlace(index_.node(block), host);
  }
  const bool copies = !writes_.empty();
  WritesStarted();
  for (auto block = sequence.table.rbegin(); block != sequence.table.rend(); ++block) {
    DropReference(*block);
  }
  sequence.table.clear();
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
  host_.SetNode(host, kNoNode);
  index_.SetHost(node, kNoHost);
  if (index_.block(node) == kNoBlock) {
    Forget(node);
  } else {
    clean_ = 0;  // it may have been one of the next victims
  }
}

}  // namespace lariat::blocks
