// SPDX-License-Identifier: Apache-2.0
// MlaCompress in one launch where the sizes are compiled in: the project's first shape, model_dim
// 256, rank 48, 128 outputs of K and as many of V, in fp32, each weight in one piece. Same work as
// mla_compress.cu, which any other small shape takes. In code for sm_90 and later.
//
// A block owns three tokens: 384 tokens are 128 blocks. Each reads 98 kB of weights out of L2 (0.8
// us at 64 bytes a clock) and makes 147 k multiply-adds (0.3 us); with the 0.6 us of a launch,
// twice the latency of L2 and the sums 2.2. On an H200 it takes 2.78, as a dependent launch 2.38,
// and 1.98 where that brings the weights in before its wait.
//
// The weights come by bulk copies, each begun by a warp of its own (a thread needs 0.05 us for
// one): w_down in four pieces, so that sums begin with the first of them; w_up, which is needed
// last, once those are on their way. Two blocks fit on a multiprocessor, so that a dependent launch
// brings its weights in while the kernel before it ends.
//
// The down-product: a thread has four columns of every kSplits-th inner index, and a row's three
// tokens lie side by side. The up-product: four columns of a quarter of the rank, then shuffles.
//
// Tried: weights straight to registers, 100 of them a thread (3.19 us, early 2.19 to 2.24: the
// loads of hidden came back with the last of the weights), with w_up 16 bytes at a time
// (3.14, 2.19); one of the two by bulk copies (3.0 to 3.1, 2.06 to 2.14); copies begun by one
// thread (2.93, 2.12), barriers made by one (2.98, 2.02); copies to addresses that are multiples of
// 16 but not of 128 (3.7); hidden by bulk copies (early 2.3 and more); a cluster of two blocks that
// share six tokens and halve the weights (3.5). Next: what is left are reads of shared memory, 8
// clocks of a multiprocessor for 12 multiply-adds of a warp.
#include "backend/cuda/byte_barrier.cuh"
#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"

namespace lariat::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 3;  // of a block
constexpr int kModelDim = 256, kRank = 48, kHalf = 128, kOutputs = 2 * kHalf;
constexpr int kGroups = kRank / 4;           // threads side by side in the down-product
constexpr int kSplits = kThreads / kGroups;  // and along its inner dimension
constexpr int kUsed = kSplits * kGroups;
constexpr int kPieces = 4;  // of w_down
constexpr int kPieceRows = kModelDim / kPieces;
constexpr int kPieceSteps = kPieceRows / kSplits;  // whose rows lie in a piece and those before it
constexpr int kQuarter = kRank / 4;                // of the rank, a thread's in the up-product
static_assert(kOutputs == kThreads && kModelDim == kThreads);
static_assert(kPieces * kPieceSteps * kSplits <= kModelDim &&
              (kPieces * kPieceSteps + 1) * kSplits >= kModelDim);
// Partial sums lie over rows that nobody reads behind the last piece's wait.
static_assert(kSplits * kTokens <= (kPieces - 1) * kPieceSteps * kSplits);

struct FixedArgs {
  const float *hidden, *w_down;
  const float* w_up[2];   // its halves, as they lie in memory
  float *k, *v, *latent;  // latent may be null
  std::int64_t hidden_stride, k_stride, v_stride, latent_stride;
  std::int64_t num_tokens;
  std::int32_t up_stride, v_begin;  // of w_up, in float4: a row, and the first output of V
};

struct Shared {
  alignas(128) float down[kModelDim * kRank];
  alignas(128) float up[2][kRank * kHalf];
  alignas(128) float4 rows[kModelDim];  // of the tokens; w is not used
  float latents[kTokens][kRank];
  std::uint64_t barriers[kPieces + 2];  // of w_down's pieces and of w_up's halves
};

