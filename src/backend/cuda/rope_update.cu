// SPDX-License-Identifier: Apache-2.0
// RopeUpdate: a cache copied, with rotated new rows put in.
//
// Bytes: the output written once, as many read, the new rows' tables: 512 KiB at the first shape of
// the project (B=2, T=8, L=128, H=4, D=32, fp32), 1.07 GB at B=8, T=64, L=8192, H=8, D=128. 6
// floating-point operations a pair of a new row: nothing. The floor is a copy: 0.98 us (0.70 as a
// dependent launch) and 250 us on an H200; here 1.38 (0.82) and 252.
//
// So each thread does what the best copy does: it loads 16 bytes and stores them. What it must know
// first is which token, if any, came last for its row.
//
// Few tokens (up to kBallotTokens): each warp looks at all positions itself, one per lane, and a
// ballot finds the last that names its row. The cache row and the positions are loaded at once, or
// with kIndexEarly the positions before the wait, so that only one of cache and new row is read. A
// chunk of a new row is turned where it lies: with pairs that lie apart it takes its partner too.
// Many tokens: a block owns a run of rows, goes over the positions once and keeps the largest t per
// row in shared memory, so that the cost is T per run instead of T per row.
//
// Tried, and no better: 2 and 4 chunks per lane (1 and 2 % worse at the large shape), blocks of 4
// or 16 warps (10 and 6 % worse at the small one), rows of K and V by one warp, loads past L1.
// Without dependent launch the small shape is a launch, two loads one behind the other, and the
// fetch of some 150 instructions; next: positions in the launch's parameters, for callers that have
// them on the host.
#include <algorithm>

#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kBallotTokens = 64;
constexpr int kFewThreads = 256;
constexpr int kRunThreads = 256;
constexpr int kMaxRun = 64;  // rows
constexpr int kMinRun = 4;
constexpr int kWantedBlocks = 512;  // about four per multiprocessor
constexpr int kChunks = 4;          // pieces of a row that a lane has under way
constexpr std::int64_t kMaxGridY = 65535;

struct Args {
  const char* k_new;
  const char* v_new;
  const char* cache_k;
  const char* cache_v;
  char* out_k;
  char* out_v;
  std::int64_t fresh_bytes;  // of a batch entry of k_new
  std::int64_t cache_bytes;  // of one of cache_k
  std::uint32_t row_bytes;
  std::uint32_t batch, new_tokens, cache_len;
  const std::int32_t* positions;
  const void* cos;
  const void* sin;
  FaultRecord* fault;
  std::int32_t rotary_pairs;
  std::uint32_t chunks;  // of a row
  Divider head_chunks;   // of a head
  Divider parts;         // warps that share a row, with few tokens
  std::uint32_t run;     // rows of a block, with many
  bool wide_table;       // cos and sin are fp32, also beside 16-bit elements
};

// N elements as they lie in memory: 16 bytes, or one element where alignment is not known (then in
// a word of two where the type has 16 bits).
template <class T, int N>
using ChunkOf = Pack<T, N == 1 && sizeof(T) == 2 ? 2 : N>;

template <int N, class T>
__device__ __forceinline__ ChunkOf<T, N> LoadChunk(const T* from) {
  if constexpr (N == 1 && sizeof(T) == 2) {
    const T pair[2] = {*from, T{}};
    ChunkOf<T, N> chunk;
    std::memcpy(chunk.w, pair, sizeof(pair));
    return chunk;
  } else if constexpr (N == 1) {
    ChunkOf<T, N> chunk;
    std::memcpy(chunk.w, from, sizeof(T));
    return chunk;
  } else {
    return Load<N>(from);
  }
}
template <int N, class T>
__device__ __forceinline__ void SaveChunk(T* to, const ChunkOf<T, N>& chunk) {
  if constexpr (N == 1) {
    std::memcpy(to, chunk.w, sizeof(T));
  } else {
    Save<N>(to, chunk);
  }
}

