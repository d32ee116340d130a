// SPDX-License-Identifier: Apache-2.0
// Products that cuBLASLt has no algorithm for: a single column at an odd address, say. One thread
// per element, terms added in order of the inner index: right, not fast.
#include <algorithm>

#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"
#include "base/float16.h"

namespace lariat::cuda {
namespace {

constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kMostBlocks = 1 << 16;

template <class T>
__global__ void __launch_bounds__(kThreads)
    PlainProductKernel(const __grid_constant__ GemmParams p) {
  const std::int64_t elements = p.batch * p.rows * p.columns;
  const bool out_in = p.layout == WeightLayout::kOutIn;
  const std::int64_t w_step = out_in ? 1 : p.w_stride;  // from one inner index to the next
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t column = i % p.columns;
    const std::int64_t row = i / p.columns % p.rows;
    const std::int64_t matrix = i / p.columns / p.rows;
    const T* const a = static_cast<const T*>(p.a) + row * p.a_stride;
    const T* const w =
        static_cast<const T*>(p.w) + matrix * p.w_batch_stride + column * (out_in ? p.w_stride : 1);
    float sum = 0;
    for (std::int64_t k = 0; k < p.inner; ++k) {
      sum = __fmaf_rn(Element<T>::Load(a[k]), Element<T>::Load(w[k * w_step]), sum);
    }
    static_cast<T*>(p.c)[matrix * p.c_batch_stride + row * p.c_stride + column] =
        Element<T>::Store(sum);
  }
}

}  // namespace

cudaError_t PlainProduct(const GemmParams& p, cudaStream_t stream) {
  const std::int64_t blocks = (p.batch * p.rows * p.columns + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<std::uint32_t>(std::min(blocks, kMostBlocks)));
  const dim3 threads(static_cast<std::uint32_t>(kThreads));
  switch (p.dtype) {
    case DType::kBF16: return Launch(PlainProductKernel<Bf16>, grid, threads, stream, p);
    case DType::kFP16: return Launch(PlainProductKernel<Fp16>, grid, threads, stream, p);
    default: return Launch(PlainProductKernel<float>, grid, threads, stream, p);
  }
}

}  // namespace lariat::cuda
