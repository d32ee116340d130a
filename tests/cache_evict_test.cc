// SPDX-License-Identifier: Apache-2.0
// Which blocks stay in the cache: priorities, time and quotas, worked out by hand.
#include <limits>

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

CacheConfig Config(int block_size, std::int64_t blocks) {
  CacheConfig config = CaseCache::Config(block_size, blocks);
  config.eviction = EvictionPolicy::kPriority;
  config.max_pinned_blocks = blocks;
  return config;
}

// Whether a text of one block is cached.
bool Has(CaseCache& c, TokenId first, std::int64_t count = 4) {
  return c.Match(Range(first, count + 1)) == count;
}

TEST_CASE("The lowest priority goes first, the longest idle among equals", "[cache]") {
  CaseCache c(Config(4, 6));
  Serve(c, Range(100, 4), {{.priority = 90}});
  Serve(c, Range(200, 4));  // 35
  Serve(c, Range(300, 4), {{.priority = 10}});
  Serve(c, Range(400, 4), {{.priority = 35}});
  Serve(c, Range(500, 4), {{.priority = 10}});
  Serve(c, Range(600, 4), {{.priority = 0}});
  for (const TokenId victim : {600, 300, 500, 200, 400, 100}) {
    CHECK(Has(c, victim));
    Serve(c, Range(1000 + victim, 4), {{.priority = 100}});  // pushes one out
    CHECK(!Has(c, victim));
  }
  CHECK(c->GetStats().evicted_blocks == 6);
}

TEST_CASE("K115 with priorities: a block stays for as long as one below it", "[cases]") {
  CaseCache c(Config(2, 4));
  // Its last block is worth more than others, those above it less.
  Serve(c, Range(1, 6), {{0, 4, 5}, {4, 6, 90}});
  Serve(c, Range(50, 2));
  const Tokens asked = Range(1, 7);
  c.Start({90});
  CHECK(c.Match(asked) == 6);
  CHECK(!Has(c, 50, 2));  // younger, and gone
  c.Start({91, 92});
  CHECK(c.Match(asked) == 4);
  c.Start({92, 93});
  CHECK(c.Match(asked) == 2);
}

TEST_CASE("What is above a block of low priority is judged by itself once that is gone",
          "[cache]") {
  CaseCache c(Config(4, 4));
  Serve(c, Range(0, 12), {{8, 12, 1}});
  Serve(c, Range(100, 4), {{.priority = 20}});
  c.Start(Range(200, 4));
  CHECK(c.Match(Range(0, 13)) == 8);
  c.Start(Range(300, 4));
  CHECK(!Has(c, 100));
  CHECK(c.Match(Range(0, 13)) == 8);
}

// The blocks of 0.. that outlive one of priority `rival`, with a pool of just that.
std::int64_t Outlive(const Ranges& retention, int rival) {
  CaseCache c(Config(4, 5));
  Serve(c, Range(0, 16), retention);
  Serve(c, Range(100, 4), {{.priority = rival}});
  for (TokenId n = 0; Has(c, 100); ++n) c.Start({static_cast<TokenId>(1000 + n)});
  return c.Match(Range(0, 17)) / 4;
}

TEST_CASE("A block takes the greatest priority of the ranges that touch it", "[cache]") {
  CHECK(Outlive({}, 35) == 0);  // the same: older
  CHECK(Outlive({}, 34) == 4);
  CHECK(Outlive({{0, -1, 50}}, 40) == 4);
  CHECK(Outlive({{0, 8, 50}}, 40) == 2);
  CHECK(Outlive({{0, 9, 50}}, 40) == 3);  // one token of the third
  CHECK(Outlive({{3, 4, 50}}, 40) == 1);
  CHECK(Outlive({{12, 13, 50}}, 40) == 4);  // the last holds those above
  CHECK(Outlive({{16, 99, 50}}, 40) == 0);  // no such token
  CHECK(Outlive({{0, -1, 20}, {4, 5, 50}}, 40) == 2);
  CHECK(Outlive({{4, 5, 50}, {0, -1, 20}}, 40) == 2);
}

