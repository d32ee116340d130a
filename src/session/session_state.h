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

// One sequence of a request.
struct Beam {
  std::vector<TokenId> generated;

  // While it is open, as the queue's head or running.
  SequenceId sequence = SequenceId::kNone;
  std::int64_t opened_length = 0;  // tokens that the cache knew before any step of it
  std::int64_t target = 0;         // rows that are computed before it decodes
  std::int64_t settled = 0;
  bool fresh = false;        // the executor has seen none of it
  bool shares_tail = false;  // it was forked inside a block and has not written since
  // Tokens from `inputs_begin` on: all that are known (0) while target is not reached and in the
  // step behind it, later the next token and its drafts.
  std::vector<TokenId> inputs;
  std::int64_t inputs_begin = 0;

  bool open() const { return sequence != SequenceId::kNone; }
  bool prefilling() const { return settled < target; }
  std::int64_t inputs_end() const { return inputs_begin + std::ssize(inputs); }
};

// One request from Add to its end.
struct RequestState {
  Request request;
  RequestId id = RequestId::kNone;
  std::int64_t prompt_length = 0;
  RequestResult result;
  bool admitted = false;     // ever
  bool first_token = false;  // ever
  bool ended = false;        // it has all its tokens
  bool swapped = false;      // its sequence is in host memory
  RequestPhase phase = RequestPhase::kQueued;
  // Tokens of the prompt that were on the device when a fetch was started for it; -1: none was, or
  // its hit is counted.
  std::int64_t fetched_from = -1;
  // The greatest settled length it ever had: what is appended below is computed again. All beams
  // that decode are of one length, so that one number does for all.
  std::int64_t high_water = 0;
  // As many as it asks for, from the start; until the prompt ends only the first one is used.
  std::vector<Beam> beams;

  Beam& first() { return beams.front(); }
  std::int64_t num_beams() const { return std::ssize(beams); }
  bool forked() const { return beams.size() > 1 && !beams.front().generated.empty(); }
};

// A request whose blocks are on their way to the device, or have come and wait for admission.
struct Loading {
  RequestState* state = nullptr;  // null: it was cancelled, or has gone on
  TransferId transfer = TransferId::kNone;
  double done_s = 0;      // on the session's clock; not used where the executor does not say
  std::int64_t owed = 0;  // blocks that it will take besides, while it is not admitted
  bool landed = false;
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
// session_step.cc (a step), session_beams.cc (requests with several sequences),
// session_transfers.cc (fetches, and preemption by swap).
struct Session::Impl {
  using Beam = session::Beam;
  using RequestState = session::RequestState;

  Impl(KVCache& cache_in, Executor& executor_in, const SessionConfig& config_in,
       SessionObserver* observer_in);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status CheckRequest(const Request& request) const;
  void Finish(RequestState& state, Outcome outcome);
  void Enter(RequestState& state, RequestPhase phase) {
    if (state.phase == phase) return;
    state.phase = phase;
    if (observer != nullptr) observer->OnPhase(state.id, state.request.tag, phase, now);
  }

  // session_admission.cc
  Status BatchRunning();
  void BatchSequence(RequestState& state);
  void AddItem(RequestState& state, std::size_t beam, std::int64_t rows,
               std::int64_t num_drafts = 0);
  Status Admit();
  Result<bool> AdmitHead(RequestState& head, std::int64_t& available);
  std::int64_t BlocksToAdmit(const RequestState& state, const PrefixMatch& hit) const;
  void AddToRunning(RequestState& state);
  Status OpenHead(RequestState& head);
  void CloseBeam(Beam& beam);
  void CloseSequences(RequestState& state);
  Status TellEnds(RequestState& state, SequenceEndReason reason);
  Status PreemptLast();
  bool LeaveOutDrafts();
  Result<Step> PlanBatch();

  // session_transfers.cc
  double Seconds(const TransferWork& work);
  double Book(std::int64_t blocks, bool to_device);
  void BookDown();
  Result<bool> StartFetch(RequestState& head, const PrefixMatch& hit, std::int64_t needed);
  Result<bool> StartResume(RequestState& head, std::int64_t& available);
  Result<bool> SwapOut(RequestState& victim);
  void Push(RequestState& state, TransferId transfer, std::int64_t blocks, std::int64_t owed);
  Status LandTransfers();
  Status Land(session::Loading& loading_entry);
  Result<bool> WaitForTransfer();
  void DropLanded();

