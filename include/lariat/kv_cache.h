// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/cache_config.h"
#include "lariat/device.h"
#include "lariat/layer_inputs.h"
#include "lariat/ops.h"
#include "lariat/rope.h"
#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat {

// --- Sequences ------------------------------------------------------------------------------

// What blocks are worth that nobody asked anything for.
inline constexpr int kDefaultPriority = 35;
inline constexpr int kMaxPriority = 100;

// How long cached blocks are to be kept, for tokens [first_token, last_token) of a sequence. A
// block takes the greatest priority of the ranges that hold one of its tokens (of equal ones, the
// longest ttl_ms), when it enters the index, at the first Commit of a sequence that found it there,
// or when a sequence that was suspended is back. What is given last counts; who gives nothing
// changes nothing. A text that loses its device block loses it.
struct Retention {
  std::int64_t first_token = 0;
  std::int64_t last_token = -1;     // exclusive; -1: to the end
  int priority = kDefaultPriority;  // 0..kMaxPriority: what is lowest is evicted first
  // How long after the block was let go of it falls to kDefaultPriority, by KVCache::Expire's
  // clock; 0: never.
  std::int64_t ttl_ms = 0;
};

// What must agree, besides the tokens, before one sequence may use another's blocks; and, read by
// Open alone, what the sequence is given.
struct OpenOptions {
  std::string_view salt = {};                      // tenant isolation
  std::string_view adapter = {};                   // LoRA or similar
  std::span<const std::uint64_t> extra_keys = {};  // content behind placeholder tokens (images)
  // Tokens; 0: max_tokens_per_sequence. Also chooses the tables of ropes that depend on the length
  // (longrope, dynamic): those for lengths up to the original one, or else those for the cache's
  // max_tokens_per_sequence. Sequences that turn by other tables share nothing.
  std::int64_t max_length = 0;
  std::span<const Retention> retention = {};  // copied; EvictionPolicy::kPriority only
};

// How much of a prompt is cached. Claims nothing, and may be stale at the next call.
struct PrefixMatch {
  std::int64_t tokens = 0;  // a first Plan would find this many cached on the device
  // Whole blocks of them, of the first group; what is beyond would be copied (kToken).
  std::int64_t blocks = 0;
  std::int64_t idle_blocks = 0;  // of those blocks, the ones that nobody holds now
  // Tokens that would be found after a Fetch was accepted: blocks in host memory count too.
  std::int64_t host_tokens = 0;  // >= tokens
};

// How long a sequence is, by what is meant.
struct Extent {
  std::int64_t settled = 0;  // tokens kept by Commit (a prefix hit counts from the first Commit)
  std::int64_t planned = 0;  // settled plus the certain rows of live steps
  std::int64_t known = 0;    // token ids known from the start on
  // Truncate and Fork may go back to here, or to 0: what a window before a lesser length wants was
  // given back.
  std::int64_t min_length = 0;
};

// --- Steps ----------------------------------------------------------------------------------

// One sequence's share of a step.
struct StepItem {
  SequenceId sequence = SequenceId::kNone;
  // New rows, >= 1. On a sequence's first Plan an upper bound: rows start behind the prefix hit and
  // end with the prompt at the latest.
  std::int64_t num_tokens = 0;
  std::int64_t num_drafts = 0;  // of which the last ones may be rejected; < num_tokens
  // RoPE positions of the rows, [num_tokens] counted from the first row, or, with mrope ropes,
  // [3, num_tokens]; empty: the row's index in the sequence. On a first Plan, from the row behind
  // the hit. Rows elsewhere than at their index end the sequence's reuse by others, unless a salt
  // or extra_keys tell such sequences apart.
  std::span<const std::int32_t> positions = {};
};

// Pads a step, so that a CUDA graph captured for this shape can be replayed. 0: as many as there
// are.
struct StepShape {
  std::int64_t max_tokens = 0;
  int max_sequences = 0;
};

// One sequence's rows in a planned step.
struct StepRows {
  SequenceId sequence = SequenceId::kNone;
  std::int64_t first_row = 0;  // of the step
  std::int64_t start = 0;      // the first row's index in the sequence
  std::int64_t count = 0;
  std::int64_t hit = 0;  // tokens found cached, on the sequence's first plan; else 0
};

