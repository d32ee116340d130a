// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/fault.cuh"
#include "lariat/ops.h"

// What the forms of MlaAppend share: tokens and their places, and the row's norm.

namespace lariat::cuda {

inline constexpr int kMlaWarp = 32;      // threads of a token
inline constexpr int kMlaThreads = 128;  // of a block, at most
inline constexpr int kMlaChunk = 8;      // elements, as docs/numerics.md
// Up to so many tokens a block is a single warp, and dependents may start at once.
inline constexpr std::int64_t kFewTokens = 128;

struct MlaArgs {
  MlaAppendParams p;
  Divider block;     // tokens in a block
  bool small_slots;  // num_slots < 2^31
  bool pin_tables;
};

// Where and how a form is launched.
struct MlaLaunch {
  dim3 grid, block;
  cudaStream_t stream;
  DependentLaunch dependent;
};

struct MlaToken {
  std::int64_t slot;
  std::int32_t position;
  bool second_table;
};

// Loads that the compiler does not move behind a branch, where they would start late.
__device__ __forceinline__ MlaToken LoadToken(const MlaAppendParams& p, std::int64_t index) {
  MlaToken token = {};
  asm volatile("ld.global.b64 %0, [%1];" : "=l"(token.slot) : "l"(p.slots + index));
  if (p.rotary_dim == 0) return token;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(token.position) : "l"(p.positions + index));
  token.second_table = p.table_choice != nullptr && (p.table_choice[index] & p.table_mask) != 0;
  return token;
}

// Records what is wrong with a token.
__device__ __forceinline__ void RecordBadToken(FaultRecord* fault, FaultRecord* const* indirect,
                                               std::int64_t index, std::int64_t slot, bool slot_bad,
                                               std::int32_t position) {
  FaultRecord* record = indirect != nullptr ? *indirect : fault;
  if (record == nullptr) return;
  RecordFault(record, slot_bad ? FaultKind::kSlot : FaultKind::kPosition, index,
              slot_bad ? slot : std::int64_t{position});
}

// Whether the token stores its row. One lane records what is wrong with it.
__device__ __forceinline__ bool Judge(const MlaAppendParams& p, std::int64_t index,
                                      const MlaToken& token, bool reports) {
  if (token.slot < 0) return false;
  const bool slot_bad = token.slot >= p.num_slots;
  const bool position_bad =
      p.rotary_dim > 0 && (token.position < 0 || token.position >= p.num_positions);
  if (!slot_bad && !position_bad) return true;
  if (reports) {
    RecordBadToken(p.fault, p.fault_indirect, index, token.slot, slot_bad, token.position);
  }
  return false;
}

// Where the row of a slot begins. REQUIRES: 0 <= slot < num_slots.
template <class Out>
__device__ __forceinline__ Out* RowAt(const MlaArgs& a, std::int64_t slot) {
  const std::int64_t block =
      a.small_slots ? a.block.Divide(static_cast<std::uint32_t>(slot)) : slot / a.block.divisor;
  return static_cast<Out*>(a.p.cache) + block * a.p.block_stride +
         (slot - block * a.block.divisor) * a.p.row_stride;
}

// Elements from a table's begin to the token's row.
__device__ __forceinline__ std::int64_t TableRow(const MlaAppendParams& p, const MlaToken& token) {
  const std::int64_t row = token.position + (token.second_table ? p.num_positions : 0);
  return row * (p.rotary_dim / 2);
}

template <class In>
__device__ __forceinline__ float SumOfSquares(const Pack<In, kMlaChunk>& x) {
  float sum = __fmul_rn(x.Get(0), x.Get(0));
#pragma unroll
  for (int i = 1; i < kMlaChunk; ++i) sum = __fadd_rn(sum, __fmul_rn(x.Get(i), x.Get(i)));
  return sum;
}

// From a lane's sum of squares to the factor of the whole row, the same in all lanes.
__device__ __forceinline__ float SumOfLanes(float sum) {
#pragma unroll
  for (int m = kMlaWarp / 2; m > 0; m /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFU, sum, m));
  }
  return sum;
}
__device__ __forceinline__ float InverseRms(float mean, float eps) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));  // 1 / root, correctly rounded
}
__device__ __forceinline__ float InverseRms(const MlaAppendParams& p, float sum) {
  return InverseRms(__fdiv_rn(SumOfLanes(sum), static_cast<float>(p.rank)), p.eps);
}

// One warp per token.
__device__ __forceinline__ std::int64_t TokenOfWarp() {
  return std::int64_t{blockIdx.x} * (blockDim.x / kMlaWarp) + threadIdx.x / kMlaWarp;
}

template <class Args>
cudaError_t LaunchMla(void (*kernel)(Args), const MlaLaunch& launch, const Args& args) {
  return LaunchDependent(launch.dependent, kernel, launch.grid, launch.block, launch.stream, args);
}

// Puts the general form, element by element, on the stream.
cudaError_t MlaAppendElements(const MlaArgs& args, const MlaLaunch& launch);
// The form for a rank of 512 and a k_pe of 64. REQUIRES: it takes them, and Wide (mla_append.cu).
bool MlaAppend512Takes(const MlaArgs& args);
cudaError_t MlaAppend512(const MlaArgs& args, const MlaLaunch& launch);

}  // namespace lariat::cuda
