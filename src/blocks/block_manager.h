// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/event_log.h"
#include "blocks/host_pool.h"
#include "blocks/idle_blocks.h"
#include "blocks/manager_config.h"
#include "blocks/match_memo.h"
#include "blocks/planned_step.h"
#include "blocks/prefix_index.h"
#include "blocks/sequence.h"
#include "blocks/side_pages.h"
#include "blocks/transfer.h"
#include "lariat/kv_cache.h"
#include "lariat/status.h"

namespace lariat {
class TextBuilder;
}

namespace lariat::blocks {

// Decides which block holds which tokens: sequences, steps, reference counts, prefix reuse,
// eviction. Knows ids, never bytes: it moves nothing; a step lists the copies that storage makes.
// The rules are those of lariat/kv_cache.h, whose comments are not repeated here.
//
// Files: block_manager.cc (sequences), match.cc, plan.cc, plan_rows.cc and reserve.cc (Plan, Undo,
// Prepare), commit.cc, settle.cc (Discard, ends of steps), index_blocks.cc, sides.cc (groups
// besides the first one), keep.cc (pins, removal), retain.cc (retention, quotas), tier.cc,
// tier_suspend.cc, tier_transfer.cc (the host tier), quarantine.cc, inspect.cc (Snapshot).
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
  // Blocks of all groups that one sequence holds at most while rows [settled, end) of it are
  // computed, in steps of up to step_tokens rows (0: in one).
  std::int64_t BlocksOfAll(std::int64_t settled, std::int64_t end, std::int64_t step_tokens) const;
  std::int64_t MinLength(const Sequence& sequence) const;
  // The first token whose row in this group's layers was not given back.
  std::int64_t FirstRow(const Sequence& sequence, int group) const;
  Status Clear();
  Status Pin(std::span<const TokenId> prompt, const OpenOptions& options,
             std::uint32_t rope_choice);
  Status Unpin(std::span<const TokenId> prompt, const OpenOptions& options,
               std::uint32_t rope_choice);
  Result<std::int64_t> Remove(std::span<const TokenId> prompt, const OpenOptions& options,
                              std::uint32_t rope_choice);
  Result<std::int64_t> RemoveSalt(std::string_view salt);
  // Events of the index; see kv_event.h.
  std::int64_t DrainEvents(std::span<KVEvent> events) { return events_.Drain(events); }
  Result<std::int64_t> ListBlocks(std::int64_t& cursor, std::span<KVEvent> events) const;
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
  Status Commit(PlannedStep& step, std::span<const StepCommit> commits);
  // Checks a Discard; changes nothing.
  Status CheckDiscard(const PlannedStep& step);
  void Discard(PlannedStep& step);

  // Takes what a faulty step wrote, and all below it, out of the index, and marks the sequences
  // that hold such a block. later: steps after it, oldest first, whose copies may have spread it.
  // O(blocks).
  void Quarantine(const PlannedStep& step, std::span<const PlannedStep* const> later);

  // --- The host tier ---
  // Which block has a copy in which place of host memory, and which copies are to be made. Like a
  // step, a copy is decided here and run by the caller:
  //
  // Down (writes). Calls decide on writes for the tier's policy as they go. After each call below
  // or above that changes anything, the caller starts what pending_writes() lists, as one batch,
  // behind the last step that ended, and says WritesStarted(); where that fails it says
  // WritesFailed(), and the blocks have no copies. A place counts as a valid copy from then on, so
  // its block may be evicted before the batch is done: PlannedStep::fence and Transfer::fence name
  // the last batch that must have passed before a block is written or a place is read.
  //
  // Up (transfers). Fetch and Resume decide on a Transfer; the caller starts its copies, behind its
  // fence and the last step that ended, and says TransferStarted(), or, where that fails,
  // UndoTransfer(). Nothing else may be called in between.
  //
  // A start that fails may have run some of the copies. So what is undone is undone exactly, but
  // that blocks, or places, that the copies were to overwrite are not cached any more.
  //
  // A fault of a step (Quarantine) must be known before what it wrote is accepted: the caller looks
  // for those of the steps that have passed before it says Accept.
  bool has_tier() const { return config_.host_blocks > 0; }

  std::span<const TierCopy> pending_writes() const { return writes_; }
  // The number that the pending writes' batch has: they count up from 1.
  std::uint64_t next_batch() const { return next_batch_; }
  void WritesStarted();
  void WritesFailed();
  // A batch that was started did not do what it should: what it wrote is not valid. Blocks on the
  // device lose their copies, what is only in host memory is forgotten, suspended sequences that
  // need it are corrupt. O(places).
  void BatchFailed(std::uint64_t batch);

