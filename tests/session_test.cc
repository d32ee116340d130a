// SPDX-License-Identifier: Apache-2.0
// Session against a scripted model: every step's rows are counted by hand.
#include "lariat/session.h"

#include <numeric>
#include <vector>

#include "support/catch.h"
#include "support/session_world.h"

namespace lariat {
namespace {

using test::MakeRequest;
using test::SeenItem;
using test::World;

TEST_CASE("One request: a prefill, then a row for each token but the last", "[session]") {
  World world(100);
  world.Add(MakeRequest(7, 10, 3, 50));
  world.Run();
  REQUIRE(world.model.seen.size() == 3);
  const std::vector<SeenItem>& seen = world.model.seen;
  CHECK(seen[0].tokens == std::vector<TokenId>{50, 51, 52, 53, 54, 55, 56, 57, 58, 59});
  CHECK(seen[0].start == 0);
  CHECK(seen[0].samples);
  CHECK(seen[1].tokens == std::vector<TokenId>{8000});
  CHECK(seen[1].start == 10);
  CHECK(seen[2].tokens == std::vector<TokenId>{8001});
  CHECK(world.observer.streamed[7] == std::vector<TokenId>{8000, 8001, 8002});
  REQUIRE(world.observer.ends.size() == 1);
  CHECK(world.observer.ends[0].settled == 12);
  CHECK(world.observer.ends[0].finished);
  REQUIRE(world.observer.done.size() == 1);
  const RequestResult& result = world.observer.done[0];
  CHECK(result.outcome == Outcome::kFinished);
  CHECK(result.tag == 7);
  CHECK(result.prompt_tokens == 10);
  CHECK(result.output_tokens == 3);
  CHECK(result.first_token_s == 1.0);
  CHECK(result.end_s == 3.0);
  CHECK(world.session->stats().tokens_appended == 12);
  CHECK(world.session->stats().lookup_tokens == 10);
  world.CheckEmpty();
}

TEST_CASE("The budget goes to those that run first, in order of admission", "[session]") {
  World world(100, {.max_batch = 8, .max_step_tokens = 10});
  world.Add(MakeRequest(0, 7, 4, 100));
  world.Add(MakeRequest(1, 9, 2, 200));
  world.Add(MakeRequest(2, 6, 1, 300));
  world.Run();
  // Step 1: 7 rows of 0, 3 of 1. Step 2: a decode, the other 6 rows of 1, 3 of 2. Step 3: decodes
  // of 0 and 1, and 3 of 2. Step 4: the last decode of 0.
  const auto shape = [&](std::int64_t step) {
    std::vector<std::vector<std::int64_t>> rows;
    for (const SeenItem& item : world.model.Step(step)) {
      rows.push_back({static_cast<std::int64_t>(item.tag), item.start, item.count, item.samples});
    }
    return rows;
  };
  using Rows = std::vector<std::vector<std::int64_t>>;
  CHECK(shape(1) == Rows{{0, 0, 7, 1}, {1, 0, 3, 0}});
  CHECK(shape(2) == Rows{{0, 7, 1, 1}, {1, 3, 6, 1}, {2, 0, 3, 0}});
  CHECK(shape(3) == Rows{{0, 8, 1, 1}, {1, 9, 1, 1}, {2, 3, 3, 1}});
  CHECK(shape(4) == Rows{{0, 9, 1, 1}});
  CHECK(world.model.steps == 4);
  CHECK(world.session->stats().tokens_appended == 10 + 10 + 6);
}

TEST_CASE("A batch that is full admits nobody", "[session]") {
  World world(100, {.max_batch = 2, .max_step_tokens = 64});
  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    world.Add(MakeRequest(tag, 5, 3, static_cast<TokenId>(100 * tag)));
  }
  world.Steps(3);
  CHECK(world.model.Step(3).size() == 2);
  CHECK(world.session->waiting() == 1);
  world.Run();
  REQUIRE(world.model.Step(4).size() == 1);
  CHECK(world.model.Step(4)[0].tag == 2);
  CHECK(world.observer.done[2].admitted_s == 3.0);
}

TEST_CASE("A prompt waits for all its blocks, and nobody overtakes it", "[session]") {
  // 6 blocks of 4. Request 0 takes 4 at first (14 tokens) and 5 in the end; 1 needs 3; 2 needs 1.
  World world(6);
  world.Add(MakeRequest(0, 14, 5, 100));
  world.Add(MakeRequest(1, 12, 1, 200));
  world.Add(MakeRequest(2, 4, 1, 300));
  world.Steps(5);
  for (std::int64_t step = 1; step <= 5; ++step) CHECK(world.model.Step(step).size() == 1);
  world.Run();
  CHECK(world.model.Step(6).size() == 2);
  CHECK(world.session->stats().preemptions == 0);
  world.CheckEmpty();
}

TEST_CASE("What running prompts still need is not given away", "[session]") {
  // 6 blocks, 8 rows a step. Request 0 computes its 18 tokens in steps 1 to 3. In step 3 it holds 4
  // blocks, still needs one, and leaves 6 rows of the budget. Request 1 needs 2: two are free, but
  // one of them is spoken for.
  World world(6, {.max_batch = 8, .max_step_tokens = 8});
  world.Add(MakeRequest(0, 18, 1, 100));
  world.Add(MakeRequest(1, 8, 1, 200));
  world.Run();
  CHECK(world.model.Step(3).size() == 1);
  CHECK(world.model.Step(4)[0].tag == 1);
  CHECK(world.session->stats().preemptions == 0);
}

TEST_CASE("What a step's decodes take is not given away", "[session]") {
  // 4 blocks. In step 2 request 0 has filled two and takes a third; request 1 needs two.
  World world(4);
  world.Add(MakeRequest(0, 8, 3, 100));
  world.Steps(1);
  world.Add(MakeRequest(1, 8, 1, 200));
  world.Run();
  CHECK(world.model.Step(2).size() == 1);
  CHECK(world.model.Step(3).size() == 1);
  CHECK(world.model.Step(4)[0].tag == 1);
  CHECK(world.session->stats().preemptions == 0);
}

TEST_CASE("A prefix hit is computed once, and held blocks cost nothing", "[session]") {
  // 5 blocks. Request 0 holds 3 for its prompt of 12. Request 1 has the same 8 first tokens and 4
  // of its own: 3 blocks, of which 2 are held, so that the 2 free ones are enough.
  World world(5);
  world.Add(MakeRequest(0, 12, 3, 100));
  world.Steps(1);
  Request second = MakeRequest(1, 12, 1, 100);
  std::iota(second.prompt.begin() + 8, second.prompt.end(), 500);
  world.Add(second);
  world.Steps(1);
  const std::vector<SeenItem> step = world.model.Step(2);
  REQUIRE(step.size() == 2);
  CHECK(step[1].start == 8);
  CHECK(step[1].count == 4);
  CHECK(step[1].cached == std::vector<TokenId>{100, 101, 102, 103, 104, 105, 106, 107});
  CHECK(step[1].tokens == std::vector<TokenId>{500, 501, 502, 503});
  world.Run();
  CHECK(world.session->stats().hit_tokens == 8);
  CHECK(world.session->stats().lookup_tokens == 24);
  CHECK(world.session->stats().tokens_appended == 14 + 4);
}

TEST_CASE("Salts keep prompts apart", "[session]") {
  World world(20);
  for (const char* salt : {"a", "b", "a"}) {
    Request request = MakeRequest(0, 9, 1, 100);
    request.salt = salt;
    world.Add(request);
    world.Run();
  }
  CHECK(world.session->stats().hit_tokens == 8);
}

TEST_CASE("The latest arrival gives way, and computes again what it lost", "[session]") {
  // 5 blocks of 4; each request ends with 15 rows in 4 blocks. docs/simulator.md tells this run.
  World world(5);
  world.Add(MakeRequest(0, 8, 8, 100));
  world.Add(MakeRequest(1, 8, 8, 200));
  world.Run();
  // Step 2 needs a block for each and has one: request 1 goes. Its 9 known tokens need 3 blocks;
  // it is back when request 0 has ended, in step 9, with its first block still cached.
  for (std::int64_t step = 2; step <= 8; ++step) {
    REQUIRE(world.model.Step(step).size() == 1);
    CHECK(world.model.Step(step)[0].tag == 0);
  }
  REQUIRE(world.observer.ends.size() == 3);
  CHECK(world.observer.ends[0].tag == 1);
  CHECK(world.observer.ends[0].settled == 8);
  CHECK_FALSE(world.observer.ends[0].finished);
  const std::vector<SeenItem> back = world.model.Step(9);
  REQUIRE(back.size() == 1);
  CHECK(back[0].tag == 1);
  CHECK(back[0].cached == std::vector<TokenId>{200, 201, 202, 203});
  CHECK(back[0].tokens == std::vector<TokenId>{204, 205, 206, 207, 2000});
  CHECK(world.observer.streamed[1] ==
        std::vector<TokenId>{2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007});
  const SessionStats& stats = world.session->stats();
  CHECK(stats.preemptions == 1);
  CHECK(stats.steps == 15);
  CHECK(stats.recomputed_tokens == 4);
  CHECK(stats.hit_tokens == 0);  // what it computed itself is no hit
  CHECK(stats.lookup_tokens == 16);
  CHECK(stats.tokens_appended == 15 + 15 - 0 + 4);
  CHECK(world.cache.GetStats().evicted_blocks == 3);
  CHECK(world.cache.GetStats().peak_used_blocks == 4);
  CHECK(world.observer.done[1].preemptions == 1);
  CHECK(world.observer.done[1].recomputed_tokens == 4);
  CHECK(world.observer.done[1].admitted_s == 0.0);  // the first time
  world.CheckEmpty();
}

TEST_CASE("Of a hit after a preemption only what was never computed counts", "[session]") {
  // 14 blocks of 4, 10 rows a step. Request 0 decodes, 1 computes its 40 tokens in steps 1 to 5
  // (6, 9, 9, 9 and 7 rows). In step 5 request 2, with the same prompt, finds 32 of them and
  // computes 2. In step 6 all three need a block and one is free, so 2 goes, having had 34. By then
  // 1 has computed all 40, and 2, back in step 8 when 0 has ended, finds 36: 2 more than it had.
  World world(14, {.max_batch = 8, .max_step_tokens = 10});
  world.Add(MakeRequest(0, 4, 7, 900));
  world.Add(MakeRequest(1, 40, 10, 100));
  world.Add(MakeRequest(2, 40, 1, 100));
  world.Run();
  const std::vector<SeenItem> first = world.model.Step(5);
  REQUIRE(first.size() == 3);
  CHECK(first[2].start == 32);
  CHECK(first[2].count == 2);
  CHECK(world.model.Step(6).size() == 2);
  const std::vector<SeenItem> back = world.model.Step(8);
  REQUIRE(back.size() == 2);
  CHECK(back[1].start == 36);
  CHECK(back[1].count == 4);
  const SessionStats& stats = world.session->stats();
  CHECK(stats.preemptions == 1);
  CHECK(stats.hit_tokens == 34);
  CHECK(stats.lookup_tokens == 84);
  CHECK(stats.recomputed_tokens == 0);
  CHECK(stats.tokens_appended == 10 + 49 + 6);
  CHECK(stats.tokens_appended == 10 + 49 + 40 - stats.hit_tokens + stats.recomputed_tokens);
}

TEST_CASE("Requests that can never be served are refused at once", "[session]") {
  World world(5, {.max_batch = 8, .max_step_tokens = 64, .max_length = 30});
  world.Add(MakeRequest(0, 20, 11, 100));  // 31 tokens
  world.Add(MakeRequest(1, 20, 2, 100));   // 21 rows: 6 blocks of 5
  world.Add(MakeRequest(2, 20, 1, 100));   // 20 rows: 5 blocks
  world.Run();
  REQUIRE(world.observer.done.size() == 3);
  CHECK(world.observer.done[0].outcome == Outcome::kMaxLength);
  CHECK(world.observer.done[1].outcome == Outcome::kNeverFits);
  CHECK(world.observer.done[2].outcome == Outcome::kFinished);
  CHECK(world.session->stats().refused_max_length == 1);
  CHECK(world.session->stats().refused_never_fits == 1);
  CHECK(world.session->stats().finished == 1);
  CHECK(world.session->stats().lookup_tokens == 20);
}

TEST_CASE("Prompts are written when they are needed, and after a preemption again", "[session]") {
  World world(5);
  std::vector<int> written(3, 0);
  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    Request request;
    request.prompt_length = 8;
    request.max_new_tokens = 8;
    request.tag = tag;
    request.write_prompt = [&written, tag](std::vector<TokenId>& prompt) {
      ++written[tag];
      prompt.assign(8, static_cast<TokenId>(100 * tag));
    };
    world.Add(request);
  }
  CHECK(written == std::vector<int>{0, 0, 0});
  world.Steps(1);
  CHECK(written == std::vector<int>{1, 1, 1});  // two run, and the third is the queue's head
  world.Steps(2);
  CHECK(written == std::vector<int>{1, 2, 1});   // the second was preempted and is the head now
  CHECK(world.cache.GetStats().sequences == 2);  // the third is closed again
  world.Run();
  CHECK(world.session->stats().finished == 3);
}

TEST_CASE("A prompt of another length than promised ends the session", "[session]") {
  World world(5);
  Request request;
  request.prompt_length = 8;
  request.max_new_tokens = 1;
  request.write_prompt = [](std::vector<TokenId>& prompt) { prompt.assign(7, 1); };
  world.Add(request);
  CHECK(world.session->RunStep().status().code() == Code::kInvalidArgument);
  CHECK_FALSE(world.session->RunStep().ok());
}

}  // namespace
}  // namespace lariat
