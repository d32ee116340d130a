// SPDX-License-Identifier: Apache-2.0
// Products of at most 64 rows with a matrix of few columns and a long inner dimension, in 16 bits:
// the down-projections of MLA in decoding. Everything is one pass over the weights.
//
// Bytes: the weights once, 8.3 MB at 7168 -> 576; at 64 rows the rows once per tile. An H200 reads
// them from L2 in 1.5 us, from memory in 1.9; a launch in a graph takes 0.5. So the work lies in
// having all loads under way at once, on all multiprocessors: 64 columns by the whole inner
// dimension would keep 9 of them busy.
//
// One row, weights as [columns, inner]: a block has three columns, its threads lie along the inner
// dimension and hold all their weights in registers.
// More rows: tensor cores. A cluster of up to 8 blocks has a tile of columns, each block a part of
// the inner dimension, of which it has up to kStages steps in flight. A warp multiplies 16 of the
// 128 of each step; the sums of the warps meet in shared memory and those of the blocks in the
// cluster's, both in a fixed order. No sum goes through memory, and there is no second launch.
// A tile is 40 columns where 32 would make more clusters than the machine takes at once: 8
// processors of each group of 16 or 18, two clusters a group.
//
// Weights may be loaded before the wait of a dependent launch where the caller promises that
// nothing writes them (kIndexEarly); rows are loaded behind it.
#include <algorithm>

#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/tensor_core.cuh"
#include "base/float16.h"

namespace lariat::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// --- What it takes, and where it is the faster one ---

constexpr std::int64_t kMostRows = 64;
constexpr std::int64_t kMostColumns = 1024;
constexpr std::int64_t kLeastInner = 2048;
constexpr int kProcessors = 128;  // that clusters of 8 fill, of 132

struct Args {
  const char* a;
  const char* w;
  char* c;
  std::int64_t a_stride, w_stride, c_stride;  // elements
  std::int32_t rows, columns, inner;
  std::int32_t steps;  // of a block, at most
  bool weights_early;  // before the wait
};

// --- One row ---

constexpr int kColumns = 3;  // of a block
constexpr int kPieces = 4;   // of 8 elements that a thread has of a column at a time
constexpr int kSpan = kThreads * kPieces * 8;  // of the inner dimension at a time

template <class T>
struct Weights {
  Pack<T, 8> held[kColumns][kPieces];

  // What lies past the matrix is zero.
  __device__ __forceinline__ void LoadFrom(const Args& a, std::int32_t column, std::int32_t k) {
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
__global__ void __launch_bounds__(kThreads) OneRowKernel(const __grid_constant__ Args a) {
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

// --- More rows ---

constexpr int kStep = 16 * kWarps;  // of the inner dimension that arrive together
constexpr int kStepBytes = 2 * kStep;
constexpr int kPitch = 40;  // floats of a row of sums: no bank twice

// How the kernel lies in shared memory: stages of weights and rows, and then in their place sums.
template <int kRows, int kTile>
struct Shape {
  static constexpr int kWeightBytes = kTile * kStepBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kStepBytes;
  static constexpr int kStages = 8;
  static constexpr int kSumFloats = kRows * kPitch;
  static constexpr int kBytes = std::max(kStages * kStageBytes, 4 * (kWarps + 1) * kSumFloats);
};

// Byte offsets of 16-byte pieces in a stage; turned so that eight rows lie in different banks.
// Pieces along the inner dimension, of a row or of a column of weights:
__device__ __forceinline__ std::uint32_t PieceOf(int row, int piece) {
  return static_cast<std::uint32_t>(row * kStepBytes + (piece ^ (row & 7)) * 16);
}
// Pieces of eight columns, of 32, at one inner index:
__device__ __forceinline__ std::uint32_t PieceAcross(int inner, int piece) {
  return static_cast<std::uint32_t>(inner * 64 + (piece ^ ((inner >> 1) & 3)) * 16);
}

// Starts the copies of one step's weights.
template <int kTile, bool kOutIn>
__device__ __forceinline__ void CopyWeights(const Args& a, std::uint32_t stage, std::int32_t column,
                                            std::int32_t k) {
  constexpr int kPiecesOfAll = kTile * kStep / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kPiecesOfAll; i += kThreads) {
    if constexpr (kOutIn) {
      const int row = i / (kStep / 8), piece = i % (kStep / 8);
      const std::int32_t at = k + piece * 8;
      const bool there = column + row < a.columns && at < a.inner;
      CopyPiece(stage + PieceOf(row, piece),
                a.w + 2 * (there ? (column + row) * a.w_stride + at : 0), there);
    } else {
      const int inner = i / (kTile / 8), piece = i % (kTile / 8);
      const std::int32_t at = column + piece * 8;
      const bool there = k + inner < a.inner && at < a.columns;
      CopyPiece(stage + PieceAcross(inner, piece),
                a.w + 2 * (there ? (k + inner) * a.w_stride + at : 0), there);
    }
  }
}

template <int kRows>
__device__ __forceinline__ void CopyRows(const Args& a, std::uint32_t stage, std::int32_t k) {
  constexpr int kPiecesOfAll = kRows * kStep / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kPiecesOfAll; i += kThreads) {
    const int row = i / (kStep / 8), piece = i % (kStep / 8);
    const std::int32_t at = k + piece * 8;
    const bool there = row < a.rows && at < a.inner;
    CopyPiece(stage + PieceOf(row, piece), a.a + 2 * (there ? row * a.a_stride + at : 0), there);
  }
}

// Adds a warp's 16 of a step: rows times tile.
template <class T, int kRows, int kTile, bool kOutIn>
__device__ __forceinline__ void MultiplyStep(float (&sums)[kRows / 16][kTile / 8][4],
                                             std::uint32_t stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t rows = stage + Shape<kRows, kTile>::kWeightBytes;
  const int id = lane / 8, eighth = lane % 8;
  std::uint32_t w[kTile / 8][2];
#pragma unroll
  for (int n = 0; n < kTile / 8; n += 2) {
    const int tile = min(n + id / 2, kTile / 8 - 1);  // an odd last one comes twice
    std::uint32_t four[4];
    if constexpr (kOutIn) {
      LoadMatrices(four, stage + PieceOf(tile * 8 + eighth, 2 * warp + id % 2));
    } else {
      LoadMatricesTurned(four, stage + PieceAcross(warp * 16 + id % 2 * 8 + eighth, tile));
    }
    w[n][0] = four[0];
    w[n][1] = four[1];
    if (n + 1 < kTile / 8) {
      w[n + 1][0] = four[2];
      w[n + 1][1] = four[3];
    }
  }
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m) {
    std::uint32_t x[4];
    LoadMatrices(x, rows + PieceOf(m * 16 + id % 2 * 8 + eighth, 2 * warp + id / 2));
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) MultiplyAdd<T>(sums[m][n], x, w[n]);
  }
}

