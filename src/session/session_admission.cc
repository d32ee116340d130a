// SPDX-License-Identifier: Apache-2.0
// Who runs in a step: those that run already, whom to admit, whom to preempt.
#include <algorithm>

#include "session/session_state.h"

namespace lariat {

using session::Timed;

void Session::Impl::AddItem(RequestState& state, std::size_t beam, std::int64_t rows,
                            std::int64_t num_drafts) {
  items.push_back(
      {.sequence = state.beams[beam].sequence, .num_tokens = rows, .num_drafts = num_drafts});
  owners.push_back({&state, beam});
  budget -= rows;
}

// Items for the running sequences, in order, as far as the budget goes.
Status Session::Impl::BatchRunning() {
  items.clear();
  owners.clear();
  budget = config.max_step_tokens;
  blocks_owed = 0;
  room_s = 0;
  unplanned = false;
  decodes = 0;
  sequences = 0;
  for (RequestState* state : running) {
    sequences += state->num_beams();
    if (!state->first().prefilling()) decodes += state->num_beams();
  }
  for (const session::Loading& entry : loading) {
    if (entry.state == nullptr) continue;
    sequences += entry.state->num_beams();
    if (!entry.landed) blocks_owed += entry.owed;
  }
  for (RequestState* state : running) {
    if (!state->forked()) {
      BatchSequence(*state);
      continue;
    }
    const Status batched = BatchBeams(*state);
    if (!batched.ok()) return batched;
  }
  return Status::Ok();
}

void Session::Impl::BatchSequence(RequestState& state) {
  const Beam& beam = state.first();
  if (beam.prefilling()) {
    // A prompt is owed all its blocks, so that what was admitted can be computed.
    blocks_owed += BlocksOfBeams(state, beam.settled, beam.target) -
                   cache.BlocksFor(beam.settled, beam.settled);
    const std::int64_t rows = std::min(beam.target - beam.settled, budget);
    if (rows > 0) AddItem(state, 0, rows);
    return;
  }
  decodes -= 1;
  if (budget == 0) return;
  // Drafts take no row that another sequence decodes with. Where they are cut off, the first ones
  // are left.
  const std::int64_t wanted = beam.inputs_end() - beam.settled;
  const std::int64_t rows = std::min(wanted, std::max<std::int64_t>(1, budget - decodes));
  // A decode is owed what this step takes, so that nobody is admitted only to be preempted at once.
  blocks_owed += cache.BlocksFor(beam.settled, beam.settled + rows) -
                 cache.BlocksFor(beam.settled, beam.settled);
  AddItem(state, 0, rows, rows - 1);
}

// Admits while there is room: requests whose blocks were fetched, then from the queue's front.
Status Session::Impl::Admit() {
  std::int64_t available = 0;
  if (!unlimited && (!loading.empty() || !queue.empty())) {
    const Stats pool = cache.GetStats();
    available = pool.free_blocks + pool.idle_blocks - blocks_owed;
  }
  while (!loading.empty() && loading.front().landed && budget > 0) {
    RequestState& state = *loading.front().state;
    sequences -= state.num_beams();  // its place is its own
    const Result<bool> admitted = AdmitHead(state, available);
    if (!admitted.ok()) return admitted.status();
    if (!*admitted) return Status::Ok();
    loading.pop_front();
  }
  while (!queue.empty() && budget > 0) {
    if (!unlimited && available <= 0) break;  // any prompt takes a block
    RequestState& head = *queue.front();
    if (sequences + head.num_beams() > config.max_batch) break;
    const Result<bool> admitted =
        head.swapped ? StartResume(head, available) : AdmitHead(head, available);
    if (!admitted.ok()) return admitted.status();
    if (!*admitted) break;
    queue.pop_front();
  }
  return Status::Ok();
}

// The blocks that a request takes besides those of its hit that somebody holds: idle ones leave the
// pool of what can be had, as new ones do.
std::int64_t Session::Impl::BlocksToAdmit(const RequestState& state, const PrefixMatch& hit) const {
  const std::int64_t known = state.prompt_length + std::ssize(state.beams.front().generated);
  return BlocksOfBeams(state, hit.tokens, known) - (hit.blocks - hit.idle_blocks);
}

// Puts a request that is not open, or open and not planned yet, into the batch, or starts a fetch
// for it. False: it has no room.
Result<bool> Session::Impl::AdmitHead(RequestState& head, std::int64_t& available) {
  if (!head.first().open()) {
    const Status opened = OpenHead(head);
    if (!opened.ok()) return opened;
  }
  PrefixMatch hit;
  {
    const Timed timed(stats.manager_s);
    const Result<PrefixMatch> match = cache.Match(head.first().sequence);
    if (!match.ok()) return match.status();
    hit = *match;
  }
  const std::int64_t needed = BlocksToAdmit(head, hit);
  if (!unlimited && needed > available) return false;
  const bool was_fetched = !loading.empty() && loading.front().state == &head;
  const bool fetches = !was_fetched && hit.host_tokens > hit.tokens;
  // A transfer evicts at once, and might take what the plan is yet to claim.
  if (fetches && unplanned) return false;
  available -= needed;
  sequences += head.num_beams();
  if (fetches) {
    const Result<bool> started = StartFetch(head, hit, needed);
    if (!started.ok() || *started) return started;
  }
  AddItem(head, 0, std::min(head.first().target - hit.tokens, budget));
  unplanned = true;
  AddToRunning(head);
  if (head.admitted) return true;
  head.admitted = true;
  // So that a steady step allocates nothing.
  head.first().generated.reserve(
      static_cast<std::size_t>(std::min<std::int64_t>(head.request.max_new_tokens, 4096)));
  head.result.admitted_s = now;
  stats.lookup_tokens += head.prompt_length;
  return true;
}

void Session::Impl::AddToRunning(RequestState& state) {
  const auto later = [](const RequestState* a, const RequestState* b) { return a->id < b->id; };
  running.insert(std::upper_bound(running.begin(), running.end(), &state, later), &state);
  Enter(state, state.first().prefilling() ? RequestPhase::kPrefill : RequestPhase::kDecode);
}

// Opens the queue's head with all tokens that are known of it, or of its first beam.
Status Session::Impl::OpenHead(RequestState& head) {
  Beam& beam = head.first();
  beam.inputs = TakeBuffer();
  beam.inputs_begin = 0;
  if (head.request.write_prompt) {
    head.request.write_prompt(beam.inputs);
    if (std::ssize(beam.inputs) != head.prompt_length) {
      return InvalidArgument("write_prompt wrote " + std::to_string(beam.inputs.size()) +
                             " tokens; prompt_length is " + std::to_string(head.prompt_length));
    }
  } else {
    beam.inputs.assign(head.request.prompt.begin(), head.request.prompt.end());
  }
  beam.inputs.insert(beam.inputs.end(), beam.generated.begin(), beam.generated.end());
  // Beams decode together, so the last token is left for the step in which all have come so far.
  const std::span<const TokenId> known =
      std::span(beam.inputs)
          .first(head.forked() ? static_cast<std::size_t>(RestoreLength(head))
                               : beam.inputs.size());

  const Timed timed(stats.manager_s);
  const Retention retention{.priority = head.request.priority};
  OpenOptions options{.salt = head.request.salt,
                      .adapter = head.request.adapter,
                      .extra_keys = head.request.extra_keys};
  if (retention.priority != kDefaultPriority) options.retention = std::span(&retention, 1);
  const Result<SequenceId> opened = cache.Open(known, options);
  if (!opened.ok()) return opened.status();
  beam.sequence = *opened;
  beam.opened_length = beam.target = std::ssize(known);
  beam.settled = 0;
  beam.fresh = true;
  beam.shares_tail = false;
  return Status::Ok();
}

void Session::Impl::CloseBeam(Beam& beam) {
  if (!beam.open()) return;
  const Timed timed(stats.manager_s);
  // The handle is the session's own, so Close cannot find it unknown.
  (void)cache.Close(beam.sequence);
  beam.sequence = SequenceId::kNone;
  beam.settled = 0;
  ReturnBuffer(beam.inputs);
}

void Session::Impl::CloseSequences(RequestState& state) {
  for (Beam& beam : state.beams) CloseBeam(beam);
}

// Tells of all beams that they are about to be closed.
Status Session::Impl::TellEnds(RequestState& state, SequenceEndReason reason) {
  if (observer == nullptr) return Status::Ok();
  for (std::size_t b = 0; b < state.beams.size(); ++b) {
    const Beam& beam = state.beams[b];
    if (!beam.open() || beam.settled == 0) continue;
    const Status told = observer->OnSequenceEnd({.request = state.id,
                                                 .tag = state.request.tag,
                                                 .beam = static_cast<int>(b),
                                                 .sequence = beam.sequence,
                                                 .settled = beam.settled,
                                                 .reason = reason});
    if (!told.ok()) return told;
  }
  return Status::Ok();
}

// Puts the running request that arrived last back at the queue's front.
Status Session::Impl::PreemptLast() {
  RequestState& victim = *running.back();
  const Result<bool> swapped = SwapOut(victim);
  if (!swapped.ok()) return swapped.status();
  if (!*swapped) {
    const Status told = TellEnds(victim, SequenceEndReason::kPreempted);
    if (!told.ok()) return told;
    CloseSequences(victim);
  }
  // Its items stand together, behind those of whoever was admitted before it.
  const auto is_victims = [&](const Owner& owner) { return owner.state == &victim; };
  const auto begin = std::find_if(owners.begin(), owners.end(), is_victims);
  const auto end = std::find_if_not(begin, owners.end(), is_victims);
  items.erase(items.begin() + (begin - owners.begin()), items.begin() + (end - owners.begin()));
  owners.erase(begin, end);
  // Only the head's prompt is kept in memory.
  if (!queue.empty() && !queue.front()->swapped) CloseSequences(*queue.front());
  running.pop_back();
  queue.push_front(&victim);
  victim.result.preemptions += 1;
  Enter(victim, RequestPhase::kPreempted);
  stats.preemptions += 1;
  return Status::Ok();
}

// Takes the drafts out of the items. False: there are none.
bool Session::Impl::LeaveOutDrafts() {
  bool any = false;
  for (StepItem& item : items) {
    any = any || item.num_drafts > 0;
    item.num_tokens -= item.num_drafts;
    item.num_drafts = 0;
  }
  return any;
}

// Plans the items; leaves drafts out, then preempts, until they fit. The step is not valid where
// the batch has to be made anew, because no item is left or a transfer has come in between.
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
    if (LeaveOutDrafts()) continue;
    if (running.size() <= 1) {
      // One request alone fits, or it would have been refused: a transfer has the blocks, or
      // somebody outside.
      const Result<bool> waited = WaitForTransfer();
      if (!waited.ok()) return waited.status();
      if (!*waited) return planned;
      return Step();
    }
    const Status preempted = PreemptLast();
    if (!preempted.ok()) return preempted;
    if (items.empty()) return Step();
  }
}

}  // namespace lariat
