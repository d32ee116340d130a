// SPDX-License-Identifier: Apache-2.0
// Reported faults, continued: allocation, rollback, several devices. See
// cache_cases_test.cc.
#include <algorithm>
#include <limits>

#include "support/case_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
constexpr auto Range = CaseCache::Range;
constexpr auto Join = CaseCache::Join;

// --- Allocation and rollback ----------------------------------------------------------------

TEST_CASE("K127: taking tokens back", "[cases]") {
  const auto after = [](std::int64_t length) -> std::int64_t {
    CaseCache c(4, 8);
    const SequenceId id = c.Start({1, 2, 3});
    const std::string before = c->Snapshot();
    const Status status = c->Truncate(id, length);
    if (status.ok()) return c.Settled(id);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(c->Snapshot() == before);
    return -1;
  };
  CHECK(after(3) == 3);
  CHECK(after(2) == 2);
  CHECK(after(0) == 0);
  CHECK(after(-1) == -1);
  CHECK(after(-5) == -1);
  CHECK(after(4) == 3);  // longer than the sequence: no change
}

TEST_CASE("K128, K130: only the rejected drafts are taken back", "[cases]") {
  for (const std::int64_t accepted : {0, 1, 2, 3, 4}) {
    CaseCache c(16, 20);
    const SequenceId id = c.Start(Range(0, 100));
    Step step = c.Prepared(id, 5, 4);
    CHECK(c->GetExtent(id)->planned == 101);
    const StepCommit commit{id, 1 + accepted, {}};
    CaseCache::Must(c->Commit(step, std::span(&commit, 1), {}));
    CHECK(c.Settled(id) == 101 + accepted);
    CHECK(std::ssize(c.Table(id)) == 7);  // ceil(105 / 16)
  }
}

TEST_CASE("K129: counts of another round are refused", "[cases]") {
  CaseCache c(4, 8);
  const SequenceId id = c.Start({1, 2, 3});
  Step step = c.Prepared(id, 2, 1);
  const std::string before = c->Snapshot();
  for (const std::int64_t kept : {-2, 0, 3, 4}) {
    const StepCommit commit{id, kept, {}};
    CHECK(c->Commit(step, std::span(&commit, 1), {}).code() == Code::kInvalidArgument);
    CHECK(c->Snapshot() == before);
    CHECK(step.valid());
  }
  CaseCache::Must(c->Commit(step, {}, {}));
  CHECK(c.Settled(id) == 5);
}

TEST_CASE("K110: whenever a sequence ends, what it used is available again", "[cases]") {
  CaseCache c(4, 8);
  for (int round = 0; round < 3; ++round) {
    for (const char* when : {"opened", "planned", "prepared", "dropped", "settled", "in a step"}) {
      CAPTURE(round, when);
      const std::string end = when;
      const SequenceId id = c.Open(CaseCache::Range(0, 10));
      if (end == "planned") {
        Step step = *c.Plan(id, 10);
        CHECK(c.Available() == 8 - 3);
      } else if (end == "prepared" || end == "dropped") {
        Step step = c.Prepared(id, 10);
        CHECK(c.Available() == 8 - 3);
        CaseCache::Must(end == "dropped" ? c->Discard(step, {}) : c->Close(id));
        if (end == "prepared") CaseCache::Must(c->Commit(step, {}, {}));
      } else if (end != "opened") {
        c.Feed(id, 10);
        CHECK(c->GetStats().held_blocks == 3);
        if (end == "in a step") {
          Step step = c.Prepared(id, 4);
          CaseCache::Must(c->Close(id));
          CaseCache::Must(c->Commit(step, {}, {}));
        }
      }
      if (end != "prepared" && end != "in a step") CaseCache::Must(c->Close(id));
      const Stats stats = c->GetStats();
      CHECK(stats.held_blocks + stats.reserved_blocks == 0);
      CHECK(stats.sequences + stats.live_steps == 0);
      CHECK(c.Available() == 8);
    }
  }
}

