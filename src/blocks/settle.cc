// SPDX-License-Identifier: Apache-2.0
// The end of a step: Commit, Discard, what they index, and where blocks go when they are let go of.
#include <algorithm>
#include <cassert>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// What most items of a step of decoding are: all rows are kept, with their ids, in a block that
// held settled rows before and has room for more; so neither a block nor the index changes.
inline bool BlockManager::IsPlain(const PlannedStep& step, std::size_t index,
                                  const StepCommit& commit, const Sequence& sequence) const {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  const std::int64_t end = rows.start + rows.count;
  return item.tail_held && item.new_blocks == 0 && !item.ends_block && item.limit == end &&
         commit.kept == rows.count && std::ssize(commit.tokens) == rows.count &&
         sequence.reach == end && sequence.last_step == step.id && sequence.known() == rows.start &&
         rows.start >= sequence.prompt_length && !sequence.retains && !sides_.any() &&
         BlocksToIndex(sequence, end, end) == 0;
}

// SettleItem of such a one.
inline void BlockManager::SettlePlain(PlannedStep& step, std::size_t index,
                                      const StepCommit& commit) {
  const StepRows& rows = step.rows[index];
  Sequence& sequence = sequences_.at(step.items[index].sequence);
  const std::int64_t end = rows.start + rows.count;
  tokens_committed_ += rows.count;
  sequence.settled = sequence.planned = end;
  for (const TokenId token : commit.tokens) sequence.ids.push_back(token);
  if (config_.track_writes) SettleBlocks(step, index, end);
}

Status BlockManager::CheckCommit(PlannedStep& step, std::span<const StepCommit> commits) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  assert(step.phase == StepPhase::kPrepared);
  if (live_[0] != &step) {
    return NotReady("step " + std::to_string(live_[0]->id) + " is live and was planned earlier");
  }
  if (Status matched = MatchCommits(step, commits); !matched.ok()) return matched;
  // What the Commit may release: blocks behind the kept rows, and those that merge.
  std::int64_t count = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    sequences_.Prefetch(step.items[std::min(i + kFetchAhead, step.items.size() - 1)].sequence);
    PlannedItem& item = step.items[i];
    const Sequence& sequence = sequences_.at(item.sequence);
    item.plain = false;
    if (!sequence.open || sequence.id != step.rows[i].sequence) continue;  // closed since
    std::int64_t kept = step.rows[i].count, given = 0;
    if (const StepCommit* const commit = CommitOf(step, i, commits)) {
      item.plain = IsPlain(step, i, *commit, sequence);
      if (item.plain) continue;
      if (Status s = CheckEntry(step, i, *commit, sequence); !s.ok()) return s;
      kept = commit->kept;
      given = std::ssize(commit->tokens);
    }
    const std::int64_t end = EndOf(step, i, kept);
    if (sequence.last_step == step.id) count += BlocksFor(sequence.reach) - BlocksFor(end);
    count += BlocksToIndex(sequence, end, sequence.known() + given);
  }
  ReserveReleases(count * GroupCount());
  return {};
}

// Says of each item which entry is its own. Those of closed sequences are ignored.
Status BlockManager::MatchCommits(PlannedStep& step, std::span<const StepCommit> commits) {
  std::size_t same = commits.size() == step.rows.size() ? 0 : commits.size() + 1;
  while (same < commits.size() && commits[same].sequence == step.rows[same].sequence) ++same;
  step.in_order = same == commits.size();  // as most are
  if (step.in_order) return {};
  ++stamp_;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    Sequence& sequence = sequences_.at(step.items[i].sequence);
    if (!sequence.open || sequence.id != step.rows[i].sequence) continue;  // closed since
    sequence.stamp = stamp_;
    sequence.stamp_item = static_cast<std::int32_t>(i);
  }
  for (PlannedItem& item : step.items) item.commit = -1;
  for (std::size_t c = 0; c < commits.size(); ++c) {
    const SequenceId id = commits[c].sequence;
    Sequence* sequence = sequences_.Find(id);
    if (sequence == nullptr || sequence->stamp != stamp_) {
      const bool closed = std::any_of(step.rows.begin(), step.rows.end(),
                                      [&](const StepRows& rows) { return rows.sequence == id; });
      if (closed) continue;
      return InvalidArgument(NameOf(id) + " is not in step " + std::to_string(step.id));
    }
    PlannedItem& item = step.items[static_cast<std::size_t>(sequence->stamp_item)];
    if (item.commit != -1) return InvalidArgument(NameOf(id) + " is named twice");
    item.commit = static_cast<std::int32_t>(c);
  }
  return {};
}

