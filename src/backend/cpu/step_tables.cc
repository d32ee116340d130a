// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "backend/cpu/cpu_backend.h"

namespace lariat::cpu {
namespace {

void BuildEntry(const StepTablesParams& p, const StepEntry& entry, const std::int32_t* words) {
  std::int32_t* row = p.resident + entry.resident_row * p.table_stride;
  std::copy_n(words + entry.delta_word, entry.delta_count, row + entry.delta_first);
  for (std::int32_t i = 0; i < entry.count; ++i) {
    const std::int32_t n = entry.start + i;
    const std::int64_t block = row[n / p.block_size];
    p.slots[entry.first_row + i] = block * p.block_size + n % p.block_size;
    for (int section = 0; section < p.position_sections; ++section) {
      p.positions[section * p.section_stride + entry.first_row + i] =
          entry.position_word < 0 ? n : words[entry.position_word + section * entry.count + i];
    }
    if (p.rope_choice != nullptr) p.rope_choice[entry.first_row + i] = entry.rope_choice;
  }
}

// Copies the first `used` entries of `row` and zeroes what an earlier step left behind them.
void WriteTable(const StepTablesParams& p, std::int64_t b, const std::int32_t* row,
                std::int32_t used) {
  std::int32_t* table = p.block_table + b * p.table_stride;
  std::copy_n(row, used, table);
  if (p.filled[b] > used) std::fill(table + used, table + p.filled[b], 0);
  p.filled[b] = used;
}

}  // namespace

void BuildStepTables(const StepTablesParams& p) {
  const StepHeader& header = p.header;
  const auto* entries = reinterpret_cast<const StepEntry*>(static_cast<const std::byte*>(p.upload) +
                                                           sizeof(StepHeader));
  const auto* words = reinterpret_cast<const std::int32_t*>(entries + header.padded_sequences);

  for (std::int64_t b = 0; b < header.padded_sequences; ++b) {
    if (b >= header.num_sequences) {
      p.cu_seqlens[b] = header.num_tokens;
      p.seqused_k[b] = 0;
      WriteTable(p, b, nullptr, 0);
      continue;
    }
    const StepEntry& entry = entries[b];
    const std::int32_t length = entry.start + entry.count;
    BuildEntry(p, entry, words);
    p.cu_seqlens[b] = entry.first_row;
    p.seqused_k[b] = length;
    WriteTable(p, b, p.resident + entry.resident_row * p.table_stride,
               (length - 1) / p.block_size + 1);
  }
  p.cu_seqlens[header.padded_sequences] = header.num_tokens;
  std::fill(p.slots + header.num_tokens, p.slots + header.padded_tokens, -1);
  for (int section = 0; section < p.position_sections; ++section) {
    std::int32_t* positions = p.positions + section * p.section_stride;
    std::fill(positions + header.num_tokens, positions + header.padded_tokens, 0);
  }
  if (p.rope_choice != nullptr) {
    std::fill(p.rope_choice + header.num_tokens, p.rope_choice + header.padded_tokens, 0U);
  }
  if (p.fault != nullptr) *p.fault = header.fault;
}

}  // namespace lariat::cpu