TEST_CASE("What is given last counts, and who gives nothing changes nothing", "[cache]") {
  CaseCache c(Config(4, 3));
  Serve(c, Range(0, 4), {{.priority = 90}});
  Serve(c, Range(0, 6));
  Serve(c, Range(0, 6), {{4, -1, 10}});  // not for this block
  Serve(c, Range(100, 4), {{.priority = 80}});
  Serve(c, Range(200, 4), {{.priority = 70}});
  Serve(c, Range(300, 4), {{.priority = 71}});
  CHECK(Has(c, 0));
  CHECK(!Has(c, 200));
  Serve(c, Range(0, 5), {{.priority = 1}});  // found by a hit, given at its Commit
  Serve(c, Range(400, 4), {{.priority = 71}});
  CHECK(Has(c, 0));  // there was a free block
  Serve(c, Range(500, 4), {{.priority = 71}});
  CHECK(!Has(c, 0));
  CHECK(Has(c, 100));
}

TEST_CASE("A plan or step that is taken back gives nothing", "[cache]") {
  CaseCache c(Config(4, 8));
  Serve(c, Range(0, 8), {{.priority = 90, .ttl_ms = 5}});
  Serve(c, Range(100, 8));
  CaseCache::Must(c->Expire(3));
  const auto id = *c->Open(Range(0, 9), {.retention = Ranges{{.priority = 1}}});
  const std::string before = c->Snapshot();
  for (int i = 0; i < 2; ++i) {
    Step step = *c.Plan(id, 9);
    CHECK(c->Expire(4).code() == Code::kNotReady);
    CHECK(c->SetQuota("", 1).code() == Code::kNotReady);
    CHECK(c->Snapshot() != before);
    step = Step();
    CHECK(c->Snapshot() == before);
  }
  Step step = c.Prepared(id, 9);
  CaseCache::Must(c->SetTokens(id, {}));
  CaseCache::Must(c->Discard(step, {}));
  CaseCache::Must(c->Close(id));
  c.Start(Range(200, 16));  // four free ones
  c.Start(Range(300, 8));
  CHECK(c.Match(Range(0, 9)) == 8);
  CHECK(c.Match(Range(100, 9)) == 0);
}

TEST_CASE("Retention ends so long after the last use, when the clock is told", "[cache]") {
  CaseCache c(Config(4, 4));
  CaseCache::Must(c->Expire(1000));
  Serve(c, Range(0, 4), {{.priority = 90, .ttl_ms = 50}});
  CaseCache::Must(c->Expire(1049));
  CHECK(c->GetStats().expired_blocks == 0);
  Serve(c, Range(0, 5));  // in use once more, by one that asks for nothing: counts from now
  CaseCache::Must(c->Expire(1098));
  CHECK(c->GetStats().expired_blocks == 0);
  const SequenceId held = c.Start(Range(0, 5));
  CaseCache::Must(c->Expire(5000));  // held: time does not pass
  CHECK(c->GetStats().expired_blocks == 0);
  CaseCache::Must(c->Close(held));
  Serve(c, Range(100, 4));
  CaseCache::Must(c->Expire(5049));
  CHECK(c->GetStats().expired_blocks == 0);
  CaseCache::Must(c->Expire(5050));
  CHECK(c->GetStats().expired_blocks == 1);
  c.Start(Range(200, 12));
  CHECK(!Has(c, 0));  // of the default now, and older
  CHECK(Has(c, 100));
}

TEST_CASE("A low priority ends too, and the age stays", "[cache]") {
  CaseCache c(Config(4, 2));
  Serve(c, Range(0, 4));
  Serve(c, Range(100, 4), {{.priority = 5, .ttl_ms = 10}});
  CaseCache::Must(c->Expire(10));
  c.Start({1});
  CHECK(!Has(c, 0));
  CHECK(Has(c, 100));
}

TEST_CASE("Of equal priorities the one that lasts longer is taken", "[cache]") {
  for (const bool turned : {false, true}) {
    CaseCache c(Config(4, 2));
    const Retention shorter{.priority = 90, .ttl_ms = 5}, longer{.priority = 90, .ttl_ms = 50};
    Serve(c, Range(0, 4), turned ? Ranges{longer, shorter} : Ranges{shorter, longer});
    const Retention ever{.priority = 90, .ttl_ms = 0};
    Serve(c, Range(100, 4), turned ? Ranges{longer, ever} : Ranges{ever, longer});
    CaseCache::Must(c->Expire(5));
    CHECK(c->GetStats().expired_blocks == 0);
    CaseCache::Must(c->Expire(50));
    CHECK(c->GetStats().expired_blocks == 1);
  }
}

