// SPDX-License-Identifier: Apache-2.0
// What a Match remembers for the calls behind it, and that nothing of it is believed too long.
#include <string>

#include "blocks/token_list.h"
#include "support/case_cache.h"
#include "support/lives.h"
#include "support/random.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Range;
using testing::Serve;
using testing::Start;
using testing::Tokens;

const Tokens kPrompt = Range(100, 13);  // three blocks of four can be found

TEST_CASE("What Match found is what the Open and Plan behind it take", "[cache]") {
  CaseCache c(4, 16);
  const SequenceId first = Start(c, kPrompt);
  const std::vector<int> table = c.Table(first);
  CaseCache::Must(c->Close(first));
  CHECK(c.Match(kPrompt) == 12);
  const SequenceId same = c.Open(kPrompt);
  CHECK(c.Feed(same, 13) == 12);
  CHECK(c.Table(same)[2] == table[2]);
  // One that is longer, one that is shorter and one that parts from it.
  CHECK(c.Match(kPrompt) == 12);
  CHECK(c.Feed(c.Open(Range(100, 18)), 18) == 12);
  CHECK(c.Match(kPrompt) == 12);
  CHECK(c.Feed(c.Open(Range(100, 12)), 12) == 8);
  CHECK(c.Match(kPrompt) == 12);
  CHECK(c.Feed(c.Open(CaseCache::Join(Range(100, 9), Range(0, 4))), 13) == 8);
}

TEST_CASE("What Match found is forgotten with what is cached", "[cache]") {
  CaseCache c(4, 64);
  const OpenOptions salted{.salt = "a"};
  const auto match_after = [&](const auto& change) {
    Serve(c, kPrompt);
    CHECK(c.Match(kPrompt) == 12);
    change();
    return c.Feed(c.Open(kPrompt), 13);
  };
  CHECK(match_after([&] { CHECK(*c->Remove(Range(100, 12)) == 1); }) == 8);
  CHECK(match_after([&] { CHECK(c->Remove(Range(100, 4)).ok()); }) == 0);
  CHECK(match_after([&] { CaseCache::Must(c->Clear()); }) == 0);
  CHECK(match_after([&] { CHECK(c->RemoveSalt("").ok()); }) == 0);
  CHECK(c.Match(kPrompt) == 12);
  const auto other = c->Open(kPrompt, salted);
  REQUIRE(other.ok());
  CHECK(c.Feed(*other, 13) == 0);
}

TEST_CASE("Blocks that were evicted since the Match are not taken", "[cache]") {
  CaseCache c(4, 8);
  Serve(c, kPrompt);
  CHECK(c.Match(kPrompt) == 12);
  Serve(c, Range(500, 24));  // five free blocks, and the last one of the path
  const SequenceId id = c.Open(kPrompt);
  CHECK(c.Feed(id, 13) == 8);
}

// The plan's victims stay in the index until it is prepared.
TEST_CASE("A Match while a plan waits believes nothing of it later", "[cache]") {
  CaseCache c(4, 4);
  Serve(c, Range(100, 12));
  const SequenceId waiting = c.Open(kPrompt);
  const SequenceId other = c.Open(Range(500, 16));
  auto step = c.Plan(other, 16);  // it takes all four blocks
  REQUIRE(step.ok());
  const bool by_id = GENERATE(true, false);
  if (by_id) {
    REQUIRE(c->Match(waiting).ok());
  } else {
    (void)c.Match(kPrompt);
  }
  CaseCache::Must(c->Prepare(*step, {}));
  CaseCache::Must(c->Commit(*step, {}, {}));
  CHECK(c->Match(waiting)->tokens == 0);
  CaseCache::Must(c->Close(other));
  const SequenceId late = by_id ? waiting : c.Open(kPrompt);
  CHECK(c.Feed(late, 13) == 0);
}

TEST_CASE("The rows of a hit are there once its plan is prepared", "[cache]") {
  CaseCache c(CaseCache::Config(4, 8, BackendKind::kCpu));
  Serve(c, kPrompt);
  const SequenceId id = c.Open(kPrompt);
  auto step = c.Plan(id, 13);
  REQUIRE(step.ok());
  float k[2], v[2];
  CHECK(c->ReadRows(id, 0, 0, 1, k, v).code() == Code::kInvalidArgument);
  CaseCache::Must(c->Prepare(*step, {}));
  CHECK(c->ReadRows(id, 0, 0, 1, k, v).ok());
}

TEST_CASE("A list of tokens is what was put into it", "[cache]") {
  testing::Random random(7);
  blocks::TokenList list;
  Tokens want;
  for (int i = 0; i < 20000; ++i) {
    switch (random.Between(0, 23)) {
      case 0:
        want = Range(i, random.Between(0, 99));
        list.assign(want);
        break;
      case 1: {
        const Tokens more = Range(-i, random.Between(0, 79));
        want.insert(want.end(), more.begin(), more.end());
        list.append(more);
        break;
      }
      case 2:
        want.resize(static_cast<std::size_t>(random.Between(0, std::ssize(want))));
        list.shorten(want.size());
        break;
      case 3: CHECK(std::equal(want.begin(), want.end(), list.all().begin())); break;
      case 4: {
        const auto first = static_cast<std::size_t>(random.Between(0, std::ssize(want)));
        const std::span<const TokenId> rest = list.from(first);
        REQUIRE(rest.size() == want.size() - first);
        CHECK(std::equal(rest.begin(), rest.end(), want.begin() + std::ptrdiff_t(first)));
        break;
      }
      default: want.push_back(i), list.push_back(i);
    }
    REQUIRE(list.size() == want.size());
  }
}

}  // namespace
}  // namespace lariat
