// SPDX-License-Identifier: Apache-2.0
// MlaAppend from given rows: RMSNorm of the latent, RoPE of k_pe, one row stored per token.
//
// Bytes. A row of 512 + 64 bf16 elements is 1152 bytes read and 1152 written, with 12 of slot and
// position; its 256 bytes of cos and sin mostly come from L2. At an H200's 4.29 TB/s that is 0.55
// us for 1,024 tokens, 4.4 for 8,192 and 35.4 for 65,536. The floor is higher, as a launch has its
// own time: a plain copy of as many bytes takes 1.6, 5.6 and 37.0 us. The arithmetic hides behind
// the traffic.
//
// What was chosen. One warp per token: the chunks of 8 elements lie 32 apart in a lane, so that the
// documented order of the sum costs five shuffles and no exchange between warps. Two chunks of a
// lane (a rank of up to 512) stay in registers from the sum to the store; the others are read
// again, from a cache. What counts for few tokens is the chain of loads that depend on one another:
// slot and position, then the tables. So everything that depends on nothing is loaded first,
// weights too, and the tables before the sum. Stores go past L1 (st.cg: 20 % at 1,024 tokens).
// Blocks are of one warp for few tokens, then of two, for many tokens of four: fewer blocks start
// sooner. There, tables are read through an L2 policy that keeps them while the rows pass by.
//
// Behind a kernel that lets it start early the launch is a dependent one (dependent_launch.cuh):
// blocks come to life while that kernel ends. They wait for it before they load anything at all, so
// nothing is asked of what came before.
//
// A rank of 512 with a k_pe of 64 in 16 bits has a kernel of its own (mla_append_512.cu). Anything
// that is not aligned or no multiple of 8 goes element by element (mla_append_elements.cu). All
// keep the same order and hence give the same bits.
#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/mla_append.cuh"
#include "backend/cuda/ops.h"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

constexpr int kHeld = 2;                                    // chunks of a lane kept in registers
constexpr std::int64_t kLargeCall = 4096;                   // tokens from which blocks are large
constexpr std::int64_t kLargeProduct = 1024;                // from which a plain launch is better
constexpr std::int64_t kPinBytes = std::int64_t{16} << 20;  // traffic from which tables are pinned

template <class Out, class In>
__device__ __forceinline__ Pack<Out, kMlaChunk> Normed(const Pack<In, kMlaChunk>& x, float inverse,
                                                       const Pack<In, kMlaChunk>& weight) {
  float values[kMlaChunk];
#pragma unroll
  for (int i = 0; i < kMlaChunk; ++i) {
    values[i] = __fmul_rn(__fmul_rn(x.Get(i), inverse), weight.Get(i));
  }
  Pack<Out, kMlaChunk> packed;
#pragma unroll
  for (int i = 0; i < kMlaChunk; i += 2) packed.Set2(i, values[i], values[i + 1]);
  MakeNaNsCanonical(packed, values);
  return packed;
}

// Save, but past L1.
template <int N, class T>
__device__ __forceinline__ void SavePastL1(T* to, const Pack<T, N>& pack) {
  constexpr int kBytes = static_cast<int>(N * sizeof(T));
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      __stcg(reinterpret_cast<uint4*>(to) + i,
             make_uint4(pack.w[4 * i], pack.w[4 * i + 1], pack.w[4 * i + 2], pack.w[4 * i + 3]));
    }
  } else {
    static_assert(kBytes == 8);
    __stcg(reinterpret_cast<uint2*>(to), make_uint2(pack.w[0], pack.w[1]));
  }
}

// The elements of even index, then those of odd index.
template <class T>
__device__ __forceinline__ Pack<T, 8> Unzip(const Pack<T, 8>& in) {
  Pack<T, 8> out;
  constexpr int kHalf = Pack<T, 8>::kWords / 2;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const std::uint32_t a = in.w[2 * i];
    const std::uint32_t b = in.w[2 * i + 1];
    out.w[i] = sizeof(T) == 4 ? a : __byte_perm(a, b, 0x5410);
    out.w[kHalf + i] = sizeof(T) == 4 ? b : __byte_perm(a, b, 0x7632);
  }
  return out;
}

