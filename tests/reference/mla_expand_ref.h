// SPDX-License-Identifier: Apache-2.0
// MlaExpand as its definition reads, one element after another in double, and how far from it a sum
// in fp32 may end. Shares nothing with src/.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "lariat/ops.h"
#include "reference/formats.h"

namespace lariat::reference {

template <class F>
struct MlaExpandCase {
  using Bits = typename F::Bits;
  std::int64_t tokens = 0;
  int heads = 1, rank = 1, rope_dim = 0, nope_dim = 0, v_dim = 0;
  bool transposed = false;  // w lies as [rank, heads * (nope_dim + v_dim)]
  bool tf32 = false;        // inputs of products may be rounded to TF32 first
  std::int64_t w_stride = 0;
  std::vector<Bits> w;
  std::vector<std::int32_t> cu_tokens = {0};
  std::vector<std::int32_t> starts;  // empty: all 0
  std::vector<std::int32_t> block_table;
  std::int64_t table_stride = 1, num_blocks = 0;
  int block_size = 1;
  std::int64_t block_stride = 0, row_stride = 0;
  std::vector<Bits> cache;
  std::int64_t k_stride = 0, v_stride = 0;
  std::vector<Bits> k, v;  // what lay there before

  int ranges() const { return static_cast<int>(cu_tokens.size()) - 1; }
  int key() const { return nope_dim + rope_dim; }
};

// An element of an output: bits that were moved (or not touched), or a sum of products.
template <class F>
struct MlaElement {
  bool moved = true;
  typename F::Bits bits = 0;
  double value = 0;
  double bound = 0;  // of |stored - value|
};

template <class F>
struct MlaExpandExpected {
  std::vector<MlaElement<F>> k, v;
  // The fault with the smallest output row, or none.
  FaultKind fault = FaultKind::kNone;
  std::int64_t row = 0, value = 0;
};

// A sum of n products and what its fp32 evaluation may be off by (docs/numerics.md, "Products"):
// 6 u sqrt((n + 3) / 2) times the root of the sum of the squared products.
struct ProductSum {
  double value = 0, squares = 0;
  int count = 0;
  void Add(double a, double b) {
    value += a * b;
    squares += a * b * a * b;
    ++count;
  }
  double SumBound() const {
    return 6 * std::ldexp(1.0, -24) * std::sqrt((count + 3) / 2.0) * std::sqrt(squares);
  }
  // More, where both inputs of each product may be cut to 11 bits.
  double Tf32Bound() const {
    return std::ldexp(1.0, -10) * (std::fabs(value) + 6 * std::sqrt(squares));
  }
};

template <class F>
MlaElement<F> Stored(const ProductSum& sum, bool tf32) {
  MlaElement<F> element;
  element.moved = false;
  element.value = sum.value;
  element.bound = sum.SumBound() + (tf32 ? sum.Tf32Bound() : 0);
  if (F::kDType != DType::kFP32) {  // rounded once more
    element.bound +=
        static_cast<double>(F::UnitRoundoff()) * (std::fabs(sum.value) + element.bound) +
        static_cast<double>(F::Underflow());
  }
  return element;
}

template <class F>
std::vector<double> DecodeAll(const std::vector<typename F::Bits>& bits) {
  std::vector<double> values;
  values.reserve(bits.size());
  std::vector<double> table;  // of all 16-bit values, where there are more than those to decode
  if (sizeof(typename F::Bits) == 2 && bits.size() > 65536) {
    for (std::uint32_t b = 0; b < 65536; ++b) {
      table.push_back(static_cast<double>(F::Decode(static_cast<typename F::Bits>(b))));
    }
  }
  for (const auto b : bits) {
    values.push_back(table.empty() ? static_cast<double>(F::Decode(b)) : table[b]);
  }
  return values;
}

// Where output row t lies in the cache; below 0: it has no row. Notes the first fault.
template <class F>
std::int64_t FindCacheRow(const MlaExpandCase<F>& c, std::int64_t t,
                          MlaExpandExpected<F>& expected) {
  const auto fail = [&](FaultKind kind, std::int64_t value) {
    if (expected.fault == FaultKind::kNone) {
      expected.fault = kind;
      expected.row = t;
      expected.value = value;
    }
    return std::int64_t{-1};
  };
  for (int r = 0; r < c.ranges(); ++r) {
    const auto range = static_cast<std::size_t>(r);
    if (t < c.cu_tokens[range] || t >= c.cu_tokens[range + 1]) continue;
    const std::int64_t start = c.starts.empty() ? 0 : c.starts[range];
    const std::int64_t token = start + (t - c.cu_tokens[range]);
    if (token < 0 || token >= c.table_stride * c.block_size) {
      return fail(FaultKind::kPosition, token);
    }
    const std::int64_t entry = r * c.table_stride + token / c.block_size;
    const std::int64_t block = c.block_table[static_cast<std::size_t>(entry)];
    if (block < 0 || block >= c.num_blocks) return fail(FaultKind::kSlot, block);
    return block * c.block_stride + token % c.block_size * c.row_stride;
  }
  return -1;
}

// Element (output, input) of kv_b_proj.
template <class F>
std::size_t WeightAt(const MlaExpandCase<F>& c, std::int64_t output, std::int64_t input) {
  return static_cast<std::size_t>(c.transposed ? input * c.w_stride + output
                                               : output * c.w_stride + input);
}

template <class F>
MlaExpandExpected<F> MlaExpand(const MlaExpandCase<F>& c) {
  using Bits = typename F::Bits;
  MlaExpandExpected<F> expected;
  for (const Bits bits : c.k) expected.k.push_back({true, bits, 0, 0});
  for (const Bits bits : c.v) expected.v.push_back({true, bits, 0, 0});
  const std::vector<double> w = DecodeAll<F>(c.w);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t row = FindCacheRow(c, t, expected);
    std::vector<Bits> bits(static_cast<std::size_t>(c.rank + c.rope_dim), Bits{0});
    if (row >= 0) std::copy_n(c.cache.begin() + row, bits.size(), bits.begin());
    const std::vector<double> latent = DecodeAll<F>(bits);
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t first = h * (c.nope_dim + c.v_dim);
      for (int i = 0; i < c.nope_dim + c.v_dim; ++i) {
        ProductSum sum;
        for (int j = 0; j < c.rank; ++j) {
          sum.Add(w[WeightAt(c, first + i, j)], latent[static_cast<std::size_t>(j)]);
        }
        const bool key = i < c.nope_dim;
        const std::int64_t at = key ? t * c.k_stride + h * c.key() + i
                                    : t * c.v_stride + h * c.v_dim + (i - c.nope_dim);
        (key ? expected.k : expected.v)[static_cast<std::size_t>(at)] = Stored<F>(sum, c.tf32);
      }
      for (int i = 0; i < c.rope_dim; ++i) {
        const std::int64_t at = t * c.k_stride + h * c.key() + c.nope_dim + i;
        expected.k[static_cast<std::size_t>(at)].bits = bits[static_cast<std::size_t>(c.rank + i)];
      }
    }
  }
  return expected;
}

}  // namespace lariat::reference
