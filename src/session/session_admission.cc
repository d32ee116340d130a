// SPDX-License-Identifier: Apache-2.0
// Who runs in a step: those that run already, whom to admit, whom to preempt.
#include <algorithm>

#include "session/session_state.h"

namespace lariat {

using session::Timed;

// Items for the running sequences, in order, as far as the budget goes.
void Session::Impl::BatchRunning() {
  items.clear();
  budget = config.max_step_tokens;
  blocks_owed = 0;
  for (const RequestState* state : running) {
    const bool prefilling = state->prefilling();
    const std::int64_t wanted = prefilling ? state->opened_length - state->settled
                                           : static_cast<std::int64_t>(state->inputs.size());
    const std::int64_t rows = std::min(wanted, budget);
    // A prompt is owed all its blocks, so that what was admitted can be computed; a decode is owed
    // what this step takes, so that nobody is admitted only to be preempted at once.
    const std::int64_t reach = prefilling ? state->opened_length : state->settled + rows;
    blocks_owed += BlocksFor(reach) - BlocksFor(state->settled);
    if (rows == 0) continue;
    budget -= rows;
    // Where the budget cuts drafts off, the rows that are left are the certain one and the first
    // drafts.
    items.push_back(
        {.sequence = state->sequence, .num_tokens = rows, .num_drafts = prefilling ? 0 : rows - 1});
  }
}

// Admits from the queue's front while there is room.
Status Session::Impl::Admit() {
  if (queue.empty() || budget == 0) return Status::Ok();
  std::int64_t available = 0;
  if (!unlimited) {
    const Stats pool = cache.GetStats();
    available = pool.free_blocks + pool.idle_blocks - blocks_owed;
  }
  while (!queue.empty() && budget > 0 && std::ssize(running) < config.max_batch) {
    if (!unlimited && available <= 0) break;  // any prompt takes a block
    RequestState& head = *queue.front();
    if (head.sequence == SequenceId::kNone) {
      const Status opened = OpenHead(head);
      if (!opened.ok()) return opened;
    }
    PrefixMatch hit;
    {
      const Timed timed(stats.manager_s);
      const Result<PrefixMatch> match = cache.Match(head.sequence);
      if (!match.ok()) return match.status();
      hit = *match;
    }
    // Blocks of the hit that a running sequence holds cost nothing; idle ones leave the pool of
    // what can be had, as new ones do.
    const std::int64_t needed = BlocksFor(head.opened_length) - (hit.blocks - hit.idle_blocks);
    if (!unlimited && needed > available) break;
    available -= needed;

    const std::int64_t rows = std::min(head.opened_length - hit.tokens, budget);
    budget -= rows;
    items.push_back({.sequence = head.sequence, .num_tokens = rows});
    queue.pop_front();
    running.push_back(&head);
    if (!head.admitted) {
      head.admitted = true;
      // So that a steady step allocates nothing.
      head.generated.reserve(
          static_cast<std::size_t>(std::min<std::int64_t>(head.request.max_new_tokens, 4096)));
      head.result.admitted_s = now;
      stats.lookup_tokens += head.prompt_length;
    }
  }
  return Status::Ok();
}

// Opens the queue's head with all tokens that are known of it.
Status Session::Impl::OpenHead(RequestState& head) {
  head.inputs = TakeBuffer();
  if (head.request.write_prompt) {
    head.request.write_prompt(head.inputs);
    if (std::ssize(head.inputs) != head.prompt_length) {
      return InvalidArgument("write_prompt wrote " + std::to_string(head.inputs.size()) +
                             " tokens; prompt_length is " + std::to_string(head.prompt_length));
    }
  } else {
    head.inputs.assign(head.request.prompt.begin(), head.request.prompt.end());
  }
  head.inputs.insert(head.inputs.end(), head.generated.begin(), head.generated.end());

  const Timed timed(stats.manager_s);
  const OpenOptions options{.salt = head.request.salt,
                            .adapter = head.request.adapter,
                            .extra_keys = head.request.extra_keys};
  const Result<SequenceId> opened = cache.Open(head.inputs, options);
  if (!opened.ok()) return opened.status();
  head.sequence = *opened;
  head.opened_length = std::ssize(head.inputs);
  head.settled = 0;
  return Status::Ok();
}

void Session::Impl::CloseSequence(RequestState& state) {
  if (state.sequence == SequenceId::kNone) return;
  const Timed timed(stats.manager_s);
  // The handle is the session's own, so Close cannot find it unknown.
  (void)cache.Close(state.sequence);
  state.sequence = SequenceId::kNone;
  state.settled = 0;
  ReturnBuffer(state.inputs);
}

// Puts the running request that arrived last back at the queue's front.
Status Session::Impl::PreemptLast() {
  RequestState& victim = *running.back();
  if (observer != nullptr && victim.settled > 0) {
    const Status told = observer->OnSequenceEnd(victim.id, victim.request.tag, victim.sequence,
                                                victim.settled, /*finished=*/false);
    if (!told.ok()) return told;
  }
  if (!items.empty() && items.back().sequence == victim.sequence) items.pop_back();
  CloseSequence(victim);
  // Only the head's prompt is kept in memory.
  if (!queue.empty()) CloseSequence(*queue.front());
  running.pop_back();
  queue.push_front(&victim);
  victim.result.preemptions += 1;
  stats.preemptions += 1;
  return Status::Ok();
}

// Plans the items, preempting until they fit.
Result<Step> Session::Impl::PlanBatch() {
  while (true) {
    Result<Step> planned = [&] {
      const Timed timed(stats.manager_s);
      Result<Step> step = cache.Plan(items);
      if (step.ok()) {
        const Status prepared = cache.Prepare(*step, stream);
        if (!prepared.ok()) return Result<Step>(prepared);
      }
      return step;
    }();
    if (planned.ok() || planned.status().code() != Code::kResourceExhausted) return planned;
    // One request alone fits, or it would have been refused: the blocks are held elsewhere.
    if (running.size() <= 1) return planned;
    const Status preempted = PreemptLast();
    if (!preempted.ok()) return preempted;
  }
}

}  // namespace lariat
