// SPDX-License-Identifier: Apache-2.0
// Requests with several sequences: they fork where the prompt ends, decode together, go on from
// each other's rows, and are restored after a preemption.
#include <algorithm>
#include <string>
#include <utility>

#include "session/session_state.h"

namespace lariat {

using session::Timed;

// The most blocks that a request's beams hold until each has `length` rows, when the first one has
// `settled`: the prompt's full blocks once, all others once for each. With one beam, those of its
// rows.
std::int64_t Session::Impl::BlocksOfBeams(const RequestState& state, std::int64_t settled,
                                          std::int64_t length) const {
  const std::int64_t shared = state.prompt_length / block_size;
  return cache.BlocksFor(settled, length, config.max_step_tokens) +
         (state.num_beams() - 1) * (cache.BlocksFor(0, length, block_size) - shared);
}

// What the beams of a forked request still take, a copy of a shared tail included: in this step, or
// while they are restored, up to the first one in which they decode again.
std::int64_t Session::Impl::BlocksOwedToBeams(const RequestState& state) const {
  const Beam& first_beam = state.beams.front();
  const std::int64_t reach = std::max(first_beam.settled, first_beam.target) + 1;
  std::int64_t owed = 0;
  for (const Beam& beam : state.beams) {
    const std::int64_t held = beam.open() ? cache.BlocksFor(beam.settled, beam.settled)
                                          : state.prompt_length / block_size;
    const std::int64_t from = beam.open() ? beam.settled : reach;
    owed += cache.BlocksFor(from, reach, config.max_step_tokens) - held;
    if (beam.shares_tail) owed += cache.BlocksFor(0, 1);
  }
  return owed;
}

// Items of a forked request: a row of each beam, or of none where the budget does not reach; before
// that, what is left to restore.
Status Session::Impl::BatchBeams(RequestState& state) {
  if (!state.first().prefilling()) decodes -= state.num_beams();
  const Status restored = RestoreBeams(state);
  if (!restored.ok()) return restored;
  const std::int64_t owed = BlocksOwedToBeams(state);
  // Of several beams none computes more at once than BlocksOfBeams counts on.
  const bool apart = has_windows && state.beams.back().open();
  bool restoring = false;
  for (std::size_t b = 0; b < state.beams.size(); ++b) {
    const Beam& beam = state.beams[b];
    if (beam.open() && !beam.prefilling()) continue;
    restoring = true;
    if (!beam.open() || budget == 0) continue;
    const std::int64_t rows = std::min(beam.target - beam.settled, budget);
    AddItem(state, b, apart ? std::min(rows, block_size) : rows);
  }
  if (restoring) {
    blocks_owed += owed;
    return Status::Ok();
  }
  if (budget < state.num_beams()) return Status::Ok();
  blocks_owed += owed;
  for (std::size_t b = 0; b < state.beams.size(); ++b) AddItem(state, b, 1);
  return Status::Ok();
}

Result<SequenceId> Session::Impl::Fork(const Beam& parent, std::int64_t length) {
  const Timed timed(stats.manager_s);
  stats.forks += 1;
  return cache.Fork(parent.sequence, length);
}

// Tokens that a beam of a request that was preempted shares with the first one, of those that are
// computed before they decode again.
std::int64_t Session::Impl::SharedLength(const RequestState& state, std::size_t b) {
  const std::vector<TokenId>& first = state.beams.front().generated;
  const std::vector<TokenId>& own = state.beams[b].generated;
  const auto parted = std::mismatch(own.begin(), own.end() - 1, first.begin());
  return state.prompt_length + (parted.first - own.begin());
}

// How far the first beam is computed before the others fork from it: where a window may have slid
// on, they cannot fork from what lies behind.
std::int64_t Session::Impl::RestoreLength(const RequestState& state) const {
  std::int64_t length = state.prompt_length + std::ssize(state.beams.front().generated) - 1;
  for (std::size_t b = 1; has_windows && b < state.beams.size(); ++b) {
    length = std::min(length, SharedLength(state, b));
  }
  return length;
}

// After a preemption the first beam has been opened with all that it has, or with what all share;
// when it is computed, the others fork from it where they part, and compute their own rows.
Status Session::Impl::RestoreBeams(RequestState& state) {
  Beam& source = state.beams.front();
  if (source.prefilling() || state.beams.back().open()) return Status::Ok();
  const auto prompt = static_cast<std::size_t>(state.prompt_length);
  const std::int64_t target = state.prompt_length + std::ssize(source.generated) - 1;
  for (std::size_t b = 1; b < state.beams.size(); ++b) {
    Beam& beam = state.beams[b];
    const std::int64_t length = std::min(source.settled, SharedLength(state, b));
    const Result<SequenceId> forked = Fork(source, length);
    if (!forked.ok()) return forked.status();
    beam.sequence = *forked;
    beam.opened_length = length;
    beam.target = target;
    beam.settled = length;
    beam.fresh = true;
    beam.shares_tail = length % block_size != 0;
    beam.inputs = TakeBuffer();
    beam.inputs_begin = 0;
    beam.inputs.assign(source.inputs.begin(),
                       source.inputs.begin() + static_cast<std::ptrdiff_t>(prompt));
    beam.inputs.insert(beam.inputs.end(), beam.generated.begin(), beam.generated.end());
  }
  source.target = target;
  return Status::Ok();
}

Status Session::Impl::CheckBeamOutput(const ExecutorOutput& output, std::size_t index) const {
  const ExecutorItem& item = executor_items[index];
  const std::int64_t beams = owners[index].state->num_beams();
  if (!item.samples) return Status::Ok();
  if (std::ssize(output.first[index]) != item.forks) {
    return InvalidArgument("executor's first has " + std::to_string(output.first[index].size()) +
                           " tokens; allowed: as many as the item has forks, " +
                           std::to_string(item.forks));
  }
  const bool forked = owners[index].state->forked();
  const int parent = output.parents[index];
  if (parent < 0 || parent >= (forked ? beams : 1)) {
    return InvalidArgument("executor's parent = " + std::to_string(parent) + "; allowed: 0 to " +
                           std::to_string(forked ? beams - 1 : 0) + ", a beam of the request");
  }
  if (beams > 1 && !output.drafts[index].empty()) {
    return InvalidArgument("executor's drafts has " + std::to_string(output.drafts[index].size()) +
                           " tokens; allowed: none for a request with beams");
  }
  return Status::Ok();
}

// All beams but the first begin where the prompt ends.
Status Session::Impl::ForkFirst(RequestState& state) {
  const Beam& source = state.first();
  for (std::size_t b = 1; b < state.beams.size(); ++b) {
    const Result<SequenceId> forked = Fork(source, source.settled);
    if (!forked.ok()) return forked.status();
    Beam& beam = state.beams[b];
    beam.generated.reserve(source.generated.capacity());
    beam.sequence = *forked;
    beam.opened_length = source.opened_length;
    beam.target = source.target;
    beam.settled = source.settled;
    beam.fresh = false;
    beam.shares_tail = source.settled % block_size != 0;
  }
  return Status::Ok();
}

// Beam b becomes a beam that goes on from the rows of beam from[b]. One of those that do takes the
// sequence over, itself if it is one of them, the others fork it. Who has none is dropped.
Status Session::Impl::Reorder(RequestState& state, std::span<const int> from) {
  const auto heir = [&](int parent) {
    const auto own = static_cast<std::size_t>(parent);
    if (from[own] == parent) return own;
    return static_cast<std::size_t>(std::find(from.begin(), from.end(), parent) - from.begin());
  };
  // Dropped ones first, so that there are never more sequences than beams.
  for (std::size_t b = 0; b < from.size(); ++b) {
    Beam& beam = state.beams[b];
    if (heir(static_cast<int>(b)) < from.size()) continue;
    if (observer != nullptr) {
      const Status told = observer->OnSequenceEnd({.request = state.id,
                                                   .tag = state.request.tag,
                                                   .beam = static_cast<int>(b),
                                                   .sequence = beam.sequence,
                                                   .settled = beam.settled,
                                                   .reason = SequenceEndReason::kDropped});
      if (!told.ok()) return told;
    }
    CloseBeam(beam);
  }
  reordered.clear();
  reordered.resize(from.size());
  Status forks;
  for (std::size_t b = 0; b < from.size() && forks.ok(); ++b) {
    if (heir(from[b]) == b) continue;
    const Beam& parent = state.beams[static_cast<std::size_t>(from[b])];
    const Result<SequenceId> forked = Fork(parent, parent.settled);
    if (!forked.ok()) {
      forks = forked.status();
      break;
    }
    reordered[b] = parent;
    reordered[b].sequence = *forked;
    reordered[b].shares_tail = parent.settled % block_size != 0;
  }
  if (!forks.ok()) {
    for (Beam& beam : reordered) CloseBeam(beam);
    return forks;
  }
  for (std::size_t b = 0; b < from.size(); ++b) {
    if (heir(from[b]) == b)
      reordered[b] = std::move(state.beams[static_cast<std::size_t>(from[b])]);
  }
  state.beams.swap(reordered);
  return Status::Ok();
}

// The tokens of a step that all beams of a request ran in, the first one alone where the prompt
// ends; `index` is its first item.
Status Session::Impl::TakeBeams(RequestState& state, const ExecutorOutput& output,
                                std::size_t index) {
  const std::size_t beams = state.beams.size();
  const std::size_t items_run = state.forked() ? beams : 1;
  if (items_run == 1) {
    const Status forked = ForkFirst(state);
    if (!forked.ok()) return forked;
  } else {
    const std::span<const int> from = output.parents.subspan(index, beams);
    bool moved = false;
    for (std::size_t b = 0; b < beams; ++b) moved = moved || from[b] != static_cast<int>(b);
    const Status reordered_beams = moved ? Reorder(state, from) : Status::Ok();
    if (!reordered_beams.ok()) return reordered_beams;
  }
  NoteFirstToken(state);
  stats.output_tokens += 1;
  for (std::size_t b = 0; b < beams; ++b) {
    Beam& beam = state.beams[b];
    const TokenId token = b < items_run ? output.next[index + b] : output.first[index][b - 1];
    beam.generated.push_back(token);
    if (beam.inputs_begin == 0) ReturnBuffer(beam.inputs);  // the prefill is over
    beam.inputs.assign(1, token);
    beam.inputs_begin = beam.settled;
  }
  for (std::size_t i = 0; i < items_run; ++i) {
    state.ended = state.ended || output.stop[index + i] != 0;
  }
  state.ended = state.ended || std::ssize(state.first().generated) >= state.request.max_new_tokens;
  any_ended = any_ended || state.ended;
  return Status::Ok();
}

}  // namespace lariat
