// SPDX-License-Identifier: Apache-2.0
// MlaAppend of given rows for the shape that DeepSeek's family has: a latent of 512 with a norm and
// a k_pe of 64 that turns whole, in 16 bits. Same order and hence same bits as mla_append.cu.
//
// One warp per token. A lane has the chunks `lane` and `lane + 32` of the latent and word `lane` of
// k_pe: two elements, a pair of the interleaved styles; the others exchange words by shuffles, so
// all styles load and store alike. What counts:
// - Few instructions: 250 instead of about 600, with strides in bytes and no branch for NaNs. An
//   H200 runs at 1.4 GHz behind a GEMM that draws all its power.
// - Rows, slot and position are all under way before one is used, which takes a kernel without a
//   branch for faults: the compiler moves loads behind such a branch, or waits for the slot first.
// - Dependents start behind the wait. Before it, they take part of the machine too early (1,024
//   tokens: 2.3 us instead of 1.9), but where there are few.
// - With kIndexEarly all that does not depend on the row is done before the wait: slot, position,
//   tables, weights, and where the row goes. That takes 0.1 us of 64 tokens, 0.3 of 4,096, and 8
//   registers, for nothing but the row is in flight behind the wait.
//
// On an H200 in bf16, cold from 256 tokens on, in a graph with dependent launch (us):
//   tokens                     1     64    256   1024   8192  65536
//   kAfterWait              0.79   1.01   1.45   1.86   6.62   41.1
//   kIndexEarly             0.78   0.91   1.43   1.79   6.22   41.7
// What follows was measured by programs that are not kept, some of it with a trial kernel of the
// same mapping, which took 0.87, 1.01, 1.48, 1.86, 3.8 (4,096 tokens), 6.2 and 39.7; a copy of the
// bytes took 0.50, 0.69, 1.29, 1.64, 3.42, 5.66 and 36.7.
// Tried without gain: two warps per token (1.0, 1.1, 1.9, 2.5, 5.5, 10.4, 80: a block costs 1.2 ns
// to start), also with kIndexEarly (0.82, 0.95, 1.53, 1.9, ..., 7.1 with two tokens a block: what
// one warp need not compute it waits for at the barrier), two tokens per warp (1.3, 1.4, 1.9, 2.3, 4.2, 6.4, 40.3), blocks of 8 or 16 warps (0
// to 6 % slower), the weights in shared memory at 32 registers (0.97, ..., 3.7, 6.1, 39.7) or at 44
// (4.0, 6.5, 39.7), fewer blocks on a multiprocessor (6.4, 42.6), st.cs or plain stores, tables
// kept in L2 by a policy (all within 1 %), no trigger (1.05, 1.12, 1.80, 2.16, 4.0, 6.4, 39.9).
//
// Behind its GEMM of 7168 -> 576, a launch that waits for the GEMM to end is the better one from
// 1,024 tokens on, where the GEMM lets no dependent start early. As multiples of the GEMM's time:
//   tokens                     1     64    256   1024   4096   8192
//   dependent launch        1.13   1.11   1.14   1.155  1.079  1.061
//   plain launch            1.22   1.18   1.22   1.135  1.076  1.059
//   a plain empty kernel    1.09   1.07   1.06   1.03   1.01   1.01
#include <algorithm>
#include <limits>

#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/mla_append.cuh"

