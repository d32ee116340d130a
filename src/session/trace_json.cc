// SPDX-License-Identifier: Apache-2.0
// JSON lines through nlohmann-json's event interface: no tree is built, so a line costs little, and
// the event before an error tells which field it is in.
#include "session/trace_json.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace lariat::session {
namespace {

using Json = nlohmann::json;
using Kind = JsonField::Kind;

constexpr double kMaxMilliseconds = 1e15;
constexpr double kMaxSeconds = 1e12;

class LineHandler {
 public:
  LineHandler(std::string_view line, std::span<JsonField> fields) : line_(line), fields_(fields) {}

  std::optional<LineError> TakeError() { return std::move(error_); }

  // --- events; false stops the parser ---
  bool null() { return Scalar(Kind::kNull, "null"); }
  bool boolean(bool value) { return Scalar(Kind::kOther, value ? "true" : "false"); }
  bool number_integer(Json::number_integer_t value) { return Integer(value); }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (value > static_cast<Json::number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return Real(static_cast<double>(value), NumberText(value));
    }
    return Integer(static_cast<std::int64_t>(value));
  }
  bool number_float(Json::number_float_t value, const std::string& text) {
    return Real(value, Quoted(text));
  }
  bool string(std::string& value) {
    if (depth_ == 1 && field_ != nullptr) {
      field_->kind = Kind::kText;
      field_->text = std::move(value);
      return Complete();
    }
    return Scalar(Kind::kOther, "a text");
  }
  bool binary(Json::binary_t&) { return false; }  // not part of JSON text

  bool start_object(std::size_t) {
    if (depth_ > 0 && !Nested("an object")) return false;
    ++depth_;
    return true;
  }
  bool end_object() { return End(); }
  bool start_array(std::size_t) {
    if (depth_ == 0) return NotAnObject("an array");
    if (depth_ == 1 && field_ != nullptr) {
      field_->kind = Kind::kIntegers;
    } else if (!Nested("an array")) {
      return false;
    }
    ++depth_;
    return true;
  }
  bool end_array() { return End(); }

  bool key(std::string& name) {
    if (depth_ != 1) return true;
    complete_ = false;
    key_ = name;
    field_ = nullptr;
    for (JsonField& field : fields_) {
      if (field.name != name) continue;
      if (field.kind != Kind::kAbsent) return Fail(name, "appears twice");
      field_ = &field;
      field_->kind = Kind::kOther;
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& why) {
    constexpr int kNumberOverflow = 406;  // of nlohmann's out_of_range
    if (error_) return false;
    const bool in_object = depth_ > 0;
    if (why.id == kNumberOverflow) return Fail(key_, "is a number beyond double");
    if (position > line_.size() || line_.empty()) {
      // Behind a value, the text that is missing is the field's own only if no other has begun.
      const bool next_began = complete_ && (line_.find_last_not_of(" \t") == line_.rfind(',') ||
                                            last_token.find('"') != std::string::npos);
      return Fail(in_object && !next_began ? key_ : "line", "the line is cut short");
    }
    return Fail(in_object ? key_ : "line", "is not JSON at byte " + NumberText(position));
  }

 private:
  bool Fail(std::string_view field, std::string text) {
    error_ = {field.empty() ? "line" : std::string(field).substr(0, 60), std::move(text)};
    return false;
  }
  bool NotAnObject(std::string_view what) {
    return Fail("line", NotAllowed(what, "a JSON object"));
  }
  bool BadElement(std::string_view value) {
    return Fail(key_,
                "element " + NumberText(field_->integers.size() + 1) + " " +
                    NotAllowed(value, "a whole number in 0.." + NumberText(field_->max_element)));
  }
  bool in_array() const {
    return depth_ == 2 && field_ != nullptr && field_->kind == Kind::kIntegers;
  }

  bool Complete() {
    complete_ = true;
    return true;
  }
  bool End() {
    if (--depth_ == 1) complete_ = true;
    return true;
  }

  // A value that cannot be an element of a wanted array.
  bool Nested(std::string_view what) {
    if (in_array()) return BadElement(what);
    if (depth_ == 1 && field_ != nullptr) field_->text = what;
    return true;
  }

  bool Scalar(Kind kind, std::string_view text) {
    if (depth_ == 0) return NotAnObject(text);
    if (in_array()) return BadElement(text);
    if (depth_ > 1) return true;
    if (field_ != nullptr) {
      field_->kind = kind;
      field_->text = text;
    }
    return Complete();
  }
  bool Integer(std::int64_t value) {
    if (in_array()) {
      if (value < 0 || value > field_->max_element) return BadElement(NumberText(value));
      field_->integers.push_back(static_cast<std::int32_t>(value));
      return true;
    }
    if (depth_ == 1 && field_ != nullptr) {
      field_->integer = value;
      field_->real = static_cast<double>(value);
      return Scalar(Kind::kInteger, NumberText(value));
    }
    return Scalar(Kind::kInteger, "a number");
  }
  bool Real(double value, const std::string& text) {
    if (depth_ == 1 && field_ != nullptr) field_->real = value;
    return Scalar(Kind::kReal, text);
  }

  const std::string_view line_;
  const std::span<JsonField> fields_;
  std::optional<LineError> error_;
  int depth_ = 0;
  std::string key_;             // the last one of the object itself
  JsonField* field_ = nullptr;  // the wanted field of that key
  bool complete_ = true;        // its value has ended
};

std::optional<LineError> Wrong(const JsonField& field, std::string_view allowed) {
  if (field.kind == Kind::kAbsent) return LineError{std::string(field.name), "is missing"};
  std::string value = field.text;
  if (field.kind == Kind::kText) value = Quoted(value);
  if (field.kind == Kind::kIntegers) value = "an array";
  return LineError{std::string(field.name), NotAllowed(value, allowed)};
}

bool IsNumberIn(const JsonField& field, double most) {
  const bool number = field.kind == Kind::kInteger || field.kind == Kind::kReal;
  return number && field.real >= 0.0 && field.real <= most;
}

}  // namespace

