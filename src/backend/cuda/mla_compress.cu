// SPDX-License-Identifier: Apache-2.0
// MlaCompress in one launch, for weights that are small enough for every block to read them all.
//
// A block owns a few tokens and does both products for them (block_product.cuh), so that the latent
// stays in shared memory. Every thread reads its part of the weights straight into registers; those
// of both products are under way before the first token is looked at. A block with more tokens than
// it takes at once keeps its weights.
//
// The products are fp32 multiply-adds whatever the type; the latent is rounded to the type once.
//
// Traffic: hidden and the outputs once, from and to memory; the weights once per block, out of L2.
// FLOPs: 2 T rank (model_dim + heads (k_dim + v_dim)).
//   With T = 384, model_dim 256, rank 48, 4 heads of 32, fp32: 0.9 MB of memory traffic (0.2 us at
//   4.3 TB/s), 18.9 MFLOP (0.3 us at 67 TFLOP/s), and 98 kB of weights for each of 128 blocks. At
//   64 bytes a clock, what a multiprocessor takes in, these are 0.8 us: the floor, next to the 0.5
//   us of a launch in a graph and the latency of L2. Fewer blocks would read less and have
//   more tokens each: in an experiment with such a kernel 2, 4 and 6 tokens a block were slower
//   than 3. Measured on an H200 in a graph: 4.4 us.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/block_product.cuh"
#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"

namespace lariat::cuda {
namespace {

// --- What the path takes, and where it is the faster one ---

constexpr std::int64_t kMostWeightBytes = std::int64_t{1} << 20;  // of all three matrices
constexpr std::int64_t kMostSharedBytes = 48 * 1024;  // what a launch gets without asking for more
// Faster than two or three GEMMs up to so many weights, which every block reads, and so many
// multiply-adds. Measured on an H200 (docs/benchmarks.md); GEMMs in true fp32 cannot use the
// tensor cores and are far slower than those of 16 bits.
struct FasterUpTo {
  std::int64_t weights, multiply_adds;
};
constexpr FasterUpTo kFasterFp32 = {96 * 1024, 50'000'000};
constexpr FasterUpTo kFaster16Bits = {64 * 1024, 20'000'000};
// The 16-bit path's weights are so few in some shapes that the tokens count instead.
constexpr std::int64_t kFasterTokens = 1024;

// --- The shape of a launch ---

constexpr int kMostRows = 4;  // tokens that a block takes at once: this, 3 or 1
constexpr int kWide = 4;      // columns of a thread in the down-product, where aligned; else 1

struct Input {
  const void* data;
  std::int64_t stride;
};
struct Output {
  void* data;
  std::int64_t stride;
};

struct Args {
  Input hidden, w_down, w_up_k, w_up_v;
  Output k, v, latent;  // latent.data null: not wanted
  std::int64_t num_tokens;
  std::int32_t k_width;  // the up-product's columns of k; those of v follow
  Share down, up;
  std::int32_t row_width, latent_width;  // floats of a row in shared memory, multiples of 4
  Divider by_pieces;                     // of a hidden row
  bool weights_early;                    // before the wait of a dependent launch
};

// Shared memory: the hidden rows, the latents, the partial sums of one product at a time.
std::int64_t SharedBytes(const Args& a, int rows) {
  return std::int64_t{4} * (rows * (a.row_width + a.latent_width) +
                            std::max(a.down.partial(rows), a.up.partial(rows)));
}

// --- The kernel ---

// A piece of V elements of the hidden rows of a group of tokens; `index` numbers the pieces. Tokens
// past the last one are zero.
template <int kRows, class T, int V>
class Piece {
 public:
  __device__ __forceinline__ void LoadFrom(const Args& a, std::int64_t token, std::int32_t index) {
    row_ = static_cast<std::int32_t>(a.by_pieces.Divide(static_cast<std::uint32_t>(index)));
    at_ = (index - row_ * static_cast<std::int32_t>(a.by_pieces.divisor)) * V;
    data_ = {};
    const bool there = row_ < kRows && token + row_ < a.num_tokens;
    data_.LoadFrom(static_cast<const T*>(a.hidden.data) + (token + row_) * a.hidden.stride + at_,
                   there ? 0 : 1, 1);
  }
  __device__ __forceinline__ void SaveTo(const Args& a, float* rows) const {
    if (row_ >= kRows) return;
    float* const to = rows + row_ * a.row_width + at_;
    if constexpr (V == 4) {
      *reinterpret_cast<float4*>(to) =
          make_float4(data_.Get(0), data_.Get(1), data_.Get(2), data_.Get(3));
    } else {
      *to = data_.Get(0);
    }
  }