// Adds up the warps' sums of the block and leaves them behind the warps' in shared memory.
template <int kRows, int kTile>
__device__ __forceinline__ void AddWarps(const float (&sums)[kRows / 16][kTile / 8][4],
                                         float* memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kSums = Shape<kRows, kTile>::kSumFloats;
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      float* const to =
          memory + warp * kSums + (m * 16 + lane / 4) * kPitch + n * 8 + 2 * (lane % 4);
      *reinterpret_cast<float2*>(to) = make_float2(sums[m][n][0], sums[m][n][1]);
      *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(sums[m][n][2], sums[m][n][3]);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kSums / 4; i += kThreads) {
    float4 sum = reinterpret_cast<const float4*>(memory)[i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float4 more = reinterpret_cast<const float4*>(memory + w * kSums)[i];
      sum.x += more.x;
      sum.y += more.y;
      sum.z += more.z;
      sum.w += more.w;
    }
    reinterpret_cast<float4*>(memory + kWarps * kSums)[i] = sum;
  }
}

// Grid: (blocks of a cluster, tiles).
template <class T, int kRows, int kTile, bool kOutIn>
__global__ void __launch_bounds__(kThreads, 1) FewRowsKernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char memory[];
  using Shape = Shape<kRows, kTile>;
  constexpr int kStages = Shape::kStages;
  const std::uint32_t stages = SharedAddress(memory);
  const auto column = static_cast<std::int32_t>(blockIdx.y) * kTile;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * a.steps * kStep;
  const auto stage = [&](int step) {
    return stages + static_cast<std::uint32_t>(step % kStages * Shape::kStageBytes);
  };

  if (a.weights_early) {
#pragma unroll 1
    for (int i = 0; i < min(a.steps, kStages); ++i) {
      CopyWeights<kTile, kOutIn>(a, stage(i), column, first + i * kStep);
    }
  }
  WaitForPredecessor();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) {
    if (i < a.steps) {
      if (!a.weights_early) CopyWeights<kTile, kOutIn>(a, stage(i), column, first + i * kStep);
      CopyRows<kRows>(a, stage(i) + Shape::kWeightBytes, first + i * kStep);
    }
    EndCopyGroup();
  }
  LetSuccessorStart();

  float sums[kRows / 16][kTile / 8][4] = {};
#pragma unroll 1
  for (int i = 0; i < a.steps; ++i) {
    WaitForCopyGroups<kStages - 2>();
    __syncthreads();
    const int next = i - 1 + kStages;  // in the place of the step before, which all have left
    if (i > 0 && next < a.steps) {
      CopyWeights<kTile, kOutIn>(a, stage(next), column, first + next * kStep);
      CopyRows<kRows>(a, stage(next) + Shape::kWeightBytes, first + next * kStep);
    }
    if (i > 0) EndCopyGroup();
    MultiplyStep<T, kRows, kTile, kOutIn>(sums, stage(i));
  }
  WaitForCopyGroups<0>();
  __syncthreads();

  float* const floats = reinterpret_cast<float*>(memory);
  AddWarps<kRows, kTile>(sums, floats);
  SyncCluster();
  // Each block of the cluster stores a part of the tile.
  const auto blocks = static_cast<int>(gridDim.x), rank = static_cast<int>(blockIdx.x);
  constexpr int kPairs = kRows * kTile / 2;
  const int part = (kPairs + blocks - 1) / blocks;
  const std::uint32_t all = stages + 4 * kWarps * Shape::kSumFloats;
