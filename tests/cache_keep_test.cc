// SPDX-License-Identifier: Apache-2.0
// Pinned prefixes, and the removal of a prefix or of a salt, worked out by hand.
#include "support/case_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;

CacheConfig Config(int block_size, std::int64_t blocks, std::int64_t pinned) {
  CacheConfig config = CaseCache::Config(block_size, blocks);
  config.max_pinned_blocks = pinned;
  return config;
}

std::vector<TokenId> Range(TokenId first, std::int64_t count) {
  return CaseCache::Range(first, count);
}

std::vector<TokenId> Join(std::vector<TokenId> head, const std::vector<TokenId>& tail) {
  return CaseCache::Join(std::move(head), tail);
}

TEST_CASE("What is pinned is not evicted, up to the budget, all or nothing", "[cache]") {
  CaseCache c(Config(4, 6, 2));
  CaseCache::Must(c->Close(c.Start(Range(0, 12))));
  CHECK(c->Pin(Range(0, 12)).code() == Code::kResourceExhausted);
  CHECK(c->GetStats().pinned_blocks == 0);
  CHECK(c->Pin(Range(0, 16)).code() == Code::kInvalidArgument);  // not all of it is cached
  CaseCache::Must(c->Pin(Range(0, 11)));                         // two whole blocks
  CHECK(c->GetStats().pinned_blocks == 2);
  CHECK(c->GetStats().held_blocks == 2);
  CHECK(c->GetStats().idle_blocks == 1);
  CaseCache::Must(c->Pin(Range(0, 8)));  // again: counts once
  CHECK(c->GetStats().pinned_blocks == 2);
  CaseCache::Must(c->Close(c.Start(Range(50, 16))));
  CHECK(c.Match(Range(0, 13)) == 8);
  PlanFailure failure;
  const SequenceId big = c.Open(Range(100, 20));
  CHECK(c.Plan(big, 20, 0, &failure).status().code() == Code::kResourceExhausted);
  CHECK(failure.available == 4);
  CaseCache::Must(c->Unpin(Range(0, 8)));
  CHECK(c.Plan(big, 20).status().code() == Code::kResourceExhausted);
  CaseCache::Must(c->Unpin(Range(0, 8)));
  CHECK(c->GetStats().pinned_blocks == 0);
  CHECK(c->Unpin(Range(0, 8)).code() == Code::kInvalidArgument);
  c.Feed(big, 20);
  CHECK(c.Match(Range(0, 13)) < 8);
}

TEST_CASE("Only what was pinned itself is unpinned", "[cache]") {
  CaseCache c(Config(4, 6, 4));
  CaseCache::Must(c->Close(c.Start(Range(0, 12))));
  CaseCache::Must(c->Pin(Range(0, 12)));
  const std::string before = c->Snapshot();
  CHECK(c->Unpin(Range(0, 8)).code() == Code::kInvalidArgument);  // part of what is pinned
  CHECK(c->Snapshot() == before);
  CaseCache::Must(c->Pin(Range(0, 8)));
  CaseCache::Must(c->Unpin(Range(0, 8)));
  CHECK(c->Unpin(Range(0, 8)).code() == Code::kInvalidArgument);
  CHECK(c->GetStats().pinned_blocks == 3);
  CaseCache::Must(c->Pin(Range(0, 4)));
  CaseCache::Must(c->Unpin(Range(0, 12)));
  CHECK(c->GetStats().pinned_blocks == 1);
  CHECK(c->GetStats().idle_blocks == 2);
  CHECK(c->Unpin(Range(0, 12)).code() == Code::kInvalidArgument);
  CaseCache::Must(c->Unpin(Range(0, 4)));
  CHECK(c->GetStats().idle_blocks == 3);
}

TEST_CASE("A pin goes with the last of its blocks, and others stay", "[cache]") {
  CaseCache c(Config(4, 8, 4));
  CaseCache::Must(c->Close(c.Start(Range(0, 12))));
  for (const int pinned : {12, 12, 4}) CaseCache::Must(c->Pin(Range(0, pinned)));
  CHECK(c->GetStats().pinned_blocks == 3);
  CHECK(*c->Remove(Range(0, 10)) == 1);
  CHECK(c->GetStats().pinned_blocks == 1);
  CHECK(c->GetStats().idle_blocks == 1);
  CHECK(c->GetStats().free_blocks == 6);
  CHECK(c->Unpin(Range(0, 8)).code() == Code::kInvalidArgument);
  CaseCache::Must(c->Unpin(Range(0, 4)));
  CHECK(c->GetStats().pinned_blocks == 0);
  CaseCache::Must(c->Close(c.Start(Range(50, 28))));  // evicts one block: the deepest
  CHECK(c.Match(Range(0, 12)) == 4);
}

