// SPDX-License-Identifier: Apache-2.0
// Priorities and quotas where there is a host tier, worked out by hand.
#include "support/case_cache.h"
#include "support/lives.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Range;
using testing::Ranges;
using testing::Serve;
using testing::Start;
using testing::Tokens;

const OpenOptions kTenant{.salt = "tenant"};

CacheConfig Config(std::int64_t blocks, WritePolicy write, std::int64_t clean = 0) {
  CacheConfig config = CaseCache::Config(1, blocks);
  config.eviction = EvictionPolicy::kPriority;
  config.host = {.num_blocks = 40, .write = write, .clean_blocks = clean};
  return config;
}

// Pushes `count` idle blocks out of a cache that is full.
void Push(CaseCache& c, std::int64_t count) {
  const Stats before = c->GetStats();
  CaseCache::Must(c->Close(Start(c, Range(9000, before.free_blocks + count))));
  REQUIRE(c->GetStats().evicted_blocks == before.evicted_blocks + count);
  REQUIRE(c->Remove(Range(9000, 1)).ok());
}

TransferId Must(const Result<TransferId>& result) {
  if (!result.ok()) FAIL(result.status().ToString());
  return *result;
}

void Accept(CaseCache& c, TransferId id) {
  const auto report = c->Accept(id);
  REQUIRE(report.ok());
  REQUIRE_FALSE(report->failed);
}

TEST_CASE("Tier: what goes next by priority is written first", "[tier]") {
  CaseCache c(Config(12, WritePolicy::kBack, 2));
  Serve(c, Range(0, 4), {{.priority = 60}});
  CHECK(c->GetStats().offloaded_blocks == 2);
  // The next victims are others now, though none was taken.
  Serve(c, Range(100, 2), {{.priority = 10}});
  CHECK(c->GetStats().offloaded_blocks == 4);
  Push(c, 2);
  CHECK(c->Match(Range(100, 3)).tokens == 0);
  CHECK(c->Match(Range(100, 3)).host_tokens == 2);
  CHECK(c.Match(Range(0, 5)) == 4);
}

TEST_CASE("Tier: what falls to the default priority is written", "[tier]") {
  CaseCache c(Config(12, WritePolicy::kBack, 2));
  Serve(c, Range(100, 2), {{.priority = 50}});
  Serve(c, Range(0, 2), {{.priority = 80, .ttl_ms = 10}});
  CHECK(c->GetStats().offloaded_blocks == 2);
  CaseCache::Must(c->Expire(10));
  CHECK(c->GetStats().expired_blocks == 2);
  CHECK(c->GetStats().offloaded_blocks == 4);
  Push(c, 2);
  CHECK(c.Match(Range(100, 3)) == 2);
  CHECK(c.Match(Range(0, 3)) == 0);
  CHECK(c->Match(Range(0, 3)).host_tokens == 2);
}

TEST_CASE("Tier: what a quota pushes out stays in host memory if it has a copy", "[tier]") {
  for (const bool copies : {true, false}) {
    CaseCache c(Config(12, copies ? WritePolicy::kThrough : WritePolicy::kAfterHits));
    CaseCache::Must(c->SetQuota("tenant", 2));
    Serve(c, Range(0, 5), {}, kTenant);
    Serve(c, Range(0, 5));  // another salt's
    const Stats stats = c->GetStats();
    CHECK(stats.quota_evicted_blocks == 3);
    CHECK(stats.evicted_blocks == 0);
    CHECK(stats.idle_blocks == 7);
    CHECK(stats.host_used == (copies ? 10 : 0));
    CHECK(c->Match(Range(0, 6), kTenant).tokens == 2);
    CHECK(c->Match(Range(0, 6), kTenant).host_tokens == (copies ? 5 : 2));
  }
}

