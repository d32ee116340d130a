// SPDX-License-Identifier: Apache-2.0
// Taking the effects of a device fault out of the state.
#include <algorithm>
#include <set>
#include <utility>

#include "blocks/block_manager.h"

namespace lariat::blocks {

namespace {

// Blocks at the times of their lives when they held rows of a faulty step.
class DirtyStamps {
 public:
  DirtyStamps(const PlannedStep& step, std::span<const PlannedStep* const> later) {
    for (const BlockStamp& written : step.written) Add(written);
    for (const PlannedStep* after : later) {
      for (const CowCopy& copy : after->copies) {
        if (has(copy.source)) Add(copy.target);
      }
    }
  }
  bool has(const BlockStamp& stamp) const { return stamps_.count(KeyOf(stamp)) > 0; }

 private:
  using Key = std::pair<BlockId, std::uint32_t>;
  static Key KeyOf(const BlockStamp& stamp) { return {stamp.block, stamp.generation}; }
  void Add(const BlockStamp& stamp) { stamps_.insert(KeyOf(stamp)); }

  std::set<Key> stamps_;
};

enum class Mark : std::uint8_t { kUnknown, kClean, kDirty };

// Marks every node below a dirty one dirty, and the others clean.
void MarkBelow(const PrefixIndex& index, std::vector<Mark>& marks) {
  std::vector<NodeId> path;
  for (NodeId n = 0; n < index.end(); ++n) {
    if (!index.used(n)) continue;
    path.clear();
    std::int32_t at = n;
    for (; at >= 0 && marks[at] == Mark::kUnknown; at = index.parent(at)) path.push_back(at);
    const Mark mark = at >= 0 ? marks[at] : Mark::kClean;
    for (const NodeId above : path) marks[above] = mark;
  }
}

}  // namespace

void BlockManager::Quarantine(const PlannedStep& step, std::span<const PlannedStep* const> later) {
  const DirtyStamps stamps(step, later);
  std::vector<bool> blocks(static_cast<std::size_t>(pool_.total()));
  for (BlockId b = 0; b < static_cast<BlockId>(blocks.size()); ++b) {
    // One that was taken again since holds something else now; its copy may be there still.
    blocks[b] = stamps.has({b, pool_.generation(b)});
  }
  std::vector<bool> places(static_cast<std::size_t>(host_.total()));
  for (HostId h = 0; h < static_cast<HostId>(places.size()); ++h) {
    places[h] = host_.used(h) && stamps.has(host_.source(h));
  }
  std::vector<Mark> nodes(static_cast<std::size_t>(index_.end()), Mark::kUnknown);
  for (NodeId n = 0; n < index_.end(); ++n) {
    if (!index_.used(n)) continue;
    const BlockId block = index_.block(n);
    const HostId host = index_.host(n);
    bool dirty = (block != kNoBlock && blocks[block]) || (host != kNoHost && places[host]);
    for (std::size_t side = 0; block != kNoBlock && side < sides_.count(); ++side) {
      const BlockId page = sides_.page(block, side);
      dirty |= page != kNoBlock && blocks[page];
    }
    for (std::size_t side = 0; side < sides_.count(); ++side) {
      const HostId copy = sides_.host(n, side);
      dirty |= copy != kNoHost && places[copy];
    }
    if (dirty) nodes[n] = Mark::kDirty;
  }
  MarkBelow(index_, nodes);
  for (NodeId n = 0; n < index_.end(); ++n) {
    if (nodes[n] != Mark::kDirty || !index_.used(n)) continue;
    const BlockId block = index_.block(n);
    if (block != kNoBlock) blocks[block] = true;
    for (std::size_t side = 0; block != kNoBlock && side < sides_.count(); ++side) {
      if (const BlockId page = sides_.page(block, side); page != kNoBlock) blocks[page] = true;
    }
    for (int side = -1; side < static_cast<int>(sides_.count()); ++side) {
      if (const HostId copy = HostOf(n, side); copy != kNoHost) places[copy] = true;
    }
  }
  for (NodeId n = 0; n < index_.end(); ++n) {
    if (nodes[n] == Mark::kDirty && index_.used(n)) Forget(n);
  }
  EnforceQuotas();  // blocks above may have lost their pins
  SpoilHolders(blocks, places);
}

// Whoever holds such a block or place must not use it.
void BlockManager::SpoilHolders(const std::vector<bool>& blocks, const std::vector<bool>& places) {
  for (HostId h = 0; h < static_cast<HostId>(places.size()); ++h) {
    if (places[h] && host_.used(h)) host_.SetBad(h);
  }
  for (Transfer& transfer : transfers_) {
    transfer.bad |= std::any_of(transfer.items.begin(), transfer.items.end(),
                                [&](const Transfer::Item& item) { return blocks[item.block]; });
  }
  NoteSpoiled();
  for (const auto& sequence : sequences_.entries()) {
    bool dirty = false;
    ForEachHeld(*sequence, [&](BlockId block) { dirty |= blocks[block]; });
    if (!dirty) continue;
    sequence->corrupt = true;
    sequence->indexable = false;
  }
}

}  // namespace lariat::blocks
