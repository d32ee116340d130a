// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "reference/rotation_ref.h"
#include "support/catch.h"

namespace lariat::testing {

// Checks every element of an output. Returns the largest error as a fraction of its bound.
template <class F>
long double CheckElements(const std::string& what,
                          const std::vector<reference::Expected<F>>& expected,
                          const std::vector<typename F::Bits>& actual) {
  REQUIRE(actual.size() == expected.size());
  long double worst = 0;
  std::int64_t wrong = 0;
  const auto report = [&](std::size_t i, const std::string& why) {
    if (++wrong > 3) return;
    UNSCOPED_INFO(what << "[" << i << "] = 0x" << std::hex << std::uint64_t{actual[i]} << ": "
                       << why);
  };
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const reference::Expected<F>& e = expected[i];
    if (e.moved) {
      if (actual[i] != e.bits) report(i, "is not the bits that should lie there");
      continue;
    }
    const long double value = F::Decode(actual[i]);
    if (std::isnan(e.rounded)) {
      if (actual[i] != F::kCanonicalNaN) report(i, "should be the canonical NaN");
      continue;
    }
    if (value != e.rounded || std::signbit(value) != std::signbit(e.rounded)) {
      report(i, "should be exactly " + std::to_string(e.rounded));
    }
    if (!std::isfinite(e.value) || !std::isfinite(e.rounded)) continue;
    const long double ratio = std::fabs(value - e.value) / e.bound;
    if (ratio > 1) report(i, "is further than the bound from " + std::to_string(e.value));
    worst = std::max(worst, ratio);
  }
  INFO(what << ": " << wrong << " of " << actual.size() << " wrong");
  CHECK(wrong == 0);
  return worst;
}

}  // namespace lariat::testing
