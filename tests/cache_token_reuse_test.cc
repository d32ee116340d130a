// SPDX-License-Identifier: Apache-2.0
// Hits that end inside a block (Reuse::kToken), worked out by hand.
#include <algorithm>
#include <random>

#include "support/case_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;

CacheConfig Config(int block_size, std::int64_t blocks) {
  CacheConfig config = CaseCache::Config(block_size, blocks);
  config.reuse = Reuse::kToken;
  return config;
}

std::vector<TokenId> Range(TokenId first, std::int64_t count) {
  return CaseCache::Range(first, count);
}

std::vector<TokenId> Join(std::vector<TokenId> head, const std::vector<TokenId>& tail) {
  return CaseCache::Join(std::move(head), tail);
}

TEST_CASE("A hit is the longest common prefix, and never the whole prompt", "[cache]") {
  for (const int block : {1, 3, 4, 16, 64}) {
    CaseCache c(Config(block, 400));
    CaseCache::Must(c->Close(c.Start(Range(0, 50))));
    for (std::int64_t same = 0; same <= 50; ++same) {
      for (const std::int64_t more : {0, 1, 70}) {
        if (same + more == 0) continue;
        const std::vector<TokenId> prompt = Join(Range(0, same), std::vector<TokenId>(more, -7));
        const std::int64_t hit = std::min(same, same + more - 1);
        INFO("block " << block << ", " << same << " + " << more);
        CHECK(c.Match(prompt) == hit);
        const SequenceId id = c.Open(prompt);
        CHECK(c->Match(id)->tokens == hit);
        CHECK(c->Match(id)->blocks == hit / block);
        Step step = *c.Plan(id, std::ssize(prompt));
        CHECK(step.rows()[0].hit == hit);
        CHECK(step.rows()[0].start == hit);
        CHECK(step.rows()[0].count == same + more - hit);
        step = {};  // dropped: the next one finds the same
        CaseCache::Must(c->Close(id));
      }
    }
  }
}

TEST_CASE("The block that a hit ends in is copied, and held until the step ends", "[cache]") {
  CaseCache c(Config(4, 8));
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));  // blocks 0 and 1
  const SequenceId id = c.Open(Join(Range(0, 6), {90, 91}));
  Step step = *c.Plan(id, 8);
  CHECK(step.rows()[0].hit == 6);
  CHECK(c->GetStats().idle_blocks == 0);  // the source too
  CHECK(c->GetStats().reserved_blocks == 1);
  CaseCache::Must(c->Prepare(step, {}));
  CHECK(c.Table(id) == std::vector<int>{0, 2});
  CHECK(c->GetStats().copied_blocks == 1);
  CaseCache::Must(c->Commit(step, {}, {}));
  CHECK(c->GetStats().idle_blocks == 1);
  CHECK(c.Table(id) == std::vector<int>{0, 2});
  CHECK(c->GetStats().indexed_blocks == 3);
  CHECK(c.Match(Range(0, 9)) == 8);
  CHECK(c.Match(Join(Range(0, 6), {90, 91, 92})) == 8);
}

TEST_CASE("A source that is in the way is given up, not the plan", "[cache]") {
  CaseCache c(Config(4, 4));
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));
  // Four blocks are there: all are needed, the source too.
  const SequenceId id = c.Open(Join(Range(0, 6), Range(90, 10)));
  CHECK(c->Match(id)->tokens == 6);
  Step step = *c.Plan(id, 16);
  CHECK(step.rows()[0].hit == 4);
  CHECK(step.rows()[0].count == 12);
  step = {};
  // One row less is one block less.
  step = *c.Plan(id, 6);
  CHECK(step.rows()[0].hit == 6);
  step = {};
  // A source that somebody holds is in nobody's way: only its copy takes a block.
  CaseCache::Must(c->Close(id));
  const SequenceId holder = c.Start(Range(0, 9));
  const SequenceId other = c.Open(Join(Range(0, 6), {90}));
  step = *c.Plan(other, 7);
  CHECK(step.rows()[0].hit == 6);
  CHECK(c->GetStats().free_blocks + c->GetStats().idle_blocks == 0);
  CHECK(step.rows()[0].count == 1);
  step = {};
  CaseCache::Must(c->Close(holder));
}

TEST_CASE("Without room even so, the failure counts no copy from an idle block", "[cache]") {
  CaseCache c(Config(4, 4));
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));
  const SequenceId id = c.Open(Join(Range(0, 6), Range(90, 14)));
  PlanFailure failure;
  const std::string before = c->Snapshot();
  CHECK(c.Plan(id, 20, 0, &failure).status().code() == Code::kNeverFits);
  CHECK(failure.needed == 4);
  CHECK(failure.available == 3);
  CHECK(c->Snapshot() == before);
}

