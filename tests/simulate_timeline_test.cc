// SPDX-License-Identifier: Apache-2.0
// `lariat simulate --trace-out`: the document's structure, and that it says what the other results
// say.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/command.h"

namespace lariat {
namespace {

using nlohmann::json;
using test::CommandResult;
using test::ReadFile;
using test::RunLariat;
using test::TempFolder;

struct Span {
  std::string name;
  std::int64_t begin = 0, end = 0;  // nanoseconds
};

std::int64_t Nanoseconds(const json& micros) { return std::llround(micros.get<double>() * 1e3); }

// A document, taken apart; looks at the structure on the way.
struct Timeline {
  explicit Timeline(const std::string& text) : document(json::parse(text)) {
    std::map<std::int64_t, std::vector<Span>> open;
    for (const json& event : document.at("traceEvents")) {
      const std::string phase = event.at("ph");
      CHECK(event.at("pid") == 1);
      if (phase == "M") continue;
      const std::int64_t ts = Nanoseconds(event.at("ts"));
      CHECK(ts >= 0);
      if (phase == "X") {
        const std::int64_t duration = Nanoseconds(event.at("dur"));
        CHECK(duration >= 0);
        std::vector<json>& track = tracks[event.at("tid")];
        // One after the other.
        if (!track.empty()) CHECK(ts >= last_end[event.at("tid")]);
        last_end[event.at("tid")] = ts + duration;
        track.push_back(event);
      } else if (phase == "C") {
        counters[event.at("name")].push_back(event);
      } else if (phase == "n") {
        refused.push_back(event);
      } else {
        REQUIRE((phase == "b" || phase == "e"));
        CHECK(event.at("cat") == "request");
        const std::int64_t id = event.at("id");
        std::vector<Span>& stack = open[id];
        if (phase == "b") {
          CHECK((stack.empty() || ts >= stack.back().begin));
          stack.push_back({event.at("name"), ts, ts});
          continue;
        }
        REQUIRE_FALSE(stack.empty());
        Span span = stack.back();
        stack.pop_back();
        CHECK(span.name == event.at("name").get<std::string>());
        CHECK(ts >= span.begin);
        span.end = ts;
        spans[id].push_back(span);
      }
    }
    for (const auto& [id, stack] : open) CHECK(stack.empty());
  }

  std::int64_t Sum(int track, const char* argument) const {
    std::int64_t sum = 0;
    const auto found = tracks.find(track);
    if (found == tracks.end()) return 0;
    for (const json& event : found->second)
      sum += event.at("args").at(argument).get<std::int64_t>();
    return sum;
  }