// P values of cos or sin.
template <int P, class T>
__device__ __forceinline__ Table<RealOf<T>, P> LoadValues(const T* from) {
  const ChunkOf<T, P> chunk = LoadChunk<P>(from);
  Table<RealOf<T>, P> values;
#pragma unroll
  for (int i = 0; i < P; ++i) values.v[i] = chunk.Get(i);
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

// K or V of one batch entry: what lies there before, what is new, and where it goes.
struct Plane {
  const char* cache;
  const char* fresh;
  char* to;
  bool is_v;
};
__device__ __forceinline__ Plane PlaneOf(const Args& a, bool is_v, std::uint32_t b) {
  return {(is_v ? a.cache_v : a.cache_k) + b * a.cache_bytes,
          (is_v ? a.v_new : a.k_new) + b * a.fresh_bytes,
          (is_v ? a.out_v : a.out_k) + b * a.cache_bytes, is_v};
}

template <class T, class Byte>
__device__ __forceinline__ auto RowAt(const Args& a, Byte* plane, std::uint32_t row) {
  using Pointer = std::conditional_t<std::is_const_v<Byte>, const T*, T*>;
  return reinterpret_cast<Pointer>(plane + std::uint64_t{row} * a.row_bytes);
}

// Chunk `at` of the K row `from`, turned for row l. Where a chunk holds whole pairs it is all that
// is needed; else each of its elements has its partner in another chunk, and gets one of the two
// sums.
template <int N, bool kAlternate, class T>
__device__ __forceinline__ ChunkOf<T, N> Turned(const Args& a, const T* from, std::uint32_t at,
                                                std::uint32_t l) {
  const T* elements = from + std::size_t{at} * N;
  const ChunkOf<T, N> own = LoadChunk<N>(elements);
  const std::uint32_t head = a.head_chunks.Divide(at);
  const auto e = static_cast<std::int32_t>((at - head * a.head_chunks.divisor) * N);
  if (e >= 2 * a.rotary_pairs) return own;
  const std::int64_t table = std::int64_t{l} * a.rotary_pairs;
  if constexpr (kAlternate && N > 1) {
    const auto c = LoadTable<N / 2, T>(a.cos, table + e / 2, a.wide_table);
    const auto s = LoadTable<N / 2, T>(a.sin, table + e / 2, a.wide_table);
    return TurnPairs<T, N / 2>(own, c, s, true);
  } else {
    const bool is_x = kAlternate ? e % 2 == 0 : e < a.rotary_pairs;
    const std::int32_t apart = kAlternate ? 1 : a.rotary_pairs;
    const ChunkOf<T, N> partner = LoadChunk<N>(is_x ? elements + apart : elements - apart);
    const std::int64_t entry = table + (kAlternate ? e / 2 : is_x ? e : e - a.rotary_pairs);
    const auto c = LoadTable<N, T>(a.cos, entry, a.wide_table);
    const auto s = LoadTable<N, T>(a.sin, entry, a.wide_table);
    RealOf<T> out[N == 1 && sizeof(T) == 2 ? 2 : N] = {};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const RealOf<T> mine = own.Get(i), other = partner.Get(i);
      out[i] = is_x ? Add(Multiply(mine, c.v[i]), -Multiply(other, s.v[i]))
                    : Add(Multiply(other, s.v[i]), Multiply(mine, c.v[i]));
    }
    return Rounded<T>(out);
  }
}

// Chunk `at` of row l as token t of the batch entry leaves it.
template <int N, bool kAlternate, class T>
__device__ __forceinline__ ChunkOf<T, N> NewChunk(const Args& a, const Plane& plane,
                                                  std::uint32_t t, std::uint32_t l,
                                                  std::uint32_t at) {
  const T* from = RowAt<T>(a, plane.fresh, t);
  return plane.is_v ? LoadChunk<N>(from + std::size_t{at} * N)
                    : Turned<N, kAlternate>(a, from, at, l);
}

__device__ __forceinline__ void CheckPosition(const Args& a, std::uint32_t b, std::uint32_t t,
                                              std::int32_t position) {
  if (static_cast<std::uint32_t>(position) < a.cache_len || a.fault == nullptr) return;
  RecordFault(a.fault, FaultKind::kPosition, std::int64_t{b} * a.new_tokens + t, position);
}

// The grid's y and z together number the batch entries: each goes up to 65535.
__device__ __forceinline__ std::uint32_t BatchIndex() {
  return blockIdx.z * gridDim.y + blockIdx.y;
}

