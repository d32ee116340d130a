// SPDX-License-Identifier: Apache-2.0
#include "session/verify_bounds.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lariat::session {
namespace {

constexpr double kTurnedInFp32 = 1e-5;
constexpr double kFirstPositions = 24;

}  // namespace

RoundingUnits UnitsOf(DType dtype) {
  switch (dtype) {
    case DType::kFP16: return {0x1p-11, 0x1p-25};
    case DType::kBF16: return {0x1p-8, 0x1p-134};
    default: return {kSingle, 0x1p-150};
  }
}

RopePair PairOf(const RopeSpec& rope, std::int64_t pair) {
  const std::int64_t half = rope.rotary_dim / 2;
  const bool reads_halves = rope.style == RopeStyle::kHalf;
  const bool writes_halves = rope.style != RopeStyle::kInterleaved;
  return {.in_x = reads_halves ? pair : 2 * pair,
          .in_y = reads_halves ? pair + half : 2 * pair + 1,
          .out_x = writes_halves ? pair : 2 * pair,
          .out_y = writes_halves ? pair + half : 2 * pair + 1};
}

double AttentionFactorOf(const RopeSpec* rope, std::int64_t tokens) {
  if (rope == nullptr) return 1;
  const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(*rope, tokens);
  return frequencies.ok() ? frequencies->attention_factor : 1;
}

double TurnedShare(std::int64_t position) {
  return kTurnedInFp32 * std::max(1.0, static_cast<double>(position) / kFirstPositions);
}

double RootMeanSquare(const double* values, std::int64_t size) {
  double squares = 0;
  for (std::int64_t i = 0; i < size; ++i) squares += values[i] * values[i];
  return std::sqrt(squares / static_cast<double>(size));
}

std::vector<double> BoundsOf(const RecordedPart& part, const RecordedLayer& layer,
                             const Recording& recording, std::int64_t dim, const RopeSpec* rope,
                             DType dtype) {
  RoundingUnits units = UnitsOf(dtype);
  // fp32 to fp32 rounds nothing: moved elements are equal.
  if (dtype == DType::kFP32 && part.exact) units = {};
  const double factor = AttentionFactorOf(rope, recording.tokens);
  std::vector<double> all(part.cached.size());
  for (std::int64_t row = 0; row * dim < std::ssize(all); ++row) {
    const double* const values = part.cached.data() + row * dim;
    double* const bounds = all.data() + row * dim;
    const double rms = RootMeanSquare(values, dim);
    if (!std::isfinite(rms)) continue;  // bounds stay 0: nothing is near such a row
    for (std::int64_t i = 0; i < dim; ++i) {
      bounds[i] = units.relative * std::fabs(values[i]) + units.absolute;
    }
    if (rope == nullptr) continue;
    const std::int64_t position = recording.tokens - layer.kept + row % layer.kept;
    for (std::int64_t p = 0; p < rope->rotary_dim / 2; ++p) {
      const RopePair pair = PairOf(*rope, p);
      // The input's rounding turns with the pair, the output's is the element's own.
      const double input = units.relative * std::hypot(values[pair.out_x], values[pair.out_y]) +
                           std::numbers::sqrt2 * factor * units.absolute;
      const double more = (1 + units.relative) * input + TurnedShare(position) * rms;
      bounds[pair.out_x] += more;
      bounds[pair.out_y] += more;
    }
  }
  return all;
}

}  // namespace lariat::session
