// SPDX-License-Identifier: Apache-2.0
// Faults that users of other caches reported, as small cases with values worked out apart from this
// project's code. The ids are those of the list that the values come from.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/case_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
constexpr auto Range = CaseCache::Range;
constexpr auto Join = CaseCache::Join;

std::int64_t CountNaN(KVCache& cache, std::int64_t elements) {
  const float* pool = static_cast<const float*>(cache.Layer(0)->k);
  return std::count_if(pool, pool + elements, [](float x) { return std::isnan(x); });
}

// --- Append and addressing ------------------------------------------------------------------

TEST_CASE("K48, K49: NaN of padding rows reaches no block, unused rows stay finite", "[cases]") {
  CaseCache c(CaseCache::Config(4, 6, BackendKind::kCpu));
  const SequenceId id = c.Open(Range(0, 13));
  const StepItem item{id, 13, 0, {}};
  Step step = *c->Plan(std::span(&item, 1), {32, 4});
  CaseCache::Must(c->Prepare(step, {}));
  std::vector<float> rows(32 * 2, std::numeric_limits<float>::quiet_NaN());
  std::fill_n(rows.begin(), 13 * 2, 1.0F);
  CaseCache::Must(
      c->Append(step, 0, {.dtype = DType::kFP32, .k = rows.data(), .v = rows.data()}, {}));
  CaseCache::Must(c->Commit(step, {}, {}));
  const std::int64_t elements = 6 * 4 * 2 * 2;  // all blocks, K and V
  CHECK(CountNaN(c.cache(), elements) == 0);
  // 13 rows of K and of V are ones, all else is as Create left it.
  const float* pool = static_cast<const float*>(c->Layer(0)->k);
  CHECK(std::count(pool, pool + elements, 1.0F) == 2 * 13 * 2);
  CHECK(std::count(pool, pool + elements, 0.0F) == elements - 2 * 13 * 2);
}

TEST_CASE("K50: a chunk's slots start with the chunk, not with the sequence", "[cases]") {
  CaseCache c(CaseCache::Config(4, 30, BackendKind::kCpu));
  const SequenceId first = c.Start(Range(0, 5));
  const SequenceId id = c.Open(Range(0, 16));
  for (const std::int64_t chunk : {4, 8, 12}) {  // the first four are a hit
    Step step = c.Prepared(id, 4);
    CHECK(step.rows()[0].start == chunk);
    CHECK(step.rows()[0].hit == (chunk == 4 ? 4 : 0));
    const std::vector<int> table = c.Table(id);
    for (std::int64_t i = 0; i < 4; ++i) {
      CHECK(c->View().slots[i] == table[static_cast<std::size_t>(chunk / 4)] * 4 + i);
    }
    CaseCache::Must(c->Commit(step, {}, {}));
  }
  CaseCache::Must(c->Close(first));
}

TEST_CASE("K51, K52: slot of the last token, at and around a block's end", "[cases]") {
  for (const int tokens : {1, 3, 4, 5, 7, 8}) {
    CaseCache c(CaseCache::Config(4, 12, BackendKind::kCpu));
    c.Start(Range(90, 4));
    const SequenceId id = c.Open(Range(0, tokens));
    Step step = c.Prepared(id, tokens);
    const std::vector<int> table = c.Table(id);
    REQUIRE(std::ssize(table) == (tokens + 3) / 4);
    // 1, 3, 4 tokens: row 0, 2, 3 of block 0; 5, 7, 8: row 0, 2, 3 of block 1.
    const int block = tokens <= 4 ? 0 : 1, row = tokens <= 4 ? tokens - 1 : tokens - 5;
    CHECK(c->View().slots[tokens - 1] == table[static_cast<std::size_t>(block)] * 4 + row);
    CaseCache::Must(c->Discard(step, {}));
  }
}

TEST_CASE("K53: the length does not come from a table that already holds the next block",
          "[cases]") {
  const std::vector<std::pair<int, int>> needed = {{15, 1}, {16, 1}, {17, 2},
                                                   {31, 2}, {32, 2}, {33, 3}};
  for (const auto& [length, blocks] : needed) {
    CaseCache c(CaseCache::Config(16, 8, BackendKind::kCpu));
    const SequenceId id = c.Start(Range(0, length));
    CHECK(c.Settled(id) == length);
    CHECK(std::ssize(c.Table(id)) == blocks);
    Step step = c.Prepared(id, 1);
    CHECK(c.Settled(id) == length);
    CHECK(c->View().seqused_k[0] == length + 1);
    CaseCache::Must(c->Discard(step, {}));
    CHECK(c.Settled(id) == length);
    CHECK(std::ssize(c.Table(id)) == blocks);
  }
}