TEST_CASE("The clock does not go back, and holds any time", "[cache]") {
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  CaseCache c(Config(4, 2));
  CHECK(c->Expire(-1).code() == Code::kInvalidArgument);
  CaseCache::Must(c->Expire(7));
  CaseCache::Must(c->Expire(7));
  const Status back = c->Expire(6);
  CHECK(back.code() == Code::kInvalidArgument);
  CHECK(back.message().find("now_ms 6") != std::string::npos);
  Serve(c, Range(0, 4), {{.priority = 90, .ttl_ms = kEnd}});
  CaseCache::Must(c->Expire(kEnd));
  CHECK(c->GetStats().expired_blocks == 0);
}

TEST_CASE("Retention that is out of range is refused by name", "[cache]") {
  CaseCache c(Config(4, 4));
  const std::string before = c->Snapshot();
  const auto message = [&](const Retention& range) {
    const auto opened = c->Open(Range(0, 4), {.retention = Ranges{{}, range}});
    CHECK(opened.status().code() == Code::kInvalidArgument);
    CHECK(c->Snapshot() == before);
    return opened.status().message();
  };
  CHECK(message({.first_token = -1}).find("retention[1].first_token -1") == 0);
  CHECK(message({.first_token = 3, .last_token = 3}).find("retention[1].last_token 3") == 0);
  CHECK(message({.last_token = -2}).find("retention[1].last_token -2") == 0);
  CHECK(message({.priority = -1}).find("retention[1].priority -1") == 0);
  CHECK(message({.priority = 101}).find("retention[1].priority 101") == 0);
  CHECK(message({.ttl_ms = -1}).find("retention[1].ttl_ms -1") == 0);
  CaseCache lru(4, 4);
  const auto refused = lru->Open(Range(0, 4), {.retention = Ranges{{}}});
  CHECK(refused.status().code() == Code::kInvalidArgument);
  CHECK(refused.status().message().find("lru") != std::string::npos);
  CaseCache::Must(lru->Expire(5));
  CHECK(lru->Expire(4).code() == Code::kInvalidArgument);
  CacheConfig config = Config(4, 4);
  config.eviction = static_cast<EvictionPolicy>(2);
  CHECK(KVCache::Create(config).status().code() == Code::kInvalidArgument);
}

TEST_CASE("A fork gives what its parent was to give", "[cache]") {
  CaseCache c(Config(4, 4));
  const SequenceId parent = Start(c, Range(0, 4), {{.priority = 90}});
  const SequenceId child = *c->Fork(parent);
  c.Feed(child, 4, Range(50, 4));
  CaseCache::Must(c->Close(parent));
  CaseCache::Must(c->Close(child));
  Serve(c, Range(100, 4));
  Serve(c, Range(200, 4));
  Serve(c, Range(300, 4));
  CHECK(c.Match(CaseCache::Join(Range(0, 4), Range(50, 5))) == 8);
  CHECK(!Has(c, 100));
}

TEST_CASE("A fork does not give again what its parent gave", "[cache]") {
  CaseCache c(Config(4, 5));
  const SequenceId parent = Start(c, Range(0, 4), {{.priority = 90}});
  const SequenceId child = *c->Fork(parent);
  Serve(c, Range(0, 5), {{.priority = 1}});
  c.Feed(child, 1, {50});
  CaseCache::Must(c->Close(parent));
  CaseCache::Must(c->Close(child));
  Serve(c, Range(100, 4));
  c.Start(Range(200, 16));
  CHECK(!Has(c, 0));
  CHECK(Has(c, 100));
}

TEST_CASE("A forgotten block's retention goes with it", "[cache]") {
  for (const bool clear : {false, true}) {
    CaseCache c(Config(4, 2));
    const SequenceId id = Start(c, Range(0, 4), {{.priority = 90, .ttl_ms = 9}});
    if (clear) {
      CaseCache::Must(c->Clear());
    } else {
      CHECK(*c->Remove(Range(0, 4)) == 1);
    }
    CaseCache::Must(c->Close(id));
    Serve(c, Range(0, 4));
    Serve(c, Range(100, 4));
    CaseCache::Must(c->Expire(9));
    CHECK(c->GetStats().expired_blocks == 0);
    c.Start({1});
    CHECK(!Has(c, 0));
  }
}

TEST_CASE("A partly filled last block has its retention too", "[cache]") {
  CacheConfig config = Config(4, 2);
  config.reuse = Reuse::kToken;
  CaseCache c(config);
  Serve(c, Range(0, 2), {{1, 2, 90}});
  Serve(c, Range(100, 2), {{2, 4, 95}});  // it has no third token
  Serve(c, Range(200, 4));
  CHECK(c.Match(Range(0, 3)) == 2);
  CHECK(c.Match(Range(100, 3)) == 0);
}

