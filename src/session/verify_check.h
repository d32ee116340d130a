// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lariat/verify.h"
#include "session/recording.h"

namespace lariat::session {

// Compares one recorded tensor with what the passes stored.
class TensorCheck {
 public:
  // part.cached: [B, heads, kept, dim], of the last `kept` of `tokens` tokens.
  // REQUIRES: part.compared(), and it outlives the check.
  TensorCheck(const RecordedPart& part, std::int64_t heads, std::int64_t kept, std::int64_t dim,
              std::int64_t tokens);

  // place: which pass, and whatever else tells calls apart, for a person.
  // stored: [kept, heads, dim], the last `kept` rows of sequence b
  // bounds: [heads, kept, dim], how far each element may be off; not finite: not at all
  void Compare(const std::string& place, std::int64_t b, std::span<const double> stored,
               std::span<const double> bounds);

  std::int64_t elements_per_sequence() const { return heads_ * kept_ * dim_; }
  VerifiedTensor result() const;

 private:
  void CompareElement(const std::string& place, std::int64_t b, std::int64_t row,
                      std::int64_t element, double got, double allowed);

  const RecordedPart& part_;
  const std::int64_t heads_, kept_, dim_, tokens_;
  std::vector<double> rms_;   // of part_.cached's rows of dim elements; 0: not finite
  double largest_bound_ = 0;  // as a fraction of the row's RMS
  double furthest_ = 1;       // largest error as a fraction of its bound, beyond 1
  VerifiedTensor result_;
};

}  // namespace lariat::session
