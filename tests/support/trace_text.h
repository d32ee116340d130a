// SPDX-License-Identifier: Apache-2.0
// What the tests of traces share: good lines, and readers that must or must not succeed.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lariat/trace.h"
#include "support/catch.h"

namespace lariat_test {

using lariat::Code;
using lariat::ParseTrace;
using lariat::ReadTrace;
using lariat::Result;
using lariat::TokenId;
using lariat::Trace;
using lariat::TraceFormat;
using lariat::TraceOptions;

inline const std::string kData = LARIAT_TEST_DATA;

inline const std::string kGoodMooncake =
    R"({"timestamp": 5, "input_length": 600, "output_length": 4, "hash_ids": [7, 8]})";
inline const std::string kGoodTokens = R"({"arrival_ms": 5, "prompt": [7, 8], "output_length": 4})";
inline const std::string kGoodAzure = "2023-11-16 18:17:03.9799600,4808,10";
inline const std::string kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
inline const std::string kGoodBurstGpt = "45.5,s,12,ChatGPT,1087,230,1317,Conversation log";
inline const std::string kBurstGptHeader =
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
    "Type\n";
inline const std::string kGoodBailian =
    R"({"chat_id": 3, "parent_chat_id": -1, "timestamp": 5, "input_length": 20, )"
    R"("output_length": 4, "type": "text", "turn": 1, "hash_ids": [7, 8]})";

inline Trace Read(const std::string& path, const TraceOptions& options = {}) {
  Result<Trace> trace = ReadTrace(path, options);
  INFO(trace.status().message());
  REQUIRE(trace.ok());
  return *std::move(trace);
}

inline Trace Parse(const std::string& text, const TraceOptions& options = {}) {
  Result<Trace> trace = ParseTrace(text, "text", options);
  INFO(trace.status().message());
  REQUIRE(trace.ok());
  return *std::move(trace);
}

inline std::string Refusal(const std::string& text, const TraceOptions& options = {},
                           Code code = Code::kInvalidArgument) {
  Result<Trace> trace = ParseTrace(text, "text", options);
  REQUIRE_FALSE(trace.ok());
  CHECK(trace.status().code() == code);
  return trace.status().message();
}

inline bool Contains(const std::string& text, const std::string& part) {
  INFO("'" << text << "' should hold '" << part << "'");
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

inline std::vector<TokenId> Prompt(const Trace& trace, std::int64_t index) {
  std::vector<TokenId> tokens(3, -77);  // must be overwritten
  trace.PromptTokens(index, tokens);
  REQUIRE(static_cast<std::int64_t>(tokens.size()) ==
          trace.requests()[static_cast<std::size_t>(index)].input_length);
  return tokens;
}

struct BadLine {
  std::string line;
  std::string field;
  std::string text;  // part of the reason
};

// Puts each bad line between two good ones: it alone is left out, and blamed on its field.
inline void CheckBadLines(TraceFormat format, const std::string& head, const std::string& good,
                          const std::vector<BadLine>& cases) {
  const std::int64_t line = head.empty() ? 2 : 3;
  for (const BadLine& bad : cases) {
    INFO("line: " << bad.line);
    const std::string text = head + good + "\n" + bad.line + "\n" + good + "\n";
    TraceOptions options;
    options.format = format;
    const Trace trace = Parse(text, options);
    CHECK(trace.size() == 2);
    CHECK(trace.bad_lines() == 1);
    REQUIRE(trace.errors().size() == 1);
    CHECK(trace.errors()[0].line == line);
    CHECK(trace.errors()[0].field == bad.field);
    Contains(trace.errors()[0].text, bad.text);

    options.strict = true;
    const std::string where = "text:" + std::to_string(line) + ": " + bad.field + ": ";
    const std::string message = Refusal(text, options);
    CHECK(message.substr(0, where.size()) == where);
    CHECK(message == trace.ErrorText(trace.errors()[0]));
  }
}

// For times that are not sums of powers of two.
inline bool Near(double a, double b) { return a >= b - 1e-9 && a <= b + 1e-9; }

}  // namespace lariat_test
