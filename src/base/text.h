// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <charconv>
#include <concepts>
#include <cstdint>
#include <iterator>
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
  // And what converts to it.
  TextBuilder& operator<<(std::int64_t value) { return Number(value); }
  template <std::integral T>
  TextBuilder& operator<<(T value) {
    if constexpr (std::same_as<T, bool>) {
      return *this << (value ? '1' : '0');
    } else {
      return Number(value);
    }
  }
  std::string Take() { return std::move(text_); }

 private:
  template <std::integral T>
  TextBuilder& Number(T value) {
    char digits[std::numeric_limits<T>::digits10 + 2];
    text_.append(digits, std::to_chars(digits, std::end(digits), value).ptr);
    return *this;
  }

  std::string text_;
};

}  // namespace lariat