 private:
  Elements<T, V> data_;
  std::int32_t row_ = 0, at_ = 0;
};

__device__ __forceinline__ void ClearColumns(float* rows, int count, int width, int from) {
#pragma unroll 1
  for (int r = 0; r < count; ++r) {
#pragma unroll 1
    for (int i = from + static_cast<int>(threadIdx.x); i < width; i += kProductThreads) {
      rows[r * width + i] = 0;
    }
  }
}

// Grid: up to one block for each multiprocessor; a block takes every gridDim.x-th group of kRows
// tokens. V: columns of a thread in the down-product, and elements of a piece of hidden.
template <class T, int kRows, int V>
__global__ void __launch_bounds__(kProductThreads, 1)
    MlaCompressKernel(const __grid_constant__ Args a) {
  extern __shared__ float4 memory[];
  float* const rows = reinterpret_cast<float*>(memory);
  float* const latents = rows + kRows * a.row_width;
  float* const partial = latents + kRows * a.latent_width;
  const std::int32_t pieces = kRows * static_cast<std::int32_t>(a.by_pieces.divisor);
  const std::int64_t step = std::int64_t{gridDim.x} * kRows;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int64_t token = std::int64_t{blockIdx.x} * kRows;

  const auto down_weights = [&](std::int32_t column) {
    return Column<T>{static_cast<const T*>(a.w_down.data) + column, a.w_down.stride};
  };
  const auto up_weights = [&](std::int32_t column) {
    const bool is_v = column >= a.k_width;
    const Input& w = is_v ? a.w_up_v : a.w_up_k;
    return Column<T>{static_cast<const T*>(w.data) + column - (is_v ? a.k_width : 0), w.stride};
  };
  const auto save_latent = [&](int r, std::int32_t column, float sum) {
    const T rounded = Element<T>::Store(sum);
    latents[r * a.latent_width + column] = ToReal(rounded);
    if (a.latent.data == nullptr || token + r >= a.num_tokens) return;
    static_cast<T*>(a.latent.data)[(token + r) * a.latent.stride + column] = rounded;
  };
  const auto save_result = [&](int r, std::int32_t column, float sum) {
    if (token + r >= a.num_tokens) return;
    const bool is_v = column >= a.k_width;
    const Output& out = is_v ? a.v : a.k;
    static_cast<T*>(out.data)[(token + r) * out.stride + column - (is_v ? a.k_width : 0)] =
        Element<T>::Store(sum);
  };

  Piece<kRows, T, V> piece;
  Held<T, V> down;
  Held<T, 1> up;
  const auto load_rows = [&] {
    WaitForPredecessor();
    piece.LoadFrom(a, token, thread);
  };
  if (!a.weights_early) load_rows();
  StartLoads(a.down, down, down_weights);
  StartLoads(a.up, up, up_weights);
  if (a.weights_early) load_rows();
  LetSuccessorStart();
  bool down_fresh = true, up_fresh = true;
  ClearColumns(rows, kRows, a.row_width, a.down.inner);
  ClearColumns(latents, kRows, a.latent_width, a.up.inner);

#pragma unroll 1
  for (; token < a.num_tokens; token += step) {
    piece.SaveTo(a, rows);
#pragma unroll 1
    for (std::int32_t index = thread + kProductThreads; index < pieces; index += kProductThreads) {
      piece.LoadFrom(a, token, index);
      piece.SaveTo(a, rows);
    }
    __syncthreads();
    Multiply<kRows>(a.down, down, down_fresh, rows, a.row_width, partial, down_weights,
                    save_latent);
    __syncthreads();
    piece.LoadFrom(a, token + step, thread);
    Multiply<kRows>(a.up, up, up_fresh, latents, a.latent_width, partial, up_weights, save_result);
  }
}

// Sizes and how they are shared, not the pointers.
Args MakeArgs(const MlaCompressParams& p, int v) {
  Args a = {};
  a.num_tokens = p.num_tokens;
  a.k_width = p.heads * p.k_dim;
  a.down = MakeShare(p.model_dim, p.rank, v);
  a.up = MakeShare(p.rank, p.heads * (p.k_dim + p.v_dim), 1);
  a.row_width = a.down.padded_inner();
  a.latent_width = a.up.padded_inner();
  a.by_pieces = Divider(static_cast<std::uint32_t>(std::max(p.model_dim / v, 1)));
  return a;
}

// Whether pieces of kWide elements keep all accesses aligned.
bool Aligned(const MlaCompressParams& p) {
  const std::size_t piece = kWide * SizeOf(p.dtype);
  return p.model_dim % kWide == 0 && p.rank % kWide == 0 && p.hidden_stride % kWide == 0 &&
         p.w_down_stride % kWide == 0 && reinterpret_cast<std::uintptr_t>(p.hidden) % piece == 0 &&
         reinterpret_cast<std::uintptr_t>(p.w_down) % piece == 0;
}

template <class Run>
cudaError_t WithProductType(DType dtype, Run&& run) {
  if (dtype == DType::kFP16) return run(std::type_identity<Fp16>{});
  if (dtype == DType::kBF16) return run(std::type_identity<Bf16>{});
  return run(std::type_identity<float>{});
}

struct Where {
  int processors;
  DependentLaunch dependent;
  cudaStream_t stream;
};

template <class T, int kRows, int V>
cudaError_t LaunchRows(const Args& a, const Where& where) {
  const std::int64_t groups = (a.num_tokens + kRows - 1) / kRows;
  const dim3 grid(static_cast<std::uint32_t>(std::min<std::int64_t>(groups, where.processors)));
  return LaunchDependent(where.dependent, MlaCompressKernel<T, kRows, V>, grid,
                         dim3(kProductThreads), static_cast<std::size_t>(SharedBytes(a, kRows)),
                         where.stream, a);
}

}  // namespace

bool FusedFits(const MlaCompressParams& p) {
  const std::int64_t columns = std::int64_t{p.heads} * (p.k_dim + p.v_dim);
  const std::int64_t bytes =
      p.rank * (p.model_dim + columns) * static_cast<std::int64_t>(SizeOf(p.dtype));
  if (p.layout != WeightLayout::kInOut || bytes > kMostWeightBytes) return false;
  return std::max(SharedBytes(MakeArgs(p, 1), kMostRows),
                  SharedBytes(MakeArgs(p, kWide), kMostRows)) <= kMostSharedBytes;
}

bool FusedIsFaster(const MlaCompressParams& p) {
  const std::int64_t weights = p.rank * (p.model_dim + std::int64_t{p.heads} * (p.k_dim + p.v_dim));
  const bool wide = p.dtype == DType::kFP32;
  const FasterUpTo& most = wide ? kFasterFp32 : kFaster16Bits;
  return weights <= most.weights && p.num_tokens * weights <= most.multiply_adds &&
         (wide || p.num_tokens <= kFasterTokens);
}

cudaError_t MlaCompressFused(const MlaCompressParams& p, cudaStream_t stream) {
  if (MlaCompressFixedTakes(p)) return MlaCompressFixed(p, stream);
  int device = 0, processors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  const bool aligned = Aligned(p);
  Args a = MakeArgs(p, aligned ? kWide : 1);
  a.hidden = {p.hidden, p.hidden_stride};
  a.w_down = {p.w_down, p.w_down_stride};
  a.w_up_k = {p.w_up_k, p.w_up_k_stride};
  a.w_up_v = {p.w_up_v, p.w_up_v_stride};
  a.k = {p.k, p.k_token_stride};
  a.v = {p.v, p.v_token_stride};
  a.latent = {p.latent, p.latent_stride};
  a.weights_early = p.dependent_launch == DependentLaunch::kIndexEarly;
  const Where where = {processors, p.dependent_launch, stream};
  return WithProductType(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (!aligned) return LaunchRows<T, kMostRows, 1>(a, where);
    if (p.num_tokens <= processors) return LaunchRows<T, 1, kWide>(a, where);
    if (p.num_tokens <= 3 * std::int64_t{processors}) return LaunchRows<T, 3, kWide>(a, where);
    return LaunchRows<T, kMostRows, kWide>(a, where);
  });
}

}  // namespace lariat::cuda
