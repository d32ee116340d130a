// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <charconv>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/trace.h"

namespace lariat::session {

// Why a line is no request. `fatal`: nothing behind it can be used either.
struct LineError {
  std::string field;
  std::string text;
  bool fatal = false;
};

// What a line says. `request` has no index, line or parent yet, and its arrival is not yet divided
// by the rate; it may be negative where a format only has clock times.
struct ParsedLine {
  bool is_request = true;  // false: a header
  TraceRequest request;
  std::vector<std::int32_t> prompt_ids;  // what the format makes prompts from; may be empty
  std::vector<std::int32_t> output_ids;  // empty: not given
  // Where a format names each request and the one before it (else its session does): -1: none.
  std::int64_t chat = -1;
  std::int64_t parent_chat = -1;
};

// Reads one format, line by line, in order.
class LineParser {
 public:
  virtual ~LineParser() = default;
  // Fills `out`, whose vectors keep their memory from line to line. On an error `out` is garbage.
  virtual std::optional<LineError> Parse(std::string_view line, ParsedLine& out) = 0;
};

std::unique_ptr<LineParser> MakeMooncakeParser();
std::unique_ptr<LineParser> MakeAzureParser();
std::unique_ptr<LineParser> MakeTokensParser();
std::unique_ptr<LineParser> MakeBurstGptParser();
std::unique_ptr<LineParser> MakeBailianParser();

// Tokens that one hash id stands for.
inline constexpr std::int64_t kMooncakeHashTokens = 512;
inline constexpr std::int64_t kBailianHashTokens = 16;
// The greatest hash id whose tokens are TokenIds.
constexpr std::int64_t MaxHashId(std::int64_t hash_tokens) {
  return (std::int64_t{std::numeric_limits<TokenId>::max()} + 1) / hash_tokens - 1;
}

// The shortest text that reads back as `value`.
template <class T>
std::string NumberText(T value) {
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

// "is 0; allowed: 1..16777216"
inline std::string NotAllowed(std::string_view value, std::string_view allowed) {
  return "is " + std::string(value) + "; allowed: " + std::string(allowed);
}

// Text of unknown make, fit for a message: short, printable.
std::string Quoted(std::string_view text);

}  // namespace lariat::session
