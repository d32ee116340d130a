// SPDX-License-Identifier: Apache-2.0
#include "session/verify_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>

namespace lariat::session {
namespace {

// How far a model's own cos and sin, from angles in fp32, may put a key off, as a fraction of its
// row's RMS: at the first positions, and beyond them in proportion to the position.
constexpr double kTurnedInFp32 = 1e-5;
constexpr double kFirstPositions = 24;

// Which element of a head turns together with element i < rotary_dim.
std::int64_t PartnerOf(const RopeSpec& rope, std::int64_t i) {
  if (rope.style == RopeStyle::kInterleaved) return i ^ 1;
  const std::int64_t half = rope.rotary_dim / 2;
  return i < half ? i + half : i - half;
}

// An error as a fraction of something that may be 0.
double Fraction(double error, double of) {
  if (error == 0) return 0;
  return of > 0 ? error / of : std::numeric_limits<double>::infinity();
}

}  // namespace

RoundingUnits UnitsOf(DType dtype) {
  switch (dtype) {
    case DType::kFP16: return {0x1p-11, 0x1p-25};
    case DType::kBF16: return {0x1p-8, 0x1p-134};
    default: return {0x1p-24, 0x1p-150};
  }
}

TensorCheck::TensorCheck(const RecordedPart& part, const RecordedLayer& layer,
                         const Recording& recording, std::int64_t dim, const RopeSpec* rope,
                         DType dtype)
    : part_(part),
      heads_(layer.spec.kv_heads),
      kept_(layer.kept),
      dim_(dim),
      tokens_(recording.tokens) {
  result_.name = part.name;
  result_.elements = std::ssize(part.cached);
  FillBounds(rope, dtype);
  result_.tolerance = largest_bound_;
}

void TensorCheck::FillBounds(const RopeSpec* rope, DType dtype) {
  bounds_.resize(part_.cached.size());
  rms_.resize(part_.cached.size() / static_cast<std::size_t>(dim_));
  RoundingUnits units = UnitsOf(dtype);
  // fp32 to fp32 rounds nothing: moved elements are equal.
  if (dtype == DType::kFP32 && part_.exact) units = {};
  double factor = 1;
  if (rope != nullptr) {
    const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(*rope, tokens_);
    if (frequencies.ok()) factor = frequencies->attention_factor;
  }
  for (std::int64_t row = 0; row < std::ssize(rms_); ++row) {
    const auto position = static_cast<double>(tokens_ - kept_ + row % kept_);
    const double share = kTurnedInFp32 * std::max(1.0, position / kFirstPositions);
    FillRow(row, rope, factor, units, share);
  }
}

void TensorCheck::FillRow(std::int64_t row, const RopeSpec* rope, double factor,
                          RoundingUnits units, double turned_share) {
  const double* const values = part_.cached.data() + row * dim_;
  double* const bounds = bounds_.data() + row * dim_;
  double squares = 0;
  for (std::int64_t i = 0; i < dim_; ++i) squares += values[i] * values[i];
  const double rms = std::sqrt(squares / static_cast<double>(dim_));
  if (!std::isfinite(rms)) return;  // bounds and RMS stay 0: nothing is near such a row
  rms_[static_cast<std::size_t>(row)] = rms;
  const std::int64_t turning = rope == nullptr ? 0 : rope->rotary_dim;
  for (std::int64_t i = 0; i < dim_; ++i) {
    const double value = std::fabs(values[i]);
    double rounding = units.relative * value + units.absolute;
    double share = 0;
    if (i < turning) {
      // The input's rounding turns with the pair, the output's is the element's own.
      const double pair = std::hypot(value, values[PartnerOf(*rope, i)]);
      const double input = units.relative * pair + std::numbers::sqrt2 * factor * units.absolute;
      rounding += (1 + units.relative) * input;
      share = turned_share;
    }
    bounds[i] = rounding + share * rms;
    largest_bound_ = std::max(largest_bound_, Fraction(rounding, rms) + share);
  }
}

std::string TensorCheck::Place(const std::string& pass, std::int64_t b, std::int64_t head,
                               std::int64_t j, std::int64_t element) const {
  return "pass " + pass + ", sequence " + std::to_string(b) + ", head " + std::to_string(head) +
         ", token " + std::to_string(tokens_ - kept_ + j) + ", element " + std::to_string(element);
}

void TensorCheck::Compare(const std::string& pass, std::int64_t b, std::span<const double> stored) {
  result_.compared += kept_ * heads_ * dim_;
  for (std::int64_t head = 0; head < heads_; ++head) {
    for (std::int64_t j = 0; j < kept_; ++j) {
      const std::int64_t row = (b * heads_ + head) * kept_ + j;
      const double rms = rms_[static_cast<std::size_t>(row)];
      for (std::int64_t i = 0; i < dim_; ++i) {
        const double want = part_.cached[static_cast<std::size_t>(row * dim_ + i)];
        const double got = stored[static_cast<std::size_t>((j * heads_ + head) * dim_ + i)];
        const double bound = bounds_[static_cast<std::size_t>(row * dim_ + i)];
        const double error = std::fabs(got - want);
        if (std::isnan(error) || error > result_.max_abs) result_.max_abs = error;  // NaN stays
        result_.max_rel_rms = std::max(result_.max_rel_rms, Fraction(error, rms));
        const double beyond =
            std::isnan(error) ? std::numeric_limits<double>::infinity() : Fraction(error, bound);
        if (beyond <= furthest_) continue;
        furthest_ = beyond;
        result_.ok = false;
        result_.tolerance = Fraction(bound, rms);
        char numbers[120];
        std::snprintf(numbers, sizeof numbers, ": stored %.9g, recorded %.9g, allowed +-%.3g", got,
                      want, bound);
        result_.worst = Place(pass, b, head, j, i) + numbers;
      }
    }
  }
}

}  // namespace lariat::session
