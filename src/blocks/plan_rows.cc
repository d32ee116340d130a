// SPDX-License-Identifier: Apache-2.0
// Which rows a plan has: checks of the items, prefix hits, counts and positions.
#include <algorithm>
#include <cassert>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

namespace {

// Whether the rows have the positions that rows of a default sequence would have.
//   positions: [sections, rows.count]
bool FollowsIndex(std::span<const std::int32_t> positions, const StepRows& rows) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] != rows.start + static_cast<std::int64_t>(i) % rows.count) return false;
  }
  return true;
}

}  // namespace

Status BlockManager::CheckPositions(const StepItem& item) const {
  const auto given = static_cast<std::int64_t>(item.positions.size());
  const bool all_sections = given % config_.position_sections == 0 &&
                            given / config_.position_sections == item.num_tokens;
  if (given != item.num_tokens && !all_sections) {
    return InvalidArgument("positions of " + NameOf(item.sequence) + ": " + std::to_string(given) +
                           " given for num_tokens " + std::to_string(item.num_tokens) + " and " +
                           std::to_string(config_.position_sections) + " sections");
  }
  for (const std::int32_t position : item.positions) {
    if (position < 0 || position >= config_.max_tokens_per_sequence) {
      return InvalidArgument("position " + std::to_string(position) + " of " +
                             NameOf(item.sequence) + ": the table holds 0 to " +
                             std::to_string(config_.max_tokens_per_sequence - 1));
    }
  }
  return {};
}

// Stamps the item's sequence.
Status BlockManager::CheckItem(const StepItem& item) {
  Result<Sequence*> found = FindUsable(item.sequence);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.stamp == stamp_) return InvalidArgument(NameOf(item.sequence) + " is named twice");
  sequence.stamp = stamp_;
  if (item.num_tokens < 1) {
    return InvalidArgument("num_tokens " + std::to_string(item.num_tokens) + " of " +
                           NameOf(item.sequence) + ": allowed are 1 and more");
  }
  if (item.num_drafts < 0 || item.num_drafts >= item.num_tokens) {
    return InvalidArgument("num_drafts " + std::to_string(item.num_drafts) + " of " +
                           NameOf(item.sequence) + ": allowed are 0 to num_tokens - 1, " +
                           std::to_string(item.num_tokens - 1));
  }
  if (!item.positions.empty()) {
    if (Status given = CheckPositions(item); !given.ok()) return given;
  }
  if (sequence.reach > sequence.planned) {
    return NotReady(NameOf(item.sequence) + " has undecided drafts: commit step " +
                    std::to_string(sequence.last_step) + " first");
  }
  return {};
}

// All that Plan does for what most items of a step of decoding are: rows behind settled ones, in a
// block of the sequence's own that has room for them. No block changes hands then, and no table
// changes, so neither the rest of Plan nor Prepare comes back to the item. False, and nothing is
// done, where it is something else, or wrong.
inline bool BlockManager::AddPlain(const StepItem& item, PlannedStep& step) {
  Sequence* const found = sequences_.Find(item.sequence);
  if (found == nullptr || !found->usable() || !found->owns_tail || !found->started) return false;
  Sequence& sequence = *found;
  if (sequence.stamp == stamp_ || sequence.reach != sequence.planned || sides_.any()) return false;
  const std::int64_t start = sequence.planned, count = item.num_tokens;
  const std::int64_t tail = BlockAt(start), tail_end = (tail + 1) * config_.block_size;
  if (sequence.settled <= tail * config_.block_size) return false;
  if (sequence.first_dirty != tail + 1) return false;
  const std::int64_t most = std::min({tail_end - start, sequence.max_length - start,
                                      config_.max_tokens_per_step - step.num_tokens});
  if (count < 1 || count > most || item.num_drafts < 0 || item.num_drafts >= count) return false;
  if (!item.positions.empty()) return false;
  sequence.stamp = stamp_;
  StepRows& rows = step.rows.emplace_back();
  rows.sequence = item.sequence;
  rows.first_row = step.num_tokens;
  rows.start = start;
  rows.count = count;
  PlannedItem& planned = step.items.emplace_back();
  planned.sequence = SequenceTable::IndexOf(item.sequence);
  planned.plain = planned.tail_held = true;
  planned.ends_block = start + count == tail_end;
  planned.old_planned = static_cast<std::int32_t>(start);
  planned.certain = static_cast<std::int32_t>(count - item.num_drafts);
  planned.limit = static_cast<std::int32_t>(start + count);
  planned.first_new_block = static_cast<std::int32_t>(tail + 1);
  // Read only where somebody wants to know: it is a line of memory for each sequence.
  if (has_tier() || config_.track_writes) {
    planned.tail_block = sequence.table[static_cast<std::size_t>(tail)];
  }
  Join(sequence, rows, planned);
  step.num_tokens += count;
  return true;
}