  // Chooses places for those blocks of a sequence that have no copy, and lists the copies as
  // pending writes; changes nothing else until FinishSuspend or UndoSuspend, one of which follows
  // at once. The copies are a batch of their own, which FinishSuspend closes. There may be none.
  Status BeginSuspend(SequenceId id);
  // Returns kNone where there was no copy to make.
  TransferId FinishSuspend();
  void UndoSuspend();

  // kNone: nothing is to be copied, and that is all.
  Result<TransferId> Fetch(SequenceId id);
  Result<TransferId> Resume(SequenceId id);
  // A transfer that was not accepted yet, or null. Stays where it is until it is accepted.
  const Transfer* FindTransfer(TransferId id) const;
  void TransferStarted(TransferId id);
  void UndoTransfer(TransferId id);
  // Whether Accept may be called, with any transfer there ever was. A Suspend counts as one.
  Status CheckAccept(TransferId id) const;
  // The oldest transfer that was not accepted; kNone: there is none.
  TransferId oldest_transfer() const;
  // Takes over the oldest transfer. Never fails.
  //   failed: its copies did not arrive
  // REQUIRES: CheckAccept said Ok; no write is pending, or it is started behind this.
  void Accept(TransferId id, bool failed);
  // As Get, of a sequence that is all on the device: else kNotReady.
  Result<const Sequence*> GetResident(SequenceId id) const;

  bool has_plan() const { return plan_ != nullptr; }
  int live_steps() const { return static_cast<int>(live_.size()); }
  // The live steps that name a sequence, without a plan that does.
  int PreparedSteps(const Sequence& sequence) const {
    const bool planned = plan_ != nullptr && sequence.last_step == plan_->id;
    return sequence.live_steps - (planned ? 1 : 0);
  }
  Sequence& sequence(int entry) { return sequences_.at(entry); }
  void FillStats(Stats& stats) const;
  std::string Snapshot() const;

 private:
  Status CheckIdle() const;  // kNotReady while a plan is not prepared
  Result<Sequence*> FindSound(SequenceId id);
  Result<Sequence*> FindUsable(SequenceId id);  // also neither suspended nor in transit
  Status CheckHere(const Sequence& sequence) const;

  // match.cc
  std::int64_t ReusableTokens(std::int64_t prompt_length) const;
  std::span<const TokenId> NextTokens(std::span<const TokenId> ids, std::size_t blocks,
                                      std::int64_t reusable) const;
  bool Stands(BlockId last, std::uint32_t generation) const;
  std::size_t Remembered(std::span<const TokenId> prompt, RootId root) const;
  void ExtendMatch(Sequence& sequence);
  void NoteGenerations(Sequence& sequence) const;
  // Tokens of the match that ExtendMatch found, of what can be used of it.
  std::int64_t MatchTokens(const Sequence& sequence) const {
    return sequence.match_blocks * config_.block_size + sequence.match_partial.tokens;
  }