std::optional<LineError> ReadJsonLine(std::string_view line, std::span<JsonField> fields) {
  for (JsonField& field : fields) {
    field.kind = Kind::kAbsent;
    field.integers.clear();
  }
  LineHandler handler(line, fields);
  if (Json::sax_parse(line.begin(), line.end(), &handler)) return std::nullopt;
  std::optional<LineError> error = handler.TakeError();
  return error ? error : LineError{"line", "is not JSON"};
}

std::optional<LineError> TakeInteger(const JsonField& field, std::int64_t low, std::int64_t high,
                                     std::int64_t& out) {
  if (field.kind != Kind::kInteger || field.integer < low || field.integer > high) {
    return Wrong(field, "a whole number in " + NumberText(low) + ".." + NumberText(high));
  }
  out = field.integer;
  return std::nullopt;
}

std::optional<LineError> TakeMilliseconds(const JsonField& field, double& seconds) {
  if (!IsNumberIn(field, kMaxMilliseconds)) return Wrong(field, "milliseconds in 0..1e15");
  seconds = field.real / 1000.0;
  return std::nullopt;
}

std::optional<LineError> TakeSeconds(const JsonField& field, double& seconds) {
  if (!IsNumberIn(field, kMaxSeconds)) return Wrong(field, "seconds in 0..1e12");
  seconds = field.real;
  return std::nullopt;
}

std::optional<LineError> TakeHashIds(JsonField& field, std::int64_t hash_tokens,
                                     std::int64_t input_length, std::vector<std::int32_t>& out) {
  const std::string name(field.name);
  if (field.kind != Kind::kIntegers) {
    if (!field.given()) return LineError{name, "is missing"};
    return LineError{name, "is no array; allowed: an array of whole numbers"};
  }
  const std::int64_t expected = (input_length + hash_tokens - 1) / hash_tokens;
  const std::int64_t found = static_cast<std::int64_t>(field.integers.size());
  if (found != expected) {
    return LineError{name, "has " + NumberText(found) + " ids; allowed: " + NumberText(expected) +
                               ", one per " + NumberText(hash_tokens) + " of input_length " +
                               NumberText(input_length)};
  }
  out.swap(field.integers);
  return std::nullopt;
}

std::optional<LineError> TakeLabel(const JsonField& field, std::string& out) {
  out.clear();
  if (!field.given()) return std::nullopt;
  if (field.kind != Kind::kText && field.kind != Kind::kInteger) {
    return Wrong(field, "a text or a whole number");
  }
  out = field.text;
  return std::nullopt;
}

}  // namespace lariat::session
