// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session/trace_parser.h"

namespace lariat::session {

// One field that a reader of JSON lines wants, and what the current line has there.
struct JsonField {
  enum class Kind : std::uint8_t { kAbsent, kNull, kInteger, kReal, kText, kIntegers, kOther };

  std::string_view name;
  std::int64_t max_element = 0;  // of an array: its elements are 0..max_element

  Kind kind = Kind::kAbsent;
  std::int64_t integer = 0;  // kInteger
  double real = 0.0;         // kInteger (rounded) and kReal
  std::string text = {};     // kText; of the other kinds but kIntegers, how to name the value
  std::vector<std::int32_t> integers = {};  // kIntegers

  bool given() const { return kind != Kind::kAbsent && kind != Kind::kNull; }
};

// Reads one line as a JSON object into `fields`; other keys are skipped, whatever they hold but a
// number beyond double.
// Errors: not JSON, not an object, a wanted key twice, an array with an element that is not
//   0..max_element. The field is the one the reader was in, or "line".
std::optional<LineError> ReadJsonLine(std::string_view line, std::span<JsonField> fields);

// Checks and takes one field's value.
std::optional<LineError> TakeInteger(const JsonField& field, std::int64_t low, std::int64_t high,
                                     std::int64_t& out);
// A time in milliseconds, 0..1e15, whole or not.
std::optional<LineError> TakeMilliseconds(const JsonField& field, double& seconds);
// The same in seconds, 0..1e12.
std::optional<LineError> TakeSeconds(const JsonField& field, double& seconds);
// The ids of a prompt of `input_length` tokens, one per `hash_tokens` of them.
std::optional<LineError> TakeHashIds(JsonField& field, std::int64_t hash_tokens,
                                     std::int64_t input_length, std::vector<std::int32_t>& out);
// A text or a whole number; empty where not given.
std::optional<LineError> TakeLabel(const JsonField& field, std::string& out);

}  // namespace lariat::session
