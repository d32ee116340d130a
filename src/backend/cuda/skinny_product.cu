// SPDX-License-Identifier: Apache-2.0
// Products of 2 to 64 rows with a matrix of few columns and a long inner dimension, in 16 bits: the
// down-projections of MLA in decoding. One pass over the weights (of one row: one_row_product.cu).
//
// Bytes: the weights once, 8.3 MB at 7168 -> 576; the rows once per tile, 14 MB with 64 of them. An
// H200 reads 8.3 MB from L2 in 1.5 us, from memory in 1.9; a launch in a graph takes 0.5. So the
// work lies in having all loads under way at once, on all multiprocessors.
//
// Tensor cores. A cluster of up to 8 blocks has a tile of columns, each block a part of the inner
// dimension, of which it has up to kStages steps in flight. A warp multiplies 16 of the 128 of each
// step, or a half or a quarter of the rows and more of them; the sums of the warps meet in shared
// memory and those of the blocks in the cluster's, both in a fixed order. No sum goes through
// memory, and there is no second launch. A tile is 40 columns, so that 576 of them are the 15
// clusters of 8 that the machine takes at once.
//
// On an H200, 7168 -> 576, bf16, hot, in a graph with dependent launch: 3.1 us for 2 rows, 3.2 for
// 16, 4.1 for 32, 5.5 for 64; cuBLASLt's best 5.9 to 6.4. Weights as [inner, columns]: 4.1 for 8,
// 6.6 for 64. Tried, and slower: a bound on passes that the compiler does not know (0.4 us for 64
// rows); clusters of 7 and 4 (14 and 7 us for 64 rows), tiles of 32 and 72, clusters of 16 (7 at a
// time: 15 us); a cluster's barrier that orders memory instead of counted messages (0.9 us);
// all warps along the inner dimension for 64 rows (1 us); weights before the wait of a dependent
// launch (no gain). Next: rows by multicast to the tiles that share them; 64 rows are bound by what
// L2 gives, 22 MB at 6.7 TB/s.
//
// Dependent launches: a block fills a multiprocessor's shared memory, and would keep blocks of the
// kernel before it from starting if that one lets it come too early, as cuBLAS's do (27 us instead
// of 18 for MlaCompress of 64 tokens); so it is one where the caller asks for kIndexEarly alone,
// and loads all behind the wait.
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

constexpr int kMostRows = 64;
constexpr std::int64_t kMostColumns = 1024;
constexpr std::int64_t kLeastInner = 2048;

struct Args {
  const char* a;
  const char* w;
  char* c;
  std::int64_t a_stride, w_stride, c_stride;  // elements
  std::int32_t rows, columns, inner;
  std::int32_t steps;  // of a block, at most
  std::int32_t share;  // quads of a tile that a block stores, at most
};

constexpr int kTile = 40;  // columns of a cluster
constexpr int kTileBytes = 2 * kTile;
constexpr int kStep = 128;  // of the inner dimension that arrive together
constexpr int kStepBytes = 2 * kStep;
constexpr int kPiecesOfRow = kStep / 8;  // of 16 bytes
constexpr int kSlices = kStep / 16;      // what one instruction multiplies
constexpr int kStages = 8;
constexpr int kPitch = kTile + 16;  // floats of a row of sums: no bank twice
constexpr int kQuads = kTile / 4;   // of columns, of a row

// How the kernel lies in shared memory: stages of weights and rows, in whose place the warps' sums
// come, and behind them what the cluster's blocks send.
template <int kRows>
struct Shape {
  static constexpr int kAcross = kRows / 16;       // warps that share the rows
  static constexpr int kAlong = kWarps / kAcross;  // and the slices of a step
  static constexpr int kWeightBytes = kTile * kStepBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kStepBytes;
  static constexpr int kSumFloats = kRows * kPitch;  // of a warp along
  static constexpr int kReceived = kStages * kStageBytes;
  static constexpr int kBarrier = kReceived + 4 * kRows * kTile;
  static constexpr int kBytes = kBarrier + 16;
  static_assert(4 * kAlong * kSumFloats <= kReceived);
};

// Byte offset of a piece of 16 bytes along the inner dimension, of a row or of a column of weights:
// turned so that those of eight rows lie in different banks.
__device__ __forceinline__ std::uint32_t PieceOf(int row, int piece) {
  return static_cast<std::uint32_t>(row * kStepBytes + (piece ^ (row & 7)) * 16);
}

