// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

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

 private:
  std::int32_t value_;
};

}  // namespace lariat::blocks
