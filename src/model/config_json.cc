// SPDX-License-Identifier: Apache-2.0
#include "model/config_json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <vector>

namespace lariat::model {
namespace {

constexpr std::size_t kMaxPathBytes = 200;  // of a field, in a message

// "line 23 column 4 (byte 521)": lines and columns from 1, bytes from 0, columns in bytes.
std::string Position(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? byte + 1 : byte - newline;
  return "line " + std::to_string(lines + 1) + " column " + std::to_string(column) + " (byte " +
         std::to_string(byte) + ")";
}

// Bytes of the UTF-8 sequence at the front of `text`; 0: there is none. No overlong forms, no
// surrogates, nothing past U+10FFFF.
std::size_t Utf8Length(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0U) != 0x80U) return 0;
  }
  if (lead == 0xE0 && at(1) < 0xA0) return 0;
  if (lead == 0xED && at(1) >= 0xA0) return 0;
  if (lead == 0xF0 && at(1) < 0x90) return 0;
  if (lead == 0xF4 && at(1) >= 0x90) return 0;
  return length;
}

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// What the parser would take without a word, or report without saying what is meant: looked for
// before it runs.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  Status Scan() {
    if (Status s = ScanMarks(); !s.ok()) return s;
    while (at_ < text_.size() && !misplaced_) {
      if (Status s = in_string_ ? StepInString() : Step(); !s.ok()) return s;
    }
    return Status::Ok();
  }

 private:
  Status Refuse(const std::string& problem) const {
    return InvalidArgument(Position(text_, at_) + ": " + problem);
  }

  Status ScanMarks() const {
    const auto starts = [&](std::string_view mark) { return text_.substr(0, mark.size()) == mark; };
    if (text_.empty()) return InvalidArgument("file is empty; expected a JSON object");
    if (starts("\xFF\xFE") || starts("\xFE\xFF")) {
      return InvalidArgument("file is not UTF-8 (UTF-16 byte order mark)");
    }
    if (starts("\xEF\xBB\xBF")) {
      return InvalidArgument("file begins with a byte order mark; must be UTF-8 without one");
    }
    return Status::Ok();
  }

  Status StepUtf8() {
    const std::size_t length = Utf8Length(text_.substr(at_));
    if (length == 0) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(text_[at_]);
      return Refuse(std::string("invalid UTF-8 (byte ") + kDigits[byte / 16] + kDigits[byte % 16] +
                    ")");
    }
    at_ += length;
    return Status::Ok();
  }

  Status StepInString() {
    if (text_[at_] == '"') in_string_ = false;
    if (text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] > 0) ++at_;
    return StepUtf8();
  }

  Status Step() {
    const char c = text_[at_];
    if (ended_ && !IsSpace(c)) return Refuse("text after the end of the JSON object");
    if (c == '/') return Refuse("comments are not JSON");
    if (IsLetter(c)) return StepWord();
    if (c == '{' || c == '[') {
      if (open_.size() == kMaxDepth) {
        return Refuse("nesting deeper than " + std::to_string(kMaxDepth) + " levels");
      }
      open_ += c;
    } else if (c == '}' || c == ']') {
      // The parser knows best what should stand here.
      misplaced_ = open_.empty() || (c == '}') != (open_.back() == '{');
      if (misplaced_) return Status::Ok();
      open_.pop_back();
      ended_ = open_.empty();
    } else if (c == '"') {
      in_string_ = true;
    } else if ((c >= '0' && c <= '9') || c == '-') {
      // A number, to the end of its exponent; whether it is a good one, the parser knows.
      ++at_;
      while (at_ < text_.size() &&
             std::string_view("0123456789+-.eE").find(text_[at_]) != std::string_view::npos) {
        ++at_;
      }
      return Status::Ok();
    } else if (!IsSpace(c) && c != ':' && c != ',') {
      const std::size_t length = Utf8Length(text_.substr(at_));
      if (length > 0) return Refuse(Quoted(text_.substr(at_, length)) + " is not JSON");
    }
    return StepUtf8();
  }

  Status StepWord() {
    std::size_t end = at_;
    while (end < text_.size() && IsLetter(text_[end])) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    if (word != "true" && word != "false" && word != "null") {
      return Refuse(std::string(word.substr(0, 20)) + " is not JSON");
    }
    at_ = end;
    return Status::Ok();
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::string open_;  // brackets
  bool in_string_ = false;
  bool misplaced_ = false;
  bool ended_ = false;  // the outermost bracket has closed
};