Status BlockManager::AddItems(std::span<const StepItem> items, PlannedStep& step) {
  step.rows.reserve(items.size());
  step.items.reserve(items.size());
  step.others.reserve(items.size());
  ++stamp_;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i + kFetchAhead < items.size()) sequences_.Prefetch(items[i + kFetchAhead].sequence);
    const StepItem& item = items[i];
    if (AddPlain(item, step)) continue;
    if (Status checked = CheckItem(item); !checked.ok()) return checked;
    step.others.push_back(static_cast<std::int32_t>(i));
    if (Status added = AddRows(item, step); !added.ok()) return added;
  }
  return {};
}

// REQUIRES: room in `undo`.
void BlockManager::Claim(BlockId block, std::vector<UndoEntry>& undo) {
  const bool idle = pool_.state(block) == BlockState::kIdle;
  if (idle) idle_.Remove(block);
  pool_.Claim(block);
  undo.push_back({idle ? UndoEntry::kClaimIdle : UndoEntry::kClaim, block});
}

// The same of a path. Whoever holds a block holds all before it, so the idle ones are its end.
void BlockManager::ClaimPath(std::span<const BlockId> path, std::vector<UndoEntry>& undo) {
  std::size_t held = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool idle = pool_.Claim(path[i]);
    if (!idle) {
      assert(i == held);
      ++held;
    }
    undo.push_back({idle ? UndoEntry::kClaimIdle : UndoEntry::kClaim, path[i]});
  }
  idle_.RemovePath(path.subspan(held));
}

// Takes the sequence's longest cached prefix; the plan's claims come before all of its allocations.
// The block that the hit ends inside of is only held until the step ends: its copy joins the table.
// copy_idle: whether that block may be an idle one
void BlockManager::ClaimHit(Sequence& sequence, PlannedStep& step, PlannedItem& item,
                            bool copy_idle) {
  ExtendMatch(sequence);
  const auto groups = static_cast<std::size_t>(GroupCount());
  step.undo.reserve(step.undo.size() + (sequence.match_path.size() + 2) * groups);
  step.releases.reserve(step.releases.size() + groups);
  step.side_copies.reserve(step.side_copies.size() + sides_.count());
  if (!copy_idle && sequence.match_partial.block != kNoBlock &&
      IsIdleSource(sequence.match_partial.block)) {
    sequence.match_partial = {};
    sequence.match_blocks = UsableBlocks(sequence.match_path);
  }
  ClaimSides(sequence, step);
  ClaimPath(std::span(sequence.match_path).first(static_cast<std::size_t>(sequence.match_blocks)),
            step.undo);
  const BlockId source = sequence.match_partial.block;
  if (source == kNoBlock) return;
  const int entry = SequenceTable::IndexOf(sequence.id);
  CopyHitSides(step, source, entry);
  Claim(source, step.undo);
  item.cow_source = source;
  pool_.Pin(source);
  step.releases.push_back({source, entry});
  step.undo.push_back({UndoEntry::kPin, source});
}

