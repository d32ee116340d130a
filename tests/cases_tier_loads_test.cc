// SPDX-License-Identifier: Apache-2.0
// Faults that users of other caches reported in their tiers of host memory, continued: copies that
// fail, and tiers that are full. See cases_tier_test.cc,
// and cases_tier_groups_test.cc for layers with windows.
#include <memory>

#include "backend/deferred_backend.h"
#include "support/case_cache.h"
#include "support/failing_copies.h"
#include "support/late_world.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Cpu;
using testing::FailingCopies;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

WorldOptions Options(std::int64_t blocks, std::int64_t places, WritePolicy write) {
  WorldOptions options;
  options.blocks = blocks;
  options.max_tokens_per_sequence = options.max_tokens_per_step = 96;
  options.host.num_blocks = places;
  options.host.write = write;
  return options;
}

constexpr WritePolicy kPolicies[] = {WritePolicy::kBack, WritePolicy::kThrough,
                                     WritePolicy::kAfterHits};

// Copies of the tier are late and poisoned, and fail when they are told to.
struct Failing {
  explicit Failing(const WorldOptions& of_world)
      : options(of_world),
        backend(std::make_shared<FailingCopies>(MakeDeferredBackend(Cpu(), 1))),
        world(options, Device(backend), [](Stream, const auto& work) { work(); }) {}

  KVCache& cache() { return world.cache(); }
  Stats stats() { return world.cache().GetStats(); }
  void Step(SequenceId id, std::int64_t count, std::int64_t given = 100) {
    REQUIRE(world.Run({{.sequence = id, .num_tokens = count}}, {}).ok());
    REQUIRE(world.Commit({}, {}, given).ok());
  }
  SequenceId Computed(const std::vector<TokenId>& prompt) {
    const SequenceId id = *world.Open(prompt);
    Step(id, std::ssize(prompt));
    return id;
  }
  void Cache(const std::vector<TokenId>& prompt) { REQUIRE(world.Close(Computed(prompt)).ok()); }
  // Evicts all that is idle, for tokens that nobody can find.
  void Flood() {
    const Stats now = stats();
    const SequenceId id = *world.Open({});
    Step(id, options.block_size * (now.free_blocks + now.idle_blocks), 0);
    REQUIRE(world.Close(id).ok());
  }
  void Check() {
    world.CheckRows();
    REQUIRE(world.errors() == "");
  }
  WorldOptions options;
  std::shared_ptr<FailingCopies> backend;
  RowWorld world;
};

// --- Copies that fail -------------------------------------------------------------------------

TEST_CASE("K155: a failed load is not used, and computing goes on where the rows end", "[cases]") {
  WorldOptions options = Options(6, 20, WritePolicy::kThrough);
  options.block_size = 16;
  // Blocks of the five that are on the device still. A load's copies fail as one: which of them it
  // was, no device tells, so what is kept is what was there before.
  for (const std::int64_t here : {2, 0}) {
    CAPTURE(here);
    Failing t(options);
    t.Cache(Tokens(0, 80));
    t.Flood();
    if (here > 0) t.Cache(Tokens(0, 16 * here));
    const SequenceId a = *t.world.Open(Tokens(0, 81));
    CHECK(t.cache().Match(a)->tokens == 16 * here);
    CHECK(t.cache().Match(a)->host_tokens == 80);
    t.backend->FailEvents(true);
    const TransferId transfer = *t.world.Fetch(a);
    t.backend->FailEvents(false);
    CHECK(t.world.Accept(transfer)->failed);
    CHECK(t.cache().Match(a)->tokens == 16 * here);
    CHECK(t.cache().Match(a)->host_tokens == 16 * here);
    t.Step(a, 81);
    CHECK(t.stats().hit_tokens == 16 * here);
    t.Check();
  }
}

// --- Full tiers -------------------------------------------------------------------------------

