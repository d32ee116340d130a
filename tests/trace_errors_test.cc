// SPDX-License-Identifier: Apache-2.0
// Readers of request traces: what each kind of bad line or file is blamed on.
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lariat/trace.h"
#include "support/catch.h"
#include "support/trace_text.h"

using namespace lariat_test;

namespace {

// Lines that are not blank.
std::int64_t WrittenLines(const std::string& text) {
  std::int64_t lines = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r\v\f") != std::string::npos) ++lines;
  }
  return lines;
}

}  // namespace

TEST_CASE("Azure: a header that lacks a column ends the reading") {
  TraceOptions options;
  options.format = TraceFormat::kAzure;
  Contains(Refusal("TIMESTAMP,ContextTokens\n" + kGoodAzure, options),
           "text:1: GeneratedTokens: is missing in the header");
  Contains(Refusal("TIMESTAMP,ContextTokens,TIMESTAMP,GeneratedTokens\n" + kGoodAzure, options),
           "text:1: TIMESTAMP: appears twice in the header");
}

TEST_CASE("a file with every kind of bad line") {
  const Trace trace = Read(kData + "/mooncake_bad.jsonl");
  CHECK(trace.size() == 2);
  CHECK(trace.input_tokens() == 1113);
  CHECK(trace.output_tokens() == 5);
  CHECK(trace.bad_lines() == 7);
  const std::vector<std::string> fields = {"hash_ids",     "input_length", "timestamp",
                                           "timestamp",    "input_length", "hash_ids",
                                           "output_length"};
  REQUIRE(trace.errors().size() == fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    CHECK(trace.errors()[i].line == static_cast<std::int64_t>(i) + 2);
    CHECK(trace.errors()[i].field == fields[i]);
  }
  TraceOptions strict;
  strict.strict = true;
  const Result<Trace> refused = ReadTrace(kData + "/mooncake_bad.jsonl", strict);
  REQUIRE_FALSE(refused.ok());
  Contains(refused.status().message(), kData + "/mooncake_bad.jsonl:2: hash_ids: ");
}

TEST_CASE("bad lines of Mooncake traces") {
  const auto with = [](const std::string& time, const std::string& in, const std::string& out,
                       const std::string& ids) {
    return R"({"timestamp": )" + time + R"(, "input_length": )" + in + R"(, "output_length": )" +
           out + R"(, "hash_ids": )" + ids + "}";
  };
  CheckBadLines(
      TraceFormat::kMooncake, "", kGoodMooncake,
      {
          {R"({"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1)",
           "hash_ids", "cut short"},
          {R"({"timestamp": 0, "input_length": 600, "output_length": 4)", "output_length",
           "cut short"},
          {R"({"timestamp": 0, "input_length": 600, "outp)", "line", "cut short"},
          {R"({"timestamp": 0, "input_length": 600,)", "line", "cut short"},
          {R"({"timestamp":)", "timestamp", "cut short"},
          {"{", "line", "cut short"},
          {with("0", "600 601", "4", "[0, 1]"), "input_length", "not JSON at byte"},
          {with("0", "600", "4", "[0 1]"), "hash_ids", "not JSON"},
          {with("-1", "600", "4", "[0, 1]"), "timestamp", "is -1; allowed"},
          {with("-0.5", "600", "4", "[0, 1]"), "timestamp", "allowed: milliseconds"},
          {with("NaN", "600", "4", "[0, 1]"), "timestamp", "not JSON"},
          {with("Infinity", "600", "4", "[0, 1]"), "timestamp", "not JSON"},
          {with("1e400", "600", "4", "[0, 1]"), "timestamp", "beyond double"},
          {with("1e16", "600", "4", "[0, 1]"), "timestamp", "allowed"},
          {with("\"0\"", "600", "4", "[0, 1]"), "timestamp", "allowed"},
          {with("null", "600", "4", "[0, 1]"), "timestamp", "is null"},
          {with("[0]", "600", "4", "[0, 1]"), "timestamp", "allowed"},
          {with("0", "0", "4", "[]"), "input_length", "is 0; allowed: a whole number in 1.."},
          {with("0", "-600", "4", "[0, 1]"), "input_length", "is -600"},
          {with("0", "600.5", "4", "[0, 1]"), "input_length", "600.5"},
          {with("0", "16777217", "4", "[0]"), "input_length", "allowed"},
          {with("0", "99999999999999999999", "4", "[0]"), "input_length", "allowed"},
          {with("0", "9223372036854775808", "4", "[0]"), "input_length", "allowed"},
          {with("0", "true", "4", "[0, 1]"), "input_length", "is true"},
          {with("0", "600", "0", "[0, 1]"), "output_length", "is 0"},
          {with("0", "600", "{}", "[0, 1]"), "output_length", "is an object"},
          {with("0", "600", "4", "[0]"), "hash_ids", "has 1 ids; allowed: 2"},
          {with("0", "600", "4", "[0, 1, 2]"), "hash_ids", "has 3 ids; allowed: 2"},
          {with("0", "512", "4", "[0, 1]"), "hash_ids", "has 2 ids; allowed: 1"},
          {with("0", "600", "4", "[]"), "hash_ids", "has 0 ids"},
          {with("0", "600", "4", "7"), "hash_ids", "no array"},
          {with("0", "600", "4", "[0, -1]"), "hash_ids", "element 2 is -1"},
          {with("0", "600", "4", "[0, 4194304]"), "hash_ids", "element 2 is 4194304"},
          {with("0", "600", "4", "[0, 18446744073709551615]"), "hash_ids", "element 2"},
          {with("0", "600", "4", "[0.0, 1]"), "hash_ids", "element 1"},
          {with("0", "600", "4", "[0, \"1\"]"), "hash_ids", "element 2"},
          {with("0", "600", "4", "[0, [1]]"), "hash_ids", "element 2 is an array"},
          {with("0", "600", "4", "[{}, 1]"), "hash_ids", "element 1 is an object"},
          {with("0", "600", "4", "[0, null]"), "hash_ids", "element 2 is null"},
          {with("0", "600", "4", R"([0, 1], "timestamp": 3)"), "timestamp", "appears twice"},
          {with("0", "600", "4", R"([0, 1], "hash_ids": [0, 1])"), "hash_ids", "appears twice"},
          {R"({"timestamp": 0, "output_length": 4, "hash_ids": [0, 1]})", "input_length",
           "is missing"},
          {R"({"timestamp": 0, "input_length": 600, "output_length": 4})", "hash_ids",
           "is missing"},
          {R"({"input_length": 600, "output_length": 4, "hash_ids": [0, 1]})", "timestamp",
           "is missing"},
          {"{}", "timestamp", "is missing"},
          {"[1, 2]", "line", "is an array; allowed: a JSON object"},
          {"7", "line", "allowed: a JSON object"},
          {"\"text\"", "line", "allowed: a JSON object"},
          {"null", "line", "allowed: a JSON object"},
          {"hello", "line", "not JSON"},
          {kGoodMooncake + kGoodMooncake, "line", "not JSON"},
          {kGoodMooncake + " x", "line", "not JSON"},
          {std::string("{\"timestamp\": 0, \0", 17), "line", ""},
      });
}