// Keeps the positions of the first `count` rows, [sections, count]. One set serves all sections.
void BlockManager::AddPositions(const StepItem& item, std::int64_t count, PlannedStep& step) const {
  const auto given = static_cast<std::int64_t>(item.positions.size());
  for (int section = 0; section < config_.position_sections; ++section) {
    const auto first =
        item.positions.begin() + (given == item.num_tokens ? 0 : section * item.num_tokens);
    step.positions.insert(step.positions.end(), first, first + count);
  }
}

Status BlockManager::AddRows(const StepItem& item, PlannedStep& step) {
  Sequence& sequence = sequences_.at(SequenceTable::IndexOf(item.sequence));
  StepRows& rows = step.rows.emplace_back();
  PlannedItem& planned = step.items.emplace_back();
  rows.sequence = item.sequence;
  rows.first_row = step.num_tokens;
  rows.start = sequence.planned;
  rows.count = item.num_tokens;
  planned.sequence = SequenceTable::IndexOf(item.sequence);
  planned.first_plan = !sequence.started;
  planned.old_planned = static_cast<std::int32_t>(sequence.planned);
  if (planned.first_plan && sequence.prompt_length > 0) {
    ClaimHit(sequence, step, planned, copy_idle_ || !item.positions.empty());
    rows.hit = MatchTokens(sequence);
    rows.start = rows.hit;
    rows.count = std::min<std::int64_t>(item.num_tokens, sequence.prompt_length - rows.hit);
  }
  step.tails_unknown |= !planned.first_plan && !sequence.owns_tail;
  planned.certain =
      static_cast<std::int32_t>(std::min(item.num_tokens - item.num_drafts, rows.count));
  planned.first_new_block =
      static_cast<std::int32_t>(BlocksFor(planned.first_plan ? rows.hit : rows.start));
  if (rows.count > sequence.max_length - rows.start) {
    return InvalidArgument("num_tokens " + std::to_string(item.num_tokens) + " of " +
                           NameOf(item.sequence) + " behind its " + std::to_string(rows.start) +
                           " tokens is past its max_length " + std::to_string(sequence.max_length));
  }
  planned.limit = static_cast<std::int32_t>(rows.start + rows.count);
  planned.new_blocks =
      static_cast<std::int32_t>(BlocksFor(rows.start + rows.count)) - planned.first_new_block;
  planned.ends_block = BeginsBlock(rows.start + rows.count);
  step.needed += (planned.new_blocks + (planned.cow_source == kNoBlock ? 0 : 1)) * GroupCount();
  step.num_tokens += rows.count;
  if (step.num_tokens > config_.max_tokens_per_step) {
    return InvalidArgument("the items have more rows than max_tokens_per_step " +
                           std::to_string(config_.max_tokens_per_step));
  }
  if (!item.positions.empty()) {
    planned.position_offset = static_cast<std::int64_t>(step.positions.size());
    AddPositions(item, rows.count, step);
    planned.moved =
        !sequence.keyed &&
        !FollowsIndex(
            std::span(step.positions).subspan(static_cast<std::size_t>(planned.position_offset)),
            rows);
  }
  step.hit_tokens += rows.hit;
  return {};
}

Status BlockManager::ApplyShape(const StepShape& shape, PlannedStep& step) const {
  const auto sequences = static_cast<int>(step.rows.size());
  step.padded_tokens = shape.max_tokens == 0 ? step.num_tokens : shape.max_tokens;
  step.padded_sequences = shape.max_sequences == 0 ? sequences : shape.max_sequences;
  if (step.padded_tokens < step.num_tokens || step.padded_tokens > config_.max_tokens_per_step) {
    return InvalidArgument("shape.max_tokens " + std::to_string(shape.max_tokens) + " for " +
                           std::to_string(step.num_tokens) +
                           " rows: allowed are those up to max_tokens_per_step " +
                           std::to_string(config_.max_tokens_per_step));
  }
  if (step.padded_sequences < sequences || step.padded_sequences > config_.max_sequences) {
    return InvalidArgument("shape.max_sequences " + std::to_string(shape.max_sequences) + " for " +
                           std::to_string(sequences) +
                           " sequences: allowed are those up to max_sequences " +
                           std::to_string(config_.max_sequences));
  }
  return {};
}

}  // namespace lariat::blocks
