// SPDX-License-Identifier: Apache-2.0
// The product of one row with a matrix that lies as [columns, inner], in 16 bits, where the inner
// dimension is long: the down-projection of MLA for a single token.
//
// Bytes: the weights once. A block has three columns; its threads lie along the inner dimension and
// have all their weights under way, 7 to 12 loads of 16 bytes each, before one is used. 7168 -> 576
// (8.3 MB) takes an H200 2.7 us hot as a dependent launch, 2.4 with weights before the wait, 3.3
// plain; L2 alone would take 1.5, cuBLASLt takes 5.8.
#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "base/float16.h"

namespace lariat::cuda {
namespace {

struct OneRowArgs {
  const char* a;
  const char* w;
  char* c;
  std::int64_t w_stride;  // elements
  std::int32_t columns, inner;
  bool weights_early;  // before the wait of a dependent launch: the caller says nothing writes them
};

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = 3;  // of a block
constexpr int kPieces = 4;   // of 8 elements that a thread has of a column at a time
constexpr int kSpan = kThreads * kPieces * 8;  // of the inner dimension at a time

template <class T>
struct Weights {
  Pack<T, 8> held[kColumns][kPieces];

  // What lies past the matrix is zero.
  __device__ __forceinline__ void LoadFrom(const OneRowArgs& a, std::int32_t column,
                                           std::int32_t k) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const std::int32_t at = k + i * kThreads * 8;
        held[c][i] = {};
        if (column + c < a.columns && at < a.inner) {
          held[c][i] = Load<8>(reinterpret_cast<const T*>(a.w) + (column + c) * a.w_stride + at);
        }
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) OneRowKernel(const __grid_constant__ OneRowArgs a) {
  __shared__ float sums_of_warps[kColumns][kWarps];
  const auto column = static_cast<std::int32_t>(blockIdx.x) * kColumns;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  if (!a.weights_early) WaitForPredecessor();
  Weights<T> weights;
  weights.LoadFrom(a, column, thread * 8);
  if (a.weights_early) WaitForPredecessor();
  LetSuccessorStart();

  float sums[kColumns] = {};
#pragma unroll 1
  for (std::int32_t k = thread * 8;;) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const std::int32_t at = k + i * kThreads * 8;
      if (at >= a.inner) break;
      const auto row = Load<8>(reinterpret_cast<const T*>(a.a) + at);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          sums[c] = fmaf(row.Get(n), weights.held[c][i].Get(n), sums[c]);
        }
      }
    }
    k += kSpan;
    if (k - thread * 8 >= a.inner) break;
    weights.LoadFrom(a, column, k);
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int m = 16; m > 0; m /= 2) sums[c] += __shfl_xor_sync(0xFFFFFFFFU, sums[c], m);
    if (thread % 32 == 0) sums_of_warps[c][thread / 32] = sums[c];
  }
  __syncthreads();
  if (thread < kColumns && column + thread < a.columns) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums_of_warps[thread][w];
    reinterpret_cast<T*>(a.c)[column + thread] = Element<T>::Store(sum);
  }
}

}  // namespace

cudaError_t OneRowProduct(const GemmParams& p, cudaStream_t stream) {
  OneRowArgs a = {};
  a.a = static_cast<const char*>(p.a);
  a.w = static_cast<const char*>(p.w);
  a.c = static_cast<char*>(p.c);
  a.w_stride = p.w_stride;
  a.columns = static_cast<std::int32_t>(p.columns);
  a.inner = static_cast<std::int32_t>(p.inner);
  a.weights_early = p.dependent_launch == DependentLaunch::kIndexEarly;
  const dim3 grid(static_cast<unsigned>((p.columns + kColumns - 1) / kColumns));
  const auto launch = [&](auto kernel) {
    return LaunchDependent(p.dependent_launch, kernel, grid, dim3(kThreads), stream, a);
  };
  return p.dtype == DType::kBF16 ? launch(OneRowKernel<Bf16>) : launch(OneRowKernel<Fp16>);
}

}  // namespace lariat::cuda
