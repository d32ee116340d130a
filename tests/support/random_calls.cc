// SPDX-License-Identifier: Apache-2.0
#include "support/random_calls.h"

#include <deque>

namespace lariat::testing {

// Keeps part of each sequence's rows; seldom, something that must be refused.
void RandomCalls::Commit() {
  if (pair_.live().empty()) return;
  const std::size_t which_step =
      Chance(92) ? 0 : static_cast<std::size_t>(Roll(std::ssize(pair_.live())));
  const reference::ModelStep& step = model().steps()[which_step];
  std::map<SequenceId, CacheModel::Keep> keeps;
  std::vector<StepCommit> commits;
  std::deque<std::vector<TokenId>> dropped;  // ids of rows that are gone
  std::string what = Text("Commit ", which_step);
  bool invalid = false;
  for (const ModelEntry& entry : step.entries) {
    const auto open = model().sequences().find(entry.sequence);
    if (open == model().sequences().end()) {
      if (!Chance(50)) continue;
      const auto given = static_cast<std::size_t>(Chance(50) ? entry.count : 0);
      commits.push_back({entry.sequence, entry.count, dropped.emplace_back(given, 1)});
      continue;
    }
    CacheModel::Keep& keep = keeps[entry.sequence];
    // What Truncate dropped cannot be kept; of what is left, the certain rows must be.
    const std::int64_t least = std::min(entry.count - entry.drafts, entry.left);
    const bool named = Chance(70);
    keep.kept = entry.left;
    if (named) keep.kept = least + Roll(entry.left - least + 1);
    const std::int64_t past = model().KeptPastPrompt(entry, keep.kept);
    const std::int64_t from = std::max<std::int64_t>(entry.start, std::ssize(open->second.prompt));
    for (std::int64_t i = 0; i < past; ++i) keep.truth.push_back(Token(from + i));
    if (!named) continue;
    StepCommit commit{.sequence = entry.sequence, .kept = keep.kept};
    // More than is left may be named.
    if (keep.kept == entry.left && Chance(50)) commit.kept = entry.count;
    // Ids in order: none for these rows while earlier ones lack theirs.
    const bool gap = std::ssize(open->second.ids) < from;
    if (!gap) keep.given = static_cast<std::size_t>(Chance(75) ? past : Roll(past + 1));
    commit.tokens = std::span(keep.truth).first(keep.given);
    // As many ids as rows are named may be given, though the last ones are gone.
    const std::int64_t gone = std::max<std::int64_t>(0, entry.start + commit.kept - from) - past;
    if (!gap && gone > 0 && std::ssize(commit.tokens) == past && Chance(50)) {
      std::vector<TokenId>& all = dropped.emplace_back(keep.truth);
      all.resize(all.size() + static_cast<std::size_t>(gone), 1);
      commit.tokens = all;
    }
    if (Chance(2)) {
      commit.kept = Chance(50) ? entry.count + 1 : least - 1;
      invalid = true;
    }
    commits.push_back(commit);
    what += Text(" ", CachePair::Name(entry.sequence), ":", commit.kept, "t", keep.given);
  }
  if (!commits.empty() && model().sequences().count(commits.back().sequence) > 0 && Chance(1)) {
    commits.push_back(commits.back());
    invalid = true;
  }
  if (Chance(1)) {
    commits.push_back({.sequence = SequenceId{987654}, .kept = 1});
    invalid = true;
  }
  std::set<Code> codes;
  if (invalid) codes.insert(Code::kInvalidArgument);
  if (which_step > 0) codes.insert(Code::kNotReady);
  if (codes.empty()) codes.insert(Code::kOk);
  if (pair_.planning()) codes.insert(Code::kNotReady), codes.erase(Code::kOk);
  const Code code = pair_.Call(what, codes, [&](KVCache& cache, int which) {
    return cache.Commit(pair_.live()[which_step].steps[which], commits, Stream{});
  });
  if (code == Code::kOk) {
    if (pair_.live()[which_step].steps[0].valid()) pair_.Fail("a committed step is still valid");
    pair_.EraseLive(which_step);
    model().Commit(which_step, keeps);
  }
  pair_.CheckState();
}

void RandomCalls::Discard() {
  if (pair_.live().empty()) return;
  const std::size_t which_step = static_cast<std::size_t>(Roll(std::ssize(pair_.live())));
  std::set<Code> codes = {Code::kOk};
  if (model().SharesLater(which_step, /*open_only=*/true)) {
    codes = {Code::kNotReady};
  } else if (model().SharesLater(which_step, /*open_only=*/false)) {
    codes = {Code::kOk, Code::kNotReady};
  }
  const Code code =
      pair_.Call(Text("Discard ", which_step), Unless(codes), [&](KVCache& cache, int which) {
        return cache.Discard(pair_.live()[which_step].steps[which], Stream{});
      });
  if (code == Code::kOk) {
    pair_.EraseLive(which_step);
    model().Discard(which_step);
  }
  pair_.CheckState();
}

void RandomCalls::Close() {
  const SequenceId id = AnySequence();
  const bool known = model().sequences().count(id) > 0;
  const Code code = pair_.Call(Text("Close ", CachePair::Name(id)),
                               Unless({known ? Code::kOk : Code::kInvalidArgument}),
                               [&](KVCache& cache, int) { return cache.Close(id); });
  if (code == Code::kOk) {
    model().Close(id);
    pair_.Call("Close again", {Code::kInvalidArgument},
               [&](KVCache& cache, int) { return cache.Close(id); });
  }
  pair_.CheckState();
}

void RandomCalls::Truncate() {
  const SequenceId id = AnySequence();
  const auto found = model().sequences().find(id);
  if (found == model().sequences().end()) return;
  const std::int64_t length = model().Length(found->second, id);
  // To nothing at all is tested elsewhere, but where that is all that windows allow.
  std::int64_t to = Chance(60) ? std::max<std::int64_t>(1, length - Roll(4)) : 1 + Roll(length + 2);
  if (Chance(3)) to = -1 - Roll(3);
  const std::int64_t least = model().MinLength(found->second);
  if (least > 0 && Chance(20)) to = Chance(30) ? 0 : least - Roll(2);
  const bool refused = to < 0 || (to > 0 && to < std::min(least, length));
  const Code code =
      pair_.Call(Text("Truncate ", CachePair::Name(id), " to ", to),
                 UnlessAway(found->second, {refused ? Code::kInvalidArgument : Code::kOk}),
                 [&](KVCache& cache, int) { return cache.Truncate(id, to); });
  if (code == Code::kOk) {
    model().Truncate(id, to);
    const std::string once = pair_.snapshot();
    pair_.Call("the same", {Code::kOk},
               [&](KVCache& cache, int) { return cache.Truncate(id, to); });
    if (pair_.snapshot() != once) pair_.Fail("Truncate is not idempotent");
  }
  pair_.CheckState();
}

void RandomCalls::Fork() {
  const SequenceId id = AnySequence();
  const auto found = model().sequences().find(id);
  if (found == model().sequences().end()) return;
  const std::int64_t settled = found->second.settled;
  if (settled == 0) return;  // nothing to share: tested elsewhere
  std::int64_t length = Chance(40) ? -1 : 1 + Roll(settled);
  if (Chance(3)) length = Chance(50) ? settled + 1 : -2;
  std::set<Code> codes;
  const std::int64_t least = model().MinLength(found->second);
  if (least > 0 && Chance(20)) length = Chance(30) ? 0 : std::min(settled, least - Roll(2));
  const bool gone = length > 0 && length < least;
  if (length < -1 || length > settled || gone) codes.insert(Code::kInvalidArgument);
  if (model().InLiveStep(id)) codes.insert(Code::kNotReady);
  if (std::ssize(model().sequences()) >= model().config().max_sequences) {
    codes.insert(Code::kResourceExhausted);
  }
  if (codes.empty()) codes.insert(Code::kOk);
  SequenceId ids[2] = {};
  const Code code = pair_.Call(Text("Fork ", CachePair::Name(id), " at ", length),
                               UnlessAway(found->second, codes), [&](KVCache& cache, int which) {
                                 auto child = cache.Fork(id, length);
                                 if (child.ok()) ids[which] = *child;
                                 return child.status();
                               });
  if (code == Code::kOk) {
    if (ids[0] != ids[1] || !used_.insert(ids[0]).second) pair_.Fail("handles");
    model().Fork(id, ids[0], length);
  }
  pair_.CheckState();
}

void RandomCalls::SetTokens() {
  const SequenceId id = AnySequence();
  const auto found = model().sequences().find(id);
  if (found == model().sequences().end()) return;
  const ModelSequence& sequence = found->second;
  const std::int64_t known = std::ssize(sequence.ids);
  const std::int64_t missing = std::max<std::int64_t>(0, sequence.settled - known);
  std::vector<TokenId> tokens;
  if (missing > 0) {
    const std::int64_t count = Chance(50) ? missing : 1 + Roll(missing);
    tokens.assign(sequence.truth.begin() + known, sequence.truth.begin() + known + count);
  }
  const bool invalid = missing == 0 || Chance(5);
  if (invalid) {
    tokens.assign(sequence.truth.begin() + std::min(known, sequence.settled), sequence.truth.end());
    tokens.push_back(1);
  }
  const Code code = pair_.Call(Text("SetTokens ", CachePair::Name(id), " ", tokens.size()),
                               UnlessAway(sequence, {invalid ? Code::kInvalidArgument : Code::kOk}),
                               [&](KVCache& cache, int) { return cache.SetTokens(id, tokens); });
  if (code == Code::kOk) model().SetTokens(id, tokens);
  pair_.CheckState();
}

void RandomCalls::Clear() {
  const Code code =
      pair_.Call("Clear", Unless({Code::kOk}), [&](KVCache& cache, int) { return cache.Clear(); });
  if (code == Code::kOk) model().Clear();
  pair_.CheckState();
}

// Match of an open sequence that was not planned yet, and of its prompt.
void RandomCalls::Match() {
  const SequenceId id = AnySequence();
  const auto found = model().sequences().find(id);
  if (found == model().sequences().end()) return;
  const ModelSequence& sequence = found->second;
  if (pair_.planning()) {  // legal; what it finds may be stale either way
    const PrefixMatch match = pair_.cache().Match(sequence.prompt);
    if (match.tokens % block_ != 0 && !model().config().tokens) {
      pair_.Fail("a match that is not whole blocks");
    }
    return;
  }
  const PrefixMatch want = model().Match(sequence.prompt, sequence.options);
  PrefixMatch got[2];
  const auto check = [&] {
    for (const PrefixMatch& match : got) {
      if (match.tokens != want.tokens || match.blocks != want.blocks ||
          match.idle_blocks != want.idle_blocks || match.host_tokens != want.host_tokens) {
        pair_.Fail(Text("Match finds ", match.tokens, ", ", match.blocks, ", ", match.idle_blocks,
                        ", ", match.host_tokens, ", should be ", want.tokens, ", ", want.blocks,
                        ", ", want.idle_blocks, ", ", want.host_tokens));
      }
    }
  };
  const Code code =
      pair_.Call(Text("Match ", CachePair::Name(id)),
                 UnlessAway(sequence, {sequence.planned ? Code::kInvalidArgument : Code::kOk}),
                 [&](KVCache& cache, int which) {
                   auto match = cache.Match(id);
                   if (match.ok()) got[which] = *match;
                   return match.status();
                 });
  if (code == Code::kOk) check();
  if (sequence.options != reference::OptionsKey({})) return;
  const std::string before = pair_.snapshot();
  pair_.MatchBoth(sequence.prompt, got);
  check();
  if (pair_.snapshot() != before) pair_.Fail("Match changed the cache");
  pair_.CheckState();
}

// Handles that are not open, and Poll.
void RandomCalls::Rest() {
  const SequenceId dead{123456789};
  const std::set<Code> invalid = Unless({Code::kInvalidArgument});
  switch (Roll(6)) {
    case 0:
      pair_.Call("Truncate of none", invalid,
                 [&](KVCache& cache, int) { return cache.Truncate(dead, 0); });
      break;
    case 1:
      pair_.Call("Fork of none", invalid,
                 [&](KVCache& cache, int) { return cache.Fork(dead).status(); });
      break;
    case 2:
      pair_.Call("SetTokens of none", invalid,
                 [&](KVCache& cache, int) { return cache.SetTokens(dead, {}); });
      break;
    case 3:
      pair_.Call("GetExtent of none", {Code::kInvalidArgument},
                 [&](KVCache& cache, int) { return cache.GetExtent(dead).status(); });
      break;
    case 4:
      pair_.Call("BlockTable of none", {Code::kInvalidArgument},
                 [&](KVCache& cache, int) { return cache.BlockTable(dead).status(); });
      break;
    default:
      pair_.Call("Poll", Unless({Code::kOk}), [&](KVCache& cache, int) {
        auto report = cache.Poll();
        if (report.ok() &&
            (report->live_steps != std::ssize(pair_.live()) || !report->faults.empty())) {
          pair_.Fail("Poll's report");
        }
        return report.status();
      });
  }
  pair_.CheckState();
}

void RandomCalls::Drain() {
  if (pair_.planning()) Drop();
  while (!pair_.live().empty()) {
    pair_.Call("Commit all", {Code::kOk}, [&](KVCache& cache, int which) {
      return cache.Commit(pair_.live()[0].steps[which], {}, Stream{});
    });
    std::map<SequenceId, CacheModel::Keep> keeps;
    for (const ModelEntry& entry : model().steps()[0].entries) {
      if (model().sequences().count(entry.sequence) == 0) continue;
      keeps[entry.sequence] = {entry.left,
                               std::vector<TokenId>(model().KeptPastPrompt(entry, entry.left)), 0};
    }
    pair_.EraseLive(0);
    model().Commit(0, keeps);
    pair_.CheckState();
  }
  while (!model().sequences().empty()) {
    const SequenceId id = AnySequence();
    pair_.Call("Close", {Code::kOk}, [&](KVCache& cache, int) { return cache.Close(id); });
    model().Close(id);
    pair_.CheckState();
  }
  if (!model().transfers().empty()) Accept(model().transfers().back().id);
  SetQuota("tenant", Roll(3));
  for (const std::string salt : {"tenant", ""}) {
    pair_.Call("RemoveSalt", {Code::kOk},
               [&](KVCache& cache, int) { return cache.RemoveSalt(salt).status(); });
    RemoveSalt(salt);
  }
  pair_.CheckState();
  const Stats stats = pair_.cache().GetStats();
  if (stats.free_blocks != stats.total_blocks) pair_.Fail("blocks leaked");
  if (stats.host_used != 0) pair_.Fail("places leaked");
}

}  // namespace lariat::testing