// Takes all that is available: no block may come twice, nor one that a sequence of `others` has.
void CheckEachOnce(CaseCache& c, const std::vector<SequenceId>& others, int block_size) {
  std::vector<int> seen;
  const std::int64_t available = c.Available();
  const SequenceId all = c.Open({});
  Step step = c.Prepared(all, available * block_size);
  for (const SequenceId id : others) {
    for (const int block : c.Table(id)) seen.push_back(block);
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());  // sequences share
  const std::size_t held = seen.size();
  for (const int block : c.Table(all)) seen.push_back(block);
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  CHECK(std::ssize(seen) == c->GetStats().total_blocks);
  CHECK(static_cast<std::int64_t>(held) + available == c->GetStats().total_blocks);
  CaseCache::Must(c->Discard(step, {}));
  CaseCache::Must(c->Close(all));
}

TEST_CASE("K111: the step that runs beside an end gives its blocks back once", "[cases]") {
  for (const char* path : {"committed", "discarded", "dropped", "closed twice"}) {
    CAPTURE(path);
    const std::string end = path;
    CacheConfig config = CaseCache::Config(4, 12);
    config.max_steps_in_flight = 2;
    CaseCache c(config);
    const SequenceId b = c.Start(CaseCache::Range(0, 9));
    const SequenceId a = c.Start(CaseCache::Join(CaseCache::Range(0, 8), {70, 71, 72, 73}));
    Step first = c.Prepared(a, 1), extra = c.Prepared(a, 4);  // of the finished one
    CaseCache::Must(c->Close(a));
    if (end == "closed twice") CHECK(c->Close(a).code() == Code::kInvalidArgument);
    CHECK(c->GetStats().reserved_blocks > 0);
    if (end == "discarded") {
      CaseCache::Must(c->Discard(extra, {}));
    } else if (end == "dropped") {
      const Step gone = std::move(extra);
    }
    CaseCache::Must(c->Commit(first, {}, {}));
    if (extra.valid() && end != "discarded") CaseCache::Must(c->Commit(extra, {}, {}));
    CHECK(c->GetStats().reserved_blocks == 0);
    CHECK(c->GetStats().held_blocks == 3);
    CHECK(c.Available() == 12 - 3);
    CheckEachOnce(c, {b}, 4);
  }
}

TEST_CASE("K113: a block that two leaves stand on is counted once", "[cases]") {
  CaseCache c(4, 8);
  const auto root = CaseCache::Range(0, 4);
  const SequenceId a = c.Start(CaseCache::Join(root, CaseCache::Range(10, 4)));
  const SequenceId b = c.Start(CaseCache::Join(root, CaseCache::Range(20, 4)));
  const auto check = [&](std::int64_t free, std::int64_t idle, std::int64_t held) {
    const Stats stats = c->GetStats();
    CHECK(stats.free_blocks == free);
    CHECK(stats.idle_blocks == idle);
    CHECK(stats.held_blocks == held);
    CHECK(free + idle + held == stats.total_blocks);
  };
  check(5, 0, 3);
  CaseCache::Must(c->Close(a));
  check(5, 1, 2);
  CaseCache::Must(c->Close(b));
  check(5, 3, 0);
  // What is told to be available is: all of it, and no more.
  const SequenceId one = c.Start({90});
  const SequenceId most = c.Open({});
  PlanFailure failure;
  CHECK(c.Plan(most, 29, 0, &failure).status().code() == Code::kResourceExhausted);
  CHECK(failure.available == 7);
  CheckEachOnce(c, {one}, 4);
}

TEST_CASE("K134, K135: free blocks need not lie side by side", "[cases]") {
  CaseCache c(1, 8);
  SequenceId all[8];
  for (TokenId i = 0; i < 8; ++i) all[i] = c.Open({i});
  for (const SequenceId id : all) c.Feed(id, 1);
  CaseCache::Must(c->Clear());  // so that closing frees
  for (int i = 1; i < 8; i += 2) CaseCache::Must(c->Close(all[i]));
  CHECK(c->GetStats().free_blocks == 4);
  const SequenceId id = c.Start(Range(100, 4));
  CHECK(std::ssize(c.Table(id)) == 4);
  CHECK(c->GetStats().free_blocks == 0);
}

