// SPDX-License-Identifier: Apache-2.0
// Session with requests of several beams: every step is counted by hand.
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/session_world.h"

namespace lariat {
namespace {

using test::MakeRequest;
using test::SeenItem;
using test::World;

// Beam b puts out 100 b + position, behind the beam that `parent` says.
class BeamModel {
 public:
  explicit BeamModel(World& world) {
    world.model.hook = [this](const ExecutorStep& step, ExecutorOutput& output) {
      first_.assign(step.items.size(), {});
      for (std::size_t i = 0; i < step.items.size(); ++i) {
        const ExecutorItem& item = step.items[i];
        if (!item.samples) continue;
        const auto position = static_cast<TokenId>(item.start + item.count);
        output.next[i] = 100 * item.beam + position;
        for (int fork = 1; fork <= item.forks; ++fork) first_[i].push_back(100 * fork + position);
        output.first[i] = first_[i];
        if (parents.size() > static_cast<std::size_t>(item.beam) && item.forks == 0 &&
            position == at) {
          output.parents[i] = parents[static_cast<std::size_t>(item.beam)];
        }
      }
    };
  }

  std::vector<int> parents;  // in the step that puts out position `at`
  TokenId at = 0;

 private:
  std::vector<std::vector<TokenId>> first_;
};

Request MakeBeams(std::uint64_t tag, std::int64_t prompt, std::int64_t output, TokenId first,
                  int beams) {
  Request request = MakeRequest(tag, prompt, output, first);
  request.beams = beams;
  return request;
}

TEST_CASE("Beams fork where the prompt ends, and only its last block is copied", "[session]") {
  World world(100);
  const BeamModel model(world);
  world.Add(MakeBeams(0, 6, 4, 100, 3));
  world.Run();
  const std::vector<SeenItem>& seen = world.model.seen;
  REQUIRE(seen.size() == 1 + 3 * 3);
  CHECK(seen[0].count == 6);
  for (std::size_t i = 1; i < seen.size(); ++i) {
    const auto beam = static_cast<int>((i - 1) % 3);
    const auto start = static_cast<TokenId>(6 + (i - 1) / 3);
    CHECK(seen[i].beam == beam);
    CHECK(seen[i].start == start);
    CHECK(seen[i].tokens == std::vector<TokenId>{100 * beam + start});
    CHECK(seen[i].cached.empty());
  }
  CHECK(world.observer.streamed[0] == std::vector<TokenId>{6, 7, 8, 9});
  CHECK(world.observer.others[{0, 1}] == std::vector<TokenId>{106, 107, 108, 109});
  CHECK(world.observer.others[{0, 2}] == std::vector<TokenId>{206, 207, 208, 209});
  REQUIRE(world.observer.ends.size() == 3);
  for (const auto& end : world.observer.ends) CHECK(end.settled == 9);
  const SessionStats& stats = world.session->stats();
  CHECK(stats.forks == 2);
  CHECK(stats.finished == 1);
  CHECK(stats.output_tokens == 4);
  CHECK(stats.lookup_tokens == 6);
  CHECK(stats.tokens_appended == 6 + 3 * 3);
  CHECK(world.cache.GetStats().copied_blocks == 2);         // the last to write does so in place
  CHECK(world.cache.GetStats().peak_used_blocks == 1 + 6);  // rows 4 to 8 take two blocks each
  CHECK(world.observer.done[0].output_tokens == 4);
  world.CheckEmpty();
}

TEST_CASE("Beams of a prompt that fills its blocks copy nothing", "[session]") {
  World world(100);
  const BeamModel model(world);
  world.Add(MakeBeams(0, 8, 3, 100, 4));
  world.Run();
  CHECK(world.cache.GetStats().copied_blocks == 0);
  CHECK(world.cache.GetStats().peak_used_blocks == 2 + 4);
  CHECK(world.session->stats().tokens_appended == 8 + 4 * 2);
}

TEST_CASE("A beam goes on from another one's rows", "[session]") {
  World world(100);
  BeamModel model(world);
  model.parents = {1, 1, 1};
  model.at = 8;
  world.Add(MakeBeams(0, 6, 4, 100, 3));
  world.Steps(3);
  // Position 8 was put out in step 3: beams 0 and 2 are dropped with 8 rows each, and what they had
  // in their tails goes back.
  REQUIRE(world.observer.ends.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(world.observer.ends[i].beam == static_cast<int>(2 * i));
    CHECK(world.observer.ends[i].settled == 8);
    CHECK(world.observer.ends[i].reason == SequenceEndReason::kDropped);
  }
  CHECK(world.cache.GetStats().sequences == 3);
  CHECK(world.cache.GetStats().held_blocks == 2);
  world.Run();
  CHECK(world.observer.streamed[0] == std::vector<TokenId>{106, 107, 8, 9});
  CHECK(world.observer.others[{0, 1}] == std::vector<TokenId>{106, 107, 108, 109});
  CHECK(world.observer.others[{0, 2}] == std::vector<TokenId>{106, 107, 208, 209});
  CHECK(world.session->stats().forks == 2 + 2);
  CHECK(world.session->stats().tokens_appended == 6 + 3 * 3);
  world.CheckEmpty();
}

TEST_CASE("Beams that change places fork nothing", "[session]") {
  World world(100);
  BeamModel model(world);
  model.parents = {1, 2, 0};
  model.at = 7;
  world.Add(MakeBeams(0, 6, 4, 100, 3));
  world.Run();
  CHECK(world.session->stats().forks == 2);
  CHECK(world.observer.ends.size() == 3);
  CHECK(world.observer.streamed[0] == std::vector<TokenId>{106, 7, 8, 9});
  CHECK(world.observer.others[{0, 1}] == std::vector<TokenId>{206, 107, 108, 109});
  CHECK(world.observer.others[{0, 2}] == std::vector<TokenId>{6, 207, 208, 209});
}

TEST_CASE("Beams give way together, and are restored where they parted", "[session]") {
  // 7 blocks of 4. In step 4 both beams of request 1 need a block for row 8 and one is free. All
  // that they know then, 9 tokens each, needs 3 + 2 blocks: they wait until request 0 has ended.
  World world(7);
  const BeamModel model(world);
  world.Add(MakeRequest(0, 8, 12, 300));
  world.Add(MakeBeams(1, 6, 6, 100, 2));
  world.Run();
  REQUIRE(world.observer.ends.size() == 2 + 1 + 2);
  for (int beam = 0; beam < 2; ++beam) {
    const auto& end = world.observer.ends[static_cast<std::size_t>(beam)];
    CHECK(end.tag == 1);
    CHECK(end.beam == beam);
    CHECK(end.settled == 8);
    CHECK(end.reason == SequenceEndReason::kPreempted);
  }
  for (std::int64_t step = 4; step <= 12; ++step) CHECK(world.model.Step(step).size() == 1);
  // The first beam finds its first block and computes four rows. The second forks from it behind
  // the prompt. Then both decode.
  const std::vector<SeenItem> first = world.model.Step(13);
  REQUIRE(first.size() == 1);
  CHECK(first[0].cached == std::vector<TokenId>{100, 101, 102, 103});
  CHECK(first[0].tokens == std::vector<TokenId>{104, 105, 6, 7});
  CHECK_FALSE(first[0].samples);
  const std::vector<SeenItem> second = world.model.Step(14);
  REQUIRE(second.size() == 1);
  CHECK(second[0].beam == 1);
  CHECK(second[0].cached == std::vector<TokenId>{100, 101, 102, 103, 104, 105});
  CHECK(second[0].tokens == std::vector<TokenId>{106, 107});
  CHECK_FALSE(second[0].samples);
  const std::vector<SeenItem> both = world.model.Step(15);
  REQUIRE(both.size() == 2);
  CHECK(both[0].tokens == std::vector<TokenId>{8});
  CHECK(both[1].tokens == std::vector<TokenId>{108});
  CHECK(world.observer.streamed[1] == std::vector<TokenId>{6, 7, 8, 9, 10, 11});
  CHECK(world.observer.others[{1, 1}] == std::vector<TokenId>{106, 107, 108, 109, 110, 111});
  const SessionStats& stats = world.session->stats();
  CHECK(stats.steps == 17);
  CHECK(stats.preemptions == 1);
  CHECK(stats.recomputed_tokens == 4 + 2);
  CHECK(stats.hit_tokens == 0);
  CHECK(stats.tokens_appended == 19 + (6 + 2 * 5) + 6);
  CHECK(world.observer.done[1].recomputed_tokens == 6);
  CHECK(world.cache.GetStats().peak_used_blocks <= 7);
  world.CheckEmpty();
}

TEST_CASE("All beams are in a step or none, and each counts in the batch", "[session]") {
  World world(100, {.max_batch = 6, .max_step_tokens = 5});
  const BeamModel model(world);
  world.Add(MakeBeams(0, 3, 4, 100, 3));
  world.Add(MakeBeams(1, 2, 4, 200, 3));
  world.Add(MakeBeams(2, 2, 4, 300, 1));
  world.Run();
  // Step 2 has rows for the first three beams, and two for which the others are too many.
  CHECK(world.model.Step(1).size() == 2);
  CHECK(world.model.Step(2).size() == 3);
  for (std::int64_t step = 1; step <= world.model.steps; ++step) {
    std::set<std::uint64_t> tags;
    for (const SeenItem& item : world.model.Step(step)) tags.insert(item.tag);
    CHECK((tags.count(2) == 0 || tags.count(0) + tags.count(1) < 2));
  }
  CHECK(world.session->stats().finished == 3);
  CHECK(world.session->stats().tokens_appended == 3 + 9 + 2 + 9 + 2 + 3);
}

TEST_CASE("Requests whose beams can never be served are refused", "[session]") {
  // 9 rows: the prompt's one full block, and two blocks for each beam.
  for (const std::int64_t blocks : {6, 7}) {
    World world(blocks);
    const BeamModel model(world);
    world.Add(MakeBeams(0, 6, 4, 100, 3));
    world.Run();
    REQUIRE(world.observer.done.size() == 1);
    CHECK((world.observer.done[0].outcome == Outcome::kNeverFits) == (blocks == 6));
    CHECK(world.session->stats().preemptions == 0);
  }
  World world(100, {.max_batch = 8, .max_step_tokens = 7});
  for (const int beams : {-1, 0, 8}) {
    const Result<RequestId> added = world.session->Add(MakeBeams(0, 6, 4, 100, beams));
    REQUIRE_FALSE(added.ok());
    CHECK(added.status().code() == Code::kInvalidArgument);
    CHECK(added.status().message().find("beams = " + std::to_string(beams)) != std::string::npos);
  }
}

TEST_CASE("Beams of one token end where they fork", "[session]") {
  World world(100);
  const BeamModel model(world);
  world.Add(MakeBeams(0, 6, 1, 100, 3));
  world.Run();
  CHECK(world.observer.others[{0, 2}] == std::vector<TokenId>{206});
  CHECK(world.observer.ends.size() == 3);
  CHECK(world.session->stats().tokens_appended == 6);
  world.CheckEmpty();
}

TEST_CASE("Beams are cancelled, stopped and destroyed together", "[session]") {
  World world(100);
  BeamModel model(world);
  const RequestId id = world.Add(MakeBeams(0, 6, 9, 100, 3));
  world.Steps(3);
  CHECK(world.cache.GetStats().sequences == 3);
  CHECK(world.session->Cancel(id).ok());
  world.CheckEmpty();
  CHECK(world.observer.done[0].output_tokens == 3);

  const auto put_out = world.model.hook;
  world.model.hook = [&](const ExecutorStep& step, ExecutorOutput& output) {
    put_out(step, output);
    if (step.items.back().start == 8) output.stop[step.items.size() - 1] = 1;
  };
  world.Add(MakeBeams(1, 6, 9, 100, 3));
  world.Run();
  CHECK(world.observer.done[1].outcome == Outcome::kFinished);
  CHECK(world.observer.done[1].output_tokens == 4);
  world.CheckEmpty();

  world.Add(MakeBeams(2, 6, 9, 100, 3));
  world.Steps(2);
  world.session.reset();
  world.CheckEmpty();
}

TEST_CASE("What an executor may not say of beams", "[session]") {
  const auto refused = [](auto change, int steps, const char* text) {
    World world(100);
    BeamModel model(world);
    const auto put_out = world.model.hook;
    world.model.hook = [&](const ExecutorStep& step, ExecutorOutput& output) {
      put_out(step, output);
      if (world.model.steps == steps) change(output);
    };
    world.Add(MakeBeams(0, 6, 9, 100, 3));
    world.Steps(steps - 1);
    const Result<bool> ran = world.session->RunStep();
    REQUIRE_FALSE(ran.ok());
    CHECK(ran.status().code() == Code::kInvalidArgument);
    INFO(ran.status().message());
    CHECK(ran.status().message().find(text) != std::string::npos);
    world.session.reset();
    world.CheckEmpty();
  };
  const std::vector<TokenId> two = {1, 2};
  const std::vector<TokenId> three = {1, 2, 3};
  refused([](ExecutorOutput& output) { output.first[0] = {}; }, 1, "first has 0 tokens");
  refused([&](ExecutorOutput& output) { output.first[0] = three; }, 1, "first has 3 tokens");
  refused([&](ExecutorOutput& output) { output.first[2] = two; }, 2, "first has 2 tokens");
  refused([](ExecutorOutput& output) { output.parents[0] = 1; }, 1, "parent = 1");
  refused([](ExecutorOutput& output) { output.parents[1] = 3; }, 2, "parent = 3");
  refused([](ExecutorOutput& output) { output.parents[2] = -1; }, 3, "parent = -1");
  refused([&](ExecutorOutput& output) { output.drafts[1] = two; }, 2, "drafts has 2 tokens");
}

}  // namespace
}  // namespace lariat
