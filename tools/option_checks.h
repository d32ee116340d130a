// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <string>

// Checks of a flag's text, before CLI11 makes a number of it. Without a name of their own: they add
// nothing to the help.
namespace lariat::tools {

// A path or a spec that is "" was a variable without a value.
inline CLI::Validator NotEmpty() {
  return {[](std::string& value) { return std::string(value.empty() ? "is empty" : ""); }, ""};
}

// A seed, in decimal alone: CLI11 would take "-1" and read "010" as octal.
inline CLI::Validator DecimalUint64() {
  return {[](std::string& value) -> std::string {
            std::uint64_t number = 0;
            const char* const end = value.data() + value.size();
            const auto [rest, error] = std::from_chars(value.data(), end, number);
            if (value.empty() || error != std::errc() || rest != end) {
              return "'" + value + "'; allowed: a whole number in 0..18446744073709551615";
            }
            value = std::to_string(number);
            return {};
          },
          "0..18446744073709551615"};
}

// A number in [low, high]; CLI::Range lets NaN through.
inline CLI::Validator NumberRange(double low, double high) {
  std::ostringstream range;
  range << low << ".." << high;
  return {[low, high, text = range.str()](std::string& value) -> std::string {
            double number = 0;
            const char* const end = value.data() + value.size();
            const auto [rest, error] = std::from_chars(value.data(), end, number);
            if (error == std::errc() && rest == end && number >= low && number <= high) return {};
            return "'" + value + "'; allowed: a number in " + text;
          },
          range.str()};
}

// A factor that a trace's arrivals are divided by (TraceOptions::rate).
inline CLI::Validator RateRange() {
  return {[](std::string& value) -> std::string {
            double rate = 0;
            const char* const end = value.data() + value.size();
            const auto [rest, error] = std::from_chars(value.data(), end, rate);
            if (error == std::errc() && rest == end && rate >= 1e-9 && rate <= 1e9) return {};
            return "'" + value + "'; allowed: a number in 1e-9..1e9";
          },
          "1e-9..1e9"};
}

}  // namespace lariat::tools
