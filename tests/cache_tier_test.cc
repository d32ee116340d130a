// SPDX-License-Identifier: Apache-2.0
// The host tier's cases, worked out by hand: which blocks have copies, and what becomes of them.
#include <algorithm>

#include "support/case_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;

CacheConfig Config(std::int64_t blocks, std::int64_t places, WritePolicy write,
                   std::int64_t clean = 0) {
  CacheConfig config = CaseCache::Config(1, blocks);
  config.host = {.num_blocks = places, .write = write, .clean_blocks = clean};
  return config;
}

struct TierCache : CaseCache {
  using CaseCache::CaseCache;
  KVCache& c() { return cache(); }
  Stats stats() { return cache().GetStats(); }
  // A prompt that was computed and is cached; nobody holds it.
  void Cache(const std::vector<TokenId>& prompt) { Must(c().Close(Start(prompt))); }
  // Takes `count` blocks from others and frees them.
  void Flood(std::int64_t count) {
    const SequenceId id = Start(Range(9000, count));
    Must(c().Close(id));
    REQUIRE(*c().Remove(Range(9000, 1)) == count);
  }
  TransferId Fetch(SequenceId id) { return Id(c().Fetch(id)); }
  TransferId Suspend(SequenceId id) { return Id(c().Suspend(id)); }
  TransferId Resume(SequenceId id) { return Id(c().Resume(id)); }
  void Accept(TransferId id) {
    const auto report = c().Accept(id);
    REQUIRE(report.ok());
    REQUIRE_FALSE(report->failed);
  }
  static TransferId Id(const Result<TransferId>& result) {
    if (!result.ok()) FAIL(result.status().ToString());
    return *result;
  }
};

TEST_CASE("Tier: kBack writes the next victims, and no more", "[tier]") {
  TierCache t(Config(10, 20, WritePolicy::kBack, 4));
  t.Cache(CaseCache::Range(0, 8));
  CHECK(t.stats().offloaded_blocks == 4);  // tokens 7, 6, 5, 4
  // It looks again when fewer than half of them are left.
  t.Start(CaseCache::Range(100, 4));
  CHECK(t.stats().evicted_blocks == 2);
  CHECK(t.stats().offloaded_blocks == 4);
  t.Start(CaseCache::Range(200, 1));
  CHECK(t.stats().evicted_blocks == 3);
  CHECK(t.stats().offloaded_blocks == 7);
  const PrefixMatch match = t.c().Match(CaseCache::Range(0, 9));
  CHECK(match.tokens == 5);
  CHECK(match.host_tokens == 8);
}

TEST_CASE("Tier: kThrough writes what is cached, kAfterHits what was hit so often", "[tier]") {
  TierCache through(Config(10, 20, WritePolicy::kThrough));
  through.Start(CaseCache::Range(0, 8));
  CHECK(through.stats().offloaded_blocks == 8);
  CHECK(through.stats().host_used == 8);

  CacheConfig config = Config(20, 20, WritePolicy::kAfterHits);
  config.host.write_after_hits = 2;
  TierCache hits(config);
  hits.Cache(CaseCache::Range(0, 8));
  hits.Cache(CaseCache::Range(0, 8));  // all but the last token are found
  CHECK(hits.stats().offloaded_blocks == 0);
  const SequenceId id = hits.Open(CaseCache::Range(0, 4));
  Result<Step> step = hits.Plan(id, 4);
  REQUIRE(step.ok());
  CHECK(hits.stats().offloaded_blocks == 0);  // a plan may be dropped
  CaseCache::Must(hits.c().Prepare(*step, {}));
  CHECK(hits.stats().offloaded_blocks == 3);
}

TEST_CASE("Tier: a victim without a copy is a miss, with all below it", "[tier]") {
  TierCache t(Config(8, 2, WritePolicy::kBack, 2));
  t.Cache(CaseCache::Range(0, 8));
  CHECK(t.c().Match(CaseCache::Range(0, 9)).host_tokens == 8);
  t.Flood(3);  // two with a copy, one without
  const PrefixMatch match = t.c().Match(CaseCache::Range(0, 9));
  CHECK(match.tokens == 5);
  CHECK(match.host_tokens == 5);
  CHECK(t.stats().host_used == 2);  // of the next victims
}

TEST_CASE("Tier: the copy of what was evicted first goes first, leaves first", "[tier]") {
  TierCache t(Config(4, 6, WritePolicy::kThrough));
  t.Cache(CaseCache::Range(0, 4));
  t.Cache(CaseCache::Range(100, 4));  // evicts all of the first, and takes two of its places
  CHECK(t.c().Match(CaseCache::Range(0, 5)).host_tokens == 2);
  CHECK(t.c().Match(CaseCache::Range(100, 5)).tokens == 4);
  CHECK(t.stats().host_evicted == 2);
}

