// SPDX-License-Identifier: Apache-2.0
// Faults that users of other caches reported in their tiers of host memory: what was read, written
// or handed out while a copy was on its way. Streams are late, and a test says which one gets on.
//
// What has no place here, and why:
// - K137: there is no encoder part. A sequence's rows begin with block 0 of each group's table.
// - K154: no server is asked where a block is. The tier is memory of this process, and its index
//   is the cache's own.
// - K171 to K175: ranks send each other nothing, and no sequence is cut over ranks or stages. Each
//   rank has its own cache of all tokens, with its own blocks.
// - K119: tests/cache_events_test.cc.
#include <functional>
#include <memory>

#include "support/late_world.h"

namespace lariat {
namespace {

using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

constexpr Stream kSteps = {};

// Nothing is written that is not suspended, unless told otherwise.
WorldOptions Options(std::int64_t blocks, std::int64_t places,
                     WritePolicy write = WritePolicy::kAfterHits) {
  WorldOptions options;
  options.blocks = blocks;
  options.host.num_blocks = places;
  options.host.write = write;
  options.host.write_after_hits = 1000;
  return options;
}

struct Late : LateWorld {
  using LateWorld::LateWorld;
  KVCache& cache() { return world.cache(); }
  Stats stats() { return world.cache().GetStats(); }
  // A step on the stream, which runs later, and its Commit.
  void Step(SequenceId id, std::int64_t count, std::int64_t given = 100) {
    REQUIRE(world.Run({{.sequence = id, .num_tokens = count}}, kSteps).ok());
    REQUIRE(world.Commit(kSteps, {}, given).ok());
  }
  SequenceId Computed(const std::vector<TokenId>& prompt) {
    const SequenceId id = *world.Open(prompt);
    Step(id, std::ssize(prompt));
    return id;
  }
  void Cache(const std::vector<TokenId>& prompt) { REQUIRE(world.Close(Computed(prompt)).ok()); }
  // Takes so many blocks for tokens that nobody can find, and frees them.
  void Flood(std::int64_t blocks) {
    const SequenceId id = *world.Open({});
    Step(id, 4 * blocks, 0);
    REQUIRE(world.Close(id).ok());
  }
  void RunAll() { backend->RunAllBut(Stream{this}); }  // which is none of them
  void Accept(TransferId id) {
    const auto report = world.Accept(id);
    REQUIRE(report.ok());
    REQUIRE_FALSE(report->failed);
  }
  // All rows are what was fed, for readers on the stream and for ReadRows.
  void Check() {
    RunAll();
    Finish();
    world.CheckRows();
    REQUIRE(world.errors() == "");
  }
};

TEST_CASE("K139: a write waits for the device, not for the host's word", "[cases]") {
  Late t(Options(12, 20, WritePolicy::kThrough));
  t.Cache(Tokens(0, 20));
  CHECK(t.stats().offloaded_blocks == 5);
  t.backend->RunAllBut(kSteps);  // the rows are not there yet
  t.Flood(12);
  t.Check();
  const SequenceId a = *t.world.Open(Tokens(0, 20));
  t.Accept(*t.world.Fetch(a));
  t.Step(a, 20);
  CHECK(t.stats().hit_tokens == 16);
  t.Check();
}

TEST_CASE("K140: a load waits for who still reads the block", "[cases]") {
  Late t(Options(5, 20));
  const SequenceId p = t.Computed(Tokens(0, 20));
  REQUIRE(t.world.Suspend(p).ok());
  const SequenceId a = t.Computed(Tokens(100, 19));
  t.Check();
  t.Step(a, 1);  // its reader is late
  REQUIRE(t.world.Close(a).ok());
  const TransferId transfer = *t.world.Resume(p);
  CHECK(t.stats().in_transit_blocks == 5);  // all of a's
  t.backend->RunAllBut(kSteps);
  t.Finish();
  REQUIRE(t.world.errors() == "");
  t.Accept(transfer);
  t.Check();
}

TEST_CASE("K141: blocks of a suspended sequence are written behind the copies of them", "[cases]") {
  Late t(Options(5, 20));
  const SequenceId a = t.Computed(Tokens(0, 20));
  t.Finish();
  REQUIRE(*t.world.Suspend(a) != TransferId::kNone);
  const SequenceId b = t.Computed(Tokens(100, 20));
  CHECK(t.stats().evicted_blocks == 5);
  t.backend->RunOnly(kSteps);
  t.Check();
  REQUIRE(t.world.Close(b).ok());
  t.Accept(*t.world.Resume(a));
  t.Check();
  // Under its key everybody finds these rows.
  REQUIRE(t.world.Close(a).ok());
  t.Cache(Tokens(0, 20));
  CHECK(t.stats().hit_tokens == 16);
  t.Check();
}

TEST_CASE("K142: a place that a copy is under way to, or from, is not another's", "[cases]") {
  Late t(Options(3, 1, WritePolicy::kThrough));
  t.Cache(Tokens(0, 4));
  t.Cache(Tokens(100, 12));  // takes x's block, and its place while the first copy is late
  CHECK(t.stats().offloaded_blocks == 2);
  CHECK(t.cache().Match(Tokens(0, 5)).host_tokens == 0);
  t.backend->RunOnly(kSteps);
  t.RunAll();
  t.Flood(3);
  CHECK(t.cache().Match(Tokens(100, 12)).host_tokens == 4);
  const SequenceId a = *t.world.Open(Tokens(100, 12));
  const TransferId transfer = *t.world.Fetch(a);
  t.Cache(Tokens(200, 4));  // wants the place that is being read
  CHECK(t.stats().offloaded_blocks == 2);
  CHECK(t.stats().host_held == 1);
  t.backend->RunOnly(kSteps);
  t.Accept(transfer);
  t.Step(a, 12);
  CHECK(t.stats().hit_tokens == 4);
  t.Check();
}

TEST_CASE("K143: a duplicate's block is free when the copy into it is done", "[cases]") {
  Late t(Options(12, 20));
  const auto prompt = Tokens(0, 20);
  const SequenceId p = t.Computed(prompt);
  REQUIRE(t.world.Suspend(p).ok());
  REQUIRE(t.world.Close(p).ok());
  t.Flood(12);
  t.Check();
  const SequenceId a = *t.world.Open(Tokens(0, 24));
  const TransferId transfer = *t.world.Fetch(a);
  const SequenceId b = t.Computed(prompt);  // publishes the same
  t.backend->RunOnly(kSteps);
  CHECK(t.stats().in_transit_blocks == 5);
  const SequenceId c = *t.world.Open(Tokens(500, 12));
  PlanFailure failure;
  const StepItem item{c, 12, 0, {}};
  CHECK(t.cache().Plan(std::span(&item, 1), {}, &failure).status().code() ==
        Code::kResourceExhausted);
  CHECK(failure.in_transit == 5);
  t.Accept(transfer);
  CHECK(t.stats().free_blocks == 7);
  const SequenceId d = t.Computed(Tokens(700, 28));
  t.backend->RunOnly(kSteps);  // what were duplicates are d's before any other stream gets on
  t.Check();
  REQUIRE(t.world.Close(d).ok());
  t.Step(a, 24);
  CHECK(t.stats().hit_tokens == 20);
  const auto mine = *t.cache().BlockTable(a), other = *t.cache().BlockTable(b);
  CHECK(std::equal(other.begin(), other.end(), mine.begin()));
  t.Check();
}

TEST_CASE("K144: what is gone since a lookup makes the hit shorter", "[cases]") {
  Late t(Options(12, 5, WritePolicy::kThrough));
  t.Cache(Tokens(0, 20));
  const SequenceId here = *t.world.Open(Tokens(0, 20)), reused = *t.world.Open(Tokens(0, 20));
  const SequenceId a = *t.world.Open(Tokens(0, 20));
  CHECK(t.cache().Match(here)->tokens == 16);
  CHECK(t.cache().Match(reused)->tokens == 16);
  t.Flood(12);
  CHECK(t.cache().Match(a)->host_tokens == 16);
  t.Check();
  t.Cache(Tokens(500, 12));  // three places from the text's end
  const TransferId transfer = *t.world.Fetch(a);
  CHECK(t.stats().in_transit_blocks == 2);
  t.Accept(transfer);
  t.Step(a, 20);
  CHECK(t.stats().hit_tokens == 8);
  t.Check();
  // The device's blocks are gone, and are others' now.
  REQUIRE(t.world.Close(a).ok());
  t.Flood(12);
  t.Step(here, 20);
  CHECK(t.stats().hit_tokens == 8);
  t.Check();
  REQUIRE(t.world.Close(here).ok());
  t.Flood(12);
  t.Cache(Tokens(900, 48));  // all blocks there are
  t.Step(reused, 20);
  CHECK(t.stats().hit_tokens == 8);
  t.Check();
}

TEST_CASE("K144: what is forgotten while it is on its way is no hit", "[cases]") {
  Late t(Options(12, 5, WritePolicy::kThrough));
  t.Cache(Tokens(0, 20));
  t.Flood(12);
  t.Check();
  const SequenceId b = *t.world.Open(Tokens(0, 24));
  const TransferId lost = *t.world.Fetch(b);
  REQUIRE(lost != TransferId::kNone);
  REQUIRE(t.cache().Clear().ok());
  t.Accept(lost);
  t.Step(b, 24);
  CHECK(t.stats().hit_tokens == 0);
  t.Check();
}

TEST_CASE("K145: a load may take for ever: nobody gets its places or blocks", "[cases]") {
  Late t(Options(12, 5, WritePolicy::kThrough));
  t.Cache(Tokens(0, 20));
  t.Flood(12);
  t.Check();
  const SequenceId a = *t.world.Open(Tokens(0, 20));
  const TransferId transfer = *t.world.Fetch(a);
  CHECK(t.stats().host_held == 4);
  const SequenceId s = t.Computed(Tokens(500, 12));  // gets the fifth place, of what is not fetched
  CHECK(t.stats().host_evicted == 1);
  CHECK(t.world.Suspend(s).status().code() == Code::kResourceExhausted);
  const SequenceId big = *t.world.Open(Tokens(700, 24));
  CHECK(t.world.Run({{.sequence = big, .num_tokens = 24}}, kSteps).code() ==
        Code::kResourceExhausted);
  for (TokenId i = 0; i < 4; ++i) {
    t.Cache(Tokens(1000 + 100 * i, 20));
    t.backend->RunOnly(kSteps);
    REQUIRE(t.cache().Poll()->finished_transfers.empty());
  }
  CHECK(t.stats().host_held == 4);
  t.Accept(transfer);
  t.Step(a, 20);
  CHECK(t.stats().hit_tokens == 16);
  t.Check();
}

}  // namespace
}  // namespace lariat
