// SPDX-License-Identifier: Apache-2.0
// The counters that the model expects.
#include <algorithm>
#include <sstream>

#include "reference/cache_model.h"

namespace lariat::reference {

void CacheModel::NotePeak() {
  std::int64_t used = std::ssize(blocks_) - std::ssize(lru_);
  if (plan_) used -= std::ssize(plan_->victims);  // counted by the placeholders
  peak_high_ = std::max(peak_high_, used);
  if (!plan_) peak_low_ = std::max(peak_low_, used);
}

std::string CacheModel::CompareStats(const Stats& stats) const {
  std::ostringstream wrong;
  const auto equal = [&](const char* name, std::int64_t got, std::int64_t want) {
    if (got != want) wrong << name << ' ' << got << ", should be " << want << "; ";
  };
  std::int64_t used = std::ssize(blocks_) - std::ssize(lru_);
  if (plan_) used -= std::ssize(plan_->victims);
  std::int64_t reserved = 0, in_transit = 0;
  bool orphans = false;  // blocks that only live steps hold: reserved or held, as the cache likes
  for (const auto& [id, block] : blocks_) {
    if (block.refs > 0 && block.reserved_by != 0) ++reserved;
    if (block.in_transit) {
      ++in_transit;
    } else if (block.refs == 0 && block.pins > 0) {
      orphans = true;
    }
  }
  equal("total_blocks", stats.total_blocks, config_.total_blocks);
  equal("sum of states",
        stats.free_blocks + stats.idle_blocks + stats.held_blocks + stats.reserved_blocks +
            stats.in_transit_blocks,
        config_.total_blocks);
  equal("free_blocks", stats.free_blocks, std::ssize(free_) - free_taken_);
  equal("idle_blocks", stats.idle_blocks, std::ssize(lru_));
  equal("held + reserved", stats.held_blocks + stats.reserved_blocks, used - in_transit);
  if (!orphans) equal("reserved_blocks", stats.reserved_blocks, reserved);
  equal("in_transit_blocks", stats.in_transit_blocks, in_transit);
  equal("host_used", stats.host_used, std::ssize(places_));
  equal("host_held", stats.host_held, std::ssize(places_) - std::ssize(host_lru_));
  if (!plan_) {
    equal("offloaded_blocks", stats.offloaded_blocks, offloaded_);
    equal("onboarded_blocks", stats.onboarded_blocks, onboarded_);
    equal("host_evicted", stats.host_evicted, host_evicted_);
  }
  equal("indexed_blocks", stats.indexed_blocks, std::ssize(index_) + std::ssize(pages_));
  equal("pinned_blocks", stats.pinned_blocks, kept());
  equal("evicted_blocks", stats.evicted_blocks, evicted_);
  equal("quota_evicted_blocks", stats.quota_evicted_blocks, quota_evicted_);
  equal("expired_blocks", stats.expired_blocks, expired_);
  equal("merged_blocks", stats.merged_blocks, merged_);
  if (!plan_) {
    equal("copied_blocks", stats.copied_blocks, copied_);
    equal("hit_tokens", stats.hit_tokens, hit_tokens_);
    equal("live_steps", stats.live_steps, std::ssize(steps_));
  }
  equal("tokens_committed", stats.tokens_committed, committed_);
  equal("sequences", stats.sequences, std::ssize(sequences_));
  if (stats.peak_used_blocks < peak_low_ || stats.peak_used_blocks > peak_high_) {
    wrong << "peak_used_blocks " << stats.peak_used_blocks << ", should be in [" << peak_low_
          << ", " << peak_high_ << "]; ";
  }
  return wrong.str();
}

}  // namespace lariat::reference