TEST_CASE("Tier: two that want the same wait for one copy", "[tier]") {
  TierCache t(Config(12, 20, WritePolicy::kThrough));
  const auto prompt = CaseCache::Range(0, 6);
  t.Cache(prompt);
  t.Flood(12);
  const SequenceId a = t.Open(prompt), b = t.Open(CaseCache::Join(prompt, {77}));
  CHECK(t.c().Match(b)->host_tokens == 6);
  const TransferId first = t.Fetch(a);
  CHECK(t.stats().in_transit_blocks == 5);
  const TransferId second = t.Fetch(b);
  CHECK(t.stats().in_transit_blocks == 6);
  CHECK(t.c().Match(b).status().code() == Code::kNotReady);
  PlanFailure failure;
  const SequenceId c = t.Open(CaseCache::Range(500, 8));
  CHECK(t.Plan(c, 8, 0, &failure).status().code() == Code::kResourceExhausted);
  CHECK(failure.in_transit == 6);
  t.Accept(second);  // and the one before it
  t.Accept(first);
  CHECK(t.stats().onboarded_blocks == 6);
  CHECK(t.stats().in_transit_blocks == 0);
  CHECK(t.stats().idle_blocks == 6);
  CHECK(t.Feed(a, 6) == 5);
  CHECK(t.Feed(b, 7) == 6);
}

TEST_CASE("Tier: what was computed meanwhile is not there twice", "[tier]") {
  TierCache t(Config(20, 40, WritePolicy::kThrough));
  const auto prompt = CaseCache::Range(0, 6);
  t.Cache(prompt);
  t.Flood(20);
  const SequenceId a = t.Open(prompt);
  const TransferId transfer = t.Fetch(a);
  const SequenceId b = t.Start(CaseCache::Range(0, 4));  // computes it
  CHECK(t.stats().indexed_blocks == 4);
  t.Accept(transfer);
  CHECK(t.stats().indexed_blocks == 5);
  CHECK(t.stats().idle_blocks == 1);
  CHECK(t.stats().free_blocks == 20 - 5);
  CHECK(t.Feed(a, 6) == 5);
  const auto table = t.Table(b);
  CHECK(std::equal(table.begin(), table.end(), t.Table(a).begin()));
}

// Whoever holds a block holds all before it: else a hit takes a block out of the list of idle ones
// that is not in it, and leaves one that it has.
TEST_CASE("Tier: what was computed meanwhile is held by all that wait for its copy", "[tier]") {
  for (const bool resumed : {false, true}) {
    TierCache t(Config(8, 32, WritePolicy::kThrough));
    const auto prompt = CaseCache::Range(0, 3);
    SequenceId away = SequenceId::kNone;
    if (resumed) {
      away = t.Start(prompt);
      t.Suspend(away);
    } else {
      t.Cache(prompt);
    }
    t.Flood(8);
    const TransferId first = t.Fetch(t.Open(prompt));
    const TransferId second = resumed ? t.Resume(away) : t.Fetch(t.Open(prompt));
    CaseCache::Must(t.c().Close(t.Start(CaseCache::Range(0, 1))));  // computes the first block
    t.Accept(first);
    const SequenceId hit = t.Start(prompt);
    const auto table = t.Table(hit);
    const SequenceId other = t.Start(CaseCache::Range(500, 2));
    for (const std::int32_t block : t.Table(other)) {
      CHECK(std::find(table.begin(), table.end(), block) == table.end());
    }
    t.Accept(second);
    CaseCache::Must(t.c().Close(hit));
    CaseCache::Must(t.c().Close(other));
    if (resumed) CaseCache::Must(t.c().Close(away));
    const Stats stats = t.stats();
    CHECK(stats.held_blocks == 0);
    CHECK(stats.free_blocks + stats.idle_blocks == 8);
    t.Flood(8);  // every block is there to be taken
  }
}

TEST_CASE("Tier: a sequence that is closed in transit leaves what comes cached", "[tier]") {
  TierCache t(Config(8, 20, WritePolicy::kThrough));
  const auto prompt = CaseCache::Range(0, 6);
  const SequenceId a = t.Start(prompt);
  t.Suspend(a);
  t.Flood(8);
  const TransferId transfer = t.Resume(a);
  CHECK(t.stats().host_held == 6);
  CaseCache::Must(t.c().Close(a));
  CHECK(t.stats().in_transit_blocks == 6);
  t.Accept(transfer);
  CHECK(t.stats().idle_blocks == 6);
  CHECK(t.stats().host_held == 0);
  CHECK(t.Match(CaseCache::Range(0, 7)) == 6);
}