TEST_CASE("K157: a block that is handed out has the rows of its new key alone", "[cases]") {
  for (const WritePolicy write : kPolicies) {
    CAPTURE(static_cast<int>(write));
    WorldOptions options = Options(2, 1, write);
    options.host.write_after_hits = 1;
    Failing t(options);
    const auto y = Tokens(0, 5), x = Tokens(100, 8);
    t.Cache(y);
    t.Cache(y);  // a hit of 4
    CHECK(t.stats().host_used == 1);
    t.Cache(x);
    // Nothing is free on either side now.
    CHECK(t.stats().free_blocks == 0);
    CHECK(t.stats().host_used == t.stats().host_blocks);
    const SequenceId a = *t.world.Open(y);
    const TransferId transfer = *t.world.Fetch(a);
    const bool hit = transfer != TransferId::kNone;
    // x has got the place where it was written without being hit.
    CHECK(hit == (write == WritePolicy::kAfterHits));
    if (hit) {
      CHECK(t.cache().Match(Tokens(100, 9)).tokens == 4);  // its leaf went
      CHECK_FALSE(t.world.Accept(transfer)->failed);
      CHECK(t.cache().Match(a)->tokens == 4);
    }
    const std::int64_t before = t.stats().hit_tokens;
    t.Step(a, 5);
    CHECK(t.stats().hit_tokens - before == (hit ? 4 : 0));
    CHECK(t.cache().Match(Tokens(100, 9)).tokens == 0);
    t.Check();
  }
}

TEST_CASE("K158: what finds no place is dropped, never said to be there", "[cases]") {
  for (const WritePolicy write : kPolicies) {
    CAPTURE(static_cast<int>(write));
    WorldOptions options = Options(12, 4, write);
    options.host.write_after_hits = 1;
    Failing t(options);
    const SequenceId locked = t.Computed(Tokens(500, 16));
    REQUIRE(t.world.Suspend(locked).ok());
    CHECK(t.stats().host_held == 4);
    const auto prompt = Tokens(0, 5);
    t.Cache(prompt);
    t.Cache(prompt);
    CHECK(t.stats().hit_tokens == 4);
    CHECK(t.stats().offloaded_blocks == 4);
    const SequenceId other = t.Computed(Tokens(700, 4));
    CHECK(t.world.Suspend(other).status().code() == Code::kResourceExhausted);
    t.Check();
    REQUIRE(t.world.Close(other).ok());
    t.Flood();
    CHECK(t.stats().indexed_blocks == 0);
    CHECK(t.stats().host_used == 4);
    CHECK(t.cache().Match(prompt).host_tokens == 0);
    const SequenceId a = *t.world.Open(prompt);
    CHECK(*t.world.Fetch(a) == TransferId::kNone);
    t.Step(a, 5);
    CHECK(t.stats().hit_tokens == 4);
    const TransferId transfer = *t.world.Resume(locked);
    CHECK_FALSE(t.world.Accept(transfer)->failed);
    t.Check();
  }
}

CacheConfig Chain(std::int64_t blocks, WritePolicy write) {
  CacheConfig config = CaseCache::Config(4, blocks);
  config.host = {.num_blocks = 4, .write = write, .clean_blocks = 1};
  return config;
}

TEST_CASE("K159: a parent that goes takes what only the host has below it", "[cases]") {
  CaseCache c(Chain(2, WritePolicy::kBack));
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(0, 8))));
  CHECK(c->GetStats().offloaded_blocks == 1);                  // of the leaf
  const SequenceId other = c.Start(CaseCache::Range(100, 8));  // both go, leaf first
  CHECK(c->GetStats().evicted_blocks == 2);
  CHECK(c->Match(CaseCache::Range(0, 9)).host_tokens == 0);
  CHECK(c->GetStats().host_used == 0);
  CaseCache::Must(c->Close(other));
  c.Start(CaseCache::Range(0, 8));
  CHECK(c->GetStats().hit_tokens == 0);
}

TEST_CASE("K159: what comes when its parent has changed is not attached", "[cases]") {
  CaseCache c(Chain(12, WritePolicy::kThrough));
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(0, 8))));
  c.Feed(c.Open({}), 40);
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(100, 8))));  // evicts both, and the last two
  const std::vector<TokenId> prompt = CaseCache::Range(0, 9);
  CHECK(c->Match(prompt).tokens == 0);
  CHECK(c->Match(prompt).host_tokens == 8);
  CHECK(*c->Remove(CaseCache::Range(100, 1)) > 0);
  const SequenceId a = c.Open(prompt);
  const TransferId transfer = *c->Fetch(a);
  REQUIRE(transfer != TransferId::kNone);
  CHECK(*c->Remove(CaseCache::Range(0, 4)) == 2);
  CHECK(c->GetStats().in_transit_blocks == 2);
  CHECK_FALSE(c->Accept(transfer)->failed);
  CHECK(c->GetStats().in_transit_blocks == 0);
  CHECK(c->GetStats().free_blocks == 2);
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(0, 4))));  // the parent, anew
  CHECK(c.Match(prompt) == 4);
  CHECK(c->Match(prompt).host_tokens == 4);
}

}  // namespace
}  // namespace lariat
