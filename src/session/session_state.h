// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lariat/session.h"

namespace lariat::session {

// One request from Add to its end.
struct RequestState {
  Request request;
  RequestId id = RequestId::kNone;
  std::int64_t prompt_length = 0;
  RequestResult result;
  bool admitted = false;     // ever
  bool first_token = false;  // ever

  std::vector<TokenId> generated;
  // The greatest settled length it ever had: what is appended below is computed again.
  std::int64_t high_water = 0;

  // While it is open, as the queue's head or running.
  SequenceId sequence = SequenceId::kNone;
  std::int64_t opened_length = 0;  // tokens it was opened with: prompt and generated
  std::int64_t settled = 0;
  // What comes next: the opened tokens from 0 on while settled < opened_length (the prefill), later
  // the next token and its drafts.
  std::vector<TokenId> inputs;

  bool prefilling() const { return settled < opened_length; }
};

// Adds the wall time of a scope to a sum.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& sum_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace lariat::session

namespace lariat {

// Files: session.cc (requests), session_admission.cc (who runs: the batch, admission, preemption),
// session_step.cc (a step).
struct Session::Impl {
  using RequestState = session::RequestState;

  Impl(KVCache& cache_in, Executor& executor_in, const SessionConfig& config_in,
       SessionObserver* observer_in);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status CheckRequest(const Request& request) const;
  void Finish(RequestState& state, Outcome outcome);

  // session_admission.cc
  void BatchRunning();
  Status Admit();
  Status OpenHead(RequestState& head);
  void CloseSequence(RequestState& state);
  Status PreemptLast();
  Result<Step> PlanBatch();

  // session_step.cc
  Result<bool> RunStep();
  void DescribeItems(const Step& step);
  Status Poll();
  Status Settle(Step& step, const ExecutorOutput& output);
  Status CheckOutput(const ExecutorOutput& output) const;
  void CountRows(RequestState& state, const ExecutorItem& item, std::int64_t kept);
  void TakeTokens(RequestState& state, const ExecutorItem& item, const ExecutorOutput& output,
                  std::size_t index);
  Status RemoveEnded();

  std::int64_t BlocksFor(std::int64_t tokens) const {
    return (tokens + block_size - 1) / block_size;
  }
  std::vector<TokenId> TakeBuffer();
  void ReturnBuffer(std::vector<TokenId>& buffer);

  // --- constant after construction ---
  KVCache& cache;
  Executor& executor;
  SessionObserver* const observer;
  const SessionConfig config;
  const std::int64_t block_size;
  const bool unlimited;
  const bool has_device;  // not the null backend
  Stream stream;
  bool owns_stream = false;
  std::int64_t total_blocks = 0;

  // --- requests ---
  std::unordered_map<std::uint64_t, std::unique_ptr<RequestState>> requests;  // not ended, by id
  std::deque<RequestState*> queue;     // in order of arrival; the front may be open
  std::vector<RequestState*> running;  // in order of admission, which is that of arrival
  std::vector<std::vector<TokenId>> spare_buffers;
  std::uint64_t last_id = 0;
  double last_arrival = 0;
  double now = 0;
  SessionStats stats;
  bool failed = false;

  // --- scratch of one step, by item; the i-th item is running[i] ---
  std::vector<StepItem> items;
  std::int64_t budget = 0;       // rows left
  std::int64_t blocks_owed = 0;  // that running prompts and this step's decodes still take
  std::vector<ExecutorItem> executor_items;
  std::vector<StepCommit> commits;
  std::vector<TokenId> next;
  std::vector<std::int64_t> accepted;
  std::vector<std::uint8_t> stop;
  std::vector<std::span<const TokenId>> drafts;
  std::vector<std::uint8_t> ended;  // by item: the request has all its tokens
  bool any_ended = false;
  std::vector<TokenId> emitted;
};

}  // namespace lariat
