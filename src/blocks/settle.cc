// SPDX-License-Identifier: Apache-2.0
// The end of a step: Discard, and where blocks go when they are let go of.
#include <algorithm>
#include <cassert>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// Makes room for so many more releases in each live step, so that none fails halfway through a
// call.
void BlockManager::ReserveReleases(std::int64_t count) {
  for (PlannedStep* step : live_) {
    const std::size_t wanted = step->releases.size() + static_cast<std::size_t>(count);
    if (wanted <= step->releases.capacity()) continue;
    step->releases.reserve(std::max(wanted, 2 * step->releases.capacity()));
  }
}

// The step does not name the item's sequence any more. Returns whether that was closed.
bool BlockManager::LeaveItem(const PlannedStep& step, std::size_t index) {
  const PlannedItem& item = step.items[index];
  Sequence& sequence = sequences_.at(item.sequence);
  --sequence.live_steps;
  // Steps are discarded latest first, so what is left to name it is what named it before.
  if (sequence.last_step == step.id) sequence.last_step = item.previous_step;
  return !sequence.open;
}

Status BlockManager::CheckDiscard(const PlannedStep& step) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  assert(step.phase == StepPhase::kPrepared);
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const Sequence* sequence = sequences_.Find(step.rows[i].sequence);
    if (sequence != nullptr && sequence->last_step != step.id) {
      return NotReady("step " + std::to_string(sequence->last_step) + " has later rows of " +
                      NameOf(sequence->id) + ": end it first");
    }
  }
  // Its releases may go on to an earlier step; what it took and its copies join them.
  std::int64_t count = std::ssize(step.releases) + std::ssize(step.items);
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const PlannedItem& item = step.items[i];
    const std::int64_t end = item.first_plan ? 0 : step.EndOf(i, /*kept=*/0);
    const std::int64_t behind = std::ssize(sequences_.at(item.sequence).table) - BlocksFor(end);
    count += std::max<std::int64_t>(0, behind);
  }
  ReserveReleases(count * GroupCount());
  return {};
}

void BlockManager::Discard(PlannedStep& step) {
  bool closed = false;
  for (std::size_t i = 0; i < step.rows.size(); ++i) DiscardItem(step, i);
  for (std::size_t i = 0; i < step.rows.size(); ++i) closed |= LeaveItem(step, i);
  EndStep(step, /*discarded=*/true, closed);
  KeepClean();
}

void BlockManager::DiscardItem(PlannedStep& step, std::size_t index) {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  Sequence& sequence = sequences_.at(item.sequence);
  if (!sequence.open || sequence.id != rows.sequence) return;  // closed since
  if (item.first_plan) {
    sequence.started = false;
    sequence.indexable = true;  // it holds nothing from before a Clear any more
    sequence.settled = sequence.planned = sequence.reach = 0;
    sequence.indexed = 0;
    ShrinkTable(sequence, 0, &step);
    return;
  }
  const std::int64_t end = step.EndOf(index, /*kept=*/0);
  sequence.planned = sequence.reach = end;
  ShrinkTable(sequence, BlocksFor(end), &step);
  const std::int64_t tail = rows.start / config_.block_size;
  if (item.cow_target == kNoBlock || tail >= BlocksFor(end)) return;
  // The tables get their sources back; the copies go with the step.
  RestoreSources(step, index, /*claim=*/true);
  // Whoever took the source for its own meanwhile shares it again: all look once more.
  for (const auto& other : sequences_.entries()) other->owns_tail = false;
  pool_.Claim(item.cow_source);
  sequence.table[static_cast<std::size_t>(tail)] = item.cow_source;
  sequence.first_dirty = std::min<std::int64_t>(sequence.first_dirty, tail);
  ReleaseWith(step, item.cow_target, -1);
}

