// SPDX-License-Identifier: Apache-2.0
// BuildStepTables: one entry of the step per block column, its rows and table spread over `parts`
// blocks. A changed table entry is read from the upload, not from the resident row that part 0 is
// just writing, so the parts need not wait for one another.
#include <algorithm>
#include <cstring>

#include "backend/cuda/launch.h"
#include "backend/cuda/ops.h"

namespace lariat::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kItemsPerPart = 1024;
constexpr std::uint32_t kMaxParts = 16;

// A sequence's block table as it is after this step's changes.
struct Table {
  const std::int32_t* row;
  const std::int32_t* changed;
  std::int32_t first, count;

  __device__ __forceinline__ std::int32_t At(std::int32_t index) const {
    const std::int32_t in_changed = index - first;
    return in_changed >= 0 && in_changed < count ? changed[in_changed] : row[index];
  }
};

// Zeroes what an earlier step left behind `used` entries of the group's block_table[b].
__device__ __forceinline__ void ClearTail(const StepTablesParams& p, std::int64_t b,
                                          std::int32_t used) {
  const std::int64_t group = blockIdx.z;
  std::int32_t* table = p.block_table + group * p.table_group_stride + b * p.table_stride;
  std::int32_t& filled_b = p.filled[group * p.filled_group_stride + b];
  const std::int32_t filled = filled_b;
  for (std::int32_t j = used + static_cast<std::int32_t>(threadIdx.x); j < filled; j += kThreads) {
    table[j] = 0;
  }
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) filled_b = used;
}

// The arrays of a reader that takes a list of blocks.
__device__ __forceinline__ void ListPages(const StepTablesParams& p, const StepEntry& entry,
                                          const std::int32_t* words, const Table& table,
                                          std::int64_t b, std::int32_t thread, std::int32_t step) {
  const std::int64_t group = blockIdx.z;
  const std::int32_t begin = words[entry.page_word + 2 * group];
  const std::int32_t first = words[entry.page_word + 2 * group + 1];
  const std::int32_t last = (entry.start + entry.count - 1) / p.block_size;
  std::int32_t* indices = p.kv_indices + group * p.table_group_stride + begin;
  for (std::int32_t j = first + thread; j <= last; j += step) indices[j - first] = table.At(j);
  if (thread != 0) return;
  p.kv_indptr[group * p.indptr_group_stride + b] = begin;
  p.kv_start[group * p.filled_group_stride + b] = first * p.block_size;
  if (group == 0) p.last_page_len[b] = entry.start + entry.count - last * p.block_size;
}

__device__ __forceinline__ void BuildEntry(const StepTablesParams& p, const StepEntry& entry,
                                           const std::int32_t* words, std::int64_t b) {
  const auto thread = static_cast<std::int32_t>(blockIdx.y * kThreads + threadIdx.x);
  const auto step = static_cast<std::int32_t>(gridDim.y * kThreads);
  const std::int64_t group = blockIdx.z;
  std::int32_t* row =
      p.resident + group * p.table_group_stride + entry.resident_row * p.table_stride;
  std::int64_t* slots = p.slots + group * p.slot_group_stride;
  std::int32_t* block_table = p.block_table + group * p.table_group_stride;
  const Table table = {row, words + entry.delta_word + group * entry.delta_count, entry.delta_first,
                       entry.delta_count};
  for (std::int32_t i = thread; i < entry.count; i += step) {
    const std::int32_t n = entry.start + i;
    const std::int32_t block = n / p.block_size;
    slots[entry.first_row + i] =
        std::int64_t{table.At(block)} * p.block_size + (n - block * p.block_size);
    if (group != 0) continue;
    for (int section = 0; section < p.position_sections; ++section) {
      p.positions[section * p.section_stride + entry.first_row + i] =
          entry.position_word < 0 ? n : words[entry.position_word + section * entry.count + i];
    }
    if (p.rope_choice != nullptr) p.rope_choice[entry.first_row + i] = entry.rope_choice;
    if (p.batch_indices != nullptr) {
      p.batch_indices[entry.first_row + i] = static_cast<std::int32_t>(b);
    }
  }
  const std::int32_t length = entry.start + entry.count;
  const std::int32_t used = (length - 1) / p.block_size + 1;
  for (std::int32_t j = thread; j < used; j += step) {
    block_table[b * p.table_stride + j] = table.At(j);
  }
  if (p.kv_indptr != nullptr) ListPages(p, entry, words, table, b, thread, step);
  if (blockIdx.y != 0) return;
  for (std::int32_t i = thread; i < entry.delta_count; i += kThreads) {
    row[entry.delta_first + i] = table.changed[i];
  }
  if (threadIdx.x == 0 && group == 0) {
    p.cu_seqlens[b] = entry.first_row;
    p.seqused_k[b] = length;
  }
  ClearTail(p, b, used);
}

