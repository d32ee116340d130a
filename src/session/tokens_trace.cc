// SPDX-License-Identifier: Apache-2.0
// Token ids: {"arrival_ms", "prompt": [ids], "output": [ids] | "output_length": n, "tenant",
// "priority", "session"}; the last three may be left out.
#include <array>
#include <limits>

#include "session/trace_json.h"

namespace lariat::session {
namespace {

constexpr std::int64_t kMaxToken = std::numeric_limits<TokenId>::max();

// An array of 1..kMaxRequestTokens ids.
std::optional<LineError> CheckTokens(const JsonField& field) {
  const std::string name(field.name);
  if (!field.given()) return LineError{name, "is missing"};
  if (field.kind != JsonField::Kind::kIntegers) {
    return LineError{name, "is no array; allowed: an array of token ids"};
  }
  const std::int64_t size = static_cast<std::int64_t>(field.integers.size());
  if (size >= 1 && size <= kMaxRequestTokens) return std::nullopt;
  return LineError{
      name, "has " + NumberText(size) + " tokens; allowed: 1.." + NumberText(kMaxRequestTokens)};
}

class TokensParser : public LineParser {
 public:
  std::optional<LineError> Parse(std::string_view line, ParsedLine& out) override {
    if (auto error = ReadJsonLine(line, fields_)) return error;
    auto& [arrival, prompt, output, output_length, tenant, priority, session] = fields_;
    TraceRequest& request = out.request;
    if (auto error = TakeMilliseconds(arrival, request.arrival_s)) return error;
    if (auto error = CheckTokens(prompt)) return error;
    request.input_length = static_cast<std::int64_t>(prompt.integers.size());
    if (auto error = TakeOutput(output, output_length, request)) return error;

    if (auto error = TakeLabel(tenant, request.tenant)) return error;
    if (auto error = TakeLabel(session, request.session)) return error;
    std::int64_t level = 0;
    if (priority.given()) {
      constexpr std::int64_t low = std::numeric_limits<std::int32_t>::min();
      if (auto error = TakeInteger(priority, low, kMaxToken, level)) return error;
    }
    request.priority = static_cast<std::int32_t>(level);
    out.prompt_ids.swap(prompt.integers);
    out.output_ids.swap(output.integers);
    return std::nullopt;
  }

 private:
  static std::optional<LineError> TakeOutput(const JsonField& output,
                                             const JsonField& output_length,
                                             TraceRequest& request) {
    if (!output.given()) {
      return TakeInteger(output_length, 1, kMaxRequestTokens, request.output_length);
    }
    if (auto error = CheckTokens(output)) return error;
    request.output_length = static_cast<std::int64_t>(output.integers.size());
    if (!output_length.given()) return std::nullopt;
    std::int64_t stated = 0;
    auto error = TakeInteger(output_length, request.output_length, request.output_length, stated);
    if (error) error->text += ", as many as output has tokens";
    return error;
  }

  std::array<JsonField, 7> fields_ = {JsonField{.name = "arrival_ms"},
                                      JsonField{.name = "prompt", .max_element = kMaxToken},
                                      JsonField{.name = "output", .max_element = kMaxToken},
                                      JsonField{.name = "output_length"},
                                      JsonField{.name = "tenant"},
                                      JsonField{.name = "priority"},
                                      JsonField{.name = "session"}};
};

}  // namespace

std::unique_ptr<LineParser> MakeTokensParser() { return std::make_unique<TokensParser>(); }

}  // namespace lariat::session
