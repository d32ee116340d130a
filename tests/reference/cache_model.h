// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lariat/kv_cache.h"

namespace lariat::reference {

// A model of KVCache's bookkeeping that is as naive as it can be: the index is a map from whole
// token prefixes, the LRU a list, an undone plan a restored copy. Slow, and meant to be right at a
// glance. It shares no code with the cache.
//
// A block has `refs` (sequences whose table names it: open ones, and closed ones until their last
// live step has ended) and `pins` (live steps that may still use it though no table names it: what
// was truncated or merged away under them, and what they copy from). It returns when both are zero:
// to the LRU's young end if it is indexed, else to the free ones.
//
// Physical block ids are the cache's choice: the model plans with placeholders (ids below -1), and
// Bind() replaces them with what the cache took, after checking that those blocks were there to
// take.
//
// A side is a group of layers besides the first one, with a window mostly. Its table has -1 where a
// block was given back. A cached text has a block of the first group, and of each side one or none.
struct ModelSide {
  bool chunked = false;
  std::int64_t window = 1;  // 0: none, it keeps all tokens
};

struct ModelConfig {
  std::int64_t block_size = 1;
  std::int64_t total_blocks = 0;
  int max_steps_in_flight = 1;
  int max_sequences = 1;
  std::int64_t max_tokens_per_sequence = 0;
  std::int64_t max_tokens_per_step = 0;
  bool reuse = true;
  bool tokens = false;  // hits may end inside a block
  std::int64_t max_pinned = 0;
  std::int64_t host_blocks = 0;  // 0: no host tier
  WritePolicy write = WritePolicy::kBack;
  int write_after_hits = 1;
  std::int64_t clean_blocks = 1;
  bool priorities = false;  // the lowest first, not only the least recently used
  std::vector<ModelSide> sides;
};

// The options a sequence's blocks are keyed by, as one string.
std::string OptionsKey(const OpenOptions& options);

struct ModelBlock {
  int refs = 0;
  int pins = 0;
  std::uint64_t reserved_by = 0;                     // the uncommitted step that took it
  std::optional<std::vector<TokenId>> index_tokens;  // where the index names it
  std::string index_options;
  int side = -1;            // whose block it is, where it is cached; -1: the first group's
  bool in_transit = false;  // taken by a transfer; that is one of its `pins`
  int priority = kDefaultPriority;
  std::int64_t ttl = 0;         // 0: for ever
  std::int64_t idle_since = 0;  // where idle
};

using IndexKey = std::pair<std::string, std::vector<TokenId>>;  // options, tokens from the start on

// A place of the host tier. Ids of places are the model's own.
struct ModelPlace {
  std::optional<IndexKey> key;  // of the text whose copy it is; none: of one sequence's alone
  int holds = 0;
  std::optional<int> incoming;  // the block that a transfer brings it to
};

struct ModelTransfer {
  struct Item {
    int block = 0;  // one of its `pins`
    std::optional<int> place;
    bool copied = false;
  };
  TransferId id = TransferId::kNone;
  SequenceId sequence = SequenceId::kNone;
  bool resumes = false;
  std::vector<Item> items;
};

struct ModelSequence {
  std::string options;
  std::vector<TokenId> prompt;
  std::vector<TokenId> ids;    // known ones, from the start on; at least the prompt's
  std::vector<TokenId> truth;  // what was really fed into the settled rows
  std::int64_t max_length = 0;
  std::int64_t settled = 0;
  std::int64_t base = 0;  // settled, or the hit of a first plan that is live
  bool planned = false;   // its first plan was made, and not taken back
  bool indexable = true;  // false once its rows outlived a Clear
  std::vector<Retention> retention;
  std::int64_t retained = 0;  // leading blocks that were given it
  std::vector<int> table;
  std::vector<std::vector<int>> sides;  // tables, each as long as `table`
  std::int64_t passed = 0;              // leading blocks whose texts were put into the index
  bool suspended = false;
  std::vector<int> places;                 // suspended: what it holds instead of the table
  TransferId transit = TransferId::kNone;  // that it waits for
  bool away() const { return suspended || transit != TransferId::kNone; }
};

struct ModelCopy {
  std::size_t index = 0;
  int source = 0, copy = 0;
  bool of_hit = false;                         // no table named the source
  bool was_idle = false;                       // the source, or one beside it, before the plan
  std::vector<int> side_sources, side_copies;  // by side; -1: nothing to copy
  std::vector<int> sources() const {           // those of the sides first
    std::vector<int> all;
    for (const int block : side_sources) {
      if (block != -1) all.push_back(block);
    }
    all.push_back(source);
    return all;
  }
};

struct ModelEntry {
  SequenceId sequence = SequenceId::kNone;
  std::int64_t first_row = 0, start = 0, count = 0, drafts = 0, hit = 0;
  std::int64_t left = 0;  // rows that Truncate did not drop
  bool first_plan = false;
  std::vector<std::vector<int>> named;  // the table of each group as planned
  std::optional<ModelCopy> copied;
  std::int64_t need = 0;
};

struct ModelStep {
  std::uint64_t number = 0;
  std::vector<ModelEntry> entries;
  std::vector<int> victims;
  std::vector<int> fresh;                            // placeholders, until bound
  std::vector<std::pair<int, SequenceId>> releases;  // blocks it pins, for whom
};

struct ModelPlan {
  std::set<Code> codes;   // what Plan may answer
  PlanFailure failure;    // where that is a lack of blocks
  bool copy_idle = true;  // hits may be copied from idle blocks: there is room to keep those
};

// A cached prefix of a prompt: whole blocks, and the block whose first tokens come next.
struct ModelHit {
  std::vector<int> blocks;
  std::optional<int> source;
  std::int64_t tokens = 0;
};

class CacheModel {
 public:
  explicit CacheModel(const ModelConfig& config);