// Drops what the step held: references first, deepest blocks of a sequence before the rest of it.
//   closed: whether some of its sequences are
void BlockManager::EndStep(PlannedStep& step, bool discarded, bool closed) {
  live_.erase(std::find(live_.begin(), live_.end(), &step));
  for (const StepRelease& release : step.releases) {
    // Where earlier steps go on, they may hold blocks below this one.
    PlannedStep* const earlier =
        discarded && release.sequence >= 0 ? LastLiveStep(release.sequence) : nullptr;
    if (earlier != nullptr) {
      earlier->releases.push_back(release);
      continue;
    }
    pool_.Unpin(release.block);
    DropReference(release.block);
  }
  step.releases.clear();
  for (const PlannedItem& item : step.items) {
    if (!closed) break;
    Sequence& sequence = sequences_.at(item.sequence);
    if (sequence.id != SequenceId::kNone && !sequence.open && sequence.live_steps == 0) {
      DropSequence(sequence);
    }
  }
  EnforceQuotas();
  step.phase = StepPhase::kEnded;
}

// only: the step that took the blocks, where no earlier one knows them
void BlockManager::ShrinkTable(Sequence& sequence, std::int64_t blocks, PlannedStep* only) {
  sequence.owns_tail = false;
  while (static_cast<std::int64_t>(sequence.table.size()) > blocks) {
    const auto release = [&](BlockId block) {
      only == nullptr ? Release(sequence, block) : ReleaseWith(*only, block, -1);
    };
    for (SideTable& side : sequence.sides) {
      if (side.table.back() != kNoBlock) release(side.table.back());
      side.table.pop_back();
      side.slid = std::min(side.slid, std::ssize(side.table));
    }
    const BlockId block = sequence.table.back();
    sequence.table.pop_back();
    release(block);
  }
  sequence.first_dirty = std::min<std::int64_t>(sequence.first_dirty, blocks);
}

// Lets go of a block of this sequence: at once, or with the last live step that may read it.
void BlockManager::Release(const Sequence& sequence, BlockId block) {
  if (sequence.live_steps == 0) return DropReference(block);
  const int entry = SequenceTable::IndexOf(sequence.id);
  ReleaseWith(*LastLiveStep(entry), block, entry);
}

// The reference is the step's now. sequence: entry, or -1, as in StepRelease.
void BlockManager::ReleaseWith(PlannedStep& step, BlockId block, int sequence) {
  step.releases.push_back({block, sequence});
  pool_.Pin(block);
}

// The last live step that names the sequence; null: none does.
PlannedStep* BlockManager::LastLiveStep(int entry) {
  const auto names = [&](const PlannedStep* step) {
    return step->id == sequences_.at(entry).last_step ||
           std::any_of(step->items.begin(), step->items.end(),
                       [&](const PlannedItem& item) { return item.sequence == entry; });
  };
  const auto found = std::find_if(live_.rbegin(), live_.rend(), names);
  return found == live_.rend() ? nullptr : *found;
}

//   late: a copy still reads it: others are to be taken first
void BlockManager::DropReference(BlockId block, bool late) {
  const bool cached = IsCached(block);
  if (pool_.Unclaim(block, cached, late) && cached) AddIdle(block);
}

// Lets go of all blocks of a sequence that ends, deepest first.
void BlockManager::DropTable(Sequence& sequence) {
  // Closed while a step named it: its references were pinned then.
  const bool pinned = sequence.pinned;
  if (sides_.any() || idle_.needs_parent()) {
    return ForEachHeld(sequence, [&](BlockId block) {
      if (pinned) pool_.Unpin(block);
      DropReference(block);
    });
  }
  // Those that become idle gather at the table's end, which is not needed any more.
  BlockTable& table = sequence.table;
  std::size_t first_idle = table.size();
  for (std::size_t n = table.size(); n-- > 0;) {
    const BlockId block = table[n];
    if (pinned) pool_.Unpin(block);
    const bool cached = index_.contains(block);
    if (pool_.Unclaim(block, cached) && cached) table[--first_idle] = block;
  }
  idle_.AddPath(std::span<const BlockId>(table).subspan(first_idle));
}

void BlockManager::DropSequence(Sequence& sequence) {
  IndexTail(sequence);
  DropTable(sequence);
  ForEachPlace(sequence, [&](HostId host) { Unhold(host); });
  index_.DropRoot(sequence.root);
  sequences_.Recycle(sequence);
}

}  // namespace lariat::blocks