  // keep.cc
  std::int32_t FindPath(std::span<const TokenId> prompt, const OpenOptions& options,
                        std::uint32_t rope_choice, bool on_host) const;
  NodeId FindAny(std::int32_t parent, std::span<const TokenId> tokens) const;
  std::int64_t Forget(NodeId top);
  std::int64_t ForgetRoot(RootId root);
  void DropCached(BlockId block);
  void DropPinsThrough(std::int32_t last, std::int32_t count);
  void DropPins(BlockId block);
  // Keeps what such sequences hold out of the index from now on. What matches have found so far is
  // looked for again: a block that leaves the index may come back as another one.
  template <class F>
  void KeepOut(F such) {
    memo_.Forget();
    for (const auto& sequence : sequences_.entries()) {
      sequence->match_blocks = 0;
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
  void MoveBlocks(std::span<const BlockId> blocks, std::int32_t lane);
  // Frees what salts have beyond their quotas: at the end of each call that lets go of blocks.
  void EnforceQuotas();
  // The node has got a block: that counts for the quota that the one above it counts for.
  void NoteCached(NodeId node) {
    const std::int32_t parent = index_.parent(node);
    idle_.Enter(index_.block(node),
                parent < 0 ? idle_.LaneOf(index_.salt(parent)) : idle_.lane(index_.block(parent)));
  }

  // plan.cc
  // So many sequences before a step comes to one it has it fetched.
  static constexpr std::size_t kFetchAhead = 16;
  Status Fill(std::span<const StepItem> items, const StepShape& shape, PlannedStep& step,
              PlanFailure* failure);
  void Unshare(PlannedStep& step);
  bool MayReturn(BlockId tail, std::size_t index, const PlannedStep& step) const;
  Status CheckRoom(const PlannedStep& step, PlanFailure* failure) const;
  void UndoAll(std::vector<UndoEntry>& undo);
  void UndoBlocks(PlannedStep& step);
  void UndoFill(PlannedStep& step);
  // The plan's rows join the sequence, and what undoes that.
  void Join(Sequence& sequence, const StepRows& rows, PlannedItem& item) const {
    sequence.planned = rows.start + item.certain;
    sequence.reach = rows.start + rows.count;
    item.previous_step = sequence.last_step;
    sequence.last_step = next_step_;
    ++sequence.live_steps;
  }
  void UndoJoin(const PlannedItem& item);

  // plan_rows.cc
  Status CheckPositions(const StepItem& item) const;
  Status CheckItem(const StepItem& item);
  bool AddPlain(const StepItem& item, PlannedStep& step);
  Status AddItems(std::span<const StepItem> items, PlannedStep& step);
  void Claim(BlockId block, std::vector<UndoEntry>& undo);
  void ClaimPath(std::span<const BlockId> path, std::vector<UndoEntry>& undo);
  // Of a block of tokens in all groups.
  std::int64_t GroupCount() const { return 1 + static_cast<std::int64_t>(sides_.count()); }
  void ClaimHit(Sequence& sequence, PlannedStep& step, PlannedItem& item, bool copy_idle);
  void AddPositions(const StepItem& item, std::int64_t count, PlannedStep& step) const;
  Status AddRows(const StepItem& item, PlannedStep& step);
  Status ApplyShape(const StepShape& shape, PlannedStep& step) const;

  // reserve.cc
  void Reserve(PlannedStep& step);
  void FetchToReserve(const PlannedStep& step, std::size_t n) const;
  void ReserveItem(PlannedStep& step, std::size_t index);
  BlockId Take(std::vector<UndoEntry>& undo, std::vector<BlockId>& victims);
  void EnsureCapacity(std::int64_t blocks);

  // commit.cc
  Status MatchCommits(PlannedStep& step, std::span<const StepCommit> commits);
  static Status CheckEntry(const PlannedStep& step, std::size_t index, const StepCommit& commit,
                           const Sequence& sequence);
  // The full blocks that would enter the index, or merge, with so many settled rows and known ids.
  std::int64_t BlocksToIndex(const Sequence& sequence, std::int64_t settled,
                             std::int64_t known) const {
    if (!config_.reuse || !sequence.indexable) return 0;
    return std::max<std::int64_t>(
        0, BlockAt(std::min<std::int64_t>(settled, known)) - sequence.indexed);
  }
  bool IsPlain(const PlannedStep& step, std::size_t index, const StepCommit& commit,
               const Sequence& sequence) const;
  Status SettlePlain(PlannedStep& step, std::span<const StepCommit> commits);
  void UndoSettle(PlannedStep& step);
  void SettleItem(PlannedStep& step, std::size_t index, const StepCommit* commit);
  void SettleBlocks(PlannedStep& step, std::size_t index, std::int64_t end);
  void FetchToSettle(const PlannedStep& step, std::size_t n) const;

  // settle.cc
  void ReserveReleases(std::int64_t count);
  void DiscardItem(PlannedStep& step, std::size_t index);
  bool LeaveItem(const PlannedStep& step, std::size_t index);
  void EndStep(PlannedStep& step, bool discarded, bool closed);
  void ShrinkTable(Sequence& sequence, std::int64_t blocks, PlannedStep* only = nullptr);
  void Release(const Sequence& sequence, BlockId block);
  void ReleaseWith(PlannedStep& step, BlockId block, int sequence);
  PlannedStep* LastLiveStep(int entry);
  void DropReference(BlockId block, bool late = false);
  void DropTable(Sequence& sequence);
  void DropSequence(Sequence& sequence);
  // The block that a token is in. A division would take longer than all else that a step does for
  // a sequence.
  std::int64_t BlockAt(std::int64_t token) const {
    return block_shift_ >= 0 ? token >> block_shift_ : token / config_.block_size;
  }
  std::int64_t BlocksFor(std::int64_t tokens) const {
    return BlockAt(tokens + config_.block_size - 1);
  }
  bool BeginsBlock(std::int64_t token) const {
    return block_shift_ >= 0 ? (token & (config_.block_size - 1)) == 0
                             : token % config_.block_size == 0;
  }

  // index_blocks.cc
  void IndexFullBlocks(Sequence& sequence);
  void IndexNewBlocks(Sequence& sequence);
  void IndexTail(Sequence& sequence);
  NodeId Index(std::int32_t parent, std::span<const TokenId> tokens, BlockId block);

  // sides.cc
  template <class Has>
  std::int64_t UsableBlocks(std::int64_t blocks, Has has) const;
  template <class Has>
  bool CanUse(std::int64_t blocks, std::int64_t tokens, Has has) const;
  std::int64_t UsableBlocks(std::span<const BlockId> path) const;
  bool CanUse(std::span<const BlockId> path, const NearestChild& partial) const;
  void FitMatch(Sequence& sequence) const;
  bool IsIdleSource(BlockId source) const;
  void ClaimSides(const Sequence& sequence, PlannedStep& step);
  void TakeHitSides(Sequence& sequence, std::int64_t hit) const;
  template <class SourceOf>
  void CopySides(PlannedStep& step, std::size_t item, int entry, SourceOf source_of);
  void CopyHitSides(PlannedStep& step, BlockId source, int entry);
  void CopyTailSides(PlannedStep& step, std::size_t item, std::size_t tail);
  std::span<SideCopy> SideCopiesOf(PlannedStep& step, std::size_t item) const;
  void TakeCopies(PlannedStep& step, std::size_t item, std::size_t tail);
  void UndoSides(PlannedStep& step, std::size_t index);
  void RestoreSources(PlannedStep& step, std::size_t item, bool claim);
  Status CheckLength(const Sequence& sequence, std::int64_t length) const;
  void SlideOut(Sequence& sequence);
  void AttachSides(Sequence& sequence, std::size_t n, BlockId owner);
  void AttachSide(BlockId owner, std::size_t side, BlockId page);
  std::int64_t DropSides(BlockId owner);
  bool HasSides(BlockId owner) const;
  template <class F>
  void ForEachInWindow(std::int32_t last, std::int64_t blocks, F f) const;
  std::int64_t Depth(std::int32_t node) const;
  std::int64_t SidesToPin(std::int32_t last) const;
  void PinSides(std::int32_t last);
  void UnpinSides(std::int32_t last, std::int32_t count);
  // The same of the places that a suspended one holds, those of sides first.
  template <class F>
  static void ForEachPlace(const Sequence& sequence, F f) {
    for (const SideTable& side : sequence.sides) {
      std::for_each(side.places.rbegin(), side.places.rend(), f);
    }
    std::for_each(sequence.places.rbegin(), sequence.places.rend(), f);
  }
  // Calls f for each block of all groups that the sequence holds, deepest first, those of a side
  // before that of the first group.
  template <class F>
  void ForEachHeld(const Sequence& sequence, F f) const {
    for (std::size_t n = sequence.table.size(); n-- > 0;) {
      for (const SideTable& side : sequence.sides) {
        if (side.table[n] != kNoBlock) f(side.table[n]);
      }
      f(sequence.table[n]);
    }
  }

  bool IsCached(BlockId block) const {
    return index_.contains(block) || sides_.owner(block) != kNoBlock;
  }
  // One more reference to a cached block, idle or not.
  void HoldCached(BlockId block) {
    if (pool_.state(block) == BlockState::kIdle) idle_.Remove(block);
    pool_.Claim(block);
  }
  // A cached block is idle now.
  void AddIdle(BlockId block) {
    idle_.Add(block, idle_.needs_parent() ? BlockAbove(block) : kNoBlock);
  }
  // The block above a cached one; negative: there is none.
  std::int32_t BlockAbove(BlockId block) const {
    if (const BlockId owner = sides_.owner(block); owner != kNoBlock) return owner;
    const std::int32_t parent = index_.parent(index_.node(block));
    return parent < 0 ? parent : index_.block(parent);
  }

  // inspect.cc, quarantine.cc
  void PrintNode(NodeId node, TextBuilder& out) const;
  void PrintTier(TextBuilder& out) const;
  void SpoilHolders(const std::vector<bool>& blocks, const std::vector<bool>& places);

  // tier.cc
  Status CheckTier() const;
  // The device's block of what a place is, or would be, the copy of; kNoBlock: it is not there.
  BlockId BlockOf(NodeId node, int side) const {
    const BlockId block = index_.block(node);
    if (side < 0 || block == kNoBlock) return block;
    return sides_.page(block, static_cast<std::size_t>(side));
  }
  HostId HostOf(NodeId node, int side) const {
    return side < 0 ? index_.host(node) : sides_.host(node, static_cast<std::size_t>(side));
  }
  void SetHost(NodeId node, int side, HostId host) {
    if (side < 0) return index_.SetHost(node, host);
    const auto s = static_cast<std::size_t>(side);
    const bool had = sides_.host(node, s) != kNoHost, has = host != kNoHost;
    sides_.SetHost(node, s, host);
    if (had != has) index_.NoteSide(node, s, Tier::kHost, has);
  }
  // Of a place with a node.
  HostPool::List ListOf(HostId host) const {
    const bool here = BlockOf(host_.node(host), host_.side(host)) != kNoBlock;
    return here ? HostPool::kOnDevice : HostPool::kAlone;
  }
  HostId TakePlace();
  void GivePlace(NodeId node, int side, HostId host);
  void DropPlace(NodeId node, int side);
  void DropPlaces(NodeId node);
  void Unhold(HostId host);
  void Evict(BlockId victim);
  bool Write(NodeId node, int side);
  void NoteIndexed(NodeId node);
  void NoteHits(const StepRows& rows, const Sequence& sequence);
  void KeepClean();
  void Spoil(HostId host);
  void NoteSpoiled();
  std::uint64_t FenceOf(const PlannedStep& step) const;
  std::int64_t HostTokens(std::int32_t parent, std::span<const TokenId> tokens, std::size_t blocks,
                          std::int64_t in_tail, std::vector<HostId>* path) const;
  std::int64_t HostTokens(const Sequence& sequence, std::vector<HostId>* path) const;
  // A prefix that is cached in one tier or the other.
  struct TierPath {
    std::vector<NodeId> nodes;
    std::int64_t tokens = 0;  // may end inside the last node
  };
  TierPath FindInTiers(std::span<const TokenId> prompt, RootId root) const;

  // tier_suspend.cc
  bool IsIndexed(const Sequence& sequence, std::size_t n, int side) const;
  HostId PlaceOf(const Sequence& sequence, std::size_t n, int side) const;
  template <class F>
  static void ForEachToSuspend(Sequence& sequence, F f);
  Status ChoosePlaces(Sequence& sequence);
  void Choose(HostId host);
  void TakeOver(HostId host);

  // tier_transfer.cc
  void AddBlock(BlockId block, HostId host, int side, Transfer& transfer);
  void AddPlace(HostId host, int side, Transfer& transfer);
  void AddCopy(HostId host, int side, Transfer& transfer);
  void AddTierPath(const TierPath& path, Transfer& transfer);
  bool AddToResume(std::span<const HostId> places, int side, Transfer& transfer);
  void AttachToSide(Transfer::Item& item, BlockId owner, std::size_t side);
  Result<TransferId> OpenTransfer();
  void Depart(Transfer& transfer);
  TransferId TransferOf(const Sequence& sequence) const;
  void Land(Transfer& transfer, bool failed);
  void Attach(Transfer::Item& item);
  void LetGo(Transfer& transfer);

  const ManagerConfig config_;
  const int block_shift_;  // log2 of a block size that is a power of two; else -1
  BlockPool pool_;
  IdleBlocks idle_;
  EventLog events_;
  PrefixIndex index_;
  SidePages sides_;
  SequenceTable sequences_;
  HostPool host_;
  std::vector<BlockPins> pins_;     // by block
  mutable MatchMemo memo_;          // of the last Match of a prompt
  std::int64_t pinned_ = 0;         // blocks
  PlannedStep* plan_ = nullptr;     // not prepared yet
  bool copy_idle_ = true;           // the plan that is made may copy from idle blocks
  std::vector<PlannedStep*> live_;  // prepared, oldest first
  std::uint64_t next_step_ = 1;
  std::uint64_t stamp_ = 0;

  // The host tier.
  std::vector<TierCopy> writes_;        // decided on, not started
  std::uint64_t next_batch_ = 1;        // theirs
  std::vector<std::uint64_t> read_by_;  // by block: the last batch that reads it
  std::deque<Transfer> transfers_;      // not accepted yet, oldest first
  std::uint64_t next_transfer_ = 1;
  Suspending suspending_;
  std::int64_t clean_ = 0;             // so many next victims had copies when it was looked last
  std::int64_t looked_at_ = 0;         // idle_.changes() then
  std::vector<BlockId> next_victims_;  // scratch
  std::int64_t offloaded_ = 0;
  std::int64_t onboarded_ = 0;
  std::int64_t host_evicted_ = 0;

  std::int64_t evicted_ = 0;
  std::int64_t quota_evicted_ = 0;
  std::int64_t expired_ = 0;
  std::int64_t merged_ = 0;
  std::int64_t copied_ = 0;
  std::int64_t hit_tokens_ = 0;
  std::int64_t tokens_committed_ = 0;
};

}  // namespace lariat::blocks
