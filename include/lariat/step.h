// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lariat/ops.h"
#include "lariat/types.h"

// What goes into a cache's sequences and steps, and what comes out of them; KVCache is in
// lariat/kv_cache.h.

namespace lariat {

class KVCache;

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

}  // namespace lariat
