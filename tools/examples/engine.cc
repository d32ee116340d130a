// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace lariat::examples {

Job::Progress Job::Wait(std::size_t seen, std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, longest, [&] {
    return progress_.tokens.size() > seen || progress_.state != State::kRunning;
  });
  Progress news = {.state = progress_.state, .result = progress_.result, .error = progress_.error};
  const auto first = static_cast<std::ptrdiff_t>(seen);
  news.tokens.assign(progress_.tokens.begin() + first, progress_.tokens.end());
  news.logprobs.assign(progress_.logprobs.begin() + first, progress_.logprobs.end());
  return news;
}

void Job::Put(const Progress& news) {
  const std::lock_guard lock(mutex_);
  progress_.tokens.insert(progress_.tokens.end(), news.tokens.begin(), news.tokens.end());
  progress_.logprobs.insert(progress_.logprobs.end(), news.logprobs.begin(), news.logprobs.end());
  progress_.state = news.state;
  progress_.result = news.result;
  progress_.error = news.error;
  changed_.notify_all();
}

Engine::Engine(const Llama& model, const EngineConfig& config, std::function<void()> on_failure)
    : model_(model), config_(config), on_failure_(std::move(on_failure)) {}

Result<std::unique_ptr<Engine>> Engine::Create(const Llama& model, EngineConfig config,
                                               std::function<void()> on_failure) {
  constexpr std::int64_t kDefault = 4096;
  const std::int64_t most = model.shape.max_length;  // 0: the caller's choice
  if (config.max_length == 0) config.max_length = most > 0 ? std::min(most, kDefault) : kDefault;
  if (most > 0 && config.max_length > most) {
    return InvalidArgument("max_length = " + std::to_string(config.max_length) +
                           "; allowed: up to the model's " + std::to_string(most));
  }
  std::unique_ptr<Engine> engine(new Engine(model, config, std::move(on_failure)));
  const Status opened = engine->Open();
  if (!opened.ok()) return opened;
  engine->thread_ = std::thread([raw = engine.get()] { raw->Run(); });
  return engine;
}

Status Engine::Open() {
  const LlamaShape& shape = model_.shape;
  CacheConfig config;
  config.layers.assign(
      static_cast<std::size_t>(shape.layers),
      {.kv_heads = shape.kv_heads, .k_dim = shape.head_dim, .v_dim = shape.head_dim, .rope = 0});
  config.ropes = {shape.rope};
  config.dtype = DType::kFP32;
  config.backend = BackendKind::kCpu;
  config.memory.num_blocks = config_.num_blocks;
  config.block_size = config_.block_size;
  config.eviction = EvictionPolicy::kPriority;
  config.max_sequences = config_.max_batch + 1;  // the queue's head is open too
  config.max_tokens_per_sequence = config_.max_length;
  config.max_tokens_per_step = config_.max_step_tokens;
  Result<KVCache> cache = KVCache::Create(config);
  if (!cache.ok()) return cache.status();
  cache_ = std::make_unique<KVCache>(*std::move(cache));
  executor_ = std::make_unique<LlamaExecutor>(
      model_, [this](std::uint64_t tag, TokenId token, float logprob) {
        Active& active = active_.at(tag);
        active.news.logprobs.push_back(logprob);
        const std::vector<TokenId>& stop = active.job->request().stop;
        return std::find(stop.begin(), stop.end(), token) != stop.end();
      });
  const SessionConfig limits = {.max_batch = config_.max_batch,
                                .max_step_tokens = config_.max_step_tokens};
  Result<Session> session = Session::Create(*cache_, *executor_, limits, this);
  if (!session.ok()) return session.status();
  session_ = std::make_unique<Session>(*std::move(session));
  return Status::Ok();
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    quit_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Job> Engine::Submit(JobRequest request) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return nullptr;
  auto job = std::make_shared<Job>(++last_id_, std::move(request));
  added_.push_back(job);
  open_.insert(job->id());
  wake_.notify_one();
  return job;
}

bool Engine::Cancel(std::uint64_t job) {
  const std::lock_guard lock(mutex_);
  if (!open_.contains(job)) return false;
  cancelled_.push_back(job);
  wake_.notify_one();
  return true;
}