// What stays of one sequence's rows.
struct StepCommit {
  SequenceId sequence = SequenceId::kNone;
  std::int64_t kept = 0;  // count - drafts .. count
  // Ids of kept rows past the prompt, in order: what was fed in, not what was sampled. Fewer than
  // there are rows: the rest comes later by SetTokens.
  std::span<const TokenId> tokens = {};
};

// What one sequence of a failed Plan asked for.
struct SequenceNeed {
  SequenceId sequence = SequenceId::kNone;
  std::int64_t blocks = 0;  // new blocks of all groups, copies included
};

// Why a Plan found no room.
struct PlanFailure {
  std::int64_t needed = 0;      // new blocks over all items
  std::int64_t available = 0;   // free and idle ones, after the items' prefix hits were claimed
  std::int64_t in_transit = 0;  // blocks of transfers under way
  std::vector<SequenceNeed> sequences;
};

// A fault that a step's operations recorded on the device. Of MlaExpand, token is an output row and
// value a block, or the index of a token beyond its table.
struct StepFault {
  std::uint64_t step = 0;  // Step::id
  FaultKind kind = FaultKind::kNone;
  std::int64_t token = 0;  // row of the step
  std::int64_t value = 0;  // the slot or position
};

// A transfer whose copies are done.
struct TransferReport {
  TransferId id = TransferId::kNone;
  bool failed = false;
};

// What Poll has seen to be over since the Poll before.
struct PollReport {
  int live_steps = 0;      // prepared, neither committed nor discarded
  int pending_events = 0;  // ended steps whose device work has not passed yet
  std::vector<StepFault> faults;
  std::vector<TransferReport> finished_transfers;  // each once, in the order of their start
};

struct BlockHash;  // lariat/block_hash.h
struct KVEvent;    // lariat/kv_event.h
class KVCache;

// A planned step. Movable; dropping it before Prepare undoes the plan exactly; dropping it later
// without Commit or Discard discards it (at once, or as soon as the steps behind it have ended).
// REQUIRES: does not outlive its cache.
class Step {
 public:
  Step() = default;
  Step(Step&& other) noexcept;
  Step& operator=(Step&& other) noexcept;
  ~Step();

  bool valid() const { return impl_ != nullptr; }
  std::uint64_t id() const { return id_; }  // counts up from 1 in plan order
  std::int64_t num_tokens() const;          // rows
  std::int64_t padded_tokens() const;       // rows with padding: the T of an Append
  int padded_sequences() const;
  // In the order of the items. Valid until the step has ended.
  std::span<const StepRows> rows() const;

 private:
  friend class KVCache;
  void* impl_ = nullptr;
  std::uint64_t id_ = 0;
};

// Arrays of the most recently prepared step, device memory at addresses that never change. They
// hold padded_tokens / padded_sequences valid entries; null pointers on the null backend. Slots and
// block tables are those of one group of layers (LayerView::group); all groups share the rest.
struct StepView {
  const std::int64_t* slots = nullptr;  // [max_tokens_per_step]; padding -1
  // [sections, max_tokens_per_step], sections 3 where a rope has mrope sections, else 1; padding 0
  const std::int32_t* positions = nullptr;
  // [max_tokens_per_step]: bit r says that the row turns by the second table of ropes[r]; padding
  // 0. Null where no rope has two.
  const std::uint32_t* rope_choice = nullptr;
  const std::int32_t* cu_seqlens = nullptr;  // [max_sequences + 1]; padding T
  const std::int32_t* seqused_k =
      nullptr;  // [max_sequences], tokens after this step's append; padding 0
  // [max_sequences, block_table_stride], batch order; padding 0. Of blocks before a window, which
  // were given back, no matter: a block's number.
  const std::int32_t* block_table = nullptr;
  std::int64_t block_table_stride = 0;  // ceil(max_tokens_per_sequence / block_size)