namespace lariat::cuda {
namespace {

constexpr int kRank = 512;
constexpr int kRopeDim = 64;
constexpr int kPairs = kRopeDim / 2;

// What the kernel uses of MlaAppendParams. Strides are bytes.
struct Args {
  const char* c_kv;
  const char* k_pe;
  const char* weight;
  const std::int64_t* slots;
  const std::int32_t* positions;
  const float* cos;
  const float* sin;
  char* cache;
  std::uint32_t c_kv_stride, k_pe_stride, block_stride, row_stride;
  std::uint32_t num_tokens, num_positions;
  std::int64_t num_slots;
  Divider block;
  float eps;
  RopeStyle style;
  bool trigger_first;  // before the wait
  FaultRecord* fault;
  FaultRecord* const* fault_indirect;
};

// For a token that stores nothing. Out of line, so that it costs the others no registers.
__device__ __noinline__ void Reject(const Args& a, std::uint32_t index, std::int64_t slot,
                                    std::int32_t position) {
  if (slot < 0 || threadIdx.x % kMlaWarp != 0) return;
  RecordBadToken(a.fault, a.fault_indirect, index, slot, slot >= a.num_slots, position);
}

// Rounds two values. The hardware's NaN, 0x7FFF, is the only result above the canonical one.
template <class T>
__device__ __forceinline__ std::uint32_t Rounded(float a, float b) {
  constexpr std::uint32_t kNaN = std::is_same_v<T, Bf16> ? kBf16NaN : kFp16NaN;
  Pack<T, 2> pair;
  pair.Set2(0, a, b);
  return __vmins2(pair.w[0], kNaN << 16 | kNaN);
}

template <class T>
__device__ __forceinline__ Pack<T, kMlaChunk> Normed(const Pack<T, kMlaChunk>& x, float factor,
                                                     const Pack<T, kMlaChunk>& weight) {
  const auto value = [&](int i) { return __fmul_rn(__fmul_rn(x.Get(i), factor), weight.Get(i)); };
  Pack<T, kMlaChunk> out;
#pragma unroll
  for (int i = 0; i < kMlaChunk; i += 2) out.w[i / 2] = Rounded<T>(value(i), value(i + 1));
  return out;
}

template <class T>
__device__ __forceinline__ Pack<T, kMlaChunk> LoadChunk(const char* from) {
  return Load<kMlaChunk>(reinterpret_cast<const T*>(from));
}

// Turns a pair per lane. Words come and go as they lie in memory: lane by lane.
template <class T>
__device__ __forceinline__ std::uint32_t Turned(RopeStyle style, std::uint32_t word, float c,
                                                float s) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const int lane = static_cast<int>(threadIdx.x) % kMlaWarp;
  if (style == RopeStyle::kHalf) {  // element `lane` of either half
    const std::uint32_t first = __shfl_sync(kAll, word, lane / 2);
    const std::uint32_t second = __shfl_sync(kAll, word, lane / 2 + kMlaWarp / 2);
    word = __byte_perm(first, second, lane % 2 == 0 ? 0x5410 : 0x7632);
  }
  const Pack<T, 2> pair = {{word}};
  const float x = pair.Get(0);
  const float y = pair.Get(1);
  word = Rounded<T>(__fadd_rn(__fmul_rn(x, c), -__fmul_rn(y, s)),
                    __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
  if (style != RopeStyle::kInterleaved) {  // elements 2 lane and 2 lane + 1 of both halves in a row
    const int from = 2 * lane % kMlaWarp;
    const std::uint32_t first = __shfl_sync(kAll, word, from);
    const std::uint32_t second = __shfl_sync(kAll, word, from + 1);
    word = __byte_perm(first, second, lane < kMlaWarp / 2 ? 0x5410 : 0x7632);
  }
  return word;
}

// --- Loads and stores that are no branch, and that the compiler keeps in order.

__device__ __forceinline__ float LoadTableIf(bool loads, const float* from) {
  float value = 0;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.f32 %0, [%1]; }"
               : "+f"(value)
               : "l"(from), "r"(static_cast<std::uint32_t>(loads)));
  return value;
}

// Past L1, as nobody reads it here.
template <class T>
__device__ __forceinline__ void StoreIf(bool stores, char* to, const Pack<T, kMlaChunk>& x) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.cg.v4.b32 [%4], {%0, %1, %2, %3}; }" ::
          "r"(x.w[0]),
      "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3]), "l"(to), "r"(static_cast<std::uint32_t>(stores))
      : "memory");
}
__device__ __forceinline__ void StoreIf(bool stores, char* to, std::uint32_t word) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.cg.b32 [%1], %0; }" ::"r"(word),
               "l"(to), "r"(static_cast<std::uint32_t>(stores))
               : "memory");
}

