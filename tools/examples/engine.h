// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/session.h"
#include "llama.h"

// One thread that owns cache, model and Session, and what other threads may ask of it. Neither
// KVCache nor Session takes calls from several threads, so a server puts a queue before them.

namespace lariat::examples {

struct JobRequest {
  std::vector<TokenId> prompt;
  std::int64_t max_tokens = 16;
  std::vector<TokenId> stop;  // each ends the answer
  bool logprobs = false;
  std::string salt;
  int priority = kDefaultPriority;
};

// A request under way. Written by the engine's thread, read by the one that waits for the answer.
class Job {
 public:
  enum class State : std::uint8_t { kRunning, kEnded, kFailed };
  struct Progress {
    State state = State::kRunning;
    std::vector<TokenId> tokens = {};  // beyond those seen before
    std::vector<float> logprobs = {};  // of these tokens
    RequestResult result = {};         // kEnded
    std::string error = {};            // kFailed
  };

  Job(std::uint64_t id, JobRequest request) : id_(id), request_(std::move(request)) {}
  std::uint64_t id() const { return id_; }
  const JobRequest& request() const { return request_; }

  // Waits until there are more than `seen` tokens, or the end has come, but no longer than that.
  Progress Wait(std::size_t seen, std::chrono::milliseconds longest);

 private:
  friend class Engine;
  void Put(const Progress& news);

  const std::uint64_t id_;
  const JobRequest request_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Progress progress_;  // all tokens
};

struct EngineConfig {
  std::int64_t num_blocks = 1024;
  int block_size = 16;
  int max_batch = 32;
  std::int64_t max_step_tokens = 256;
  std::int64_t max_length = 0;  // prompt and answer; 0: the model's, 4096 at most
};

struct EngineStats {
  Stats cache;
  SessionStats session;
  std::int64_t waiting = 0;
  std::int64_t running = 0;
};

// Threads: all calls from any thread.
class Engine final : private SessionObserver {
 public:
  // model: must outlive the engine. on_failure: called once on the engine's thread when cache or
  // session have failed; from then on every job fails.
  // Errors: those of KVCache::Create and Session::Create.
  static Result<std::unique_ptr<Engine>> Create(const Llama& model, EngineConfig config,
                                                std::function<void()> on_failure);
  ~Engine();  // cancels what runs

  const LlamaShape& shape() const { return model_.shape; }
  const EngineConfig& config() const { return config_; }

  // Null: Stop was called. The request's tokens must be of the model's vocabulary.
  std::shared_ptr<Job> Submit(JobRequest request);
  // False: no such job, or it has ended.
  bool Cancel(std::uint64_t job);
  // Takes no more jobs.
  void Stop();
  void CancelAll();
  // Whether no job is left, after waiting for that no longer than so.
  bool WaitIdle(std::chrono::milliseconds longest);

  EngineStats GetStats() const;
  std::string failure() const;  // empty: none

 private:
  struct Active {
    std::shared_ptr<Job> job;
    RequestId request = RequestId::kNone;
    Job::Progress news = {};  // since the job was told last
  };

  Engine(const Llama& model, const EngineConfig& config, std::function<void()> on_failure);
  Status Open();
  void Run();
  Status Turn(std::vector<std::shared_ptr<Job>> added, const std::vector<std::uint64_t>& cancelled);
  void Publish();
  void Fail(const Status& status);
  double Now() const;
  void OnTokens(RequestId request, std::uint64_t tag, int beam,
                std::span<const TokenId> tokens) override;
  void OnDone(const RequestResult& result) override;

  const Llama& model_;
  EngineConfig config_;
  std::function<void()> on_failure_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  // Of the engine's thread alone, once it runs.
  std::unique_ptr<KVCache> cache_;  // GetStats: any thread
  std::unique_ptr<LlamaExecutor> executor_;
  std::unique_ptr<Session> session_;
  std::unordered_map<std::uint64_t, Active> active_;  // by job
  std::vector<std::uint64_t> touched_;                // of these something has happened

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the engine's thread
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Job>> added_;
  std::vector<std::uint64_t> cancelled_;
  std::unordered_set<std::uint64_t> open_;  // jobs that have not ended
  std::uint64_t last_id_ = 0;
  bool stopped_ = false;
  bool quit_ = false;
  std::string failure_;
  EngineStats stats_;  // but .cache

  std::thread thread_;
};

}  // namespace lariat::examples
