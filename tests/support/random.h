// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace lariat::testing {

// Random inputs, the same on every machine for one seed.
class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  // Evenly in [low, high].
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(0, 99) < percent; }
  template <class T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

  // Bits of a number of size 1/8 to 4, of either sign.
  template <class F>
  typename F::Bits Number() {
    using Bits = typename F::Bits;
    const auto exponent = static_cast<Bits>(F::kBias + Between(-3, 1));
    const Bits fraction = static_cast<Bits>(engine_()) & F::kFractionMask;
    const Bits sign = Chance(50) ? F::kSign : Bits{0};
    return static_cast<Bits>(sign | static_cast<Bits>(exponent << (F::kPrecision - 1)) | fraction);
  }
  // Any bits at all: NaNs, infinities, subnormals.
  template <class F>
  typename F::Bits AnyBits() {
    using Bits = typename F::Bits;
    switch (Between(0, 7)) {
      case 0: return F::kSign;                                                      // -0
      case 1: return static_cast<Bits>(F::kExponentMask | (engine_() & F::kSign));  // infinity
      case 2: return static_cast<Bits>(F::kExponentMask | 1 | engine_());
      case 3: return static_cast<Bits>(engine_() & (F::kFractionMask | F::kSign));  // subnormal
      case 4: return static_cast<Bits>(F::kExponentMask - 1);  // the largest number
      default: return static_cast<Bits>(engine_());
    }
  }

  template <class F>
  std::vector<typename F::Bits> Numbers(std::int64_t count, bool any = false) {
    std::vector<typename F::Bits> values(static_cast<std::size_t>(count));
    for (auto& value : values) value = any ? AnyBits<F>() : Number<F>();
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace lariat::testing