TEST_CASE("The last block of a sequence that ended is found by what it holds", "[cache]") {
  CaseCache c(Config(4, 8));
  const SequenceId a = c.Start(Range(0, 6));
  CHECK(c.Match(Range(0, 9)) == 4);  // still written to
  c.Feed(a, 1);                      // a row whose id nobody told
  CaseCache::Must(c->Close(a));
  CHECK(c.Match(Range(0, 9)) == 6);
  CHECK(c->GetStats().indexed_blocks == 2);
  CHECK(c->GetStats().idle_blocks == 2);
  // What it says more is not there twice.
  CaseCache::Must(c->Close(c.Start(Range(0, 6))));
  CaseCache::Must(c->Close(c.Start(Range(0, 5))));
  CHECK(c->GetStats().indexed_blocks == 2);
  CHECK(c->GetStats().free_blocks == 6);
  CaseCache::Must(c->Close(c.Start(Join(Range(0, 5), {70, 71}))));
  CHECK(c->GetStats().indexed_blocks == 3);
  CHECK(c.Match(Join(Range(0, 5), {70, 71, 72})) == 7);
  CHECK(c.Match(Range(0, 9)) == 6);
}

TEST_CASE("A last block that others need, or that holds old weights' rows, is not kept",
          "[cache]") {
  CaseCache c(Config(4, 8));
  const SequenceId a = c.Start(Range(0, 6));
  const SequenceId fork = *c->Fork(a);
  CaseCache::Must(c->Close(a));
  CHECK(c.Match(Range(0, 9)) == 4);
  CaseCache::Must(c->Close(fork));
  CHECK(c.Match(Range(0, 9)) == 6);
  const SequenceId b = c.Start(Range(20, 6));
  CaseCache::Must(c->Clear());
  CaseCache::Must(c->Close(b));
  CHECK(c->GetStats().free_blocks == 8);
}

TEST_CASE("What a fork shares enters the index only below blocks that the fork holds", "[cache]") {
  CaseCache c(4, 8);
  const SequenceId a = c.Start({0});
  c.Feed(a, 8);  // ids to come
  const SequenceId fork = *c->Fork(a, 8);
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(0, 4))));
  // Its first block has an equal now. Were the second one put below that, the equal one could be
  // evicted while the fork holds the second.
  CaseCache::Must(c->SetTokens(a, CaseCache::Range(1, 8)));
  CHECK(c->GetStats().merged_blocks == 0);
  CHECK(c->GetStats().indexed_blocks == 1);
  SECTION("the other closes: all of the pool can be had") {
    CaseCache::Must(c->Close(a));
    CaseCache::Must(c->Close(c.Start(CaseCache::Range(100, 24))));
    CHECK(c->GetStats().indexed_blocks == 6);
    CHECK(c->GetStats().evicted_blocks == 1);
  }
  SECTION("the fork closes: it is made up for") {
    CaseCache::Must(c->Close(fork));
    CaseCache::Must(c->SetTokens(a, {}));
    CHECK(c->GetStats().merged_blocks == 1);
    CHECK(c.Match(CaseCache::Range(0, 9)) == 8);
  }
}

TEST_CASE("Of children that agree equally long, the last one before the prompt is copied",
          "[cache]") {
  CaseCache c(Config(4, 20));
  for (const TokenId third : {50, 10, 40, 20}) {
    CaseCache::Must(c->Close(c.Start({1, 2, third, third})));  // blocks 0 to 3
  }
  const auto source = [&](const std::vector<TokenId>& prompt) {
    const SequenceId id = c.Open(prompt);
    Step step = c.Prepared(id, std::ssize(prompt));
    CHECK(step.rows()[0].hit == 2);
    int held = -1;
    const std::string text = c->Snapshot();
    for (int block = 0; block < 4; ++block) {
      if (text.find("block " + std::to_string(block) + " state 2") != std::string::npos) {
        CHECK(held == -1);
        held = block;
      }
    }
    CaseCache::Must(c->Discard(step, {}));
    CaseCache::Must(c->Close(id));
    return held;
  };
  CHECK(source({1, 2, 30, 0}) == 3);  // 20
  CHECK(source({1, 2, 45, 0}) == 2);  // 40
  CHECK(source({1, 2, 5, 0}) == 1);   // none before: 10
  CHECK(source({1, 2, 60, 0}) == 0);  // 50
  CHECK(source({1, 2, 0}) == 1);
}

TEST_CASE("A wide node and a deep path, against a plain search", "[cache]") {
  CacheConfig config = Config(4, 5000);
  config.max_tokens_per_sequence = 12000;
  config.max_tokens_per_step = 12000;
  CaseCache c(config);
  std::mt19937 random(7);
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < 1500; ++i) {
    std::vector<TokenId> prompt;
    for (int k = 0; k < 4; ++k) prompt.push_back(static_cast<TokenId>(random() % 9) - 4);
    prompts.push_back(prompt);
    CaseCache::Must(c->Close(c.Start(prompt)));
  }
  for (int i = 0; i < 3000; ++i) {
    std::vector<TokenId> asked;
    for (int k = 0; k < 2 + i % 4; ++k) asked.push_back(static_cast<TokenId>(random() % 11) - 5);
    std::int64_t best = 0;
    for (const std::vector<TokenId>& prompt : prompts) {
      const auto ends = std::mismatch(prompt.begin(), prompt.end(), asked.begin(), asked.end() - 1);
      best = std::max<std::int64_t>(best, ends.first - prompt.begin());
    }
    REQUIRE(c.Match(asked) == best);
  }
  const std::vector<TokenId> deep = Range(100, 12000);
  CaseCache::Must(c->Close(c.Start(deep)));
  CHECK(c.Match(deep) == 11999);
  CHECK(c.Match(Join(Range(100, 9998), {-1})) == 9998);
  CHECK(c->GetStats().indexed_blocks <= 5000);
}

}  // namespace
}  // namespace lariat
