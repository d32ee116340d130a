// SPDX-License-Identifier: Apache-2.0
// BurstGPT and Bailian traces, counted by hand in tests/data/README.md, and which turn follows
// which request.
#include <algorithm>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/trace_text.h"

using namespace lariat_test;

namespace {

std::vector<std::int64_t> Parents(const Trace& trace) {
  std::vector<std::int64_t> parents;
  for (const lariat::TraceRequest& request : trace.requests()) parents.push_back(request.parent);
  return parents;
}

std::string Bailian(int chat, int parent, double time) {
  std::ostringstream line;
  line << R"({"chat_id": )" << chat << R"(, "parent_chat_id": )" << parent << R"(, "timestamp": )"
       << time << R"(, "input_length": 3, "output_length": 1, "hash_ids": [1]})" << '\n';
  return line.str();
}

std::string Turn(double ms, const char* session, const char* tenant = "") {
  std::ostringstream line;
  line << R"({"arrival_ms": )" << ms << R"(, "prompt": [1], "output_length": 1, "session": ")"
       << session << R"(", "tenant": ")" << tenant << "\"}\n";
  return line.str();
}

}  // namespace

TEST_CASE("a small BurstGPT trace, counted by hand") {
  const Trace trace = Read(kData + "/burstgpt_small.csv");
  CHECK(trace.format() == TraceFormat::kBurstGpt);
  CHECK_FALSE(trace.has_token_identity());
  REQUIRE(trace.size() == 7);
  CHECK(trace.input_tokens() == 1200);
  CHECK(trace.output_tokens() == 120);
  CHECK(trace.max_tokens() == 440);
  CHECK(trace.requests()[0].arrival_s == 40.0);
  CHECK(trace.requests()[1].arrival_s == 42.5);
  CHECK(trace.requests()[1].input_length == 200);
  CHECK(trace.requests()[1].output_length == 20);
  CHECK(trace.requests()[1].line == 3);
  CHECK(trace.requests()[1].session.empty());
  CHECK(trace.requests()[2].session == "a5e0");
  CHECK(trace.requests()[5].arrival_s == 60.25);
  CHECK(trace.requests()[6].arrival_s == 86440.0);
  CHECK(Parents(trace) == std::vector<std::int64_t>{-1, -1, 0, -1, 3, 2, -1});

  // Requests that failed.
  CHECK(trace.bad_lines() == 3);
  REQUIRE(trace.errors().size() == 3);
  CHECK(trace.errors()[0].line == 6);
  CHECK(trace.errors()[0].field == "Response tokens");
  CHECK(trace.errors()[1].line == 8);
  CHECK(trace.errors()[2].line == 10);
  CHECK(trace.errors()[2].field == "Request tokens");

  std::set<TokenId> seen;
  for (std::int64_t r = 0; r < trace.size(); ++r) {
    for (const TokenId token : Prompt(trace, r)) {
      REQUIRE(token >= 0);
      REQUIRE(seen.insert(token).second);
    }
  }
}

TEST_CASE("BurstGPT: the first release's columns, other orders, no header") {
  const std::string header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type";
  const Trace first = Parse(header + "\r\n5,ChatGPT,472,18,490,Conversation log\r\n");
  CHECK(first.format() == TraceFormat::kBurstGpt);
  REQUIRE(first.size() == 1);
  CHECK(first.requests()[0].arrival_s == 5.0);
  CHECK(first.requests()[0].input_length == 472);
  CHECK(first.requests()[0].output_length == 18);
  CHECK(first.requests()[0].session.empty());

  const Trace other = Parse("Response tokens,Request tokens,Timestamp\n7,8,1.5\n9,10,0.5\n");
  REQUIRE(other.size() == 2);
  CHECK(other.requests()[0].input_length == 10);
  CHECK(other.requests()[1].output_length == 7);

  TraceOptions options;
  options.format = TraceFormat::kBurstGpt;
  options.rate = 2.0;
  const Trace bare = Parse("45,ChatGPT,1087,230,1317,Conversation log\n", options);
  REQUIRE(bare.size() == 1);
  CHECK(bare.requests()[0].arrival_s == 22.5);
  CHECK(bare.requests()[0].input_length == 1087);
  CHECK(bare.requests()[0].output_length == 230);
}