__device__ __forceinline__ float Part(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

__device__ __forceinline__ void MultiplyAdd(float4& sum, float x, const float4& w) {
  sum.x = fmaf(x, w.x, sum.x);
  sum.y = fmaf(x, w.y, sum.y);
  sum.z = fmaf(x, w.z, sum.z);
  sum.w = fmaf(x, w.w, sum.w);
}

// Begins copies [begin, end): w_down's pieces, then w_up's halves. By one lane of each warp, copy
// by copy. Not unrolled: racecheck takes a barrier made under a predicate for every lane's.
__device__ __forceinline__ void Bring(Shared& s, const FixedArgs& a, int begin, int end, int warp) {
#pragma unroll 1
  for (int i = begin + warp; i < end; i += kThreads / 32) {
    constexpr int kPiece = kPieceRows * kRank, kHalfWeights = kRank * kHalf;
    const bool down = i < kPieces;
    const std::uint32_t barrier = SharedAddress(&s.barriers[i]);
    const int bytes = (down ? kPiece : kHalfWeights) * static_cast<int>(sizeof(float));
    InitBarrier(barrier, 1);
    ExpectBytes(barrier, bytes);
    CopyBulk(SharedAddress(down ? s.down + i * kPiece : s.up[i - kPieces]),
             down           ? a.w_down + i * kPiece
             : i == kPieces ? a.w_up[0]
                            : a.w_up[1],
             bytes, barrier);
  }
}

// A thread's sums over its inner indices. When it returns, all have read the first pieces.
__device__ __forceinline__ void DownProduct(const Shared& s, int thread, float4 (&sums)[kTokens]) {
  const int split = thread < kUsed ? thread / kGroups : 0;
  const float4* const x = s.rows + split;
  const float4* const w = reinterpret_cast<const float4*>(s.down) + (thread < kUsed ? thread : 0);
  const auto step = [&](int i) {
    const float4 row = x[i * kSplits], weights = w[i * kUsed];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) MultiplyAdd(sums[t], Part(row, t), weights);
  };
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    WaitForBytes(SharedAddress(&s.barriers[piece]));
    if (piece + 1 == kPieces) __syncthreads();
#pragma unroll
    for (int i = 0; i < kPieceSteps; ++i) step(piece * kPieceSteps + i);
  }
  if (split + kPieces * kPieceSteps * kSplits < kModelDim) step(kPieces * kPieceSteps);
}

// The sum over four lanes 8 apart that each have a quarter of four outputs, in the lane whose
// quarter has the output's number.
__device__ __forceinline__ float SumOfQuarters(const float4& part, int quarter) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const bool high = quarter >= 2, odd = quarter % 2 != 0;
  const float even_sum =
      (high ? part.z : part.x) + __shfl_xor_sync(kAll, high ? part.x : part.z, 16);
  const float odd_sum =
      (high ? part.w : part.y) + __shfl_xor_sync(kAll, high ? part.y : part.w, 16);
  return (odd ? odd_sum : even_sum) + __shfl_xor_sync(kAll, odd ? even_sum : odd_sum, 8);
}

// kWeightsEarly: the weights before the wait of a dependent launch.
template <bool kWeightsEarly>
__global__ void __launch_bounds__(kThreads, 2) FixedKernel(const __grid_constant__ FixedArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = __shfl_sync(0xFFFFFFFFU, thread / 32, 0);  // one register
  const std::int64_t token = std::int64_t{blockIdx.x} * kTokens;
  const int tokens = static_cast<int>(min(a.num_tokens - token, std::int64_t{kTokens}));

  // A thread has one element of each token's row.
  float hidden[kTokens] = {};
  const auto load_hidden = [&] {
    WaitForPredecessor();
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float* const from = a.hidden + (token + t) * a.hidden_stride + thread;
      if (t < tokens) asm volatile("ld.global.f32 %0, [%1];" : "=f"(hidden[t]) : "l"(from));
    }
  };
  constexpr int kCopies = kPieces + 2;
  if constexpr (!kWeightsEarly) load_hidden();
  if (lane == 0) Bring(s, a, 0, kWeightsEarly ? kCopies : kPieces, warp);
  if constexpr (kWeightsEarly) load_hidden();
  LetSuccessorStart();
  s.rows[thread] = make_float4(hidden[0], hidden[1], hidden[2], 0);
  __syncthreads();
  if (!kWeightsEarly && lane == 0) Bring(s, a, kPieces, kCopies, warp);
  __syncwarp();

  // Over the rows of w_down that all have read.
  float* const partial = s.down;
  {
    float4 sums[kTokens] = {};
    DownProduct(s, thread, sums);
    const int split = thread / kGroups, group = thread % kGroups;
#pragma unroll
    for (int t = 0; t < kTokens && thread < kUsed; ++t) {
      reinterpret_cast<float4*>(partial)[(split * kTokens + t) * kGroups + group] = sums[t];
    }
  }
  __syncthreads();
  if (thread < kTokens * kRank) {
    float four[4] = {};
#pragma unroll
    for (int i = 0; i < kSplits; ++i) four[i % 4] += partial[i * kTokens * kRank + thread];
    const float latent = (four[0] + four[1]) + (four[2] + four[3]);
    const int t = thread / kRank, column = thread - t * kRank;
    s.latents[t][column] = latent;
    if (a.latent != nullptr && t < tokens) {
      a.latent[(token + t) * a.latent_stride + column] = latent;
    }
  }
  __syncthreads();

  WaitForBytes(SharedAddress(&s.barriers[kPieces]));
  WaitForBytes(SharedAddress(&s.barriers[kPieces + 1]));
  const int quarter = lane / 8, four = warp * 8 + lane % 8, first = quarter * kQuarter;
  const bool is_v = four >= kHalf / 4;
  const float4* const w = reinterpret_cast<const float4*>(s.up[0]) + first * a.up_stride +
                          (is_v ? a.v_begin + four - kHalf / 4 : four);
  float4 sums[kTokens] = {};
