// SPDX-License-Identifier: Apache-2.0
// Azure's public traces: CSV of TIMESTAMP, ContextTokens, GeneratedTokens; clock times, no tokens.
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "session/trace_parser.h"

namespace lariat::session {
namespace {

constexpr std::array<std::string_view, 3> kColumns = {"TIMESTAMP", "ContextTokens",
                                                      "GeneratedTokens"};
enum Column : std::size_t { kTimestamp, kContext, kGenerated };

std::string_view Trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Cells without quotes, which the format has none of.
void Split(std::string_view line, std::vector<std::string_view>& cells) {
  cells.clear();
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(Trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

// Takes `text` apart from the front.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }
  bool Skip(std::string_view any_of) {
    if (text_.empty() || any_of.find(text_.front()) == std::string_view::npos) return false;
    text_.remove_prefix(1);
    return true;
  }
  // Exactly `digits` digits.
  bool Digits(std::size_t digits, std::int64_t& value) {
    if (CountDigits() < digits) return false;
    std::from_chars(text_.data(), text_.data() + digits, value);
    text_.remove_prefix(digits);
    return true;
  }
  // 1..9 digits of a decimal fraction, as billionths.
  bool Fraction(std::int64_t& billionths) {
    const std::size_t digits = CountDigits();
    if (digits < 1 || digits > 9 || !Digits(digits, billionths)) return false;
    for (std::size_t i = digits; i < 9; ++i) billionths *= 10;
    return true;
  }

 private:
  std::size_t CountDigits() const {
    return std::min(text_.find_first_not_of("0123456789"), text_.size());
  }
  std::string_view text_;
};

// "2023-11-16 18:17:03.9799600", a T for the blank, any number of decimals up to 9, and an optional
// Z or +HH:MM behind; as nanoseconds of the Unix clock.
std::optional<std::int64_t> ParseTime(std::string_view text) {
  Cursor in(text);
  std::int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, nanosecond = 0;
  if (!in.Digits(4, year) || !in.Skip("-") || !in.Digits(2, month) || !in.Skip("-") ||
      !in.Digits(2, day) || !in.Skip(" T") || !in.Digits(2, hour) || !in.Skip(":") ||
      !in.Digits(2, minute) || !in.Skip(":") || !in.Digits(2, second)) {
    return std::nullopt;
  }
  if (in.Skip(".") && !in.Fraction(nanosecond)) return std::nullopt;
  std::int64_t zone_minutes = 0;
  if (!in.done() && !in.Skip("Z")) {
    const bool west = in.Skip("-");
    std::int64_t zone_hour = 0, zone_minute = 0;
    if ((!west && !in.Skip("+")) || !in.Digits(2, zone_hour) || !in.Skip(":") ||
        !in.Digits(2, zone_minute)) {
      return std::nullopt;
    }
    zone_minutes = (west ? -1 : 1) * (zone_hour * 60 + zone_minute);
  }
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  // Nanoseconds of 64 bits end in 2262.
  if (!in.done() || !date.ok() || year < 1970 || year > 2199 || hour > 23 || minute > 59 ||
      second > 59) {
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t minutes = (days * 24 + hour) * 60 + minute - zone_minutes;
  return (minutes * 60 + second) * 1'000'000'000 + nanosecond;
}

std::optional<LineError> ParseLength(std::string_view cell, std::string_view column,
                                     std::int64_t& out) {
  const char* end = cell.data() + cell.size();
  const auto [stop, code] = std::from_chars(cell.data(), end, out);
  if (code == std::errc() && stop == end && out >= 1 && out <= kMaxRequestTokens) {
    return std::nullopt;
  }
  return LineError{
      std::string(column),
      NotAllowed(Quoted(cell), "a whole number in 1.." + NumberText(kMaxRequestTokens))};
}

class AzureParser : public LineParser {
 public:
  std::optional<LineError> Parse(std::string_view line, ParsedLine& out) override {
    Split(line, cells_);
    out.is_request = true;
    if (!std::exchange(seen_first_, true) && !cells_[0].empty() &&
        (cells_[0][0] < '0' || cells_[0][0] > '9')) {
      out.is_request = false;
      return ReadHeader();
    }
    return ReadRow(out.request);
  }

 private:
  std::optional<LineError> ReadHeader() {
    columns_ = cells_.size();
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      const auto first = std::find(cells_.begin(), cells_.end(), kColumns[c]);
      if (first == cells_.end()) {
        return LineError{std::string(kColumns[c]), "is missing in the header", true};
      }
      if (std::find(first + 1, cells_.end(), kColumns[c]) != cells_.end()) {
        return LineError{std::string(kColumns[c]), "appears twice in the header", true};
      }
      place_[c] = static_cast<std::size_t>(first - cells_.begin());
    }
    return std::nullopt;
  }

  std::optional<LineError> ReadRow(TraceRequest& request) {
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      if (place_[c] >= cells_.size()) return LineError{std::string(kColumns[c]), "is missing"};
    }
    if (cells_.size() != columns_) {
      return LineError{"line", "has " + NumberText(cells_.size()) + " columns; allowed: " +
                                   NumberText(columns_) + ", as the header"};
    }
    const std::string_view stamp = cells_[place_[kTimestamp]];
    const std::optional<std::int64_t> time = ParseTime(stamp);
    if (!time) {
      return LineError{"TIMESTAMP",
                       NotAllowed(Quoted(stamp), "YYYY-MM-DD HH:MM:SS.fffffff, years 1970..2199")};
    }
    if (auto error = ParseLength(cells_[place_[kContext]], "ContextTokens", request.input_length)) {
      return error;
    }
    if (auto error =
            ParseLength(cells_[place_[kGenerated]], "GeneratedTokens", request.output_length)) {
      return error;
    }
    if (!first_time_) first_time_ = *time;
    request.arrival_s = static_cast<double>(*time - *first_time_) / 1e9;
    return std::nullopt;
  }

  bool seen_first_ = false;
  std::size_t columns_ = kColumns.size();
  std::array<std::size_t, 3> place_ = {0, 1, 2};  // where a row has kColumns
  std::optional<std::int64_t> first_time_;        // of the first good row
  std::vector<std::string_view> cells_;
};

}  // namespace

std::unique_ptr<LineParser> MakeAzureParser() { return std::make_unique<AzureParser>(); }

}  // namespace lariat::session