// --- Quotas -----------------------------------------------------------------------------------

const OpenOptions kOne{.salt = "one"}, kOther{.salt = "on"};

std::int64_t Match(CaseCache& c, TokenId first, const OpenOptions& options) {
  return c->Match(Range(first, 5), options).tokens;
}

TEST_CASE("A salt leaves no more idle blocks than its quota, its own oldest go", "[cache]") {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kPriority}) {
    CacheConfig config = Config(4, 16);
    config.eviction = policy;
    CaseCache c(config);
    Serve(c, Range(0, 4), {}, kOther);
    CaseCache::Must(c->SetQuota("one", 2));
    const OpenOptions adapted{.salt = "one", .adapter = "a"};
    Serve(c, Range(0, 4), {}, kOne);
    Serve(c, Range(100, 4), {}, adapted);  // the same salt
    CHECK(c->GetStats().idle_blocks == 3);
    Serve(c, Range(200, 4), {}, kOne);
    CHECK(c->GetStats().idle_blocks == 3);
    CHECK(c->GetStats().free_blocks == 13);
    CHECK(c->GetStats().quota_evicted_blocks == 1);
    CHECK(c->GetStats().evicted_blocks == 0);
    CHECK(Match(c, 0, kOne) == 0);
    CHECK(Match(c, 100, adapted) == 4);
    CHECK(Match(c, 0, kOther) == 4);
    // What is used again is the youngest.
    Serve(c, Range(100, 5), {}, adapted);
    Serve(c, Range(300, 4), {}, kOne);
    CHECK(Match(c, 100, adapted) == 4);
    CHECK(Match(c, 200, kOne) == 0);
  }
}

TEST_CASE("A quota is for what is idle, and goes leaf first", "[cache]") {
  CaseCache c(4, 32);
  CaseCache::Must(c->SetQuota("one", 3));
  const SequenceId held = Start(c, Range(0, 20), {}, kOne);  // five blocks
  CHECK(c->GetStats().held_blocks == 5);
  CaseCache::Must(c->Close(held));
  CHECK(c->Match(Range(0, 21), kOne).tokens == 12);
  CHECK(c->GetStats().quota_evicted_blocks == 2);
  const SequenceId again = Start(c, Range(0, 21), {}, kOne);
  Serve(c, Range(100, 12), {}, kOne);  // three more are idle: no one goes
  CHECK(c->GetStats().quota_evicted_blocks == 2);
  CaseCache::Must(c->Close(again));
  CHECK(c->GetStats().idle_blocks == 3);
  CHECK(c->Match(Range(0, 21), kOne).tokens == 12);
  CHECK(c->Match(Range(100, 13), kOne).tokens == 0);
}

TEST_CASE("A quota of none, of less and of no limit", "[cache]") {
  CaseCache c(4, 32);
  Serve(c, Range(0, 8), {}, kOne);
  Serve(c, Range(100, 8), {}, kOne);
  Serve(c, Range(0, 8), {}, kOther);
  Serve(c, Range(0, 9), {}, kOne);         // younger than 100..
  CaseCache::Must(c->SetQuota("one", 3));  // for what is there already
  CHECK(Match(c, 0, kOne) == 4);
  CHECK(c->Match(Range(100, 9), kOne).tokens == 4);
  CaseCache::Must(c->SetQuota("one", 1));
  CHECK(c->Match(Range(0, 9), kOne).tokens == 4);
  CHECK(c->Match(Range(100, 9), kOne).tokens == 0);
  CaseCache::Must(c->SetQuota("one", 0));
  CHECK(c->GetStats().idle_blocks == 2);
  Serve(c, Range(0, 8), {}, kOne);
  CHECK(c->GetStats().idle_blocks == 2);
  const std::string full = c->Snapshot();
  CHECK(c->SetQuota("one", -2).code() == Code::kInvalidArgument);
  CHECK(c->Snapshot() == full);
  const SequenceId open = Start(c, Range(0, 8), {}, kOne);  // open while the quota goes
  CaseCache::Must(c->SetQuota("one", -1));
  CaseCache::Must(c->SetQuota("nobody", -1));
  CaseCache::Must(c->Close(open));
  Serve(c, Range(100, 8), {}, kOne);
  CHECK(c->GetStats().idle_blocks == 6);
  const SequenceId later = Start(c, Range(200, 8), {}, kOne);  // and while another comes
  CaseCache::Must(c->SetQuota("one", 5));
  CaseCache::Must(c->Close(later));
  CHECK(c->GetStats().idle_blocks == 7);
}

