// SPDX-License-Identifier: Apache-2.0
#include "lariat/session.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "session/session_state.h"

namespace lariat {

using session::Timed;

namespace {

Status CheckConfig(const SessionConfig& config, const CacheConfig& cache) {
  if (config.max_batch < 1 || config.max_batch >= cache.max_sequences) {
    return InvalidArgument("max_batch = " + std::to_string(config.max_batch) +
                           "; allowed: 1 to the cache's max_sequences - 1 = " +
                           std::to_string(cache.max_sequences - 1) +
                           " (the queue's head is open too)");
  }
  if (config.max_step_tokens < 1 || config.max_step_tokens > cache.max_tokens_per_step) {
    return InvalidArgument("max_step_tokens = " + std::to_string(config.max_step_tokens) +
                           "; allowed: 1 to the cache's max_tokens_per_step = " +
                           std::to_string(cache.max_tokens_per_step));
  }
  if (config.max_length < 0 || config.max_length > cache.max_tokens_per_sequence) {
    return InvalidArgument("max_length = " + std::to_string(config.max_length) +
                           "; allowed: 0 to the cache's max_tokens_per_sequence = " +
                           std::to_string(cache.max_tokens_per_sequence));
  }
  return Status::Ok();
}

SessionConfig WithDefaults(SessionConfig config, const CacheConfig& cache) {
  if (config.max_length == 0) config.max_length = cache.max_tokens_per_sequence;
  return config;
}

}  // namespace

Session::Impl::Impl(KVCache& cache_in, Executor& executor_in, const SessionConfig& config_in,
                    SessionObserver* observer_in)
    : cache(cache_in),
      executor(executor_in),
      observer(observer_in),
      config(WithDefaults(config_in, cache_in.config())),
      block_size(cache_in.config().block_size),
      unlimited(cache_in.config().memory.unlimited),
      has_device(cache_in.device().kind() != BackendKind::kNull),
      total_blocks(cache_in.GetStats().total_blocks) {
  const auto batch = static_cast<std::size_t>(config.max_batch);
  running.reserve(batch);
  items.reserve(batch);
  executor_items.reserve(batch);
  commits.reserve(batch);
  next.reserve(batch);
  accepted.reserve(batch);
  stop.reserve(batch);
  drafts.reserve(batch);
  ended.reserve(batch);
}

Session::Impl::~Impl() {
  for (auto& [id, state] : requests) CloseSequence(*state);
  if (owns_stream) cache.device().DestroyStream(stream);
}

std::vector<TokenId> Session::Impl::TakeBuffer() {
  if (spare_buffers.empty()) return {};
  std::vector<TokenId> buffer = std::move(spare_buffers.back());
  spare_buffers.pop_back();
  buffer.clear();
  return buffer;
}

// Leaves the buffer empty, without memory.
void Session::Impl::ReturnBuffer(std::vector<TokenId>& buffer) {
  // A few are enough: prompts are computed one after another, so few are in memory at once.
  if (buffer.capacity() > 0 && spare_buffers.size() < 4) spare_buffers.push_back(std::move(buffer));
  buffer = {};
}

Status Session::Impl::CheckRequest(const Request& request) const {
  const std::int64_t written = std::ssize(request.prompt);
  if (request.write_prompt && written > 0) {
    return InvalidArgument("prompt and write_prompt are both given; allowed: one of them");
  }
  const std::int64_t length = request.write_prompt ? request.prompt_length : written;
  if (length < 1) {
    return InvalidArgument("prompt length = " + std::to_string(length) + "; allowed: at least 1");
  }
  if (request.max_new_tokens < 1) {
    return InvalidArgument("max_new_tokens = " + std::to_string(request.max_new_tokens) +
                           "; allowed: at least 1");
  }
  const double arrival = request.arrival_s < 0 ? now : request.arrival_s;
  if (!(arrival <= now) || arrival < last_arrival) {
    return InvalidArgument("arrival_s = " + std::to_string(request.arrival_s) + "; allowed: from " +
                           std::to_string(last_arrival) + " (the last arrival) to now, " +
                           std::to_string(now));
  }
  return Status::Ok();
}

// Ends a request that is in no list any more. `state` is gone afterwards.
void Session::Impl::Finish(RequestState& state, Outcome outcome) {
  RequestResult& result = state.result;
  result.outcome = outcome;
  result.output_tokens = std::ssize(state.generated);
  result.end_s = now;
  switch (outcome) {
    case Outcome::kFinished: stats.finished += 1; break;
    case Outcome::kMaxLength: stats.refused_max_length += 1; break;
    case Outcome::kNeverFits: stats.refused_never_fits += 1; break;
    case Outcome::kCancelled: stats.cancelled += 1; break;
  }
  const RequestResult done = result;
  requests.erase(static_cast<std::uint64_t>(state.id));
  if (observer != nullptr) observer->OnDone(done);
}

// Says of each item what its rows are.
void Session::Impl::DescribeItems(const Step& step) {
  executor_items.clear();
  const std::span<const StepRows> rows = step.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RequestState& state = *running[i];
    const StepRows& row = rows[i];
    const std::span<const TokenId> inputs = state.inputs;
    ExecutorItem item{.request = state.id,
                      .tag = state.request.tag,
                      .sequence = state.sequence,
                      .first_row = row.first_row,
                      .start = row.start,
                      .count = row.count,
                      .drafts = items[i].num_drafts,
                      .samples = row.start + row.count >= state.opened_length};
    if (state.prefilling()) {
      item.tokens =
          inputs.subspan(static_cast<std::size_t>(row.start), static_cast<std::size_t>(row.count));
      if (state.settled == 0) item.cached = inputs.first(static_cast<std::size_t>(row.start));
    } else {
      item.tokens = inputs.first(static_cast<std::size_t>(row.count));
    }
    executor_items.push_back(item);
  }
  next.assign(rows.size(), 0);
  accepted.assign(rows.size(), 0);
  stop.assign(rows.size(), 0);
  drafts.assign(rows.size(), {});
  ended.assign(rows.size(), 0);
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
  }
  return Status::Ok();
}

