// SPDX-License-Identifier: Apache-2.0
// One step: plan, run, settle.
#include <algorithm>
#include <cmath>
#include <string>

#include "session/session_state.h"

namespace lariat {

using session::Timed;

// Says of each item what its rows are.
void Session::Impl::DescribeItems(const Step& step) {
  executor_items.clear();
  const std::span<const StepRows> rows = step.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RequestState& state = *owners[i].state;
    const Beam& beam = state.beams[owners[i].beam];
    const StepRows& row = rows[i];
    const std::span<const TokenId> inputs = beam.inputs;
    ExecutorItem item{.request = state.id,
                      .tag = state.request.tag,
                      .beam = static_cast<int>(owners[i].beam),
                      .sequence = beam.sequence,
                      .first_row = row.first_row,
                      .start = row.start,
                      .count = row.count,
                      .drafts = items[i].num_drafts,
                      .samples = row.start + row.count >= beam.target};
    // Beams that are restored know their next token, and wait for each other.
    if (state.forked() && beam.prefilling()) item.samples = false;
    if (item.samples && !state.forked()) item.forks = static_cast<int>(state.num_beams()) - 1;
    item.tokens = inputs.subspan(static_cast<std::size_t>(row.start - beam.inputs_begin),
                                 static_cast<std::size_t>(row.count));
    if (beam.fresh) item.cached = inputs.first(static_cast<std::size_t>(row.start));
    executor_items.push_back(item);
  }
  next.assign(rows.size(), 0);
  accepted.assign(rows.size(), 0);
  stop.assign(rows.size(), 0);
  drafts.assign(rows.size(), {});
  first.assign(rows.size(), {});
  parents.clear();
  for (const Owner& owner : owners) parents.push_back(static_cast<int>(owner.beam));
  any_ended = false;
}

Status Session::Impl::CheckOutput(const ExecutorOutput& output) const {
  if (!(output.seconds >= 0) || !std::isfinite(output.seconds)) {
    return InvalidArgument("executor's seconds = " + std::to_string(output.seconds) +
                           "; allowed: at least 0");
  }
  for (std::size_t i = 0; i < executor_items.size(); ++i) {
    if (accepted[i] < 0 || accepted[i] > executor_items[i].drafts) {
      return InvalidArgument("executor's accepted = " + std::to_string(accepted[i]) +
                             "; allowed: 0 to the item's drafts, " +
                             std::to_string(executor_items[i].drafts));
    }
    const Status checked = CheckBeamOutput(output, i);
    if (!checked.ok()) return checked;
  }
  return Status::Ok();
}

// What kept rows and a first step's hit add to the sums (docs/simulator.md, Counting).
void Session::Impl::CountRows(RequestState& state, const ExecutorItem& item, std::int64_t kept) {
  Beam& beam = state.beams[static_cast<std::size_t>(item.beam)];
  const std::int64_t end = item.start + kept;
  if (beam.settled == 0 && item.start > 0) {
    const std::int64_t hit =
        std::max<std::int64_t>(0, std::min(item.start, state.prompt_length) - state.high_water);
    state.result.hit_tokens += hit;
    stats.hit_tokens += hit;
    if (state.fetched_from >= 0) {
      const std::int64_t fetched =
          std::clamp<std::int64_t>(item.start - state.fetched_from, 0, hit);
      state.result.host_hit_tokens += fetched;
      stats.host_hit_tokens += fetched;
    }
  }
  state.fetched_from = -1;
  const std::int64_t again =
      std::max<std::int64_t>(0, std::min(end, state.high_water) - item.start);
  state.result.recomputed_tokens += again;
  stats.recomputed_tokens += again;
  stats.tokens_appended += kept;
  beam.settled = end;
  beam.fresh = false;
  beam.shares_tail = false;
}

void Session::Impl::NoteFirstToken(RequestState& state) {
  if (state.first_token) return;
  state.first_token = true;
  state.result.first_token_s = now;
}

// The tokens that a step gave a sequence whose opened tokens are all computed.
void Session::Impl::TakeTokens(RequestState& state, const ExecutorItem& item,
                               const ExecutorOutput& output, std::size_t index) {
  Beam& beam = state.first();
  emitted.clear();
  const std::size_t certain = item.tokens.size() - static_cast<std::size_t>(item.drafts);
  const auto drafted =
      item.tokens.subspan(certain, static_cast<std::size_t>(output.accepted[index]));
  emitted.insert(emitted.end(), drafted.begin(), drafted.end());
  emitted.push_back(output.next[index]);
  beam.generated.insert(beam.generated.end(), emitted.begin(), emitted.end());
  NoteFirstToken(state);
  stats.output_tokens += std::ssize(emitted);
  stats.drafted_tokens += item.drafts;
  stats.accepted_tokens += output.accepted[index];
  const std::int64_t left = state.request.max_new_tokens - std::ssize(beam.generated);
  state.ended = left <= 0 || output.stop[index] != 0;
  any_ended = any_ended || state.ended;

  if (beam.inputs_begin == 0) ReturnBuffer(beam.inputs);  // the prefill is over
  beam.inputs.clear();
  beam.inputs.push_back(output.next[index]);
  beam.inputs_begin = beam.settled;
  // The last token is never fed in, so at most left - 1 drafts can be of use.
  const std::span<const TokenId> tries = output.drafts[index];
  const std::int64_t useful =
      std::min<std::int64_t>({std::ssize(tries), left - 1, config.max_step_tokens - 1});
  if (useful > 0) beam.inputs.insert(beam.inputs.end(), tries.begin(), tries.begin() + useful);
}