TEST_CASE("K136: new blocks come from the length", "[cases]") {
  CaseCache c(16, 20);
  std::vector<StepItem> items;
  const std::pair<int, int> lengths[] = {{15, 0}, {16, 1}, {32, 1}, {33, 0}, {1, 0}, {31, 0}};
  for (const auto& [length, more] : lengths) {
    const SequenceId id =
        c.Start(Join({static_cast<TokenId>(1000 + length)}, Range(0, length - 1)));
    const std::int64_t before = std::ssize(c.Table(id));
    Step step = c.Prepared(id, 1);
    CHECK(std::ssize(c.Table(id)) == before + more);
    CaseCache::Must(c->Discard(step, {}));
    items.push_back({id, 1, 0, {}});
  }
  const std::int64_t available = c.Available();
  Step step = *c->Plan(items);
  CHECK(c.Available() == available - 2);
}

TEST_CASE("K138: drafts do not count when blocks are indexed", "[cases]") {
  CaseCache c(4, 8);
  const SequenceId id = c.Start(Range(0, 6));
  Step step = c.Prepared(id, 4, 3);
  const std::vector<TokenId> fed = {6};
  const StepCommit commit{id, 1, fed};
  CaseCache::Must(c->Commit(step, std::span(&commit, 1), {}));
  CHECK(c->GetStats().indexed_blocks == 1);
  CHECK(c.Match(Range(0, 9)) == 4);
  c.Feed(id, 1, {7});
  CHECK(c->GetStats().indexed_blocks == 2);
}

TEST_CASE("Extreme numbers are refused, and change nothing", "[cases]") {
  CaseCache c(4, 8);
  const SequenceId id = c.Start(Range(0, 5));
  const std::string before = c->Snapshot();
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t n : {most, most - 1, most - 5, least, least + 1}) {
    CAPTURE(n);
    CHECK(c.Plan(id, n).status().code() == Code::kInvalidArgument);
    CHECK(c.Plan(id, 5, n).status().code() == Code::kInvalidArgument);
    CHECK(c->Fork(id, n).status().code() == Code::kInvalidArgument);
    CHECK(c->Open(Range(0, 3), {.max_length = n}).status().code() == Code::kInvalidArgument);
    const StepItem item{id, 1, 0, {}};
    CHECK(c->Plan(std::span(&item, 1), {n, 1}).status().code() == Code::kInvalidArgument);
  }
  CHECK(c.Plan(id, most, most - 1).status().code() == Code::kInvalidArgument);
  CHECK(c->Truncate(id, least).code() == Code::kInvalidArgument);
  CHECK(c->Truncate(id, most).ok());  // longer than the sequence: no change
  CHECK(c->Snapshot() == before);
  Step step = c.Prepared(id, 2, 1);
  for (const std::int64_t n : {most, least}) {
    const StepCommit commit{id, n, {}};
    CHECK(c->Commit(step, std::span(&commit, 1), {}).code() == Code::kInvalidArgument);
  }
  CaseCache::Must(c->Discard(step, {}));
  // The first rows end with the prompt, whatever the upper bound.
  const SequenceId fresh = c.Open(Range(70, 3));
  Step first = *c.Plan(fresh, most);
  CHECK(first.rows()[0].count == 3);
}

TEST_CASE("A step of no items, padded or not, does nothing", "[cases]") {
  CaseCache c(CaseCache::Config(4, 8, BackendKind::kCpu));
  const SequenceId id = c.Start(Range(0, 5));
  const std::string before = c->Snapshot();
  for (const StepShape& shape : {StepShape{}, StepShape{16, 4}}) {
    Step step = *c->Plan({}, shape);
    CaseCache::Must(c->Prepare(step, {}));
    CHECK(step.padded_tokens() == shape.max_tokens);
    std::vector<float> rows(32, 1.0F);
    const AppendInputs inputs{.dtype = DType::kFP32, .k = rows.data(), .v = rows.data()};
    CaseCache::Must(c->Append(step, 0, inputs, {}));
    CHECK(c->View().cu_seqlens[0] == 0);
    CHECK(c->View().cu_seqlens[shape.max_sequences] == 0);
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) CHECK(c->View().slots[t] == -1);
    CaseCache::Must(c->Commit(step, {}, {}));
  }
  const float* pool = static_cast<const float*>(c->Layer(0)->k);
  CHECK(std::count(pool, pool + 8 * 4 * 2 * 2, 1.0F) == 0);
  CHECK(c.Settled(id) == 5);
  CHECK(c.Available() == 6);
}