TEST_CASE("Tier: of salts over their quotas at once the first in order goes first", "[tier]") {
  const OpenOptions one{.salt = "one"}, two{.salt = "two"};
  for (const bool swapped : {false, true}) {
    CacheConfig config = Config(12, WritePolicy::kThrough);
    config.host.num_blocks = 2;
    CaseCache c(config);
    std::vector<StepItem> items;
    for (const OpenOptions& options : {swapped ? two : one, swapped ? one : two}) {
      CaseCache::Must(c->SetQuota(options.salt, 0));
      items.push_back({*c->Open(Range(0, 1), options), 1, 0, {}});
    }
    auto step = c->Plan(items);
    REQUIRE(step.ok());
    CaseCache::Must(c->Prepare(*step, {}));
    CaseCache::Must(c->Commit(*step, {}, {}));
    step = c->Plan(items);
    REQUIRE(step.ok());
    CaseCache::Must(c->Prepare(*step, {}));
    for (const StepItem& item : items) CaseCache::Must(c->Close(item.sequence));
    CHECK(c->GetStats().quota_evicted_blocks == 0);
    CaseCache::Must(c->Commit(*step, {}, {}));
    CHECK(c->GetStats().quota_evicted_blocks == 2);
    Serve(c, Range(100, 1));  // its copy takes the place of what left first
    CHECK(c->Match(Range(0, 2), one).host_tokens == 0);
    CHECK(c->Match(Range(0, 2), two).host_tokens == 1);
  }
}

TEST_CASE("Tier: a quota counts what a Suspend lets go of and what a Fetch brought", "[tier]") {
  CaseCache c(Config(12, WritePolicy::kThrough));
  const SequenceId a = Start(c, Range(0, 5), {}, kTenant);
  CaseCache::Must(c->SetQuota("tenant", 3));
  CHECK(Must(c->Suspend(a)) == TransferId::kNone);  // all had copies
  CHECK(c->GetStats().idle_blocks == 3);
  CHECK(c->GetStats().quota_evicted_blocks == 2);
  const TransferId back = Must(c->Resume(a));
  CHECK(c->GetStats().in_transit_blocks == 2);
  Accept(c, back);
  CHECK(c.Table(a).size() == 5);
  CHECK(c->GetStats().quota_evicted_blocks == 2);
  CaseCache::Must(c->Close(a));
  CHECK(c->GetStats().quota_evicted_blocks == 4);
  // Blocks that came back count for the salt again, of a sequence that is closed too.
  const auto b = c->Open(Range(0, 6), kTenant);
  REQUIRE(b.ok());
  const TransferId brought = Must(c->Fetch(*b));
  CaseCache::Must(c->Close(*b));
  Accept(c, brought);
  CHECK(c->GetStats().idle_blocks == 3);
  CHECK(c->GetStats().quota_evicted_blocks == 6);
  CaseCache::Must(c->SetQuota("tenant", 0));
  CHECK(c->GetStats().idle_blocks == 0);
  CHECK(c->Match(Range(0, 6), kTenant).host_tokens == 5);
}

TEST_CASE("Tier: a quota that is set counts texts that have other numbers than their blocks",
          "[tier]") {
  CaseCache c(Config(6, WritePolicy::kThrough));
  Serve(c, Range(0, 6), {}, kTenant);
  Serve(c, Range(100, 6));               // in the same blocks
  Serve(c, Range(200, 4), {}, kTenant);  // so are these
  CaseCache::Must(c->SetQuota("tenant", 3));
  CHECK(c->GetStats().quota_evicted_blocks == 1);
  CHECK(c->Match(Range(200, 5), kTenant).tokens == 3);
  CHECK(c.Match(Range(100, 7)) == 2);
  CHECK(c->Match(Range(0, 7), kTenant).host_tokens == 6);
}

TEST_CASE("Tier: a sequence that comes back gives its retention again, a Fetch gives none",
          "[tier]") {
  for (const bool resumes : {true, false}) {
    CaseCache c(Config(8, WritePolicy::kThrough));
    const Ranges high{{.priority = 90}};
    SequenceId a = Start(c, Range(0, 3), high);
    if (resumes) {
      Must(c->Suspend(a));
    } else {
      CaseCache::Must(c->Close(a));
    }
    const SequenceId all = Start(c, Range(300, 8));
    CHECK(c.Match(Range(0, 4)) == 0);
    CaseCache::Must(c->Close(all));
    if (resumes) {
      Accept(c, Must(c->Resume(a)));
    } else {
      a = c.Open(Range(0, 4));
      Accept(c, Must(c->Fetch(a)));
    }
    CaseCache::Must(c->Close(a));
    // Older than what follows.
    REQUIRE(c->Remove(Range(300, 1)).ok());
    Serve(c, Range(400, 3), {{.priority = 50}});
    Push(c, 3);
    CHECK(c.Match(Range(0, 4)) == (resumes ? 3 : 0));
    CHECK(c.Match(Range(400, 4)) == (resumes ? 0 : 3));
  }
}

}  // namespace
}  // namespace lariat