// Whether the device found bad slots or positions. A session plans none, so a fault means that the
// executor's kernels or the cache's arrays are broken: what is cached cannot be trusted.
Status Session::Impl::Poll() {
  if (!has_device && !has_tier) return Status::Ok();
  const Timed timed(stats.manager_s);
  const Result<PollReport> report = cache.Poll();
  if (!report.ok()) return report.status();
  for (const TransferReport& transfer : report->finished_transfers) {
    last_finished = std::max(last_finished, transfer.id);
  }
  if (report->faults.empty()) return Status::Ok();
  const StepFault& fault = report->faults.front();
  return CorruptData("the device reports a bad " +
                     std::string(fault.kind == FaultKind::kSlot ? "slot" : "position") + ", " +
                     std::to_string(fault.value) + ", in step " + std::to_string(fault.step) +
                     ", row " + std::to_string(fault.token));
}

Status Session::Impl::Settle(Step& step, const ExecutorOutput& output) {
  commits.clear();
  for (std::size_t i = 0; i < executor_items.size(); ++i) {
    const ExecutorItem& item = executor_items[i];
    StepCommit commit{.sequence = item.sequence,
                      .kept = item.count - item.drafts + output.accepted[i]};
    // Rows of the opened tokens have their ids already.
    if (item.start >= owners[i].state->beams[owners[i].beam].opened_length) {
      commit.tokens = item.tokens.first(static_cast<std::size_t>(commit.kept));
    }
    commits.push_back(commit);
  }
  {
    const Timed timed(stats.manager_s);
    const Status committed = cache.Commit(step, commits, stream);
    if (!committed.ok()) return committed;
  }
  const Status polled = Poll();
  if (!polled.ok()) return polled;
  now += output.seconds;
  stats.busy_s += output.seconds;
  stats.steps += 1;
  BookDown();
  return TakeOutput(output);
}

// Counts the rows, and hands out the tokens, of one request after another.
Status Session::Impl::TakeOutput(const ExecutorOutput& output) {
  for (std::size_t i = 0, end = 0; i < executor_items.size(); i = end) {
    RequestState& state = *owners[i].state;
    std::int64_t reach = 0;
    for (end = i; end < executor_items.size() && owners[end].state == &state; ++end) {
      CountRows(state, executor_items[end], commits[end].kept);
      reach = std::max(reach, executor_items[end].start + commits[end].kept);
    }
    state.high_water = std::max(state.high_water, reach);  // only now: see there
    if (!executor_items[i].samples) continue;
    if (state.num_beams() > 1) {
      const Status taken = TakeBeams(state, output, i);
      if (!taken.ok()) return taken;
      if (!state.ended) Enter(state, RequestPhase::kDecode);
      continue;
    }
    TakeTokens(state, executor_items[i], output, i);
    if (!state.ended) Enter(state, RequestPhase::kDecode);
    if (observer != nullptr) observer->OnTokens(state.id, state.request.tag, 0, emitted);
  }
  return Status::Ok();
}

// Closes the sequences that have all their tokens.
Status Session::Impl::RemoveEnded() {
  if (!any_ended) return Status::Ok();
  // Taken out first: a callback may add requests, and sees a consistent batch.
  std::vector<RequestState*> done;
  std::size_t kept = 0;
  for (RequestState* state : running) {
    if (state->ended) {
      done.push_back(state);
    } else {
      running[kept++] = state;
    }
  }
  running.resize(kept);
  for (RequestState* state : done) {
    if (observer != nullptr && state->num_beams() > 1) {
      for (std::size_t b = 0; b < state->beams.size(); ++b) {
        observer->OnTokens(state->id, state->request.tag, static_cast<int>(b),
                           state->beams[b].generated);
      }
    }
    const Status told = TellEnds(*state, SequenceEndReason::kFinished);
    if (!told.ok()) return told;
    CloseSequences(*state);
    Finish(*state, Outcome::kFinished);
  }
  return Status::Ok();
}

Result<bool> Session::Impl::RunStep() {
  if (queue.empty() && running.empty() && loading.empty()) return false;
  const Status landed = LandTransfers();
  if (!landed.ok()) return landed;
  const Status batched = BatchRunning();
  if (!batched.ok()) return batched;
  const Status admitted = Admit();
  if (!admitted.ok()) return admitted;
  if (items.empty()) {
    const Result<bool> waited = WaitForTransfer();
    if (!waited.ok() || *waited) return waited;
    return ResourceExhausted(
        "nothing runs, and the queue's first request finds no room: blocks of "
        "this cache are held outside the session");
  }
  Result<Step> step = PlanBatch();
  if (!step.ok()) return step.status();
  if (!step->valid()) return true;
  if (room_s > now) {  // what was swapped out is read before its blocks are written
    stats.busy_s += room_s - now;
    now = room_s;
  }
  DescribeItems(*step);
  ExecutorOutput output{.next = next,
                        .accepted = accepted,
                        .stop = stop,
                        .drafts = drafts,
                        .first = first,
                        .parents = parents};
  const Status ran = executor.Run(
      {.cache = cache, .step = *step, .stream = stream, .items = executor_items, .now_s = now},
      output);
  if (!ran.ok()) return ran;
  const Status checked = CheckOutput(output);
  if (!checked.ok()) return checked;
  const Status settled = Settle(*step, output);
  if (!settled.ok()) return settled;
  const Status removed = RemoveEnded();
  if (!removed.ok()) return removed;
  return true;
}

}  // namespace lariat
