// SPDX-License-Identifier: Apache-2.0
// Plan, its exact undoing, and the host side of Prepare.
//
// A plan goes: check the items, claim all prefix hits and count rows; let go of shared or indexed
// tails; check that there is room; take blocks. Every change to a block is logged, so that any step
// of this can be taken back. Sequences change last, when nothing can fail any more, but for those
// of plain items, which are done with at once (AddPlain) and taken back where the plan fails.
#include <algorithm>
#include <cassert>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

namespace {

// Whether a prefix hit of the plan is copied from a block that was idle.
bool CopiesIdle(const PlannedStep& step) {
  const auto& undo = step.undo;
  for (std::size_t i = 1; i < undo.size(); ++i) {
    if (undo[i].kind == UndoEntry::kPin && undo[i - 1].kind == UndoEntry::kClaimIdle &&
        undo[i - 1].block == undo[i].block) {
      return true;
    }
  }
  return false;
}

}  // namespace

Status BlockManager::CheckReady() const {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  if (live_steps() < config_.max_steps_in_flight) return {};
  return NotReady("max_steps_in_flight " + std::to_string(config_.max_steps_in_flight) +
                  " steps are live: commit or discard step " + std::to_string(live_[0]->id));
}

Status BlockManager::Plan(std::span<const StepItem> items, const StepShape& shape,
                          PlannedStep& step, PlanFailure* failure) {
  if (Status ready = CheckReady(); !ready.ok()) return ready;
  if (static_cast<std::int64_t>(items.size()) > config_.max_sequences) {
    return InvalidArgument("items: " + std::to_string(items.size()) +
                           " sequences; allowed are max_sequences " +
                           std::to_string(config_.max_sequences));
  }
  copy_idle_ = true;
  try {
    Status filled = Fill(items, shape, step, failure);
    if (!filled.ok()) {
      const bool no_room =
          filled.code() == Code::kResourceExhausted || filled.code() == Code::kNeverFits;
      const bool copies_idle = no_room && CopiesIdle(step);
      UndoFill(step);
      if (!copies_idle) return filled;
      // An idle block that a hit is copied from cannot make room: try without such hits.
      copy_idle_ = false;
      if (Status again = Fill(items, shape, step, failure); !again.ok()) {
        UndoFill(step);
        // Without them there may be more rows than a step can have, which the items did not ask
        // for.
        return again.code() == Code::kInvalidArgument ? filled : again;
      }
    }
  } catch (...) {
    UndoFill(step);
    throw;
  }
  if (has_tier()) step.fence = FenceOf(step);
  step.copied = false;
  step.id = next_step_++;  // which its sequences know already
  step.phase = StepPhase::kPlanned;
  plan_ = &step;
  return {};
}

Status BlockManager::Fill(std::span<const StepItem> items, const StepShape& shape,
                          PlannedStep& step, PlanFailure* failure) {
  step.abandoned = false;
  step.num_tokens = 0;
  step.hit_tokens = 0;
  step.needed = 0;
  step.fence = 0;
  step.tails_unknown = false;
  step.rows.clear();
  step.items.clear();
  step.others.clear();
  step.positions.clear();
  step.victims.clear();
  step.copies.clear();
  step.undo.clear();
  step.releases.clear();
  step.written.clear();
  step.side_copies.clear();
  if (Status added = AddItems(items, step); !added.ok()) return added;
  if (Status shaped = ApplyShape(shape, step); !shaped.ok()) return shaped;
  if (step.tails_unknown) Unshare(step);
  if (Status room = CheckRoom(step, failure); !room.ok()) return room;
  Reserve(step);
  return {};
}

// Finds the partly filled blocks that rows would be written into but that are shared or indexed:
// those need a copy. The sequence's reference to the source lasts until the step ends, since the
// copy still has to read it, but counts as gone: in item order, the last holder writes in place,
// unless a Discard would give those rows back to who has let go of them (see MayReturn).
void BlockManager::Unshare(PlannedStep& step) {
  const std::size_t most = step.others.size() * static_cast<std::size_t>(GroupCount());
  step.undo.reserve(step.undo.size() + most);
  step.releases.reserve(step.releases.size() + most);
  step.side_copies.reserve(step.side_copies.size() + step.others.size() * sides_.count());
  for (const std::size_t i : step.others) {
    const std::int64_t start = step.rows[i].start;
    if (step.items[i].first_plan || BeginsBlock(start)) continue;
    const Sequence& sequence = sequences_.at(step.items[i].sequence);
    if (sequence.owns_tail) continue;
    const auto index = static_cast<std::size_t>(BlockAt(start));
    const BlockId tail = sequence.table[index];
    if (!pool_.shared(tail) && !index_.contains(tail) && !MayReturn(tail, i, step)) continue;
    step.items[i].cow_source = tail;
    step.needed += GroupCount();
    CopyTailSides(step, i, index);
    pool_.Pin(tail);
    step.releases.push_back({tail, step.items[i].sequence});
    step.undo.push_back({UndoEntry::kPin, tail});
  }
  // Those of hits came first, whichever items they are of.
  std::sort(step.side_copies.begin(), step.side_copies.end(),
            [](const SideCopy& a, const SideCopy& b) {
              return a.item != b.item ? a.item < b.item : a.side < b.side;
            });
}

