// SPDX-License-Identifier: Apache-2.0
// AppendRope: rotate K (and Q) rows, store K and V rows at their slots.
//
// The work is memory traffic, so each thread does one small piece and there are as many threads as
// pieces: a unit is P pairs (P = 4: 16 bytes of a 16-bit type) of one head. The units of a token
// lie in a row, K heads, then V heads, then Q heads; a thread's x index picks its unit, so K and V
// are mostly in warps of their own. A token's slot and position are loaded by each of its threads
// (one broadcast per warp) together with the data, which does not depend on them.
//
// cos and sin are read through an L2 policy that keeps them while the streams pass by, in calls
// large enough for that to matter (8 % at 65536 tokens); small calls do not pin anything.
#include "backend/cuda/element.cuh"
#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kPinBytes = std::int64_t{16} << 20;  // traffic from which tables are pinned

// Strides in elements.
struct Input {
  const void* data;
  std::int64_t token_stride, head_stride;
};
struct Cache {
  void* data;
  std::int64_t block_stride, row_stride, head_stride;
};

struct Args {
  Input k, v, q;
  Cache k_cache, v_cache;
  void* q_out;
  const std::int64_t* slots;
  const std::int32_t* positions;
  const float* cos;
  const float* sin;
  FaultRecord* fault;
  FaultRecord* const* fault_indirect;
  std::int64_t num_slots, num_positions;
  std::uint32_t num_tokens;
  std::uint32_t v_begin, q_begin, end;  // the units of V and Q begin there; all end there
  Divider k_units, v_units;             // per head
  std::int32_t rotary_pairs;
  std::int32_t block_size;
  std::int32_t block_shift;  // log2 of a block size that is a power of two, else -1
  Divider block_divider;     // for other block sizes, while slots are below 2^31
  bool small_slots;
  bool has_q;
  bool alternate;  // interleaved pairs
  bool pin_tables;
};

// Block and row of a slot. REQUIRES: 0 <= slot < num_slots.
__device__ __forceinline__ void SplitSlot(const Args& a, std::int64_t slot, std::int64_t& block,
                                          std::int64_t& row) {
  if (a.block_shift >= 0) {
    block = slot >> a.block_shift;
  } else if (a.small_slots) {
    block = a.block_divider.Divide(static_cast<std::uint32_t>(slot));
  } else {
    block = slot / a.block_size;
  }
  row = slot - block * a.block_size;
}

template <class Out>
__device__ __forceinline__ Out* RowOf(const Args& a, const Cache& cache, std::int64_t slot,
                                      std::uint32_t head) {
  std::int64_t block = 0, row = 0;
  SplitSlot(a, slot, block, row);
  return static_cast<Out*>(cache.data) + block * cache.block_stride + row * cache.row_stride +
         head * cache.head_stride;
}