TEST_CASE("K58: nothing to do is refused or does nothing, and later calls work", "[cases]") {
  CaseCache c(4, 8);
  const SequenceId id = c.Open({});
  const std::string before = c->Snapshot();
  CHECK(c.Plan(id, 0).status().code() == Code::kInvalidArgument);
  CHECK(c->Snapshot() == before);
  CHECK(c->Match(std::vector<TokenId>{}).tokens == 0);
  CHECK(c.Feed(id, 3, {1, 2, 3}) == 0);
  CHECK(c.Settled(id) == 3);
  CacheConfig config = CaseCache::Config(4, 8);
  config.layers[0].kv_heads = 0;
  CHECK(KVCache::Create(config).status().code() == Code::kInvalidArgument);
  config = CaseCache::Config(4, 8);
  config.layers[0].k_dim = 0;
  CHECK(KVCache::Create(config).status().code() == Code::kInvalidArgument);
}

// --- Prefix reuse ---------------------------------------------------------------------------

TEST_CASE("K103: a match is not a claim", "[cases]") {
  CaseCache c(4, 4);
  const std::vector<TokenId> prompt = Range(0, 12);
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));
  CHECK(c.Match(prompt) == 8);
  const SequenceId late = c.Open(prompt);
  CHECK(c->Match(late)->tokens == 8);
  const SequenceId b = c.Start(Range(50, 16));
  CHECK(c.Match(prompt) == 0);
  CHECK(c->Match(late)->tokens == 0);
  CaseCache::Must(c->Close(b));
  CHECK(c.Feed(late, 12) == 0);
}

TEST_CASE("K104: nothing is found before it is committed", "[cases]") {
  CaseCache c(8 / 2, 8);
  const std::vector<TokenId> prompt = Range(0, 12), asked = Join(prompt, {99});
  const SequenceId r1 = c.Open(prompt);
  Step step = c.Prepared(r1, 6);
  CHECK(c.Match(asked) == 0);
  CaseCache::Must(c->Commit(step, {}, {}));
  CHECK(c.Match(asked) == 4);  // 6 of 12 (K106)
  step = c.Prepared(r1, 6);
  CHECK(c.Match(asked) == 4);
  CaseCache::Must(c->Close(r1));
  CaseCache::Must(c->Discard(step, {}));
  CHECK(c.Match(asked) == 4);  // K105: the aborted chunk left nothing
  const Stats stats = c->GetStats();
  CHECK(stats.free_blocks == 7);
  CHECK(stats.idle_blocks == 1);
}

TEST_CASE("K104: two equal prompts in one step compute each for itself, then share", "[cases]") {
  CaseCache c(4, 8);
  const std::vector<TokenId> prompt = Range(0, 9);
  const SequenceId a = c.Open(prompt), b = c.Open(prompt);
  const StepItem items[] = {{a, 9, 0, {}}, {b, 9, 0, {}}};
  Step step = *c->Plan(items);
  CHECK(step.rows()[1].hit == 0);
  CaseCache::Must(c->Prepare(step, {}));
  CHECK(c.Available() == 2);
  CaseCache::Must(c->Commit(step, {}, {}));
  const std::vector<int> one = c.Table(a), two = c.Table(b);
  CHECK(one[0] == two[0]);
  CHECK(one[1] == two[1]);
  CHECK(one[2] != two[2]);  // half filled (K107)
  CHECK(c->GetStats().merged_blocks == 2);
  CHECK(c.Available() == 4);
}

TEST_CASE("K107: a half-filled last block gets no second writer", "[cases]") {
  CaseCache c(4, 8);
  const SequenceId a = c.Start({1, 2, 3, 4, 5, 6});
  const SequenceId b = c.Open({1, 2, 3, 4, 5, 6, 9});
  CHECK(c.Feed(b, 7) == 4);
  c.Feed(a, 1, {7});
  c.Feed(b, 1, {10});
  CHECK(c.Table(a)[0] == c.Table(b)[0]);
  CHECK(c.Table(a)[1] != c.Table(b)[1]);
  CHECK(c->GetStats().copied_blocks == 0);
  const SequenceId fork = *c->Fork(a);
  CHECK(c.Table(fork) == c.Table(a));
  const std::vector<int> before = c.Table(a);
  c.Feed(fork, 1, {70});
  CHECK(c.Table(a) == before);
  CHECK(c.Table(fork)[0] == before[0]);
  CHECK(c.Table(fork)[1] != before[1]);
  CHECK(c->GetStats().copied_blocks == 1);
  // The fork of a sequence whose last block is full needs no copy.
  c.Feed(a, 1, {8});
  const SequenceId whole = *c->Fork(a);
  c.Feed(whole, 1, {71});
  CHECK(c->GetStats().copied_blocks == 1);
}