void Engine::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

void Engine::CancelAll() {
  const std::lock_guard lock(mutex_);
  cancelled_.insert(cancelled_.end(), open_.begin(), open_.end());
  wake_.notify_one();
}

bool Engine::WaitIdle(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, longest, [&] { return open_.empty(); });
}

EngineStats Engine::GetStats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = stats_;
  }
  stats.cache = cache_->GetStats();
  return stats;
}

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

double Engine::Now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

// --- The engine's thread ----------------------------------------------------------------------

void Engine::Run() {
  bool failed = false;
  for (;;) {
    std::vector<std::shared_ptr<Job>> added;
    std::vector<std::uint64_t> cancelled;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return quit_ || !added_.empty() || !cancelled_.empty() || (!failed && !session_->idle());
      });
      added.swap(added_);
      cancelled.swap(cancelled_);
      if (quit_) {
        if (open_.empty()) return;
        cancelled.assign(open_.begin(), open_.end());
      }
    }
    Status status;
    try {
      for (const std::shared_ptr<Job>& job : added) active_[job->id()].job = job;
      if (failed) {
        Fail(DeviceError(failure()));
        continue;
      }
      status = Turn(std::move(added), cancelled);
      if (status.ok()) Publish();
    } catch (const std::exception& error) {  // of the standard library: no memory
      status = ResourceExhausted(error.what());
    }
    if (!status.ok()) {
      failed = true;
      Fail(status);
      on_failure_();
    }
  }
}

// One step, and before it what the other threads asked for.
Status Engine::Turn(std::vector<std::shared_ptr<Job>> added,
                    const std::vector<std::uint64_t>& cancelled) {
  session_->AdvanceTo(Now());
  for (const std::shared_ptr<Job>& job : added) {
    const JobRequest& request = job->request();
    const Result<RequestId> id = session_->Add({.prompt = request.prompt,
                                                .max_new_tokens = request.max_tokens,
                                                .tag = job->id(),
                                                .priority = request.priority,
                                                .salt = request.salt});
    if (!id.ok()) return id.status();
    active_.at(job->id()).request = *id;
  }
  for (const std::uint64_t job : cancelled) {
    const auto found = active_.find(job);
    // It may have ended in Add, or be named twice.
    if (found == active_.end() || found->second.news.state != Job::State::kRunning) continue;
    const Status status = session_->Cancel(found->second.request);
    if (!status.ok()) return status;
  }
  return session_->RunStep().status();
}

void Engine::OnTokens(RequestId, std::uint64_t tag, int, std::span<const TokenId> tokens) {
  std::vector<TokenId>& news = active_.at(tag).news.tokens;
  news.insert(news.end(), tokens.begin(), tokens.end());
  touched_.push_back(tag);
}

void Engine::OnDone(const RequestResult& result) {
  Job::Progress& news = active_.at(result.tag).news;
  news.state = Job::State::kEnded;
  news.result = result;
  touched_.push_back(result.tag);
}

// Tells the jobs what the step gave. The figures are there before any client can ask for them.
void Engine::Publish() {
  {
    const std::lock_guard lock(mutex_);
    stats_.session = session_->stats();
    stats_.waiting = session_->waiting();
    stats_.running = session_->running();
    for (const std::uint64_t tag : touched_) {
      if (active_.at(tag).news.state != Job::State::kRunning) open_.erase(tag);
    }
    if (open_.empty()) idle_.notify_all();
  }
  for (const std::uint64_t tag : touched_) {
    const auto found = active_.find(tag);
    if (found == active_.end()) continue;  // touched twice, and ended
    Job::Progress& news = found->second.news;
    found->second.job->Put(news);
    news.tokens.clear();
    news.logprobs.clear();
    if (news.state != Job::State::kRunning) active_.erase(found);
  }
  touched_.clear();
}

void Engine::Fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = status.message();
    for (const auto& [id, active] : active_) open_.erase(id);
    if (open_.empty()) idle_.notify_all();
  }
  for (const auto& [id, active] : active_) {
    active.job->Put({.state = Job::State::kFailed, .error = status.ToString()});
  }
  active_.clear();
  touched_.clear();
}

}  // namespace lariat::examples
