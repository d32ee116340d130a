// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/planned_step.h"
#include "lariat/types.h"

namespace lariat::blocks {

// A place in the host tier, of one block's size.
using HostId = std::int32_t;
inline constexpr HostId kNoHost = -1;

// One block to copy between its device block and its place in the host tier.
struct TierCopy {
  BlockId block = kNoBlock;
  HostId host = kNoHost;
};

// A Fetch or Resume from its start until it is accepted.
struct Transfer {
  TransferId id = TransferId::kNone;
  SequenceId sequence = SequenceId::kNone;  // that waits for it; may be closed by now
  std::vector<TierCopy> copies;             // host to device
  // The copies must come behind this batch of writes: it, or one before it, writes a place that is
  // read here, or reads a block that is written here. 0: none.
  std::uint64_t fence = 0;

  // --- The block manager's own ---
  // What the transfer holds, from the root on: the blocks of a path, or of a sequence; those of the
  // first group first.
  struct Item {
    BlockId block = kNoBlock;   // one reference
    HostId host = kNoHost;      // one hold; kNoHost: the block was on the device
    HostId previous = kNoHost;  // the place before it when it was held, to undo that
    bool copied = false;        // by this transfer; else by an earlier one, or not at all
    int side = -1;              // of what group the block is; -1: of the first one
  };
  std::vector<Item> items;
  bool resumes = false;
  bool started = false;  // its copies are on their way: it cannot be undone any more
  bool bad = false;      // holds rows with a device fault
  std::vector<UndoEntry> undo;
  std::vector<BlockId> victims;  // evicted when it starts
};

}  // namespace lariat::blocks
