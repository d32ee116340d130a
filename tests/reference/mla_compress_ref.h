// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/formats.h"

namespace lariat::reference {

// A matrix in memory, row by row; what lies between the rows is poison.
template <class F>
struct Rows {
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::vector<typename F::Bits> bits;

  std::vector<double> Decode() const {
    std::vector<double> values(static_cast<std::size_t>(rows * columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        values[static_cast<std::size_t>(r * columns + c)] =
            static_cast<double>(F::Decode(bits[static_cast<std::size_t>(r * stride + c)]));
      }
    }
    return values;
  }
};

// One call of MlaCompress. Weights lie as [inputs, outputs] where in_out, else as its transpose.
template <class F>
struct MlaCompressCase {
  std::int64_t tokens = 0;
  int model_dim = 0, rank = 0, heads = 0, k_dim = 0, v_dim = 0;
  bool in_out = true;
  bool tf32 = false;
  Rows<F> hidden, w_down, w_up_k, w_up_v;
};

// How products round (docs/numerics.md, MlaCompress), by type alone: 16-bit types and TF32 may go
// to tensor cores, whose sums are truncated.
struct ProductRounding {
  double sum = 0;  // of each addition, relative to the partial sum
  double factors =
      0;             // of each product: half the range that its relative error has, and its middle
  double store = 0;  // to the type; fp32 sums are stored as they are
  double underflow = 0;

  template <class F>
  static ProductRounding Of(bool tf32) {
    const bool wide = F::kDType == DType::kFP32;
    ProductRounding r;
    r.sum = std::ldexp(1.0, wide && !tf32 ? -24 : -22);
    r.factors = wide && tf32 ? std::ldexp(1.0, -10) : 0;
    r.store = wide ? 0 : static_cast<double>(F::UnitRoundoff());
    r.underflow = wide ? 0 : static_cast<double>(F::Underflow());
    return r;
  }
};

// A result without rounding, and how far off one may be that is rounded.
struct Bounded {
  double value = 0;
  double bound = 0;
};

// The error of a value before it is stored: the sum of the squared sizes of the errors that make it
// up, and the sum of their sizes, which it cannot exceed.
struct Spread {
  double variance = 0;
  double most = 0;
};

// Hoeffding: independent errors of sizes e_i sum to more than lambda sqrt(sum of e_i^2) with a
// probability of at most 2 exp(-lambda^2 / 2) = 3e-14.
inline constexpr double kLambda = 8;

// bias: how far off the errors' mean may move a value, relatively.
inline Bounded Stored(double value, const Spread& spread, double bias, const ProductRounding& r) {
  const double error =
      std::min(kLambda * std::sqrt(spread.variance) + bias * std::fabs(value), spread.most);
  const double bound = error + r.store * (std::fabs(value) + error) + r.underflow;
  return {value, 1.001 * bound};  // errors of errors
}

// Rows of the latent without rounding, and how far off those are that the up-projections take.
struct LatentRows {
  std::vector<double> values;
  std::vector<Spread> sums;  // of the down-projection
  std::vector<Spread> used;  // and of the latent's own rounding
};

// W as [inputs, outputs].
template <class F>
std::vector<double> InOut(const Rows<F>& w, bool in_out) {
  std::vector<double> values = w.Decode();
  if (in_out) return values;
  std::vector<double> turned(values.size());
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t c = 0; c < w.columns; ++c) {
      turned[static_cast<std::size_t>(c * w.rows + r)] =
          values[static_cast<std::size_t>(r * w.columns + c)];
    }
  }
  return turned;
}

// out[t, c] = sum over i of f(a[t, i]) g(w[i, c]).
template <class Left, class Right>
std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& w,
                            std::int64_t rows, std::int64_t inner, std::int64_t columns, Left left,
                            Right right) {
  std::vector<double> out(static_cast<std::size_t>(rows * columns));
  for (std::int64_t t = 0; t < rows; ++t) {
    double* const sums = out.data() + t * columns;
    for (std::int64_t i = 0; i < inner; ++i) {
      const double x = left(a[static_cast<std::size_t>(t * inner + i)]);
      const double* const row = w.data() + i * columns;
      for (std::int64_t c = 0; c < columns; ++c) sums[c] += x * right(row[c]);
    }
  }
  return out;
}

