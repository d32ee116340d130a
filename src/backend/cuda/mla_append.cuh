// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "lariat/ops.h"

// What both forms of MlaAppend share: tokens and their places, and the row's norm.

namespace lariat::cuda {

inline constexpr int kMlaWarp = 32;      // threads of a token
inline constexpr int kMlaThreads = 128;  // of a block, at most
inline constexpr int kMlaChunk = 8;      // elements, as docs/numerics.md

struct MlaArgs {
  MlaAppendParams p;
  Divider block;     // tokens in a block
  bool small_slots;  // num_slots < 2^31
  bool pin_tables;
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

// Whether the token stores its row. One lane records what is wrong with it.
__device__ __forceinline__ bool Judge(const MlaAppendParams& p, std::int64_t index,
                                      const MlaToken& token, bool reports) {
  if (token.slot < 0) return false;
  const bool slot_bad = token.slot >= p.num_slots;
  const bool position_bad =
      p.rotary_dim > 0 && (token.position < 0 || token.position >= p.num_positions);
  if (!slot_bad && !position_bad) return true;
  if (!reports) return false;
  FaultRecord* record = p.fault_indirect != nullptr ? *p.fault_indirect : p.fault;
  if (record == nullptr) return false;
  RecordFault(record, slot_bad ? FaultKind::kSlot : FaultKind::kPosition, index,
              slot_bad ? token.slot : std::int64_t{token.position});
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

// From a lane's sum of squares to the factor of the whole row, the same in all lanes.
__device__ __forceinline__ float InverseRms(const MlaAppendParams& p, float sum) {
#pragma unroll
  for (int m = kMlaWarp / 2; m > 0; m /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFU, sum, m));
  }
  const float mean = __fdiv_rn(sum, static_cast<float>(p.rank));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, p.eps)));
}

// One warp per token.
__device__ __forceinline__ std::int64_t TokenOfWarp() {
  return std::int64_t{blockIdx.x} * (blockDim.x / kMlaWarp) + threadIdx.x / kMlaWarp;
}

// Puts the general form, element by element, on the stream.
cudaError_t MlaAppendElements(const MlaArgs& args, dim3 grid, dim3 block, cudaStream_t stream);

}  // namespace lariat::cuda
