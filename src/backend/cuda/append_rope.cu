// SPDX-License-Identifier: Apache-2.0
// AppendRope: rotate K (and Q) rows, store K and V rows at their slots.
//
// The work is memory traffic, so each thread does one small piece and there are as many threads as
// pieces: a unit is P pairs (P = 4: 16 bytes of a 16-bit type) of one head. The units of a token
// lie in a row, K heads, then V heads, then Q heads; a thread's x index picks its unit, so K and V
// are mostly in warps of their own. A token's slot and position are loaded by each of its threads
// (one broadcast per warp) together with the data, which does not depend on them.
//
// At that grain the addresses cost as much as the data. Units of 4 pairs therefore take strides of
// tokens, rows and heads below 4 GiB and fewer than 2^31 slots; anything else, like anything that
// is not aligned, goes pair by pair with 64-bit strides.
//
// cos and sin are read through an L2 policy that keeps them while the streams pass by, in calls
// large enough for that to matter; small calls do not pin anything.
#include <algorithm>

#include "backend/cuda/element.cuh"
#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kPinBytes = std::int64_t{16} << 20;  // traffic from which tables are pinned

// Strides in bytes, 32 bits wide where units are 4 pairs, else 64.
template <int P>
using StrideOf = std::conditional_t<P == 4, std::uint32_t, std::uint64_t>;

template <class Stride>
struct Input {
  const char* data;
  Stride token, head;
  __device__ __forceinline__ std::uint64_t At(std::uint32_t token_index,
                                              std::uint32_t head_index) const {
    return std::uint64_t{token_index} * token + std::uint64_t{head_index} * head;
  }
};
template <class Stride>
struct Cache {
  char* data;
  std::uint64_t block;
  Stride row, head;
};

template <class Stride>
struct Args {
  Input<Stride> k, v, q;
  Cache<Stride> k_cache, v_cache;
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
  Divider block;                        // tokens in a block
  std::int32_t rotary_pairs;
  bool small_slots;  // num_slots < 2^31
  bool has_q;
  bool pin_tables;
};