  PrefixMatch Match(std::span<const TokenId> prompt, const std::string& options) const;
  void Open(SequenceId id, std::span<const TokenId> prompt, const std::string& options,
            std::int64_t max_length, std::span<const Retention> retention = {});

  // What Plan may answer. Where kOk is among it, PlanStep may follow.
  ModelPlan CheckPlan(std::span<const StepItem> items, const StepShape& shape) const;
  void PlanStep(std::span<const StepItem> items, bool copy_idle);
  void DropPlan();
  // Takes the plan; `table_of` tells the cache's table of a sequence. Returns what is wrong with
  // the blocks that the cache took, or "".
  template <class TableOf>
  std::string Prepare(TableOf table_of) {
    std::map<int, int> real;
    for (const ModelEntry& entry : plan_->entries) {
      for (std::size_t group = 0; group < entry.named.size(); ++group) {
        const std::vector<int>& named = entry.named[group];
        const std::vector<int> got = table_of(entry.sequence, static_cast<int>(group));
        if (got.size() != named.size()) return "table of another length";
        for (std::size_t i = 0; i < got.size(); ++i) {
          if (named[i] < -1) {
            real[named[i]] = got[i];
          } else if (named[i] != got[i]) {
            return "block " + std::to_string(got[i]) + " where " + std::to_string(named[i]) +
                   " is held";
          }
        }
      }
    }
    return Bind(real);
  }

  // kept and given, by sequence; sequences that are not named keep all and give no ids.
  struct Keep {
    std::int64_t kept = 0;
    std::vector<TokenId> truth;  // ids fed into the kept rows past the prompt
    std::size_t given = 0;       // how many of them the cache is told
  };
  void Commit(std::size_t step, const std::map<SequenceId, Keep>& keeps);
  void Discard(std::size_t step);
  // Whether a later live step has rows of an open (or: of any) sequence of this one.
  bool SharesLater(std::size_t step, bool open_only) const;

  void Close(SequenceId id);
  void Truncate(SequenceId id, std::int64_t length);
  void Fork(SequenceId parent, SequenceId child, std::int64_t length);
  void SetTokens(SequenceId id, std::span<const TokenId> tokens);
  void Clear();
  // What Pin and Unpin may answer, and, where that is kOk, what they do.
  Code Pin(std::span<const TokenId> prompt, const std::string& options);
  Code Unpin(std::span<const TokenId> prompt, const std::string& options);
  // Forgets all texts that begin with `prompt`, of all options that `such` says. Returns how many.
  std::int64_t Remove(std::span<const TokenId> prompt,
                      const std::function<bool(const std::string&)>& such);
  std::int64_t kept() const;  // blocks
  void Expire(std::int64_t now);
  void SetQuota(const std::string& salt, std::int64_t limit);
  std::int64_t now() const { return now_; }