// Grid: (rows * parts / warps, 2 * batch). REQUIRES: new_tokens <= kBallotTokens.
template <int N, bool kAlternate, bool kEarly, class T>
__global__ void __launch_bounds__(kFewThreads) RopeUpdateFewKernel(const __grid_constant__ Args a) {
  if (!kEarly) WaitForPredecessor();
  const std::uint32_t lane = threadIdx.x;
  const std::uint32_t warp = blockIdx.x * blockDim.y + threadIdx.y;
  const std::uint32_t l = a.parts.Divide(warp);
  const std::uint32_t at = (warp - l * a.parts.divisor) * kWarp + lane;  // chunk
  const std::uint32_t index = BatchIndex();
  const bool is_v = index >= a.batch;
  const std::uint32_t b = is_v ? index - a.batch : index;
  if (l >= a.cache_len || b >= a.batch) return;
  // The row and the positions are under way at once: most rows stay as they are.
  const std::int32_t* positions = a.positions + std::uint64_t{b} * a.new_tokens + lane;
  std::int32_t low = -1, high = -1;
  if (lane < a.new_tokens) low = LoadInOrder(positions);
  if (lane + kWarp < a.new_tokens) high = LoadInOrder(positions + kWarp);
  const Plane plane = PlaneOf(a, is_v, b);
  const T* const cache = RowAt<T>(a, plane.cache, l) + std::size_t{at} * N;
  T* const to = RowAt<T>(a, plane.to, l) + std::size_t{at} * N;
  const bool has_chunk = at < a.chunks;
  ChunkOf<T, N> chunk;
  if (!kEarly && has_chunk) chunk = LoadChunk<N>(cache);
  const unsigned low_hits = __ballot_sync(~0U, low == static_cast<std::int32_t>(l));
  const unsigned high_hits = __ballot_sync(~0U, high == static_cast<std::int32_t>(l));
  if (kEarly) WaitForPredecessor();
  LetSuccessorStart();
  if (has_chunk) {
    if ((low_hits | high_hits) != 0) {
      const int last = high_hits != 0 ? 63 - __clz(static_cast<int>(high_hits))
                                      : 31 - __clz(static_cast<int>(low_hits));
      chunk = NewChunk<N, kAlternate, T>(a, plane, static_cast<std::uint32_t>(last), l, at);
    } else if (kEarly) {
      chunk = LoadChunk<N>(cache);
    }
    SaveChunk<N>(to, chunk);
  }
  if (warp == 0 && !is_v) {
    if (lane < a.new_tokens) CheckPosition(a, b, lane, low);
    if (lane + kWarp < a.new_tokens) CheckPosition(a, b, lane + kWarp, high);
  }
}

// Copies a row, or writes a new one: kChunks chunks of each lane under way at once.
template <int N, bool kAlternate, class T>
__device__ __forceinline__ void WriteRow(const Args& a, const Plane& plane, std::uint32_t l,
                                         int winner, std::uint32_t lane) {
  const T* const cache = RowAt<T>(a, plane.cache, l);
  T* const to = RowAt<T>(a, plane.to, l);
  if (winner >= 0) {
#pragma unroll 1
    for (std::uint32_t at = lane; at < a.chunks; at += kWarp) {
      const auto t = static_cast<std::uint32_t>(winner);
      SaveChunk<N>(to + std::size_t{at} * N, NewChunk<N, kAlternate, T>(a, plane, t, l, at));
    }
    return;
  }
#pragma unroll 1
  for (std::uint32_t first = lane; first < a.chunks; first += kChunks * kWarp) {
    ChunkOf<T, N> chunks[kChunks];
#pragma unroll
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      const std::uint32_t at = first + i * kWarp;
      if (at < a.chunks) chunks[i] = LoadChunk<N>(cache + std::size_t{at} * N);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      const std::uint32_t at = first + i * kWarp;
      if (at < a.chunks) SaveChunk<N>(to + std::size_t{at} * N, chunks[i]);
    }
  }
}

// Grid: (runs, batch).
template <int N, bool kAlternate, class T>
__global__ void __launch_bounds__(kRunThreads, 4)
    RopeUpdateManyKernel(const __grid_constant__ Args a) {
  WaitForPredecessor();
  __shared__ int winners[kMaxRun];
  const std::uint32_t b = BatchIndex();
  const std::uint32_t first = blockIdx.x * a.run;
  const std::uint32_t rows = min(a.cache_len - first, a.run);
  if (b >= a.batch) return;
  if (threadIdx.x < kMaxRun) winners[threadIdx.x] = -1;
  __syncthreads();
  const std::int32_t* positions = a.positions + std::uint64_t{b} * a.new_tokens;
#pragma unroll 8
  for (std::uint32_t t = threadIdx.x; t < a.new_tokens; t += kRunThreads) {
    const std::int32_t position = LoadInOrder(positions + t);
    const std::uint32_t at = static_cast<std::uint32_t>(position) - first;
    if (position >= 0 && at < rows) atomicMax(&winners[at], static_cast<int>(t));
    if (first == 0) CheckPosition(a, b, t, position);
  }
  __syncthreads();
#pragma unroll 1
  for (std::uint32_t task = threadIdx.x / kWarp; task < 2 * rows; task += kRunThreads / kWarp) {
    const Plane plane = PlaneOf(a, task % 2 != 0, b);
    WriteRow<N, kAlternate, T>(a, plane, first + task / 2, winners[task / 2], threadIdx.x % kWarp);
  }
}