TEST_CASE("a small Bailian trace, counted by hand") {
  const Trace trace = Read(kData + "/bailian_small.jsonl");
  CHECK(trace.format() == TraceFormat::kBailian);
  CHECK(trace.has_token_identity());
  REQUIRE(trace.size() == 9);
  CHECK(trace.input_tokens() == 411);
  CHECK(trace.output_tokens() == 27);
  CHECK(trace.max_tokens() == 83);
  CHECK(trace.bad_lines() == 1);
  REQUIRE(trace.errors().size() == 1);
  CHECK(trace.errors()[0].line == 9);
  CHECK(trace.errors()[0].field == "output_length");
  CHECK(trace.requests()[2].arrival_s == 1.25);
  CHECK(trace.requests()[5].line == 7);  // arrives before line 6
  CHECK(trace.requests()[6].line == 6);

  // A parent that no line has, and one whose line is bad, are none.
  CHECK(Parents(trace) == std::vector<std::int64_t>{-1, -1, 0, -1, 0, -1, 5, 2, -1});

  // Request 4 has ids 0, 1, 4 and 7, the last for 2 tokens only.
  const std::vector<TokenId> tokens = Prompt(trace, 4);
  for (int i = 0; i < 32; ++i) REQUIRE(tokens[static_cast<std::size_t>(i)] == i);
  for (int i = 32; i < 48; ++i) REQUIRE(tokens[static_cast<std::size_t>(i)] == 64 + i - 32);
  CHECK(tokens[48] == 112);
  CHECK(tokens[49] == 113);
  CHECK(trace.OutputToken(0, 0) < 0);
}

TEST_CASE("Bailian: the greatest hash id still makes token ids") {
  const auto line = [](const std::string& id) {
    return R"({"chat_id": 1, "timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [)" +
           id + "]}";
  };
  const Trace trace = Parse(line("134217727"));
  CHECK(Prompt(trace, 0).front() == INT32_MAX - 15);
  CHECK(Prompt(trace, 0).back() == INT32_MAX);
  Contains(Refusal(line("134217728")), "hash_ids: element 1 is 134217728");
}

TEST_CASE("the parent is the last request before that has the name") {
  // Chat 1 twice; a chat that names itself; one that names a later one; equal arrivals.
  const Trace trace = Parse(Bailian(1, -1, 0) + Bailian(2, 1, 1) + Bailian(1, -1, 2) +
                            Bailian(3, 1, 3) + Bailian(4, 4, 4) + Bailian(5, 6, 5) +
                            Bailian(6, 5, 6) + Bailian(7, 8, 7) + Bailian(8, 7, 7));
  CHECK(Parents(trace) == std::vector<std::int64_t>{-1, 0, -1, 2, -1, -1, 5, -1, 7});
}

TEST_CASE("turns of a session follow each other in order of arrival") {
  // Sorted: x at 0, y at 1, x at 2, x of tenant t at 3, x at 4, without a session at 5, x of t
  // at 6.
  const std::string text = Turn(4, "x") + Turn(0, "x") + Turn(2, "x") + Turn(1, "y") +
                           Turn(3, "x", "t") + kGoodTokens + "\n" + Turn(6, "x", "t");
  CHECK(Parents(Parse(text)) == std::vector<std::int64_t>{-1, -1, 0, -1, 2, -1, 3});

  // Lines beyond the limit are not there.
  TraceOptions options;
  options.limit = 2;
  CHECK(Parents(Parse(text, options)) == std::vector<std::int64_t>{-1, 0});
  options.limit = 1;
  CHECK(Parents(Parse(text, options)) == std::vector<std::int64_t>{-1});

  for (const char* file : {"mooncake_small.jsonl", "azure_small.csv"}) {
    for (const std::int64_t parent : Parents(Read(kData + "/" + file))) CHECK(parent == -1);
  }
}

