// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

// Barriers in shared memory that count bytes, and the copies whose bytes they count; from sm_90 on.
// One thread makes a barrier and says how many bytes will come; a __syncthreads (in a cluster,
// ArriveAtCluster and WaitForCluster) must lie between that and the others' wait. Each barrier is
// used once.

namespace lariat::cuda {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void InitBarrier(std::uint32_t barrier, int arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(barrier),
      "r"(arrivals)
      : "memory");
#endif
}

// The one arrival, and how many bytes there will be.
__device__ __forceinline__ void ExpectBytes(std::uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void WaitForBytes(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;"
      " @!done bra again; }" ::"r"(barrier)
      : "memory");
#endif
}

// From memory to the block's shared memory, by one thread. `bytes` and `from` are multiples of 16;
// `to` of 128, or the copy takes three times as long.
__device__ __forceinline__ void CopyBulk(std::uint32_t to, const void* from, int bytes,
                                         std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

}  // namespace lariat::cuda
