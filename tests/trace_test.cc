// SPDX-License-Identifier: Apache-2.0
// Readers of request traces: what good files give; made-up workloads.
#include "lariat/trace.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "session/trace_lines.h"
#include "support/catch.h"
#include "support/trace_text.h"

using namespace lariat_test;

TEST_CASE("a small Mooncake trace, counted by hand") {
  const Trace trace = Read(kData + "/mooncake_small.jsonl");
  CHECK(trace.format() == TraceFormat::kMooncake);
  CHECK(trace.has_token_identity());
  CHECK(trace.size() == 6);
  CHECK(trace.input_tokens() == 5348);
  CHECK(trace.output_tokens() == 17);
  CHECK(trace.max_tokens() == 1303);
  CHECK(trace.bad_lines() == 0);
  CHECK(trace.requests()[1].arrival_s == 0.1);
  CHECK(trace.requests()[1].input_length == 1300);
  CHECK(trace.requests()[1].output_length == 3);
  CHECK(trace.requests()[1].line == 2);

  // Request 3 has ids 3 and 4, the second for 188 tokens only.
  const std::vector<TokenId> tokens = Prompt(trace, 3);
  for (std::size_t i = 0; i < 512; ++i) REQUIRE(tokens[i] == 1536 + static_cast<int>(i));
  for (std::size_t i = 512; i < 700; ++i) REQUIRE(tokens[i] == 2048 + static_cast<int>(i) - 512);
}

TEST_CASE("prompts of the small Mooncake trace share what the hand count says") {
  const Trace trace = Read(kData + "/mooncake_small.jsonl");
  std::vector<std::vector<TokenId>> earlier;
  std::int64_t hits[4] = {0, 0, 0, 0};
  const std::int64_t blocks[4] = {16, 64, 512, 1};
  for (std::int64_t r = 0; r < trace.size(); ++r) {
    const std::vector<TokenId> prompt = Prompt(trace, r);
    std::int64_t match = 0;
    for (const std::vector<TokenId>& other : earlier) {
      const auto end = std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end());
      match = std::max(match, static_cast<std::int64_t>(end.first - prompt.begin()));
    }
    match = std::min(match, static_cast<std::int64_t>(prompt.size()) - 1);
    for (int b = 0; b < 4; ++b) hits[b] += match / blocks[b] * blocks[b];
    earlier.push_back(prompt);
  }
  CHECK(hits[0] == 2720);
  CHECK(hits[1] == 2624);
  CHECK(hits[2] == 2048);
  CHECK(hits[3] == 2746);
}

TEST_CASE("generated tokens are negative and appear once in a trace") {
  const Trace trace = Read(kData + "/mooncake_small.jsonl");
  std::set<TokenId> seen;
  for (const lariat::TraceRequest& request : trace.requests()) {
    CHECK(trace.GivenOutput(request.index).empty());
    for (std::int64_t i = 0; i < request.output_length; ++i) {
      const TokenId token = trace.OutputToken(request.index, i);
      CHECK(token < 0);
      CHECK(seen.insert(token).second);
    }
  }
  CHECK(seen.size() == 17);
}

TEST_CASE("a small Azure trace: midnight, a day, CRLF, no final newline") {
  const Trace trace = Read(kData + "/azure_small.csv");
  CHECK(trace.format() == TraceFormat::kAzure);
  CHECK_FALSE(trace.has_token_identity());
  REQUIRE(trace.size() == 4);
  CHECK(trace.bad_lines() == 0);
  CHECK(trace.input_tokens() == 1000);
  CHECK(trace.output_tokens() == 100);
  CHECK(trace.requests()[0].line == 2);
  CHECK(trace.requests()[0].arrival_s == 0.0);
  CHECK(trace.requests()[1].arrival_s == 1.25);
  CHECK(trace.requests()[2].arrival_s == 1.5000001);
  CHECK(trace.requests()[3].arrival_s == 86460.0);
  CHECK(trace.requests()[3].output_length == 40);

  std::set<TokenId> seen;
  for (std::int64_t r = 0; r < 4; ++r) {
    for (const TokenId token : Prompt(trace, r)) {
      REQUIRE(token >= 0);
      REQUIRE(seen.insert(token).second);
    }
  }
}

