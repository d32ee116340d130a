// SPDX-License-Identifier: Apache-2.0
// A session's next turn waits for the answer before it: SimulatorConfig::follow_turns.
#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::CheckEquation;
using test::MakeConfig;
using test::Run;

std::string Line(std::int64_t ms, const std::string& session, std::int64_t prompt,
                 std::int64_t output) {
  std::ostringstream line;
  line << R"({"arrival_ms": )" << ms << R"(, "prompt": [0)";
  for (std::int64_t t = 1; t < prompt; ++t) line << ',' << t;
  line << R"(], "output_length": )" << output;
  if (!session.empty()) line << R"(, "session": ")" << session << '"';
  line << "}\n";
  return line.str();
}

// By index in the trace.
std::vector<RequestResult> InOrder(const SimulationResult& result) {
  std::vector<RequestResult> rows = result.requests;
  std::sort(rows.begin(), rows.end(),
            [](const RequestResult& a, const RequestResult& b) { return a.tag < b.tag; });
  return rows;
}

bool Refused(const RequestResult& r) { return r.outcome != Outcome::kFinished; }

// When a request comes by the trace's clock: its own time, or its parent's end where that is later.
// One that was refused had its end when it came.
double WantedArrival(const Trace& trace, const std::vector<RequestResult>& rows, std::size_t i) {
  const double own = trace.requests()[i].arrival_s - trace.requests()[0].arrival_s;
  const std::int64_t parent = trace.requests()[i].parent;
  if (parent < 0) return own;
  const RequestResult& before = rows[static_cast<std::size_t>(parent)];
  return std::max(own, Refused(before) ? before.arrival_s : before.end_s);
}

bool Same(const RequestResult& a, const RequestResult& b) {
  return a.id == b.id && a.tag == b.tag && a.outcome == b.outcome && a.hit_tokens == b.hit_tokens &&
         a.preemptions == b.preemptions && a.recomputed_tokens == b.recomputed_tokens &&
         a.arrival_s == b.arrival_s && a.admitted_s == b.admitted_s &&
         a.first_token_s == b.first_token_s && a.end_s == b.end_s;
}