// Whether chunks of 16 bytes keep all accesses aligned, and hold whole pairs or none.
bool Aligned(const RopeUpdateParams& p) {
  const int elements = 16 / static_cast<int>(SizeOf(p.dtype));
  const bool alternate = p.style == RopeStyle::kInterleaved;
  if (p.head_dim % elements != 0 || p.rotary_dim % (alternate ? elements : 2 * elements) != 0) {
    return false;
  }
  const bool fresh = p.new_tokens == 0 || AllMultiplesOf16({p.k_new, p.v_new, p.cos, p.sin}, {});
  return fresh && AllMultiplesOf16({p.cache_k, p.cache_v, p.out}, {});
}

Args MakeArgs(const RopeUpdateParams& p, int chunk) {
  const auto bytes = [](const void* memory) { return static_cast<const char*>(memory); };
  const std::int64_t row = std::int64_t{p.heads} * p.head_dim;
  const std::int64_t row_bytes = row * static_cast<std::int64_t>(SizeOf(p.dtype));
  Args a = {};
  a.k_new = bytes(p.k_new);
  a.v_new = bytes(p.v_new);
  a.cache_k = bytes(p.cache_k);
  a.cache_v = bytes(p.cache_v);
  a.fresh_bytes = p.new_tokens * row_bytes;
  a.cache_bytes = p.cache_len * row_bytes;
  a.out_k = static_cast<char*>(p.out);
  a.out_v = a.out_k + p.batch * a.cache_bytes;
  a.row_bytes = static_cast<std::uint32_t>(row_bytes);
  a.batch = static_cast<std::uint32_t>(p.batch);
  a.new_tokens = static_cast<std::uint32_t>(p.new_tokens);
  a.cache_len = static_cast<std::uint32_t>(p.cache_len);
  a.positions = p.positions;
  a.cos = p.cos;
  a.sin = p.sin;
  a.fault = p.fault;
  a.rotary_pairs = p.rotary_dim / 2;
  a.chunks = static_cast<std::uint32_t>(row / chunk);
  a.head_chunks = Divider(static_cast<std::uint32_t>(p.head_dim / chunk));
  a.wide_table = p.table_dtype == DType::kFP32;
  a.run = kMaxRun;
  while (a.run > kMinRun && p.batch * (p.cache_len / a.run) < kWantedBlocks) a.run /= 2;
  return a;
}

dim3 GridOf(std::int64_t x, std::int64_t y) {
  return dim3(static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(std::min(y, kMaxGridY)),
              static_cast<std::uint32_t>((y + kMaxGridY - 1) / kMaxGridY));
}

template <int N, bool kAlternate, class T>
cudaError_t LaunchStyle(const RopeUpdateParams& p, cudaStream_t stream) {
  Args a = MakeArgs(p, N);
  const std::int64_t parts = (a.chunks + kWarp - 1) / kWarp;
  const std::int64_t warps = p.cache_len * parts;
  if (p.new_tokens > kBallotTokens || warps >= (std::int64_t{1} << 31)) {
    return LaunchDependent(p.dependent_launch, RopeUpdateManyKernel<N, kAlternate, T>,
                           GridOf((p.cache_len + a.run - 1) / a.run, p.batch), dim3(kRunThreads),
                           stream, a);
  }
  a.parts = Divider(static_cast<std::uint32_t>(parts));
  constexpr std::int64_t kWarps = kFewThreads / kWarp;
  const dim3 grid = GridOf((warps + kWarps - 1) / kWarps, 2 * p.batch);
  constexpr bool kAligned = N * sizeof(T) == 16;
  const bool early = kAligned && p.dependent_launch == DependentLaunch::kIndexEarly;
  return LaunchDependent(p.dependent_launch,
                         early ? RopeUpdateFewKernel<N, kAlternate, kAligned, T>
                               : RopeUpdateFewKernel<N, kAlternate, false, T>,
                         grid, dim3(kWarp, static_cast<std::uint32_t>(kWarps)), stream, a);
}

template <int N, class T>
cudaError_t LaunchChunk(const RopeUpdateParams& p, cudaStream_t stream) {
  return p.style == RopeStyle::kInterleaved ? LaunchStyle<N, true, T>(p, stream)
                                            : LaunchStyle<N, false, T>(p, stream);
}

}  // namespace

cudaError_t RopeUpdate(const RopeUpdateParams& p, cudaStream_t stream) {
  const bool aligned = Aligned(p);
  return WithType(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return aligned ? LaunchChunk<16 / sizeof(T), T>(p, stream) : LaunchChunk<1, T>(p, stream);
  });
}

}  // namespace lariat::cuda