// Makes room for so many more releases in each live step, so that none fails halfway through a
// call.
void BlockManager::ReserveReleases(std::int64_t count) {
  for (PlannedStep* step : live_) {
    const std::size_t wanted = step->releases.size() + static_cast<std::size_t>(count);
    if (wanted <= step->releases.capacity()) continue;
    step->releases.reserve(std::max(wanted, 2 * step->releases.capacity()));
  }
}

Status BlockManager::CheckEntry(const PlannedStep& step, std::size_t index,
                                const StepCommit& commit, const Sequence& sequence) {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  const std::int64_t alive = std::max<std::int64_t>(0, item.limit - rows.start);
  const std::int64_t least = std::min<std::int64_t>(item.certain, alive);
  if (commit.kept < least || commit.kept > rows.count) {
    return InvalidArgument("kept " + std::to_string(commit.kept) + " of " +
                           NameOf(commit.sequence) + ": allowed are " + std::to_string(least) +
                           " to " + std::to_string(rows.count));
  }
  if (commit.tokens.empty()) return {};
  const std::int64_t past_prompt = std::max<std::int64_t>(rows.start, sequence.prompt_length);
  const std::int64_t allowed = std::max<std::int64_t>(0, rows.start + commit.kept - past_prompt);
  if (static_cast<std::int64_t>(commit.tokens.size()) > allowed) {
    return InvalidArgument("tokens of " + NameOf(commit.sequence) + ": " +
                           std::to_string(commit.tokens.size()) + " ids for " +
                           std::to_string(allowed) + " kept rows past the prompt");
  }
  if (sequence.known() != std::min<std::int64_t>(past_prompt, item.limit)) {
    return InvalidArgument("tokens of " + NameOf(commit.sequence) + " begin at " +
                           std::to_string(past_prompt) + ", but the ids from " +
                           std::to_string(sequence.known()) + " on are missing: SetTokens first");
  }
  return {};
}

// The step does not name the item's sequence any more. Returns whether that was closed.
inline bool BlockManager::LeaveItem(const PlannedStep& step, std::size_t index) {
  const PlannedItem& item = step.items[index];
  Sequence& sequence = sequences_.at(item.sequence);
  --sequence.live_steps;
  // Steps are discarded latest first, so what is left to name it is what named it before.
  if (sequence.last_step == step.id) sequence.last_step = item.previous_step;
  return !sequence.open;
}

// Has fetched what Commit touches some items after this one. One whose rows end with a block goes
// on to its table, and from there to the index.
// Inlined always, as FetchToReserve: the compiler leaves out calls of what seems to do nothing.
[[gnu::always_inline]] inline void BlockManager::FetchToCommit(const PlannedStep& step,
                                                               std::size_t index) const {
  const auto item = [&](std::size_t times) -> const PlannedItem& {
    return step.items[std::min(index + times * kFetchAhead, step.items.size() - 1)];
  };
  const PlannedItem &near = item(1), &further = item(2), &far = item(3);
  sequences_.at(near.sequence).ids.Prefetch();
  sequences_.Prefetch(further.sequence);
  if (!config_.reuse) return;
  if (far.ends_block) sequences_.PrefetchTable(far.sequence);
  if (further.ends_block) sequences_.PrefetchTableEnd(further.sequence);
  if (!near.ends_block) return;
  const std::vector<BlockId>& table = sequences_.at(near.sequence).table;
  for (std::size_t n = table.size(); n > 0 && n + 2 > table.size(); --n) {
    pool_.Prefetch(table[n - 1]);
    index_.Prefetch(table[n - 1]);
  }
}

