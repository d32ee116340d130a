// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/status.h"
#include "lariat/types.h"

// Continuous batching over one KVCache: a queue, admission, chunked prefill, decode, speculation,
// beams, preemption, and the use of the cache's host tier. Part of lariat::session. It uses the
// public cache API alone, so a server may link it as its scheduler, or read it as an example of
// one.

namespace lariat {

// --- What a server brings: a model ------------------------------------------------------------

// Names a request of one Session; counts up from 1 in order of Add.
enum class RequestId : std::uint64_t { kNone = 0 };

// One sequence's rows in a step.
struct ExecutorItem {
  RequestId request = RequestId::kNone;
  std::uint64_t tag = 0;  // Request::tag
  int beam = 0;           // which of the request's sequences, 0..Request::beams - 1
  SequenceId sequence = SequenceId::kNone;
  std::int64_t first_row = 0;  // of the step
  std::int64_t start = 0;      // the first row's index in the sequence
  std::int64_t count = 0;      // rows, drafts included
  std::int64_t drafts = 0;     // of which the last ones are drafts of this executor
  // The last certain row's output is the sequence's next token. False in a prompt's middle: then
  // nothing that is put out for this item is read.
  bool samples = false;
  // Further sequences that go on from this one's rows, each with a first token of its own: where
  // the prompt of a request with n beams ends n - 1, else 0.
  int forks = 0;
  std::span<const TokenId> tokens = {};  // [count], what the rows take in
  // [start] where the rows before were not made by an item of this beam: a first step behind a
  // prefix hit, or behind a fork that restores a preempted beam; else empty.
  std::span<const TokenId> cached = {};
};

// A prepared step: append each layer's rows with cache.Append(step, ...) on `stream`.
struct ExecutorStep {
  KVCache& cache;
  const Step& step;
  Stream stream;
  std::span<const ExecutorItem> items = {};
  double now_s = 0;  // the session's clock as the step begins
};

// What a step gave, by item. Set to the defaults below before each Run.
struct ExecutorOutput {
  std::span<TokenId> next = {};           // 0; the token after the last row that is kept
  std::span<std::int64_t> accepted = {};  // 0; drafts that are kept, 0..drafts
  std::span<std::uint8_t> stop = {};      // 0; not 0: the request ends with `next` (end of text)
  // Empty; rows to try behind `next` in a later step. Must live until the next Run. Not for
  // requests with beams.
  std::span<std::span<const TokenId>> drafts = {};
  // Empty; where the item has forks, [forks]: the first tokens of beams 1, 2, .. (`next` is that of
  // beam 0). Must live until the next Run.
  std::span<std::span<const TokenId>> first = {};
  // The item's own beam; the beam whose rows this one goes on from, and `next` comes behind. A beam
  // that nobody goes on from is dropped. Several may go on from one: its rows are shared.
  std::span<int> parents = {};
  double seconds = 0;  // how far the session's clock moves, >= 0
};

// Blocks on their way between the cache's tiers.
struct TransferWork {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;
  bool to_device = false;  // else to host memory
};

// Runs the model for one step; returns when `output` is known.
class Executor {
 public:
  virtual ~Executor() = default;
  // An error ends the session.
  virtual Status Run(const ExecutorStep& step, ExecutorOutput& output) = 0;

  // How long a transfer takes on the session's clock, beside the steps and behind those before it
  // in the same direction. All of a session's answers are negative (the default: as long as it does
  // take, the session asks KVCache::Poll), or none is (the session goes by its clock alone).
  virtual double TransferSeconds(const TransferWork&) { return -1; }
  // Whether a sequence that must make room is better moved to host memory and back than computed
  // again. Asked with Preempt::kAuto.
  //   tokens: its settled rows; work: all their blocks, of one direction
  virtual bool PrefersSwap(std::int64_t /*tokens*/, const TransferWork& /*work*/) { return true; }
};

// --- What a server asks for -------------------------------------------------------------------

struct Request {
  std::vector<TokenId> prompt = {};  // at least one token
  // Instead of `prompt`, for a prompt that is made when it is needed: its length, and what writes
  // it. Called each time the request is opened; must always leave the same prompt_length tokens.
  std::int64_t prompt_length = 0;
  std::function<void(std::vector<TokenId>& prompt)> write_prompt = {};

