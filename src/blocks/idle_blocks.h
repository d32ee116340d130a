// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/evictor.h"
#include "blocks/retentions.h"
#include "lariat/cache_config.h"

namespace lariat::blocks {

// The idle blocks (cached, held by nobody): which of them goes next, by the policy, of all or of a
// salt that has a quota; and what was asked for cached blocks, idle or not.
//
// A quota is a lane: the idle blocks of its salt stand in a second Evictor of the same policy.
// Nothing but Grow and SetQuota allocates. Threads: externally synchronised.
class IdleBlocks {
 public:
  static constexpr std::int32_t kNoLane = -1;

  explicit IdleBlocks(EvictionPolicy policy);

  // Makes room for block ids below `blocks`.
  void Grow(std::size_t blocks);

  // Whether Add looks at the parent: to find it takes time.
  bool needs_parent() const { return retains_; }

  // See Evictor. More than one order is only kept where there is a use for it.
  void Add(BlockId block, std::int32_t parent) {
    order_->Add(block, parent, 0);
    if (more_) AddMore(block, parent);
  }
  void Remove(BlockId block) {
    order_->Remove(block, 0);
    ++changes_;
    if (more_) RemoveMore(block);
  }
  // The same of all of a path: Add from its last block on, Remove from its first one on.
  // REQUIRES: !needs_parent(), to add
  void AddPath(std::span<const BlockId> path) {
    order_->AddPath(path, 0);
    for (std::size_t i = more_ ? path.size() : 0; i-- > 0;) AddMore(path[i], kNoBlock);
  }
  void RemovePath(std::span<const BlockId> path) {
    order_->RemovePath(path, 0);
    changes_ += static_cast<std::int64_t>(path.size());
    for (std::size_t i = 0; more_ && i < path.size(); ++i) RemoveMore(path[i]);
  }
  void Restore(BlockId block) {
    order_->Restore(block, 0);
    --changes_;
    if (more_) RestoreMore(block);
  }
  BlockId Victim() const { return order_->Victim(0); }
  void NextVictims(std::size_t count, std::vector<BlockId>& out) {
    order_->NextVictims(0, count, out);
  }
  void ByAge(std::vector<BlockId>& out) const { order_->ByAge(0, out); }
  // Blocks that were removed so far and not restored and, where newer ones may go before older
  // ones, those that came: so many of the next victims, at the most, may be others than they were.
  std::int64_t changes() const { return changes_; }

  // A block that is not idle enters the index, as one of this lane, and leaves it.
  void Enter(BlockId block, std::int32_t lane) {
    if (lanes_) lane_of_[block] = lane;
  }
  void Leave(BlockId block) {
    if (more_) LeaveMore(block);
  }

  // --- Retention: where the policy is one of priorities ---
  bool retains() const { return retains_; }
  std::int64_t now() const { return retentions_.now(); }
  // REQUIRES: the block is cached and not idle.
  void Retain(BlockId block, int priority, std::int64_t ttl_ms);
  // Moves the clock; returns how many idle blocks fall to the default.
  // REQUIRES: not before now().
  std::int64_t Advance(std::int64_t now_ms);

  // --- Quotas ---
  struct Quota {
    std::int64_t limit = 0;
    std::int64_t idle = 0;
    bool over = false;      // listed in over_
    std::string_view salt;  // a key of quotas()
  };
  using QuotaMap = std::map<std::string, std::int32_t, std::less<>>;  // salt -> lane
  const QuotaMap& quotas() const { return salts_; }
  const Quota& quota(std::int32_t lane) const { return quotas_[static_cast<std::size_t>(lane)]; }
  // The lane of a salt; kNoLane: it has no quota.
  std::int32_t LaneOf(std::string_view salt) const;
  // A new lane with no block in it. Throws before anything changes.
  std::int32_t AddQuota(std::string_view salt, std::int64_t limit);
  void ChangeQuota(std::int32_t lane, std::int64_t limit);
  // REQUIRES: no block is in the lane.
  void DropQuota(std::string_view salt);
  std::int32_t lane(BlockId block) const { return lanes_ ? lane_of_[block] : kNoLane; }
  // Moves a cached block to another lane; idle: as the most recently used one there.
  void Move(BlockId block, std::int32_t parent, bool idle, std::int32_t lane);
  // The next victim of a salt that has more idle blocks than its quota, or kNoBlock. Of several
  // salts the first one in order.
  BlockId OverQuota();

  // What sets the block apart from others, for a snapshot: "" where nothing does.
  std::string Describe(BlockId block) const;

 private:
  void AddMore(BlockId block, std::int32_t parent);
  void RemoveMore(BlockId block);
  void RestoreMore(BlockId block);
  void LeaveMore(BlockId block);
  void SetPriority(BlockId block, int priority);
  void Count(std::int32_t lane);

  const EvictionPolicy policy_;
  const bool retains_;
  bool more_;  // there is more to keep than order_
  std::size_t blocks_ = 0;
  std::unique_ptr<Evictor> order_;  // of all
  std::int64_t changes_ = 0;
  Retentions retentions_;

  std::unique_ptr<Evictor> lanes_;     // from the first quota on
  std::vector<std::int32_t> lane_of_;  // by block
  std::vector<Quota> quotas_;          // by lane
  std::vector<std::int32_t> free_lanes_;
  std::vector<std::int32_t> over_;  // lanes with more than their limit, first salt last; has room
  QuotaMap salts_;
};

}  // namespace lariat::blocks
