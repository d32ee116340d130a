// SPDX-License-Identifier: Apache-2.0
#include "session/verify_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "session/verify_bounds.h"

namespace lariat::session {
namespace {

// An error as a fraction of something that may be 0.
double Fraction(double error, double of) {
  if (error == 0) return 0;
  return of > 0 ? error / of : std::numeric_limits<double>::infinity();
}

}  // namespace

TensorCheck::TensorCheck(const RecordedPart& part, std::int64_t heads, std::int64_t kept,
                         std::int64_t dim, std::int64_t tokens)
    : part_(part), heads_(heads), kept_(kept), dim_(dim), tokens_(tokens) {
  result_.name = part.name;
  result_.elements = std::ssize(part.cached);
  rms_.resize(part.cached.size() / static_cast<std::size_t>(dim));
  for (std::size_t row = 0; row < rms_.size(); ++row) {
    const double rms =
        RootMeanSquare(part.cached.data() + row * static_cast<std::size_t>(dim), dim);
    rms_[row] = std::isfinite(rms) ? rms : 0;
  }
}

VerifiedTensor TensorCheck::result() const {
  VerifiedTensor result = result_;
  if (result.ok) result.tolerance = largest_bound_;
  return result;
}

void TensorCheck::Compare(const std::string& place, std::int64_t b, std::span<const double> stored,
                          std::span<const double> bounds) {
  result_.compared += elements_per_sequence();
  for (std::int64_t head = 0; head < heads_; ++head) {
    for (std::int64_t j = 0; j < kept_; ++j) {
      const std::int64_t row = head * kept_ + j;
      for (std::int64_t i = 0; i < dim_; ++i) {
        CompareElement(place, b, row, i,
                       stored[static_cast<std::size_t>((j * heads_ + head) * dim_ + i)],
                       bounds[static_cast<std::size_t>(row * dim_ + i)]);
      }
    }
  }
}

// row: of sequence b.
void TensorCheck::CompareElement(const std::string& place, std::int64_t b, std::int64_t row,
                                 std::int64_t element, double got, double allowed) {
  const double bound = std::isfinite(allowed) ? allowed : 0;  // else nothing is near
  const std::int64_t recorded = b * heads_ * kept_ + row;
  const double want = part_.cached[static_cast<std::size_t>(recorded * dim_ + element)];
  const double rms = rms_[static_cast<std::size_t>(recorded)];
  const double error = std::fabs(got - want);
  if (std::isnan(error) || error > result_.max_abs) result_.max_abs = error;  // NaN stays
  const double relative = std::isnan(error) ? error : Fraction(error, rms);
  if (std::isnan(error) || relative > result_.max_rel_rms) result_.max_rel_rms = relative;
  largest_bound_ = std::max(largest_bound_, Fraction(bound, rms));
  const double beyond =
      std::isnan(error) ? std::numeric_limits<double>::infinity() : Fraction(error, bound);
  if (beyond <= furthest_) return;
  furthest_ = beyond;
  result_.ok = false;
  result_.tolerance = Fraction(bound, rms);
  char text[200];
  std::snprintf(text, sizeof text,
                ", sequence %lld, head %lld, token %lld, element %lld: stored %.9g, recorded "
                "%.9g, allowed +-%.3g",
                static_cast<long long>(b), static_cast<long long>(row / kept_),
                static_cast<long long>(tokens_ - kept_ + row % kept_),
                static_cast<long long>(element), got, want, bound);
  result_.worst = "pass " + place + text;
}

}  // namespace lariat::session
