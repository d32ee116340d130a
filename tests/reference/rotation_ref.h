// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>
#include <vector>

#include "lariat/types.h"
#include "reference/formats.h"

namespace lariat::reference {

// What one element of an output must be.
//   moved: exactly `bits`.
//   else: within `bound` of `value`, which is worked out without rounding; and exactly `rounded`,
//     which rounds after each product, sum and store as docs/numerics.md says. NaN: canonical.
template <class Out>
struct Expected {
  bool moved = true;
  typename Out::Bits bits = 0;
  long double value = 0;
  long double bound = 0;
  long double rounded = 0;
};

template <class Out>
Expected<Out> MovedBits(typename Out::Bits bits) {
  return {true, bits, 0, 0, 0};
}

// An element that keeps its place: its bits, or its value rounded once to another type.
template <class In, class Out>
Expected<Out> Moved(typename In::Bits bits) {
  if constexpr (std::is_same_v<In, Out>) {
    return MovedBits<Out>(bits);
  } else {
    const long double value = In::Decode(bits);
    return {false, 0, value, Out::UnitRoundoff() * std::fabs(value) + Out::Underflow(),
            Out::Round(value)};
  }
}

// One component of a turned pair: a * p + sign * b * q.
//
// Bound. Arithmetic has unit roundoff u (fp32, or fp64 for fp64), the stored type w. The products
// are off by at most u |ap| and u |bq|, the sum of the rounded products by u (|ap| + |bq|)(1 + u)
// more: (2u + u^2) m with m = |ap| + |bq|. Storing adds w of the value's size, or nothing where the
// stored type is the arithmetic's. Underflow adds half a smallest subnormal per rounding.
template <class Real, class Out>
Expected<Out> Component(long double a, long double p, int sign, long double b, long double q) {
  const long double value = a * p + sign * (b * q);
  const long double size = std::fabs(a * p) + std::fabs(b * q);
  const long double u = Real::UnitRoundoff();
  const long double arithmetic = (2 * u + u * u) * size + 3 * Real::Underflow();
  const long double w = std::is_same_v<Real, Out> ? 0 : Out::UnitRoundoff();
  const long double store = w * (std::fabs(value) + arithmetic) + (w > 0 ? Out::Underflow() : 0);
  const long double first = Real::Round(a * p);
  const long double second = Real::Round(b * q);
  return {false, 0, value, arithmetic + store, Out::Round(Real::Round(first + sign * second))};
}

// The long double sums and products above are exact for fp32 arithmetic (two 24-bit factors; a sum
// rounds twice only where that is harmless: 64 >= 2 * 24 + 2), not for fp64, where this one, in
// fp64 itself and never contracted, takes their place.
inline long double RoundedInDouble(double a, double p, int sign, double b, double q) {
  const volatile double first = a * p;
  const volatile double second = b * q;
  const volatile double sum = sign > 0 ? first + second : first - second;
  return sum;
}

// One head: pairs of the first rotary_dim elements turn by the angles whose cosines and sines are
// given, the rest moves.
template <class In, class Out>
std::vector<Expected<Out>> RotatedHead(const typename In::Bits* x, int dim, int rotary_dim,
                                       RopeStyle style, const std::vector<long double>& cos,
                                       const std::vector<long double>& sin) {
  using Real = std::conditional_t<std::is_same_v<In, F64>, F64, F32>;
  std::vector<Expected<Out>> result(static_cast<std::size_t>(dim));
  for (int e = 0; e < dim; ++e) result[e] = Moved<In, Out>(x[e]);
  for (int i = 0; i < rotary_dim / 2; ++i) {
    const int even = style == RopeStyle::kInterleaved ? 2 * i : i;
    const int odd = style == RopeStyle::kInterleaved ? 2 * i + 1 : i + rotary_dim / 2;
    const long double a = In::Decode(x[style == RopeStyle::kInterleavedToHalf ? 2 * i : even]);
    const long double b = In::Decode(x[style == RopeStyle::kInterleavedToHalf ? 2 * i + 1 : odd]);
    result[even] = Component<Real, Out>(a, cos[i], -1, b, sin[i]);
    result[odd] = Component<Real, Out>(a, sin[i], +1, b, cos[i]);
    if constexpr (std::is_same_v<Real, F64>) {
      const auto d = [](long double value) { return static_cast<double>(value); };
      result[even].rounded = RoundedInDouble(d(a), d(cos[i]), -1, d(b), d(sin[i]));
      result[odd].rounded = RoundedInDouble(d(a), d(sin[i]), +1, d(b), d(cos[i]));
    }
  }
  return result;
}

}  // namespace lariat::reference