TEST_CASE("bad lines of token-id traces") {
  CheckBadLines(
      TraceFormat::kTokens, "", kGoodTokens,
      {
          {R"({"arrival_ms": 5, "prompt": [], "output_length": 4})", "prompt", "has 0 tokens"},
          {R"({"arrival_ms": 5, "prompt": [1, 2)", "prompt", "cut short"},
          {R"({"arrival_ms": 5, "prompt": [1 2], "output_length": 4})", "prompt", "not JSON"},
          {R"({"arrival_ms": 5, "prompt": [1, -2], "output_length": 4})", "prompt",
           "element 2 is -2"},
          {R"({"arrival_ms": 5, "prompt": [2147483648], "output_length": 4})", "prompt",
           "element 1 is 2147483648"},
          {R"({"arrival_ms": 5, "prompt": "hi", "output_length": 4})", "prompt", "no array"},
          {R"({"arrival_ms": 5, "output_length": 4})", "prompt", "is missing"},
          {R"({"prompt": [1], "output_length": 4})", "arrival_ms", "is missing"},
          {R"({"arrival_ms": -5, "prompt": [1], "output_length": 4})", "arrival_ms", "is -5"},
          {R"({"arrival_ms": NaN, "prompt": [1], "output_length": 4})", "arrival_ms", "not JSON"},
          {R"({"arrival_ms": 5, "prompt": [1]})", "output_length", "is missing"},
          {R"({"arrival_ms": 5, "prompt": [1], "output_length": 0})", "output_length", "is 0"},
          {R"({"arrival_ms": 5, "prompt": [1], "output": []})", "output", "has 0 tokens"},
          {R"({"arrival_ms": 5, "prompt": [1], "output": [1.5]})", "output", "element 1"},
          {R"({"arrival_ms": 5, "prompt": [1], "output": [1, 2], "output_length": 3})",
           "output_length", "is 3; allowed"},
          {R"({"arrival_ms": 5, "prompt": [1], "output_length": 1, "tenant": [1]})", "tenant",
           "allowed"},
          {R"({"arrival_ms": 5, "prompt": [1], "output_length": 1, "session": 1.5})", "session",
           "allowed"},
          {R"({"arrival_ms": 5, "prompt": [1], "output_length": 1, "priority": "high"})",
           "priority", "'high'"},
          {R"({"arrival_ms": 5, "prompt": [1], "output_length": 1, "priority": 2147483648})",
           "priority", "allowed"},
          {R"({"arrival_ms": 5, "prompt": [1], "prompt": [2], "output_length": 1})", "prompt",
           "appears twice"},
      });
}

