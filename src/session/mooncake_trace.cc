// SPDX-License-Identifier: Apache-2.0
// Mooncake: {"timestamp": ms, "input_length", "output_length", "hash_ids": [one per 512 tokens]}.
#include <array>

#include "session/trace_json.h"

namespace lariat::session {
namespace {

class MooncakeParser : public LineParser {
 public:
  std::optional<LineError> Parse(std::string_view line, ParsedLine& out) override {
    if (auto error = ReadJsonLine(line, fields_)) return error;
    auto& [timestamp, input_length, output_length, hash_ids] = fields_;
    TraceRequest& request = out.request;
    if (auto error = TakeMilliseconds(timestamp, request.arrival_s)) return error;
    if (auto error = TakeInteger(input_length, 1, kMaxRequestTokens, request.input_length)) {
      return error;
    }
    if (auto error = TakeInteger(output_length, 1, kMaxRequestTokens, request.output_length)) {
      return error;
    }
    if (hash_ids.kind != JsonField::Kind::kIntegers) {
      if (!hash_ids.given()) return LineError{"hash_ids", "is missing"};
      return LineError{"hash_ids", "is no array; allowed: an array of whole numbers"};
    }
    const std::int64_t expected = (request.input_length + kHashTokens - 1) / kHashTokens;
    const std::int64_t found = static_cast<std::int64_t>(hash_ids.integers.size());
    if (found != expected) {
      return LineError{"hash_ids",
                       "has " + NumberText(found) + " ids; allowed: " + NumberText(expected) +
                           ", one per 512 of input_length " + NumberText(request.input_length)};
    }
    out.prompt_ids.swap(hash_ids.integers);
    out.output_ids.clear();
    return std::nullopt;
  }

 private:
  std::array<JsonField, 4> fields_ = {
      JsonField{.name = "timestamp"}, JsonField{.name = "input_length"},
      JsonField{.name = "output_length"}, JsonField{.name = "hash_ids", .max_element = kMaxHashId}};
};

}  // namespace

std::unique_ptr<LineParser> MakeMooncakeParser() { return std::make_unique<MooncakeParser>(); }

}  // namespace lariat::session