// What one thread copies of each step: pieces of 16 bytes, kPasses of them, as far apart in memory
// and in the stage from pass to pass. The first kWhole passes are in the stage whatever the thread.
// (A bound that the compiler does not know costs 0.4 us with 64 rows.)
template <int kPasses, int kWhole>
struct Copier {
  const char* from;
  std::int64_t from_pass, from_step;  // bytes
  std::uint32_t to, to_pass;
  std::int32_t k, k_pass;  // inner index of a pass, of the first step
  std::int32_t passes;     // that are there; what else is in the stage becomes zero
  std::int32_t room;       // passes that are in the stage

  __device__ __forceinline__ void Copy(std::uint32_t stage, int step, std::int32_t inner) const {
    const char* const at = from + step * from_step;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (i >= kWhole && i >= room) break;
      const bool there = i < passes && k + step * kStep + i * k_pass < inner;
      CopyPiece(stage + to + static_cast<std::uint32_t>(i) * to_pass,
                there ? at + i * from_pass : from, there);
    }
  }
};

// Of `rows` rows from `data` on, kThreads / kPiecesOfRow rows a pass, where the stage has kRows.
constexpr int kRowsAlong = kThreads / kPiecesOfRow;
template <int kRows>
using CopierAlong = Copier<(kRows + kRowsAlong - 1) / kRowsAlong, kRows / kRowsAlong>;
template <int kRows>
__device__ __forceinline__ CopierAlong<kRows> AlongRows(const char* data, std::int64_t stride,
                                                        std::int32_t rows, std::int32_t k) {
  const int row = static_cast<int>(threadIdx.x) / kPiecesOfRow;
  const int piece = static_cast<int>(threadIdx.x) % kPiecesOfRow;
  CopierAlong<kRows> c;
  c.room = (kRows - row - 1) / kRowsAlong + 1;
  c.k = k + piece * 8;
  c.k_pass = 0;
  c.passes = row < rows ? (rows - row - 1) / kRowsAlong + 1 : 0;
  c.from = data + (c.passes > 0 ? 2 * (row * stride + c.k) : 0);
  c.from_pass = 2 * kRowsAlong * stride;
  c.from_step = kStepBytes;
  c.to = PieceOf(row, piece);
  c.to_pass = kRowsAlong * kStepBytes;
  return c;
}

// Of columns of a matrix that lies as [inner, columns]. Their rows of 80 bytes fall into different
// banks by themselves.
constexpr int kRowsAcross = 32;
constexpr int kPassesAcross = kStep / kRowsAcross;
using CopierAcross = Copier<kPassesAcross, kPassesAcross>;
__device__ __forceinline__ CopierAcross AcrossRows(const char* data, std::int64_t stride,
                                                   std::int32_t columns, std::int32_t k) {
  constexpr int kPiecesOfTile = kTile / 8;
  const int inner = static_cast<int>(threadIdx.x) / kPiecesOfTile;
  const int piece = static_cast<int>(threadIdx.x) % kPiecesOfTile;
  CopierAcross c;
  c.room = kPassesAcross;
  c.k = k + inner;
  c.k_pass = kRowsAcross;
  c.passes = piece * 8 < columns ? kPassesAcross : 0;
  c.from = data + (c.passes > 0 ? 2 * (c.k * stride + piece * 8) : 0);
  c.from_pass = 2 * kRowsAcross * stride;
  c.from_step = 2 * kStep * stride;
  c.to = static_cast<std::uint32_t>(inner * kTileBytes + piece * 16);
  c.to_pass = kRowsAcross * kTileBytes;
  return c;
}

// A warp's place in a step: its 16 rows and its slices.
template <int kRows>
struct WarpPlace {
  int across, along, id, eighth;  // matrix of a load that the lane gives an address of, its row
  __device__ __forceinline__ WarpPlace() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    across = warp % Shape<kRows>::kAcross;
    along = warp / Shape<kRows>::kAcross;
    id = lane / 8;
    eighth = lane % 8;
  }
};