TEST_CASE("bad lines of Azure traces") {
  const std::string time = "2023-11-16 18:17:03.9799600";
  CheckBadLines(TraceFormat::kAzure, kAzureHeader, kGoodAzure,
                {
                    {time, "ContextTokens", "is missing"},
                    {time + ",5", "GeneratedTokens", "is missing"},
                    {time + ",5,6,7", "line", "has 4 columns; allowed: 3"},
                    {time + ",12 34,5", "ContextTokens", "is '12 34'; allowed"},
                    {time + ",5,12 34", "GeneratedTokens", "is '12 34'; allowed"},
                    {time + ",0,5", "ContextTokens", "is '0'"},
                    {time + ",5,0", "GeneratedTokens", "is '0'"},
                    {time + ",-5,5", "ContextTokens", "is '-5'"},
                    {time + ",5.0,5", "ContextTokens", "is '5.0'"},
                    {time + ",,5", "ContextTokens", "is ''"},
                    {time + ",5,nan", "GeneratedTokens", "is 'nan'"},
                    {time + ",99999999999999999999,5", "ContextTokens", "allowed"},
                    {time + ",5,16777217", "GeneratedTokens", "allowed"},
                    {"2023-11-16 18:17,5,6", "TIMESTAMP", "allowed: YYYY"},
                    {"-2023-11-16 18:17:03.9,5,6", "TIMESTAMP", "allowed"},
                    {"NaN,5,6", "TIMESTAMP", "is 'NaN'"},
                    {"2023-02-29 18:17:03.9,5,6", "TIMESTAMP", "allowed"},
                    {"2023-13-01 18:17:03.9,5,6", "TIMESTAMP", "allowed"},
                    {"2023-11-16 24:00:00.0,5,6", "TIMESTAMP", "allowed"},
                    {"2023-11-16 18:60:00.0,5,6", "TIMESTAMP", "allowed"},
                    {"2023-11-16 18:17:60.0,5,6", "TIMESTAMP", "allowed"},
                    {"2023-11-16 18:17:03.,5,6", "TIMESTAMP", "allowed"},
                    {"2023-11-16 18:17:03.0123456789,5,6", "TIMESTAMP", "allowed"},
                    {"2023-11-16 18:17:03.5x,5,6", "TIMESTAMP", "allowed"},
                    {"1969-11-16 18:17:03.5,5,6", "TIMESTAMP", "years 1970..2199"},
                    {",5,6", "TIMESTAMP", "is ''"},
                    {"2023-11-16 18:1", "ContextTokens", "is missing"},
                });
}

TEST_CASE("formats: told from the text, named, unknown") {
  CHECK(Parse(kGoodMooncake).format() == TraceFormat::kMooncake);
  CHECK(Parse(kGoodTokens).format() == TraceFormat::kTokens);
  CHECK(Parse(kAzureHeader + kGoodAzure).format() == TraceFormat::kAzure);
  CHECK(Parse(kGoodAzure).format() == TraceFormat::kAzure);
  // The first line that can be told counts.
  CHECK(Parse("{\"cut\n" + kGoodTokens).format() == TraceFormat::kTokens);
  Contains(Refusal("what is this\n"),
           "format cannot be told; allowed: mooncake, azure, burstgpt, bailian, tokens");

  CHECK(Parse(kBurstGptHeader + kGoodBurstGpt).format() == TraceFormat::kBurstGpt);
  CHECK(Parse(kGoodBailian).format() == TraceFormat::kBailian);
  CHECK(Parse("x\n" + kGoodBailian).format() == TraceFormat::kBailian);
  // A format that is named is the format, whatever the lines look like.
  TraceOptions options;
  options.format = TraceFormat::kBurstGpt;
  Contains(Refusal(kGoodTokens, options), "text:1: Timestamp: is missing in the header");
  options.format = TraceFormat::kBailian;
  Contains(Refusal(kGoodMooncake, options), "the first in line 1: chat_id: is missing");

  for (const char* name : {"auto", "mooncake", "azure", "tokens", "burstgpt", "bailian"}) {
    const Result<TraceFormat> format = lariat::ParseTraceFormat(name);
    REQUIRE(format.ok());
    CHECK(lariat::TraceFormatName(*format) == name);
  }
  Contains(lariat::ParseTraceFormat("csv").status().message(),
           "is 'csv'; allowed: auto, mooncake, azure, tokens, burstgpt, bailian");
}