TEST_CASE("bad lines of BurstGPT traces") {
  const auto with = [](const std::string& time, const std::string& in, const std::string& out) {
    return time + ",s,12,ChatGPT," + in + "," + out + ",1,Conversation log";
  };
  CheckBadLines(TraceFormat::kBurstGpt, kBurstGptHeader, kGoodBurstGpt,
                {
                    {with("1", "5", "0"), "Response tokens", "is '0'; allowed: a whole number"},
                    {with("1", "0", "0"), "Request tokens", "is '0'"},
                    {with("1", "5", "-1"), "Response tokens", "is '-1'"},
                    {with("1", "5.0", "6"), "Request tokens", "is '5.0'"},
                    {with("1", "", "6"), "Request tokens", "is ''"},
                    {with("1", "5", "16777217"), "Response tokens", "allowed"},
                    {with("", "5", "6"), "Timestamp", "is ''; allowed: seconds in 0..1e12"},
                    {with("-1", "5", "6"), "Timestamp", "is '-1'"},
                    {with("nan", "5", "6"), "Timestamp", "is 'nan'"},
                    {with("inf", "5", "6"), "Timestamp", "is 'inf'"},
                    {with("1e13", "5", "6"), "Timestamp", "is '1e13'"},
                    {with("1e400", "5", "6"), "Timestamp", "is '1e400'"},
                    {with("1s", "5", "6"), "Timestamp", "is '1s'"},
                    {with("2024-05-10", "5", "6"), "Timestamp", "allowed"},
                    {"1,s,12,ChatGPT,5,6,11", "line", "has 7 columns; allowed: 8"},
                    {with("1", "5", "6") + ",x", "line", "has 9 columns; allowed: 8"},
                    {"1,s,12,ChatGPT", "Request tokens", "is missing"},
                    {"1,s,12,ChatGPT,5", "Response tokens", "is missing"},
                });
  TraceOptions options;
  options.format = TraceFormat::kBurstGpt;
  Contains(Refusal("Timestamp,Model,Request tokens\n1,x,2\n", options),
           "text:1: Response tokens: is missing in the header");
  Contains(Refusal("Session ID," + kBurstGptHeader + "1\n", options),
           "text:1: Session ID: appears twice in the header");
}

TEST_CASE("bad lines of Bailian traces") {
  const auto with = [](const std::string& chat, const std::string& parent, const std::string& time,
                       const std::string& in, const std::string& ids) {
    return R"({"chat_id": )" + chat + R"(, "parent_chat_id": )" + parent + R"(, "timestamp": )" +
           time + R"(, "input_length": )" + in + R"(, "output_length": 4, "hash_ids": )" + ids +
           "}";
  };
  CheckBadLines(
      TraceFormat::kBailian, "", kGoodBailian,
      {
          {with("-1", "-1", "0", "20", "[7, 8]"), "chat_id", "is -1; allowed: a whole number"},
          {with("null", "-1", "0", "20", "[7, 8]"), "chat_id", "is null"},
          {with("\"x\"", "-1", "0", "20", "[7, 8]"), "chat_id", "is 'x'"},
          {with("1.5", "-1", "0", "20", "[7, 8]"), "chat_id", "1.5"},
          {with("9223372036854775808", "-1", "0", "20", "[7, 8]"), "chat_id", "allowed"},
          {with("1", "-2", "0", "20", "[7, 8]"), "parent_chat_id", "is -2; allowed"},
          {with("1", "true", "0", "20", "[7, 8]"), "parent_chat_id", "is true"},
          {with("1", "-1", "-0.5", "20", "[7, 8]"), "timestamp", "allowed: seconds in 0..1e12"},
          {with("1", "-1", "1e13", "20", "[7, 8]"), "timestamp", "allowed"},
          {with("1", "-1", "NaN", "20", "[7, 8]"), "timestamp", "not JSON"},
          {with("1", "-1", "0", "0", "[]"), "input_length", "is 0"},
          {with("1", "-1", "0", "16777217", "[7]"), "input_length", "allowed"},
          {with("1", "-1", "0", "20", "[7]"), "hash_ids",
           "has 1 ids; allowed: 2, one per 16 of input_length 20"},
          {with("1", "-1", "0", "16", "[7, 8]"), "hash_ids", "has 2 ids; allowed: 1"},
          {with("1", "-1", "0", "20", "[7, 134217728]"), "hash_ids", "element 2 is 134217728"},
          {with("1", "-1", "0", "20", "[7, -1]"), "hash_ids", "element 2 is -1"},
          {with("1", "-1", "0", "20", "7"), "hash_ids", "no array"},
          {R"({"parent_chat_id": -1, "timestamp": 0, "input_length": 1, "output_length": 4, )"
           R"("hash_ids": [7]})",
           "chat_id", "is missing"},
          {R"({"chat_id": 1, "input_length": 1, "output_length": 4, "hash_ids": [7]})", "timestamp",
           "is missing"},
          {R"({"chat_id": 1, "timestamp": 0, "input_length": 1, "hash_ids": [7]})", "output_length",
           "is missing"},
          {R"({"chat_id": 1, "timestamp": 0, "input_length": 1, "output_length": 4})", "hash_ids",
           "is missing"},
          {R"({"chat_id": 1, "chat_id": 2})", "chat_id", "appears twice"},
          {kGoodBailian.substr(0, 70), "input_length", "cut short"},
      });
}
