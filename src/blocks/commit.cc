// SPDX-License-Identifier: Apache-2.0
// Commit: which rows are kept, under which ids, and what they put into the index.
//
// One pass settles the plain items, which cannot fail, as it comes by them; what it leaves is
// checked, and then settled, in lists of its own. Where the check refuses an entry, or memory is
// lacking, the plain ones are taken back.
#include <algorithm>
#include <cassert>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// Has fetched what Commit touches some of its other items after this one. One whose rows end with a
// block goes on to its table, and from there to the index.
// Inlined always, as FetchToReserve: the compiler leaves out calls of what seems to do nothing.
[[gnu::always_inline]] inline void BlockManager::FetchToSettle(const PlannedStep& step,
                                                               std::size_t n) const {
  const auto item = [&](std::size_t times) -> const PlannedItem& {
    const std::size_t ahead = std::min(n + times * kFetchAhead, step.others.size() - 1);
    return step.items[step.others[ahead]];
  };
  const PlannedItem &near = item(1), &further = item(2), &far = item(3);
  sequences_.Prefetch(far.sequence);
  sequences_.at(further.sequence).ids.Prefetch();
  if (near.new_blocks > 0) pool_.Prefetch(step.undo[near.first_taken].block);
  if (!config_.reuse) return;
  if (far.ends_block) sequences_.PrefetchTable(far.sequence);
  if (further.ends_block) sequences_.PrefetchTableEnd(further.sequence);
  if (!near.ends_block) return;
  const BlockTable& table = sequences_.at(near.sequence).table;
  for (std::size_t b = table.size(); b > 0 && b + 2 > table.size(); --b) {
    pool_.Prefetch(table[b - 1]);
    index_.Prefetch(table[b - 1]);
  }
  if (table.size() > PrefixIndex::kAhead) {
    index_.Prefetch(table[table.size() - 1 - PrefixIndex::kAhead]);
  }
}

Status BlockManager::Commit(PlannedStep& step, std::span<const StepCommit> commits) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  assert(step.phase == StepPhase::kPrepared);
  if (live_[0] != &step) {
    return NotReady("step " + std::to_string(live_[0]->id) + " is live and was planned earlier");
  }
  if (Status matched = MatchCommits(step, commits); !matched.ok()) return matched;
  try {
    if (Status settled = SettlePlain(step, commits); !settled.ok()) {
      UndoSettle(step);
      return settled;
    }
  } catch (...) {
    UndoSettle(step);
    throw;
  }
  bool closed = false;
  for (std::size_t n = 0; n < step.others.size(); ++n) {
    FetchToSettle(step, n);
    const auto i = static_cast<std::size_t>(step.others[n]);
    const Sequence& sequence = sequences_.at(step.items[i].sequence);
    if (sequence.open && sequence.id == step.rows[i].sequence) {
      SettleItem(step, i, step.EntryOf(i, commits));
    }
    closed |= LeaveItem(step, i);
  }
  EndStep(step, /*discarded=*/false, closed);
  KeepClean();
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

// Whether of an item all rows are kept, with their ids, and neither a block nor the index changes.
inline bool BlockManager::IsPlain(const PlannedStep& step, std::size_t index,
                                  const StepCommit& commit, const Sequence& sequence) const {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  const std::int64_t end = rows.start + rows.count;
  return item.plain && !item.ends_block && item.limit == end && sequence.open &&
         commit.kept == rows.count && std::ssize(commit.tokens) == rows.count &&
         sequence.known() == rows.start && rows.start >= sequence.prompt_length &&
         !sequence.retains && BlocksToIndex(sequence, end, end) == 0;
}

// Ends such items. Of the others it makes a list, checks their entries, and makes room for what
// they may release. From the last item to the first, as Plan went the other way: what it touched
// last is still in the processor's caches.
Status BlockManager::SettlePlain(PlannedStep& step, std::span<const StepCommit> commits) {
  Status refused;             // of the first item that is
  std::int64_t releases = 0;  // blocks behind the kept rows, and those that merge
  step.others.clear();
  assert(step.written.empty());
  for (std::size_t i = step.rows.size(); i-- > 0;) {
    if (i >= 2 * kFetchAhead) sequences_.Prefetch(step.items[i - 2 * kFetchAhead].sequence);
    if (i >= kFetchAhead) sequences_.at(step.items[i - kFetchAhead].sequence).ids.Prefetch();
    const StepRows& rows = step.rows[i];
    Sequence& sequence = sequences_.at(step.items[i].sequence);
    const StepCommit* const commit = step.EntryOf(i, commits);
    if (commit != nullptr && IsPlain(step, i, *commit, sequence)) {
      assert(sequence.settled == rows.start);
      const std::int64_t end = rows.start + rows.count;
      tokens_committed_ += rows.count;
      sequence.settled = end;
      if (sequence.last_step == step.id) sequence.planned = end;
      for (const TokenId token : commit->tokens) sequence.ids.push_back(token);
      --sequence.live_steps;  // last_step may stay: no step has that number any more
      if (config_.track_writes) SettleBlocks(step, i, end);
      continue;
    }
    step.others.push_back(static_cast<std::int32_t>(i));
    if (!sequence.open || sequence.id != rows.sequence) continue;  // closed since
    std::int64_t kept = rows.count, given = 0;
    if (commit != nullptr) {
      if (Status s = CheckEntry(step, i, *commit, sequence); !s.ok()) {
        refused = std::move(s);
        continue;
      }
      kept = commit->kept;
      given = std::ssize(commit->tokens);
    }
    const std::int64_t end = step.EndOf(i, kept);
    if (sequence.last_step == step.id) releases += BlocksFor(sequence.reach) - BlocksFor(end);
    releases += BlocksToIndex(sequence, end, sequence.known() + given);
  }
  if (!refused.ok()) return refused;
  std::reverse(step.others.begin(), step.others.end());
  ReserveReleases(releases * GroupCount());
  return {};
}

// Takes back what SettlePlain did. The step is the oldest one that is live, so nothing else has
// settled rows of its.
void BlockManager::UndoSettle(PlannedStep& step) {
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const StepRows& rows = step.rows[i];
    const PlannedItem& item = step.items[i];
    Sequence& sequence = sequences_.at(item.sequence);
    if (sequence.settled != rows.start + rows.count) continue;
    tokens_committed_ -= rows.count;
    sequence.settled = rows.start;
    if (sequence.last_step == step.id) sequence.planned = rows.start + item.certain;
    sequence.ids.shorten(static_cast<std::size_t>(rows.start));
    ++sequence.live_steps;
  }
  step.written.clear();
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

void BlockManager::SettleItem(PlannedStep& step, std::size_t index, const StepCommit* commit) {
  const StepRows& rows = step.rows[index];
  const PlannedItem& item = step.items[index];
  Sequence& sequence = sequences_.at(item.sequence);
  const std::int64_t end =
      step.EndOf(index, commit == nullptr ? step.rows[index].count : commit->kept);
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

}  // namespace lariat::blocks