TEST_CASE("Azure: columns by name, no header, fewer decimals, time zones, earlier rows") {
  const Trace reordered = Parse(
      "GeneratedTokens,Model,ContextTokens,TIMESTAMP\n10,x,20,2024-05-10 00:00:00.009930+00:00\n"
      "11,x,21,2024-05-10T02:00:01Z\n12,x,22,2024-05-10 02:00:01.5+02:00\n");
  REQUIRE(reordered.size() == 3);
  CHECK(reordered.requests()[0].input_length == 20);
  CHECK(reordered.requests()[0].output_length == 10);
  CHECK(reordered.requests()[1].output_length == 12);  // 00:00:01.5 UTC
  CHECK(Near(reordered.requests()[1].arrival_s, 1.49007));
  CHECK(Near(reordered.requests()[2].arrival_s, 7200.99007));

  // The second row is the earlier one: times count from it.
  const Trace bare = Parse("2023-11-16 00:00:01,5,6\n2023-11-15 23:59:59.5,7,8\n");
  REQUIRE(bare.size() == 2);
  CHECK(bare.requests()[0].input_length == 7);
  CHECK(bare.requests()[0].arrival_s == 0.0);
  CHECK(bare.requests()[1].arrival_s == 1.5);
}

TEST_CASE("a small trace of token ids: order, labels, given output") {
  const Trace trace = Read(kData + "/tokens_small.jsonl");
  CHECK(trace.format() == TraceFormat::kTokens);
  REQUIRE(trace.size() == 3);
  CHECK(trace.bad_lines() == 0);
  CHECK(trace.input_tokens() == 19);
  CHECK(trace.output_tokens() == 6);
  CHECK(trace.max_tokens() == 10);

  const lariat::TraceRequest& first = trace.requests()[0];
  CHECK(first.tenant == "a");
  CHECK(first.session == "s1");
  CHECK(first.priority == 2);
  CHECK(Prompt(trace, 0) == std::vector<TokenId>{1, 2, 3, 4, 5, 6});
  REQUIRE(trace.GivenOutput(0).size() == 2);
  CHECK(trace.GivenOutput(0)[1] == 8);
  CHECK(trace.OutputToken(0, 0) == 7);

  // The last line arrives before the second.
  CHECK(trace.requests()[1].line == 4);
  CHECK(trace.requests()[1].index == 1);
  CHECK(trace.requests()[1].arrival_s == 0.001);
  CHECK(trace.requests()[1].session == "1");
  CHECK(Prompt(trace, 1) == std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 8, 10});
  CHECK(trace.requests()[2].line == 2);
  CHECK(trace.requests()[2].tenant.empty());
  CHECK(trace.requests()[2].session.empty());
  CHECK(trace.GivenOutput(2).empty());
  CHECK(trace.OutputToken(1, 0) < 0);
  CHECK(trace.OutputToken(2, 0) != trace.OutputToken(1, 0));
}

TEST_CASE("fields of other objects are nobody's, wherever they stand") {
  const Trace trace = Parse(
      R"({"x": {"timestamp": 99, "hash_ids": [5]}, "timestamp": 1000, "y": [[1], {"output_length": 9}],)"
      R"( "input_length": 600, "z": "hash_ids", "output_length": 4, "hash_ids": [7, 8],)"
      R"( "w": {"input_length": -1}, "null": null})");
  REQUIRE(trace.size() == 1);
  CHECK(trace.requests()[0].arrival_s == 1.0);
  CHECK(trace.requests()[0].output_length == 4);
  CHECK(Prompt(trace, 0)[0] == 7 * 512);
}

TEST_CASE("requests of equal arrival keep the file's order") {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += R"({"arrival_ms": )" + std::to_string(i % 2 == 0 ? 7 : 3) + R"(, "prompt": [)" +
            std::to_string(i) + "], \"output_length\": 1}\n";
  }
  const Trace trace = Parse(text);
  REQUIRE(trace.size() == 100);
  for (int i = 0; i < 50; ++i) {
    CHECK(Prompt(trace, i)[0] == 2 * i + 1);
    CHECK(Prompt(trace, 50 + i)[0] == 2 * i);
  }
}