// What kept rows and a first step's hit add to the sums (docs/simulator.md, Counting).
void Session::Impl::CountRows(RequestState& state, const ExecutorItem& item, std::int64_t kept) {
  const std::int64_t end = item.start + kept;
  if (state.settled == 0 && item.start > 0) {
    const std::int64_t hit =
        std::max<std::int64_t>(0, std::min(item.start, state.prompt_length) - state.high_water);
    state.result.hit_tokens += hit;
    stats.hit_tokens += hit;
  }
  const std::int64_t again =
      std::max<std::int64_t>(0, std::min(end, state.high_water) - item.start);
  state.result.recomputed_tokens += again;
  stats.recomputed_tokens += again;
  stats.tokens_appended += kept;
  state.high_water = std::max(state.high_water, end);
  state.settled = end;
}

// The tokens that a step gave a sequence whose opened tokens are all computed.
void Session::Impl::TakeTokens(RequestState& state, const ExecutorItem& item,
                               const ExecutorOutput& output, std::size_t index) {
  const std::int64_t limit = state.request.max_new_tokens;
  emitted.clear();
  const std::size_t certain = item.tokens.size() - static_cast<std::size_t>(item.drafts);
  const auto drafted =
      item.tokens.subspan(certain, static_cast<std::size_t>(output.accepted[index]));
  emitted.insert(emitted.end(), drafted.begin(), drafted.end());
  emitted.push_back(output.next[index]);
  state.generated.insert(state.generated.end(), emitted.begin(), emitted.end());
  if (!state.first_token) {
    state.first_token = true;
    state.result.first_token_s = now;
  }
  stats.output_tokens += std::ssize(emitted);
  const std::int64_t left = limit - std::ssize(state.generated);
  if (left <= 0 || output.stop[index] != 0) {
    ended[index] = 1;
    any_ended = true;
  }

  if (item.start < state.opened_length) ReturnBuffer(state.inputs);  // the prefill is over
  state.inputs.clear();
  state.inputs.push_back(output.next[index]);
  // The last token is never fed in, so at most left - 1 drafts can be of use.
  const std::span<const TokenId> tries = output.drafts[index];
  const std::int64_t useful =
      std::min<std::int64_t>({std::ssize(tries), left - 1, config.max_step_tokens - 1});
  if (useful > 0) state.inputs.insert(state.inputs.end(), tries.begin(), tries.begin() + useful);
}