TEST_CASE("files that cannot be used, and options out of range") {
  const auto refusal = [](const std::string& path) {
    const Result<Trace> trace = ReadTrace(path);
    REQUIRE_FALSE(trace.ok());
    CHECK(trace.status().code() == Code::kInvalidArgument);
    return trace.status().message();
  };
  Contains(refusal(kData), "is a directory");
  Contains(refusal(kData + "/no_such_file"), "no_such_file: cannot be read: No such file");
  Contains(Refusal(""), "text: holds no request");
  Contains(Refusal("\n \r\n\n"), "holds no request");
  Contains(Refusal(kAzureHeader), "holds no request");
  TraceOptions tokens;
  tokens.format = TraceFormat::kTokens;
  Contains(Refusal("x\ny\n", tokens), "no line is good; bad lines: 2, the first in line 1: line: ");

  TraceOptions options;
  options.limit = -1;
  Contains(Refusal(kGoodTokens, options), "limit is -1");
  options.limit = 0;
  for (const double rate : {0.0, -1.0, 1e-10, 1e10, std::nan("")}) {
    options.rate = rate;
    Contains(Refusal(kGoodTokens, options), "rate is ");
  }
}

TEST_CASE("only the first reasons are kept, all bad lines are counted") {
  std::string text = kGoodTokens + "\n";
  for (int i = 0; i < 250; ++i) text += "{}\n";
  const Trace trace = Parse(text);
  CHECK(trace.bad_lines() == 250);
  CHECK(trace.errors().size() == Trace::kMaxErrors);
}

TEST_CASE("a trace that would need more token ids than there are") {
  // 127 prompts of 2^24 tokens fit below 2^31; with the first line's 100 the 128th does not.
  std::string text = kAzureHeader + "2023-11-16 18:17:03,100,1\n";
  for (int i = 0; i < 128; ++i) text += "2023-11-16 18:17:03,16777216,1\n";
  const Trace trace = Parse(text);
  CHECK(trace.size() == 128);
  REQUIRE(trace.errors().size() == 1);
  CHECK(trace.errors()[0].line == 130);
  CHECK(trace.errors()[0].field == "ContextTokens");

  std::string burst = "Timestamp,Request tokens,Response tokens\n";
  for (int i = 0; i < 129; ++i) burst += "0,16777216,16777216\n";
  const Trace bursts = Parse(burst);
  CHECK(bursts.size() == 128);
  REQUIRE(bursts.errors().size() == 1);
  CHECK(bursts.errors()[0].line == 130);
  CHECK(bursts.errors()[0].field == "Request tokens");

  std::string outputs;
  for (int i = 0; i < 129; ++i) {
    outputs += R"({"arrival_ms": 0, "prompt": [1], "output_length": )" +
               std::string(i < 128 ? "16777216" : "1") + "}\n";
  }
  const Trace full = Parse(outputs);
  CHECK(full.size() == 128);
  REQUIRE(full.errors().size() == 1);
  CHECK(full.errors()[0].line == 129);
  CHECK(full.errors()[0].field == "output_length");
  CHECK(full.OutputToken(127, 16777215) == INT32_MIN);
}

TEST_CASE("every cut of a good line is a bad line, any bytes are read without harm") {
  TraceOptions options;
  for (const auto& [format, good] : {std::pair(TraceFormat::kMooncake, kGoodMooncake),
                                     std::pair(TraceFormat::kBailian, kGoodBailian),
                                     std::pair(TraceFormat::kTokens, kGoodTokens)}) {
    options.format = format;
    for (std::size_t cut = 1; cut < good.size(); ++cut) {
      const Trace trace = Parse(good + "\n" + good.substr(0, cut), options);
      INFO("cut at " << cut);
      CHECK(trace.size() == 1);
      CHECK(trace.bad_lines() == 1);
    }
  }

  std::mt19937 random(7);
  const std::string letters = "{}[],:\"0123456789-.eE \\unl\n\r\t\xEF\xBB\xBF\xFF";
  for (const auto& [format, good] :
       {std::pair(TraceFormat::kMooncake, kGoodMooncake),
        std::pair(TraceFormat::kBailian, kGoodBailian),
        std::pair(TraceFormat::kTokens, kGoodTokens), std::pair(TraceFormat::kAzure, kGoodAzure)}) {
    options.format = format;
    for (int round = 0; round < 3000; ++round) {
      std::string line = good;
      for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
        line[random() % line.size()] = letters[random() % letters.size()];
      }
      const Trace trace = Parse(good + "\n" + line + "\n" + good, options);
      for (const lariat::TraceRequest& request : trace.requests()) {
        REQUIRE(request.arrival_s >= 0.0);
        REQUIRE(request.input_length >= 1);
        REQUIRE(request.output_length >= 1);
      }
      // The good lines around it stay good, and every line is one or the other.
      REQUIRE(trace.size() >= 2);
      REQUIRE(trace.size() + trace.bad_lines() == 2 + WrittenLines(line));
    }
  }
}