TEST_CASE("limit counts good lines and rate divides arrivals") {
  TraceOptions options;
  options.limit = 2;
  options.rate = 4.0;
  const Trace trace = Read(kData + "/mooncake_bad.jsonl", options);
  CHECK(trace.size() == 2);
  CHECK(trace.bad_lines() == 7);
  CHECK(trace.requests()[1].arrival_s == 0.015);
  options.limit = 1;
  CHECK(Read(kData + "/mooncake_bad.jsonl", options).bad_lines() == 0);
}

TEST_CASE("CRLF, a byte order mark, blank lines and no final newline are accepted") {
  const std::string text =
      "\xEF\xBB\xBF\r\n" + kGoodTokens + "\r\n\r\n  \t\r\n" + kGoodTokens + "\r\n\n" + kGoodTokens;
  const Trace trace = Parse(text);
  REQUIRE(trace.size() == 3);
  CHECK(trace.bad_lines() == 0);
  CHECK(trace.requests()[0].line == 2);
  CHECK(trace.requests()[1].line == 5);
  CHECK(trace.requests()[2].line == 7);
  CHECK(Parse("\xEF\xBB\xBF" + kAzureHeader + kGoodAzure).size() == 1);
  CHECK(Parse("\xEF\xBB\xBF" + kGoodMooncake).size() == 1);
}

TEST_CASE("the line reader: long lines are dropped, chunks are joined") {
  using lariat::session::LineReader;
  const std::size_t chunk = LineReader::kChunk;
  const std::string long_line(chunk + 100, 'x');
  std::istringstream in("ab\n" + long_line + "\n" + std::string(chunk * 3, 'y') + "\r\ncd\n\nef");
  LineReader lines(in, chunk + 100);
  CHECK(lines.Head().size() == chunk);
  const auto next = [&] {
    REQUIRE(lines.Next());
    return std::string(lines.line());
  };
  CHECK(next() == "ab");
  const bool whole = next() == long_line;
  CHECK(whole);
  CHECK_FALSE(lines.too_long());
  CHECK(next().empty());
  CHECK(lines.too_long());
  CHECK(lines.number() == 3);
  CHECK(next() == "cd");
  CHECK_FALSE(lines.too_long());
  CHECK(next().empty());
  CHECK(next() == "ef");
  CHECK(lines.number() == 6);
  CHECK_FALSE(lines.Next());
}

TEST_CASE("workloads: a shared prefix, and every other token once") {
  const Result<Trace> made = lariat::MakeWorkload("in=10,out=3,n=50,prefix=4", 9);
  REQUIRE(made.ok());
  const Trace& trace = *made;
  CHECK(trace.size() == 50);
  CHECK(trace.input_tokens() == 500);
  CHECK(trace.output_tokens() == 150);
  CHECK(trace.max_tokens() == 13);
  CHECK(trace.has_token_identity());
  const std::vector<TokenId> first = Prompt(trace, 0);
  std::set<TokenId> seen(first.begin(), first.begin() + 4);
  CHECK(seen.size() == 4);
  std::set<TokenId> outputs;
  for (const lariat::TraceRequest& request : trace.requests()) {
    CHECK(request.arrival_s == 0.0);
    CHECK(request.input_length == 10);
    CHECK(request.output_length == 3);
    const std::vector<TokenId> prompt = Prompt(trace, request.index);
    CHECK(std::equal(first.begin(), first.begin() + 4, prompt.begin()));
    for (std::size_t i = 4; i < 10; ++i) {
      REQUIRE(prompt[i] >= 0);
      REQUIRE(seen.insert(prompt[i]).second);
    }
    for (std::int64_t i = 0; i < 3; ++i) {
      CHECK(outputs.insert(trace.OutputToken(request.index, i)).second);
    }
  }
  CHECK(seen.size() == 4 + 50 * 6);

  const Result<Trace> again = lariat::MakeWorkload("n=50,prefix=4,out=3,in=10", 9);
  const Result<Trace> other = lariat::MakeWorkload("in=10,out=3,n=50,prefix=4", 10);
  REQUIRE(again.ok());
  REQUIRE(other.ok());
  CHECK(Prompt(*again, 49) == Prompt(trace, 49));
  CHECK_FALSE(Prompt(*other, 49) == Prompt(trace, 49));

  const Result<Trace> same = lariat::MakeWorkload("in=10,out=3,n=2,prefix=10");
  REQUIRE(same.ok());
  CHECK(Prompt(*same, 0) == Prompt(*same, 1));
}