  std::int64_t max_new_tokens = 0;  // >= 1; all are produced unless the executor says stop
  double arrival_s = -1;            // on the session's clock, <= now(); negative: now()
  std::uint64_t tag = 0;            // the caller's own; handed back
  // Sequences that go on from the prompt, as of a beam search or of several samples, each with
  // max_new_tokens of its own. 1..min(max_batch, max_step_tokens).
  int beams = 1;
  // Of its cached blocks, 0..kMaxPriority (see Retention). The default asks for nothing, and is all
  // that a cache with EvictionPolicy::kLru takes.
  int priority = kDefaultPriority;
  // See OpenOptions.
  std::string salt = {};
  std::string adapter = {};
  std::vector<std::uint64_t> extra_keys = {};
};

// How a request ended.
enum class Outcome : std::uint8_t {
  kFinished,
  kMaxLength,  // refused: prompt and new tokens are more than max_length
  kNeverFits,  // refused: its rows need more blocks than there are
  kCancelled,
};

// How a request ended. Times are on the session's clock; those of events that did not happen are
// those of arrival.
struct RequestResult {
  RequestId id = RequestId::kNone;
  std::uint64_t tag = 0;
  Outcome outcome = Outcome::kFinished;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;      // produced; of one beam, all have as many
  std::int64_t hit_tokens = 0;         // prompt tokens not computed, as found cached
  std::int64_t host_hit_tokens = 0;    // of which were brought from host memory
  std::int64_t recomputed_tokens = 0;  // rows computed again after a preemption
  std::int64_t preemptions = 0;
  double arrival_s = 0;
  double admitted_s = 0;  // the first time
  double first_token_s = 0;
  double end_s = 0;
};

// Why a sequence is closed.
enum class SequenceEndReason : std::uint8_t {
  kFinished,   // its request has all its tokens
  kPreempted,  // it will be computed again
  kDropped,    // no beam goes on from it
};

// A sequence that is about to be closed.
struct SequenceEnd {
  RequestId request = RequestId::kNone;
  std::uint64_t tag = 0;  // Request::tag
  int beam = 0;
  SequenceId sequence = SequenceId::kNone;
  std::int64_t settled = 0;  // rows, at least 1
  SequenceEndReason reason = SequenceEndReason::kFinished;
};

// What a request is in, until it ends.
enum class RequestPhase : std::uint8_t {
  kQueued,     // not admitted yet; its prompt may be on its way from host memory
  kPrefill,    // its prompt, or what a preemption lost of it, is computed
  kDecode,     // its last step gave it a token, as the next one will
  kPreempted,  // it made room: closed, or moved to host memory
};

// What happens in a session, told as it happens. All but Add is illegal inside a call.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  // New tokens of a request, in order. Of one with beams: when it ends all tokens of each beam, as
  // what a beam goes on from may change until then.
  virtual void OnTokens(RequestId, std::uint64_t /*tag*/, int /*beam*/, std::span<const TokenId>) {}
  // KVCache::ReadRows, BlockTable and GetExtent are legal. Not called where a request is cancelled.
  // An error ends the session.
  virtual Status OnSequenceEnd(const SequenceEnd&) { return Status::Ok(); }
  // A request enters a phase, at now_s of the session's clock: kQueued first, at its arrival; when
  // it is admitted kPrefill, or kDecode where a preemption lost nothing. Refused ones enter none.
  virtual void OnPhase(RequestId, std::uint64_t /*tag*/, RequestPhase, double /*now_s*/) {}
  // Blocks are copied between the tiers from begin_s to end_s of the session's clock; as long as
  // Executor::TransferSeconds says, behind those before them on the same way.
  virtual void OnTransfer(const TransferWork&, double /*begin_s*/, double /*end_s*/) {}
  // A request has ended, refused ones too.
  virtual void OnDone(const RequestResult&) {}
};

// --- The session ------------------------------------------------------------------------------

// What becomes of the request that has to make room. Without a host tier, of a request with beams,
// and where the host tier has no room, it is computed again.
enum class Preempt : std::uint8_t {
  kRecompute,  // its blocks are let go
  kSwap,       // they are moved to host memory, and back when there is room
  kAuto,       // as Executor::PrefersSwap says
};

// How a Session admits, batches and preempts.
struct SessionConfig {
  // Sequences that run at once, each beam counted; the cache opens one more.
  int max_batch = 256;
  std::int64_t max_step_tokens = 2048;  // rows of one step: decodes and chunks of prompts together
  std::int64_t max_length = 0;  // prompt + new tokens; 0: the cache's max_tokens_per_sequence
  Preempt preempt = Preempt::kRecompute;
};