TEST_CASE("A prefix is removed with all that begins with it, and no more", "[cache]") {
  CaseCache c(Config(4, 16, 4));
  CaseCache::Must(c->Close(c.Start(Range(0, 12))));
  CaseCache::Must(c->Close(c.Start(Join(Range(0, 6), Range(90, 6)))));
  CaseCache::Must(c->Close(c.Start(Join(Range(0, 4), Range(80, 4)))));
  CHECK(c->GetStats().indexed_blocks == 6);
  CHECK(*c->Remove(Range(70, 3)) == 0);
  CHECK(*c->Remove(Range(0, 6)) == 4);  // both texts' second and third blocks
  CHECK(c.Match(Range(0, 13)) == 4);
  CHECK(c.Match(Join(Range(0, 4), Range(80, 5))) == 8);
  CHECK(c->GetStats().free_blocks == 14);
  CHECK(c->GetStats().evicted_blocks == 0);
  CHECK(*c->Remove(Range(0, 4)) == 2);
  CHECK(c->GetStats().free_blocks == 16);
}

TEST_CASE("What sequences and pins hold of a removed text is let go of for good", "[cache]") {
  CaseCache c(Config(4, 16, 4));
  const SequenceId a = c.Start(Range(0, 10));
  const SequenceId waiting = c.Open(Range(0, 10));
  CHECK(c->Match(waiting)->tokens == 8);
  CaseCache::Must(c->Pin(Range(0, 8)));
  CHECK(*c->Remove(Range(0, 2)) == 2);
  CHECK(c->GetStats().pinned_blocks == 0);
  CHECK(c->GetStats().held_blocks == 3);
  CHECK(c->Match(waiting)->tokens == 0);
  c.Feed(a, 2, {10, 11});  // fills its third block
  CHECK(c->GetStats().indexed_blocks == 0);
  CaseCache::Must(c->Close(a));
  CHECK(c->GetStats().free_blocks == 16);
  CHECK(c.Feed(waiting, 10) == 0);  // computed now: cached again
  CHECK(c.Match(Range(0, 10)) == 8);
}

TEST_CASE("All texts of a salt go, and no others", "[cache]") {
  CaseCache c(Config(4, 16, 4));
  const auto start = [&](const OpenOptions& options) {
    const SequenceId id = *c->Open(Range(0, 9), options);
    c.Feed(id, 9);
    CaseCache::Must(c->Close(id));
  };
  const OpenOptions one{.salt = "one"}, adapted{.salt = "one", .adapter = "a"}, two{.salt = "on"};
  for (const OpenOptions& options : {OpenOptions{}, one, adapted, two}) start(options);
  CHECK(c->GetStats().indexed_blocks == 8);
  CHECK(*c->RemoveSalt("one") == 4);
  CHECK(c->Match(Range(0, 9), one).tokens == 0);
  CHECK(c->Match(Range(0, 9), adapted).tokens == 0);
  CHECK(c->Match(Range(0, 9), two).tokens == 8);
  CHECK(c->Match(Range(0, 9)).tokens == 8);
  CHECK(*c->RemoveSalt("one") == 0);
  CHECK(*c->RemoveSalt("") == 2);
  CHECK(c->GetStats().indexed_blocks == 2);
}

TEST_CASE("Nothing is pinned or removed over a plan", "[cache]") {
  CaseCache c(Config(4, 16, 4));
  const SequenceId a = c.Start(Range(0, 9));
  Step step = *c.Plan(a, 1);
  const std::string before = c->Snapshot();
  CHECK(c->Pin(Range(0, 8)).code() == Code::kNotReady);
  CHECK(c->Unpin(Range(0, 8)).code() == Code::kNotReady);
  CHECK(c->Remove(Range(0, 8)).status().code() == Code::kNotReady);
  CHECK(c->RemoveSalt("").status().code() == Code::kNotReady);
  CHECK(c->Snapshot() == before);
}

TEST_CASE("Pins and a Clear", "[cache]") {
  CaseCache c(Config(4, 8, 8));
  CaseCache::Must(c->Close(c.Start(Range(0, 9))));
  CaseCache::Must(c->Pin(Range(0, 8)));
  CaseCache::Must(c->Clear());
  CHECK(c->GetStats().pinned_blocks == 0);
  CHECK(c->GetStats().free_blocks == 8);
  CacheConfig config = CaseCache::Config(4, 8);
  config.max_pinned_blocks = -1;
  CHECK(KVCache::Create(config).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace lariat