TEST_CASE("workloads: tokens are distinct over the whole range of ids") {
  // Numbers 2^30 apart: the first prompt token of requests 0 and 64.
  for (const std::uint64_t seed : {0, 1, 2, 3, 4}) {
    const Result<Trace> made = lariat::MakeWorkload("in=16777216,out=1,n=128", seed);
    REQUIRE(made.ok());
    const TokenId first = Prompt(*made, 0)[0];
    const std::vector<TokenId> far = Prompt(*made, 64);
    CHECK(far[0] != first);
    CHECK(far[1] != far[0]);
    CHECK(far.back() >= 0);
  }
}

TEST_CASE("workloads that are refused") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "key is ''"},
      {"in=1,out=1", "n is missing"},
      {"out=1,n=1", "in is missing"},
      {"in=0,out=1,n=1", "in is '0'; allowed: a whole number in 1.."},
      {"in=1,out=0,n=1", "out is '0'"},
      {"in=1,out=1,n=0", "n is '0'"},
      {"in=1,out=1,n=-3", "n is '-3'"},
      {"in=1,out=1,n=1x", "n is '1x'"},
      {"in=1.5,out=1,n=1", "in is '1.5'"},
      {"in=,out=1,n=1", "in is ''"},
      {"in,out=1,n=1", "in is ''"},
      {"in=1,out=1,n=1,", "key is ''"},
      {"in=1,in=2,out=1,n=1", "in appears twice"},
      {"in=1,out=1,n=1,rate=2", "key is 'rate'; allowed: in, out, n, prefix"},
      {"in=4,out=1,n=1,prefix=5", "prefix is 5; allowed: 0..in, which is 4"},
      {"in=16777216,out=1,n=129", "n is 129; allowed: at most 2^31 distinct prompt tokens"},
      {"in=1,out=16777216,n=129", "n is 129; allowed: at most 2^31 output tokens"},
      {"in=1,out=1,n=10000001", "n is '10000001'"},
  };
  for (const auto& [spec, problem] : cases) {
    INFO(spec);
    const Result<Trace> trace = lariat::MakeWorkload(spec);
    REQUIRE_FALSE(trace.ok());
    CHECK(trace.status().code() == Code::kInvalidArgument);
    Contains(trace.status().message(), "workload: " + problem);
  }
}

TEST_CASE("public traces: rows and tokens as published") {
  const std::string shared = std::string(LARIAT_SHARED_DATA) + "/traces";
  if (!std::filesystem::exists(shared)) LARIAT_SKIP("the public traces are not here");
  struct Known {
    std::string file;
    std::int64_t requests, input, output;
    double last_s;
  };
  // Azure's token sums and all last arrivals come from an independent reading of the files.
  const std::vector<Known> traces = {
      {"mooncake/conversation_trace.jsonl", 12031, 144793823, 4122048, 3536.999},
      {"mooncake/synthetic_trace.jsonl", 3993, 61194628, 595432, 1022.025},
      {"azure2023/AzureLLMInferenceTrace_code.csv", 8819, 18059974, 245896, 3435.948056},
      {"azure2023/AzureLLMInferenceTrace_conv.csv", 19366, 22361870, 4088665, 3501.721937},
  };
  for (const Known& known : traces) {
    INFO(known.file);
    const Trace trace = Read(shared + "/" + known.file);
    CHECK(trace.size() == known.requests);
    CHECK(trace.bad_lines() == 0);
    CHECK(trace.input_tokens() == known.input);
    CHECK(trace.output_tokens() == known.output);
    CHECK(trace.requests().front().arrival_s == 0.0);
    CHECK(Near(trace.requests().back().arrival_s, known.last_s));
    // Every prompt is made, and is as long as it should be.
    std::vector<TokenId> tokens;
    std::int64_t made = 0;
    bool negative = false;
    for (std::int64_t i = 0; i < trace.size(); ++i) {
      trace.PromptTokens(i, tokens);
      made += static_cast<std::int64_t>(tokens.size());
      negative = negative || tokens.front() < 0 || tokens.back() < 0;
    }
    CHECK(made == known.input);
    CHECK_FALSE(negative);
  }
}
