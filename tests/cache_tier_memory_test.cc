// SPDX-License-Identifier: Apache-2.0
// The host tier and host memory: calls that run out of it change nothing, steady ones take none.
#include "support/case_cache.h"
#include "support/count_new.h"
#include "support/make_at_last.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::MakeAtLast;

CacheConfig Config(std::int64_t blocks, std::int64_t places, WritePolicy write) {
  CacheConfig config = CaseCache::Config(1, blocks);
  config.host = {.num_blocks = places, .write = write};
  config.max_sequences = 4;
  return config;
}

TEST_CASE("Tier: Commit and Close that write run out of memory", "[tier]") {
  for (const WritePolicy write : {WritePolicy::kThrough, WritePolicy::kBack}) {
    CaseCache c(Config(40, 100, write));
    const SequenceId a = c.Open(CaseCache::Range(0, 30));
    Step step = c.Prepared(a, 30);
    MakeAtLast(c, [&] { return c->Commit(step, {}, {}); });
    MakeAtLast(c, [&] { return c->Close(a); });
    CHECK(c.Match(CaseCache::Range(0, 31)) == 30);
    CHECK(c->GetStats().offloaded_blocks > 0);
  }
}

TEST_CASE("Tier: calls that run out of memory change nothing", "[tier]") {
  CaseCache c(Config(40, 100, WritePolicy::kThrough));
  const auto prompt = CaseCache::Range(0, 30);
  const SequenceId a = c.Start(prompt);
  CHECK(MakeAtLast(c, [&] { return c->Suspend(a).status(); }) > 0);
  const SequenceId flood = c.Start(CaseCache::Range(900, 40));
  CaseCache::Must(c->Close(flood));
  TransferId transfer = TransferId::kNone;
  CHECK(MakeAtLast(c, [&] {
          const auto resumed = c->Resume(a);
          if (resumed.ok()) transfer = *resumed;
          return resumed.status();
        }) > 0);
  CHECK(transfer != TransferId::kNone);
  CHECK(MakeAtLast(c, [&] { return c->Accept(transfer).status(); }) == 0);
  CHECK(c.Table(a).size() == 30);
  CaseCache::Must(c->Close(a));
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(900, 40))));
  const SequenceId b = c.Open(prompt);
  CHECK(MakeAtLast(c, [&] {
          const auto fetched = c->Fetch(b);
          if (fetched.ok()) transfer = *fetched;
          return fetched.status();
        }) > 0);
  CaseCache::Must(c->Accept(transfer).status());
  CHECK(c.Feed(b, 30) == 29);
}

// Steps whose blocks are evicted, written and evicted again.
std::int64_t AllocationsOfSteadySteps(WritePolicy write) {
  CacheConfig config = Config(64, 100, write);
  config.max_sequences = 8;
  CaseCache c(config);
  TokenId next = 0;
  std::vector<TokenId> prompt(4);
  const auto serve = [&] {
    for (TokenId& token : prompt) token = next++ % 1000;
    const auto id = c->Open(prompt);
    const StepItem item{*id, 4, 0, {}};
    auto step = c->Plan(std::span(&item, 1));
    if (!step.ok() || !c->Prepare(*step, {}).ok() || !c->Commit(*step, {}, {}).ok() ||
        !c->Close(*id).ok()) {
      std::abort();
    }
  };
  // A root of the index stays while there are blocks below it, so none is made here.
  for (int i = 0; i < 400; ++i) serve();
  const std::int64_t before = testing::CountOfNew();
  const std::int64_t written = c->GetStats().offloaded_blocks;
  for (int i = 0; i < 1000; ++i) serve();
  const std::int64_t after = testing::CountOfNew();
  CHECK(c->GetStats().offloaded_blocks > written + 1000);
  CHECK(c->GetStats().host_evicted > 1000);
  return after - before;
}

TEST_CASE("Tier: 1000 steps that evict and write allocate nothing", "[tier]") {
  CHECK(AllocationsOfSteadySteps(WritePolicy::kBack) == 0);
  CHECK(AllocationsOfSteadySteps(WritePolicy::kThrough) == 0);
}

}  // namespace
}  // namespace lariat