TEST_CASE("Quotas follow priorities and time", "[cache]") {
  CaseCache c(Config(4, 32));
  Serve(c, Range(0, 4), {{.priority = 90, .ttl_ms = 10}}, kOne);
  const SequenceId held = Start(c, Range(100, 4), {{.priority = 60}}, kOne);
  CaseCache::Must(c->SetQuota("one", 2));  // takes over what was given before
  CaseCache::Must(c->Close(held));
  Serve(c, Range(200, 4), {}, kOne);  // the lowest: goes at once
  CHECK(Match(c, 0, kOne) == 4);
  CHECK(Match(c, 100, kOne) == 4);
  CHECK(Match(c, 200, kOne) == 0);
  CaseCache::Must(c->Expire(10));
  Serve(c, Range(300, 4), {{.priority = 50}}, kOne);
  CHECK(Match(c, 0, kOne) == 0);
  CHECK(Match(c, 100, kOne) == 4);
  CHECK(Match(c, 300, kOne) == 4);
}

TEST_CASE("Pins, their end and a removal keep to the quota", "[cache]") {
  CaseCache c(Config(4, 32));
  CaseCache::Must(c->SetQuota("one", 1));
  const SequenceId id = Start(c, Range(0, 12), {}, kOne);
  CaseCache::Must(c->Pin(Range(0, 12), kOne));
  CaseCache::Must(c->Close(id));
  CHECK(c->Match(Range(0, 13), kOne).tokens == 12);
  CHECK(*c->Remove(Range(0, 9), kOne) == 1);  // the pin goes, two are idle, one too many
  CHECK(c->Match(Range(0, 13), kOne).tokens == 4);
  CHECK(c->GetStats().idle_blocks == 1);
  const SequenceId more = Start(c, Range(0, 13), {}, kOne);
  CaseCache::Must(c->Pin(Range(0, 8), kOne));
  CaseCache::Must(c->Close(more));
  CHECK(c->GetStats().idle_blocks == 1);  // the third block
  CaseCache::Must(c->Unpin(Range(0, 8), kOne));
  CHECK(c->Match(Range(0, 13), kOne).tokens == 4);
}

TEST_CASE("A plan over a salt with a quota is undone exactly", "[cache]") {
  CaseCache c(Config(4, 6));
  CaseCache::Must(c->SetQuota("one", 4));
  Serve(c, Range(0, 12), {{0, 4, 50}, {4, 12, 20, 7}}, kOne);
  Serve(c, Range(100, 4), {}, kOther);
  const auto hit = *c->Open(Range(0, 9), kOne);
  const SequenceId big = c.Open(Range(200, 8));
  const std::string before = c->Snapshot();
  for (int i = 0; i < 3; ++i) {
    const StepItem items[] = {{hit, 9, 0, {}}, {big, 8, 0, {}}};
    Step step = *c->Plan(items);  // claims two blocks, evicts one of the salt's
    step = Step();
    REQUIRE(c->Snapshot() == before);
  }
  CaseCache::Must(c->SetQuota("one", 2));
  CHECK(c->Match(Range(0, 13), kOne).tokens == 8);
  CaseCache::Must(c->Expire(7));
  CHECK(c->GetStats().expired_blocks == 1);
}

TEST_CASE("Pools without a limit have priorities and quotas", "[cache]") {
  CacheConfig config = Config(4, 0);
  config.memory.unlimited = true;
  CaseCache c(config);
  CaseCache::Must(c->SetQuota("one", 100));
  for (TokenId n = 0; n < 60; ++n) {
    Serve(c, Range(1000 * n, 200), {{.priority = static_cast<int>(n), .ttl_ms = 1}}, kOne);
  }
  CHECK(c->GetStats().idle_blocks == 100);
  CHECK(Match(c, 59000, kOne) == 4);
  CHECK(Match(c, 58000, kOne) == 4);
  CHECK(Match(c, 57000, kOne) == 0);
  CaseCache::Must(c->Expire(1));
  CHECK(c->GetStats().expired_blocks == 100);
}

}  // namespace
}  // namespace lariat
