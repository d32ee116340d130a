// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <type_traits>

#include "backend/cuda/launch.h"
#include "lariat/ops.h"

// What AppendRopeKernel (append_rope.cu) is launched with.

namespace lariat::cuda {

inline constexpr int kWidest = 8;                                  // pairs of a unit
inline constexpr std::int64_t kPinBytes = std::int64_t{16} << 20;  // traffic that pins tables

// Strides in bytes, 32 bits wide where units are several pairs, else 64.
template <int P>
using StrideOf = std::conditional_t<P == 1, std::uint64_t, std::uint32_t>;

template <class Stride>
struct AppendInput {
  const char* data;
  Stride token, head;
  __device__ __forceinline__ std::uint64_t At(std::uint32_t token_index,
                                              std::uint32_t head_index) const {
    return std::uint64_t{token_index} * token + std::uint64_t{head_index} * head;
  }
};
template <class Stride>
struct AppendCache {
  char* data;
  std::uint64_t block;
  Stride row, head;
};

template <class Stride>
struct AppendArgs {
  AppendInput<Stride> k, v, q;
  AppendCache<Stride> k_cache, v_cache;
  char* q_out;
  const std::int64_t* slots;
  const std::int32_t* positions;
  const std::uint32_t* table_choice;  // null: one table
  std::uint32_t table_mask;
  const float* cos;
  const float* sin;
  FaultRecord* fault;
  FaultRecord* const* fault_indirect;
  std::uint64_t num_slots;
  std::uint32_t num_positions;
  std::uint32_t num_tokens;
  std::uint32_t v_begin, q_begin, end;  // the units of V and Q begin there; all end there
  Divider k_units, v_units;             // per head
  std::uint32_t kv_step, q_step;        // from one head of a unit to the next
  Divider block;                        // tokens in a block
  std::int32_t rotary_pairs, v_pairs;
  bool small_slots;  // num_slots < 2^31
  bool has_q;
  bool pin_tables;
};

// Pairs of a unit: as many as keep all accesses aligned and all their numbers small. 8 are two
// pieces of 16 bytes of a 16-bit type, and 4 are that of fp32, or of pairs that lie together.
inline int UnitPairs(const AppendRopeParams& p) {
  const auto in = static_cast<std::int64_t>(SizeOf(p.in_dtype));
  const auto out = static_cast<std::int64_t>(SizeOf(p.dtype));
  if (p.k_dim % 8 != 0 || p.v_dim % 8 != 0 || p.rotary_dim % 8 != 0) return 1;
  if (!AllMultiplesOf16({p.k, p.v, p.cos, p.sin, p.k_cache, p.v_cache},
                        {p.k_block_stride * out, p.v_block_stride * out}) ||
      p.num_slots >= (std::int64_t{1} << 31)) {
    return 1;
  }
  if (p.q_heads > 0 && !AllMultiplesOf16({p.q, p.q_out}, {})) return 1;
  const std::int64_t strides[] = {p.k_token_stride * in, p.k_head_stride * in,
                                  p.v_token_stride * in, p.v_head_stride * in,
                                  p.q_token_stride * in, p.q_head_stride * in,
                                  p.k_row_stride * out,  p.k_cache_head_stride * out,
                                  p.v_row_stride * out,  p.v_cache_head_stride * out};
  if (!std::all_of(std::begin(strides), std::end(strides), [](std::int64_t stride) {
        return stride % 16 == 0 && stride < (std::int64_t{1} << 32);
      })) {
    return 1;
  }
  const bool widest = p.style == RopeStyle::kHalf && in == 2 && p.k_dim % 16 == 0 &&
                      p.v_dim % 16 == 0 && p.rotary_dim % 16 == 0;
  return widest ? kWidest : 4;
}

// Bytes of rows read and written.
inline std::int64_t TrafficOf(const AppendRopeParams& p) {
  const auto in = static_cast<std::int64_t>(SizeOf(p.in_dtype));
  const auto out = static_cast<std::int64_t>(SizeOf(p.dtype));
  return p.num_tokens * (std::int64_t{p.kv_heads} * (p.k_dim + p.v_dim) * (in + out) +
                         std::int64_t{p.q_heads} * p.k_dim * 2 * in);
}

template <class Stride>
AppendArgs<Stride> MakeAppendArgs(const AppendRopeParams& p, int pairs_per_unit,
                                  int heads_per_unit) {
  const auto in = [&](std::int64_t elements) {
    return static_cast<Stride>(elements * static_cast<std::int64_t>(SizeOf(p.in_dtype)));
  };
  const auto out = [&](std::int64_t elements) {
    return static_cast<Stride>(elements * static_cast<std::int64_t>(SizeOf(p.dtype)));
  };
  const auto bytes = [](const void* memory) { return static_cast<const char*>(memory); };
  const std::uint64_t element = SizeOf(p.dtype);
  AppendArgs<Stride> a = {};
  a.k = {bytes(p.k), in(p.k_token_stride), in(p.k_head_stride)};
  a.v = {bytes(p.v), in(p.v_token_stride), in(p.v_head_stride)};
  a.q = {bytes(p.q), in(p.q_token_stride), in(p.q_head_stride)};
  a.k_cache = {static_cast<char*>(p.k_cache),
               static_cast<std::uint64_t>(p.k_block_stride) * element, out(p.k_row_stride),
               out(p.k_cache_head_stride)};
  a.v_cache = {static_cast<char*>(p.v_cache),
               static_cast<std::uint64_t>(p.v_block_stride) * element, out(p.v_row_stride),
               out(p.v_cache_head_stride)};
  a.q_out = static_cast<char*>(p.q_out);
  a.slots = p.slots;
  a.positions = p.positions;
  a.table_choice = p.rotary_dim > 0 ? p.table_choice : nullptr;
  a.table_mask = p.table_mask;
  a.cos = p.cos;
  a.sin = p.sin;
  a.fault = p.fault;
  a.fault_indirect = p.fault_indirect;
  a.num_slots = static_cast<std::uint64_t>(p.num_slots);
  // Positions are int32: what is negative lies beyond 2^31 as an unsigned number.
  a.num_positions =
      static_cast<std::uint32_t>(std::min<std::int64_t>(p.num_positions, std::int64_t{1} << 31));
  a.num_tokens = static_cast<std::uint32_t>(p.num_tokens);
  const auto width = static_cast<std::uint32_t>(2 * pairs_per_unit);
  const std::uint32_t k_units = static_cast<std::uint32_t>(p.k_dim) / width;
  const std::uint32_t v_units = static_cast<std::uint32_t>(p.v_dim) / width;
  a.k_units = Divider(k_units);
  a.v_units = Divider(v_units);
  a.kv_step = static_cast<std::uint32_t>(p.kv_heads / heads_per_unit);
  a.q_step = static_cast<std::uint32_t>(p.q_heads / heads_per_unit);
  a.v_begin = a.kv_step * k_units;
  a.q_begin = a.v_begin + a.kv_step * v_units;
  a.end = a.q_begin + a.q_step * k_units;
  a.block = Divider(static_cast<std::uint32_t>(p.block_size));
  a.rotary_pairs = p.rotary_dim / 2;
  a.v_pairs = p.v_dim / 2;
  a.small_slots = p.num_slots < (std::int64_t{1} << 31);
  a.has_q = p.q_heads > 0;
  a.pin_tables = TrafficOf(p) >= kPinBytes;
  return a;
}

}  // namespace lariat::cuda