// What belongs to no entry.
__device__ __forceinline__ void BuildRest(const StepTablesParams& p, const std::int32_t* words) {
  const StepHeader& header = p.header;
  const auto thread =
      static_cast<std::int32_t>((blockIdx.y * gridDim.x + blockIdx.x) * kThreads + threadIdx.x);
  const auto step = static_cast<std::int32_t>(gridDim.x * gridDim.y * kThreads);
  std::int64_t* slots = p.slots + std::int64_t{blockIdx.z} * p.slot_group_stride;
  for (std::int32_t i = header.num_tokens + thread; i < header.padded_tokens; i += step) {
    slots[i] = -1;
    if (blockIdx.z != 0) continue;
    for (int section = 0; section < p.position_sections; ++section) {
      p.positions[section * p.section_stride + i] = 0;
    }
    if (p.rope_choice != nullptr) p.rope_choice[i] = 0;
    if (p.batch_indices != nullptr) p.batch_indices[i] = -1;
  }
  if (thread == 0 && blockIdx.z == 0) {
    p.cu_seqlens[header.padded_sequences] = header.num_tokens;
    if (p.fault != nullptr) *p.fault = header.fault;
  }
  if (thread == 0 && p.kv_indptr != nullptr) {
    p.kv_indptr[blockIdx.z * p.indptr_group_stride + header.padded_sequences] = words[blockIdx.z];
  }
}

// An upload that is small goes along with the launch: reads of host memory would wait for what else
// is on the link. kBytes with the rest: parameters of up to 4 KiB, or 32 KiB.
template <std::size_t kBytes>
struct Inlined {
  StepTablesParams params;
  alignas(16) unsigned char upload[kBytes];
};
constexpr std::size_t kSmall = 3584;
constexpr std::size_t kLarge = 31744;
static_assert(sizeof(Inlined<kSmall>) <= 4096 && sizeof(Inlined<kLarge>) <= 32764);

__device__ __forceinline__ void Build(const StepTablesParams& p, const void* upload) {
  const StepHeader& header = p.header;
  const auto* entries = reinterpret_cast<const StepEntry*>(
      static_cast<const unsigned char*>(upload) + sizeof(StepHeader));
  const auto* words = reinterpret_cast<const std::int32_t*>(entries + header.padded_sequences);
  BuildRest(p, words);
  const auto b = static_cast<std::int32_t>(blockIdx.x);
  if (b >= header.padded_sequences) return;
  if (b < header.num_sequences) {
    BuildEntry(p, entries[b], words, b);
  } else if (blockIdx.y == 0) {
    if (threadIdx.x == 0 && blockIdx.z == 0) {
      p.cu_seqlens[b] = header.num_tokens;
      p.seqused_k[b] = 0;
    }
    if (threadIdx.x == 0 && p.kv_indptr != nullptr) {
      const std::int64_t group = blockIdx.z;
      p.kv_indptr[group * p.indptr_group_stride + b] = words[group];
      p.kv_start[group * p.filled_group_stride + b] = 0;
      if (group == 0) p.last_page_len[b] = 0;
    }
    ClearTail(p, b, 0);
  }
}

// Grid: (max(padded_sequences, 1), parts, groups).
__global__ void __launch_bounds__(kThreads)
    StepTablesKernel(const __grid_constant__ StepTablesParams p) {
  Build(p, p.upload);
}

template <std::size_t kBytes>
__global__ void __launch_bounds__(kThreads)
    InlinedStepTablesKernel(const __grid_constant__ Inlined<kBytes> p) {
  Build(p.params, p.upload);
}

template <std::size_t kBytes>
cudaError_t LaunchInlined(const StepTablesParams& p, dim3 grid, cudaStream_t stream) {
  Inlined<kBytes> inlined;
  inlined.params = p;
  std::memcpy(inlined.upload, p.upload, static_cast<std::size_t>(p.host_bytes));
  return Launch(InlinedStepTablesKernel<kBytes>, grid, dim3(kThreads), stream, inlined);
}

}  // namespace

cudaError_t BuildStepTables(const StepTablesParams& p, cudaStream_t stream) {
  const std::int64_t items = std::max<std::int64_t>(p.header.padded_tokens, p.table_stride);
  const auto parts =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(items / kItemsPerPart, 1, kMaxParts));
  const auto columns = static_cast<std::uint32_t>(std::max(p.header.padded_sequences, 1));
  const dim3 grid(columns, parts, static_cast<std::uint32_t>(p.groups));
  const auto bytes = static_cast<std::size_t>(p.host_bytes);
  if (bytes == 0 || bytes > kLarge) {
    return Launch(StepTablesKernel, grid, dim3(kThreads), stream, p);
  }
  if (bytes <= kSmall) return LaunchInlined<kSmall>(p, grid, stream);
  if (LaunchInlined<kLarge>(p, grid, stream) == cudaSuccess) return cudaSuccess;
  (void)cudaGetLastError();  // a driver before R530 takes no such parameters
  return Launch(StepTablesKernel, grid, dim3(kThreads), stream, p);
}

}  // namespace lariat::cuda