// Adds the warp's slices of a step: 16 rows times the tile.
template <class T, int kRows, bool kOutIn>
__device__ __forceinline__ void MultiplyStep(float (&sums)[kTile / 8][4], std::uint32_t stage,
                                             const WarpPlace<kRows>& p) {
#pragma unroll
  for (int i = 0; i < kSlices / Shape<kRows>::kAlong; ++i) {
    const int slice = p.along + i * Shape<kRows>::kAlong;
    std::uint32_t x[4];
    LoadMatrices(x, stage + Shape<kRows>::kWeightBytes +
                        PieceOf(p.across * 16 + p.id % 2 * 8 + p.eighth, 2 * slice + p.id / 2));
#pragma unroll
    for (int n = 0; n < kTile / 8; n += 2) {
      const int tile = n + 1 < kTile / 8 ? n + p.id / 2 : n;  // an odd last one comes twice
      std::uint32_t four[4];
      if constexpr (kOutIn) {
        LoadMatrices(four, stage + PieceOf(tile * 8 + p.eighth, 2 * slice + p.id % 2));
      } else {
        const int inner = slice * 16 + p.id % 2 * 8 + p.eighth;
        LoadMatricesTurned(four,
                           stage + static_cast<std::uint32_t>(inner * kTileBytes + tile * 16));
      }
      MultiplyAdd<T>(sums[n], x, four[0], four[1]);
      if (n + 1 < kTile / 8) MultiplyAdd<T>(sums[n + 1], x, four[2], four[3]);
    }
  }
}

// Leaves the warps' sums in shared memory.
template <int kRows>
__device__ __forceinline__ void SaveSums(const float (&sums)[kTile / 8][4], float* memory,
                                         const WarpPlace<kRows>& p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const to = memory + p.along * Shape<kRows>::kSumFloats +
                    (p.across * 16 + lane / 4) * kPitch + 2 * (lane % 4);
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
    *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n][0], sums[n][1]);
    *reinterpret_cast<float2*>(to + n * 8 + 8 * kPitch) = make_float2(sums[n][2], sums[n][3]);
  }
}

__device__ __forceinline__ float4 Sum(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four neighbouring columns of a row, rounded.
template <class T>
__device__ __forceinline__ void Store(const Args& a, std::int32_t row, std::int32_t column,
                                      const float4& sum) {
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
  Save<4>(reinterpret_cast<T*>(a.c) + row * a.c_stride + column, Rounded<T>(values));
}

// Grid: (blocks of a cluster, tiles). Each block sums a part of the inner dimension, sends each
// block of the cluster its share of the tile's sums, and adds and stores what it was sent.
template <class T, int kRows, bool kOutIn>
__global__ void __launch_bounds__(kThreads, 1) FewRowsKernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char memory[];
  using Shape = Shape<kRows>;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto column = static_cast<std::int32_t>(blockIdx.y) * kTile;
  const std::uint32_t shared = SharedAddress(memory);
  const std::uint32_t barrier = shared + Shape::kBarrier;
  // Quads of the tile, in order of row and column; those of this block.
  const std::int32_t quads = a.rows * kQuads;
  const std::int32_t own = min(max(quads - static_cast<int>(blockIdx.x) * a.share, 0), a.share);
  if (thread == 0) {
    InitBarrier(barrier, 1);
    ExpectBytes(barrier, own * static_cast<int>(gridDim.x) * 16);
  }
  ArriveAtCluster();  // others may send once all barriers are there

  const std::int32_t k = static_cast<std::int32_t>(blockIdx.x) * a.steps * kStep;
  const auto rows = AlongRows<kRows>(a.a, a.a_stride, a.rows, k);
  const auto weights = [&] {
    if constexpr (kOutIn) {
      return AlongRows<kTile>(a.w + 2 * column * a.w_stride, a.w_stride,
                              min(a.columns - column, kTile), k);
    } else {
      return AcrossRows(a.w + 2 * column, a.w_stride, a.columns - column, k);
    }
  }();
  const bool copies_weights = kOutIn || thread < kRowsAcross * kTile / 8;
  const auto copy_weights = [&](int stage, int step) {
    if (copies_weights && step < a.steps) {
      weights.Copy(shared + static_cast<std::uint32_t>(stage * Shape::kStageBytes), step, a.inner);
    }
  };
  WaitForPredecessor();
  LetSuccessorStart();

  const WarpPlace<kRows> place;
  float sums[kTile / 8][4] = {};
#pragma unroll 1
  for (int first = 0; first < a.steps; first += kStages) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      const int step = first + i;
      copy_weights(i, step);
      if (step < a.steps) {
        rows.Copy(shared + static_cast<std::uint32_t>(i * Shape::kStageBytes + Shape::kWeightBytes),
                  step, a.inner);
      }
      EndCopyGroup();
    }
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (first + i >= a.steps) break;
      WaitForCopyGroups(kStages - 1 - i);
      __syncthreads();
      MultiplyStep<T, kRows, kOutIn>(
          sums, shared + static_cast<std::uint32_t>(i * Shape::kStageBytes), place);
    }
    __syncthreads();
  }

  float* const floats = reinterpret_cast<float*>(memory);
  SaveSums(sums, floats, place);
  WaitForCluster();
  __syncthreads();
  // To the blocks that store them.
  for (std::int32_t i = thread; i < quads; i += kThreads) {
    const std::int32_t row = i / kQuads;
    const float* const from = floats + row * kPitch + (i - row * kQuads) * 4;
    float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
    for (int w = 1; w < Shape::kAlong; ++w) {
      sum = Sum(sum, *reinterpret_cast<const float4*>(from + w * Shape::kSumFloats));
    }
    const std::int32_t block = i / a.share;
    const std::int32_t at = static_cast<int>(blockIdx.x) * a.share + i - block * a.share;
    SendTo(block, shared + Shape::kReceived + static_cast<std::uint32_t>(at) * 16, sum, barrier);
  }
  if (own == 0) return;
  WaitForBytes(barrier);
  const auto* const received = reinterpret_cast<const float4*>(memory + Shape::kReceived);
  for (std::int32_t i = thread; i < own; i += kThreads) {
    float4 sum = received[i];
#pragma unroll 8
    for (std::int32_t b = 1; b < static_cast<int>(gridDim.x); ++b) {
      sum = Sum(sum, received[b * a.share + i]);
    }
    const std::int32_t quad = static_cast<int>(blockIdx.x) * a.share + i;
    const std::int32_t row = quad / kQuads, at = column + (quad - row * kQuads) * 4;
    if (at < a.columns) Store<T>(a, row, at, sum);
  }
}