TEST_CASE("Ids are given in order: a gap is closed by SetTokens first", "[cases]") {
  CaseCache c(4, 8);
  const SequenceId id = c.Open({});
  c.Feed(id, 3);
  Step step = c.Prepared(id, 1);
  const std::vector<TokenId> fed = {13}, late = {10, 11, 12};
  const StepCommit commit{id, 1, fed};
  const std::string before = c->Snapshot();
  CHECK(c->Commit(step, std::span(&commit, 1), {}).code() == Code::kInvalidArgument);
  CHECK(c->Snapshot() == before);
  CaseCache::Must(c->SetTokens(id, late));
  CaseCache::Must(c->Commit(step, std::span(&commit, 1), {}));
  CHECK(c->GetExtent(id)->known == 4);
  CHECK(c.Match(Range(10, 5)) == 4);
}

// --- Several devices ------------------------------------------------------------------------

TEST_CASE("K170: heads of a rank", "[cases]") {
  struct Case {
    int kv, ranks, heads;  // 0: refused
  };
  for (const Case& k : {Case{8, 2, 4}, Case{2, 4, 1}, Case{4, 8, 1}, Case{1, 8, 1}, Case{6, 4, 0},
                        Case{8, 8, 1}, Case{3, 2, 0}, Case{8, 16, 1}}) {
    CAPTURE(k.kv, k.ranks);
    for (int rank = 0; rank < k.ranks; ++rank) {
      CacheConfig config = CaseCache::Config(4, 4, BackendKind::kCpu);
      config.layers[0].kv_heads = k.kv;
      config.shard = {rank, k.ranks};
      if (k.heads == 0) {
        CHECK(KVCache::Create(config).status().code() == Code::kInvalidArgument);
        CHECK(KVCache::Footprint(config).status().code() == Code::kInvalidArgument);
        continue;
      }
      CaseCache c(config);
      CHECK(c->Layer(0)->kv_heads == k.heads);
      CHECK(c->footprint().bytes_per_token == k.heads * 4 * 4);
    }
  }
}

// a's step is discarded, so a gets the block back that it copied from: with its own last row.
TEST_CASE("A fork does not write over rows that a discarded copy gives back", "[cache]") {
  for (const bool two_steps : {false, true}) {
    CaseCache c(CaseCache::Config(4, 16));
    const SequenceId a = c.Start(CaseCache::Range(0, 6));
    const SequenceId b = *c->Fork(a, 5);  // a has a row where b goes on
    const int shared = c.Table(a)[1];
    std::vector<Step> steps;
    if (two_steps) {
      steps.push_back(c.Prepared(a, 1));
      steps.push_back(c.Prepared(b, 1));
    } else {
      const StepItem items[] = {{a, 1, 0, {}}, {b, 1, 0, {}}};
      steps.push_back(*c->Plan(items));
      CaseCache::Must(c->Prepare(steps[0], {}));
    }
    CHECK(c.Table(a)[1] != shared);
    CHECK(c.Table(b)[1] != shared);
    CaseCache::Must(c->Discard(steps[0], {}));
    CHECK(c.Table(a)[1] == shared);
    if (two_steps) CaseCache::Must(c->Commit(steps[1], {}, {}));
    CHECK((c.Table(b)[1] != shared) == two_steps);
    // Of equal lengths nothing is lost: the last one writes in place.
    const SequenceId e = *c->Fork(a, 6);
    const StepItem items[] = {{a, 1, 0, {}}, {e, 1, 0, {}}};
    Step step = *c->Plan(items);
    CaseCache::Must(c->Prepare(step, {}));
    CHECK((c.Table(e)[1] == shared) == two_steps);  // else b still shares it
    CaseCache::Must(c->Discard(step, {}));
  }
}

}  // namespace
}  // namespace lariat
