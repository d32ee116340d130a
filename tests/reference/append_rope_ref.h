// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "lariat/ops.h"
#include "reference/rope_update_ref.h"

namespace lariat::reference {

// Strides in elements of an input [tokens, heads, dim] and of a cache [blocks, rows, heads, dim].
struct InputStrides {
  std::int64_t token = 0, head = 0;
};
struct CacheStrides {
  std::int64_t block = 0, row = 0, head = 0;
};

template <class In, class Out>
struct AppendRopeCase {
  std::int64_t tokens = 0;
  int kv_heads = 1, q_heads = 0, k_dim = 2, v_dim = 2, rotary_dim = 2, block_size = 1;
  std::int64_t num_slots = 0, num_positions = 1;
  RopeStyle style = RopeStyle::kHalf;
  std::vector<int> sections;  // mrope: pairs of each of three sections; empty: one position
  bool alternating_sections = false;
  std::vector<std::uint32_t> table_choice;  // empty: one table
  std::uint32_t table_mask = 0;
  InputStrides k_strides, v_strides, q_strides;
  CacheStrides k_cache_strides, v_cache_strides;
  std::vector<typename In::Bits> k, v, q, q_out;  // q_out: what lay there before
  std::vector<F32::Bits> cos, sin;
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> positions;               // [sections, tokens]
  std::vector<typename Out::Bits> k_cache, v_cache;  // what lay there before
};

template <class In, class Out>
struct AppendRopeExpected {
  std::vector<Expected<Out>> k_cache, v_cache;
  std::vector<Expected<In>> q_out;
  // The fault with the smallest token, or none.
  FaultKind fault = FaultKind::kNone;
  std::int64_t token = 0, value = 0;
};

// The section of each pair: one behind the other, or dealt out in turns, section 0 taking the rest.
inline std::vector<int> SectionOfPairs(const std::vector<int>& sections, bool alternating,
                                       int pairs) {
  std::vector<int> of(static_cast<std::size_t>(pairs), 0);
  int pair = 0;
  for (int s = 0; s < static_cast<int>(sections.size()); ++s) {
    for (int n = 0; n < sections[static_cast<std::size_t>(s)]; ++n) {
      if (!alternating) of[static_cast<std::size_t>(pair++)] = s;
      if (alternating && s > 0) of[static_cast<std::size_t>(3 * n + s)] = s;
    }
  }
  return of;
}

// Token t's cosines or sines, one for each pair; empty: a position is out of range (then `bad`).
template <class In, class Out>
std::vector<long double> TokenTable(const AppendRopeCase<In, Out>& c,
                                    const std::vector<F32::Bits>& table, std::int64_t t,
                                    std::int64_t& bad) {
  const int pairs = c.rotary_dim / 2;
  const std::vector<int> of = SectionOfPairs(c.sections, c.alternating_sections, pairs);
  const int count = c.sections.empty() ? 1 : 3;
  for (int s = 0; s < count; ++s) {
    const std::int64_t position = c.positions[s * c.tokens + t];
    if (position >= 0 && position < c.num_positions) continue;
    bad = position;
    return {};
  }
  const bool second = !c.table_choice.empty() && (c.table_choice[t] & c.table_mask) != 0;
  std::vector<long double> values;
  for (int i = 0; i < pairs; ++i) {
    const std::int64_t position = c.positions[of[i] * c.tokens + t];
    values.push_back(F32::Decode(table[(position + (second ? c.num_positions : 0)) * pairs + i]));
  }
  return values;
}

template <class In, class Out>
AppendRopeExpected<In, Out> AppendRope(const AppendRopeCase<In, Out>& c) {
  AppendRopeExpected<In, Out> e;
  for (const auto bits : c.k_cache) e.k_cache.push_back(MovedBits<Out>(bits));
  for (const auto bits : c.v_cache) e.v_cache.push_back(MovedBits<Out>(bits));
  for (const auto bits : c.q_out) e.q_out.push_back(MovedBits<In>(bits));
  const auto fault = [&](FaultKind kind, std::int64_t token, std::int64_t value) {
    if (e.fault != FaultKind::kNone) return;  // tokens come in order
    e.fault = kind;
    e.token = token;
    e.value = value;
  };
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t slot = c.slots[t];
    std::int64_t position = 0;  // the first that is out of range
    std::vector<long double> cos, sin;
    if (c.rotary_dim > 0) {
      cos = TokenTable(c, c.cos, t, position);
      sin = TokenTable(c, c.sin, t, position);
    }
    const bool in_table = c.rotary_dim == 0 || !cos.empty();
    if (slot >= c.num_slots) fault(FaultKind::kSlot, t, slot);
    if (!in_table && (slot >= 0 || c.q_heads > 0)) fault(FaultKind::kPosition, t, position);

    const int rotary_dim = in_table ? c.rotary_dim : 0;
    for (int h = 0; h < c.q_heads; ++h) {
      const std::int64_t at = t * c.q_strides.token + h * c.q_strides.head;
      const auto turned =
          RotatedHead<In, In>(c.q.data() + at, c.k_dim, rotary_dim, c.style, cos, sin);
      for (int d = 0; d < c.k_dim; ++d) e.q_out[at + d] = turned[d];
    }
    if (slot < 0 || slot >= c.num_slots || !in_table) continue;
    const std::int64_t block = slot / c.block_size;
    const std::int64_t row = slot % c.block_size;
    for (int h = 0; h < c.kv_heads; ++h) {
      const std::int64_t k_from = t * c.k_strides.token + h * c.k_strides.head;
      const std::int64_t v_from = t * c.v_strides.token + h * c.v_strides.head;
      const CacheStrides& ks = c.k_cache_strides;
      const CacheStrides& vs = c.v_cache_strides;
      const std::int64_t k_to = block * ks.block + row * ks.row + h * ks.head;
      const std::int64_t v_to = block * vs.block + row * vs.row + h * vs.head;
      const auto turned =
          RotatedHead<In, Out>(c.k.data() + k_from, c.k_dim, rotary_dim, c.style, cos, sin);
      for (int d = 0; d < c.k_dim; ++d) e.k_cache[k_to + d] = turned[d];
      for (int d = 0; d < c.v_dim; ++d) e.v_cache[v_to + d] = Moved<In, Out>(c.v[v_from + d]);
    }
  }
  return e;
}

}  // namespace lariat::reference