  // What Suspend, Fetch and Resume may answer; where that is kOk, how many copies they make.
  struct Move {
    Code code = Code::kOk;
    std::int64_t copies = 0;
    bool waits = false;  // it is a transfer, with copies or without
  };
  Move Suspend(SequenceId id);
  // transfer_of: given what the model expects, tells the transfer's id and the block of each item,
  // as the cache has them. They change nothing where the code is not kOk.
  template <class TransferOf>
  std::string Fetch(SequenceId id, TransferOf transfer_of) {
    return Start(Decide(id, /*resumes=*/false), transfer_of);
  }
  template <class TransferOf>
  std::string Resume(SequenceId id, TransferOf transfer_of) {
    return Start(Decide(id, /*resumes=*/true), transfer_of);
  }
  Move CheckMove(SequenceId id, bool resumes) const;
  void Accept(TransferId id);
  const std::list<ModelTransfer>& transfers() const { return transfers_; }
  std::uint64_t next_transfer() const { return next_transfer_; }

  std::int64_t Planned(const ModelSequence& sequence, SequenceId id) const;  // certain rows
  std::int64_t Length(const ModelSequence& sequence, SequenceId id) const;   // drafts too
  std::int64_t MinLength(const ModelSequence& sequence) const;
  bool InLiveStep(SequenceId id) const;
  bool DraftsPending(SequenceId id) const;
  // Rows of the entry past the prompt if `kept` of them stay.
  std::int64_t KeptPastPrompt(const ModelEntry& entry, std::int64_t kept) const;

  // What differs from the cache's figures, or "".
  std::string CompareStats(const Stats& stats) const;

  // What is cached: blocks of texts on the device, of the first group and beside it of sides, and
  // places of texts in the host tier.
  const std::map<IndexKey, int>& index() const { return index_; }
  const std::map<std::pair<IndexKey, std::size_t>, int>& pages() const { return pages_; }
  const std::map<IndexKey, int>& copies() const { return copies_; }
  const ModelConfig& config() const { return config_; }
  const std::map<SequenceId, ModelSequence>& sequences() const { return sequences_; }
  const std::vector<ModelStep>& steps() const { return steps_; }
  const std::optional<ModelStep>& plan() const { return plan_; }

 private:
  std::vector<int> Indexed(std::span<const TokenId> tokens, const std::string& options) const;
  ModelHit Hit(std::span<const TokenId> prompt, const std::string& options) const;
  bool Idle(int block) const { return std::find(lru_.begin(), lru_.end(), block) != lru_.end(); }
  std::set<Code> CheckItems(std::span<const StepItem> items, const StepShape& shape) const;
  ModelPlan TryPlan(std::span<const StepItem> items, bool copy_idle) const;
  void Retain(const ModelSequence& sequence, int block, std::int64_t first, std::int64_t last);
  void RetainBlocks(ModelSequence& sequence);
  void PublishBlocks(SequenceId id, ModelSequence& sequence);
  void PublishTail(SequenceId id, ModelSequence& sequence);
  bool Keeps(int block) const;
  void Unkeep(const IndexKey& kept);
  std::vector<TokenId> WholeBlocks(std::span<const TokenId> tokens) const;
  bool HasIndexedChild(int block, const std::set<int>& gone) const;
  // The next victims of those that `such` says.
  std::vector<int> Victims(
      std::int64_t count, const std::function<bool(int)>& such = [](int) { return true; }) const;
  void EnforceQuotas();
  std::int64_t OpenHolders(int block) const;
  bool MayReturn(int block, const ModelEntry& entry, const ModelStep& planned) const;
  void Hold(int block);
  void Drop(int block);
  void Unpin(int block);
  void MaybeReturn(int block);
  void Forget(int block);
  static void ForgetIds(ModelSequence& sequence, std::int64_t length);
  void Release(SequenceId id, int block);
  void TrimTable(SequenceId id, ModelSequence& sequence, std::int64_t tokens);
  void Publish(SequenceId id, ModelSequence& sequence);
  std::string Bind(const std::map<int, int>& real);
  void PinSources(const ModelCopy& copy, SequenceId id, ModelStep& step);
  void EndReleases(const ModelStep& step, bool discarded);
  ModelStep* LastStepOf(SequenceId id);
  void EndOfClosed(SequenceId id);
  std::int64_t BlocksFor(std::int64_t tokens) const;
  void NotePeak();
  void LeaveLru(int block);

