// SPDX-License-Identifier: Apache-2.0
// MlaAppend for what mla_append.cu's fast form does not take: rows that are not aligned, or widths
// that are no multiples of 8. One warp per token as there, but element by element: traffic is the
// same, accesses are 2 or 4 bytes wide, so large calls are bound by their number.
#include <type_traits>

#include "backend/cuda/element.cuh"
#include "backend/cuda/mla_append.cuh"
#include "backend/dispatch.h"

namespace lariat::cuda {
namespace {

// Bytes where the type stays, else converted.
template <class Out, class In>
__device__ __forceinline__ Out Moved(In value) {
  if constexpr (std::is_same_v<In, Out>) {
    return value;
  } else {
    return Element<Out>::Store(Element<In>::Load(value));
  }
}

template <class In, class Out>
__device__ __forceinline__ void StoreLatent(const MlaAppendParams& p, const In* x, Out* to,
                                            int lane) {
  const In* const weight = static_cast<const In*>(p.norm_weight);
  if (weight == nullptr) {
    for (int i = lane; i < p.rank; i += kMlaWarp) to[i] = Moved<Out>(x[i]);
    return;
  }
  float sum = 0;
  for (int first = lane * kMlaChunk; first < p.rank; first += kMlaWarp * kMlaChunk) {
    const int end = min(first + kMlaChunk, p.rank);
    float chunk = 0;
    for (int i = first; i < end; ++i) {
      const float value = Element<In>::Load(x[i]);
      chunk = __fadd_rn(chunk, __fmul_rn(value, value));
    }
    sum = __fadd_rn(sum, chunk);
  }
  const float inverse = InverseRms(p, sum);
  for (int i = lane; i < p.rank; i += kMlaWarp) {
    const float value = __fmul_rn(Element<In>::Load(x[i]), inverse);
    to[i] = Element<Out>::Store(__fmul_rn(value, Element<In>::Load(weight[i])));
  }
}

template <class In, class Out>
__device__ __forceinline__ void StoreKey(const MlaAppendParams& p, const MlaToken& token,
                                         const In* from, Out* to, int lane) {
  const int pairs = p.rotary_dim / 2;
  const bool in_half = p.style == RopeStyle::kHalf;
  const bool out_half = p.style != RopeStyle::kInterleaved;
  const std::int64_t row = TableRow(p, token);
  for (int i = lane; i < pairs; i += kMlaWarp) {
    const float x = Element<In>::Load(from[in_half ? i : 2 * i]);
    const float y = Element<In>::Load(from[in_half ? i + pairs : 2 * i + 1]);
    const float c = p.cos[row + i];
    const float s = p.sin[row + i];
    // The intrinsics keep the compiler from fusing a product with the sum.
    to[out_half ? i : 2 * i] = Element<Out>::Store(__fadd_rn(__fmul_rn(x, c), -__fmul_rn(y, s)));
    to[out_half ? i + pairs : 2 * i + 1] =
        Element<Out>::Store(__fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
  }
  for (int i = p.rotary_dim + lane; i < p.rope_dim; i += kMlaWarp) to[i] = Moved<Out>(from[i]);
}

template <class In, class Out>
__global__ void __launch_bounds__(kMlaThreads)
    MlaAppendElementsKernel(const __grid_constant__ MlaArgs a) {
  WaitForPredecessor();
  LetSuccessorStart();
  const MlaAppendParams& p = a.p;
  const std::int64_t index = TokenOfWarp();
  const int lane = static_cast<int>(threadIdx.x) % kMlaWarp;
  if (index >= p.num_tokens) return;
  const MlaToken token = LoadToken(p, index);
  if (!Judge(p, index, token, lane == 0)) return;
  Out* const to = RowAt<Out>(a, token.slot);
  StoreLatent(p, static_cast<const In*>(p.c_kv) + index * p.c_kv_stride, to, lane);
  StoreKey(p, token, static_cast<const In*>(p.k_pe) + index * p.k_pe_stride, to + p.rank, lane);
}

}  // namespace

cudaError_t MlaAppendElements(const MlaArgs& args, const MlaLaunch& launch) {
  return WithAppendTypes(args.p.in_dtype, args.p.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return LaunchMla(MlaAppendElementsKernel<In, Out>, launch, args);
  });
}

}  // namespace lariat::cuda
