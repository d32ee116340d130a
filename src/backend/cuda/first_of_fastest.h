// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

namespace lariat::cuda {

// Of ways to do the same that took so long, in seconds, the first that is within 4 % of the
// fastest. Ways that differ by less come out in another order in another run; of two such, the one
// that cuBLASLt had put first was the faster one between other kernels (14.5 us instead of 15.7 for
// MlaCompress of 64 tokens). Infinite: the way is out of the question; 0 where all are.
inline std::size_t FirstOfFastest(std::span<const double> seconds) {
  constexpr double kNear = 1.04;
  if (seconds.empty()) return 0;
  const double enough = kNear * *std::min_element(seconds.begin(), seconds.end());
  const auto first =
      std::find_if(seconds.begin(), seconds.end(), [&](double taken) { return taken <= enough; });
  return static_cast<std::size_t>(first - seconds.begin());
}

}  // namespace lariat::cuda
