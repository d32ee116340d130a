// SPDX-License-Identifier: Apache-2.0
// What a discarded step gives back, and to whom.
#include <array>
#include <vector>

#include "support/case_cache.h"
#include "support/catch.h"

namespace lariat {
namespace {

using testing::CaseCache;

// A live step that is not settled yet has rows too: they are lost if another writes over them.
TEST_CASE("A fork does not write over rows that a live step has", "[cache]") {
  CacheConfig config = CaseCache::Config(8, 40);
  config.max_steps_in_flight = 3;
  CaseCache c(config);
  const SequenceId a = c.Start(CaseCache::Range(0, 5));
  const SequenceId b = *c->Fork(a, 5);
  const int shared = c.Table(a)[0];
  Step first = c.Prepared(b, 1);
  CHECK(c.Table(b)[0] != shared);
  Step second = c.Prepared(a, 1);  // in place: a has the block for itself
  CHECK(c.Table(a)[0] == shared);
  CaseCache::Must(c->Discard(first, {}));
  CHECK(c.Table(b)[0] == shared);
  Step third = c.Prepared(a, 1);
  CHECK(c.Table(a)[0] != shared);
  Step fourth = c.Prepared(b, 1);  // row 5 of the block is a's, and may be a's again
  CHECK(c.Table(b)[0] != shared);
  CaseCache::Must(c->Discard(third, {}));
  CHECK(c.Table(a)[0] == shared);
  CaseCache::Must(c->Commit(second, {}, {}));
  CaseCache::Must(c->Commit(fourth, {}, {}));
}

// The rows of a cache of one layer: both elements of a row are its token.
class TokenRows {
 public:
  explicit TokenRows(KVCache& cache) : cache_(cache) {}
  Step Prepared(std::span<const StepItem> items, std::span<const TokenId> tokens = {}) {
    Result<Step> step = cache_.Plan(items);
    CaseCache::Must(step.status());
    CaseCache::Must(cache_.Prepare(*step, {}));
    std::vector<float> rows;
    for (std::int64_t t = 0; t < step->num_tokens() && !tokens.empty(); ++t) {
      rows.insert(rows.end(), 2, static_cast<float>(tokens[static_cast<std::size_t>(t)]));
    }
    const AppendInputs inputs{.dtype = DType::kFP32, .k = rows.data(), .v = rows.data()};
    if (!tokens.empty()) CaseCache::Must(cache_.Append(*step, 0, inputs, {}));
    return *std::move(step);
  }
  SequenceId Fed(const std::vector<TokenId>& prompt, const OpenOptions& options) {
    const SequenceId id = *cache_.Open(prompt, options);
    const StepItem item{id, std::ssize(prompt), 0, {}};
    Step step = Prepared(std::span(&item, 1), prompt);
    CaseCache::Must(cache_.Commit(step, {}, {}));
    return id;
  }

 private:
  KVCache& cache_;
};

// A discarded step's blocks become idle, which may free a place of the host tier that a copy goes
// to that was decided on just before: that copy has to be on its way by then.
TEST_CASE("Copies to the host are on their way before a dropped step is discarded", "[cache]") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CacheConfig config = CaseCache::Config(4, 12, BackendKind::kCpu);
    config.max_steps_in_flight = 2;
    config.host = {.num_blocks = 1, .write = WritePolicy::kBack, .clean_blocks = 1};
    KVCache cache = *KVCache::Create(config, *Device::CreateDeferred(BackendKind::kCpu, seed));
    CaseCache::Must(cache.SetQuota("s", 1));
    TokenRows rows(cache);
    const OpenOptions salted{.salt = "s"};
    const SequenceId a = rows.Fed({1, 2, 3, 4, 5}, salted);
    const SequenceId b = rows.Fed({6, 7, 8, 9, 10}, salted);
    const SequenceId other = rows.Fed({20, 21}, {});
    Step second;
    {
      const StepItem items[] = {{other, 1, 0, {}}, {b, 1, 0, {}}};
      const StepItem later[] = {{other, 1, 0, {}}, {a, 1, 0, {}}};
      Step first = rows.Prepared(items);
      second = rows.Prepared(later);
      CaseCache::Must(cache.Close(a));
      CaseCache::Must(cache.Close(b));
    }  // the first one is dropped, and discarded when the second one has been
    CaseCache::Must(cache.Discard(second, {}));
    const SequenceId large = *cache.Open({});  // takes all blocks, and leaves nothing to be cached
    const StepItem all{large, 44, 0, {}};
    Step filled = rows.Prepared(std::span(&all, 1), CaseCache::Range(500, 44));
    CaseCache::Must(cache.Commit(filled, {}, {}));
    CaseCache::Must(cache.Close(large));
    int found = 0;

    for (const std::vector<TokenId>& text :
         {std::vector<TokenId>{6, 7, 8, 9, 99}, std::vector<TokenId>{1, 2, 3, 4, 99}}) {
      const SequenceId back = *cache.Open(text, salted);
      const Result<TransferId> fetched = cache.Fetch(back);
      CaseCache::Must(fetched.status());
      if (*fetched == TransferId::kNone) continue;
      ++found;
      CaseCache::Must(cache.Accept(*fetched).status());
      const StepItem item{back, 5, 0, {}};
      Step step = rows.Prepared(std::span(&item, 1), std::span(text).last(1));
      CHECK(step.rows()[0].hit == 4);
      CaseCache::Must(cache.Commit(step, {}, {}));
      std::array<float, 10> k{}, v{};
      CaseCache::Must(cache.ReadRows(back, 0, 0, 5, k.data(), v.data()));
      for (std::size_t t = 0; t < 5; ++t) CHECK(k[2 * t] == static_cast<float>(text[t]));
    }
    CHECK(found == 1);
  }
}

}  // namespace
}  // namespace lariat
