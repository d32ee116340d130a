// SPDX-License-Identifier: Apache-2.0
// The host tier: prompts that are fetched before they are admitted, requests that are swapped out
// to make room and come back. The cache decides what is copied; here is decided when, and when what
// has come is taken over: by the session's clock where the executor says how long a transfer takes,
// so that a simulation is the same on every backend, else when the cache says that it is done.
#include <algorithm>

#include "session/session_state.h"

namespace lariat {

using session::Loading;
using session::Timed;

// How long a transfer takes on the clock; 0 where the clock does not count it.
double Session::Impl::Seconds(const TransferWork& work) {
  const double seconds = executor.TransferSeconds(work);
  virtual_link = seconds >= 0;
  return std::max(0.0, seconds);
}

// Puts a transfer that starts now onto its way of the link; returns when it is done.
double Session::Impl::Book(std::int64_t blocks, bool to_device) {
  double& free_s = to_device ? up_free_s : down_free_s;
  const TransferWork work = {
      .blocks = blocks, .bytes = blocks * bytes_per_block, .to_device = to_device};
  const double begin = std::max(free_s, now);
  free_s = begin + Seconds(work);
  if (observer != nullptr) observer->OnTransfer(work, begin, free_s);
  return free_s;
}

// Puts what the cache has begun to copy to host memory since the last call onto the link's way
// down.
void Session::Impl::BookDown() {
  if (!has_tier) return;
  const std::int64_t blocks = cache.GetStats().offloaded_blocks - offloaded;
  if (blocks == 0) return;
  offloaded += blocks;
  Book(blocks, /*to_device=*/false);
}

void Session::Impl::Push(RequestState& state, TransferId transfer, std::int64_t blocks,
                         std::int64_t owed) {
  last_transfer = transfer;
  loading.push_back({.state = &state,
                     .transfer = transfer,
                     .done_s = Book(blocks, /*to_device=*/true),
                     .owed = owed});
}

// False: there is nothing to fetch, or no room for it; then the request does without.
Result<bool> Session::Impl::StartFetch(RequestState& head, const PrefixMatch& hit,
                                       std::int64_t needed) {
  const Timed timed(stats.manager_s);
  const std::int64_t before = cache.GetStats().in_transit_blocks;
  const Result<TransferId> transfer = cache.Fetch(head.first().sequence);
  if (!transfer.ok()) {
    if (transfer.status().code() == Code::kResourceExhausted) return false;
    return transfer.status();
  }
  if (*transfer == TransferId::kNone) return false;
  const std::int64_t blocks = cache.GetStats().in_transit_blocks - before;
  head.fetched_from = hit.tokens;
  stats.fetches += 1;
  Push(head, *transfer, blocks, std::max<std::int64_t>(0, needed - blocks));
  return true;
}

// Brings the queue's head back from host memory. False: it has no room yet.
Result<bool> Session::Impl::StartResume(RequestState& head, std::int64_t& available) {
  const Beam& beam = head.first();
  const std::int64_t held = cache.BlocksFor(beam.settled, beam.settled);
  const std::int64_t end = beam.prefilling() ? beam.target : beam.settled + 1;
  const std::int64_t needed = cache.BlocksFor(beam.settled, end, config.max_step_tokens);
  if (unplanned || (!unlimited && needed > available)) return false;
  const std::int64_t before = cache.GetStats().in_transit_blocks;
  const Result<TransferId> resumed = [&] {
    const Timed timed(stats.manager_s);
    return cache.Resume(beam.sequence);
  }();
  if (resumed.status().code() == Code::kResourceExhausted) return false;
  if (resumed.status().code() == Code::kCorruptData) {  // its copies failed: computed again
    CloseSequences(head);
    head.swapped = false;
    return AdmitHead(head, available);
  }
  if (!resumed.ok()) return resumed.status();
  available -= needed;
  sequences += head.num_beams();
  if (*resumed != TransferId::kNone) {
    Push(head, *resumed, cache.GetStats().in_transit_blocks - before, needed - held);
    return true;
  }
  head.swapped = false;  // all of it was on the device still
  AddToRunning(head);
  if (!beam.prefilling()) decodes += 1;
  BatchSequence(head);
  return true;
}

// Moves a running request to host memory, which makes room at once. False: that cannot be, or is
// not wanted.
Result<bool> Session::Impl::SwapOut(RequestState& victim) {
  const Beam& beam = victim.first();
  if (!has_tier || config.preempt == Preempt::kRecompute) return false;
  if (victim.num_beams() > 1 || beam.settled == 0) return false;
  const std::int64_t blocks = cache.BlocksFor(beam.settled, beam.settled);
  const TransferWork work = {.blocks = blocks, .bytes = blocks * bytes_per_block};
  if (config.preempt == Preempt::kAuto && !executor.PrefersSwap(beam.settled, work)) return false;
  {
    const Timed timed(stats.manager_s);
    const Result<TransferId> suspended = cache.Suspend(beam.sequence);
    if (!suspended.ok()) {
      if (suspended.status().code() == Code::kResourceExhausted) return false;
      return suspended.status();
    }
  }
  victim.swapped = true;
  stats.swaps += 1;
  BookDown();
  room_s = down_free_s;  // the blocks are written again in this step
  return true;
}

// Takes over what has come.
Status Session::Impl::LandTransfers() {
  if (loading.empty()) return Status::Ok();
  if (!virtual_link) {
    const Status polled = Poll();
    if (!polled.ok()) return polled;
  }
  for (Loading& entry : loading) {
    if (entry.landed) continue;
    if (virtual_link ? entry.done_s > now : entry.transfer > last_finished) break;
    const Status landed = Land(entry);
    if (!landed.ok()) return landed;
  }
  DropLanded();
  return Status::Ok();
}

// Those that came back have gone on, or were cancelled.
void Session::Impl::DropLanded() {
  std::erase_if(loading,
                [](const Loading& entry) { return entry.state == nullptr && entry.landed; });
}

// A request whose prompt was fetched is admitted next; one that was swapped out runs again, or is
// computed again where its copy failed.
Status Session::Impl::Land(Loading& entry) {
  entry.landed = true;
  const Timed timed(stats.manager_s);
  const Result<TransferReport> report = cache.Accept(entry.transfer);
  if (!report.ok()) return report.status();
  if (entry.state == nullptr || !entry.state->swapped) return Status::Ok();
  RequestState& state = *entry.state;
  state.swapped = false;
  entry.state = nullptr;
  // It may be corrupt though its own copies came: another transfer's, that it shares, did not.
  if (!report->failed && cache.BlockTable(state.first().sequence).ok()) {
    AddToRunning(state);
    return Status::Ok();
  }
  CloseSequences(state);
  queue.push_front(&state);
  return Status::Ok();
}

// Nothing can run before a transfer has come: lets the time pass until the next one has. False:
// none is under way.
Result<bool> Session::Impl::WaitForTransfer() {
  const auto entry =
      std::find_if(loading.begin(), loading.end(), [](const Loading& e) { return !e.landed; });
  if (entry == loading.end()) return false;
  if (virtual_link) now = std::max(now, entry->done_s);
  const Status landed = Land(*entry);
  if (!landed.ok()) return landed;
  DropLanded();
  return true;
}

}  // namespace lariat