TEST_CASE("Tier: Suspend gives what only it has places of its own", "[tier]") {
  CacheConfig config = Config(8, 8, WritePolicy::kBack);
  config.block_size = 4;
  TierCache t(config);
  const SequenceId a = t.Start(CaseCache::Range(0, 10));
  const auto b = t.c().Fork(a);  // shares all three blocks
  REQUIRE(b.ok());
  t.Suspend(a);
  CHECK(t.stats().host_held == 3);
  CHECK(t.stats().held_blocks == 3);
  CHECK(t.Table(a).empty());
  CHECK(t.c().GetExtent(a)->settled == 10);
  CHECK(t.c().Fork(a).status().code() == Code::kNotReady);
  // Its fork writes on in place: nobody else has the block now.
  t.Feed(*b, 1, {50});
  CHECK(t.stats().copied_blocks == 0);
  const TransferId transfer = t.Resume(a);
  CHECK(t.stats().in_transit_blocks == 1);  // the others are there still
  t.Accept(transfer);
  CHECK(t.Table(a)[1] == t.Table(*b)[1]);
  CHECK(t.Table(a)[2] != t.Table(*b)[2]);
  t.Feed(a, 1, {60});
  CHECK(t.Settled(a) == 11);
}

TEST_CASE("Tier: a suspended sequence that is all on the device is back at once", "[tier]") {
  TierCache t(Config(8, 8, WritePolicy::kBack));
  const SequenceId a = t.Start(CaseCache::Range(0, 4));
  const auto table = t.Table(a);
  CHECK(t.Suspend(a) != TransferId::kNone);
  CHECK(t.stats().idle_blocks == 4);
  CHECK(t.Resume(a) == TransferId::kNone);
  CHECK(t.Table(a) == table);
  CHECK(t.Suspend(a) == TransferId::kNone);  // the copies are there still
}

TEST_CASE("Tier: Clear and Remove take copies too, and what is on its way", "[tier]") {
  for (const bool clear : {true, false}) {
    TierCache t(Config(12, 20, WritePolicy::kThrough));
    const auto prompt = CaseCache::Range(0, 6);
    const SequenceId s = t.Start(CaseCache::Range(0, 4));
    t.Suspend(s);
    t.Cache(prompt);
    t.Flood(12);
    const SequenceId a = t.Open(prompt);
    const TransferId transfer = t.Fetch(a);
    if (clear) {
      CaseCache::Must(t.c().Clear());
    } else {
      CHECK(*t.c().Remove(CaseCache::Range(0, 1)) == 6);
    }
    CHECK(t.c().Match(CaseCache::Range(0, 7)).host_tokens == 0);
    t.Accept(transfer);
    CHECK(t.stats().free_blocks == 12);
    CHECK(t.stats().indexed_blocks == 0);
    // The suspended one has its rows, but nobody finds them any more.
    CHECK(t.stats().host_used == 4);
    t.Accept(t.Resume(s));
    CHECK(t.Table(s).size() == 4);
    CHECK(t.Match(CaseCache::Range(0, 5)) == 0);
    t.Feed(s, 1, {4});
    CHECK(t.Match(CaseCache::Range(0, 6)) == 0);
    CHECK(t.stats().host_used == 0);
  }
}

TEST_CASE("Tier: a tail that nobody writes to is found in host memory", "[tier]") {
  CacheConfig config = Config(4, 20, WritePolicy::kThrough);
  config.block_size = 4;
  config.reuse = Reuse::kToken;
  TierCache t(config);
  t.Cache(CaseCache::Range(0, 10));
  t.Cache(CaseCache::Range(9000, 16));
  const SequenceId a = t.Open(CaseCache::Range(0, 12));
  CHECK(t.c().Match(a)->host_tokens == 10);
  t.Accept(t.Fetch(a));
  CHECK(t.c().Match(a)->tokens == 10);
  CHECK(t.Feed(a, 12) == 10);
}

TEST_CASE("Tier: no room is told, and changes nothing", "[tier]") {
  TierCache t(Config(8, 20, WritePolicy::kThrough));
  const auto prompt = CaseCache::Range(0, 6);
  t.Cache(prompt);
  t.Flood(8);
  const SequenceId holder = t.Start(CaseCache::Range(500, 4));
  const SequenceId a = t.Open(CaseCache::Join(prompt, {9}));
  const std::string before = t.c().Snapshot();
  CHECK(t.c().Fetch(a).status().code() == Code::kResourceExhausted);
  CHECK(t.c().Snapshot() == before);
  CaseCache::Must(t.c().Truncate(holder, 2));
  t.Accept(t.Fetch(a));
  CHECK(t.c().Resume(holder).status().code() == Code::kInvalidArgument);
  CHECK(t.c().Fetch(holder).status().code() == Code::kInvalidArgument);
  CHECK(t.c().Suspend(a).status().code() == Code::kInvalidArgument);
  CHECK(t.c().Accept(TransferId{9}).status().code() == Code::kInvalidArgument);
  CHECK(t.c().Accept(TransferId::kNone).status().code() == Code::kInvalidArgument);
  Step step = t.Prepared(holder, 1);
  CHECK(t.c().Suspend(holder).status().code() == Code::kNotReady);
}

}  // namespace
}  // namespace lariat
