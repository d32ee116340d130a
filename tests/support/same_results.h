// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "lariat/simulator.h"
#include "support/catch.h"

namespace lariat::test {

inline void CheckSame(const std::optional<LatencySummary>& a,
                      const std::optional<LatencySummary>& b) {
  REQUIRE(a.has_value() == b.has_value());
  if (!a) return;
  CHECK(a->mean == b->mean);
  CHECK(a->p50 == b->p50);
  CHECK(a->p90 == b->p90);
  CHECK(a->p99 == b->p99);
  CHECK(a->max == b->max);
}

// All that must not depend on the backend, nor on when copies end: everything but wall times.
inline void CheckSame(const SimulationResult& a, const SimulationResult& b) {
  CHECK(a.session.steps == b.session.steps);
  CHECK(a.session.finished == b.session.finished);
  CHECK(a.session.preemptions == b.session.preemptions);
  CHECK(a.session.swaps == b.session.swaps);
  CHECK(a.session.fetches == b.session.fetches);
  CHECK(a.session.hit_tokens == b.session.hit_tokens);
  CHECK(a.session.host_hit_tokens == b.session.host_hit_tokens);
  CHECK(a.session.tokens_appended == b.session.tokens_appended);
  CHECK(a.session.recomputed_tokens == b.session.recomputed_tokens);
  CHECK(a.session.drafted_tokens == b.session.drafted_tokens);
  CHECK(a.session.accepted_tokens == b.session.accepted_tokens);
  CHECK(a.session.forks == b.session.forks);
  CHECK(a.session.busy_s == b.session.busy_s);
  CHECK(a.cache.total_blocks == b.cache.total_blocks);
  CHECK(a.cache.evicted_blocks == b.cache.evicted_blocks);
  CHECK(a.cache.copied_blocks == b.cache.copied_blocks);
  CHECK(a.cache.merged_blocks == b.cache.merged_blocks);
  CHECK(a.cache.peak_used_blocks == b.cache.peak_used_blocks);
  CHECK(a.cache.offloaded_blocks == b.cache.offloaded_blocks);
  CHECK(a.cache.onboarded_blocks == b.cache.onboarded_blocks);
  CHECK(a.cache.host_evicted == b.cache.host_evicted);
  CHECK(a.bytes_per_block == b.bytes_per_block);
  CHECK(a.virtual_s == b.virtual_s);
  CHECK(a.offered == b.offered);
  CheckSame(a.ttft, b.ttft);
  CheckSame(a.e2e, b.e2e);
}

}  // namespace lariat::test
