// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <type_traits>

#include "backend/cuda/byte_barrier.cuh"
#include "base/float16.h"

// The instructions that a product by tensor cores is made of: copies into shared memory that run by
// themselves, loads of 8 x 8 matrices, multiply-adds of them, and a cluster's shared memory.

namespace lariat::cuda {

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
// Until at most `groups` of the thread's groups are under way; 0 where there are more than 7. Costs
// one instruction where it is known when the kernel is compiled.
__device__ __forceinline__ void WaitForCopyGroups(int groups) {
  switch (groups) {
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
    case 7: asm volatile("cp.async.wait_group 7;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
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
                                            std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// --- A cluster of blocks, from sm_90 on ---
//
// A block sends to another one's shared memory, whose barrier counts the bytes that have come. The
// cluster meets once, before anything is sent, for the barriers to be there; nobody waits for its
// own messages, and nobody leaves before all of its have come.

// Of all threads of all blocks. It orders no memory but the barriers' own.
__device__ __forceinline__ void ArriveAtCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void WaitForCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// 16 bytes to the same place in the shared memory of one block of the cluster.
__device__ __forceinline__ void SendTo(int block, std::uint32_t to, const float4& value,
                                       std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %6;"
      " mapa.shared::cluster.u32 barrier, %1, %6;"
      " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%2, %3, %4, %5},"
      " [barrier]; }" ::"r"(to),
      "r"(barrier), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(block)
      : "memory");
#endif
}

}  // namespace lariat::cuda
