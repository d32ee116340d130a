// SPDX-License-Identifier: Apache-2.0
// AppendRope: rotate K (and q) rows, store K and V rows at their slots.
//
// Bytes: each row read and written once, 12 per token of slot and position, a row of the table per
// position: at 8 KV heads of 128 in bf16 8 KiB a token, with 32 q heads 24 KiB. 6 floating-point
// operations a pair, less than one a byte: the floor is the memory, below some 200 tokens the
// launch. On an H200 a plain copy of the same bytes is the mark: 17.9 us at 8192 tokens (18.1
// here), 127 us at 65536 (134), with q 49.1 (51.5) and 377 (401).
//
// A unit is P pairs of a head, or of two heads that share cos and sin; a thread has one unit. P = 8
// is 2 x 16 bytes of a 16-bit type. The units of a token lie in a row, K, then V, then q, so that K
// and V are mostly in warps of their own. A token's slot and position are loaded by each of its
// threads (one broadcast per warp).
//
// At that grain the addresses cost as much as the data. Units of several pairs therefore take
// strides of tokens, rows and heads below 4 GiB and fewer than 2^31 slots; anything else, like
// anything that is not aligned, goes pair by pair with 64-bit strides.
//
// cos and sin are read through an L2 policy that keeps them while the streams pass by (5 % at 65536
// tokens), in calls large enough for that to matter; small calls do not pin anything.
//
// Two orders of loads (TurnUnit): the index and the tables first, or the data first. The former is
// what kIndexEarly is for, and takes 0.5 us of a dependent launch of 1 to 1024 tokens.
//
// Tried, and no better: 16 bytes per thread (10 % worse at 65536 tokens), four heads per unit (few
// warps; worse but with q at 65536, and there by 0.5 %), K or V first for all tokens, more tokens
// per block, evict-first stores (0.5 % worse), loads that pass L1 by (5 % worse), fewer registers
// for more warps (1 % better with one head per unit, spills with two), clusters of 2 to 16 blocks.
// A prefetch of the data before the wait would hide their latency in a benchmark, and in a server
// fetch what the kernel before is about to overwrite.
// What is left at 65536 tokens is the order of the blocks: with the pool's blocks in ascending
// order, or shuffled within 2 MiB, the same kernel reaches 97.6 % of a copy instead of 93.8 %, so
// it is the number of pages in use at a time; a kernel that only copies as many rows to
// blocks in that order takes as long. To give one multiprocessor the 16 tokens of a block does not
// help: 139 us with blocks of 1024 threads, 137 (with q 405 to 411) where 256 threads take 16
// tokens four or two at a time, against 135 (401); from 8192 tokens down it is 3 to 20 % slower.
#include <algorithm>

#include "backend/cuda/append_rope_args.cuh"
#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

constexpr int kThreads = 256;  // of a block, at most

// P values of cos or sin. The table stays in L2 while the streams pass by where `pin` says so.
template <int P>
__device__ __forceinline__ Table<float, P> LoadTable(const float* from, bool pin) {
  Table<float, P> table;
  if constexpr (P == 1) {
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(table.v[0]) : "l"(from));
  } else {
    std::uint64_t last, normal;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(normal));
#pragma unroll
    for (int i = 0; i < P; i += 4) {
      asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=f"(table.v[i]), "=f"(table.v[i + 1]), "=f"(table.v[i + 2]),
                     "=f"(table.v[i + 3])
                   : "l"(from + i), "l"(pin ? last : normal));
    }
  }
  return table;
}

// A token's slot and position, and what may be done with them.
struct Token {
  std::uint32_t index;
  std::int64_t slot;
  std::int32_t position;
  std::uint32_t choice;  // has a bit of table_mask: the second table
  bool in_table;         // the position is; true where nothing turns
  bool stores;
};

template <class Stride>
__device__ __forceinline__ void Judge(const AppendArgs<Stride>& a, Token& token) {
  token.in_table =
      a.rotary_pairs == 0 || static_cast<std::uint32_t>(token.position) < a.num_positions;
  token.stores = static_cast<std::uint64_t>(token.slot) < a.num_slots && token.in_table;
}

