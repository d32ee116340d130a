// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/idle_blocks.h"
#include "blocks/planned_step.h"
#include "blocks/prefix_index.h"
#include "blocks/sequence.h"
#include "lariat/kv_cache.h"
#include "lariat/status.h"

namespace lariat::blocks {

// The caller's pins of a block. All of them together are one reference.
struct BlockPins {
  std::int32_t through = 0;  // of prefixes that it is part of
  std::int32_t ends = 0;     // of prefixes whose last block it is: what Unpin takes back
};

struct ManagerConfig {
  std::int64_t num_blocks = 0;
  bool unlimited = false;
  int block_size = 16;
  bool reuse = true;
  bool token_reuse = false;  // hits may end inside a block; with `reuse`
  EvictionPolicy eviction = EvictionPolicy::kLru;
  std::int64_t max_pinned_blocks = 0;
  int max_steps_in_flight = 2;
  int max_sequences = 256;
  std::int64_t max_tokens_per_sequence = 0;
  std::int64_t max_tokens_per_step = 0;
  int position_sections = 1;  // positions that a row has, 1 or 3
  bool track_writes = true;   // remember which blocks a step wrote, for Quarantine
};

// Decides which block holds which tokens: sequences, steps, reference counts, prefix reuse,
// eviction. Knows ids, never bytes: it moves nothing; a step lists the copies that storage makes.
// The rules are those of lariat/kv_cache.h, whose comments are not repeated here.
//
// Files: block_manager.cc (sequences), plan.cc (Plan, Undo, Prepare), settle.cc (Commit, Discard,
// the index), keep.cc (pins, removal), retain.cc (retention, quotas), inspect.cc (Snapshot,
// Quarantine).
// Cost: O(1) per running sequence and step; O(blocks) where a sequence starts, forks or ends.
// Threads: externally synchronised. Time, addresses and device events are never consulted.
class BlockManager {
 public:
  explicit BlockManager(const ManagerConfig& config);

  // rope_choice: bits that say which RoPE tables the sequence turns by; part of the prefix's key.
  PrefixMatch Match(std::span<const TokenId> prompt, const OpenOptions& options,
                    std::uint32_t rope_choice) const;
  Result<PrefixMatch> Match(SequenceId id);
  Result<SequenceId> Open(std::span<const TokenId> prompt, const OpenOptions& options,
                          std::uint32_t rope_choice);
  Status Close(SequenceId id);
  Status Truncate(SequenceId id, std::int64_t length);
  Result<SequenceId> Fork(SequenceId id, std::int64_t length);
  Status SetTokens(SequenceId id, std::span<const TokenId> tokens);
  Result<const Sequence*> Get(SequenceId id) const;  // not corrupt
  Result<std::int64_t> BlockHashes(SequenceId id, std::span<BlockHash> hashes) const;
  Status Clear();
  Status Pin(std::span<const TokenId> prompt, const OpenOptions& options,
             std::uint32_t rope_choice);
  Status Unpin(std::span<const TokenId> prompt, const OpenOptions& options,
               std::uint32_t rope_choice);
  Result<std::int64_t> Remove(std::span<const TokenId> prompt, const OpenOptions& options,
                              std::uint32_t rope_choice);
  Result<std::int64_t> RemoveSalt(std::string_view salt);
  Status Expire(std::int64_t now_ms);
  Status SetQuota(std::string_view salt, std::int64_t max_idle_blocks);

  // Whether a Plan may be made now: kNotReady with an unprepared one, or all steps in flight.
  Status CheckReady() const;
  // Fills `step`, a record of the caller's that stays where it is until the step has ended.
  Status Plan(std::span<const StepItem> items, const StepShape& shape, PlannedStep& step,
              PlanFailure* failure);
  void Undo(PlannedStep& step);
  // Host side of Prepare: the plan can no longer be undone.
  void Prepare(PlannedStep& step);
  // Checks a Commit; changes nothing.
  Status CheckCommit(const PlannedStep& step, std::span<const StepCommit> commits);
  // REQUIRES: CheckCommit said Ok.
  void Commit(PlannedStep& step, std::span<const StepCommit> commits);
  // Checks a Discard; changes nothing.
  Status CheckDiscard(const PlannedStep& step);
  void Discard(PlannedStep& step);

  // Takes what a faulty step wrote, and all below it, out of the index, and marks the sequences
  // that hold such a block. later: steps after it, oldest first, whose copies may have spread it.
  // O(blocks).
  void Quarantine(const PlannedStep& step, std::span<const PlannedStep* const> later);

  bool has_plan() const { return plan_ != nullptr; }
  int live_steps() const { return static_cast<int>(live_.size()); }
  Sequence& sequence(int entry) { return sequences_.at(entry); }
  void FillStats(Stats& stats) const;
  std::string Snapshot() const;

 private:
  Status CheckIdle() const;  // kNotReady while a plan is not prepared
  Result<Sequence*> FindUsable(SequenceId id);
  std::int64_t ReusableTokens(std::int64_t prompt_length) const;
  std::span<const TokenId> NextTokens(std::span<const TokenId> ids, std::size_t blocks,
                                      std::int64_t reusable) const;
  void ExtendMatch(Sequence& sequence);

