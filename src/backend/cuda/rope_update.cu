// SPDX-License-Identifier: Apache-2.0
// RopeUpdate: a cache copied, with rotated new rows put in. Nearly all of it is a copy, so a warp
// owns one output row (of K or of V) and writes it once; what it must know first is which token, if
// any, came last for that row.
//
// Few tokens (up to kBallotTokens): each warp looks at all positions itself, one per lane, and a
// ballot finds the last that names its row. The cache row and the positions are loaded at once.
// Many tokens: a block owns a run of rows, goes over the positions once and keeps the largest t per
// row in shared memory, so that the cost is T per run instead of T per row.
#include <algorithm>

#include "backend/cuda/element.cuh"
#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kBallotTokens = 64;
constexpr int kBallotWarps = 4;  // per block; 2 to 8 were equally good
constexpr int kRunThreads = 256;
constexpr int kMaxRun = 64;  // rows
constexpr int kMinRun = 4;
constexpr int kWantedBlocks = 512;  // about four per multiprocessor
constexpr int kChunks = 4;          // pieces of a row that a lane has under way
constexpr std::int64_t kMaxGridY = 65535;

struct Args {
  const void* k_new;
  const void* v_new;
  const void* cos;
  const void* sin;
  const void* cache_k;
  const void* cache_v;
  const std::int32_t* positions;
  void* out;
  FaultRecord* fault;
  std::int64_t batch;
  std::int64_t new_tokens;
  std::int64_t cache_len;
  std::int64_t row;  // elements
  std::int32_t head_dim;
  std::int32_t rotary_pairs;
  std::int32_t run;      // rows of a block, with many tokens
  Divider units;         // per head
  std::uint32_t chunks;  // of a row
  bool alternate;        // interleaved pairs
  bool wide_table;       // cos and sin are fp32, also beside 16-bit elements
};

// P values of cos or sin, from index `at` on.
template <int P, class T>
__device__ __forceinline__ Table<RealOf<T>, P> LoadValues(const T* from) {
  Table<RealOf<T>, P> values;
  if constexpr (P == 1) {
    const T pair[2] = {*from, T{}};
    Pack<T, 2> pack;
    std::memcpy(pack.w, pair, sizeof(pair));
    values.v[0] = pack.Get(0);
  } else {
    const Pack<T, P> pack = Load<P>(from);
#pragma unroll
    for (int i = 0; i < P; ++i) values.v[i] = pack.Get(i);
  }
  return values;
}

template <int P, class T>
__device__ __forceinline__ Table<RealOf<T>, P> LoadTable(const void* table, std::int64_t at,
                                                         bool wide) {
  if constexpr (sizeof(T) == 2) {
    if (wide) return LoadValues<P>(static_cast<const float*>(table) + at);
  }
  return LoadValues<P>(static_cast<const T*>(table) + at);
}

// What a row is moved in: 16 bytes, or one element where alignment is not known.
template <int P, class T>
using Chunk = std::conditional_t<P == 1, T, uint4>;

// A warp's view of one output row.
template <class T>
struct Row {
  const T* cache;  // what lies there before
  T* to;
  bool is_v;
  std::int64_t b;
  std::int64_t l;
};

template <class T>
__device__ __forceinline__ Row<T> MakeRow(const Args& a, bool is_v, std::int64_t b,
                                          std::int64_t l) {
  const std::int64_t at = (b * a.cache_len + l) * a.row;
  const T* cache = static_cast<const T*>(is_v ? a.cache_v : a.cache_k);
  T* out = static_cast<T*>(a.out) + (is_v ? a.batch * a.cache_len * a.row : 0);
  return {cache + at, out + at, is_v, b, l};
}

// A few pieces of a row for each lane, all under way at once.
template <int P, class T>
struct Chunks {
  Chunk<P, T> chunks[kChunks];

  __device__ __forceinline__ void LoadFrom(const Args& a, const T* from, std::uint32_t first) {
    const auto* pieces = reinterpret_cast<const Chunk<P, T>*>(from);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const std::uint32_t at = first + i * kWarp;
      if (at < a.chunks) chunks[i] = pieces[at];
    }
  }
  __device__ __forceinline__ void SaveTo(const Args& a, T* to, std::uint32_t first) const {
    auto* pieces = reinterpret_cast<Chunk<P, T>*>(to);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const std::uint32_t at = first + i * kWarp;
      if (at < a.chunks) pieces[at] = chunks[i];
    }
  }
};

