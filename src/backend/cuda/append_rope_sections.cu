// SPDX-License-Identifier: Apache-2.0
// AppendRope where a pair has more to it than one position: three of them (mrope), or an order of
// elements that changes on the way (kInterleavedToHalf).
//
// One thread a pair, 64-bit strides, no vectors: what append_rope.cu does in its general form, and
// what its fast form need not carry. Traffic is the same, accesses are 2 or 4 bytes wide, so large
// calls are bound by the number of accesses rather than by memory.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"
#include "backend/sections.h"
#include "base/float16.h"

namespace lariat::cuda {
namespace {

constexpr int kThreads = 256;

// A token's slot, the rows of its tables, and what may be done with them.
struct Token {
  std::int64_t index = 0;
  std::int64_t slot = 0;
  std::int64_t rows[3] = {0, 0, 0};  // elements from the table's begin
  std::int64_t bad_position = 0;
  bool in_table = true;
  bool stores = false;
};

__device__ __forceinline__ Token ReadToken(const AppendRopeParams& p, std::int64_t index) {
  Token token;
  token.index = index;
  token.slot = p.slots[index];
  if (p.rotary_dim > 0) {
    const bool second = p.table_choice != nullptr && (p.table_choice[index] & p.table_mask) != 0;
    for (int section = p.position_sections - 1; section >= 0; --section) {
      const std::int64_t position = p.positions[section * p.section_stride + index];
      if (position < 0 || position >= p.num_positions) {
        token.in_table = false;
        token.bad_position = position;
      }
      token.rows[section] = (position + (second ? p.num_positions : 0)) * (p.rotary_dim / 2);
    }
  }
  token.stores = token.slot >= 0 && token.slot < p.num_slots && token.in_table;
  return token;
}

__device__ __forceinline__ void Report(const AppendRopeParams& p, const Token& token) {
  const bool slot_bad = token.slot >= p.num_slots;
  const bool position_bad = !token.in_table && (token.slot >= 0 || p.q_heads > 0);
  if (!slot_bad && !position_bad) return;
  FaultRecord* record = p.fault_indirect != nullptr ? *p.fault_indirect : p.fault;
  if (record == nullptr) return;
  RecordFault(record, slot_bad ? FaultKind::kSlot : FaultKind::kPosition, token.index,
              slot_bad ? token.slot : token.bad_position);
}

// Bytes where the type stays, else converted.
template <class Out, class In>
__device__ __forceinline__ Out Moved(In value) {
  if constexpr (std::is_same_v<In, Out>) {
    return value;
  } else {
    return Element<Out>::Store(Element<In>::Load(value));
  }
}

// Turns or moves pair `pair` of one head.
template <class In, class Out>
__device__ __forceinline__ void DoPair(const AppendRopeParams& p, const Token& token,
                                       const In* from, Out* to, int pair) {
  const int pairs = p.rotary_dim / 2;
  if (pair >= pairs || !token.in_table) {
    to[2 * pair] = Moved<Out>(from[2 * pair]);
    to[2 * pair + 1] = Moved<Out>(from[2 * pair + 1]);
    return;
  }
  const bool in_half = p.style == RopeStyle::kHalf;
  const bool out_half = p.style != RopeStyle::kInterleaved;
  const int section =
      p.position_sections == 1 ? 0 : SectionOf(p.section_pairs, p.section_layout, pair);
  const std::int64_t at = token.rows[section] + pair;
  const float x = Element<In>::Load(from[in_half ? pair : 2 * pair]);
  const float y = Element<In>::Load(from[in_half ? pair + pairs : 2 * pair + 1]);
  const float c = p.cos[at];
  const float s = p.sin[at];
  // The intrinsics keep the compiler from fusing a product with the sum.
  to[out_half ? pair : 2 * pair] =
      Element<Out>::Store(__fadd_rn(__fmul_rn(x, c), -__fmul_rn(y, s)));
  to[out_half ? pair + pairs : 2 * pair + 1] =
      Element<Out>::Store(__fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
}

// Grid: (units / kThreads, tokens by y and z). A unit is a pair of K, then of V, then of Q.
template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    AppendRopeSectionsKernel(const __grid_constant__ AppendRopeParams p) {
  const std::int64_t index = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  if (index >= p.num_tokens) return;
  const Token token = ReadToken(p, index);
  if (blockIdx.x == 0 && threadIdx.x == 0) Report(p, token);

  const int k_pairs = p.k_dim / 2;
  const int v_pairs = p.v_dim / 2;
  std::int64_t unit = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t block = token.stores ? token.slot / p.block_size : 0;
  const std::int64_t row = token.stores ? token.slot % p.block_size : 0;
  if (unit < std::int64_t{p.kv_heads} * k_pairs) {
    if (!token.stores) return;
    const std::int64_t head = unit / k_pairs;
    DoPair(p, token,
           static_cast<const In*>(p.k) + index * p.k_token_stride + head * p.k_head_stride,
           static_cast<Out*>(p.k_cache) + block * p.k_block_stride + row * p.k_row_stride +
               head * p.k_cache_head_stride,
           static_cast<int>(unit % k_pairs));
    return;
  }
  unit -= std::int64_t{p.kv_heads} * k_pairs;
  if (unit < std::int64_t{p.kv_heads} * v_pairs) {
    if (!token.stores) return;
    const std::int64_t head = unit / v_pairs;
    const std::int64_t at = 2 * (unit % v_pairs);
    const In* from =
        static_cast<const In*>(p.v) + index * p.v_token_stride + head * p.v_head_stride + at;
    Out* to = static_cast<Out*>(p.v_cache) + block * p.v_block_stride + row * p.v_row_stride +
              head * p.v_cache_head_stride + at;
    to[0] = Moved<Out>(from[0]);
    to[1] = Moved<Out>(from[1]);
    return;
  }
  unit -= std::int64_t{p.kv_heads} * v_pairs;
  if (unit >= std::int64_t{p.q_heads} * k_pairs) return;
  const std::int64_t at = index * p.q_token_stride + unit / k_pairs * p.q_head_stride;
  DoPair(p, token, static_cast<const In*>(p.q) + at, static_cast<In*>(p.q_out) + at,
         static_cast<int>(unit % k_pairs));
}

}  // namespace

cudaError_t AppendRopeSections(const AppendRopeParams& p, cudaStream_t stream) {
  const std::int64_t units = std::int64_t{p.kv_heads} * (p.k_dim / 2 + p.v_dim / 2) +
                             std::int64_t{p.q_heads} * (p.k_dim / 2);
  const std::int64_t y = std::min<std::int64_t>(p.num_tokens, 32768);
  const dim3 grid(static_cast<std::uint32_t>((units + kThreads - 1) / kThreads),
                  static_cast<std::uint32_t>(y),
                  static_cast<std::uint32_t>((p.num_tokens + y - 1) / y));
  return WithAppendTypes(p.in_dtype, p.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return Launch(AppendRopeSectionsKernel<In, Out>, grid, dim3(kThreads), stream, p);
  });
}

}  // namespace lariat::cuda