void BlockManager::Commit(PlannedStep& step, std::span<const StepCommit> commits) {
  bool closed = false;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    FetchToCommit(step, i);
    const PlannedItem& item = step.items[i];
    const Sequence& sequence = sequences_.at(item.sequence);
    if (item.plain) {
      SettlePlain(step, i, *CommitOf(step, i, commits));
    } else if (sequence.open && sequence.id == step.rows[i].sequence) {
      SettleItem(step, i, CommitOf(step, i, commits));
    }
    closed |= LeaveItem(step, i);
  }
  EndStep(step, /*discarded=*/false, closed);
  KeepClean();
}

void BlockManager::SettleItem(PlannedStep& step, std::size_t index, const StepCommit* commit) {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  Sequence& sequence = sequences_.at(item.sequence);
  const std::int64_t end =
      EndOf(step, index, commit == nullptr ? step.rows[index].count : commit->kept);
  tokens_committed_ += std::max<std::int64_t>(0, end - rows.start);
  sequence.settled = end;
  if (sequence.last_step == step.id) {  // no later rows: the sequence ends here
    sequence.planned = end;
    if (sequence.reach != end) {
      sequence.reach = end;
      ShrinkTable(sequence, BlocksFor(end));
    }
  }
  if (commit != nullptr && !commit->tokens.empty() && sequence.known() < end) {
    const auto wanted = static_cast<std::size_t>(
        std::min<std::int64_t>(std::ssize(commit->tokens), end - sequence.known()));
    for (const TokenId token : commit->tokens.first(wanted)) sequence.ids.push_back(token);
  }
  // Nothing changes for a block that held settled rows before.
  const bool in_held = item.tail_held && item.new_blocks == 0 && !config_.track_writes;
  if (!in_held) SettleBlocks(step, index, end);
  IndexFullBlocks(sequence);
  if (sides_.any()) SlideOut(sequence);
}

// The blocks that the kept rows, up to `end`, were written to become held. They are those of the
// plan: a later step may have put a copy into the table since.
void BlockManager::SettleBlocks(PlannedStep& step, std::size_t index, std::int64_t end) {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  const std::int64_t tail = BlockAt(rows.start);
  // A copy holds rows from before the step, so it counts even where none of the step's is kept.
  if (item.cow_target != kNoBlock && tail < BlocksFor(end)) {
    pool_.Settle(item.cow_target);
    for (const SideCopy& copy : SideCopiesOf(step, index)) pool_.Settle(copy.target);
  }
  if (end <= rows.start) return;
  const auto settle = [&](BlockId block) {
    pool_.Settle(block);
    if (config_.track_writes) step.written.push_back({block, pool_.generation(block)});
  };
  const auto groups = static_cast<std::size_t>(GroupCount());
  for (std::int64_t b = tail; b < BlocksFor(end); ++b) {
    if (b < item.first_new_block) {
      settle(item.tail_block);
      for (std::size_t side = 0; side < sides_.count(); ++side) {
        settle(step.side_tails[index * sides_.count() + side]);
      }
      continue;
    }
    const std::size_t taken = static_cast<std::size_t>(item.first_taken) +
                              static_cast<std::size_t>(b - item.first_new_block) * groups;
    for (std::size_t group = 0; group < groups; ++group) settle(step.undo[taken + group].block);
  }
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
    const std::int64_t end = item.first_plan ? 0 : EndOf(step, i, /*kept=*/0);
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
  const std::int64_t end = EndOf(step, index, /*kept=*/0);
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
  std::vector<BlockId>& table = sequence.table;
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