  // With CacheConfig::reader_arrays, else null: the group's blocks of each sequence behind those of
  // the one before it, as FlashInfer reads them. Sequence b has kv_indices[kv_indptr[b] ..
  // kv_indptr[b + 1]): the blocks from the one of token kv_start[b] on. Of layers with a window
  // that is the block of the first token which the step's first row attends to; else it is 0.
  const std::int32_t* kv_indptr = nullptr;   // [max_sequences + 1]; padding: the number of blocks
  const std::int32_t* kv_indices = nullptr;  // what is behind the last block, no matter: a block's
                                             // number
  const std::int32_t* kv_start = nullptr;    // [max_sequences], a multiple of block_size; padding 0
  // [max_sequences], tokens in the last block, 1..block_size; padding 0
  const std::int32_t* last_page_len = nullptr;
  // [max_tokens_per_step], which sequence of the step a row is of; padding -1
  const std::int32_t* batch_indices = nullptr;
};

// The same of the most recently prepared step in host memory, for planners of attention kernels:
// padded_sequences entries (cu_seqlens and kv_indptr: one more). Valid until the next Prepare.
// Empty before the first one, without CacheConfig::reader_arrays, and on the null backend.
struct StepHostView {
  std::span<const std::int32_t> cu_seqlens;
  std::span<const std::int32_t> seqused_k;
  std::span<const std::int32_t> kv_indptr;  // of the group; so the next
  std::span<const std::int32_t> kv_start;
  std::span<const std::int32_t> last_page_len;
  // The most rows and, after this step's append, tokens of a sequence of the step. A captured graph
  // is to be given bounds for all its replays.
  std::int32_t max_seqlen_q = 0;
  std::int32_t max_seqlen_k = 0;
};

// One layer's planes, for an attention kernel. Element (block, row, head, i) of K is at
// k + block * k_block_stride + row * k_row_stride + head * k_head_stride + i, in elements.
// MLA: K is the latent rows, of one head; v is null, v_dim and V's strides are 0.
struct LayerView {
  DType dtype = DType::kBF16;
  int group = 0;  // whose slots and block table are the layer's
  LayerKind kind = LayerKind::kFull;
  int window = 0;    // as LayerSpec::window
  int kv_heads = 0;  // this rank's
  int k_dim = 0;
  int v_dim = 0;
  int block_size = 0;
  std::int64_t num_blocks = 0;
  void* k = nullptr;
  void* v = nullptr;
  std::int64_t k_block_stride = 0, k_row_stride = 0, k_head_stride = 0;
  std::int64_t v_block_stride = 0, v_row_stride = 0, v_head_stride = 0;
  // [num_positions, rotary_dim / 2], or two of them in a row (StepView::rope_choice); null without
  // RoPE.
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t num_positions = 0;
};

// Counters since Create, and the pool now. free + idle + held + reserved + in_transit = total.
struct Stats {
  std::int64_t total_blocks = 0;  // grows when unlimited
  std::int64_t free_blocks = 0;
  std::int64_t idle_blocks = 0;  // cached, held by nobody
  std::int64_t held_blocks = 0;
  std::int64_t reserved_blocks = 0;       // taken by live steps, not committed yet
  std::int64_t in_transit_blocks = 0;     // taken by a Fetch or Resume that is not accepted yet
  std::int64_t peak_used_blocks = 0;      // most held + reserved + in transit at once
  std::int64_t indexed_blocks = 0;        // cached on the device
  std::int64_t pinned_blocks = 0;         // held by Pin, by others too or not
  std::int64_t evicted_blocks = 0;        // indexed blocks that left the device to make room
  std::int64_t quota_evicted_blocks = 0;  // idle ones freed because of SetQuota
  std::int64_t expired_blocks = 0;        // idle ones whose retention ended
  std::int64_t merged_blocks = 0;         // full blocks found equal to an indexed one at Commit
  std::int64_t copied_blocks = 0;         // copy-on-write
  std::int64_t hit_tokens = 0;            // claimed by first Plans that were prepared
  std::int64_t tokens_committed = 0;
  std::int64_t sequences = 0;  // open
  std::int64_t live_steps = 0;
  // The host tier.
  std::int64_t host_blocks = 0;       // places
  std::int64_t host_used = 0;         // that hold a block
  std::int64_t host_held = 0;         // of those: of suspended sequences, or read by a transfer
  std::int64_t offloaded_blocks = 0;  // copied to the host
  std::int64_t onboarded_blocks = 0;  // copied to the device by transfers that were accepted
  std::int64_t host_evicted = 0;      // cached blocks dropped from the host to make room
  // With CacheConfig::max_events.
  std::int64_t events = 0;       // there were so far
  std::int64_t lost_events = 0;  // of them, nobody drained in time
};