TEST_CASE("A turn that comes too early waits, one that comes late does not", "[turns]") {
  // Milliseconds: the first answer takes far longer than 1, and far less than a minute.
  const Trace trace = test::Tokens(Line(0, "s", 20, 30) + Line(1, "s", 52, 3) + Line(2, "", 7, 2) +
                                   Line(60'000, "s", 60, 2));
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  const std::vector<RequestResult> plain = InOrder(Run(trace, config));
  CHECK(plain[1].arrival_s == 0.001);
  CHECK(plain[1].first_token_s < plain[0].end_s);

  config.follow_turns = true;
  const SimulationResult result = Run(trace, config);
  const std::vector<RequestResult> rows = InOrder(result);
  CHECK(rows[0].arrival_s == 0.0);
  CHECK(rows[1].arrival_s == rows[0].end_s);
  CHECK(rows[1].first_token_s > rows[0].end_s);
  CHECK(rows[2].arrival_s == 0.002);  // nobody's turn: as the trace says
  CHECK(rows[3].arrival_s == 60.0);
  CHECK(result.arrival_span_s == 60.0);
  CheckEquation(trace, result);
}

TEST_CASE("The span of arrivals is that of the arrivals that were", "[turns]") {
  const Trace trace = test::Tokens(Line(0, "s", 20, 30) + Line(1, "s", 52, 3));
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  CHECK(Run(trace, config).arrival_span_s == 0.001);
  config.follow_turns = true;
  const SimulationResult result = Run(trace, config);
  CHECK(result.arrival_span_s == InOrder(result)[0].end_s);
  // The second request's steps come after the last arrival, the first one's fill the span.
  CHECK(*result.offered > 1.0);
}

TEST_CASE("In a closed loop whose turn it is goes first, in the trace's order", "[turns]") {
  // Two at a time. Without turns: 0 and 1, then 2 and 3. With: 1 waits for 0, so 2 takes its place;
  // 2 ends first, and 3 is next, as 1 still waits. Then 1.
  const Trace trace = test::Tokens(Line(0, "s", 8, 20) + Line(0, "s", 8, 20) + Line(0, "", 8, 5) +
                                   Line(0, "", 8, 25));
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  config.concurrency = 2;
  const std::vector<RequestResult> plain = InOrder(Run(trace, config));
  CHECK(plain[1].arrival_s == 0.0);
  CHECK(plain[2].arrival_s == plain[0].end_s);

  config.follow_turns = true;
  const std::vector<RequestResult> rows = InOrder(Run(trace, config));
  CHECK(rows[0].arrival_s == 0.0);
  CHECK(rows[2].arrival_s == 0.0);
  CHECK(rows[3].arrival_s == rows[2].end_s);
  CHECK(rows[1].arrival_s == rows[0].end_s);

  // Places that nobody may take stay empty: a session alone is served one turn after another.
  const Trace alone = test::Tokens(Line(0, "s", 8, 9) + Line(0, "s", 8, 9) + Line(0, "s", 8, 9));
  config.concurrency = 3;
  const std::vector<RequestResult> turns = InOrder(Run(alone, config));
  CHECK(turns[1].arrival_s == turns[0].end_s);
  CHECK(turns[2].arrival_s == turns[1].end_s);
}

TEST_CASE("Turns of one answer come together, and all of them", "[turns]") {
  const auto chat = [](int id, int parent, const char* ids) {
    std::ostringstream line;
    line << R"({"chat_id": )" << id << R"(, "parent_chat_id": )" << parent
         << R"(, "timestamp": 0, "input_length": 32, "output_length": 10, "hash_ids": )" << ids
         << "}\n";
    return line.str();
  };
  const Result<Trace> trace =
      ParseTrace(chat(1, -1, "[0, 1]") + chat(2, 1, "[0, 2]") + chat(3, 1, "[0, 3]") +
                     chat(4, 3, "[0, 4]") + chat(5, 77, "[5, 6]"),
                 "made");
  REQUIRE(trace.ok());
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  config.follow_turns = true;
  const std::vector<RequestResult> rows = InOrder(Run(*trace, config));
  REQUIRE(rows.size() == 5);
  CHECK(rows[1].arrival_s == rows[0].end_s);
  CHECK(rows[2].arrival_s == rows[0].end_s);
  CHECK(rows[3].arrival_s == rows[2].end_s);
  CHECK(rows[4].arrival_s == 0.0);  // its parent is not in the trace
  CHECK(rows[1].hit_tokens == 16);
}

TEST_CASE("A refused turn lets the next one come", "[turns]") {
  const Trace trace = test::Tokens(Line(0, "s", 20, 30) + Line(1, "s", 200, 3) +
                                   Line(2, "s", 300, 2) + Line(3, "s", 30, 2) + Line(4, "", 4, 2));
  for (const std::int64_t concurrency : {0, 1, 2}) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
    config.max_length = 150;
    config.concurrency = concurrency;
    config.follow_turns = true;
    const SimulationResult result = Run(trace, config);
    const std::vector<RequestResult> rows = InOrder(result);
    REQUIRE(rows.size() == 5);
    CHECK(result.session.refused_max_length == 2);
    CHECK(result.session.finished == 3);
    CHECK(rows[1].arrival_s >= rows[0].end_s);
    CHECK(rows[3].arrival_s == rows[1].arrival_s);
    CheckEquation(trace, result);
  }
}

// Sessions of a few turns, in a pool that preempts, with prompts that are refused.
Trace RandomTrace(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::string text;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t session = below(8);
    const std::string name = session < 6 ? std::to_string(session) : "";
    const std::int64_t prompt = below(12) == 0 ? 400 : 1 + below(40);
    text += Line(below(60), name, prompt, 1 + below(50));
  }
  return test::Tokens(text);
}

