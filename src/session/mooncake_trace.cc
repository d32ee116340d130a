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
    out.output_ids.clear();
    return TakeHashIds(hash_ids, kMooncakeHashTokens, request.input_length, out.prompt_ids);
  }

 private:
  std::array<JsonField, 4> fields_ = {
      JsonField{.name = "timestamp"}, JsonField{.name = "input_length"},
      JsonField{.name = "output_length"},
      JsonField{.name = "hash_ids", .max_element = MaxHashId(kMooncakeHashTokens)}};
};

}  // namespace

std::unique_ptr<LineParser> MakeMooncakeParser() { return std::make_unique<MooncakeParser>(); }

}  // namespace lariat::session