// Builds the document; refuses keys that come twice, long keys and too many values.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view text) : text_(text) {}

  const Status& status() const { return status_; }
  Json& root() { return root_; }

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }  // no text holds one
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (name.size() > kMaxKeyBytes) {
      return Fail(Path() + ": a key of " + std::to_string(name.size()) + " bytes, " + Quoted(name) +
                  "; must be at most " + std::to_string(kMaxKeyBytes));
    }
    Json& object = *open_.back();
    const auto found = object.find(name);
    first_.reset();
    if (found != object.end()) first_ = Describe(*found);
    keys_.back() = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOutOfRange = 406;
    if (error.id == kOutOfRange) {
      return Fail(Path() + ": " + token.substr(0, 40) +
                  " is out of range; must be a finite number");
    }
    // The parser counts the bytes that it has read, the wrong one and the end among them.
    if (position > text_.size()) {
      return Fail(Position(text_, text_.size()) + ": unexpected end of file; expected " +
                  Expected(text_.size()));
    }
    const std::size_t byte = position == 0 ? 0 : position - 1;
    return Fail(Position(text_, byte) + ": " + Quoted(text_.substr(byte, 1)) +
                " is out of place; expected " + Expected(byte));
  }

 private:
  bool Fail(std::string message) {
    if (status_.ok()) status_ = InvalidArgument(std::move(message));
    return false;
  }

  // What may follow the text before `byte`, by the last character that is no space.
  std::string Expected(std::size_t byte) const {
    if (open_.empty()) return "a JSON object";
    while (byte > 0 && IsSpace(text_[byte - 1])) --byte;
    const char last = byte == 0 ? ' ' : text_[byte - 1];
    const bool object = open_.back()->is_object();
    const std::string end = object ? "'}'" : "']'";
    if (last == ':') return "a value";
    if (last == ',' || last == '{' || last == '[')
      return (object ? "a key or " : "a value or ") + end;
    return "',' or " + end;
  }

  // Of the value that comes next.
  std::string Path() const {
    std::string path;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i]->is_array()) {
        // Of an array that is not the innermost one, the last entry is being read.
        const std::size_t entry = open_[i]->size() - (i + 1 < open_.size() ? 1 : 0);
        path.append("[").append(std::to_string(entry)).append("]");
      } else {
        path.append(path.empty() ? "" : ".").append(keys_[i]);
      }
    }
    if (path.empty()) return "top level";
    return Clean(path, kMaxPathBytes);
  }

  Json* Add(Json value) {
    if (++values_ > kMaxValues) {
      Fail(Path() + ": more than " + std::to_string(kMaxValues) + " values in one file");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if (first_) {
      Fail(Path() + ": given twice (" + *first_ + ", then " + Describe(value) + ")");
      return nullptr;
    }
    return &(parent[keys_.back()] = std::move(value));
  }

  bool Open(Json container) {
    Json* const added = Add(std::move(container));
    if (added == nullptr) return false;
    open_.push_back(added);
    keys_.emplace_back();
    return true;
  }

  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    first_.reset();
    return true;
  }

  const std::string_view text_;
  Json root_;
  std::vector<Json*> open_;           // containers around the next value
  std::vector<std::string> keys_;     // of open_: the member being read
  std::optional<std::string> first_;  // of a key that came before: its value
  std::size_t values_ = 0;
  Status status_;
};

}  // namespace

std::string Clean(std::string_view text, std::size_t longest) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    // Never cut inside a UTF-8 sequence.
    const bool begins = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (i >= longest && begins) return out + "...";
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  }
  return out;
}

std::string Quoted(std::string_view text) {
  std::string out(1, '"');
  out += Clean(text, 60);
  out += '"';
  return out;
}

std::string Describe(const Json& value) {
  if (value.is_string()) return "string " + Quoted(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return value.dump();
}

Result<Json> ParseConfigJson(std::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    return InvalidArgument("file is over " + std::to_string(kMaxConfigBytes) + " bytes long");
  }
  if (Status s = Scanner(text).Scan(); !s.ok()) return s;
  Builder builder(text);
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &builder);
  if (!builder.status().ok()) return builder.status();
  if (!parsed) return InvalidArgument("file is not JSON");
  if (builder.root().is_object()) return std::move(builder.root());
  const std::string what = Describe(builder.root());
  return InvalidArgument("top level is " + what + "; must be an object");
}

Result<std::string> ReadConfigFile(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path file(path);
  if (std::filesystem::is_directory(file, ignored)) file /= "config.json";
  const std::string name = file.string();
  if (std::filesystem::is_directory(file, ignored)) {
    return InvalidArgument(name + ": is a directory; must be a config.json");
  }
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return InvalidArgument(name + ": " +
                           std::generic_category().message(errno != 0 ? errno : ENOENT));
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) return InvalidArgument(name + ": cannot be read");
  if (text.size() > kMaxConfigBytes) {
    return InvalidArgument(name + ": is over " + std::to_string(kMaxConfigBytes) + " bytes long");
  }
  return text;
}

}  // namespace lariat::model