template <class T, bool kIndexEarly>
__global__ void __launch_bounds__(kMlaThreads, 1)
    MlaAppend512Kernel(const __grid_constant__ Args a) {
  const std::uint32_t lane = threadIdx.x % kMlaWarp;
  const std::uint32_t index = blockIdx.x * (blockDim.x / kMlaWarp) + threadIdx.x / kMlaWarp;
  if (index >= a.num_tokens) return;
  const std::int64_t* const slot_at = a.slots + index;
  const std::int32_t* const position_at = a.positions + index;
  const char* const latent_at = a.c_kv + lane * 16 + std::uint64_t{index} * a.c_kv_stride;
  const char* const key_at = a.k_pe + lane * 4 + std::uint64_t{index} * a.k_pe_stride;
  const char* const weight_at = a.weight + lane * 16;
  Pack<T, kMlaChunk> first, second;
  std::uint32_t key = 0;
  const auto load_row = [&] {
    WaitForPredecessor();
    if (!a.trigger_first) LetSuccessorStart();
    first = LoadChunk<T>(latent_at);
    second = LoadChunk<T>(latent_at + kMlaWarp * 16);
    key = LoadInOrder(reinterpret_cast<const std::uint32_t*>(key_at));
  };
  if (a.trigger_first) LetSuccessorStart();
  if constexpr (!kIndexEarly) load_row();
  const std::int32_t position = LoadInOrder(position_at);
  const std::int64_t slot = LoadInOrder(slot_at);
  const auto first_weight = LoadChunk<T>(weight_at);
  const auto second_weight = LoadChunk<T>(weight_at + kMlaWarp * 16);

  // No branch before the end: the compiler would move loads behind it.
  const auto row = static_cast<std::uint32_t>(position);  // a negative one is a large row
  const bool in_table = row < a.num_positions;
  const bool good =
      static_cast<std::uint64_t>(slot) < static_cast<std::uint64_t>(a.num_slots) && in_table;
  const float c = LoadTableIf(in_table, a.cos + std::uint64_t{row} * kPairs + lane);
  const float s = LoadTableIf(in_table, a.sin + std::uint64_t{row} * kPairs + lane);
  const auto small_slot = static_cast<std::uint32_t>(slot);
  const std::uint32_t block = a.block.Divide(small_slot);
  char* const to = a.cache + std::uint64_t{block} * a.block_stride +
                   std::uint64_t{small_slot - block * a.block.divisor} * a.row_stride;
  if constexpr (kIndexEarly) load_row();

  const float sum = SumOfLanes(__fadd_rn(SumOfSquares(first), SumOfSquares(second)));
  // A product by a power of two rounds as the quotient does.
  const float factor = InverseRms(__fmul_rn(sum, 1.0F / kRank), a.eps);
  StoreIf(good, to + lane * 16, Normed(first, factor, first_weight));
  StoreIf(good, to + lane * 16 + kMlaWarp * 16, Normed(second, factor, second_weight));
  StoreIf(good, to + lane * 4 + kRank * sizeof(T), Turned<T>(a.style, key, c, s));
  if (!good) Reject(a, index, slot, position);
}

constexpr bool Fits32(std::int64_t n) {
  return n >= 0 && n <= std::numeric_limits<std::uint32_t>::max();
}

}  // namespace

bool MlaAppend512Takes(const MlaArgs& args) {
  const MlaAppendParams& p = args.p;
  return p.rank == kRank && p.rope_dim == kRopeDim && p.rotary_dim == kRopeDim &&
         p.norm_weight != nullptr && p.table_choice == nullptr && p.in_dtype == p.dtype &&
         SizeOf(p.dtype) == 2 && args.small_slots && Fits32(2 * p.c_kv_stride) &&
         Fits32(2 * p.k_pe_stride) && Fits32(2 * p.block_stride) && Fits32(2 * p.row_stride);
}

cudaError_t MlaAppend512(const MlaArgs& args, const MlaLaunch& launch) {
  const MlaAppendParams& p = args.p;
  const auto bytes = [](std::int64_t elements) { return static_cast<std::uint32_t>(2 * elements); };
  Args a = {};
  a.c_kv = static_cast<const char*>(p.c_kv);
  a.k_pe = static_cast<const char*>(p.k_pe);
  a.weight = static_cast<const char*>(p.norm_weight);
  a.slots = p.slots;
  a.positions = p.positions;
  a.cos = p.cos;
  a.sin = p.sin;
  a.cache = static_cast<char*>(p.cache);
  a.c_kv_stride = bytes(p.c_kv_stride);
  a.k_pe_stride = bytes(p.k_pe_stride);
  a.block_stride = bytes(p.block_stride);
  a.row_stride = bytes(p.row_stride);
  a.num_tokens = static_cast<std::uint32_t>(p.num_tokens);
  a.num_positions = static_cast<std::uint32_t>(std::min(p.num_positions, std::int64_t{1} << 31));
  a.num_slots = p.num_slots;
  a.block = args.block;
  a.eps = p.eps;
  a.style = p.style;
  a.fault = p.fault;
  a.fault_indirect = p.fault_indirect;
  const bool bf16 = p.dtype == DType::kBF16;
  const bool early = launch.dependent == DependentLaunch::kIndexEarly;
  a.trigger_first = early && p.num_tokens <= kFewTokens;
  if (early) {
    return bf16 ? LaunchMla(MlaAppend512Kernel<Bf16, true>, launch, a)
                : LaunchMla(MlaAppend512Kernel<Fp16, true>, launch, a);
  }
  return bf16 ? LaunchMla(MlaAppend512Kernel<Bf16, false>, launch, a)
              : LaunchMla(MlaAppend512Kernel<Fp16, false>, launch, a);
}

}  // namespace lariat::cuda
