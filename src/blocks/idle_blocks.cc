// SPDX-License-Identifier: Apache-2.0
#include "blocks/idle_blocks.h"

#include <algorithm>

#include "base/text.h"
#include "blocks/lru_evictor.h"
#include "blocks/priority_evictor.h"

namespace lariat::blocks {

namespace {

std::unique_ptr<Evictor> MakeEvictor(EvictionPolicy policy) {
  if (policy == EvictionPolicy::kPriority) return std::make_unique<PriorityEvictor>();
  return std::make_unique<LruEvictor>();
}

}  // namespace

IdleBlocks::IdleBlocks(EvictionPolicy policy)
    : policy_(policy),
      retains_(policy == EvictionPolicy::kPriority),
      more_(retains_),
      order_(MakeEvictor(policy)) {
  order_->Grow(0, 1);
}

void IdleBlocks::Grow(std::size_t blocks) {
  order_->Grow(blocks, 1);
  if (retains_) retentions_.Grow(blocks);
  if (lanes_) {
    lanes_->Grow(blocks, quotas_.size());
    if (lane_of_.size() < blocks) lane_of_.resize(blocks, kNoLane);
  }
  blocks_ = std::max(blocks_, blocks);
}

void IdleBlocks::Count(std::int32_t lane) {
  Quota& quota = quotas_[static_cast<std::size_t>(lane)];
  if (quota.idle <= quota.limit || quota.over) return;
  quota.over = true;
  const auto after = [&](std::int32_t other, std::string_view salt) {
    return quotas_[static_cast<std::size_t>(other)].salt > salt;
  };
  over_.insert(std::lower_bound(over_.begin(), over_.end(), quota.salt, after), lane);
}

void IdleBlocks::AddMore(BlockId block, std::int32_t parent) {
  if (retains_) {
    retentions_.Add(block);
    ++changes_;
  }
  const std::int32_t at = lane(block);
  if (at == kNoLane) return;
  lanes_->Add(block, parent, static_cast<std::size_t>(at));
  ++quotas_[static_cast<std::size_t>(at)].idle;
  Count(at);
}

void IdleBlocks::RemoveMore(BlockId block) {
  if (retains_) retentions_.Remove(block);
  const std::int32_t at = lane(block);
  if (at == kNoLane) return;
  lanes_->Remove(block, static_cast<std::size_t>(at));
  --quotas_[static_cast<std::size_t>(at)].idle;
}

void IdleBlocks::RestoreMore(BlockId block) {
  if (retains_) retentions_.Restore(block);
  const std::int32_t at = lane(block);
  if (at == kNoLane) return;
  lanes_->Restore(block, static_cast<std::size_t>(at));
  ++quotas_[static_cast<std::size_t>(at)].idle;
}

void IdleBlocks::LeaveMore(BlockId block) {
  if (retains_) Retain(block, kDefaultPriority, 0);
  if (lanes_) lane_of_[block] = kNoLane;
}

// --- Retention --------------------------------------------------------------------------------

void IdleBlocks::SetPriority(BlockId block, int priority) {
  order_->SetPriority(block, priority);
  if (lanes_) lanes_->SetPriority(block, priority);
}

void IdleBlocks::Retain(BlockId block, int priority, std::int64_t ttl_ms) {
  retentions_.Set(block, priority, ttl_ms);
  SetPriority(block, priority);
}

std::int64_t IdleBlocks::Advance(std::int64_t now_ms) {
  retentions_.Advance(now_ms);
  std::int64_t count = 0;
  for (BlockId block; (block = retentions_.Ended()) != kNoBlock; ++count) {
    // Taken out and put back at the same age, with another priority.
    Remove(block);
    Retain(block, kDefaultPriority, 0);
    Restore(block);
    ++changes_;
  }
  return count;
}

// --- Quotas -----------------------------------------------------------------------------------

std::int32_t IdleBlocks::LaneOf(std::string_view salt) const {
  if (salts_.empty()) return kNoLane;
  const auto found = salts_.find(salt);
  return found == salts_.end() ? kNoLane : found->second;
}

std::int32_t IdleBlocks::AddQuota(std::string_view salt, std::int64_t limit) {
  if (!lanes_) {
    std::unique_ptr<Evictor> lanes = MakeEvictor(policy_);
    lanes->Grow(blocks_, 0);
    lane_of_.resize(blocks_, kNoLane);
    for (std::size_t b = 0; retains_ && b < blocks_; ++b) {
      lanes->SetPriority(static_cast<BlockId>(b), retentions_.priority(static_cast<BlockId>(b)));
    }
    lanes_ = std::move(lanes);
    more_ = true;
  }
  if (free_lanes_.empty()) {
    const std::size_t count = quotas_.size() + 1;
    over_.reserve(count);
    free_lanes_.reserve(count);
    lanes_->Grow(blocks_, count);
    quotas_.emplace_back();
    free_lanes_.push_back(static_cast<std::int32_t>(count - 1));
  }
  const std::int32_t lane = free_lanes_.back();
  const auto added = salts_.emplace(salt, lane).first;
  free_lanes_.pop_back();
  quotas_[static_cast<std::size_t>(lane)] = {limit, 0, false, added->first};
  return lane;
}

void IdleBlocks::ChangeQuota(std::int32_t lane, std::int64_t limit) {
  quotas_[static_cast<std::size_t>(lane)].limit = limit;
  Count(lane);
}

void IdleBlocks::DropQuota(std::string_view salt) {
  const auto found = salts_.find(salt);
  free_lanes_.push_back(found->second);  // reserved when the lane was made
  salts_.erase(found);
}

void IdleBlocks::Move(BlockId block, std::int32_t parent, bool idle, std::int32_t lane) {
  const std::int32_t before = lane_of_[block];
  if (idle && before != kNoLane) {
    lanes_->Remove(block, static_cast<std::size_t>(before));
    --quotas_[static_cast<std::size_t>(before)].idle;
  }
  lane_of_[block] = lane;
  if (!idle || lane == kNoLane) return;
  lanes_->Add(block, parent, static_cast<std::size_t>(lane));
  ++quotas_[static_cast<std::size_t>(lane)].idle;
  Count(lane);
}

BlockId IdleBlocks::OverQuota() {
  while (!over_.empty()) {
    const std::int32_t lane = over_.back();
    Quota& quota = quotas_[static_cast<std::size_t>(lane)];
    if (quota.idle > quota.limit) return lanes_->Victim(static_cast<std::size_t>(lane));
    quota.over = false;
    over_.pop_back();
  }
  return kNoBlock;
}

std::string IdleBlocks::Describe(BlockId block) const {
  TextBuilder out;
  if (retains_ && (retentions_.priority(block) != kDefaultPriority || retentions_.ttl(block) > 0)) {
    out << " priority " << retentions_.priority(block);
    if (retentions_.ttl(block) > 0) {
      out << " ttl " << retentions_.ttl(block) << " end " << retentions_.end(block);
    }
  }
  if (lane(block) != kNoLane) out << " lane " << lane(block);
  return out.Take();
}

}  // namespace lariat::blocks
