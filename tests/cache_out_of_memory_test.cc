// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out at any place of a call: the call says so and has changed nothing.
#include "support/case_cache.h"
#include "support/count_new.h"
#include "support/make_at_last.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::MakeAtLast;

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

TEST_CASE("Open and Fork with retention, and SetQuota, run out of memory", "[cache]") {
  CacheConfig config = Config(1);
  config.max_sequences = 6;
  config.eviction = EvictionPolicy::kPriority;
  CaseCache c(config);
  const std::vector<Retention> retention(40, Retention{.priority = 50, .ttl_ms = 3});
  const OpenOptions options{.salt = "a salt that needs memory", .retention = retention};
  const auto prompt = CaseCache::Range(0, 12);
  SequenceId id{};
  CHECK(MakeAtLast(c, [&] {
          auto opened = c->Open(prompt, options);
          if (opened.ok()) id = *opened;
          return opened.status();
        }) > 1);
  c.Feed(id, 12);
  CHECK(MakeAtLast(c, [&] { return c->Fork(id).status(); }) > 0);
  CaseCache::Must(c->Truncate(id, 4));
  for (const char* salt : {"a salt that needs memory", "another salt, of which nothing is here"}) {
    CHECK(MakeAtLast(c, [&] { return c->SetQuota(salt, 3); }) > 0);
    CHECK(MakeAtLast(c, [&] { return c->SetQuota(salt, 2); }) == 0);
  }
  CHECK(MakeAtLast(c, [&] { return c->SetQuota(options.salt, -1); }) > 0);
}

TEST_CASE("Steps that evict, let time pass and keep to a quota allocate nothing", "[cache]") {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kPriority}) {
    CacheConfig config = Config(2);
    config.eviction = policy;
    CaseCache c(config);
    CaseCache::Must(c->SetQuota("", 3));
    CaseCache::Must(c->SetQuota("one", 1000));
    std::vector<Retention> retention;
    if (policy == EvictionPolicy::kPriority) retention = {{.priority = 50, .ttl_ms = 2}};
    const auto one = CaseCache::Range(0, 100);
    const SequenceId filler = *c->Open(one, {.salt = "one", .retention = retention});
    c.Feed(filler, 100);
    CaseCache::Must(c->Close(filler));
    const SequenceId a = *c->Open(one, {.retention = retention});
    const SequenceId grows = c.Start({7});
    std::int64_t now = 0, before = 0;
    TokenId next = -1;
    c.Feed(a, 20);
    CaseCache::Must(c->Truncate(a, 10));  // what follows is not the prompt
    for (int i = 0; i < 60; ++i, --next) {
      if (i == 20) before = testing::CountOfNew();
      const StepItem items[] = {{a, 3, 0, {}}, {grows, 1, 0, {}}};
      auto step = c->Plan(items);
      const TokenId more[] = {next, next, next};
      const StepCommit commits[] = {{a, 3, more}, {grows, 1, std::span(more, 1)}};
      const bool ok = step.ok() && c->Prepare(*step, {}).ok() && c->Commit(*step, commits, {}).ok();
      if (!ok || !c->Truncate(a, 10).ok() || !c->Expire(++now).ok()) std::abort();
    }
    CHECK(testing::CountOfNew() == before);
    CHECK(c->GetStats().evicted_blocks >= 40);
    CHECK(c->GetStats().quota_evicted_blocks >= 100);
    const bool falls = policy == EvictionPolicy::kPriority;
    CHECK((c->GetStats().expired_blocks > 0) == falls);
  }
}

}  // namespace
}  // namespace lariat
