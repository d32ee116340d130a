// SPDX-License-Identifier: Apache-2.0
// MlaGather: latents of paged rows to a contiguous array, k_pe to each head of k.
//
// Bytes are only moved, so kernels differ by the unit they move alone: 16 bytes where everything is
// aligned to that, else one element. A block takes one output row. Each of its warps finds the
// row's token by itself, 32 entries of cu_tokens at a time, which costs one or two loads that the
// warps share in L1 and no barrier. Nearly all traffic are the copies of k_pe (128 heads of 64
// elements against one latent of 512): a thread loads one unit of k_pe once and stores it to every
// n-th head; neighbouring threads store the units of a head side by side.
#include <algorithm>

#include "backend/cuda/fault.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"

namespace lariat::cuda {
namespace {

constexpr int kWarp = 32;
constexpr std::uint32_t kMaxThreads = 256;

// Widths and strides count units.
template <class Unit>
struct Args {
  const Unit* cache;
  Unit* latent;  // contiguous; null: not wanted
  Unit* k_pe;    // of the first head of the first row
  const std::int32_t* cu_tokens;
  const std::int32_t* starts;  // null: all 0
  const std::int32_t* block_table;
  std::uint64_t block_stride, row_stride, k_token_stride, k_head_stride, table_stride;
  std::int64_t num_blocks;
  FaultRecord* fault;
  FaultRecord* const* fault_indirect;
  std::uint32_t num_ranges, block_size;
  std::uint32_t latent_units, pe_units, heads;
};

// How many of the ascending `count` values are at most t, worked out by a whole warp: each lane
// looks at the last value of its 32nd of those in question.
__device__ __forceinline__ std::uint32_t CountUpTo(const std::int32_t* values, std::uint32_t count,
                                                   std::int64_t t) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  std::uint32_t low = 0, high = count;  // those before `low` are at most t, those from `high` not
  while (low < high) {
    const std::uint32_t step = (high - low - 1) / kWarp + 1;
    const std::uint64_t probe = std::uint64_t{low} + std::uint64_t{lane + 1} * step - 1;
    const bool up_to = probe < high && values[probe] <= t;
    const auto passed = static_cast<std::uint32_t>(__popc(__ballot_sync(0xFFFFFFFFU, up_to)));
    const std::uint64_t first = std::uint64_t{low} + std::uint64_t{passed} * step;
    high = static_cast<std::uint32_t>(min(std::uint64_t{high}, first + step - 1));
    low = static_cast<std::uint32_t>(min(std::uint64_t{high}, first));
  }
  return low;
}

template <class Unit>
__device__ __forceinline__ void Report(const Args<Unit>& a, FaultKind kind, std::int64_t row,
                                       std::int64_t value) {
  if (threadIdx.x != 0) return;
  FaultRecord* record = a.fault_indirect != nullptr ? *a.fault_indirect : a.fault;
  if (record != nullptr) RecordFault(record, kind, row, value);
}

// Where output row t lies in the cache; null: it has no token, or one whose row cannot be read.
template <class Unit>
__device__ __forceinline__ const Unit* FindRow(const Args<Unit>& a, std::int64_t t) {
  if (a.num_ranges == 0) return nullptr;
  const std::uint32_t up_to = CountUpTo(a.cu_tokens, a.num_ranges + 1, t);
  if (up_to == 0 || up_to > a.num_ranges) return nullptr;
  const std::uint32_t range = up_to - 1;
  const std::int64_t start = a.starts == nullptr ? 0 : a.starts[range];
  const std::int64_t token = start + t - a.cu_tokens[range];
  // From ranges that begin at 0 a token has 32 bits at most, or is negative.
  const std::uint32_t entry = static_cast<std::uint32_t>(token) / a.block_size;
  if (token >> 32 != 0 || entry >= a.table_stride) {
    Report(a, FaultKind::kPosition, t, token);
    return nullptr;
  }
  const std::int64_t block = a.block_table[range * a.table_stride + entry];
  if (block < 0 || block >= a.num_blocks) {
    Report(a, FaultKind::kSlot, t, block);
    return nullptr;
  }
  const std::uint32_t row = static_cast<std::uint32_t>(token) - entry * a.block_size;
  return a.cache + static_cast<std::uint64_t>(block) * a.block_stride + row * a.row_stride;
}

// Grid: output rows. Block: a multiple of 32 threads.
template <class Unit>
__global__ void __launch_bounds__(kMaxThreads)
    MlaGatherKernel(const __grid_constant__ Args<Unit> a) {
  const std::uint32_t thread = threadIdx.x;
  const std::uint64_t t = blockIdx.x;
  const Unit* row = FindRow(a, static_cast<std::int64_t>(t));
  const Unit zero = {};

  // Threads in rows as wide as k_pe (or as the block); what is left over of the block rests.
  const std::uint32_t width = min(a.pe_units, blockDim.x);
  const std::uint32_t column = width > 0 ? thread % width : 0;
  const std::uint32_t heads_at_once = width > 0 ? blockDim.x / width : 0;
  const std::uint32_t first_head = width > 0 ? thread / width : 0;
  const bool has_pe = first_head < heads_at_once && first_head < a.heads;

  // The first unit of each kind is under way before one is stored: behind a store that may meet it
  // a load would wait.
  const bool has_latent = a.latent != nullptr && thread < a.latent_units;
  const Unit latent = row != nullptr && has_latent ? row[thread] : zero;
  Unit k_pe = row != nullptr && has_pe ? row[a.latent_units + column] : zero;

  if (has_latent) {
    Unit* to = a.latent + t * a.latent_units;
    to[thread] = latent;
    for (std::uint32_t unit = thread + blockDim.x; unit < a.latent_units; unit += blockDim.x) {
      to[unit] = row != nullptr ? row[unit] : zero;
    }
  }
  if (!has_pe) return;
  for (std::uint32_t unit = column; unit < a.pe_units; unit += width) {
    if (unit != column && row != nullptr) k_pe = row[a.latent_units + unit];
    Unit* to = a.k_pe + t * a.k_token_stride + first_head * a.k_head_stride + unit;
    for (std::uint32_t head = first_head; head < a.heads; head += heads_at_once) {
      *to = k_pe;
      to += heads_at_once * a.k_head_stride;
    }
  }
}

// Whether 16-byte units keep every access aligned.
bool Wide(const MlaGatherParams& params) {
  const MlaExpandParams& p = params.expand;
  const auto element = static_cast<std::int64_t>(SizeOf(p.dtype));
  if (!AllMultiplesOf16({p.cache, params.latent},
                        {p.block_stride * element, p.row_stride * element, p.rank * element})) {
    return false;
  }
  return p.rope_dim == 0 || AllMultiplesOf16({p.k}, {p.k_token_stride * element,
                                                     p.nope_dim * element, p.rope_dim * element});
}

template <class Unit>
cudaError_t LaunchUnit(const MlaGatherParams& params, cudaStream_t stream) {
  const MlaExpandParams& p = params.expand;
  const auto units = [&](std::int64_t elements) {
    return static_cast<std::uint64_t>(elements) * SizeOf(p.dtype) / sizeof(Unit);
  };
  const std::int64_t key = std::int64_t{p.nope_dim} + p.rope_dim;
  Args<Unit> a = {};
  a.cache = static_cast<const Unit*>(p.cache);
  a.latent = static_cast<Unit*>(params.latent);
  if (p.rope_dim > 0) a.k_pe = static_cast<Unit*>(p.k) + units(p.nope_dim);
  a.cu_tokens = p.cu_tokens;
  a.starts = p.starts;
  a.block_table = p.block_table;
  a.block_stride = units(p.block_stride);
  a.row_stride = units(p.row_stride);
  a.k_token_stride = units(p.k_token_stride);
  a.k_head_stride = units(key);
  a.table_stride = static_cast<std::uint64_t>(p.block_table_stride);
  a.num_blocks = p.num_blocks;
  a.fault = p.fault;
  a.fault_indirect = p.fault_indirect;
  a.num_ranges = static_cast<std::uint32_t>(p.num_ranges);
  a.block_size = static_cast<std::uint32_t>(p.block_size);
  a.latent_units = static_cast<std::uint32_t>(units(p.rank));
  a.pe_units = static_cast<std::uint32_t>(units(p.rope_dim));
  a.heads = static_cast<std::uint32_t>(p.heads);
  // As many threads as units are stored, up to a whole block.
  const std::uint32_t work = std::max(a.latent_units, a.pe_units * a.heads);
  const std::uint32_t threads =
      std::clamp<std::uint32_t>((work + kWarp - 1) / kWarp * kWarp, kWarp, kMaxThreads);
  return Launch(MlaGatherKernel<Unit>, dim3(static_cast<std::uint32_t>(p.num_tokens)),
                dim3(threads), stream, a);
}

}  // namespace

cudaError_t MlaGather(const MlaGatherParams& params, cudaStream_t stream) {
  if (Wide(params)) return LaunchUnit<uint4>(params, stream);
  return SizeOf(params.expand.dtype) == 4 ? LaunchUnit<std::uint32_t>(params, stream)
                                          : LaunchUnit<std::uint16_t>(params, stream);
}

}  // namespace lariat::cuda
