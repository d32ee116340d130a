// SPDX-License-Identifier: Apache-2.0
// The blocks that a plan takes.
#include <algorithm>
#include <cassert>

#include "blocks/block_manager.h"

namespace lariat::blocks {

void BlockManager::EnsureCapacity(std::int64_t blocks) {
  pool_.Reserve(static_cast<std::size_t>(blocks));
  if (blocks <= static_cast<std::int64_t>(index_.capacity())) return;
  const std::size_t grown = std::max(static_cast<std::size_t>(blocks),
                                     std::max<std::size_t>(1024, 2 * index_.capacity()));
  pins_.resize(grown);
  idle_.Grow(grown);
  sides_.Grow(grown, 0);
  index_.Reserve(grown);
}

// A free block, else the least recently used idle one; it was seen that there is one, and room in
// both lists.
BlockId BlockManager::Take(std::vector<UndoEntry>& undo, std::vector<BlockId>& victims) {
  BlockId block = pool_.TakeFree();
  if (block != kNoBlock) {
    undo.push_back({UndoEntry::kTakeFree, block});
    return block;
  }
  block = idle_.Victim();
  assert(block != kNoBlock);
  idle_.Remove(block);
  if (const BlockId next = idle_.Victim(); next != kNoBlock) {
    pool_.Prefetch(next);
    index_.Prefetch(next);
  }
  pool_.TakeIdle(block);
  victims.push_back(block);
  undo.push_back({UndoEntry::kTakeIdle, block});
  return block;
}

// Has fetched what Reserve touches some items after this one.
[[gnu::always_inline]] inline void BlockManager::FetchToReserve(const PlannedStep& step,
                                                                std::size_t n) const {
  const auto entry = [&](std::size_t ahead) {
    return step.items[step.others[std::min(n + ahead, step.others.size() - 1)]].sequence;
  };
  sequences_.PrefetchTableEnd(entry(kFetchAhead));
  sequences_.PrefetchTable(entry(2 * kFetchAhead));
  sequences_.Prefetch(entry(3 * kFetchAhead));
}

void BlockManager::Reserve(PlannedStep& step) {
  const auto needed = static_cast<std::size_t>(step.needed);
  if (pool_.unlimited()) EnsureCapacity(pool_.total() + step.needed);
  step.undo.reserve(step.undo.size() + needed);
  step.victims.reserve(needed);
  step.copies.reserve(step.others.size() * static_cast<std::size_t>(GroupCount()));
  step.side_tails.assign(step.rows.size() * sides_.count(), kNoBlock);
  const std::size_t tails = step.rows.size() * static_cast<std::size_t>(GroupCount());
  if (config_.track_writes) step.written.reserve(tails + needed);
  // Nothing below fails: a table has room for a sequence's greatest length.
  for (std::size_t n = 0; n < step.others.size(); ++n) {
    FetchToReserve(step, n);
    ReserveItem(step, static_cast<std::size_t>(step.others[n]));
  }
}

// Gives an item its blocks: those of its hit, a copy, new ones. Its sequence joins the step.
void BlockManager::ReserveItem(PlannedStep& step, std::size_t i) {
  const StepRows& rows = step.rows[i];
  PlannedItem& item = step.items[i];
  Sequence& sequence = sequences_.at(item.sequence);
  const auto tail = static_cast<std::size_t>(BlockAt(rows.start));
  if (item.first_plan) {
    sequence.table.assign(
        std::span(sequence.match_path).first(static_cast<std::size_t>(sequence.match_blocks)));
    sequence.indexed = sequence.match_blocks;
    TakeHitSides(sequence, rows.hit);
  }
  if (item.cow_source != kNoBlock) {
    const BlockId source = item.cow_source;
    TakeCopies(step, i, tail);
    item.cow_target = Take(step.undo, step.victims);
    step.copies.push_back(
        {{source, pool_.generation(source)}, {item.cow_target, pool_.generation(item.cow_target)}});
    if (item.first_plan) sequence.table.push_back(kNoBlock);
    sequence.table[tail] = item.cow_target;
    sequence.first_dirty =
        std::min<std::int64_t>(sequence.first_dirty, static_cast<std::int64_t>(tail));
  }
  if (!BeginsBlock(rows.start)) {
    item.tail_held = item.cow_target == kNoBlock &&
                     sequence.settled > static_cast<std::int64_t>(tail) * config_.block_size;
    item.tail_block = sequence.table[tail];
    for (std::size_t side = 0; side < sides_.count(); ++side) {
      step.side_tails[i * sides_.count() + side] = sequence.sides[side].table[tail];
    }
    sequence.owns_tail = true;  // or it had been copied
  }
  if (item.new_blocks > 0) sequence.owns_tail = true;
  item.first_taken = static_cast<std::int32_t>(step.undo.size());
  for (std::int32_t n = 0; n < item.new_blocks; ++n) {
    sequence.table.push_back(Take(step.undo, step.victims));
    for (SideTable& side : sequence.sides) side.table.push_back(Take(step.undo, step.victims));
  }
  sequence.started = true;
  Join(sequence, rows, item);
}

}  // namespace lariat::blocks
