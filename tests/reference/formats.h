// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lariat/types.h"

namespace lariat::reference {

// A binary floating-point format by its two widths; values are held as bits. Slow and plain: shares
// nothing with the library's conversions.
template <class BitsType, int kExponentBits, int kFractionBits, DType kType>
struct Format {
  using Bits = BitsType;
  static constexpr DType kDType = kType;
  static constexpr int kPrecision = kFractionBits + 1;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kMinExponent = 1 - kBias;  // of normal numbers
  static constexpr Bits kExponentMask = ((Bits{1} << kExponentBits) - 1) << kFractionBits;
  static constexpr Bits kFractionMask = (Bits{1} << kFractionBits) - 1;
  static constexpr Bits kSign = Bits{1} << (kExponentBits + kFractionBits);
  static constexpr Bits kCanonicalNaN = kExponentMask | (Bits{1} << (kFractionBits - 1));

  static bool IsNaN(Bits bits) {
    return (bits & kExponentMask) == kExponentMask && (bits & kFractionMask) != 0;
  }

  static long double Decode(Bits bits) {
    const int exponent = static_cast<int>((bits & kExponentMask) >> kFractionBits);
    const auto fraction = static_cast<long double>(bits & kFractionMask);
    const long double one = std::ldexp(1.0L, kFractionBits);
    long double value = 0;
    if (IsNaN(bits)) {
      return std::numeric_limits<long double>::quiet_NaN();
    } else if ((bits & kExponentMask) == kExponentMask) {
      value = std::numeric_limits<long double>::infinity();
    } else if (exponent == 0) {
      value = std::ldexp(fraction / one, kMinExponent);
    } else {
      value = std::ldexp(1 + fraction / one, exponent - kBias);
    }
    return (bits & kSign) != 0 ? -value : value;
  }

  // The nearest value of the format, ties to even.
  static long double Round(long double value) {
    if (!std::isfinite(value) || value == 0) return value;
    const int exponent = std::max(std::ilogb(value), kMinExponent);
    const long double quantum = std::ldexp(1.0L, exponent - kFractionBits);
    const long double rounded = std::nearbyint(value / quantum) * quantum;
    const long double largest = std::ldexp(2.0L - std::ldexp(1.0L, -kFractionBits), kBias);
    if (std::fabs(rounded) > largest) {
      return std::copysign(std::numeric_limits<long double>::infinity(), value);
    }
    return std::copysign(rounded, value);
  }

  // Half a unit in the last place of 1, and half the smallest subnormal.
  static long double UnitRoundoff() { return std::ldexp(1.0L, -kPrecision); }
  static long double Underflow() { return std::ldexp(1.0L, kMinExponent - kFractionBits - 1); }
};

using F32 = Format<std::uint32_t, 8, 23, DType::kFP32>;
using F64 = Format<std::uint64_t, 11, 52, DType::kFP64>;
using F16 = Format<std::uint16_t, 5, 10, DType::kFP16>;
using B16 = Format<std::uint16_t, 8, 7, DType::kBF16>;

}  // namespace lariat::reference
