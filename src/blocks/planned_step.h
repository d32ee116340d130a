// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "blocks/block_pool.h"
#include "lariat/kv_cache.h"

namespace lariat::blocks {

// A block at one time of its life.
struct BlockStamp {
  BlockId block = kNoBlock;
  std::uint32_t generation = 0;
};

struct CowCopy {
  BlockStamp source;
  BlockStamp target;
};

// The copy of a side's block that goes with an item's copy-on-write.
struct SideCopy {
  std::int32_t item = 0;
  std::int32_t side = 0;
  BlockId source = kNoBlock;  // kNoBlock: nothing in it is read any more, so nothing is copied
  BlockId target = kNoBlock;
};

// What a step did to one of its sequences, beyond the public StepRows. One cache line: a step of
// many sequences goes through its items several times. Lengths fit 32 bits, as CacheConfig's limits
// do.
struct alignas(64) PlannedItem {
  int sequence = -1;  // entry in the SequenceTable
  bool first_plan = false;
  bool moved = false;           // positions other than the index, and no key that says so
  bool ends_block : 1 = false;  // the last row is the last one of a block
  bool tail_held : 1 = false;   // the block that the first row is in holds settled rows; no copy
  bool plain : 1 = false;       // see BlockManager::AddPlain
  std::int32_t certain = 0;     // leading rows that Commit must keep
  std::int32_t limit = 0;       // rows at or past this index of the sequence were truncated
  std::int64_t position_offset = -1;  // into PlannedStep::positions; -1: none given
  std::uint64_t previous_step = 0;    // Sequence::last_step before this plan
  std::int32_t first_new_block = 0;   // table index of the first block taken for these rows
  std::int32_t new_blocks = 0;
  std::int32_t first_taken = 0;   // where PlannedStep::undo lists them
  std::int32_t old_planned = 0;   // of the sequence, before this plan
  BlockId tail_block = kNoBlock;  // the block, partly filled before, that the first row is in
  BlockId cow_source = kNoBlock;
  BlockId cow_target = kNoBlock;
  // Of the Commit that runs, where it is not in_order: its entry for this item; -1: none.
  std::int32_t commit = -1;
};
static_assert(sizeof(PlannedItem) == 64);

enum class StepPhase : std::uint8_t {
  kUnused,
  kPlanned,   // can be undone exactly
  kPrepared,  // live on the device
  kEnded,     // committed or discarded; its device work may still run
};

// One change that a plan made to blocks, kept so that dropping the plan undoes it.
struct UndoEntry {
  enum Kind : std::uint8_t { kClaim, kClaimIdle, kPin, kTakeFree, kTakeIdle } kind;
  BlockId block;
};

// A pinned reference that was its sequence's and is dropped when the step ends.
struct StepRelease {
  BlockId block = kNoBlock;
  int sequence = -1;  // entry; -1: the step itself took the block, and no other one knows it
};

// One step from Plan until its device work has passed. Its vectors keep their memory.
struct PlannedStep {
  std::uint64_t id = 0;
  StepPhase phase = StepPhase::kUnused;
  bool abandoned = false;  // its handle is gone: discard it as soon as that is legal
  std::int64_t num_tokens = 0;
  std::int64_t padded_tokens = 0;
  int padded_sequences = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t needed = 0;  // blocks that it takes
  // Its stream must be behind this batch of writes to the host tier, which reads, or one before it
  // does, a block that the step writes to. 0: none. Known once it is planned.
  std::uint64_t fence = 0;
  // Set by who runs the copies, before: from then on the targets hold what they held no more, even
  // where Prepare fails.
  bool copied = false;
  bool in_order = false;       // the Commit that runs has one entry for each item, in their order
  bool tails_unknown = false;  // of some item it has to be seen whether its tail is its own
  std::vector<StepRows> rows;
  std::vector<PlannedItem> items;  // parallel to rows
  // Those that take more than a step's first pass over them: of the plan until it is prepared, then
  // of the Commit that runs. Indices of items, in their order.
  std::vector<std::int32_t> others;
  std::vector<std::int32_t> positions;
  std::vector<BlockId> victims;  // erased from the index at Prepare
  std::vector<CowCopy> copies;   // to run at Prepare
  std::vector<UndoEntry> undo;
  std::vector<StepRelease> releases;  // in this order, when the step ends
  std::vector<BlockStamp> written;    // blocks that hold its rows, known at Commit
  // Of the groups besides the first one.
  std::vector<SideCopy> side_copies;  // by item, then by side
  std::vector<BlockId> side_tails;    // [items, sides]: as PlannedItem::tail_block

  // Where the first `kept` rows of an item end.
  std::int64_t EndOf(std::size_t index, std::int64_t kept) const {
    return std::min<std::int64_t>(rows[index].start + kept, items[index].limit);
  }
  // Of the Commit that runs, once it is matched: the item's entry, or null.
  const StepCommit* EntryOf(std::size_t index, std::span<const StepCommit> commits) const {
    if (in_order) return &commits[index];
    const std::int32_t commit = items[index].commit;
    return commit < 0 ? nullptr : &commits[static_cast<std::size_t>(commit)];
  }
  // Takes over the long lists of a step that has ended, which are still in the processor's caches:
  // nobody needs them any more.
  void TakeLists(PlannedStep& ended) {
    rows.swap(ended.rows);
    items.swap(ended.items);
    others.swap(ended.others);
    undo.swap(ended.undo);
  }
};

}  // namespace lariat::blocks
