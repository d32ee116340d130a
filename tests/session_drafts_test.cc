// SPDX-License-Identifier: Apache-2.0
// Session with drafts that are accepted or rejected: every step is counted by hand.
#include <algorithm>
#include <vector>

#include "support/catch.h"
#include "support/session_world.h"

namespace lariat {
namespace {

using test::MakeRequest;
using test::SeenItem;
using test::World;

// Proposes `count` drafts behind every token, and accepts up to `accepted` of them.
class Drafter {
 public:
  Drafter(World& world, std::int64_t count, std::int64_t accepted) {
    world.model.hook = [this, count, accepted](const ExecutorStep& step, ExecutorOutput& output) {
      tries_.assign(step.items.size(), {});
      for (std::size_t i = 0; i < step.items.size(); ++i) {
        output.accepted[i] = std::min(step.items[i].drafts, accepted);
        for (std::int64_t d = 0; d < count; ++d) {
          tries_[i].push_back(output.next[i] + static_cast<TokenId>(100 * (d + 1)));
        }
        output.drafts[i] = tries_[i];
      }
    };
  }

 private:
  std::vector<std::vector<TokenId>> tries_;
};

TEST_CASE("None, some or all of the drafts stay", "[session]") {
  struct Case {
    std::int64_t accepted;
    std::vector<std::int64_t> starts;  // of each step's rows
    std::vector<std::int64_t> drafts;  // what is left of 8 tokens, less one, is of use
    std::int64_t kept;
  };
  for (const Case& c : std::vector<Case>{
           {0, {0, 5, 6, 7, 8, 9, 10, 11}, {0, 3, 3, 3, 3, 2, 1, 0}, 0},
           {1, {0, 5, 7, 9, 11}, {0, 3, 3, 2, 0}, 3},
           {2, {0, 5, 8, 11}, {0, 3, 3, 0}, 4},
           {3, {0, 5, 9}, {0, 3, 2}, 5},
       }) {
    INFO("accepted " << c.accepted);
    World world(100);
    const Drafter drafter(world, 3, c.accepted);
    world.Add(MakeRequest(0, 5, 8, 100));
    world.Run();
    std::vector<std::int64_t> starts;
    std::vector<std::int64_t> drafts;
    std::int64_t drafted = 0;
    for (const SeenItem& item : world.model.seen) {
      starts.push_back(item.start);
      drafts.push_back(item.drafts);
      drafted += item.drafts;
      CHECK(item.count == (item.start == 0 ? 5 : 1 + item.drafts));
    }
    CHECK(starts == c.starts);
    CHECK(drafts == c.drafts);
    const SessionStats& stats = world.session->stats();
    CHECK(stats.drafted_tokens == drafted);
    CHECK(stats.accepted_tokens == c.kept);
    CHECK(stats.output_tokens == 8);
    CHECK(stats.tokens_appended == 5 + 8 - 1);
    CHECK(world.cache.GetStats().tokens_committed == 12);
    // What was rejected never counted: 12 rows fill three blocks, all with known ids.
    CHECK(world.cache.GetStats().indexed_blocks == 3);
    CHECK(world.observer.streamed[0].size() == 8);
    REQUIRE(world.observer.ends.size() == 1);
    CHECK(world.observer.ends[0].settled == 12);
    world.CheckEmpty();
  }
}

TEST_CASE("Rows that were rejected are no hit", "[session]") {
  World world(100);
  const Drafter drafter(world, 3, 0);
  world.Add(MakeRequest(0, 4, 2, 100));  // no draft is of use
  world.Add(MakeRequest(1, 4, 5, 200));  // tries 2000, 2100, 2200, 2300 and keeps the first
  world.Run();
  world.model.hook = nullptr;
  Request tried = MakeRequest(2, 4, 1, 200);
  for (const TokenId token : {2000, 2100, 2200, 2300, 7}) tried.prompt.push_back(token);
  world.Add(tried);
  world.Run();
  CHECK(world.model.seen.back().start == 4);
  Request kept = MakeRequest(3, 4, 1, 200);
  for (const TokenId token : {2000, 2001, 2002, 2003, 7}) kept.prompt.push_back(token);
  world.Add(kept);
  world.Run();
  CHECK(world.model.seen.back().start == 8);
}

TEST_CASE("An end of text among the drafts ends the request there", "[session]") {
  World world(100);
  std::vector<TokenId> tries;
  world.model.hook = [&](const ExecutorStep& step, ExecutorOutput& output) {
    tries = {11, 12, 13};
    output.drafts[0] = tries;
    if (step.items[0].drafts == 0) return;
    // The model agrees to 11, and then says that the text ends where 12 was tried.
    output.accepted[0] = 1;
    output.next[0] = 99;
    output.stop[0] = 1;
  };
  world.Add(MakeRequest(0, 6, 20, 100));
  world.Run();
  CHECK(world.model.steps == 2);
  CHECK(world.observer.streamed[0] == std::vector<TokenId>{1000, 11, 99});
  REQUIRE(world.observer.ends.size() == 1);
  CHECK(world.observer.ends[0].settled == 6 + 2);  // 1000 and 11
  CHECK(world.observer.done[0].output_tokens == 3);
  CHECK(world.cache.GetStats().indexed_blocks == 2);
  world.CheckEmpty();
}

TEST_CASE("Drafts take no row that another sequence decodes with", "[session]") {
  World world(100, {.max_batch = 8, .max_step_tokens = 6});
  const Drafter drafter(world, 3, 0);
  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    world.Add(MakeRequest(tag, 2, 9, static_cast<TokenId>(100 * tag)));
  }
  world.Steps(2);
  // 6 rows: the first one's and 3 drafts, and one each of the others.
  const std::vector<SeenItem> step = world.model.Step(2);
  REQUIRE(step.size() == 3);
  CHECK(step[0].drafts == 3);
  CHECK(step[1].drafts == 0);
  CHECK(step[2].drafts == 0);
  world.Run();
  CHECK(world.session->stats().tokens_appended == 3 * (2 + 9 - 1));
}

TEST_CASE("Drafts beside a prompt in chunks", "[session]") {
  World world(100, {.max_batch = 8, .max_step_tokens = 6});
  const Drafter drafter(world, 3, 1);
  world.Add(MakeRequest(0, 4, 9, 100));
  world.Add(MakeRequest(1, 12, 3, 200));
  world.Run();
  // Step 2: 4 rows of request 0, then 2 of the prompt, whose end no step with drafts is in.
  const std::vector<SeenItem> step = world.model.Step(2);
  REQUIRE(step.size() == 2);
  CHECK(step[0].count == 4);
  CHECK(step[1].start == 2);
  CHECK(step[1].count == 2);
  CHECK(step[1].drafts == 0);
  CHECK(world.session->stats().tokens_appended == 12 + 14);
}

TEST_CASE("Where blocks are short, drafts are left out before anybody is preempted", "[session]") {
  // 5 blocks of 4. Both hold two for 7 rows. In step 2 each tries 4 rows and would take one more.
  World world(5);
  const Drafter drafter(world, 3, 0);
  world.Add(MakeRequest(0, 7, 6, 100));
  world.Add(MakeRequest(1, 7, 6, 200));
  world.Steps(2);
  CHECK(world.session->stats().preemptions == 0);
  REQUIRE(world.model.Step(2).size() == 2);
  for (const SeenItem& item : world.model.Step(2)) {
    CHECK(item.drafts == 0);
    CHECK(item.count == 1);
  }
  // In step 3 their own rows need a block each.
  world.Steps(1);
  CHECK(world.session->stats().preemptions == 1);
  CHECK(world.model.Step(3).size() == 1);
  world.Run();
  CHECK(world.session->stats().finished == 2);
  const SessionStats& stats = world.session->stats();
  CHECK(stats.tokens_appended == 12 + 12 + stats.recomputed_tokens);
  world.CheckEmpty();
}

}  // namespace
}  // namespace lariat
