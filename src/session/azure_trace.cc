// SPDX-License-Identifier: Apache-2.0
// Azure's public traces: CSV of TIMESTAMP, ContextTokens, GeneratedTokens; clock times, no tokens.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include "session/trace_csv.h"

namespace lariat::session {
namespace {

constexpr std::array<CsvColumn, 3> kColumns = {CsvColumn{.name = "TIMESTAMP", .place = 0},
                                               CsvColumn{.name = "ContextTokens", .place = 1},
                                               CsvColumn{.name = "GeneratedTokens", .place = 2}};
enum Column : std::size_t { kTimestamp, kContext, kGenerated };

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

class AzureParser : public LineParser {
 public:
  std::optional<LineError> Parse(std::string_view line, ParsedLine& out) override {
    if (auto error = rows_.Read(line, out.is_request)) return error;
    return out.is_request ? ReadRow(out.request) : std::nullopt;
  }

 private:
  std::optional<LineError> ReadRow(TraceRequest& request) {
    const std::string_view stamp = rows_.Cell(kTimestamp);
    const std::optional<std::int64_t> time = ParseTime(stamp);
    if (!time) {
      return LineError{"TIMESTAMP",
                       NotAllowed(Quoted(stamp), "YYYY-MM-DD HH:MM:SS.fffffff, years 1970..2199")};
    }
    if (auto error = rows_.TakeLength(kContext, request.input_length)) return error;
    if (auto error = rows_.TakeLength(kGenerated, request.output_length)) return error;
    if (!first_time_) first_time_ = *time;
    request.arrival_s = static_cast<double>(*time - *first_time_) / 1e9;
    return std::nullopt;
  }

  CsvReader rows_{kColumns, kColumns.size()};
  std::optional<std::int64_t> first_time_;  // of the first good row
};

}  // namespace

std::unique_ptr<LineParser> MakeAzureParser() { return std::make_unique<AzureParser>(); }

}  // namespace lariat::session
