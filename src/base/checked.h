// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace lariat {

// Sizes in int64; nothing where they do not fit.
inline std::optional<std::int64_t> CheckedProduct(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

inline std::optional<std::int64_t> CheckedSum(
    std::initializer_list<std::optional<std::int64_t>> terms) {
  std::int64_t sum = 0;
  for (const auto& term : terms) {
    if (!term || __builtin_add_overflow(sum, *term, &sum)) return std::nullopt;
  }
  return sum;
}

}  // namespace lariat
