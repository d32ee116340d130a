// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/cache_config.h"
#include "lariat/cache_views.h"
#include "lariat/device.h"
#include "lariat/layer_inputs.h"
#include "lariat/ops.h"
#include "lariat/rope.h"
#include "lariat/status.h"
#include "lariat/step.h"
#include "lariat/types.h"

namespace lariat {

struct BlockHash;  // lariat/block_hash.h
struct KVEvent;    // lariat/kv_event.h

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