#pragma unroll 1
  for (int i = rank * part + static_cast<int>(threadIdx.x); i < min(kPairs, (rank + 1) * part);
       i += kThreads) {
    const int row = i / (kTile / 2), at = i % (kTile / 2) * 2;
    float2 sum = {};
    for (int b = 0; b < blocks; ++b) {
      const float2 more = LoadOfCluster(all + 4 * static_cast<std::uint32_t>(row * kPitch + at), b);
      sum.x += more.x;
      sum.y += more.y;
    }
    if (row < a.rows && column + at < a.columns) {
      Pack<T, 2> pair;
      pair.Set2(0, sum.x, sum.y);
      const float values[2] = {sum.x, sum.y};
      MakeNaNsCanonical(pair, values);
      *reinterpret_cast<std::uint32_t*>(a.c + 2 * (row * a.c_stride + column + at)) = pair.w[0];
    }
  }
  SyncCluster();  // nobody leaves whose sums are still read
}

// --- Launches ---

struct Split {
  int tile, blocks;
};
// Tiles of columns and blocks of a cluster.
Split SplitOf(const GemmParams& p) {
  const auto clusters = [&](int tile) { return static_cast<int>((p.columns + tile - 1) / tile); };
  const bool wide = p.layout == WeightLayout::kOutIn && clusters(32) * 8 > kProcessors &&
                    clusters(40) * 8 <= kProcessors;
  const int tile = wide ? 40 : 32;
  int blocks = 8;
  while (blocks > 1 && clusters(tile) * blocks > kProcessors) blocks /= 2;
  return {tile, blocks};
}

template <class T, int kRows, int kTile, bool kOutIn>
cudaError_t LaunchTile(const GemmParams& p, Args a, int blocks, cudaStream_t stream) {
  const auto kernel = FewRowsKernel<T, kRows, kTile, kOutIn>;
  constexpr int kBytes = Shape<kRows, kTile>::kBytes;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const std::int64_t steps = (p.inner + kStep - 1) / kStep;
  a.steps = static_cast<std::int32_t>((steps + blocks - 1) / blocks);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(blocks);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((p.columns + kTile - 1) / kTile));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = p.dependent_launch == DependentLaunch::kOff ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, a);
}

template <class T>
cudaError_t LaunchType(const GemmParams& p, const Args& a, cudaStream_t stream) {
  const bool out_in = p.layout == WeightLayout::kOutIn;
  if (p.rows == 1 && out_in) {
    const dim3 grid(static_cast<unsigned>((p.columns + kColumns - 1) / kColumns));
    return LaunchDependent(p.dependent_launch, OneRowKernel<T>, grid, dim3(kThreads), stream, a);
  }
  const Split split = SplitOf(p);
  if (p.rows <= 16) {
    if (!out_in) return LaunchTile<T, 16, 32, false>(p, a, split.blocks, stream);
    if (split.tile == 40) return LaunchTile<T, 16, 40, true>(p, a, split.blocks, stream);
    return LaunchTile<T, 16, 32, true>(p, a, split.blocks, stream);
  }
  if (!out_in) return LaunchTile<T, 64, 32, false>(p, a, split.blocks, stream);
  if (split.tile == 40) return LaunchTile<T, 64, 40, true>(p, a, split.blocks, stream);
  return LaunchTile<T, 64, 32, true>(p, a, split.blocks, stream);
}

}  // namespace

bool SkinnyIsFaster(const GemmParams& p) {
  if (SizeOf(p.dtype) != 2 || p.batch != 1 || p.rows > kMostRows) return false;
  if (p.columns > kMostColumns || p.inner < kLeastInner || p.inner > (1 << 24)) return false;
  const std::int64_t across = p.layout == WeightLayout::kInOut ? p.columns : p.inner;
  return across % 8 == 0 && p.inner % 8 == 0 && p.columns % 2 == 0 && p.c_stride % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.c) % 4 == 0 &&
         AllMultiplesOf16({p.a, p.w}, {2 * p.a_stride, 2 * p.w_stride}) &&
         KernelsWait(reinterpret_cast<const void*>(OneRowKernel<Bf16>));
}

cudaError_t SkinnyProduct(const GemmParams& p, cudaStream_t stream) {
  Args a = {};
  a.a = static_cast<const char*>(p.a);
  a.w = static_cast<const char*>(p.w);
  a.c = static_cast<char*>(p.c);
  a.a_stride = p.a_stride;
  a.w_stride = p.w_stride;
  a.c_stride = p.c_stride;
  a.rows = static_cast<std::int32_t>(p.rows);
  a.columns = static_cast<std::int32_t>(p.columns);
  a.inner = static_cast<std::int32_t>(p.inner);
  a.weights_early = p.dependent_launch == DependentLaunch::kIndexEarly;
  return p.dtype == DType::kBF16 ? LaunchType<Bf16>(p, a, stream) : LaunchType<Fp16>(p, a, stream);
}

}  // namespace lariat::cuda
