// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

namespace lariat {

// 16-bit floating-point elements, as bits. The conversions are constexpr, so that host and device
// code share them; all round to nearest even and turn every NaN into the canonical one.
struct Bf16 {
  std::uint16_t bits = 0;
};
struct Fp16 {
  std::uint16_t bits = 0;
};

inline constexpr std::uint16_t kBf16NaN = 0x7FC0;
inline constexpr std::uint16_t kFp16NaN = 0x7E00;
inline constexpr std::uint32_t kFp32NaN = 0x7FC00000;
inline constexpr std::uint64_t kFp64NaN = 0x7FF8000000000000;

constexpr float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

constexpr Bf16 ToBf16(float value) {
  if (value != value) return {kBf16NaN};
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // Adds just under half of the last kept place, or exactly half where that place is odd.
  return {static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

// Without branches, so that loops become vectors: choices are made by masks, as the compiler would
// not work out a floating-point number that it may not need.
constexpr float ToFloat(Fp16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFF;
  // Zero and subnormal numbers get an implicit one, which is subtracted again; both exactly.
  const std::uint32_t one = magnitude < 0x400 ? 0x38800000 : 0;
  const std::uint32_t biased = (magnitude << 13) + (magnitude < 0x400 ? 0x38800000 : 0x38000000);
  const float finite = std::bit_cast<float>(biased) - std::bit_cast<float>(one);
  // Infinity or NaN, whose payload moves to the top.
  const std::uint32_t special = magnitude >= 0x7C00 ? 0x7F800000 : 0;
  return std::bit_cast<float>(sign | special | std::bit_cast<std::uint32_t>(finite));
}

constexpr Fp16 ToFp16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  // All ones where the condition holds.
  const std::uint32_t is_small = 0U - static_cast<std::uint32_t>(magnitude < 0x38800000);
  const std::uint32_t is_nan = 0U - static_cast<std::uint32_t>(magnitude > 0x7F800000);
  // From 65520 on it rounds past the largest finite number.
  const std::uint32_t is_large = 0U - static_cast<std::uint32_t>(magnitude >= 0x477FF000);
  // Normal: rebias, then round as for bf16.
  const std::uint32_t rebiased = magnitude - 0x38000000;
  const std::uint32_t normal = (rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13;
  // Subnormal: the sum's last place is 2^-24, so the addition itself rounds to nearest even. Of the
  // others it makes 0.
  const float sum = std::bit_cast<float>(magnitude & is_small) + 0.5F;
  const std::uint32_t finite =
      (normal & ~is_small) + (std::bit_cast<std::uint32_t>(sum) - 0x3F000000);
  const std::uint32_t number = (finite & ~is_large) | (0x7C00 & is_large) | ((bits >> 16) & 0x8000);
  return {static_cast<std::uint16_t>((number & ~is_nan) | (kFp16NaN & is_nan))};
}

// The type that an element's arithmetic is done in, loads into it (exact), and stores from it (one
// rounding; NaN becomes canonical).
template <class T>
struct Element {
  using Real = float;
  static constexpr float Load(T value) { return ToFloat(value); }
  static constexpr T Store(float value);
};

template <>
constexpr Bf16 Element<Bf16>::Store(float value) {
  return ToBf16(value);
}
template <>
constexpr Fp16 Element<Fp16>::Store(float value) {
  return ToFp16(value);
}

template <>
struct Element<float> {
  using Real = float;
  static constexpr float Load(float value) { return value; }
  static constexpr float Store(float value) {
    return value == value ? value : std::bit_cast<float>(kFp32NaN);
  }
};

template <>
struct Element<double> {
  using Real = double;
  static constexpr double Load(double value) { return value; }
  static constexpr double Store(double value) {
    return value == value ? value : std::bit_cast<double>(kFp64NaN);
  }
};

}  // namespace lariat