// A lane's chunks of a latent, and of its norm's weight: the first in registers, the rest in
// memory.
template <class In>
struct Latent {
  using Chunk = Pack<In, kMlaChunk>;
  const In* data;
  const In* weight;  // null: no norm
  int lane, chunks;
  Chunk x[kHeld], w[kHeld];

  __device__ __forceinline__ Latent(const MlaAppendParams& p, std::int64_t index, int lane_index)
      : data(static_cast<const In*>(p.c_kv) + index * p.c_kv_stride),
        weight(static_cast<const In*>(p.norm_weight)),
        lane(lane_index),
        chunks(p.rank / kMlaChunk) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int c = lane + i * kMlaWarp;
      if (c < chunks) x[i] = Load<kMlaChunk>(data + c * kMlaChunk);
      if (c < chunks && weight != nullptr) w[i] = Load<kMlaChunk>(weight + c * kMlaChunk);
    }
  }

  // Calls run(c, chunk c, its weight or null where that is not in a register), ascending.
  template <class Run>
  __device__ __forceinline__ void ForEach(Run&& run) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int c = lane + i * kMlaWarp;
      if (c < chunks) run(c, x[i], &w[i]);
    }
#pragma unroll 1
    for (int c = lane + kHeld * kMlaWarp; c < chunks; c += kMlaWarp) {
      run(c, Load<kMlaChunk>(data + c * kMlaChunk), static_cast<const Chunk*>(nullptr));
    }
  }

  template <class Out>
  __device__ __forceinline__ void Store(const MlaAppendParams& p, Out* to) const {
    if (weight == nullptr) {
      ForEach([&](int c, const Chunk& chunk, const Chunk*) {
        SavePastL1<kMlaChunk>(to + c * kMlaChunk, Convert<Out>(chunk));
      });
      return;
    }
    float sum = 0;
    ForEach(
        [&](int, const Chunk& chunk, const Chunk*) { sum = __fadd_rn(sum, SumOfSquares(chunk)); });
    const float inverse = InverseRms(p, sum);
    ForEach([&](int c, const Chunk& chunk, const Chunk* held) {
      const Chunk gain = held != nullptr ? *held : Load<kMlaChunk>(weight + c * kMlaChunk);
      SavePastL1<kMlaChunk>(to + c * kMlaChunk, Normed<Out>(chunk, inverse, gain));
    });
  }
};

// Four values of cos or sin.
__device__ __forceinline__ Table<float, 4> LoadTable(const float* from, bool pin) {
  std::uint64_t last, normal;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(normal));
  Table<float, 4> table;
  asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(table.v[0]), "=f"(table.v[1]), "=f"(table.v[2]), "=f"(table.v[3])
               : "l"(from), "l"(pin ? last : normal));
  return table;
}

// Four pairs of k_pe, or eight elements that keep their places.
template <class In>
struct KeyUnit {
  int x, y;  // elements of k_pe
  bool turns;
  Pack<In, 8> data;
  Table<float, 4> cos, sin;

  __device__ __forceinline__ void Load(const MlaAppendParams& p, const In* key, int unit) {
    const bool half = p.style == RopeStyle::kHalf;
    turns = 8 * unit < p.rotary_dim;
    x = turns && half ? 4 * unit : 8 * unit;
    y = 4 * unit + p.rotary_dim / 2;
    data = LoadPairs<4>(key + x, key + y, !(turns && half));
  }
  __device__ __forceinline__ void LoadTables(const MlaArgs& a, const MlaToken& token, int unit) {
    if (!turns) return;
    const std::int64_t at = TableRow(a.p, token) + 4 * unit;
    cos = LoadTable(a.p.cos + at, a.pin_tables);
    sin = LoadTable(a.p.sin + at, a.pin_tables);
  }
  template <class Out>
  __device__ __forceinline__ void Store(const MlaAppendParams& p, Out* to, int unit) const {
    if (!turns) return SavePastL1<8>(to + x, Convert<Out>(data));
    if (p.style == RopeStyle::kInterleaved) {
      return SavePastL1<8>(to + x, TurnPairs<Out, 4>(data, cos, sin, true));
    }
    const Pack<Out, 8> turned = p.style == RopeStyle::kHalf
                                    ? TurnPairs<Out, 4>(data, cos, sin, false)
                                    : Unzip(TurnPairs<Out, 4>(data, cos, sin, true));
    Pack<Out, 4> first, second;
#pragma unroll
    for (int i = 0; i < Pack<Out, 4>::kWords; ++i) {
      first.w[i] = turned.w[i];
      second.w[i] = turned.w[Pack<Out, 4>::kWords + i];
    }
    SavePastL1<4>(to + 4 * unit, first);
    SavePastL1<4>(to + y, second);
  }
};