// Whether another sequence, which copies this block, would find a row of its own overwritten by the
// item's rows if its step were discarded: it had rows behind where the item begins.
bool BlockManager::MayReturn(BlockId tail, std::size_t index, const PlannedStep& step) const {
  if (pool_.references(tail) == 1) return false;
  const auto in = [&](const PlannedStep& of) {
    for (std::size_t i = 0; i < of.items.size(); ++i) {
      const PlannedItem& item = of.items[i];
      if (item.cow_source != tail || item.first_plan) continue;
      const Sequence& other = sequences_.at(item.sequence);
      const bool open = other.open && other.id == of.rows[i].sequence;
      const bool another = item.sequence != step.items[index].sequence;
      if (open && another && item.old_planned > step.rows[index].start) return true;
    }
    return false;
  };
  return in(step) || std::any_of(live_.begin(), live_.end(),
                                 [&](const PlannedStep* live) { return in(*live); });
}

Status BlockManager::CheckRoom(const PlannedStep& step, PlanFailure* failure) const {
  if (pool_.unlimited()) return {};
  const std::int64_t needed = step.needed;
  const std::int64_t available = pool_.count(BlockState::kFree) + pool_.count(BlockState::kIdle);
  if (needed <= available) return {};
  const auto too_big = std::find_if(step.rows.begin(), step.rows.end(), [&](const StepRows& rows) {
    // As it is once the steps before have ended: windows have gone on till then.
    return BlocksOfAll(rows.start, rows.start + rows.count, 0) > pool_.total();
  });
  if (failure != nullptr) {
    failure->needed = needed;
    failure->available = available;
    failure->in_transit = pool_.count(BlockState::kInTransit);
    failure->sequences.clear();
    for (std::size_t i = 0; i < step.rows.size(); ++i) {
      const PlannedItem& item = step.items[i];
      failure->sequences.push_back(
          {step.rows[i].sequence,
           (item.new_blocks + (item.cow_source == kNoBlock ? 0 : 1)) * GroupCount()});
    }
  }
  const std::string numbers = std::to_string(needed) + " blocks needed, " +
                              std::to_string(available) + " of " + std::to_string(pool_.total()) +
                              " available";
  if (too_big != step.rows.end()) {
    return NeverFits(NameOf(too_big->sequence) + " alone is larger than the pool: " + numbers);
  }
  return ResourceExhausted(numbers);
}

// Takes what was logged back, and forgets the log.
void BlockManager::UndoAll(std::vector<UndoEntry>& undo) {
  for (auto entry = undo.rbegin(); entry != undo.rend(); ++entry) {
    switch (entry->kind) {
      case UndoEntry::kClaim: pool_.Unclaim(entry->block, /*stays_cached=*/true); break;
      case UndoEntry::kClaimIdle:
        pool_.Unclaim(entry->block, /*stays_cached=*/true);
        idle_.Restore(entry->block);
        break;
      case UndoEntry::kPin: pool_.Unpin(entry->block); break;
      case UndoEntry::kTakeFree: pool_.UndoTakeFree(entry->block); break;
      case UndoEntry::kTakeIdle:
        pool_.UndoTakeIdle(entry->block);
        idle_.Restore(entry->block);
        break;
    }
  }
  undo.clear();
}

void BlockManager::UndoBlocks(PlannedStep& step) {
  UndoAll(step.undo);
  step.releases.clear();
  step.phase = StepPhase::kUnused;
}

void BlockManager::UndoJoin(const PlannedItem& item) {
  Sequence& sequence = sequences_.at(item.sequence);
  sequence.planned = sequence.reach = item.old_planned;
  sequence.last_step = item.previous_step;
  --sequence.live_steps;
}

// Of a plan that fails: of its sequences only those of plain items have changed.
void BlockManager::UndoFill(PlannedStep& step) {
  for (const PlannedItem& item : step.items) {
    if (item.plain) UndoJoin(item);
  }
  UndoBlocks(step);
}

void BlockManager::Undo(PlannedStep& step) {
  assert(plan_ == &step);
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const PlannedItem& item = step.items[i];
    Sequence& sequence = sequences_.at(item.sequence);
    UndoSides(step, i);
    sequence.table.resize(static_cast<std::size_t>(item.first_plan ? 0 : item.first_new_block));
    if (item.cow_source != kNoBlock && !item.first_plan) {
      sequence.table[static_cast<std::size_t>(step.rows[i].start / config_.block_size)] =
          item.cow_source;
    }
    UndoJoin(item);
    sequence.owns_tail = false;
    if (item.first_plan) {
      sequence.started = false;
      sequence.indexed = 0;
    }
  }
  UndoBlocks(step);
  if (step.copied) {  // into victims, perhaps: what is cached is what was written
    for (const BlockId victim : step.victims) {
      idle_.Remove(victim);
      Evict(victim);
      pool_.FreeIdle(victim);
    }
    evicted_ += std::ssize(step.victims);
  }
  --next_step_;
  plan_ = nullptr;
}

void BlockManager::Prepare(PlannedStep& step) {
  assert(plan_ == &step);
  for (const BlockId victim : step.victims) Evict(victim);
  for (const std::size_t i : step.others) {
    const PlannedItem& item = step.items[i];
    Sequence& sequence = sequences_.at(item.sequence);
    sequence.first_dirty = BlocksFor(sequence.reach);  // what is new is on its way
    // Keys turned by other angles must not be found by the tokens alone.
    if (item.moved) sequence.indexable = false;
    if (!item.first_plan) continue;
    if (has_tier()) NoteHits(step.rows[i], sequence);
    sequence.match_blocks = 0;
    sequence.match_path.clear();
    sequence.match_generations.clear();
  }
  evicted_ += static_cast<std::int64_t>(step.victims.size());
  copied_ += static_cast<std::int64_t>(step.copies.size());
  hit_tokens_ += step.hit_tokens;
  pool_.NotePeak();
  step.phase = StepPhase::kPrepared;
  live_.push_back(&step);
  plan_ = nullptr;
  KeepClean();
}

}  // namespace lariat::blocks