// Copies a row from chunk `first` on.
template <int P, class T>
__device__ __forceinline__ void CopyRow(const Args& a, const T* from, T* to, std::uint32_t first) {
#pragma unroll 1
  for (; first < a.chunks; first += kChunks * kWarp) {
    Chunks<P, T> chunks;
    chunks.LoadFrom(a, from, first);
    chunks.SaveTo(a, to, first);
  }
}

// Turns the K row of a token into row l.
template <int P, bool kAlternate, class T>
__device__ __forceinline__ void TurnRow(const Args& a, const T* from, T* to, std::int64_t l,
                                        std::uint32_t lane) {
  const auto units = static_cast<std::uint32_t>(a.row / (2 * P));
#pragma unroll 1
  for (std::uint32_t index = lane; index < units; index += kWarp) {
    const std::uint32_t head = a.units.Divide(index);
    const int pair = static_cast<int>(index - head * a.units.divisor) * P;
    const bool turns = pair < a.rotary_pairs;
    const bool alternate = kAlternate || !turns;
    const std::int64_t base = std::int64_t{head} * a.head_dim;
    const std::int64_t x = base + (alternate ? 2 * pair : pair);
    const std::int64_t y = base + pair + a.rotary_pairs;
    Pack<T, 2 * P> data = LoadPairs<P>(from + x, from + y, alternate);
    if (turns) {
      const std::int64_t at = l * a.rotary_pairs + pair;
      const auto c = LoadTable<P, T>(a.cos, at, a.wide_table);
      const auto s = LoadTable<P, T>(a.sin, at, a.wide_table);
      data = TurnPairs<T, P>(data, c, s, kAlternate);
    }
    SavePairs<P>(data, alternate, to + x, to + y);
  }
}

// Writes the row of token `winner` of its batch entry.
template <int P, class T>
__device__ __forceinline__ void WriteNew(const Args& a, const Row<T>& row, std::int64_t winner,
                                         std::uint32_t lane) {
  const std::int64_t from = (row.b * a.new_tokens + winner) * a.row;
  if (row.is_v) {
    CopyRow<P>(a, static_cast<const T*>(a.v_new) + from, row.to, lane);
  } else if (a.alternate) {
    TurnRow<P, true>(a, static_cast<const T*>(a.k_new) + from, row.to, row.l, lane);
  } else {
    TurnRow<P, false>(a, static_cast<const T*>(a.k_new) + from, row.to, row.l, lane);
  }
}

__device__ __forceinline__ bool OutOfRange(const Args& a, std::int64_t position) {
  return position < 0 || position >= a.cache_len;
}

__device__ __forceinline__ void Report(const Args& a, std::int64_t b, std::int64_t t,
                                       std::int64_t position) {
  if (a.fault == nullptr) return;
  RecordFault(a.fault, FaultKind::kPosition, b * a.new_tokens + t, position);
}

// The grid's y and z together number the batch entries: each goes up to 65535.
__device__ __forceinline__ std::int64_t BatchIndex() {
  return std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
}

// Grid: (rows / kBallotWarps, 2 * batch). REQUIRES: new_tokens <= kBallotTokens.
template <int P, class T>
__global__ void __launch_bounds__(kBallotWarps* kWarp)
    RopeUpdateFewKernel(const __grid_constant__ Args a) {
  const std::uint32_t lane = threadIdx.x;
  const std::int64_t l = std::int64_t{blockIdx.x} * kBallotWarps + threadIdx.y;
  const std::int64_t index = BatchIndex();
  if (l >= a.cache_len || index >= 2 * a.batch) return;
  const bool is_v = index >= a.batch;
  const Row<T> row = MakeRow<T>(a, is_v, is_v ? index - a.batch : index, l);
  Chunks<P, T> early;  // most rows stay as they are
  early.LoadFrom(a, row.cache, lane);
  std::int64_t winner = -1;
#pragma unroll
  for (int first = 0; first < kBallotTokens; first += kWarp) {
    const std::int64_t t = first + static_cast<int>(lane);
    const bool there = t < a.new_tokens;
    const std::int64_t position = there ? a.positions[row.b * a.new_tokens + t] : l;
    const unsigned hits = __ballot_sync(~0U, there && position == l);
    if (hits != 0) winner = first + 31 - __clz(static_cast<int>(hits));
    if (l == 0 && !is_v && there && OutOfRange(a, position)) Report(a, row.b, t, position);
  }
  if (winner >= 0) {
    WriteNew<P>(a, row, winner, lane);
  } else {
    early.SaveTo(a, row.to, lane);
    CopyRow<P>(a, row.cache, row.to, lane + kChunks * kWarp);
  }
}

