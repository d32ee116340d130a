// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "backend/cpu/cpu_backend.h"

namespace lariat::cpu {
namespace {

// One group's arrays.
struct GroupArrays {
  GroupArrays(const StepTablesParams& p, int g)
      : group(g),
        resident(p.resident + g * p.table_group_stride),
        slots(p.slots + g * p.slot_group_stride),
        block_table(p.block_table + g * p.table_group_stride),
        filled(p.filled + g * p.filled_group_stride) {}
  int group;
  std::int32_t* resident;
  std::int64_t* slots;
  std::int32_t* block_table;
  std::int32_t* filled;
};

void BuildSlots(const StepTablesParams& p, const GroupArrays& arrays, const StepEntry& entry,
                const std::int32_t* words) {
  std::int32_t* row = arrays.resident + entry.resident_row * p.table_stride;
  std::copy_n(words + entry.delta_word + arrays.group * entry.delta_count, entry.delta_count,
              row + entry.delta_first);
  for (std::int32_t i = 0; i < entry.count; ++i) {
    const std::int32_t n = entry.start + i;
    const std::int64_t block = row[n / p.block_size];
    arrays.slots[entry.first_row + i] = block * p.block_size + n % p.block_size;
  }
}

void BuildPositions(const StepTablesParams& p, const StepEntry& entry, const std::int32_t* words) {
  for (std::int32_t i = 0; i < entry.count; ++i) {
    const std::int32_t n = entry.start + i;
    for (int section = 0; section < p.position_sections; ++section) {
      p.positions[section * p.section_stride + entry.first_row + i] =
          entry.position_word < 0 ? n : words[entry.position_word + section * entry.count + i];
    }
    if (p.rope_choice != nullptr) p.rope_choice[entry.first_row + i] = entry.rope_choice;
  }
}

// Copies the first `used` entries of `row` and zeroes what an earlier step left behind them.
void WriteTable(const StepTablesParams& p, const GroupArrays& arrays, std::int64_t b,
                const std::int32_t* row, std::int32_t used) {
  std::int32_t* table = arrays.block_table + b * p.table_stride;
  std::copy_n(row, used, table);
  if (arrays.filled[b] > used) std::fill(table + used, table + arrays.filled[b], 0);
  arrays.filled[b] = used;
}

// The arrays of a reader that takes a list of blocks.
void ListPages(const StepTablesParams& p, const GroupArrays& arrays, const StepEntry* entries,
               const std::int32_t* words) {
  const StepHeader& header = p.header;
  std::int32_t* indptr = p.kv_indptr + arrays.group * p.indptr_group_stride;
  std::int32_t* start = p.kv_start + arrays.group * p.filled_group_stride;
  std::int32_t* indices = p.kv_indices + arrays.group * p.table_group_stride;
  for (std::int64_t b = 0; b < header.num_sequences; ++b) {
    const std::int32_t* begin_first = words + entries[b].page_word + 2 * arrays.group;
    const std::int32_t first = begin_first[1];
    const std::int32_t length = entries[b].start + entries[b].count;
    const std::int32_t last = (length - 1) / p.block_size;
    std::copy_n(arrays.block_table + b * p.table_stride + first, last - first + 1,
                indices + begin_first[0]);
    indptr[b] = begin_first[0];
    start[b] = first * p.block_size;
    p.last_page_len[b] = length - last * p.block_size;
    std::fill_n(p.batch_indices + entries[b].first_row, entries[b].count,
                static_cast<std::int32_t>(b));
  }
  std::fill(indptr + header.num_sequences, indptr + header.padded_sequences + 1,
            words[arrays.group]);
  std::fill(start + header.num_sequences, start + header.padded_sequences, 0);
  std::fill(p.last_page_len + header.num_sequences, p.last_page_len + header.padded_sequences, 0);
  std::fill(p.batch_indices + header.num_tokens, p.batch_indices + header.padded_tokens, -1);
}

// What a group has for itself: slots and tables.
void BuildGroup(const StepTablesParams& p, const GroupArrays& arrays, const StepEntry* entries,
                const std::int32_t* words) {
  const StepHeader& header = p.header;
  for (std::int64_t b = 0; b < header.padded_sequences; ++b) {
    if (b >= header.num_sequences) {
      WriteTable(p, arrays, b, nullptr, 0);
      continue;
    }
    const StepEntry& entry = entries[b];
    BuildSlots(p, arrays, entry, words);
    WriteTable(p, arrays, b, arrays.resident + entry.resident_row * p.table_stride,
               (entry.start + entry.count - 1) / p.block_size + 1);
  }
  std::fill(arrays.slots + header.num_tokens, arrays.slots + header.padded_tokens, -1);
}

}  // namespace

void BuildStepTables(const StepTablesParams& p) {
  const StepHeader& header = p.header;
  const auto* entries = reinterpret_cast<const StepEntry*>(static_cast<const std::byte*>(p.upload) +
                                                           sizeof(StepHeader));
  const auto* words = reinterpret_cast<const std::int32_t*>(entries + header.padded_sequences);

  for (int group = 0; group < p.groups; ++group) {
    const GroupArrays arrays(p, group);
    BuildGroup(p, arrays, entries, words);
    if (p.kv_indptr != nullptr) ListPages(p, arrays, entries, words);
  }
  for (std::int64_t b = 0; b < header.padded_sequences; ++b) {
    if (b >= header.num_sequences) {
      p.cu_seqlens[b] = header.num_tokens;
      p.seqused_k[b] = 0;
      continue;
    }
    BuildPositions(p, entries[b], words);
    p.cu_seqlens[b] = entries[b].first_row;
    p.seqused_k[b] = entries[b].start + entries[b].count;
  }
  p.cu_seqlens[header.padded_sequences] = header.num_tokens;
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