inline double Same(double x) { return x; }
inline double Size(double x) { return std::fabs(x); }
inline double Square(double x) { return x * x; }

template <class F>
LatentRows LatentOf(const MlaCompressCase<F>& c) {
  const ProductRounding r = ProductRounding::Of<F>(c.tf32);
  const std::vector<double> hidden = c.hidden.Decode();
  const std::vector<double> w = InOut(c.w_down, c.in_out);
  const auto product = [&](auto f) {
    return Product(hidden, w, c.tokens, c.model_dim, c.rank, f, f);
  };
  LatentRows out;
  out.values = product(Same);
  const std::vector<double> sizes = product(Size), squares = product(Square);
  const double n = c.model_dim;
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    const double value = std::fabs(out.values[i]);
    Spread s;
    s.variance = (n * r.sum * r.sum + r.factors * r.factors) * squares[i];
    s.most = (n * r.sum + 2 * r.factors) * sizes[i];
    out.sums.push_back(s);
    const double own = r.store * value + r.underflow;
    out.used.push_back({s.variance + own * own, s.most + own});
  }
  return out;
}

// The latent as an output.
template <class F>
std::vector<Bounded> LatentBounds(const MlaCompressCase<F>& c, const LatentRows& latent) {
  const ProductRounding r = ProductRounding::Of<F>(c.tf32);
  std::vector<Bounded> out;
  for (std::size_t i = 0; i < latent.values.size(); ++i) {
    out.push_back(Stored(latent.values[i], latent.sums[i], 2 * r.factors, r));
  }
  return out;
}

// A latent that is known to the bit: what the operation has put out.
template <class F>
LatentRows KnownLatent(const MlaCompressCase<F>& c, const Rows<F>& bits) {
  LatentRows out;
  out.values = bits.Decode();
  out.sums.resize(static_cast<std::size_t>(c.tokens * c.rank));
  out.used.resize(out.sums.size());
  return out;
}

// Keys (w = w_up_k) or values of that latent, [tokens, heads * width].
template <class F>
std::vector<Bounded> UpBounds(const MlaCompressCase<F>& c, const LatentRows& latent,
                              const Rows<F>& up, int width) {
  const ProductRounding r = ProductRounding::Of<F>(c.tf32);
  const std::int64_t columns = std::int64_t{c.heads} * width;
  const std::vector<double> w = InOut(up, c.in_out);
  const double n = c.rank;
  std::vector<double> variances, mosts;
  for (std::size_t i = 0; i < latent.values.size(); ++i) {
    const double value = std::fabs(latent.values[i]);
    variances.push_back(latent.used[i].variance +
                        (n * r.sum * r.sum + r.factors * r.factors) * value * value);
    mosts.push_back(latent.used[i].most + (n * r.sum + 2 * r.factors) * value);
  }
  const auto product = [&](const std::vector<double>& a, auto f) {
    return Product(a, w, c.tokens, c.rank, columns, Same, f);
  };
  const std::vector<double> values = product(latent.values, Same);
  const std::vector<double> variance = product(variances, Square), most = product(mosts, Size);
  std::vector<Bounded> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    out.push_back(Stored(values[i], {variance[i], most[i]}, 4 * r.factors, r));
  }
  return out;
}

// What an error may be against the RMS of its row, for rows wide enough to have one: to first
// order, where the terms of a sum are of one size.
template <class F>
double RowBound(const MlaCompressCase<F>& c, double value, double row_rms) {
  const ProductRounding r = ProductRounding::Of<F>(c.tf32);
  const double n = c.model_dim + c.rank;
  const double spread =
      kLambda * std::sqrt(r.store * r.store + n * r.sum * r.sum + 2 * r.factors * r.factors);
  return spread * row_rms + (r.store + 4 * r.factors) * std::fabs(value) + r.underflow;
}

}  // namespace lariat::reference