// Owns the key and value blocks of one model on one device (one tensor-parallel rank).
//
// A step is Plan -> Prepare -> Append once per layer -> Commit; see docs/architecture.md. Up to
// max_steps_in_flight steps live at once. A failed call changes nothing.
//
// Threads: externally synchronised; GetStats may be called from any thread.
// Streams: the steps that live at once share one stream; a new stream first waits for the last
//   step's event. Nothing here blocks the host but Create, ReadRows, the destructor, and a Plan
//   that is max_steps_in_flight + 2 steps ahead of the device (it waits for the oldest one's
//   staging), and Accept. A Prepare or Commit never waits for a transfer on the host.
// Determinism: the same calls in the same order give the same handles, slots, hits, evictions and
//   errors, whatever the device does meanwhile (a device fault is the one exception, see Poll).
// Ownership: the cache owns its pool and tables; inputs are the caller's and must live until the
//   stream has passed the call.
class KVCache {
 public:
  // Allocates everything up front and zeroes the pool.
  // Errors: kInvalidArgument (a field out of range), kUnsupported (valid, not built),
  //   kResourceExhausted (device or host memory), kDeviceError.
  static Result<KVCache> Create(const CacheConfig& config);
  // On a device of the caller's; config.backend and device_ordinal are not read.
  static Result<KVCache> Create(const CacheConfig& config, Device device);
  // Allocates nothing.
  static Result<MemoryFootprint> Footprint(const CacheConfig& config);
  // Ok, or why not.
  static Status Supports(const CacheConfig& config, Feature feature);

  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;
  ~KVCache();  // waits for the device work of its steps

  const CacheConfig& config() const;
  Device& device();
  MemoryFootprint footprint() const;

  // What a prompt would find cached. Claims nothing, so the answer may be stale at Plan.
  PrefixMatch Match(std::span<const TokenId> prompt, const OpenOptions& options = {}) const;
  // The same for an open sequence that was not planned yet. Remembers where it stopped, so asking
  // again is cheap. Errors: kInvalidArgument (unknown, or planned already).
  Result<PrefixMatch> Match(SequenceId sequence);

  // Opens a sequence and copies its prompt (may be empty: then the first rows are past the prompt).
  // Errors: kInvalidArgument (prompt longer than max_length, max_length or a field of retention out
  //   of range, retention with EvictionPolicy::kLru),
  //   kResourceExhausted (max_sequences are open), kNotReady (a plan is not prepared yet).
  Result<SequenceId> Open(std::span<const TokenId> prompt, const OpenOptions& options = {});

  // Reserves rows for one ragged batch, items in order; host only. Until the step is prepared or
  // dropped, only Match, stats, views and Prepare are legal (else kNotReady).
  //   failure: if not null, filled when the answer is kResourceExhausted or kNeverFits
  // Errors: kInvalidArgument (unknown sequence, one twice, a count or position out of range, past
  //   max_length, a shape too small), kResourceExhausted, kNeverFits (one item alone needs more
  //   blocks than there are), kNotReady (steps in flight, or drafts of this sequence undecided),
  //   kCorruptData (the sequence holds a block with a device fault).
  Result<Step> Plan(std::span<const StepItem> items, const StepShape& shape = {},
                    PlanFailure* failure = nullptr);

  // Takes the plan: erases victims from the index, starts copy-on-write copies and the launch that
  // makes the step's arrays. Not to be captured in a graph.
  // Errors: kInvalidArgument (prepared already), kDeviceError.
  Status Prepare(Step& step, Stream stream);

  // Rotates and stores one layer's rows. One launch; capturable.
  // REQUIRES: the prepared step is the most recent one.
  // Errors: kInvalidArgument, kNotReady (not prepared, or not the most recent), kDeviceError.
  Status Append(const Step& step, int layer, const AppendInputs& inputs, Stream stream);