  // session_beams.cc
  std::int64_t BlocksOfBeams(const RequestState& state, std::int64_t settled,
                             std::int64_t length) const;
  std::int64_t BlocksOwedToBeams(const RequestState& state) const;
  Status BatchBeams(RequestState& state);
  static std::int64_t SharedLength(const RequestState& state, std::size_t b);
  std::int64_t RestoreLength(const RequestState& state) const;
  Status RestoreBeams(RequestState& state);
  Result<SequenceId> Fork(const Beam& parent, std::int64_t length);
  Status ForkFirst(RequestState& state);
  Status Reorder(RequestState& state, std::span<const int> from);
  Status TakeBeams(RequestState& state, const ExecutorOutput& output, std::size_t index);
  Status CheckBeamOutput(const ExecutorOutput& output, std::size_t index) const;

  // session_step.cc
  Result<bool> RunStep();
  void DescribeItems(const Step& step);
  Status Poll();
  Status Settle(Step& step, const ExecutorOutput& output);
  Status TakeOutput(const ExecutorOutput& output);
  Status CheckOutput(const ExecutorOutput& output) const;
  void CountRows(RequestState& state, const ExecutorItem& item, std::int64_t kept);
  void NoteFirstToken(RequestState& state);
  void TakeTokens(RequestState& state, const ExecutorItem& item, const ExecutorOutput& output,
                  std::size_t index);
  Status RemoveEnded();

  std::vector<TokenId> TakeBuffer();
  void ReturnBuffer(std::vector<TokenId>& buffer);

  // --- constant after construction ---
  KVCache& cache;
  Executor& executor;
  SessionObserver* const observer;
  const SessionConfig config;
  const std::int64_t block_size;
  const bool unlimited;
  const bool has_device;   // not the null backend
  const bool has_tier;     // the cache has a host tier
  const bool has_windows;  // it has several groups of layers: what is behind may be given back
  const std::int64_t bytes_per_block;
  Stream stream;
  bool owns_stream = false;
  std::int64_t total_blocks = 0;

  // --- requests ---
  std::unordered_map<std::uint64_t, std::unique_ptr<RequestState>> requests;  // not ended, by id
  std::deque<RequestState*> queue;               // in order of arrival; the front may be open
  std::vector<RequestState*> running;            // in order of arrival
  std::deque<session::Loading> loading;          // in order of the transfers' start
  double up_free_s = 0, down_free_s = 0;         // when the transfers so far are done
  bool virtual_link = false;                     // the executor says how long transfers take
  TransferId last_finished = TransferId::kNone;  // that the cache told of
  TransferId last_transfer = TransferId::kNone;  // that was started
  double room_s = 0;           // until then the step's blocks are being moved away
  std::int64_t offloaded = 0;  // blocks whose way down is booked, or was before this session
  std::vector<std::vector<TokenId>> spare_buffers;
  std::uint64_t last_id = 0;
  double last_arrival = 0;
  double now = 0;
  SessionStats stats;
  bool failed = false;

  // --- scratch of one step, by item; those of a request stand together ---
  struct Owner {
    RequestState* state = nullptr;
    std::size_t beam = 0;
  };
  std::vector<StepItem> items;
  std::vector<Owner> owners;
  std::int64_t budget = 0;       // rows left
  std::int64_t decodes = 0;      // rows of it that sequences yet to be batched decode with
  std::int64_t sequences = 0;    // beams of what runs
  bool unplanned = false;        // an item\'s hit is not claimed yet
  std::int64_t blocks_owed = 0;  // that running prompts and this step's decodes still take
  std::vector<ExecutorItem> executor_items;
  std::vector<StepCommit> commits;
  std::vector<TokenId> next;
  std::vector<std::int64_t> accepted;
  std::vector<std::uint8_t> stop;
  std::vector<std::span<const TokenId>> drafts;
  std::vector<std::span<const TokenId>> first;
  std::vector<int> parents;
  bool any_ended = false;
  std::vector<TokenId> emitted;
  std::vector<Beam> reordered;
};

}  // namespace lariat
