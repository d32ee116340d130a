// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks/block_treap.h"
#include "lariat/kv_cache.h"

namespace lariat::blocks {

// What was asked for each cached block: a priority, and for how long after its last use.
// Time is what it is told. Cost: O(1) per call, O(log blocks) for idle blocks with an end.
// Threads: externally synchronised.
class Retentions {
 public:
  void Grow(std::size_t blocks) {
    idle_.Grow(blocks);
    if (entries_.size() < blocks) entries_.resize(blocks);
  }

  std::int64_t now() const { return now_; }
  // REQUIRES: not before now().
  void Advance(std::int64_t now) { now_ = now; }

  int priority(BlockId block) const { return entries_[block].priority; }
  std::int64_t ttl(BlockId block) const { return entries_[block].ttl; }
  std::uint64_t end(BlockId block) const { return entries_[block].end; }
  // REQUIRES: the block is not idle.
  void Set(BlockId block, int priority, std::int64_t ttl) { entries_[block] = {0, ttl, priority}; }

  // The block became idle; it is not idle any more; that is undone.
  void Add(BlockId block) {
    Entry& entry = entries_[block];
    if (entry.ttl == 0) return;
    entry.end = static_cast<std::uint64_t>(now_) + static_cast<std::uint64_t>(entry.ttl);
    Restore(block);
  }
  void Remove(BlockId block) {
    if (entries_[block].ttl > 0) idle_.Erase(top_, block, Before{entries_});
  }
  void Restore(BlockId block) {
    if (entries_[block].ttl > 0) idle_.Insert(top_, block, Before{entries_});
  }

  // An idle block whose time has passed, or kNoBlock.
  BlockId Ended() const {
    const BlockId first = idle_.First(top_);
    const bool ended = first != kNoBlock && entries_[first].end <= static_cast<std::uint64_t>(now_);
    return ended ? first : kNoBlock;
  }

 private:
  struct Entry {
    std::uint64_t end = 0;  // while idle: when it falls to the default; > any time, never overflows
    std::int64_t ttl = 0;   // 0: for ever
    int priority = kDefaultPriority;
  };
  struct Before {
    const std::vector<Entry>& entries;
    bool operator()(BlockId a, BlockId b) const {
      return entries[a].end != entries[b].end ? entries[a].end < entries[b].end : a < b;
    }
  };

  std::vector<Entry> entries_;  // by block
  BlockTreap idle_;             // those with an end
  BlockId top_ = kNoBlock;
  std::int64_t now_ = 0;
};

}  // namespace lariat::blocks
