// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/rotation_ref.h"

namespace lariat::reference {

template <class F, class TableFormat>
struct RopeUpdateCase {
  using Bits = typename F::Bits;
  std::int64_t batch = 0, new_tokens = 0, cache_len = 0;
  int heads = 1, head_dim = 2, rotary_dim = 2;
  RopeStyle style = RopeStyle::kInterleaved;
  std::vector<Bits> k_new, v_new, cache_k, cache_v;
  std::vector<typename TableFormat::Bits> cos, sin;
  std::vector<std::int32_t> positions;
};

template <class Table>
std::vector<long double> TableRow(const std::vector<typename Table::Bits>& table,
                                  std::int64_t position, int pairs) {
  std::vector<long double> row(static_cast<std::size_t>(pairs));
  for (int i = 0; i < pairs; ++i) row[i] = Table::Decode(table[position * pairs + i]);
  return row;
}

// The sequential loop: copy the cache, then put the tokens in one after the other.
template <class F, class Table>
std::vector<Expected<F>> RopeUpdate(const RopeUpdateCase<F, Table>& c) {
  const std::int64_t row = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t half = c.batch * c.cache_len * row;
  std::vector<Expected<F>> out;
  out.reserve(static_cast<std::size_t>(2 * half));
  for (const auto bits : c.cache_k) out.push_back(MovedBits<F>(bits));
  for (const auto bits : c.cache_v) out.push_back(MovedBits<F>(bits));
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t t = 0; t < c.new_tokens; ++t) {
      const std::int64_t from = (b * c.new_tokens + t) * row;
      const std::int64_t position = c.positions[b * c.new_tokens + t];
      if (position < 0 || position >= c.cache_len) continue;
      const std::int64_t to = (b * c.cache_len + position) * row;
      const auto cos = TableRow<Table>(c.cos, position, c.rotary_dim / 2);
      const auto sin = TableRow<Table>(c.sin, position, c.rotary_dim / 2);
      for (std::int64_t head = 0; head < row; head += c.head_dim) {
        const auto turned = RotatedHead<F, F>(c.k_new.data() + from + head, c.head_dim,
                                              c.rotary_dim, c.style, cos, sin);
        for (int e = 0; e < c.head_dim; ++e) out[to + head + e] = turned[e];
      }
      for (std::int64_t e = 0; e < row; ++e) out[half + to + e] = MovedBits<F>(c.v_new[from + e]);
    }
  }
  return out;
}

}  // namespace lariat::reference
