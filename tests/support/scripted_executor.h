// SPDX-License-Identifier: Apache-2.0
// A model for tests of Session: counts tokens up, and keeps what it was given.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/session.h"
#include "support/catch.h"

namespace lariat::test {

// One item of one step, with its tokens copied.
struct SeenItem {
  std::int64_t step = 0;  // from 1
  std::uint64_t tag = 0;
  std::int64_t start = 0;
  std::int64_t count = 0;
  std::int64_t drafts = 0;
  bool samples = false;
  std::vector<TokenId> tokens;
  std::vector<TokenId> cached;
  int beam = 0;
};

// Each step takes one second. The i-th output token of the request with tag t is 1000 * (t + 1) +
// i.
class ScriptedExecutor : public Executor {
 public:
  Status Run(const ExecutorStep& step, ExecutorOutput& output) override {
    ++steps;
    CHECK(!step.items.empty());
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < step.items.size(); ++i) {
      const ExecutorItem& item = step.items[i];
      CHECK(item.first_row == rows);
      CHECK(std::ssize(item.tokens) == item.count);
      rows += item.count;
      seen.push_back({steps,
                      item.tag,
                      item.start,
                      item.count,
                      item.drafts,
                      item.samples,
                      {item.tokens.begin(), item.tokens.end()},
                      {item.cached.begin(), item.cached.end()},
                      item.beam});
      // What a first check of an output finds; anything else means it was not reset.
      CHECK(output.accepted[i] == 0);
      CHECK(output.stop[i] == 0);
      CHECK(output.drafts[i].empty());
      CHECK(output.first[i].empty());
      CHECK(output.parents[i] == item.beam);
      if (item.samples) output.next[i] = NextToken(item.tag);
    }
    CHECK(rows == step.step.num_tokens());
    output.seconds = 1;
    if (hook) hook(step, output);
    return status;
  }

  TokenId NextToken(std::uint64_t tag) {
    return static_cast<TokenId>(1000 * (tag + 1)) + produced[tag]++;
  }
  // Items of one step.
  std::vector<SeenItem> Step(std::int64_t number) const {
    std::vector<SeenItem> items;
    for (const SeenItem& item : seen) {
      if (item.step == number) items.push_back(item);
    }
    return items;
  }

  std::int64_t steps = 0;
  std::vector<SeenItem> seen;
  std::map<std::uint64_t, TokenId> produced;
  std::function<void(const ExecutorStep&, ExecutorOutput&)> hook;
  Status status;
};

// Keeps what it is told.
class RecordingObserver : public SessionObserver {
 public:
  struct End {
    std::uint64_t tag = 0;
    std::int64_t settled = 0;
    bool finished = false;
    int beam = 0;
    SequenceEndReason reason = SequenceEndReason::kFinished;
  };
  explicit RecordingObserver(KVCache* cache_in) : cache(cache_in) {}

  void OnTokens(RequestId, std::uint64_t tag, int beam, std::span<const TokenId> tokens) override {
    std::vector<TokenId>& all = beam == 0 ? streamed[tag] : others[{tag, beam}];
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  Status OnSequenceEnd(const SequenceEnd& end) override {
    const Result<Extent> extent = cache->GetExtent(end.sequence);
    REQUIRE(extent.ok());
    CHECK(extent->settled == end.settled);
    CHECK(extent->planned == end.settled);
    ends.push_back(
        {end.tag, end.settled, end.reason == SequenceEndReason::kFinished, end.beam, end.reason});
    return status;
  }
  void OnDone(const RequestResult& result) override { done.push_back(result); }

  KVCache* cache;
  std::map<std::uint64_t, std::vector<TokenId>> streamed;  // of first beams
  std::map<std::pair<std::uint64_t, int>, std::vector<TokenId>> others;
  std::vector<End> ends;
  std::vector<RequestResult> done;
  Status status;
};

}  // namespace lariat::test