  // Append of an MLA layer: one latent row per token. Capturable after Warmup, as are the next two.
  // Errors: as Append; kResourceExhausted (workspace).
  Status MlaAppend(const Step& step, int layer, const MlaAppendInputs& inputs, Stream stream);
  // Keys and values of tokens that the step's sequences hold, those of this step included once they
  // are appended. A range past a sequence's tokens gives rows of no meaning; one past
  // max_tokens_per_sequence is a fault, and is taken for a fault of the step.
  // Errors: as MlaAppend.
  Status MlaExpand(const Step& step, int layer, const MlaExpandInputs& inputs, Stream stream);
  // Append of a layer with keys and values from hidden states: MlaCompress into the workspace,
  // then AppendRope.
  // Errors: as MlaAppend.
  Status MlaCompress(const Step& step, int layer, const MlaCompressInputs& inputs, Stream stream);
  // Makes what such calls need on a stream (ops.h), for steps of up to max_tokens_per_step rows
  // (MlaExpand: up to inputs.num_tokens). May block the host. Errors: as the calls.
  Status Warmup(int layer, const MlaAppendInputs& inputs, Stream stream);
  Status Warmup(int layer, const MlaExpandInputs& inputs, Stream stream);
  Status Warmup(int layer, const MlaCompressInputs& inputs, Stream stream);

  // Settles the rows, makes full blocks with known ids open to reuse, and records one event. The
  // step becomes invalid. Sequences that are not named keep all their rows; those that were closed
  // are ignored. Steps commit in plan order.
  // Errors: kInvalidArgument (kept or tokens out of range, a sequence not in the step, or twice),
  //   kNotReady (not prepared, or an earlier step is live), kDeviceError.
  Status Commit(Step& step, std::span<const StepCommit> commits, Stream stream);

  // Instead of Commit: none of the step's rows stays. The step becomes invalid. A sequence whose
  // first plan is discarded may be planned again as if new.
  // Errors: kNotReady (a later live step has rows of the same sequence), kDeviceError.
  Status Discard(Step& step, Stream stream);

  // Looks at events without blocking; reports device faults of steps that have passed, and
  // transfers whose copies are done, each once. A transfer changes nothing until Accept. A fault
  // takes the step's blocks, and all below them, out of the index; sequences that hold one answer
  // kCorruptData to all but Close. Errors: kNotReady (a plan is not prepared yet), kDeviceError.
  Result<PollReport> Poll();

  // Ends a sequence. In a live step: the handle dies at once, its blocks return when the step ends.
  // In transit: what is on its way returns when the transfer is accepted, and is cached then.
  Status Close(SequenceId sequence);
  // Shortens to `length` tokens; longer than the sequence is (planned rows included): no change.
  // Rows of live steps past it are dropped. Errors: kInvalidArgument (negative, unknown, below
  // Extent::min_length and not 0), kCorruptData.
  Status Truncate(SequenceId sequence, std::int64_t length);
  // A new sequence that shares the first `length` tokens (-1: all settled ones); blocks are shared,
  // a partly filled one is copied when either side writes to it.
  // Errors: kInvalidArgument (length as for Truncate), kNotReady (in a live step),
  //   kResourceExhausted (max_sequences).
  Result<SequenceId> Fork(SequenceId sequence, std::int64_t length = -1);
  // Ids of settled rows past the prompt that Commit did not give, in order.
  // Errors: kInvalidArgument (more than there are rows without one).
  Status SetTokens(SequenceId sequence, std::span<const TokenId> tokens);
  Result<Extent> GetExtent(SequenceId sequence) const;
  // The device blocks of a sequence in one group of layers, in order; -1: given back, for no later
  // row reads it. Valid until the next call that changes it.
  // Errors: kInvalidArgument (unknown sequence or group), kCorruptData.
  Result<std::span<const std::int32_t>> BlockTable(SequenceId sequence, int group = 0) const;
  // The first token whose row a layer still has: ReadRows reads from there on; 0 but for a layer
  // with a window. Errors: kInvalidArgument (unknown sequence or layer), kCorruptData.
  Result<std::int64_t> FirstRow(SequenceId sequence, int layer) const;
  // The most blocks of all groups that a sequence of `settled` tokens holds while rows
  // [settled, end) are computed, in steps of up to step_tokens rows each (0: in one); end =
  // settled: that it holds then. Of one group, ceil(end / block_size). Of several steps, a bound
  // that may be a block too high for each group with a window. With n steps in flight a window may
  // slide n - 1 steps later: a sequence then holds the rows of those steps besides.
  // REQUIRES: 0 <= settled <= end, 0 <= step_tokens
  std::int64_t BlocksFor(std::int64_t settled, std::int64_t end,
                         std::int64_t step_tokens = 0) const;

