// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out at any place of a call: the call says so and has changed nothing.
#include "support/case_cache.h"
#include "support/count_new.h"

namespace lariat {
namespace {

using testing::CaseCache;

// Makes the call with 0, 1, ... allocations allowed until it goes through. Returns how often it
// failed.
template <class F>
int MakeAtLast(CaseCache& c, F call) {
  const std::string before = c->Snapshot();
  for (int allowed = 0;; ++allowed) {
    Status status;
    {
      const testing::FailNewAfter failing(allowed);
      status = call();
    }
    if (status.ok()) return allowed;
    REQUIRE(status.code() == Code::kResourceExhausted);
    REQUIRE(c->Snapshot() == before);
    REQUIRE(allowed < 100);
  }
}

// Few sequences: the memory that steps have from the start is soon too little.
CacheConfig Config(int steps) {
  CacheConfig config = CaseCache::Config(1, 128);
  config.max_steps_in_flight = steps;
  config.max_sequences = 2;
  return config;
}

Status Keep(CaseCache& c, Step& step, SequenceId id, std::int64_t kept,
            std::span<const TokenId> tokens = {}) {
  const StepCommit commit{id, kept, tokens};
  return c->Commit(step, std::span(&commit, 1), {});
}

TEST_CASE("Truncate under a live step runs out of memory", "[cache]") {
  CaseCache c(Config(1));
  const SequenceId a = c.Start(CaseCache::Range(0, 12));
  Step step = c.Prepared(a, 20);
  CHECK(MakeAtLast(c, [&] { return c->Truncate(a, 5); }) > 0);
  CHECK(c.Table(a).size() == 5);
  CaseCache::Must(Keep(c, step, a, 0));
  CHECK(c->GetStats().held_blocks == 5);
  CHECK(c->GetStats().idle_blocks == 7);
}

TEST_CASE("Commit that rejects and merges runs out of memory", "[cache]") {
  CaseCache c(Config(1));
  const auto tokens = CaseCache::Range(1, 16);
  c.Feed(c.Start({0}), 16, tokens);
  const SequenceId a = c.Start({0});
  Step step = c.Prepared(a, 40, 39);
  CHECK(MakeAtLast(c, [&] { return Keep(c, step, a, 16, tokens); }) > 0);
  CHECK(c->GetStats().merged_blocks == 17);
  CHECK(c->GetStats().held_blocks == 17);
}

TEST_CASE("SetTokens that merges under a live step runs out of memory", "[cache]") {
  CaseCache c(Config(1));
  const auto tokens = CaseCache::Range(1, 16);
  const SequenceId first = c.Start({0});
  c.Feed(first, 8, CaseCache::Range(1, 8));
  c.Feed(first, 8, CaseCache::Range(9, 8));
  const SequenceId a = c.Start({0});
  c.Feed(a, 16);
  Step step = c.Prepared(a, 1);
  CHECK(MakeAtLast(c, [&] { return c->SetTokens(a, tokens); }) > 0);
  CHECK(c->GetStats().merged_blocks == 17);
  CHECK(c->GetStats().held_blocks + c->GetStats().reserved_blocks == 34);
  CaseCache::Must(Keep(c, step, a, 1));
  CHECK(c->GetStats().held_blocks == 18);
}

TEST_CASE("Discard of a later step runs out of memory", "[cache]") {
  CaseCache c(Config(2));
  const SequenceId a = c.Start(CaseCache::Range(0, 6));
  Step first = c.Prepared(a, 4);
  Step second = c.Prepared(a, 20);
  CaseCache::Must(c->Truncate(a, 5));
  CHECK(MakeAtLast(c, [&] { return c->Discard(second, {}); }) > 0);
  CHECK(MakeAtLast(c, [&] { return c->Discard(first, {}); }) >= 0);
  CHECK(c->GetStats().held_blocks == 5);
  CHECK(c->GetStats().idle_blocks == 1);
}

TEST_CASE("A dropped step that lacks memory is discarded by a later call", "[cache]") {
  CaseCache c(Config(1));
  const SequenceId a = c.Start(CaseCache::Range(0, 6));
  Step step = c.Prepared(a, 40);
  {
    const testing::FailNewAfter failing(0);
    step = Step();
  }
  CHECK(c->GetStats().live_steps == 1);
  step = c.Prepared(a, 1);
  CHECK(c->GetStats().live_steps == 1);
  CHECK(c.Table(a).size() == 7);
  CaseCache::Must(Keep(c, step, a, 1));
  CHECK(c->GetStats().held_blocks == 7);
}

}  // namespace
}  // namespace lariat