  // keep.cc
  std::int32_t FindPath(std::span<const TokenId> prompt, const OpenOptions& options,
                        std::uint32_t rope_choice) const;
  std::int64_t Forget(BlockId top);
  std::int64_t ForgetRoot(RootId root);
  void DropPinsThrough(std::int32_t last, std::int32_t count);
  void DropPins(BlockId block);
  // Keeps what such sequences hold out of the index from now on. What matches have found so far is
  // looked for again: a block that leaves the index may come back as another one.
  template <class F>
  void KeepOut(F such) {
    for (const auto& sequence : sequences_.entries()) {
      sequence->match_path.clear();
      sequence->match_generations.clear();
      if (sequence->id == SequenceId::kNone || sequence->reach == 0 || !such(*sequence)) continue;
      sequence->indexable = false;
      sequence->indexed = 0;
    }
  }

  // retain.cc
  Status CheckRetention(std::span<const Retention> retention) const;
  void RetainNewBlocks(Sequence& sequence);
  void RetainBlock(const Sequence& sequence, BlockId block, std::int64_t first, std::int64_t last);
  std::vector<BlockId> BlocksOf(std::string_view salt) const;
  void MoveSalt(std::string_view salt, std::span<const BlockId> blocks, std::int32_t lane);
  // Frees what salts have beyond their quotas: at the end of each call that lets go of blocks.
  void EnforceQuotas();
  // Takes a block that is not idle any more out of the index, with all that was asked for it.
  void EraseCached(BlockId block) {
    index_.Erase(block);
    idle_.Leave(block);
  }

  // plan.cc
  Status CheckItems(std::span<const StepItem> items);
  Status Fill(std::span<const StepItem> items, const StepShape& shape, PlannedStep& step,
              PlanFailure* failure);
  void Claim(BlockId block, PlannedStep& step);
  void ClaimHit(Sequence& sequence, PlannedStep& step, PlannedItem& item, bool copy_idle);
  void AddPositions(const StepItem& item, std::int64_t count, PlannedStep& step) const;
  Status AddRows(const StepItem& item, PlannedStep& step);
  Status ApplyShape(const StepShape& shape, PlannedStep& step) const;
  void Unshare(PlannedStep& step);
  Status CheckRoom(const PlannedStep& step, PlanFailure* failure) const;
  void Reserve(PlannedStep& step);
  BlockId Take(PlannedStep& step);
  void UndoBlocks(PlannedStep& step);
  void EnsureCapacity(std::int64_t blocks);

  // settle.cc
  Status CheckEntry(const PlannedStep& step, const StepCommit& commit, int item) const;
  void ReserveCommit(const PlannedStep& step, std::span<const StepCommit> commits);
  void ReserveReleases(std::int64_t count);
  std::int64_t BlocksToIndex(const Sequence& sequence, std::int64_t settled,
                             std::int64_t known) const;
  static std::int64_t EndOf(const PlannedStep& step, std::size_t index, std::int64_t kept);
  void SettleItem(PlannedStep& step, std::size_t index, const StepCommit* commit);
  void SettleBlocks(PlannedStep& step, std::size_t index, std::int64_t end);
  void DiscardItem(PlannedStep& step, std::size_t index);
  void EndStep(PlannedStep& step, bool discarded);
  void Index(const Sequence& sequence, std::int32_t parent, std::span<const TokenId> tokens,
             BlockId block);
  void IndexFullBlocks(Sequence& sequence);
  void IndexNewBlocks(Sequence& sequence);
  void IndexTail(const Sequence& sequence);
  void ShrinkTable(Sequence& sequence, std::int64_t blocks, PlannedStep* only = nullptr);
  void Release(const Sequence& sequence, BlockId block);
  void ReleaseWith(PlannedStep& step, BlockId block, int sequence);
  PlannedStep* LastLiveStep(int entry);
  void DropReference(BlockId block);
  void DropSequence(Sequence& sequence);
  std::int64_t BlocksFor(std::int64_t tokens) const {
    return (tokens + config_.block_size - 1) / config_.block_size;
  }

  const ManagerConfig config_;
  BlockPool pool_;
  IdleBlocks idle_;
  PrefixIndex index_;
  SequenceTable sequences_;
  std::vector<BlockPins> pins_;     // by block
  std::int64_t pinned_ = 0;         // blocks
  PlannedStep* plan_ = nullptr;     // not prepared yet
  bool copy_idle_ = true;           // the plan that is made may copy from idle blocks
  std::vector<PlannedStep*> live_;  // prepared, oldest first
  std::uint64_t next_step_ = 1;
  std::uint64_t stamp_ = 0;

  std::int64_t evicted_ = 0;
  std::int64_t quota_evicted_ = 0;
  std::int64_t expired_ = 0;
  std::int64_t merged_ = 0;
  std::int64_t copied_ = 0;
  std::int64_t hit_tokens_ = 0;
  std::int64_t tokens_committed_ = 0;
};

}  // namespace lariat::blocks