  // Names of the sequence's first blocks, as block_hash.h makes them: of those that are open to
  // reuse, as many as `hashes` has room for. Returns how many. Nothing is kept: O(their tokens).
  // Errors: kInvalidArgument (unknown), kCorruptData.
  Result<std::int64_t> BlockHashes(SequenceId sequence, std::span<BlockHash> hashes) const;

  // Changes of the index since the last call, oldest first: as many as `events` has room for.
  // Returns how many. Legal at any time; changes nothing else. A full log drops its oldest event:
  // numbers then jump. Always 0 without max_events. O(their number).
  std::int64_t DrainEvents(std::span<KVEvent> events);
  // What is in the index now, for who begins late or has missed events: each block of each tier as
  // a kStored event, in no order, with the number of the last event that it accounts for. Begin
  // with cursor 0 and call again, no other call between, until less than `events` has room for
  // comes back; then go on with the events of greater numbers. Returns how many.
  // Errors: kUnsupported (no max_events), kInvalidArgument (cursor below 0).
  Result<std::int64_t> ListBlocks(std::int64_t& cursor, std::span<KVEvent> events) const;

  // Drops everything cached that no sequence holds, and takes what is held out of the index (new
  // weights). Sequences stay open.
  Status Clear();

  // Holds the whole blocks of a prompt that is cached, so that they are never evicted. Prefixes may
  // overlap and be pinned more than once; a block counts once. All of it or nothing. A pin whose
  // blocks, or some of them, are taken by Clear, Remove, RemoveSalt or a device fault is gone.
  // Errors: kInvalidArgument (not all of the prompt's whole blocks are cached on the device),
  //   kResourceExhausted (more than max_pinned_blocks), kNotReady (a plan is not prepared yet).
  Status Pin(std::span<const TokenId> prompt, const OpenOptions& options = {});
  // Takes one Pin of the same whole blocks back. Errors: kInvalidArgument (not pinned, or only as
  // part of a longer prefix), kNotReady.
  Status Unpin(std::span<const TokenId> prompt, const OpenOptions& options = {});

  // Forgets every cached text that begins with `prompt` (empty: all of these options), pinned or
  // not, on the device or not: idle blocks become free, held ones leave the index, and what
  // sequences of such a text hold is not cached any more. What was not computed yet may be cached
  // again. Returns how many blocks left the index. O(blocks removed + tokens of open sequences).
  // Errors: kNotReady (a plan is not prepared yet).
  Result<std::int64_t> Remove(std::span<const TokenId> prompt, const OpenOptions& options = {});
  // The same for all texts of a salt, whatever their other keys are.
  Result<std::int64_t> RemoveSalt(std::string_view salt);

  // Moves the clock that Retention::ttl_ms is counted by; what is idle for longer than it asked
  // falls to kDefaultPriority. The clock begins at 0 and is never read from the machine: ranks give
  // equal times. O(log blocks) per block that falls.
  // Errors: kInvalidArgument (before the last now_ms), kNotReady (a plan is not prepared yet).
  Status Expire(std::int64_t now_ms);
  // Lets the sequences of a salt, whatever their other keys are, leave at most so many idle blocks
  // in the cache; -1: no limit. What is more at the end of a call is freed, the salt's own next
  // victims first; copies in host memory stay. Blocks that are held or pinned do not count, those
  // that a Fetch brought do once they are accepted. O(log blocks) per block that is freed; where
  // the salt has no quota yet, or loses it, O(blocks) once.
  // Errors: kInvalidArgument (below -1), kNotReady (a plan is not prepared yet).
  Status SetQuota(std::string_view salt, std::int64_t max_idle_blocks);