// Sums since Create.
struct SessionStats {
  std::int64_t finished = 0;
  std::int64_t refused_max_length = 0;
  std::int64_t refused_never_fits = 0;
  std::int64_t cancelled = 0;
  std::int64_t preemptions = 0;
  std::int64_t swaps = 0;    // of which moved to host memory
  std::int64_t fetches = 0;  // requests whose prompts were found in part in host memory alone
  std::int64_t steps = 0;
  std::int64_t tokens_appended = 0;    // rows kept
  std::int64_t recomputed_tokens = 0;  // of which were computed before (see docs/simulator.md)
  std::int64_t hit_tokens = 0;
  std::int64_t host_hit_tokens = 0;  // of which were brought from host memory
  std::int64_t lookup_tokens = 0;    // prompt tokens of admitted requests, each prompt once
  std::int64_t output_tokens = 0;    // produced; of a request with beams those of one beam
  std::int64_t drafted_tokens = 0;   // draft rows that were run
  std::int64_t accepted_tokens = 0;  // of which were kept
  std::int64_t forks = 0;            // sequences made of another one's rows
  double busy_s = 0;                 // seconds of all steps, on the session's clock
  double manager_s = 0;              // wall seconds inside the cache's host calls
};

// Serves requests one step at a time, by these rules (docs/simulator.md has the reasons):
// - Those that run come first in a step's token budget, in order of admission: one row of a
//   decoding sequence, and its drafts where every sequence that decodes has its row; as many as fit
//   of a prompt that is being computed.
// - Then requests are admitted in order of arrival, while the batch and the budget have room and
//   the blocks of the whole prompt that no running sequence holds are free or idle, not counting
//   what running prompts and this step's decodes still take. Output is not reserved.
// - A prompt that is found in part in host memory alone is fetched first. The request waits beside
//   the queue, with its place in the batch; those behind it may be admitted meanwhile. When the
//   fetch is accepted it comes before all others.
// - The beams of a request are admitted, run, preempted and ended together. They fork where the
//   prompt ends, and share all blocks but those that they write: a tail that is shared is copied.
// - Where a step finds no block its drafts are left out; if that is not enough, the running request
//   that arrived last is preempted: closed, and put back at the queue's front, to be opened again
//   with all tokens it has by then. Of beams the first one is opened, and the others are forked
//   from it where they part. With Preempt::kSwap it is moved to host memory instead, and goes on
//   from there when its blocks have room again.
// - A request that can never be served is refused when it is added. So every request ends.
//
// Threads: externally synchronised, with its cache. Nobody else opens sequences in that cache.
// Ownership: borrows the cache, the executor and the observer, which must outlive it. Owns the
//   prompts of requests until they end; a prompt that is written on demand is in memory only from
//   when its request is the queue's head, or is fetched, until it is computed.
// Cost: a step costs O(1) per running sequence, beside the cache's own; nothing is allocated in a
//   steady step.
// Determinism: the same requests at the same times and the same outputs give the same steps.
class Session {
 public:
  // observer: may be null.
  // Errors: kInvalidArgument (a field out of range, or beyond what the cache was made for),
  //   kDeviceError.
  static Result<Session> Create(KVCache& cache, Executor& executor, const SessionConfig& config,
                                SessionObserver* observer = nullptr);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();  // closes what is open

  // Puts a request into the queue, or refuses it (see Outcome; then it has ended already).
  // Errors: kInvalidArgument (no prompt, max_new_tokens < 1, beams out of range, arrival_s later
  //   than now() or earlier than that of the request added before; RunStep has failed).
  Result<RequestId> Add(Request request);
  // Ends a request that waits or runs. Errors: kInvalidArgument (unknown, or ended; RunStep has
  //   failed).
  Status Cancel(RequestId id);

  // Runs one step, or, where nothing can run before a transfer has come, lets that come. False:
  // nothing waits or runs.
  // Errors: those of the cache, the executor and the observer; kResourceExhausted: blocks are held
  //   outside the session; kCorruptData: the device reports a bad slot or position. The session can
  //   then only be destroyed.
  Result<bool> RunStep();

  bool idle() const;  // nothing waits or runs
  std::int64_t waiting() const;
  std::int64_t running() const;

  double now() const;  // seconds; starts at 0
  // Moves the clock, for times at which nothing runs (or a server's own clock). Earlier: no change.
  void AdvanceTo(double now_s);

  const SessionStats& stats() const;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lariat