// Grid: (runs, batch).
template <int P, class T>
__global__ void __launch_bounds__(kRunThreads, 4)
    RopeUpdateManyKernel(const __grid_constant__ Args a) {
  __shared__ int winners[kMaxRun];
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::int64_t b = BatchIndex();
  const std::int64_t first = std::int64_t{blockIdx.x} * a.run;
  const int rows = static_cast<int>(a.cache_len - first < a.run ? a.cache_len - first : a.run);
  if (b >= a.batch) return;
  if (threadIdx.x < kMaxRun) winners[threadIdx.x] = -1;
  __syncthreads();
  const std::int32_t* positions = a.positions + b * a.new_tokens;
#pragma unroll 8
  for (std::int64_t t = threadIdx.x; t < a.new_tokens; t += kRunThreads) {
    const std::int64_t position = positions[t];
    const std::int64_t at = position - first;
    if (at >= 0 && at < rows) atomicMax(&winners[at], static_cast<int>(t));
    if (first == 0 && OutOfRange(a, position)) Report(a, b, t, position);
  }
  __syncthreads();
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x / kWarp); task < 2 * rows;
       task += kRunThreads / kWarp) {
    const int at = task / 2;
    const Row<T> row = MakeRow<T>(a, task % 2 != 0, b, first + at);
    const int winner = winners[at];
    if (winner >= 0) {
      WriteNew<P>(a, row, winner, lane);
    } else {
      CopyRow<P>(a, row.cache, row.to, lane);
    }
  }
}

// Whether units of 4 pairs and pieces of 16 bytes keep all accesses aligned.
bool Aligned(const RopeUpdateParams& p) {
  if (p.head_dim % 8 != 0 || p.rotary_dim % 8 != 0) return false;
  const bool fresh = p.new_tokens == 0 || AllMultiplesOf16({p.k_new, p.v_new, p.cos, p.sin}, {});
  return fresh && AllMultiplesOf16({p.cache_k, p.cache_v, p.out}, {});
}

Args MakeArgs(const RopeUpdateParams& p, bool aligned) {
  Args a = {};
  a.k_new = p.k_new;
  a.v_new = p.v_new;
  a.cos = p.cos;
  a.sin = p.sin;
  a.cache_k = p.cache_k;
  a.cache_v = p.cache_v;
  a.positions = p.positions;
  a.out = p.out;
  a.fault = p.fault;
  a.batch = p.batch;
  a.new_tokens = p.new_tokens;
  a.cache_len = p.cache_len;
  a.row = std::int64_t{p.heads} * p.head_dim;
  a.head_dim = p.head_dim;
  a.rotary_pairs = p.rotary_dim / 2;
  a.units = Divider(static_cast<std::uint32_t>(p.head_dim / (aligned ? 8 : 2)));
  const auto row_bytes = a.row * static_cast<std::int64_t>(SizeOf(p.dtype));
  a.chunks = static_cast<std::uint32_t>(aligned ? row_bytes / 16 : a.row);
  a.alternate = p.style == RopeStyle::kInterleaved;
  a.wide_table = p.table_dtype == DType::kFP32;
  a.run = kMaxRun;
  while (a.run > kMinRun && a.batch * (a.cache_len / a.run) < kWantedBlocks) a.run /= 2;
  return a;
}

template <int P, class T>
cudaError_t LaunchWidth(const Args& a, cudaStream_t stream) {
  const auto grid = [](std::int64_t x, std::int64_t y) {
    return dim3(static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(std::min(y, kMaxGridY)),
                static_cast<std::uint32_t>((y + kMaxGridY - 1) / kMaxGridY));
  };
  if (a.new_tokens <= kBallotTokens) {
    return Launch(RopeUpdateFewKernel<P, T>,
                  grid((a.cache_len + kBallotWarps - 1) / kBallotWarps, 2 * a.batch),
                  dim3(kWarp, kBallotWarps), stream, a);
  }
  return Launch(RopeUpdateManyKernel<P, T>, grid((a.cache_len + a.run - 1) / a.run, a.batch),
                dim3(kRunThreads), stream, a);
}

}  // namespace

cudaError_t RopeUpdate(const RopeUpdateParams& p, cudaStream_t stream) {
  const bool aligned = Aligned(p);
  const Args args = MakeArgs(p, aligned);
  return WithType(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return aligned ? LaunchWidth<4, T>(args, stream) : LaunchWidth<1, T>(args, stream);
  });
}

}  // namespace lariat::cuda
