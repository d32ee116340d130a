// SPDX-License-Identifier: Apache-2.0
// Which rows a plan has: prefix hits, counts and positions.
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
