// SPDX-License-Identifier: Apache-2.0
// Conversions of 16-bit elements, all of them, against the plain formats of tests/reference.
#include "base/float16.h"

#include <cmath>

#include "reference/formats.h"
#include "support/catch.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;

// Each 16-bit value exactly; and of each gap between neighbours the ends, the middle, and the fp32
// numbers just beside the middle.
template <class F, class Element16, class Narrow>
void CheckAll(Narrow narrow) {
  std::int64_t wrong = 0;
  const auto check = [&](float value) {
    const std::uint16_t got = narrow(value).bits;
    const long double want = F::Round(value);
    const bool ok = std::isnan(value) ? got == F::kCanonicalNaN
                                      : F::Decode(got) == want &&
                                            std::signbit(F::Decode(got)) == std::signbit(value);
    if (!ok && ++wrong <= 3) UNSCOPED_INFO(value << " became 0x" << std::hex << got);
  };
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = ToFloat(Element16{half});
    const long double exact = F::Decode(half);
    const bool same = std::isnan(exact)
                          ? std::isnan(value)
                          : exact == value && std::signbit(exact) == std::signbit(value);
    if (!same && ++wrong <= 3) UNSCOPED_INFO("0x" << std::hex << bits << " became " << value);
    check(value);
    if ((half & F::kExponentMask) == F::kExponentMask) continue;
    // The next value away from zero; past the largest, the one that would follow.
    const long double last_step =
        std::fabs(exact) - std::fabs(F::Decode(static_cast<std::uint16_t>(half - 1)));
    const auto up = static_cast<std::uint16_t>(half + 1);
    const bool largest = (up & F::kExponentMask) == F::kExponentMask;
    const long double next =
        largest ? std::copysign(std::fabs(exact) + last_step, exact) : F::Decode(up);
    const auto middle = static_cast<float>((exact + next) / 2);
    if (!std::isfinite(middle)) continue;
    check(middle);
    check(std::nextafter(middle, 0.0F));
    check(std::nextafter(middle, std::copysign(INFINITY, middle)));
  }
  for (const float value : {INFINITY, -INFINITY, NAN, -NAN, 3.0e38F, -3.0e38F, 1e-45F, -1e-45F}) {
    check(value);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("float16: bf16, every value and every middle between two") {
  CheckAll<B16, Bf16>([](float value) { return ToBf16(value); });
}

TEST_CASE("float16: fp16, every value and every middle between two") {
  CheckAll<F16, Fp16>([](float value) { return ToFp16(value); });
}

}  // namespace lariat
