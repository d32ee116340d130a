// SPDX-License-Identifier: Apache-2.0
// Bailian (Qwen usage traces of Alibaba Cloud): {"chat_id", "parent_chat_id": -1 where none,
// "timestamp": seconds, "input_length", "output_length", "type", "turn", "hash_ids": [one per 16
// tokens]}. type and turn are not needed: parent_chat_id says what a turn follows.
#include <array>
#include <limits>

#include "session/trace_json.h"

namespace lariat::session {
namespace {

class BailianParser : public LineParser {
 public:
  std::optional<LineError> Parse(std::string_view line, ParsedLine& out) override {
    if (auto error = ReadJsonLine(line, fields_)) return error;
    auto& [chat, parent, timestamp, input_length, output_length, hash_ids] = fields_;
    TraceRequest& request = out.request;
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    if (auto error = TakeInteger(chat, 0, most, out.chat)) return error;
    out.parent_chat = -1;
    if (parent.given()) {
      if (auto error = TakeInteger(parent, -1, most, out.parent_chat)) return error;
    }
    if (auto error = TakeSeconds(timestamp, request.arrival_s)) return error;
    if (auto error = TakeInteger(input_length, 1, kMaxRequestTokens, request.input_length)) {
      return error;
    }
    if (auto error = TakeInteger(output_length, 1, kMaxRequestTokens, request.output_length)) {
      return error;
    }
    out.output_ids.clear();
    return TakeHashIds(hash_ids, kBailianHashTokens, request.input_length, out.prompt_ids);
  }

 private:
  std::array<JsonField, 6> fields_ = {
      JsonField{.name = "chat_id"},
      JsonField{.name = "parent_chat_id"},
      JsonField{.name = "timestamp"},
      JsonField{.name = "input_length"},
      JsonField{.name = "output_length"},
      JsonField{.name = "hash_ids", .max_element = MaxHashId(kBailianHashTokens)}};
};

}  // namespace

std::unique_ptr<LineParser> MakeBailianParser() { return std::make_unique<BailianParser>(); }

}  // namespace lariat::session
