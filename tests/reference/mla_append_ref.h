// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "lariat/ops.h"
#include "reference/rotation_ref.h"

namespace lariat::reference {

template <class In, class Out>
struct MlaAppendCase {
  std::int64_t tokens = 0;
  int rank = 1, rope_dim = 0, rotary_dim = 0, block_size = 1;
  std::int64_t num_slots = 0, num_positions = 1;
  RopeStyle style = RopeStyle::kInterleaved;
  float eps = 1e-6F;
  std::vector<std::uint32_t> table_choice;  // empty: one table
  std::uint32_t table_mask = 0;
  std::int64_t c_kv_stride = 1, k_pe_stride = 0, block_stride = 1, row_stride = 1;
  std::vector<typename In::Bits> c_kv, k_pe, norm_weight;  // no weight: no norm
  std::vector<F32::Bits> cos, sin;
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> positions;
  std::vector<typename Out::Bits> cache;  // what lay there before
};

template <class Out>
struct MlaAppendExpected {
  std::vector<Expected<Out>> cache;
  // The fault with the smallest token, or none.
  FaultKind fault = FaultKind::kNone;
  std::int64_t token = 0, value = 0;
};

// The sum of squares as docs/numerics.md orders it, each operation rounded to fp32. In long double
// a product of two fp32 numbers is exact, and rounding a sum, a quotient or a root twice is
// harmless, as 64 >= 2 * 24 + 2.
inline long double SumInOrder(const std::vector<long double>& x) {
  std::array<long double, 32> p = {};
  for (std::size_t c = 0; 8 * c < x.size(); ++c) {
    long double q = 0;
    for (std::size_t i = 8 * c; i < x.size() && i < 8 * c + 8; ++i) {
      q = F32::Round(q + F32::Round(x[i] * x[i]));
    }
    p[c % 32] = F32::Round(p[c % 32] + q);
  }
  for (const std::size_t m : {16, 8, 4, 2, 1}) {
    const std::array<long double, 32> before = p;
    for (std::size_t l = 0; l < 32; ++l) p[l] = F32::Round(before[l] + before[l ^ m]);
  }
  return p[0];
}

// Additions that a square takes part in, at most: within its chunk, within its lane, across lanes.
inline long double Additions(std::size_t rank) {
  const std::size_t chunks = (rank + 7) / 8;
  return static_cast<long double>(7 + (chunks + 31) / 32 - 1 + 5);
}

// One latent after its norm. docs/numerics.md, "MlaAppend", derives the bound: with u = 2^-24 and h
// additions, mean + eps is off by at most (h + 3) u of itself, as no term is negative; its root by
// half of that and u more, its inverse by another u, and two products follow. What underflows adds
// 2^-150 a time, divided by what it is added to.
template <class In, class Out>
std::vector<Expected<Out>> NormedLatent(const std::vector<long double>& x,
                                        const std::vector<long double>& weight, float eps) {
  const auto n = static_cast<long double>(x.size());
  long double sum = 0;
  for (std::size_t i = x.size(); i-- > 0;) sum += x[i] * x[i];
  const long double inverse = 1 / std::sqrt(sum / n + eps);
  const long double u = F32::UnitRoundoff();
  const long double steps = (Additions(x.size()) + 3) / 2 + 4;
  const long double relative = steps * u * (1 + steps * u) + 2 * F32::Underflow() / (sum / n + eps);

  const long double sum_rounded = SumInOrder(x);
  const long double mean = F32::Round(F32::Round(sum_rounded / n) + eps);
  const long double factor = F32::Round(1 / F32::Round(std::sqrt(mean)));
  std::vector<Expected<Out>> result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Expected<Out> e;
    e.moved = false;
    e.rounded = Out::Round(F32::Round(F32::Round(x[i] * factor) * weight[i]));
    e.value = x[i] * inverse * weight[i];
    const long double arithmetic =
        relative * std::fabs(e.value) + F32::Underflow() * (std::fabs(weight[i]) + 1);
    const long double w = std::is_same_v<F32, Out> ? 0 : Out::UnitRoundoff();
    e.bound = arithmetic + w * (std::fabs(e.value) + arithmetic) + (w > 0 ? Out::Underflow() : 0);
    // Squares beyond fp32 make the factor 0: no error to speak of.
    if (!std::isfinite(sum_rounded)) e.value = std::numeric_limits<long double>::infinity();
    result.push_back(e);
  }
  return result;
}

template <class F>
std::vector<long double> Decoded(const typename F::Bits* bits, int count) {
  std::vector<long double> values;
  for (int i = 0; i < count; ++i) values.push_back(F::Decode(bits[i]));
  return values;
}

// The row of token t. REQUIRES: its position is in the table, where one is needed.
template <class In, class Out>
std::vector<Expected<Out>> MlaRow(const MlaAppendCase<In, Out>& c, std::int64_t t) {
  const typename In::Bits* latent = c.c_kv.data() + t * c.c_kv_stride;
  std::vector<Expected<Out>> row;
  if (c.norm_weight.empty()) {
    for (int i = 0; i < c.rank; ++i) row.push_back(Moved<In, Out>(latent[i]));
  } else {
    row = NormedLatent<In, Out>(Decoded<In>(latent, c.rank),
                                Decoded<In>(c.norm_weight.data(), c.rank), c.eps);
  }
  std::vector<long double> cos, sin;
  if (c.rotary_dim > 0) {
    const bool second = !c.table_choice.empty() && (c.table_choice[t] & c.table_mask) != 0;
    const std::int64_t at = (c.positions[t] + (second ? c.num_positions : 0)) * (c.rotary_dim / 2);
    cos = Decoded<F32>(c.cos.data() + at, c.rotary_dim / 2);
    sin = Decoded<F32>(c.sin.data() + at, c.rotary_dim / 2);
  }
  const auto key = RotatedHead<In, Out>(c.k_pe.data() + t * c.k_pe_stride, c.rope_dim, c.rotary_dim,
                                        c.style, cos, sin);
  row.insert(row.end(), key.begin(), key.end());
  return row;
}

template <class In, class Out>
MlaAppendExpected<Out> MlaAppend(const MlaAppendCase<In, Out>& c) {
  MlaAppendExpected<Out> e;
  for (const auto bits : c.cache) e.cache.push_back(MovedBits<Out>(bits));
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t slot = c.slots[t];
    if (slot < 0) continue;
    const std::int64_t position = c.rotary_dim > 0 ? c.positions[t] : 0;
    const bool in_table = position >= 0 && position < c.num_positions;
    if (slot >= c.num_slots || (c.rotary_dim > 0 && !in_table)) {
      if (e.fault != FaultKind::kNone) continue;  // tokens come in order
      e.fault = slot >= c.num_slots ? FaultKind::kSlot : FaultKind::kPosition;
      e.token = t;
      e.value = slot >= c.num_slots ? slot : position;
      continue;
    }
    const std::int64_t at =
        slot / c.block_size * c.block_stride + slot % c.block_size * c.row_stride;
    const auto row = MlaRow(c, t);
    std::copy(row.begin(), row.end(), e.cache.begin() + at);
  }
  return e;
}

}  // namespace lariat::reference
