// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/rope.h"
#include "lariat/types.h"
#include "session/recording.h"
#include "session/verify_bounds.h"
#include "session/verify_inputs.h"

namespace lariat::session {

// The attention of one MLA layer over what a pass stored and expanded, on the host in double, and
// how far it may be from what the model recorded: docs/numerics.md, "Replayed recordings".
class MlaAttention {
 public:
  // REQUIRES: layer.mla->attn_out.compared(); layer and recording outlive this.
  MlaAttention(const RecordedLayer& layer, const Recording& recording, DType dtype);

  // Sequence b.
  //   latents, k_pe: [T, rank] and [T, rope], as stored
  //   out: [T, heads, v], from `rows`
  //   bounds: [heads, T, v]
  void Attend(std::int64_t b, std::span<const double> latents, std::span<const double> k_pe,
              const ExpandedRows& rows, std::vector<double>& out,
              std::vector<double>& bounds) const;

 private:
  // Keys or values of one head of one sequence as the recording has them, and for each element the
  // sum of the squares of its own single errors, and of those of the weights that it is made with.
  struct HeadRows {
    std::vector<double> values, own, of_weights;
  };

  void TurnQueries();
  void AbsorbQueries();
  // [heads, T, v]: queries meet latents, and values are made behind the softmax.
  void AttendAbsorbed(std::int64_t b, const double* latents, const double* k_pe,
                      std::vector<double>& out) const;
  void FillNoise(std::int64_t b);
  void FillHeadRows(std::int64_t b, std::int64_t first_weight, std::int64_t dim,
                    std::int64_t stride, HeadRows& rows) const;
  void FillNoiseOfQuery(std::int64_t b, std::int64_t h, std::int64_t t, const HeadRows& keys,
                        const HeadRows& values);
  double ScoreError(const double* q, std::int64_t t, const HeadRows& keys, std::int64_t j) const;
  double ErrorOfWeight(double weight) const {
    return (stored_.relative + kSingle) * std::fabs(weight) + stored_.absolute;
  }

  const double* Query(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return q_.data() + ((b * tokens_ + t) * heads_ + h) * (nope_ + rope_dim_);
  }
  const double* Weights(std::int64_t row) const { return mla_.w_kv_b.data() + row * rank_; }

  const RecordedLayer& layer_;
  const RecordedMla& mla_;
  const std::int64_t batch_, tokens_, heads_, rank_, rope_dim_, nope_, v_dim_;
  const RopeSpec* const rope_;
  double scale_ = 1;      // of scores
  RoundingUnits stored_;  // of the cache's type; none in fp32
  RopeFrequencies frequencies_;
  std::vector<double> q_;         // [B, T, heads, nope + rope], turned
  std::vector<double> absorbed_;  // [B, heads, T, rank]
  std::vector<double> recorded_;  // [B, heads, T, v]: attention over the recorded cache
  std::vector<double> noise_;     // [B, heads, T, v]
};

}  // namespace lariat::session