  json document;
  std::map<int, std::vector<json>> tracks;  // 1: steps, 2: to the device, 3: to the host
  std::map<int, std::int64_t> last_end;
  std::map<std::string, std::vector<json>> counters;
  std::map<std::int64_t, std::vector<Span>> spans;  // in the order of their ends
  std::vector<json> refused;
};

struct Run {
  json results;
  std::vector<std::map<std::string, std::string>> requests;
  std::string text;
};

Run Simulate(const std::string& arguments) {
  const TempFolder folder;
  const CommandResult result =
      RunLariat("simulate " + arguments + " --json - --requests-out " + folder.File("r.csv") +
                " --trace-out " + folder.File("t.json"));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  Run run;
  run.results = json::parse(result.out);
  run.text = ReadFile(folder.File("t.json"));
  std::istringstream csv(ReadFile(folder.File("r.csv")));
  std::vector<std::string> names;
  for (std::string line; std::getline(csv, line);) {
    std::vector<std::string> cells(1);
    for (const char c : line) {
      if (c == ',') {
        cells.emplace_back();
      } else {
        cells.back().push_back(c);
      }
    }
    if (names.empty()) {
      names = cells;
      continue;
    }
    std::map<std::string, std::string>& row = run.requests.emplace_back();
    for (std::size_t i = 0; i < names.size(); ++i) row[names[i]] = cells.at(i);
  }
  return run;
}

// Times of the CSV are doubles that were not rounded to nanoseconds: half of one at each end, and
// what doubles lose.
void CheckMillis(std::int64_t ns, const std::string& milliseconds) {
  CHECK(std::abs(static_cast<double>(ns) - 1e6 * std::stod(milliseconds)) < 2);
}

void CheckRequests(const Run& run, const Timeline& timeline) {
  std::size_t refused = 0;
  for (const auto& row : run.requests) {
    const std::int64_t id = std::stoll(row.at("request"));
    INFO("request " << id);
    if (row.at("outcome") != "finished") {
      ++refused;
      CHECK(timeline.spans.count(id) == 0);
      continue;
    }
    const std::vector<Span>& spans = timeline.spans.at(id);
    const Span& whole = spans.back();
    CHECK(whole.name == "request");
    CheckMillis(whole.end - whole.begin, row.at("e2e_ms"));
    CHECK(std::abs(static_cast<double>(whole.begin) - 1e9 * std::stod(row.at("arrival_s"))) < 2);
    CHECK(spans.front().name == "queued");
    CheckMillis(spans.front().end - spans.front().begin, row.at("queue_ms"));
    // One after the other, from end to end.
    std::int64_t at = whole.begin, first_decode = whole.end, preempted = 0;
    for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
      CHECK(spans[i].begin == at);
      at = spans[i].end;
      if (spans[i].name == "decode") first_decode = std::min(first_decode, spans[i].begin);
      preempted += spans[i].name == "preempted" ? 1 : 0;
      CHECK((i == 0) == (spans[i].name == "queued"));
    }
    CHECK(at == whole.end);
    CheckMillis(first_decode - whole.begin, row.at("ttft_ms"));
    CHECK(preempted == std::stoll(row.at("preemptions")));
  }
  CHECK(timeline.refused.size() == refused);
}

void CheckRun(const Run& run) {
  const Timeline timeline(run.text);
  const json& results = run.results;
  CheckRequests(run, timeline);
  CHECK(std::ssize(timeline.tracks.at(1)) == results["steps"]);
  CHECK(timeline.Sum(1, "hit_tokens") == results["prefix"]["hit_tokens"]);
  std::int64_t rejected = 0;
  if (!results["speculation"].is_null()) {
    rejected = results["speculation"]["drafted"].get<std::int64_t>() -
               results["speculation"]["accepted"].get<std::int64_t>();
    CHECK(timeline.Sum(1, "drafts") == results["speculation"]["drafted"]);
  }
  CHECK(timeline.Sum(1, "tokens") - rejected == results["tokens_appended"]);
  std::int64_t number = 0;
  for (const json& step : timeline.tracks.at(1)) CHECK(step["args"]["step"] == ++number);
  REQUIRE(std::ssize(timeline.counters.at("blocks")) == results["steps"]);
  for (const json& counter : timeline.counters.at("blocks")) {
    const json& blocks = counter["args"];
    CHECK(blocks["held"].get<std::int64_t>() + blocks["idle"].get<std::int64_t>() +
              blocks["free"].get<std::int64_t>() ==
          results["blocks"]["total"]);
    CHECK(blocks["held"] <= results["blocks"]["peak_used"]);
  }
  const json& rate = timeline.counters.at("hit rate").back()["args"]["percent"];
  CHECK(std::abs(rate.get<double>() - 100 * results["prefix"]["hit_rate"].get<double>()) < 1e-6);
  CHECK(timeline.Sum(2, "bytes") == results["bytes"]["onboarded"]);
  CHECK(timeline.Sum(3, "bytes") == results["bytes"]["offloaded"]);
}

const std::string kTight =
    "--workload in=64,out=160,n=10,prefix=32 --blocks 60 --model smollm2-135m";

TEST_CASE("A timeline agrees with the other results", "[command]") {
  const Run tight = Simulate(kTight + " --backend null");
  CHECK(tight.results["served"]["preemptions"] > 0);
  CheckRun(tight);
  CheckRun(Simulate(kTight + " --backend null --speculate 4:0.6"));
  CheckRun(Simulate(kTight + " --backend null --beams 3"));
  const Run refuses = Simulate(std::string("--trace ") + LARIAT_TEST_DATA +
                               "/mooncake_small.jsonl --model smollm2-135m --backend null "
                               "--max-length 1000");
  CHECK(refuses.results["served"]["refused"] > 0);
  CheckRun(refuses);
}

TEST_CASE("A timeline has the transfers of a host tier", "[command]") {
  for (const char* how : {"recompute", "swap"}) {
    const Run run = Simulate(
        "--workload in=200,out=120,n=24,prefix=96 --blocks 60 "
        "--host-memory 256MiB --model smollm2-135m --backend null "
        "--concurrency 6 --preempt " +
        std::string(how));
    CHECK(run.results["bytes"]["offloaded"] > 0);
    CheckRun(run);
    if (std::string(how) == "swap") CHECK(run.results["bytes"]["onboarded"] > 0);
  }
}

TEST_CASE("A timeline is the same on every backend and in every run", "[command]") {
  const std::string first = Simulate(kTight + " --backend null").text;
  CHECK(first == Simulate(kTight + " --backend null").text);
  CHECK(first == Simulate(kTight + " --backend cpu").text);
}

TEST_CASE("One step makes a whole timeline", "[command]") {
  const Run run = Simulate("--workload in=5,out=1,n=1 --model smollm2-135m --backend null");
  const Timeline timeline(run.text);
  CHECK(timeline.tracks.at(1).size() == 1);
  const std::vector<Span>& spans = timeline.spans.at(0);
  REQUIRE(spans.size() == 3);  // no decode: the first token is the last
  CHECK(spans[0].name == "queued");
  CHECK(spans[1].name == "prefill");
  CHECK(spans[2].name == "request");
}

TEST_CASE("A timeline on stdout is all that it holds", "[command]") {
  const CommandResult result = RunLariat(
      "simulate --workload in=5,out=2,n=1 --model smollm2-135m --backend null --trace-out -");
  CHECK(result.exit_code == 0);
  CHECK(Timeline(result.out).tracks.at(1).size() == 2);
}

TEST_CASE("A timeline that finds no room on the disk is an error", "[command]") {
  if (!std::filesystem::exists("/dev/full")) return;
  const CommandResult result = RunLariat(
      "simulate --workload in=5,out=2,n=1 --model smollm2-135m --backend null --trace-out "
      "/dev/full");
  CHECK(result.exit_code == 2);
  CHECK(result.err.find("--trace-out = /dev/full: not all of it could be written") !=
        std::string::npos);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.out.empty());
}

}  // namespace
}  // namespace lariat
