// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "reference/mla_append_ref.h"
#include "reference/mla_expand_ref.h"

namespace lariat::reference {

// MlaAppend from hidden: the case without its rows, and what they are projected from.
template <class In, class Out>
struct MlaHiddenCase {
  MlaAppendCase<In, Out> append;
  int model_dim = 1;
  bool transposed = false;  // w lies as [model_dim, rank + rope_dim]
  bool tf32 = false;        // inputs of products may be rounded to TF32 first
  std::int64_t hidden_stride = 1, w_stride = 1;
  std::vector<typename In::Bits> hidden, w;
};

// A number, and how far from it what stands in its place may be.
struct Near {
  long double value = 0;
  long double error = 0;
};

// Row t of the down-projection, rounded once to the input's type.
template <class In, class Out>
std::vector<Near> ProjectedRow(const MlaHiddenCase<In, Out>& c, const std::vector<double>& hidden,
                               const std::vector<double>& w, std::int64_t t) {
  std::vector<Near> row;
  for (std::int64_t column = 0; column < c.append.rank + c.append.rope_dim; ++column) {
    ProductSum sum;
    for (std::int64_t k = 0; k < c.model_dim; ++k) {
      sum.Add(hidden[static_cast<std::size_t>(t * c.hidden_stride + k)],
              w[static_cast<std::size_t>(c.transposed ? k * c.w_stride + column
                                                      : column * c.w_stride + k)]);
    }
    const MlaElement<In> element = Stored<In>(sum, c.tf32);
    row.push_back({element.value, element.bound});
  }
  return row;
}

// Rounded once to the stored type.
template <class Out>
Near StoredOnce(Near n) {
  if constexpr (!std::is_same_v<Out, F32>) {
    n.error += Out::UnitRoundoff() * (std::fabs(n.value) + n.error) + Out::Underflow();
  }
  return n;
}

// The norm of a latent that is known but for an error of each element (docs/numerics.md,
// "MlaAppend"): the root of mean + eps is 1-Lipschitz in the root mean square, so it is off by at
// most that of the errors.
template <class Out>
std::vector<Near> NormedNear(const std::vector<Near>& x, const std::vector<long double>& weight,
                             long double eps) {
  const auto n = static_cast<long double>(x.size());
  long double squares = 0, errors = 0;
  for (const Near& element : x) {
    squares += element.value * element.value;
    errors += element.error * element.error;
  }
  const long double root = std::sqrt(squares / n + eps);
  const long double root_error = std::sqrt(errors / n);
  const long double least = std::max(root - root_error, 0.0L);
  const long double steps = (Additions(x.size()) + 3) / 2 + 4;
  const long double relative = steps * F32::UnitRoundoff() * (1 + steps * F32::UnitRoundoff());
  std::vector<Near> result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Near y;
    y.value = x[i].value / root * weight[i];
    y.error = std::fabs(weight[i]) *
              (x[i].error / least + std::fabs(x[i].value) * root_error / (root * least));
    y.error +=
        relative * (std::fabs(y.value) + y.error) + F32::Underflow() * (std::fabs(weight[i]) + 1);
    result.push_back(StoredOnce<Out>(y));
  }
  return result;
}

// k_pe: the errors of a pair turn with it; two products and a sum round.
template <class In, class Out>
std::vector<Near> TurnedNear(const MlaAppendCase<In, Out>& c, const std::vector<Near>& x,
                             std::int64_t t) {
  std::vector<Near> result;
  const bool moves = std::is_same_v<In, Out>;
  for (const Near& element : x) result.push_back(moves ? element : StoredOnce<Out>(element));
  const int pairs = c.rotary_dim / 2;
  const auto turned = [&](Near a, long double p, int sign, Near b, long double q) {
    Near y{a.value * p + sign * b.value * q, a.error * std::fabs(p) + b.error * std::fabs(q)};
    const long double size = std::fabs(a.value * p) + std::fabs(b.value * q) + y.error;
    y.error += 2.001L * F32::UnitRoundoff() * size + 3 * F32::Underflow();
    return StoredOnce<Out>(y);
  };
  for (int i = 0; i < pairs; ++i) {
    const bool in_half = c.style == RopeStyle::kHalf;
    const bool out_half = c.style != RopeStyle::kInterleaved;
    const auto at = static_cast<std::size_t>(std::int64_t{c.positions[t]} * pairs + i);
    const long double cos = F32::Decode(c.cos[at]), sin = F32::Decode(c.sin[at]);
    const Near a = x[static_cast<std::size_t>(in_half ? i : 2 * i)];
    const Near b = x[static_cast<std::size_t>(in_half ? i + pairs : 2 * i + 1)];
    result[static_cast<std::size_t>(out_half ? i : 2 * i)] = turned(a, cos, -1, b, sin);
    result[static_cast<std::size_t>(out_half ? i + pairs : 2 * i + 1)] = turned(a, sin, +1, b, cos);
  }
  return result;
}

// The row of token t. REQUIRES: one table; the token's position is in it.
template <class In, class Out>
std::vector<Near> MlaHiddenRow(const MlaHiddenCase<In, Out>& c, const std::vector<double>& hidden,
                               const std::vector<double>& w, std::int64_t t) {
  const std::vector<Near> row = ProjectedRow(c, hidden, w, t);
  const std::vector<Near> latent(row.begin(), row.begin() + c.append.rank);
  const std::vector<Near> key(row.begin() + c.append.rank, row.end());
  std::vector<Near> result =
      NormedNear<Out>(latent, Decoded<In>(c.append.norm_weight.data(), c.append.rank),
                      static_cast<long double>(c.append.eps));
  const std::vector<Near> turned = TurnedNear(c.append, key, t);
  result.insert(result.end(), turned.begin(), turned.end());
  return result;
}

}  // namespace lariat::reference