TEST_CASE("Every turn comes at its time or its parent's end: random traces", "[turns]") {
  std::mt19937_64 random(11);
  std::int64_t waited = 0, refused = 0, preemptions = 0;
  for (int round = 0; round < 40; ++round) {
    const Trace trace = RandomTrace(random);
    for (const std::int64_t concurrency : {0, 1, 2, 7}) {
      SimulatorConfig config = MakeConfig(BackendKind::kNull, 26, 4);
      config.prefill_chunk = 16;
      config.max_batch = 5;
      config.concurrency = concurrency;
      config.follow_turns = true;
      const SimulationResult result = Run(trace, config);
      const std::vector<RequestResult> rows = InOrder(result);
      REQUIRE(std::ssize(rows) == trace.size());
      CheckEquation(trace, result);
      preemptions += result.session.preemptions;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double wanted = WantedArrival(trace, rows, i);
        if (concurrency == 0) CHECK(rows[i].arrival_s == wanted);
        const std::int64_t parent = trace.requests()[i].parent;
        if (parent < 0) continue;
        const RequestResult& before = rows[static_cast<std::size_t>(parent)];
        refused += Refused(before);
        waited += concurrency == 0 &&
                  wanted > trace.requests()[i].arrival_s - trace.requests()[0].arrival_s;
        CHECK(rows[i].arrival_s >= (Refused(before) ? before.arrival_s : before.end_s));
      }
      // Once more: the same.
      const std::vector<RequestResult> again = InOrder(Run(trace, config));
      CHECK(std::equal(rows.begin(), rows.end(), again.begin(), again.end(), Same));
    }
  }
  CHECK(waited > 100);
  CHECK(refused > 20);
  CHECK(preemptions > 100);
}

TEST_CASE("One after another, every turn finds its parent ended", "[turns]") {
  std::mt19937_64 random(12);
  for (int round = 0; round < 10; ++round) {
    const Trace trace = RandomTrace(random);
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 60, 4);
    config.concurrency = 1;
    const std::vector<RequestResult> plain = InOrder(Run(trace, config));
    config.follow_turns = true;
    const std::vector<RequestResult> rows = InOrder(Run(trace, config));
    CHECK(std::equal(rows.begin(), rows.end(), plain.begin(), plain.end(), Same));
  }
}

TEST_CASE("Where no request follows another, the flag changes nothing", "[turns]") {
  for (const std::int64_t concurrency : {0, 1, 3}) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 90);
    config.concurrency = concurrency;
    const std::vector<RequestResult> plain = InOrder(Run(test::SmallTrace(), config));
    config.follow_turns = true;
    const std::vector<RequestResult> rows = InOrder(Run(test::SmallTrace(), config));
    CHECK(std::equal(rows.begin(), rows.end(), plain.begin(), plain.end(), Same));
  }
}

TEST_CASE("The small Bailian trace: hits by hand, and its turns", "[turns]") {
  const Result<Trace> trace =
      ReadTrace(std::string(LARIAT_TEST_DATA).append("/bailian_small.jsonl"));
  REQUIRE(trace.ok());
  // tests/data/README.md counts the hits.
  for (const auto& [block_size, hits] : {std::pair(16, 256), std::pair(32, 224)}) {
    SimulatorConfig config = MakeConfig(BackendKind::kCpu, 100, block_size);
    config.concurrency = 1;
    config.follow_turns = true;
    config.check = true;
    const SimulationResult result = Run(*trace, config);
    CHECK(result.session.hit_tokens == hits);
    CHECK(result.session.tokens_appended == 411 + 27 - 9 - hits);
    CHECK(result.check->sequences == 9);
    CHECK(result.check->mismatches == 0);
  }
  // A device a million times as slow: every turn waits.
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100);
  config.follow_turns = true;
  config.device.step_overhead_s.value *= 1e6;
  const std::vector<RequestResult> rows = InOrder(Run(*trace, config));
  CHECK(rows[2].arrival_s == rows[0].end_s);
  CHECK(rows[4].arrival_s == rows[0].end_s);
  CHECK(rows[6].arrival_s == rows[5].end_s);
  CHECK(rows[7].arrival_s == rows[2].end_s);
  CHECK(rows[3].arrival_s == 1.5);
  CHECK(rows[8].arrival_s == 6.0);
}

}  // namespace
}  // namespace lariat
