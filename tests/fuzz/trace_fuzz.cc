// SPDX-License-Identifier: Apache-2.0
// Readers of request traces on any bytes: no crash, and what a Trace promises.
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "lariat/trace.h"

namespace lariat::fuzz {
namespace {

// Prompts and outputs beyond are not made: a few digits may ask for 16 million tokens.
constexpr std::int64_t kMostTokens = 1 << 14;
// Of a trace, so many requests' tokens are made.
constexpr std::int64_t kMostRequests = 64;

void CheckTokens(const Trace& trace, const TraceRequest& request, std::vector<TokenId>& tokens) {
  if (request.input_length <= kMostTokens) {
    trace.PromptTokens(request.index, tokens);
    Check(std::ssize(tokens) == request.input_length, "a prompt has input_length tokens");
    for (const TokenId token : tokens) Check(token >= 0, "prompt tokens are not negative");
  }
  const auto given = trace.GivenOutput(request.index);
  Check(given.empty() || std::ssize(given) == request.output_length, "the output is whole");
  const TokenId last = trace.OutputToken(request.index, request.output_length - 1);
  Check(given.empty() ? last < 0 : last == given.back(), "made-up tokens are negative");
}

void CheckTrace(const Trace& trace, std::string_view text) {
  std::int64_t input = 0, output = 0;
  double before = 0;
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < trace.size(); ++i) {
    const TraceRequest& request = trace.requests()[static_cast<std::size_t>(i)];
    Check(request.index == i, "requests know their place");
    Check(request.arrival_s >= before, "requests are in order of arrival");
    Check(request.input_length >= 1 && request.input_length <= kMaxRequestTokens, "input_length");
    Check(request.output_length >= 1 && request.output_length <= kMaxRequestTokens,
          "output_length");
    Check(request.parent >= -1 && request.parent < i, "parents come before their turns");
    Check(request.line >= 1, "lines count from 1");
    before = request.arrival_s;
    input += request.input_length;
    output += request.output_length;
    if (i < kMostRequests) CheckTokens(trace, request, tokens);
  }
  Check(trace.size() > 0 && trace.input_tokens() == input && trace.output_tokens() == output,
        "the sums are those of the requests");
  const std::int64_t lines =
      1 + static_cast<std::int64_t>(std::count(text.begin(), text.end(), '\n'));
  Check(trace.size() + trace.bad_lines() <= lines, "a line is good or bad, once");
  Check(std::ssize(trace.errors()) == std::min<std::int64_t>(trace.bad_lines(), Trace::kMaxErrors),
        "every bad line has its reason");
  for (const TraceError& error : trace.errors()) {
    Check(error.line >= 1 && error.line <= lines && !error.field.empty() && !error.text.empty(),
          "reasons name a line and a field");
  }
}

void ReadAs(TraceFormat format, std::string_view text) {
  TraceOptions options{.format = format};
  const Result<Trace> trace = ParseTrace(text, "fuzz", options);
  options.strict = true;
  const Result<Trace> strict = ParseTrace(text, "fuzz", options);
  if (trace.ok()) {
    CheckTrace(*trace, text);
    Check(strict.ok() == (trace->bad_lines() == 0), "strict refuses bad lines and nothing else");
  } else {
    Check(!trace.status().message().empty() && !strict.ok(), "a refusal says why");
  }
}

}  // namespace
}  // namespace lariat::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using lariat::TraceFormat;
  constexpr std::array<TraceFormat, 5> kFormats = {TraceFormat::kMooncake, TraceFormat::kAzure,
                                                   TraceFormat::kTokens, TraceFormat::kBurstGpt,
                                                   TraceFormat::kBailian};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  lariat::fuzz::ReadAs(TraceFormat::kAuto, text);
  lariat::fuzz::ReadAs(kFormats[size % kFormats.size()], text);
  return 0;
}