  // cache_model_sides.cc
  std::int64_t FirstRead(const ModelSide& side, std::int64_t row) const;
  int Beside(int block, std::size_t side) const;
  bool HasWindows(const std::vector<int>& path, std::int64_t length) const;
  void CutToWindows(ModelHit& hit) const;
  void FitToWindows(ModelHit& hit) const;
  bool IdleSource(int source) const;
  void HoldWindows(ModelSequence& sequence, const ModelHit& hit);
  std::int64_t BlocksOfAll(std::int64_t start, std::int64_t end) const;
  void AttachSides(SequenceId id, ModelSequence& sequence, std::size_t n, const IndexKey& key);
  void SlideOut(ModelSequence& sequence);
  std::vector<int> PinnedPath(const IndexKey& kept) const;
  std::int64_t ForgetSides(const IndexKey& key);

  // cache_model_tier.cc
  IndexKey KeyOf(const ModelSequence& sequence, std::size_t blocks) const;
  bool OnDevice(const ModelPlace& place) const;
  std::vector<IndexKey> HostPath(const ModelSequence& sequence) const;
  std::int64_t HostTokens(std::span<const TokenId> prompt, const std::string& options) const;
  std::optional<int> FirstCached(bool on_device) const;
  void Evict(int block);
  void IsCached(const IndexKey& key);
  void CountHits(const ModelEntry& entry);
  bool Write(const IndexKey& key);
  void KeepClean();
  void ForgetCopies(const IndexKey& top);
  void DropCopy(const IndexKey& key);
  void HoldPlace(int place);
  void UnholdPlace(int place);
  void ToNewest(int place);
  ModelTransfer Decide(SequenceId id, bool resumes) const;
  std::string Begin(ModelTransfer transfer);
  void Land(ModelTransfer transfer);
  void Attach(ModelTransfer::Item& item);
  template <class TransferOf>
  std::string Start(ModelTransfer transfer, TransferOf transfer_of) {
    const std::vector<int> blocks = transfer_of(transfer);
    if (blocks.size() != transfer.items.size()) return "a transfer of another length";
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ModelTransfer::Item& item = transfer.items[i];
      if (item.copied) item.block = blocks[i];
      if (item.block != blocks[i]) return "a transfer of other blocks";
    }
    return Begin(std::move(transfer));
  }

  ModelConfig config_;
  std::map<SequenceId, ModelSequence> sequences_;  // open ones
  std::map<SequenceId, ModelSequence> closed_;     // those that are still in a live step
  std::map<int, ModelBlock> blocks_;               // all but free ones
  std::set<int> free_;
  std::int64_t free_taken_ = 0;  // of free_, by the plan that is not bound yet
  std::list<int> lru_;           // oldest first
  std::map<IndexKey, int> index_;
  std::map<std::pair<IndexKey, std::size_t>, int> pages_;  // of a text and a side
  // Prefixes pinned by the caller, each once per Pin. A block of one or more has one of its `pins`.
  std::multiset<IndexKey> kept_;
  std::int64_t now_ = 0;
  std::map<std::string, std::int64_t> quotas_;  // of salts
  std::vector<ModelStep> steps_;                // live ones, in plan order
  std::optional<ModelStep> plan_;
  std::shared_ptr<const CacheModel> before_plan_;
  std::uint64_t next_step_ = 1;
  int next_placeholder_ = -2;

  std::map<int, ModelPlace> places_;    // all but free ones
  std::map<IndexKey, int> copies_;      // place of a text
  std::list<int> host_lru_;             // places that nobody holds
  std::map<IndexKey, int> hits_;        // of a text, since it is cached anywhere
  std::list<ModelTransfer> transfers_;  // not accepted, oldest first
  std::uint64_t next_transfer_ = 1;
  int next_place_ = 0;
  // The next clean_ victims had copies when there had been looked_at_ changes: blocks that were no
  // victims any more and, with priorities, blocks that came among them or fell.
  std::int64_t clean_ = 0, looked_at_ = 0, changes_ = 0;
  std::int64_t offloaded_ = 0, onboarded_ = 0, host_evicted_ = 0;

  std::int64_t peak_low_ = 0, peak_high_ = 0;  // without and with plans that were dropped
  std::int64_t evicted_ = 0, merged_ = 0, copied_ = 0, hit_tokens_ = 0, committed_ = 0;
  std::int64_t quota_evicted_ = 0, expired_ = 0;
};

}  // namespace lariat::reference