// A load that the compiler does not move behind a branch.
__device__ __forceinline__ std::int64_t LoadEarly(const std::int64_t* from) {
  std::int64_t value;
  asm volatile("ld.global.b64 %0, [%1];" : "=l"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ std::int32_t LoadEarly(const std::int32_t* from) {
  std::int32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

// P values of cos or sin; tables are written by no kernel that runs beside this one.
template <int P>
__device__ __forceinline__ Table<float, P> LoadTable(const float* from, bool pin) {
  if constexpr (P == 4) {
    std::uint64_t last, normal;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(normal));
    float4 value;
    asm("ld.global.nc.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
        : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
        : "l"(from), "l"(pin ? last : normal));
    return {value.x, value.y, value.z, value.w};
  } else {
    return {__ldg(from)};
  }
}

// A token's slot and position, and what may be done with them.
struct Token {
  std::uint32_t index;
  std::int64_t slot;
  std::int32_t position;
  bool second_table;
  bool in_table;  // the position is; true where nothing turns
  bool stores;
};

template <class Stride>
__device__ __forceinline__ void Judge(const Args<Stride>& a, Token& token) {
  token.in_table =
      a.rotary_pairs == 0 || static_cast<std::uint32_t>(token.position) < a.num_positions;
  token.stores = static_cast<std::uint64_t>(token.slot) < a.num_slots && token.in_table;
}

template <class Stride>
__device__ __forceinline__ void Report(const Args<Stride>& a, const Token& token) {
  const bool slot_bad = token.slot >= 0 && static_cast<std::uint64_t>(token.slot) >= a.num_slots;
  const bool position_bad = !token.in_table && (token.slot >= 0 || a.has_q);
  if (!slot_bad && !position_bad) return;
  FaultRecord* record = a.fault_indirect != nullptr ? *a.fault_indirect : a.fault;
  if (record == nullptr) return;
  RecordFault(record, slot_bad ? FaultKind::kSlot : FaultKind::kPosition, token.index,
              slot_bad ? token.slot : std::int64_t{token.position});
}

// Where a head of a slot begins. REQUIRES: 0 <= slot < num_slots.
template <class Stride>
__device__ __forceinline__ char* HeadAt(const Args<Stride>& a, const Cache<Stride>& cache,
                                        std::int64_t slot, std::uint32_t head) {
  std::uint64_t block = 0;
  if (sizeof(Stride) == 4 || a.small_slots) {
    block = a.block.Divide(static_cast<std::uint32_t>(slot));
  } else {
    block = static_cast<std::uint64_t>(slot) / a.block.divisor;
  }
  const auto row = static_cast<std::uint32_t>(slot - block * a.block.divisor);
  return cache.data + block * cache.block + std::uint64_t{row} * cache.row +
         std::uint64_t{head} * cache.head;
}

// Head and first pair of a unit.
struct Place {
  std::uint32_t head;
  std::int32_t pair;
};
template <int P>
__device__ __forceinline__ Place Split(const Divider& per_head, std::uint32_t unit) {
  const std::uint32_t head = per_head.Divide(unit);
  return {head, static_cast<std::int32_t>(unit - head * per_head.divisor) * P};
}

// A unit of K or Q, from the load of its data to the value that is stored.
template <int P, bool kAlternate, class In>
struct RopeUnit {
  bool turns;  // else its 2 P elements keep their places, as `alternate` ones would
  bool alternate;
  std::int32_t pair, x, y;  // elements of the head
  Pack<In, 2 * P> data;

  __device__ __forceinline__ RopeUnit(const In* head, std::int32_t first_pair,
                                      std::int32_t rotary_pairs)
      : turns(first_pair < rotary_pairs), alternate(kAlternate || !turns), pair(first_pair) {
    x = alternate ? 2 * pair : pair;
    y = pair + rotary_pairs;
    data = LoadPairs<P>(head + x, head + y, alternate);
  }

  template <class Out, class Stride>
  __device__ __forceinline__ Pack<Out, 2 * P> Turned(const Args<Stride>& a,
                                                     const Token& token) const {
    const std::uint64_t row = std::uint64_t{static_cast<std::uint32_t>(token.position)} +
                              (token.second_table ? a.num_positions : 0);
    const std::uint64_t at =
        row * static_cast<std::uint32_t>(a.rotary_pairs) + static_cast<std::uint32_t>(pair);
    const Table<float, P> c = LoadTable<P>(a.cos + at, a.pin_tables);
    const Table<float, P> s = LoadTable<P>(a.sin + at, a.pin_tables);
    return TurnPairs<Out, P>(data, c, s, kAlternate);
  }
};

// Grid: (tokens / blockDim.y, units / blockDim.x).
template <int P, bool kAlternate, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    AppendRopeKernel(const __grid_constant__ Args<StrideOf<P>> a) {
  Token token;
  token.index = blockIdx.x * blockDim.y + threadIdx.y;
  const std::uint32_t unit = blockIdx.y * blockDim.x + threadIdx.x;
  if (token.index >= a.num_tokens || unit >= a.end) return;

  // Slot, position and data do not depend on one another: all are under way before one is used,
  // though a padded token will not need them.
  token.slot = LoadEarly(a.slots + token.index);
  token.position = a.rotary_pairs > 0 ? LoadEarly(a.positions + token.index) : 0;
  token.second_table =
      a.table_choice != nullptr && (a.table_choice[token.index] & a.table_mask) != 0;

  if (unit < a.v_begin) {
    const Place place = Split<P>(a.k_units, unit);
    const In* from = reinterpret_cast<const In*>(a.k.data + a.k.At(token.index, place.head));
    const RopeUnit<P, kAlternate, In> k(from, place.pair, a.rotary_pairs);
    Judge(a, token);
    if (unit == 0) Report(a, token);
    if (!token.stores) return;
    Out* to = reinterpret_cast<Out*>(HeadAt(a, a.k_cache, token.slot, place.head));
    if (k.turns) {
      SavePairs<P>(k.template Turned<Out>(a, token), kAlternate, to + k.x, to + k.y);
    } else {
      SavePairs<P>(Convert<Out>(k.data), true, to + k.x, to + k.y);
    }
  } else if (unit < a.q_begin) {
    const Place place = Split<P>(a.v_units, unit - a.v_begin);
    const In* from =
        reinterpret_cast<const In*>(a.v.data + a.v.At(token.index, place.head)) + 2 * place.pair;
    const Pack<In, 2 * P> data = LoadPairs<P>(from, from, true);
    Judge(a, token);
    if (!token.stores) return;
    Out* to = reinterpret_cast<Out*>(HeadAt(a, a.v_cache, token.slot, place.head)) + 2 * place.pair;
    SavePairs<P>(Convert<Out>(data), true, to, to);
  } else {
    const Place place = Split<P>(a.k_units, unit - a.q_begin);
    const std::uint64_t at = a.q.At(token.index, place.head);
    const RopeUnit<P, kAlternate, In> q(reinterpret_cast<const In*>(a.q.data + at), place.pair,
                                        a.rotary_pairs);
    In* to = reinterpret_cast<In*>(a.q_out + at);
    Judge(a, token);
    if (q.turns && token.in_table) {
      SavePairs<P>(q.template Turned<In>(a, token), kAlternate, to + q.x, to + q.y);
    } else {
      SavePairs<P>(q.data, q.alternate, to + q.x, to + q.y);
    }
  }
}

// Whether units of 4 pairs keep all accesses aligned and all their numbers small.
bool Wide(const AppendRopeParams& p) {
  const auto in = static_cast<std::int64_t>(SizeOf(p.in_dtype));
  const auto out = static_cast<std::int64_t>(SizeOf(p.dtype));
  if (p.k_dim % 8 != 0 || p.v_dim % 8 != 0 || p.rotary_dim % 8 != 0) return false;
  if (!AllMultiplesOf16({p.k, p.v, p.cos, p.sin, p.k_cache, p.v_cache},
                        {p.k_block_stride * out, p.v_block_stride * out}) ||
      p.num_slots >= (std::int64_t{1} << 31)) {
    return false;
  }
  if (p.q_heads > 0 && !AllMultiplesOf16({p.q, p.q_out}, {})) return false;
  const std::int64_t strides[] = {p.k_token_stride * in, p.k_head_stride * in,
                                  p.v_token_stride * in, p.v_head_stride * in,
                                  p.q_token_stride * in, p.q_head_stride * in,
                                  p.k_row_stride * out,  p.k_cache_head_stride * out,
                                  p.v_row_stride * out,  p.v_cache_head_stride * out};
  return std::all_of(std::begin(strides), std::end(strides), [](std::int64_t stride) {
    return stride % 16 == 0 && stride < (std::int64_t{1} << 32);
  });
}

template <class Stride>
Args<Stride> MakeArgs(const AppendRopeParams& p, int pairs_per_unit) {
  const auto in = [&](std::int64_t elements) {
    return static_cast<Stride>(elements * static_cast<std::int64_t>(SizeOf(p.in_dtype)));
  };
  const auto out = [&](std::int64_t elements) {
    return static_cast<Stride>(elements * static_cast<std::int64_t>(SizeOf(p.dtype)));
  };
  const auto bytes = [](const void* memory) { return static_cast<const char*>(memory); };
  const std::uint64_t element = SizeOf(p.dtype);
  Args<Stride> a = {};
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
  a.v_begin = static_cast<std::uint32_t>(p.kv_heads) * k_units;
  a.q_begin = a.v_begin + static_cast<std::uint32_t>(p.kv_heads) * v_units;
  a.end = a.q_begin + static_cast<std::uint32_t>(p.q_heads) * k_units;
  a.block = Divider(static_cast<std::uint32_t>(p.block_size));
  a.rotary_pairs = p.rotary_dim / 2;
  a.small_slots = p.num_slots < (std::int64_t{1} << 31);
  a.has_q = p.q_heads > 0;
  const auto unit_bytes = static_cast<std::int64_t>(width * (SizeOf(p.in_dtype) + SizeOf(p.dtype)));
  a.pin_tables = p.num_tokens * a.end * unit_bytes >= kPinBytes;
  return a;
}

template <int P, class In, class Out>
cudaError_t LaunchWidth(const AppendRopeParams& p, cudaStream_t stream) {
  const auto args = MakeArgs<StrideOf<P>>(p, P);
  // As many threads in x as a token has units, up to a block; more tokens where there are few.
  const std::uint32_t x = std::min<std::uint32_t>(std::bit_ceil(args.end), kThreads);
  const std::uint32_t y = kThreads / x;
  const dim3 grid((args.num_tokens + y - 1) / y, (args.end + x - 1) / x);
  return p.style == RopeStyle::kInterleaved
             ? Launch(AppendRopeKernel<P, true, In, Out>, grid, dim3(x, y), stream, args)
             : Launch(AppendRopeKernel<P, false, In, Out>, grid, dim3(x, y), stream, args);
}

}  // namespace

cudaError_t AppendRope(const AppendRopeParams& p, cudaStream_t stream) {
  if (p.rotary_dim > 0 && (p.position_sections != 1 || p.style == RopeStyle::kInterleavedToHalf)) {
    return AppendRopeSections(p, stream);
  }
  const bool wide = Wide(p);
  return WithAppendTypes(p.in_dtype, p.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return wide ? LaunchWidth<4, In, Out>(p, stream) : LaunchWidth<1, In, Out>(p, stream);
  });
}

}  // namespace lariat::cuda
