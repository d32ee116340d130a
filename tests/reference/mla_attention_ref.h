// SPDX-License-Identifier: Apache-2.0
// Attention of one query in double, over keys and values or over latents. Shares nothing with src/.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lariat/ops.h"

namespace lariat::reference {

using Row = std::vector<double>;

inline double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Row Concatenated(const Row& a, const Row& b) {
  Row all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

// The weight of each key.
inline Row SoftmaxWeights(const Row& query, const std::vector<Row>& keys, double scale) {
  Row weights;
  for (const Row& key : keys) weights.push_back(scale * Dot(query, key));
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  for (double& weight : weights) weight /= sum;
  return weights;
}

inline Row Mean(const Row& weights, const std::vector<Row>& values) {
  Row mean(values.front().size(), 0.0);
  for (std::size_t t = 0; t < weights.size(); ++t) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += weights[t] * values[t][i];
  }
  return mean;
}

inline Row Attend(const Row& query, const std::vector<Row>& keys, const std::vector<Row>& values,
                  double scale) {
  return Mean(SoftmaxWeights(query, keys, scale), values);
}

// One head of a view, over numbers in double that lie where the viewed elements would.
class HeadMatrix {
 public:
  // first: elements from the beginning of `numbers` to the view's data
  HeadMatrix(const HeadMatrices& view, const Row& numbers, std::int64_t first, int head)
      : view_(view), numbers_(numbers), first_(first + head * view.head_stride) {}

  double At(int row, int column) const {
    return numbers_.at(
        static_cast<std::size_t>(first_ + row * view_.row_stride + column * view_.column_stride));
  }
  Row Times(const Row& x) const {
    Row y(static_cast<std::size_t>(view_.rows), 0.0);
    for (int r = 0; r < view_.rows; ++r) {
      for (int c = 0; c < view_.columns; ++c) {
        y[static_cast<std::size_t>(r)] += At(r, c) * x[static_cast<std::size_t>(c)];
      }
    }
    return y;
  }
  Row TransposedTimes(const Row& x) const {
    Row y(static_cast<std::size_t>(view_.columns), 0.0);
    for (int r = 0; r < view_.rows; ++r) {
      for (int c = 0; c < view_.columns; ++c) {
        y[static_cast<std::size_t>(c)] += At(r, c) * x[static_cast<std::size_t>(r)];
      }
    }
    return y;
  }

 private:
  const HeadMatrices& view_;
  const Row& numbers_;
  std::int64_t first_;
};

// One head's output by latents alone: the query meets [latent | k_pe], and W_UV comes last.
inline Row AttendAbsorbed(const HeadMatrix& w_uk, const HeadMatrix& w_uv, const Row& q_nope,
                          const Row& q_pe, const std::vector<Row>& latents,
                          const std::vector<Row>& k_pe, double scale) {
  std::vector<Row> rows;
  for (std::size_t t = 0; t < latents.size(); ++t) {
    rows.push_back(Concatenated(latents[t], k_pe[t]));
  }
  return w_uv.Times(Attend(Concatenated(w_uk.TransposedTimes(q_nope), q_pe), rows, latents, scale));
}

}  // namespace lariat::reference