// A load that the compiler does not move behind a branch.
__device__ __forceinline__ std::int64_t LoadEarly(const std::int64_t* from) {
  std::int64_t value;
  asm volatile("ld.global.b64 %0, [%1];" : "=l"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ std::int64_t LoadEarly(const std::int32_t* from) {
  std::int32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

__device__ __forceinline__ float4 LoadPinned(const float* from) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  float4 value;
  asm("ld.global.nc.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "l"(from), "l"(policy));
  return value;
}

// P values of cos or sin; tables are written by no kernel that runs beside this one.
template <int P>
__device__ __forceinline__ Pack<float, P> LoadTable(const float* from, bool pin) {
  if constexpr (P == 4) {
    const float4 value = pin ? LoadPinned(from) : __ldg(reinterpret_cast<const float4*>(from));
    return {value.x, value.y, value.z, value.w};
  } else {
    return {__ldg(from)};
  }
}

// One thread's piece of a token.
struct Unit {
  enum class Kind { kK, kV, kQ } kind;
  std::uint32_t head;
  std::int32_t pair;  // its first pair; of a piece that does not turn, half its first element
};

__device__ __forceinline__ Unit MakeUnit(const Args& a, std::uint32_t index, int pairs) {
  const bool is_q = index >= a.q_begin;
  const bool is_v = !is_q && index >= a.v_begin;
  const std::uint32_t in_kind = index - (is_q ? a.q_begin : is_v ? a.v_begin : 0);
  const Divider& per_head = is_v ? a.v_units : a.k_units;
  const std::uint32_t head = per_head.Divide(in_kind);
  const auto lane = static_cast<std::int32_t>(in_kind - head * per_head.divisor);
  return {is_q ? Unit::Kind::kQ : is_v ? Unit::Kind::kV : Unit::Kind::kK, head, lane * pairs};
}

__device__ __forceinline__ void Report(const Args& a, std::uint32_t token, std::int64_t slot,
                                       std::int64_t position, bool slot_bad) {
  FaultRecord* record = a.fault_indirect != nullptr ? *a.fault_indirect : a.fault;
  if (record == nullptr) return;
  RecordFault(record, slot_bad ? FaultKind::kSlot : FaultKind::kPosition, token,
              slot_bad ? slot : position);
}

// Grid: (tokens / blockDim.y, units / blockDim.x).
template <int P, class In, class Out>
__global__ void __launch_bounds__(kThreads) AppendRopeKernel(const __grid_constant__ Args a) {
  const std::uint32_t token = blockIdx.x * blockDim.y + threadIdx.y;
  const std::uint32_t index = blockIdx.y * blockDim.x + threadIdx.x;
  if (token >= a.num_tokens || index >= a.end) return;

  // Slot, position and data do not depend on one another: all are under way before one is used,
  // though a padded token will not need them.
  const std::int64_t slot = LoadEarly(a.slots + token);
  const std::int64_t position = a.rotary_pairs > 0 ? LoadEarly(a.positions + token) : 0;
  const Unit unit = MakeUnit(a, index, P);
  const bool pairs = unit.kind != Unit::Kind::kV && unit.pair < a.rotary_pairs;
  const bool apart = pairs && !a.alternate;
  const int x = apart ? unit.pair : 2 * unit.pair;
  const int y = unit.pair + a.rotary_pairs;
  const Input& input = unit.kind == Unit::Kind::kK ? a.k : unit.kind == Unit::Kind::kV ? a.v : a.q;
  const std::int64_t at = token * input.token_stride + unit.head * input.head_stride;
  const In* from = static_cast<const In*>(input.data) + at;
  const Pack<In, 2 * P> data = LoadPairs<P>(from + x, from + y, !apart);

  const bool in_table = a.rotary_pairs == 0 || (position >= 0 && position < a.num_positions);
  const bool slot_bad = slot >= a.num_slots;
  const bool position_bad = !in_table && (slot >= 0 || a.has_q);
  if (index == 0 && (slot_bad || position_bad)) Report(a, token, slot, position, slot_bad);

  const bool stores = slot >= 0 && !slot_bad && in_table;
  if (unit.kind != Unit::Kind::kQ && !stores) return;
  Pack<float, P> c, s;
  if (pairs && in_table) {
    const std::int64_t row = position * a.rotary_pairs + unit.pair;
    c = LoadTable<P>(a.cos + row, a.pin_tables);
    s = LoadTable<P>(a.sin + row, a.pin_tables);
  }
  if (unit.kind == Unit::Kind::kQ) {
    In* to = static_cast<In*>(a.q_out) + at;
    SavePairs<P>(pairs && in_table ? TurnPairs<In>(data, c, s, a.alternate) : data, !apart, to + x,
                 to + y);
  } else {
    const Cache& cache = unit.kind == Unit::Kind::kV ? a.v_cache : a.k_cache;
    Out* to = RowOf<Out>(a, cache, slot, unit.head);
    SavePairs<P>(pairs ? TurnPairs<Out>(data, c, s, a.alternate) : Convert<Out>(data), !apart,
                 to + x, to + y);
  }
}

// Whether units of 4 pairs keep all accesses aligned.
bool Aligned(const AppendRopeParams& p) {
  const auto in = static_cast<std::int64_t>(SizeOf(p.in_dtype));
  const auto out = static_cast<std::int64_t>(SizeOf(p.dtype));
  if (p.k_dim % 8 != 0 || p.v_dim % 8 != 0 || p.rotary_dim % 8 != 0) return false;
  const bool kv = AllMultiplesOf16(
      {p.k, p.v, p.cos, p.sin, p.k_cache, p.v_cache},
      {p.k_token_stride * in, p.k_head_stride * in, p.v_token_stride * in, p.v_head_stride * in,
       p.k_block_stride * out, p.k_row_stride * out, p.k_cache_head_stride * out,
       p.v_block_stride * out, p.v_row_stride * out, p.v_cache_head_stride * out});
  return kv && (p.q_heads == 0 ||
                AllMultiplesOf16({p.q, p.q_out}, {p.q_token_stride * in, p.q_head_stride * in}));
}

Args MakeArgs(const AppendRopeParams& p, int pairs_per_unit) {
  Args a = {};
  a.k = {p.k, p.k_token_stride, p.k_head_stride};
  a.v = {p.v, p.v_token_stride, p.v_head_stride};
  a.q = {p.q, p.q_token_stride, p.q_head_stride};
  a.k_cache = {p.k_cache, p.k_block_stride, p.k_row_stride, p.k_cache_head_stride};
  a.v_cache = {p.v_cache, p.v_block_stride, p.v_row_stride, p.v_cache_head_stride};
  a.q_out = p.q_out;
  a.slots = p.slots;
  a.positions = p.positions;
  a.cos = p.cos;
  a.sin = p.sin;
  a.fault = p.fault;
  a.fault_indirect = p.fault_indirect;
  a.num_slots = p.num_slots;
  a.num_positions = p.num_positions;
  a.num_tokens = static_cast<std::uint32_t>(p.num_tokens);
  const auto width = static_cast<std::uint32_t>(2 * pairs_per_unit);
  const std::uint32_t k_units = static_cast<std::uint32_t>(p.k_dim) / width;
  const std::uint32_t v_units = static_cast<std::uint32_t>(p.v_dim) / width;
  a.k_units = Divider(k_units);
  a.v_units = Divider(v_units);
  a.v_begin = static_cast<std::uint32_t>(p.kv_heads) * k_units;
  a.q_begin = a.v_begin + static_cast<std::uint32_t>(p.kv_heads) * v_units;
  a.end = a.q_begin + static_cast<std::uint32_t>(p.q_heads) * k_units;
  a.rotary_pairs = p.rotary_dim / 2;
  a.block_size = p.block_size;
  const auto block_size = static_cast<std::uint32_t>(p.block_size);
  a.block_shift =
      std::has_single_bit(block_size) ? static_cast<int>(std::bit_width(block_size)) - 1 : -1;
  a.block_divider = Divider(block_size);
  a.small_slots = p.num_slots < (std::int64_t{1} << 31);
  a.has_q = p.q_heads > 0;
  a.alternate = p.style == RopeStyle::kInterleaved;
  const std::int64_t unit_bytes =
      width * static_cast<std::int64_t>(SizeOf(p.in_dtype) + SizeOf(p.dtype));
  a.pin_tables = p.num_tokens * a.end * unit_bytes >= kPinBytes;
  return a;
}

}  // namespace

cudaError_t AppendRope(const AppendRopeParams& p, cudaStream_t stream) {
  const bool aligned = Aligned(p);
  const Args args = MakeArgs(p, aligned ? 4 : 1);
  // As many threads in x as a token has units, up to a block; more tokens where there are few.
  const std::uint32_t x = std::min<std::uint32_t>(std::bit_ceil(args.end), kThreads);
  const std::uint32_t y = kThreads / x;
  const dim3 grid((args.num_tokens + y - 1) / y, (args.end + x - 1) / x);
  return WithAppendTypes(p.in_dtype, p.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return aligned ? Launch(AppendRopeKernel<4, In, Out>, grid, dim3(x, y), stream, args)
                   : Launch(AppendRopeKernel<1, In, Out>, grid, dim3(x, y), stream, args);
  });
}

}  // namespace lariat::cuda