template <class Stride>
__device__ __forceinline__ void Report(const AppendArgs<Stride>& a, const Token& token) {
  const bool slot_bad = token.slot >= 0 && static_cast<std::uint64_t>(token.slot) >= a.num_slots;
  const bool position_bad = !token.in_table && (token.slot >= 0 || a.has_q);
  if (!slot_bad && !position_bad) return;
  FaultRecord* record = a.fault_indirect != nullptr ? *a.fault_indirect : a.fault;
  if (record == nullptr) return;
  RecordFault(record, slot_bad ? FaultKind::kSlot : FaultKind::kPosition, token.index,
              slot_bad ? token.slot : std::int64_t{token.position});
}

// Where the row of a slot begins. REQUIRES: 0 <= slot < num_slots.
template <class Stride>
__device__ __forceinline__ char* RowAt(const AppendArgs<Stride>& a,
                                       const AppendCache<Stride>& cache, std::int64_t slot) {
  std::uint64_t block = 0;
  if (sizeof(Stride) == 4 || a.small_slots) {
    block = a.block.Divide(static_cast<std::uint32_t>(slot));
  } else {
    block = static_cast<std::uint64_t>(slot) / a.block.divisor;
  }
  const auto row = static_cast<std::uint32_t>(slot - block * a.block.divisor);
  return cache.data + block * cache.block + std::uint64_t{row} * cache.row;
}

// cos and sin of a unit.
template <int P>
struct Turn {
  Table<float, P> cos, sin;
};
template <int P, class Stride>
__device__ __forceinline__ Turn<P> LoadTurn(const AppendArgs<Stride>& a, const Token& token,
                                            std::int32_t pair) {
  const std::uint64_t row = std::uint64_t{static_cast<std::uint32_t>(token.position)} +
                            ((token.choice & a.table_mask) != 0 ? a.num_positions : 0);
  const std::uint64_t at =
      row * static_cast<std::uint32_t>(a.rotary_pairs) + static_cast<std::uint32_t>(pair);
  return {LoadTable<P>(a.cos + at, a.pin_tables), LoadTable<P>(a.sin + at, a.pin_tables)};
}

// A unit of K or q: the same 2 P elements of kHeads heads of a token, which lie `step` apart.
// `index` counts within K or q. With kIndexFirst slot, position and tables come before the wait,
// and what can be computed with them; else the data are under way before those are looked at.
template <int P, int kHeads, bool kAlternate, bool kIndexFirst, class In, class To>
__device__ __forceinline__ void TurnUnit(const AppendArgs<StrideOf<P>>& a, Token& token,
                                         std::uint32_t index, bool is_q) {
  using Stride = StrideOf<P>;
  const std::uint32_t head = a.k_units.Divide(index);
  const std::int32_t pair = static_cast<std::int32_t>(index - head * a.k_units.divisor) * P;
  const bool turns = pair < a.rotary_pairs;
  // Elements in a row from x on, or half of them from x and half from y on.
  const bool alternate = kAlternate || !turns;
  const std::int32_t x = alternate ? 2 * pair : pair;
  const std::int32_t y = pair + a.rotary_pairs;
  const std::uint32_t step = is_q ? a.q_step : a.kv_step;
  const Stride from_head = is_q ? a.q.head : a.k.head;
  const Stride to_head = is_q ? a.q.head : a.k_cache.head;

  const auto place = [&] {
    Judge(a, token);
    char* const row =
        is_q ? a.q_out + std::uint64_t{token.index} * a.q.token : RowAt(a, a.k_cache, token.slot);
    return row + std::uint64_t{head} * to_head;
  };
  char* to = nullptr;
  Turn<P> turn;
  if constexpr (kIndexFirst) {
    to = place();
    if (turns && token.in_table) turn = LoadTurn<P>(a, token, pair);
    WaitForPredecessor();
  }
  Pack<In, 2 * P> data[kHeads];
  const char* from = (is_q ? a.q.data : a.k.data) +
                     std::uint64_t{token.index} * (is_q ? a.q.token : a.k.token) +
                     std::uint64_t{head} * from_head;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const In* elements = reinterpret_cast<const In*>(from + std::uint64_t{i * step} * from_head);
    data[i] = LoadPairs<P>(elements + x, elements + y, alternate);
  }
  if constexpr (!kIndexFirst) {
    LetSuccessorStart();
    to = place();
    if (turns && token.in_table) turn = LoadTurn<P>(a, token, pair);
  }
  if (index == 0 && !is_q) Report(a, token);
  if (!is_q && !token.stores) return;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    To* elements = reinterpret_cast<To*>(to + std::uint64_t{i * step} * to_head);
    if (turns && token.in_table) {
      SavePairs<P>(TurnPairs<To, P>(data[i], turn.cos, turn.sin, kAlternate), kAlternate,
                   elements + x, elements + y);
    } else {
      SavePairs<P>(Convert<To>(data[i]), alternate, elements + x, elements + y);
    }
  }
}