// --- Launches ---

// Blocks of a cluster, a power of two. An H200 has 15 clusters of 8 at work at a time, and 30 of 4.
int BlocksFor(int tiles) {
  int blocks = 8;
  while (blocks > 1 && tiles * blocks > 15 * 8) blocks /= 2;
  return blocks;
}

template <class T, int kRows, bool kOutIn>
cudaError_t LaunchRows(const GemmParams& p, Args a, cudaStream_t stream) {
  const auto kernel = FewRowsKernel<T, kRows, kOutIn>;
  constexpr int kBytes = Shape<kRows>::kBytes;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const std::int32_t tiles = (a.columns + kTile - 1) / kTile;
  const std::int32_t blocks = BlocksFor(tiles);
  const auto divide_up = [](std::int32_t n, std::int32_t by) { return (n + by - 1) / by; };
  a.steps = divide_up(divide_up(a.inner, kStep), blocks);
  a.share = divide_up(a.rows * kQuads, blocks);
  const auto dependent = p.dependent_launch == DependentLaunch::kIndexEarly
                             ? DependentLaunch::kIndexEarly
                             : DependentLaunch::kOff;
  return LaunchClusters(dependent, static_cast<unsigned>(blocks), kernel,
                        dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles)),
                        dim3(kThreads), kBytes, stream, a);
}

template <class T>
cudaError_t LaunchType(const GemmParams& p, const Args& a, cudaStream_t stream) {
  const bool out_in = p.layout == WeightLayout::kOutIn;
  if (p.rows <= 16) {
    return out_in ? LaunchRows<T, 16, true>(p, a, stream) : LaunchRows<T, 16, false>(p, a, stream);
  }
  if (p.rows <= 32) {
    return out_in ? LaunchRows<T, 32, true>(p, a, stream) : LaunchRows<T, 32, false>(p, a, stream);
  }
  return out_in ? LaunchRows<T, 64, true>(p, a, stream) : LaunchRows<T, 64, false>(p, a, stream);
}

}  // namespace

bool SkinnyIsFaster(const GemmParams& p) {
  if (SizeOf(p.dtype) != 2 || p.batch != 1 || p.rows > kMostRows) return false;
  if (p.columns > kMostColumns || p.inner < kLeastInner || p.inner > (1 << 24)) return false;
  const std::int64_t across = p.layout == WeightLayout::kInOut ? p.columns : p.inner;
  return across % 8 == 0 && p.inner % 8 == 0 && p.columns % 4 == 0 && p.c_stride % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.c) % 8 == 0 &&
         AllMultiplesOf16({p.a, p.w}, {2 * p.a_stride, 2 * p.w_stride}) &&
         SharedMemoryFits(Shape<kMostRows>::kBytes) &&
         KernelsWait(reinterpret_cast<const void*>(FewRowsKernel<Bf16, 16, true>));
}

cudaError_t SkinnyProduct(const GemmParams& p, cudaStream_t stream) {
  if (p.rows == 1 && p.layout == WeightLayout::kOutIn) return OneRowProduct(p, stream);
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
  return p.dtype == DType::kBF16 ? LaunchType<Bf16>(p, a, stream) : LaunchType<Fp16>(p, a, stream);
}

}  // namespace lariat::cuda
