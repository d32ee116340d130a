// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <ostream>

namespace lariat::blocks {

// A number of tokens or blocks of one sequence: counted in 64 bits, kept in 32, which the limits of
// CacheConfig allow.
class Length {
 public:
  Length(std::int64_t value) : value_(static_cast<std::int32_t>(value)) {}  // NOLINT: a number
  operator std::int64_t() const { return value_; }                          // NOLINT
  Length& operator++() {
    ++value_;
    return *this;
  }

  friend std::ostream& operator<<(std::ostream& out, Length length) {
    return out << static_cast<std::int64_t>(length.value_);
  }

 private:
  std::int32_t value_;
};

}  // namespace lariat::blocks
