// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/ops.h"

// Parameter blocks of the backend operations that are not public. The public ones are in
// lariat/ops.h.

namespace lariat {

// First bytes of a step's upload, followed by `padded_sequences` StepEntry, then int32 words that
// the entries point into.
struct StepHeader {
  std::int32_t num_tokens = 0;        // rows of the step
  std::int32_t padded_tokens = 0;     // >= num_tokens
  std::int32_t num_sequences = 0;     // entries that hold a sequence
  std::int32_t padded_sequences = 0;  // >= num_sequences
  FaultRecord* fault = nullptr;       // where this step's appends record faults
};

// One sequence's share of a step.
struct StepEntry {
  std::int32_t resident_row = 0;  // row of StepTablesParams::resident
  std::int32_t first_row = 0;     // of the step's rows; the rows are [first_row, first_row + count)
  std::int32_t start = 0;         // tokens the sequence holds before this step
  std::int32_t count = 0;         // rows, >= 1
  // Changed block-table entries: words[delta_word + group * delta_count .. + delta_count) replace
  // resident[group][resident_row][delta_first ..].
  std::int32_t delta_first = 0;
  std::int32_t delta_count = 0;
  std::int32_t delta_word = 0;
  // words[position_word + section * count + i] are the positions; -1: start + i in each section.
  std::int32_t position_word = -1;
  std::uint32_t rope_choice = 0;  // which tables the sequence turns by
  // words[page_word + 2 * group]: where in kv_indices the sequence's blocks begin; the next word:
  // the first of its table that is there.
  std::int32_t page_word = 0;
};

// BuildStepTables: applies the table changes of an upload to the resident rows and writes the
// arrays that appends and attention read. One launch.
//   For each group, entry b and i < count, with n = start + i and row = resident[resident_row]:
//     slots[first_row + i] = row[n / block_size] * block_size + n % block_size
//     positions[section, first_row + i] = words[position_word + section * count + i], or n
//     rope_choice[first_row + i] = rope_choice of the entry
//   cu_seqlens[b] = first_row, seqused_k[b] = start + count,
//   block_table[b, j] = row[j] for j < ceil((start + count) / block_size), else 0.
//   With kv_indptr, and begin, first of the entry and group (StepEntry::page_word):
//     kv_indices[begin + j - first] = block_table[b, j] for first <= j, kv_indptr[b] = begin,
//     kv_start[b] = first * block_size, batch_indices[first_row + i] = b,
//     last_page_len[b] = tokens in the last block
//   Padding: slots -1, positions 0, rope_choice 0, cu_seqlens num_tokens, seqused_k 0, block_table
//   0, kv_indptr words[group] (then words begin with the groups' numbers of blocks), kv_start 0,
//   batch_indices -1, last_page_len 0.
// REQUIRES: the entries' resident rows are distinct; resident, block_table and filled are what
//   earlier calls left; filled and block_table start at 0.
// `filled[b]` remembers how many entries of block_table[b] are not known to be 0; it starts at 0.
struct StepTablesParams {
  // StepHeader, StepEntry[], int32 words: device memory, or pinned host memory that stays as it is
  // until the stream has passed the call.
  const void* upload = nullptr;
  // Where it is host memory, its bytes: the launch may then take them along. 0: it may not.
  std::int64_t host_bytes = 0;
  StepHeader header;  // the same header, for the launch
  int block_size = 1;
  // Block tables side by side. Strides from one group's array to the next one's, in elements.
  int groups = 1;
  std::int64_t table_group_stride = 0;   // of resident, and of block_table
  std::int64_t slot_group_stride = 0;    // of slots
  std::int64_t filled_group_stride = 0;  // of filled
  std::int32_t* resident = nullptr;      // [groups][rows, table_stride]
  std::int64_t table_stride = 0;         // also of block_table
  std::int64_t* slots = nullptr;         // [groups][padded_tokens]
  std::int32_t* positions = nullptr;     // [position_sections, padded_tokens]
  int position_sections = 1;             // 1 or 3
  std::int64_t section_stride = 0;       // elements from one section to the next
  std::uint32_t* rope_choice = nullptr;  // [padded_tokens]; may be null
  std::int32_t* cu_seqlens = nullptr;    // [padded_sequences + 1]
  std::int32_t* seqused_k = nullptr;     // [padded_sequences]
  std::int32_t* block_table = nullptr;   // [groups][padded_sequences, table_stride]
  std::int32_t* filled = nullptr;        // [groups][padded_sequences]
  FaultRecord** fault = nullptr;         // receives header.fault
  // All null, or none.
  std::int32_t* kv_indptr = nullptr;  // [groups][padded_sequences + 1]
  std::int64_t indptr_group_stride = 0;
  std::int32_t* kv_indices = nullptr;     // [groups][...], table_group_stride apart
  std::int32_t* kv_start = nullptr;       // [groups][padded_sequences], filled_group_stride apart
  std::int32_t* last_page_len = nullptr;  // [padded_sequences]
  std::int32_t* batch_indices = nullptr;  // [padded_tokens]
};

// C = A W for each matrix of a batch, or C = A W^T where W lies as [columns, inner]; row-major.
// Rounded once from fp32 sums. C overlaps neither A nor W; what C holds before is not read.
struct GemmParams {
  DType dtype = DType::kBF16;  // of all three: fp32, fp16, bf16
  bool allow_tf32 = false;
  std::int64_t rows = 0;     // >= 1
  std::int64_t columns = 0;  // 1..2^31-1
  std::int64_t inner = 0;    // 1..2^31-1
  const void* a = nullptr;   // [rows, inner], the same for the whole batch
  std::int64_t a_stride = 0;
  WeightLayout layout = WeightLayout::kOutIn;
  const void* w = nullptr;  // kOutIn: [columns, inner], kInOut: [inner, columns]
  std::int64_t w_stride = 0;
  void* c = nullptr;  // [rows, columns]
  std::int64_t c_stride = 0;
  // Strides count elements from row to row, below 2^31; these from matrix to matrix of a batch.
  int batch = 1;
  std::int64_t w_batch_stride = 0, c_batch_stride = 0;
  // Followed where the product is a kernel of ours, as are its weights by kIndexEarly.
  DependentLaunch dependent_launch = DependentLaunch::kOff;
};

// Uses of a stream's scratch memory that may overlap in time.
enum class ScratchUse : std::uint8_t {
  kLatent,  // between two products of one operation
  kRows     // between two operations of one call of the cache
};

// MlaGather: the part of MlaExpand that moves rows: latents to a contiguous array, k_pe to each
// head of k. One launch. latent: [num_tokens, rank], contiguous; may be null where neither nope_dim
// nor v_dim needs it. Rows without a token, or with a bad block or index, give zeros.
struct MlaGatherParams {
  MlaExpandParams expand;
  void* latent = nullptr;
};

}  // namespace lariat