// A unit of V.
template <int P, int kHeads, bool kIndexFirst, class In, class Out>
__device__ __forceinline__ void CopyUnit(const AppendArgs<StrideOf<P>>& a, Token& token,
                                         std::uint32_t index) {
  const std::uint32_t head = a.v_units.Divide(index);
  const std::int32_t pair = static_cast<std::int32_t>(index - head * a.v_units.divisor) * P;
  // Two pieces far apart where that makes whole lines of a warp's accesses.
  constexpr bool kRow = P != kWidest;
  const std::int32_t x = kRow ? 2 * pair : pair;
  const std::int32_t y = pair + a.v_pairs;
  const auto place = [&] {
    Judge(a, token);
    return RowAt(a, a.v_cache, token.slot) + std::uint64_t{head} * a.v_cache.head;
  };
  char* to = nullptr;
  if constexpr (kIndexFirst) {
    to = place();
    WaitForPredecessor();
  }
  Pack<In, 2 * P> data[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const In* elements =
        reinterpret_cast<const In*>(a.v.data + a.v.At(token.index, head + i * a.kv_step));
    data[i] = LoadPairs<P>(elements + x, elements + y, kRow);
  }
  if constexpr (!kIndexFirst) {
    LetSuccessorStart();
    to = place();
  }
  if (!token.stores) return;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    Out* elements = reinterpret_cast<Out*>(to + std::uint64_t{i * a.kv_step} * a.v_cache.head);
    SavePairs<P>(Convert<Out>(data[i]), kRow, elements + x, elements + y);
  }
}

// Grid: (tokens / blockDim.y, units / blockDim.x).
template <int P, int kHeads, bool kAlternate, bool kIndexFirst, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    AppendRopeKernel(const __grid_constant__ AppendArgs<StrideOf<P>> a) {
  if constexpr (kIndexFirst) {
    LetSuccessorStart();
  } else {
    WaitForPredecessor();
  }
  Token token;
  token.index = blockIdx.x * blockDim.y + threadIdx.y;
  const std::uint32_t unit = blockIdx.y * blockDim.x + threadIdx.x;
  if (token.index >= a.num_tokens || unit >= a.end) return;

  // Slot, position and data do not depend on one another: all are under way before one is used,
  // though a padded token will not need them.
  token.slot = LoadInOrder(a.slots + token.index);
  token.position = a.rotary_pairs > 0 ? LoadInOrder(a.positions + token.index) : 0;
  token.choice = a.table_choice != nullptr ? LoadInOrder(a.table_choice + token.index) : 0;
  const bool is_q = unit >= a.q_begin;
  if (unit >= a.v_begin && !is_q) {
    CopyUnit<P, kHeads, kIndexFirst, In, Out>(a, token, unit - a.v_begin);
  } else if constexpr (std::is_same_v<In, Out>) {
    TurnUnit<P, kHeads, kAlternate, kIndexFirst, In, In>(a, token, unit - (is_q ? a.q_begin : 0),
                                                         is_q);
  } else if (is_q) {
    TurnUnit<P, kHeads, kAlternate, kIndexFirst, In, In>(a, token, unit - a.q_begin, true);
  } else {
    TurnUnit<P, kHeads, kAlternate, kIndexFirst, In, Out>(a, token, unit, false);
  }
}