// Whether the device found bad slots or positions. A session plans none, so a fault means that the
// executor's kernels or the cache's arrays are broken: what is cached cannot be trusted.
Status Session::Impl::Poll() {
  if (!has_device) return Status::Ok();
  const Timed timed(stats.manager_s);
  const Result<PollReport> report = cache.Poll();
  if (!report.ok()) return report.status();
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
    if (!running[i]->prefilling()) {
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
  for (std::size_t i = 0; i < executor_items.size(); ++i) {
    RequestState& state = *running[i];
    CountRows(state, executor_items[i], commits[i].kept);
    if (!executor_items[i].samples) continue;
    TakeTokens(state, executor_items[i], output, i);
    if (observer != nullptr) observer->OnTokens(state.id, state.request.tag, emitted);
  }
  return Status::Ok();
}

// Closes the sequences that have all their tokens.
Status Session::Impl::RemoveEnded() {
  if (!any_ended) return Status::Ok();
  // Taken out first: a callback may add requests, and sees a consistent batch.
  std::vector<RequestState*> done;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (i < ended.size() && ended[i] != 0) {
      done.push_back(running[i]);
    } else {
      running[kept++] = running[i];
    }
  }
  running.resize(kept);
  for (RequestState* state : done) {
    if (observer != nullptr) {
      const Status told = observer->OnSequenceEnd(state->id, state->request.tag, state->sequence,
                                                  state->settled, /*finished=*/true);
      if (!told.ok()) return told;
    }
    CloseSequence(*state);
    Finish(*state, Outcome::kFinished);
  }
  return Status::Ok();
}

Result<bool> Session::Impl::RunStep() {
  if (queue.empty() && running.empty()) return false;
  BatchRunning();
  const Status admitted = Admit();
  if (!admitted.ok()) return admitted;
  if (items.empty()) {
    return ResourceExhausted(
        "nothing runs, and the queue's first request finds no room: blocks of "
        "this cache are held outside the session");
  }
  Result<Step> step = PlanBatch();
  if (!step.ok()) return step.status();
  DescribeItems(*step);
  ExecutorOutput output{.next = next, .accepted = accepted, .stop = stop, .drafts = drafts};
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

Result<Session> Session::Create(KVCache& cache, Executor& executor, const SessionConfig& config,
                                SessionObserver* observer) {
  const Status checked = CheckConfig(config, cache.config());
  if (!checked.ok()) return checked;
  auto impl = std::make_unique<Impl>(cache, executor, config, observer);
  const Result<Stream> stream = cache.device().CreateStream();
  if (!stream.ok()) return stream.status();
  impl->stream = *stream;
  impl->owns_stream = true;
  return Session(std::move(impl));
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<RequestId> Session::Add(Request request) {
  const Status checked = impl_->CheckRequest(request);
  if (!checked.ok()) return checked;
  auto state = std::make_unique<session::RequestState>();
  state->id = RequestId{++impl_->last_id};
  state->prompt_length = request.write_prompt ? request.prompt_length : std::ssize(request.prompt);
  state->request = std::move(request);
  const double arrival = state->request.arrival_s < 0 ? impl_->now : state->request.arrival_s;
  impl_->last_arrival = arrival;
  state->result = {.id = state->id,
                   .tag = state->request.tag,
                   .prompt_tokens = state->prompt_length,
                   .arrival_s = arrival,
                   .admitted_s = arrival,
                   .first_token_s = arrival,
                   .end_s = arrival};
  session::RequestState& added = *state;
  const RequestId id = added.id;
  impl_->requests.emplace(static_cast<std::uint64_t>(id), std::move(state));

  const std::int64_t new_tokens = added.request.max_new_tokens;
  const std::int64_t room = impl_->config.max_length - added.prompt_length;
  if (new_tokens > room) {
    impl_->Finish(added, Outcome::kMaxLength);
  } else if (!impl_->unlimited &&
             impl_->BlocksFor(added.prompt_length + new_tokens - 1) > impl_->total_blocks) {
    impl_->Finish(added, Outcome::kNeverFits);
  } else {
    impl_->queue.push_back(&added);
  }
  return id;
}

Status Session::Cancel(RequestId id) {
  const auto found = impl_->requests.find(static_cast<std::uint64_t>(id));
  if (found == impl_->requests.end()) {
    return InvalidArgument("request " + std::to_string(static_cast<std::uint64_t>(id)) +
                           " is unknown or has ended");
  }
  session::RequestState* state = found->second.get();
  std::erase(impl_->queue, state);
  std::erase(impl_->running, state);
  impl_->CloseSequence(*state);
  impl_->Finish(*state, Outcome::kCancelled);
  return Status::Ok();
}

Result<bool> Session::RunStep() {
  if (impl_->failed) {
    return InvalidArgument("the session ended with an error before and can only be destroyed");
  }
  Result<bool> ran = impl_->RunStep();
  impl_->failed = !ran.ok();
  return ran;
}

bool Session::idle() const { return impl_->queue.empty() && impl_->running.empty(); }
std::int64_t Session::waiting() const { return std::ssize(impl_->queue); }
std::int64_t Session::running() const { return std::ssize(impl_->running); }
double Session::now() const { return impl_->now; }
void Session::AdvanceTo(double now_s) { impl_->now = std::max(impl_->now, now_s); }
const SessionStats& Session::stats() const { return impl_->stats; }

}  // namespace lariat
