// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/float16.h"

// The instructions that a product by tensor cores is made of: copies into shared memory that run by
// themselves, loads of 8 x 8 matrices, multiply-adds of them, and a cluster's shared memory.

namespace lariat::cuda {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// 16 bytes from memory to shared memory; zeros where they are not there.
__device__ __forceinline__ void CopyPiece(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
// Copies are waited for in groups, in their order.
__device__ __forceinline__ void EndCopyGroup() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most so many of the thread's groups are under way.
template <int kGroups>
__device__ __forceinline__ void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Four matrices of 8 x 8: eight lanes each give the addresses of a matrix's rows of 16 bytes. A
// lane gets elements 2 (lane % 4) and the next of row lane / 4 of each.
__device__ __forceinline__ void LoadMatrices(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
// The same of their transposes.
__device__ __forceinline__ void LoadMatricesTurned(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8], in fp32: a row by row, b column by column.
template <class T>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// --- A cluster of blocks, from sm_90 on ---

// Returns when all threads of the cluster have come here; what they wrote to shared memory can be
// seen.
__device__ __forceinline__ void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Two floats at an address in the shared memory of one block of the cluster.
__device__ __forceinline__ float2 LoadOfCluster(std::uint32_t address, int block) {
  float2 two = {};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 at; mapa.shared::cluster.u32 at, %2, %3;"
      " ld.shared::cluster.v2.f32 {%0, %1}, [at]; }"
      : "=f"(two.x), "=f"(two.y)
      : "r"(address), "r"(block)
      : "memory");
#endif
  return two;
}

}  // namespace lariat::cuda