TEST_CASE("K108, K114: held blocks are never evicted, evicted ones never found", "[cases]") {
  CaseCache c(4, 6);
  const std::vector<TokenId> p = Range(0, 8);
  const SequenceId a = c.Start(p);
  CHECK(c.Available() == 4);
  const SequenceId b = c.Open(Join(p, {50}));
  CHECK(c.Feed(b, 9) == 8);
  CHECK(c.Available() == 3);
  CaseCache::Must(c->Close(a));
  CHECK(c.Available() == 3);
  CHECK(c->GetStats().idle_blocks == 0);
  const SequenceId big = c.Open(std::vector<TokenId>(20, 77));
  PlanFailure failure;
  CHECK(c.Plan(big, 20, 0, &failure).status().code() == Code::kResourceExhausted);
  CHECK(failure.needed == 5);
  CHECK(failure.available == 3);
  CaseCache::Must(c->Close(b));
  CHECK(c->GetStats().free_blocks == 4);
  CHECK(c->GetStats().idle_blocks == 2);
  Step step = c.Prepared(big, 20);
  CHECK(c->GetStats().free_blocks == 0);
  CHECK(c->GetStats().idle_blocks == 1);
  CHECK(c->GetStats().evicted_blocks == 1);
  CHECK(c.Match(Join(p, {50})) == 4);  // leaf first
  CaseCache::Must(c->Discard(step, {}));
  CaseCache::Must(c->Close(big));
  CHECK(c.Available() == 6);
  CHECK(c->GetStats().free_blocks == 5);
  CHECK(c->Close(big).code() == Code::kInvalidArgument);  // K109
  CHECK(c.Available() == 6);
}

TEST_CASE("K112: nothing leaks over 500 requests", "[cases]") {
  CaseCache c(4, 16);
  for (int i = 0; i < 500; ++i) {
    const SequenceId id = c.Start(Join({static_cast<TokenId>(i)}, Range(0, 1 + i * 7 % 30)));
    for (TokenId k = 0; k < i % 5; ++k) c.Feed(id, 1, {k});
    CaseCache::Must(c->Close(id));
    REQUIRE(c.Available() == 16);
  }
}

TEST_CASE("K132, K133: forks end in any order", "[cases]") {
  std::vector<int> order = {0, 1, 2};
  do {
    CaseCache c(4, 8);
    const SequenceId p = c.Start(Join(Range(0, 8), {1}));
    const SequenceId c1 = *c->Fork(p), c2 = *c->Fork(c1);
    c.Feed(c1, 1, {2});
    c.Feed(c2, 1, {3});
    const SequenceId all[] = {p, c1, c2};
    for (const int i : order) CaseCache::Must(c->Close(all[i]));
    CHECK(c.Available() == 8);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("K115: leaves are evicted first", "[cases]") {
  CaseCache c(2, 4);
  CaseCache::Must(c->Close(c.Start(Range(1, 6))));
  const std::vector<TokenId> asked = Range(1, 7);
  c.Start({90});
  CHECK(c.Match(asked) == 6);
  c.Start({91, 92});
  CHECK(c.Match(asked) == 4);
  c.Start({92, 93});
  CHECK(c.Match(asked) == 2);
}

TEST_CASE("K116: a partial match holds what it matched and no more", "[cases]") {
  CaseCache c(2, 6);
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));
  const SequenceId id = c.Open({0, 1, 2, 3, 90});
  CHECK(c->Match(id)->idle_blocks == 2);
  CHECK(c.Feed(id, 5) == 4);
  CHECK(c->GetStats().idle_blocks == 2);  // tokens 4..7
  c.Start(Range(200, 6));                 // one free block and those two
  CHECK(c.Match(Range(0, 9)) == 4);
}

TEST_CASE("K118: what is stored and removed", "[cases]") {
  CaseCache c(2, 4);
  CaseCache::Must(c->Close(c.Start(Range(1, 5))));
  CHECK(c->GetStats().indexed_blocks == 2);
  const SequenceId again = c.Open(Range(1, 5));
  CHECK(c.Feed(again, 5) == 4);
  CaseCache::Must(c->Close(again));
  CHECK(c->GetStats().indexed_blocks == 2);
  CaseCache::Must(c->Close(c.Start({9, 8, 7, 6, 5, 4, 3})));
  CHECK(c->GetStats().indexed_blocks == 3);
  CHECK(c->GetStats().evicted_blocks == 2);
  CHECK(c.Match(Range(1, 5)) == 0);
}

}  // namespace
}  // namespace lariat