#pragma unroll
  for (int i = 0; i < kQuarter; i += 4) {
    float4 weights[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) weights[n] = w[(i + n) * a.up_stride];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float4 x = *reinterpret_cast<const float4*>(&s.latents[t][first + i]);
#pragma unroll
      for (int n = 0; n < 4; ++n) MultiplyAdd(sums[t], Part(x, n), weights[n]);
    }
  }
  float* const to = (is_v ? a.v - kHalf : a.k) + four * 4 + quarter;
  const std::int64_t stride = is_v ? a.v_stride : a.k_stride;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float sum = SumOfQuarters(sums[t], quarter);
    if (t < tokens) to[(token + t) * stride] = sum;
  }
}

// W_up_k and W_up_v as one matrix [rank, outputs], or each in one piece.
bool Packed(const MlaCompressParams& p) {
  return p.w_up_k_stride == kOutputs && p.w_up_v_stride == kOutputs &&
         static_cast<const float*>(p.w_up_v) == static_cast<const float*>(p.w_up_k) + kHalf;
}
bool Apart(const MlaCompressParams& p) {
  return p.w_up_k_stride == kHalf && p.w_up_v_stride == kHalf;
}

}  // namespace

bool MlaCompressFixedTakes(const MlaCompressParams& p) {
  return p.dtype == DType::kFP32 && p.model_dim == kModelDim && p.rank == kRank &&
         p.heads * p.k_dim == kHalf && p.heads * p.v_dim == kHalf && p.w_down_stride == kRank &&
         (Packed(p) || Apart(p)) && AllMultiplesOf16({p.w_down, p.w_up_k, p.w_up_v}, {}) &&
         SharedMemoryFits(sizeof(Shared)) &&
         KernelsWait(reinterpret_cast<const void*>(FixedKernel<false>));
}

cudaError_t MlaCompressFixed(const MlaCompressParams& p, cudaStream_t stream) {
  const bool early = p.dependent_launch == DependentLaunch::kIndexEarly;
  const auto kernel = early ? FixedKernel<true> : FixedKernel<false>;
  constexpr auto kBytes = static_cast<int>(sizeof(Shared));
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  FixedArgs a = {};
  a.hidden = static_cast<const float*>(p.hidden);
  a.w_down = static_cast<const float*>(p.w_down);
  a.w_up[0] = static_cast<const float*>(p.w_up_k);
  a.w_up[1] = Packed(p) ? a.w_up[0] + kRank * kHalf : static_cast<const float*>(p.w_up_v);
  a.up_stride = Packed(p) ? kOutputs / 4 : kHalf / 4;
  a.v_begin = Packed(p) ? kHalf / 4 : kRank * kHalf / 4;
  a.k = static_cast<float*>(p.k);
  a.v = static_cast<float*>(p.v);
  a.latent = static_cast<float*>(p.latent);
  a.hidden_stride = p.hidden_stride;
  a.k_stride = p.k_token_stride;
  a.v_stride = p.v_token_stride;
  a.latent_stride = p.latent_stride;
  a.num_tokens = p.num_tokens;
  const dim3 grid(static_cast<std::uint32_t>((p.num_tokens + kTokens - 1) / kTokens));
  return LaunchDependent(p.dependent_launch, kernel, grid, dim3(kThreads),
                         std::size_t{sizeof(Shared)}, stream, a);
}

}  // namespace lariat::cuda
