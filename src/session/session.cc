// SPDX-License-Identifier: Apache-2.0
#include "lariat/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "session/session_state.h"

namespace lariat {

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

Status Ended() {
  return InvalidArgument("the session ended with an error before and can only be destroyed");
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
      has_tier(cache_in.footprint().num_host_blocks > 0),
      has_windows(cache_in.footprint().num_groups > 1),
      bytes_per_block(cache_in.footprint().bytes_per_block),
      total_blocks(cache_in.GetStats().total_blocks),
      offloaded(cache_in.GetStats().offloaded_blocks) {
  const auto batch = static_cast<std::size_t>(config.max_batch);
  running.reserve(batch);
  items.reserve(batch);
  owners.reserve(batch);
  executor_items.reserve(batch);
  commits.reserve(batch);
  next.reserve(batch);
  accepted.reserve(batch);
  stop.reserve(batch);
  drafts.reserve(batch);
  first.reserve(batch);
  parents.reserve(batch);
}

Session::Impl::~Impl() {
  for (auto& [id, state] : requests) CloseSequences(*state);
  // Or their blocks stay in transit for ever.
  if (last_transfer != TransferId::kNone) (void)cache.Accept(last_transfer);
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
  const std::int64_t most = std::min<std::int64_t>(config.max_batch, config.max_step_tokens);
  if (request.beams < 1 || request.beams > most) {
    return InvalidArgument("beams = " + std::to_string(request.beams) +
                           "; allowed: 1 to the lesser of max_batch and max_step_tokens, " +
                           std::to_string(most));
  }
  const bool priorities = cache.config().eviction == EvictionPolicy::kPriority;
  if (request.priority < 0 || request.priority > kMaxPriority ||
      (!priorities && request.priority != kDefaultPriority)) {
    return InvalidArgument(
        "priority = " + std::to_string(request.priority) + "; allowed: " +
        (priorities ? "0 to " + std::to_string(kMaxPriority)
                    : std::to_string(kDefaultPriority) + ", as the cache's eviction is lru"));
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
  result.output_tokens = std::ssize(state.first().generated);
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
  if (impl_->failed) return Ended();
  const Status checked = impl_->CheckRequest(request);
  if (!checked.ok()) return checked;
  auto state = std::make_unique<session::RequestState>();
  state->id = RequestId{++impl_->last_id};
  state->prompt_length = request.write_prompt ? request.prompt_length : std::ssize(request.prompt);
  state->request = std::move(request);
  state->beams.resize(static_cast<std::size_t>(state->request.beams));
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
             impl_->BlocksOfBeams(added, 0, added.prompt_length + new_tokens - 1) >
                 impl_->total_blocks) {
    impl_->Finish(added, Outcome::kNeverFits);
  } else {
    impl_->queue.push_back(&added);
    if (impl_->observer != nullptr) {
      impl_->observer->OnPhase(id, added.request.tag, RequestPhase::kQueued, arrival);
    }
  }
  return id;
}

Status Session::Cancel(RequestId id) {
  if (impl_->failed) return Ended();
  const auto found = impl_->requests.find(static_cast<std::uint64_t>(id));
  if (found == impl_->requests.end()) {
    return InvalidArgument("request " + std::to_string(static_cast<std::uint64_t>(id)) +
                           " is unknown or has ended");
  }
  session::RequestState* state = found->second.get();
  std::erase(impl_->queue, state);
  std::erase(impl_->running, state);
  // What is on its way for it must still be accepted.
  for (session::Loading& entry : impl_->loading) {
    if (entry.state == state) entry.state = nullptr;
  }
  impl_->DropLanded();
  impl_->CloseSequences(*state);
  impl_->Finish(*state, Outcome::kCancelled);
  return Status::Ok();
}

Result<bool> Session::RunStep() {
  if (impl_->failed) return Ended();
  Result<bool> ran = impl_->RunStep();
  impl_->failed = !ran.ok();
  return ran;
}

bool Session::idle() const { return waiting() + running() == 0; }
std::int64_t Session::waiting() const {
  return std::ssize(impl_->queue) +
         std::count_if(impl_->loading.begin(), impl_->loading.end(),
                       [](const session::Loading& entry) { return entry.state != nullptr; });
}
std::int64_t Session::running() const { return std::ssize(impl_->running); }
double Session::now() const { return impl_->now; }
void Session::AdvanceTo(double now_s) { impl_->now = std::max(impl_->now, now_s); }
const SessionStats& Session::stats() const { return impl_->stats; }

}  // namespace lariat