// Which threads do what.
struct Mapping {
  bool two_heads;      // of K, V and q alike, in a unit
  bool index_first;    // see TurnUnit
  std::uint32_t x, y;  // a block: units, at most, of tokens, at least
};

// As measured on an H200; nothing but speed depends on it.
constexpr Mapping MappingFor(DependentLaunch dependent, bool q, std::int64_t tokens,
                             std::int64_t traffic) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  constexpr std::uint32_t kToken = kThreads;  // a block has all units of a token
  const bool large = traffic >= 32 * kMiB;
  // A launch that is no dependent one has no wait: the order is free.
  if (dependent == DependentLaunch::kOff && tokens < 16) return {false, true, 64, 2};
  if (dependent != DependentLaunch::kIndexEarly || traffic >= 256 * kMiB) {
    return large && q ? Mapping{true, false, kToken, 1} : Mapping{false, false, 128, 1};
  }
  if (large) return q ? Mapping{true, true, kToken, 1} : Mapping{true, true, 32, 2};
  if (q && traffic >= 16 * kMiB) return {true, true, 96, 1};
  if ((q && traffic >= 4 * kMiB) || tokens < 16) return {false, true, 64, 2};
  return {true, true, 64, 1};
}

template <int P, int kHeads, bool kAlternate, bool kIndexFirst, class In, class Out>
cudaError_t LaunchMapping(const AppendRopeParams& p, const Mapping& m, cudaStream_t stream) {
  const auto args = MakeAppendArgs<StrideOf<P>>(p, P, kHeads);
  const std::uint32_t most = m.x == kThreads && args.end > kThreads ? kThreads / 2 : m.x;
  const std::uint32_t x = std::min(args.end, most);
  const std::uint32_t y = std::max(m.y, 64 / x);
  const dim3 grid((args.num_tokens + y - 1) / y, (args.end + x - 1) / x);
  return LaunchDependent(p.dependent_launch,
                         AppendRopeKernel<P, kHeads, kAlternate, kIndexFirst, In, Out>, grid,
                         dim3(x, y), stream, args);
}

template <int P, bool kAlternate, class In, class Out>
cudaError_t LaunchUnits(const AppendRopeParams& p, cudaStream_t stream) {
  const Mapping m = MappingFor(p.dependent_launch, p.q_heads > 0, p.num_tokens, TrafficOf(p));
  if constexpr (P == kWidest) {
    if (m.two_heads && p.kv_heads % 2 == 0 && p.q_heads % 2 == 0) {
      return m.index_first ? LaunchMapping<P, 2, kAlternate, true, In, Out>(p, m, stream)
                           : LaunchMapping<P, 2, kAlternate, false, In, Out>(p, m, stream);
    }
  }
  if constexpr (P > 1) {
    if (m.index_first) return LaunchMapping<P, 1, kAlternate, true, In, Out>(p, m, stream);
  }
  return LaunchMapping<P, 1, kAlternate, false, In, Out>(p, m, stream);
}

template <int P, class In, class Out>
cudaError_t LaunchStyle(const AppendRopeParams& p, cudaStream_t stream) {
  return p.style == RopeStyle::kInterleaved ? LaunchUnits<P, true, In, Out>(p, stream)
                                            : LaunchUnits<P, false, In, Out>(p, stream);
}

}  // namespace

cudaError_t AppendRope(const AppendRopeParams& p, cudaStream_t stream) {
  if (p.rotary_dim > 0 && (p.position_sections != 1 || p.style == RopeStyle::kInterleavedToHalf)) {
    return AppendRopeSections(p, stream);
  }
  const int pairs = UnitPairs(p);
  return WithAppendTypes(p.in_dtype, p.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    if constexpr (sizeof(In) == 2) {
      if (pairs == kWidest) return LaunchUnits<kWidest, false, In, Out>(p, stream);
    }
    return pairs == 1 ? LaunchStyle<1, In, Out>(p, stream) : LaunchStyle<4, In, Out>(p, stream);
  });
}

}  // namespace lariat::cuda
