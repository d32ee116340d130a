// SPDX-License-Identifier: Apache-2.0
// How long idle blocks stay: retention by priority and time, quotas of salts.
#include <algorithm>
#include <iterator>
#include <limits>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

Status BlockManager::CheckRetention(std::span<const Retention> retention) const {
  if (retention.empty()) return {};
  if (!idle_.retains()) {
    return InvalidArgument("retention: the cache's eviction is lru; allowed with priority");
  }
  for (std::size_t i = 0; i < retention.size(); ++i) {
    const Retention& range = retention[i];
    const std::string name = "retention[" + std::to_string(i) + "].";
    if (range.first_token < 0) {
      return InvalidArgument(name + "first_token " + std::to_string(range.first_token) +
                             ": allowed are 0 and more");
    }
    if (range.last_token != -1 && range.last_token <= range.first_token) {
      return InvalidArgument(name + "last_token " + std::to_string(range.last_token) +
                             ": allowed are -1 (to the end) and those behind first_token " +
                             std::to_string(range.first_token));
    }
    if (range.priority < 0 || range.priority > kMaxPriority) {
      return InvalidArgument(name + "priority " + std::to_string(range.priority) +
                             ": allowed are 0 to " + std::to_string(kMaxPriority));
    }
    if (range.ttl_ms < 0) {
      return InvalidArgument(name + "ttl_ms " + std::to_string(range.ttl_ms) +
                             ": allowed are 0 (for ever) and more");
    }
  }
  return {};
}

// Gives the sequence's blocks that entered the index, or were found there, what it asks for.
void BlockManager::RetainNewBlocks(Sequence& sequence) {
  if (!sequence.retains || !sequence.indexable) return;
  const std::int64_t size = config_.block_size;
  const std::int64_t end = std::min<std::int64_t>(sequence.indexed, sequence.settled / size);
  for (; sequence.retained < end; ++sequence.retained) {
    const std::int64_t n = sequence.retained;
    RetainBlock(sequence, sequence.table[static_cast<std::size_t>(n)], n * size, (n + 1) * size);
  }
}

//   first, last: the block's tokens
void BlockManager::RetainBlock(const Sequence& sequence, BlockId block, std::int64_t first,
                               std::int64_t last) {
  const Retention* most = nullptr;
  const auto lasts = [](const Retention& range) {
    return range.ttl_ms == 0 ? std::numeric_limits<std::int64_t>::max() : range.ttl_ms;
  };
  for (const Retention& range : sequence.retention) {
    const bool ends_before = range.last_token != -1 && range.last_token <= first;
    if (ends_before || range.first_token >= last) continue;
    const bool more = most == nullptr || range.priority > most->priority ||
                      (range.priority == most->priority && lasts(range) > lasts(*most));
    if (more) most = &range;
  }
  if (most == nullptr) return;
  idle_.Retain(block, most->priority, most->ttl_ms);
  for (const SideTable& side : sequence.sides) {
    const BlockId page = side.table[static_cast<std::size_t>(first / config_.block_size)];
    if (page != kNoBlock && sides_.owner(page) == block) {
      idle_.Retain(page, most->priority, most->ttl_ms);
    }
  }
}

Status BlockManager::Expire(std::int64_t now_ms) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  if (now_ms < idle_.now()) {
    return InvalidArgument("now_ms " + std::to_string(now_ms) +
                           ": allowed are those from the last one on, " +
                           std::to_string(idle_.now()));
  }
  expired_ += idle_.Advance(now_ms);
  KeepClean();
  return {};
}

Status BlockManager::SetQuota(std::string_view salt, std::int64_t max_idle_blocks) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  if (max_idle_blocks < -1) {
    return InvalidArgument("max_idle_blocks " + std::to_string(max_idle_blocks) +
                           ": allowed are -1 (no limit) and more");
  }
  const std::int32_t lane = idle_.LaneOf(salt);
  if (max_idle_blocks == -1) {
    if (lane == IdleBlocks::kNoLane) return {};
    MoveBlocks(BlocksOf(salt), IdleBlocks::kNoLane);
    idle_.DropQuota(salt);
  } else if (lane != IdleBlocks::kNoLane) {
    idle_.ChangeQuota(lane, max_idle_blocks);
  } else {
    const std::vector<BlockId> blocks = BlocksOf(salt);  // memory first
    MoveBlocks(blocks, idle_.AddQuota(salt, max_idle_blocks));
  }
  EnforceQuotas();
  KeepClean();
  return {};
}

// The blocks that hold texts of a salt: those that are not idle, then the others, the least
// recently used one first.
std::vector<BlockId> BlockManager::BlocksOf(std::string_view salt) const {
  std::vector<BlockId> found;
  bool any = false;
  for (RootId root = index_.FirstRoot(); root != 0; root = index_.NextRoot(root)) {
    any |= index_.salt(root) == salt;
  }
  if (!any) return found;
  std::vector<RootId> roots(static_cast<std::size_t>(index_.end()), 0);
  std::vector<NodeId> path;
  const auto is_of_salt = [&](BlockId block) {
    const BlockId owner = sides_.owner(block);
    std::int32_t at = index_.node(owner == kNoBlock ? block : owner);
    for (path.clear(); at >= 0 && roots[static_cast<std::size_t>(at)] == 0;
         at = index_.parent(at)) {
      path.push_back(at);
    }
    const RootId root = at < 0 ? at : roots[static_cast<std::size_t>(at)];
    for (const NodeId node : path) roots[static_cast<std::size_t>(node)] = root;
    return index_.salt(root) == salt;
  };
  for (BlockId b = 0; b < static_cast<BlockId>(index_.capacity()); ++b) {
    if (IsCached(b) && pool_.state(b) != BlockState::kIdle && is_of_salt(b)) {
      found.push_back(b);
    }
  }
  std::vector<BlockId> idle;
  idle_.ByAge(idle);
  std::copy_if(idle.begin(), idle.end(), std::back_inserter(found), is_of_salt);
  return found;
}

void BlockManager::MoveBlocks(std::span<const BlockId> blocks, std::int32_t lane) {
  for (const BlockId b : blocks) {
    idle_.Move(b, BlockAbove(b), pool_.state(b) == BlockState::kIdle, lane);
  }
}

void BlockManager::EnforceQuotas() {
  for (BlockId victim; (victim = idle_.OverQuota()) != kNoBlock;) {
    idle_.Remove(victim);
    Evict(victim);
    pool_.FreeIdle(victim);
    ++quota_evicted_;
  }
}

}  // namespace lariat::blocks
