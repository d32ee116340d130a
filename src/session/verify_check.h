// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lariat/rope.h"
#include "lariat/types.h"
#include "lariat/verify.h"
#include "session/recording.h"

namespace lariat::session {

// Where two 16-bit or 32-bit formats round to: docs/numerics.md, "Replayed recordings".
struct RoundingUnits {
  double relative = 0;  // of a normal number
  double absolute = 0;  // of a subnormal one
};
RoundingUnits UnitsOf(DType dtype);

// Compares one recorded tensor with what the passes stored.
class TensorCheck {
 public:
  // rope: null where nothing turns (V, and K without RoPE). REQUIRES: part.compared().
  TensorCheck(const RecordedPart& part, const RecordedLayer& layer, const Recording& recording,
              std::int64_t dim, const RopeSpec* rope, DType dtype);

  // stored: [kept, kv_heads, dim], the last `kept` rows of sequence b, in pass `pass`.
  void Compare(const std::string& pass, std::int64_t b, std::span<const double> stored);

  VerifiedTensor result() const { return result_; }

 private:
  void FillBounds(const RopeSpec* rope, DType dtype);
  void FillRow(std::int64_t row, const RopeSpec* rope, double factor, RoundingUnits units,
               double turned_share);
  std::string Place(const std::string& pass, std::int64_t b, std::int64_t head, std::int64_t j,
                    std::int64_t element) const;

  const RecordedPart& part_;
  const std::int64_t heads_, kept_, dim_, tokens_;
  std::vector<double> bounds_;  // as part_.cached
  std::vector<double> rms_;     // of its rows of dim elements
  double largest_bound_ = 0;    // as a fraction of the row's RMS
  double furthest_ = 1;         // largest error as a fraction of its bound, beyond 1
  VerifiedTensor result_;
};

}  // namespace lariat::session
