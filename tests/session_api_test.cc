// SPDX-License-Identifier: Apache-2.0
// What a server does with a Session beside waiting: drafts, ends of text, cancels, errors.
#include <algorithm>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "support/session_world.h"

namespace lariat {
namespace {

using test::MakeRequest;
using test::SeenItem;
using test::World;

TEST_CASE("Drafts that are accepted become tokens, the others leave nothing", "[session]") {
  World world(100);
  // Three drafts after every step; of three that were tried, two are accepted.
  std::vector<TokenId> tries;
  world.model.hook = [&](const ExecutorStep& step, ExecutorOutput& output) {
    REQUIRE(step.items.size() == 1);
    output.accepted[0] = std::min<std::int64_t>(step.items[0].drafts, 2);
    const TokenId next = output.next[0];
    tries = {next + 1000, next + 2000, next + 3000};
    output.drafts[0] = tries;
  };
  world.Add(MakeRequest(0, 5, 8, 100));
  world.Run();
  // Prefill: token 1000. Then [1000, 2000, 3000, 4000] of which two drafts stay, and 1001; then the
  // same again and 1002: seven tokens. One is left, so that no draft is of use.
  const std::vector<SeenItem>& seen = world.model.seen;
  REQUIRE(seen.size() == 4);
  CHECK(seen[1].tokens == std::vector<TokenId>{1000, 2000, 3000, 4000});
  CHECK(seen[1].drafts == 3);
  CHECK(seen[1].start == 5);
  CHECK(seen[2].tokens == std::vector<TokenId>{1001, 2001, 3001, 4001});
  CHECK(seen[2].start == 8);
  CHECK(seen[3].tokens == std::vector<TokenId>{1002});
  CHECK(seen[3].start == 11);
  CHECK(world.observer.streamed[0] ==
        std::vector<TokenId>{1000, 2000, 3000, 1001, 2001, 3001, 1002, 1003});
  REQUIRE(world.observer.ends.size() == 1);
  CHECK(world.observer.ends[0].settled == 5 + 8 - 1);
  CHECK(world.session->stats().tokens_appended == 12);
  CHECK(world.session->stats().output_tokens == 8);
  world.CheckEmpty();
}

TEST_CASE("More accepted drafts than there were end the session", "[session]") {
  World world(100);
  world.model.hook = [](const ExecutorStep&, ExecutorOutput& output) { output.accepted[0] = 1; };
  world.Add(MakeRequest(0, 5, 8, 100));
  const Result<bool> ran = world.session->RunStep();
  REQUIRE_FALSE(ran.ok());
  CHECK(ran.status().message().find("accepted = 1") != std::string::npos);

  // Which can then only be destroyed.
  const Result<RequestId> added = world.session->Add(MakeRequest(1, 5, 8, 200));
  REQUIRE_FALSE(added.ok());
  CHECK(added.status().message().find("can only be destroyed") != std::string::npos);
  CHECK_FALSE(world.session->Cancel(RequestId{1}).ok());
  CHECK_FALSE(world.session->RunStep().ok());
}

TEST_CASE("A priority is refused where the cache has none", "[session]") {
  World world(100);
  Request request = MakeRequest(0, 5, 8, 100);
  request.priority = 36;
  CHECK(world.session->Add(request).status().message().find("priority = 36") == 0);
  request.priority = -1;
  CHECK(world.session->Add(request).status().code() == Code::kInvalidArgument);
}

TEST_CASE("Seconds that are no time end the session", "[session]") {
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    World world(100);
    world.model.hook = [&](const ExecutorStep&, ExecutorOutput& output) {
      output.seconds = seconds;
    };
    world.Add(MakeRequest(0, 5, 8, 100));
    CHECK(world.session->RunStep().status().code() == Code::kInvalidArgument);
  }
}

TEST_CASE("An end of text ends the request", "[session]") {
  World world(100);
  world.model.hook = [](const ExecutorStep& step, ExecutorOutput& output) {
    for (std::size_t i = 0; i < step.items.size(); ++i) {
      if (output.next[i] == 1002) output.stop[i] = 1;
    }
  };
  world.Add(MakeRequest(0, 5, 100, 100));
  world.Add(MakeRequest(1, 5, 5, 200));
  world.Run();
  CHECK(world.observer.streamed[0] == std::vector<TokenId>{1000, 1001, 1002});
  CHECK(world.observer.streamed[1].size() == 5);
  CHECK(world.observer.done[0].output_tokens == 3);
  CHECK(world.observer.done[0].outcome == Outcome::kFinished);
  world.CheckEmpty();
}

TEST_CASE("A cancel takes a request out wherever it is", "[session]") {
  World world(4);  // one request of 13 rows at a time
  const RequestId running = world.Add(MakeRequest(0, 9, 5, 100));
  const RequestId head = world.Add(MakeRequest(1, 9, 5, 200));
  const RequestId waiting = world.Add(MakeRequest(2, 9, 5, 300));
  world.Add(MakeRequest(3, 9, 5, 400));
  world.Steps(2);
  CHECK(world.session->running() == 1);
  CHECK(world.session->waiting() == 3);
  CHECK(world.session->Cancel(running).ok());
  CHECK(world.session->Cancel(head).ok());
  CHECK(world.session->Cancel(waiting).ok());
  CHECK(world.cache.GetStats().sequences == 0);
  CHECK(world.session->Cancel(waiting).code() == Code::kInvalidArgument);
  world.Run();
  REQUIRE(world.observer.done.size() == 4);
  CHECK(world.observer.done[0].outcome == Outcome::kCancelled);
  CHECK(world.observer.done[0].output_tokens == 2);
  CHECK(world.observer.done[3].outcome == Outcome::kFinished);
  CHECK(world.session->stats().cancelled == 3);
  CHECK(world.session->stats().finished == 1);
  // Nobody is told of the end of a sequence that was cancelled.
  CHECK(world.observer.ends.size() == 1);
  world.CheckEmpty();
}

TEST_CASE("Requests may be added while others run, also from a callback", "[session]") {
  struct Adder : test::RecordingObserver {
    using RecordingObserver::RecordingObserver;
    void OnDone(const RequestResult& result) override {
      RecordingObserver::OnDone(result);
      if (result.tag < 3) {
        REQUIRE(session->Add(MakeRequest(result.tag + 1, 5, 2, 100)).ok());
      }
    }
    Session* session = nullptr;
  };
  KVCache cache = test::MakeCache(50);
  test::ScriptedExecutor model;
  Adder observer(&cache);
  Result<Session> session =
      Session::Create(cache, model, {.max_batch = 4, .max_step_tokens = 9}, &observer);
  REQUIRE(session.ok());
  observer.session = &*session;
  REQUIRE(session->Add(MakeRequest(0, 5, 2, 100)).ok());
  while (*session->RunStep()) {
  }
  CHECK(session->stats().finished == 4);
  CHECK(observer.done[3].arrival_s == 6.0);
  CHECK(session->now() == 8.0);
}

TEST_CASE("The clock moves on by steps and by hand, never back", "[session]") {
  World world(50);
  CHECK_FALSE(*world.session->RunStep());
  world.session->AdvanceTo(10.0);
  world.session->AdvanceTo(5.0);
  CHECK(world.session->now() == 10.0);
  Request late = MakeRequest(0, 5, 2, 100);
  late.arrival_s = 9.0;
  world.Add(late);
  world.Run();
  CHECK(world.observer.done[0].arrival_s == 9.0);
  CHECK(world.observer.done[0].admitted_s == 10.0);
  CHECK(world.observer.done[0].end_s == 12.0);
}

TEST_CASE("What Add refuses to take", "[session]") {
  World world(50);
  world.session->AdvanceTo(10.0);
  const auto refused = [&](auto change, const char* text) {
    Request request = MakeRequest(0, 5, 2, 100);
    change(request);
    const Result<RequestId> added = world.session->Add(request);
    REQUIRE_FALSE(added.ok());
    CHECK(added.status().code() == Code::kInvalidArgument);
    CHECK(added.status().message().find(text) != std::string::npos);
  };
  refused([](Request& r) { r.prompt.clear(); }, "prompt length = 0");
  refused([](Request& r) { r.max_new_tokens = 0; }, "max_new_tokens = 0");
  refused([](Request& r) { r.arrival_s = 10.5; }, "arrival_s = 10.5");
  refused([](Request& r) { r.write_prompt = [](std::vector<TokenId>&) {}; }, "both given");
  Request later = MakeRequest(0, 5, 2, 100);
  later.arrival_s = 6.0;
  world.Add(later);
  refused([](Request& r) { r.arrival_s = 5.0; }, "arrival_s = 5.0");
  CHECK(world.session->waiting() == 1);
}

TEST_CASE("What Create refuses", "[session]") {
  KVCache cache = test::MakeCache(50);
  test::ScriptedExecutor model;
  const auto refused = [&](const SessionConfig& config, const char* text) {
    const Result<Session> session = Session::Create(cache, model, config);
    REQUIRE_FALSE(session.ok());
    CHECK(session.status().code() == Code::kInvalidArgument);
    CHECK(session.status().message().find(text) != std::string::npos);
  };
  refused({.max_batch = 0, .max_step_tokens = 64}, "max_batch = 0");
  refused({.max_batch = 9, .max_step_tokens = 64}, "max_batch = 9");
  refused({.max_batch = 8, .max_step_tokens = 0}, "max_step_tokens = 0");
  refused({.max_batch = 8, .max_step_tokens = 65}, "max_step_tokens = 65");
  refused({.max_batch = 8, .max_step_tokens = 64, .max_length = 201}, "max_length = 201");
}

TEST_CASE("Errors of the model and the observer come out of the step", "[session]") {
  World world(50);
  world.model.status = DeviceError("lost");
  world.Add(MakeRequest(0, 5, 2, 100));
  CHECK(world.session->RunStep().status().code() == Code::kDeviceError);

  World other(50);
  other.observer.status = CorruptData("differs");
  other.Add(MakeRequest(0, 5, 1, 100));
  CHECK(other.session->RunStep().status().code() == Code::kCorruptData);
}

TEST_CASE("A session that is destroyed gives its blocks back", "[session]") {
  World world(50);
  world.Add(MakeRequest(0, 9, 5, 100));
  world.Add(MakeRequest(1, 9, 5, 200));
  world.Steps(2);
  CHECK(world.cache.GetStats().held_blocks > 0);
  world.session.reset();
  world.CheckEmpty();
}

}  // namespace
}  // namespace lariat