  // Gives the pool's memory back to the device, for another use of it. Waits for the device work of
  // steps that ended, and drops everything cached, in host memory too, as Clear does; the rest of
  // the cache stays. MemoryConfig::caller_memory is the caller's again, until Reacquire. Until then
  // Open and Plan answer kNotReady, and LayerView's addresses are null. To release again is Ok.
  // Errors: kNotReady (sequences are open, a step is live or planned, a transfer not accepted).
  Status Release();
  // Takes the pool again, empty and zeroed; it may lie elsewhere: LayerView, tensors and captured
  // graphs of before are of no use any more. Of a pool that is there: Ok.
  // Errors: kResourceExhausted (ask again later), kDeviceError.
  Status Reacquire();
  // Transfers between the device and the host tier. They run on streams of the cache's own, beside
  // the steps. A sequence that a Fetch or Resume was started for is in transit until that transfer
  // is accepted: till then it answers kNotReady to all but Close, GetExtent, BlockTable and
  // BlockHashes. The answers of all calls are the same however long the copies take.
  // Errors of all four: kInvalidArgument (unknown sequence), kUnsupported (no host tier), kNotReady
  //   (a plan is not prepared yet), kDeviceError.

  // Brings the part of the prompt's longest match that is only in host memory to the device, where
  // the first Plan may claim it once the transfer is accepted. The match's blocks on the device are
  // held meanwhile. kNone: there is nothing to bring, and the sequence is not in transit.
  // Errors: kInvalidArgument (planned already), kNotReady (in transit), kResourceExhausted (not so
  //   many blocks are free or idle).
  Result<TransferId> Fetch(SequenceId sequence);
  // Moves a sequence to host memory: makes a copy of each of its blocks that has none, holds the
  // copies, and lets go of its device blocks at once. Its full known blocks stay cached. Until
  // Resume it has no block table and answers kNotReady, but to the four calls named above. It need
  // not be accepted. kNone: there was nothing to copy.
  // Errors: kInvalidArgument (not planned yet), kNotReady (in a live step, suspended already or in
  //   transit), kResourceExhausted (not so many places in the host tier), kCorruptData.
  Result<TransferId> Suspend(SequenceId sequence);
  // Brings a suspended sequence back as it was; its blocks may be others. kNone: all of it is on
  // the device still, and it may be planned at once.
  // Errors: kInvalidArgument (not suspended), kNotReady (in transit), kResourceExhausted (not so
  //   many blocks are free or idle), kCorruptData.
  Result<TransferId> Resume(SequenceId sequence);
  // Takes over what this transfer, and all that were started before it, brought. Blocks the host
  // until their copies are done: ask Poll first. One that failed brought nothing: what its host
  // copies held is forgotten, and sequences that were to be resumed from it, by this transfer or
  // another one, are corrupt (kCorruptData to all but Close). To accept a transfer again is Ok and
  // changes nothing; of a Suspend only the transfers before it are taken over.
  //   returns: whether the copies of this transfer failed; false where it was accepted before
  // Errors: kInvalidArgument (there was no such transfer), kNotReady (a plan is not prepared yet).
  Result<TransferReport> Accept(TransferId transfer);

  // Valid from Create on. Of a group there is not: all null.
  StepView View(int group = 0) const;
  StepHostView HostView(int group = 0) const;  // of a group there is not: empty
  Result<LayerView> Layer(int layer) const;

  // Copies settled rows [first, first + count) of one layer to host memory, as stored: for checks.
  // Rows of whole blocks of a prefix hit may be read from the first Prepare on.
  // first: FirstRow(sequence, layer) or more
  // Blocks until the last step's work is done.
  //   k: [count, kv_heads, k_dim], v: [count, kv_heads, v_dim], of config().dtype; either may be
  //   null; of MLA layers v is not looked at
  // Errors: kInvalidArgument, kUnsupported (null backend), kCorruptData, kDeviceError.
  Status ReadRows(SequenceId sequence, int layer, std::int64_t first, std::int64_t count, void* k,
                  void* v);

  Stats GetStats() const;
  // Every block, list, table and index entry as text; equal for caches in equal states.
  std::string Snapshot() const;

 private:
  friend class Step;
  struct Impl;
  explicit KVCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lariat