// REQUIRES: Wide.
template <class In, class Out>
__global__ void __launch_bounds__(kMlaThreads) MlaAppendKernel(const __grid_constant__ MlaArgs a) {
  WaitForPredecessor();
  LetSuccessorStart();
  const MlaAppendParams& p = a.p;
  const std::int64_t index = TokenOfWarp();
  const int lane = static_cast<int>(threadIdx.x) % kMlaWarp;
  if (index >= p.num_tokens) return;

  // None of these loads depends on another: all are under way before one is used, though a padded
  // token will not need them.
  const MlaToken token = LoadToken(p, index);
  const Latent<In> latent(p, index, lane);
  const In* const key = static_cast<const In*>(p.k_pe) + index * p.k_pe_stride;
  const int units = p.rope_dim / 8;
  KeyUnit<In> unit;
  if (lane < units) unit.Load(p, key, lane);

  if (!Judge(p, index, token, lane == 0)) return;
  if (lane < units) unit.LoadTables(a, token, lane);
  Out* const to = RowAt<Out>(a, token.slot);
  latent.Store(p, to);
  if (lane < units) unit.Store(p, to + p.rank, lane);
#pragma unroll 1
  for (int u = lane + kMlaWarp; u < units; u += kMlaWarp) {
    unit.Load(p, key, u);
    unit.LoadTables(a, token, u);
    unit.Store(p, to + p.rank, u);
  }
}

// Whether eight elements at a time keep all accesses aligned.
bool Wide(const MlaAppendParams& p) {
  const auto in = static_cast<std::int64_t>(SizeOf(p.in_dtype));
  const auto out = static_cast<std::int64_t>(SizeOf(p.dtype));
  return p.rank % 8 == 0 && p.rope_dim % 8 == 0 && p.rotary_dim % 8 == 0 &&
         AllMultiplesOf16(
             {p.c_kv, p.k_pe, p.norm_weight, p.cos, p.sin, p.cache},
             {p.c_kv_stride * in, p.k_pe_stride * in, p.block_stride * out, p.row_stride * out});
}

MlaArgs MakeArgs(const MlaAppendParams& p) {
  MlaArgs a = {p, Divider(static_cast<std::uint32_t>(p.block_size)),
               /*small_slots=*/p.num_slots < (std::int64_t{1} << 31), /*pin_tables=*/false};
  const auto bytes = static_cast<std::int64_t>(SizeOf(p.in_dtype) + SizeOf(p.dtype));
  a.pin_tables = p.num_tokens * (std::int64_t{p.rank} + p.rope_dim) * bytes >= kPinBytes;
  return a;
}

}  // namespace

cudaError_t MlaAppendRows(const MlaAppendParams& p, cudaStream_t stream) {
  const MlaArgs args = MakeArgs(p);
  MlaLaunch launch = {};
  launch.stream = stream;
  // The large GEMMs of cuBLAS let no kernel behind them start early.
  launch.dependent = p.w_down == nullptr || p.num_tokens < kLargeProduct ? p.dependent_launch
                                                                         : DependentLaunch::kOff;
  const std::int64_t warps = p.num_tokens <= kFewTokens  ? 1
                             : p.num_tokens < kLargeCall ? 2
                                                         : kMlaThreads / kMlaWarp;
  launch.grid = dim3(static_cast<std::uint32_t>((p.num_tokens + warps - 1) / warps));
  launch.block = dim3(static_cast<std::uint32_t>(warps * kMlaWarp));
  if (!Wide(p)) return MlaAppendElements(args, launch);
  if (MlaAppend512Takes(args)) return MlaAppend512(args, launch);
  return WithAppendTypes(p.in_dtype, p.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return LaunchMla(MlaAppendKernel<In, Out>, launch, args);
  });
}

}  // namespace lariat::cuda
