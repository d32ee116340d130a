// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <charconv>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace lariat {

// Text that is put together from parts, as by an ostream, whose locale and formats cost it several
// times as long. For whole states, which tests take after every call.
class TextBuilder {
 public:
  TextBuilder& operator<<(char c) {
    text_ += c;
    return *this;
  }
  TextBuilder& operator<<(std::string_view part) {
    text_ += part;
    return *this;
  }
  template <std::integral T>
  requires(!std::same_as<T, char>) TextBuilder& operator<<(T value) {
    if constexpr (std::same_as<T, bool>) {
      text_ += value ? '1' : '0';
    } else {
      char digits[std::numeric_limits<T>::digits10 + 2];
      text_.append(digits, std::to_chars(digits, std::end(digits), value).ptr);
    }
    return *this;
  }
  // What stands for a number.
  template <class T>
  requires(!std::integral<T> && std::convertible_to<T, std::int64_t> &&
           !std::convertible_to<T, std::string_view>) TextBuilder& operator<<(const T& value) {
    return *this << static_cast<std::int64_t>(value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace lariat
