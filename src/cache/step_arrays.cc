// SPDX-License-Identifier: Apache-2.0
#include "cache/step_arrays.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "backend/backend.h"

namespace lariat::cache {

namespace {

// The first token that a row at `position` of the group's layers attends to.
std::int64_t FirstAttended(const storage::BlockGroup& group, std::int64_t position) {
  switch (group.kind) {
    case LayerKind::kSliding: return std::max<std::int64_t>(0, position - (group.window - 1));
    case LayerKind::kChunked: return position / group.window * group.window;
    default: return 0;
  }
}

template <class T>
T* As(const DeviceBuffer& buffer) {
  return static_cast<T*>(buffer.data());
}

}  // namespace

Result<StepArrays> StepArrays::Create(Device device, const CacheConfig& config,
                                      const ResolvedConfig& resolved) {
  StepArrays arrays(std::move(device), config, resolved);
  if (arrays.device_.backend().has_memory()) {
    if (Status allocated = arrays.Allocate(config, resolved); !allocated.ok()) return allocated;
  }
  return arrays;
}

Status StepArrays::Allocate(const CacheConfig& config, const ResolvedConfig& resolved) {
  const std::int64_t tokens = config.max_tokens_per_step;
  const std::int64_t sequences = config.max_sequences;
  const auto groups = static_cast<std::int64_t>(groups_);
  const std::int64_t table_bytes = groups * sequences * table_stride_ * 4;
  const std::int64_t lists = reader_arrays_ ? 1 : 0;
  if (reader_arrays_) {
    SizeHostArrays(now_);
    SizeHostArrays(next_);
  }
  const int ring = StepRing(config);
  upload_bytes_ = SizeStepArrays(config, resolved).upload_bytes;
  struct Wanted {
    DeviceBuffer* buffer;
    MemoryKind kind;
    std::int64_t bytes;
    std::uint8_t fill;
  };
  const Wanted wanted[] = {
      {&slots_, MemoryKind::kDevice, groups * tokens * 8, 0xFF},  // slot -1: nothing is stored
      {&positions_, MemoryKind::kDevice, sections_ * tokens * 4, 0},
      {&rope_choice_, MemoryKind::kDevice, resolved.two_tables == 0 ? 0 : tokens * 4, 0},
      {&cu_seqlens_, MemoryKind::kDevice, (sequences + 1) * 4, 0},
      {&seqused_k_, MemoryKind::kDevice, sequences * 4, 0},
      {&block_table_, MemoryKind::kDevice, table_bytes, 0},
      {&resident_, MemoryKind::kDevice, table_bytes, 0},
      {&filled_, MemoryKind::kDevice, groups * sequences * 4, 0},
      {&fault_word_, MemoryKind::kDevice, 8, 0},
      {&kv_indptr_, MemoryKind::kDevice, lists * groups * (sequences + 1) * 4, 0},
      {&kv_indices_, MemoryKind::kDevice, lists * table_bytes, 0},
      {&kv_start_, MemoryKind::kDevice, lists * groups * sequences * 4, 0},
      {&last_page_len_, MemoryKind::kDevice, lists * sequences * 4, 0},
      {&batch_indices_, MemoryKind::kDevice, lists * tokens * 4, 0xFF},
      {&staging_, MemoryKind::kPinnedHost, ring * upload_bytes_, 0},
      {&faults_, MemoryKind::kMappedHost, ring * static_cast<std::int64_t>(sizeof(FaultRecord)), 0},
  };
  for (const Wanted& want : wanted) {
    const auto bytes = static_cast<std::size_t>(want.bytes);
    if (bytes == 0) continue;
    Result<DeviceBuffer> allocated = device_.Allocate(want.kind, bytes);
    if (!allocated.ok()) return allocated.status();
    *want.buffer = *std::move(allocated);
    if (want.kind == MemoryKind::kPinnedHost) continue;  // written before it is read
    if (want.kind == MemoryKind::kMappedHost) {
      std::memset(want.buffer->data(), 0, bytes);
      continue;
    }
    if (Status s = device_.Fill(want.buffer->data(), want.fill, bytes, Stream{}); !s.ok()) return s;
  }
  return device_.Synchronize(Stream{});
}

StepView StepArrays::view(int group) const {
  StepView view;
  if (slots_.data() == nullptr) {
    view.block_table_stride = table_stride_;
    return view;
  }
  view.slots = As<const std::int64_t>(slots_) + group * max_tokens_;
  view.positions = As<const std::int32_t>(positions_);
  view.rope_choice = As<const std::uint32_t>(rope_choice_);
  view.cu_seqlens = As<const std::int32_t>(cu_seqlens_);
  view.seqused_k = As<const std::int32_t>(seqused_k_);
  view.block_table = As<const std::int32_t>(block_table_) + group * max_sequences_ * table_stride_;
  view.block_table_stride = table_stride_;
  if (!reader_arrays_) return view;
  view.kv_indptr = As<const std::int32_t>(kv_indptr_) + group * (max_sequences_ + std::int64_t{1});
  view.kv_indices = As<const std::int32_t>(kv_indices_) + group * max_sequences_ * table_stride_;
  view.kv_start = As<const std::int32_t>(kv_start_) + std::int64_t{group} * max_sequences_;
  view.last_page_len = As<const std::int32_t>(last_page_len_);
  view.batch_indices = As<const std::int32_t>(batch_indices_);
  return view;
}

StepHostView StepArrays::host_view(int group) const {
  StepHostView view;
  if (now_.sequences < 0 || now_.kv_indptr.empty()) return view;
  const auto sequences = static_cast<std::size_t>(now_.sequences);
  const auto most = static_cast<std::size_t>(max_sequences_);
  const auto g = static_cast<std::size_t>(group);
  const auto part = [](const std::vector<std::int32_t>& from, std::size_t at, std::size_t count) {
    return std::span(from).subspan(at, count);
  };
  view.cu_seqlens = part(now_.cu_seqlens, 0, sequences + 1);
  view.seqused_k = part(now_.seqused_k, 0, sequences);
  view.kv_indptr = part(now_.kv_indptr, g * (most + 1), sequences + 1);
  view.kv_start = part(now_.kv_start, g * most, sequences);
  view.last_page_len = part(now_.last_page_len, 0, sequences);
  view.max_seqlen_q = now_.max_seqlen_q;
  view.max_seqlen_k = now_.max_seqlen_k;
  return view;
}

void StepArrays::SizeHostArrays(HostArrays& arrays) const {
  const auto sequences = static_cast<std::size_t>(max_sequences_);
  arrays.cu_seqlens.resize(sequences + 1);
  arrays.seqused_k.resize(sequences);
  arrays.last_page_len.resize(sequences);
  arrays.kv_indptr.resize(groups_ * (sequences + 1));
  arrays.kv_start.resize(groups_ * sequences);
}

void StepArrays::MakeHostArrays(const blocks::PlannedStep& step) {
  HostArrays& to = next_;
  const std::size_t used = step.rows.size();
  const auto padded = static_cast<std::size_t>(step.padded_sequences);
  const auto most = static_cast<std::size_t>(max_sequences_);
  to.sequences = step.padded_sequences;
  to.max_seqlen_q = to.max_seqlen_k = 0;
  for (std::size_t b = 0; b < used; ++b) {
    const StepRows& rows = step.rows[b];
    const auto length = static_cast<std::int32_t>(rows.start + rows.count);
    to.cu_seqlens[b] = static_cast<std::int32_t>(rows.first_row);
    to.seqused_k[b] = length;
    to.last_page_len[b] = (length - 1) % block_size_ + 1;
    to.max_seqlen_q = std::max(to.max_seqlen_q, static_cast<std::int32_t>(rows.count));
    to.max_seqlen_k = std::max(to.max_seqlen_k, length);
  }
  for (std::size_t b = used; b <= padded; ++b) {
    to.cu_seqlens[b] = static_cast<std::int32_t>(step.num_tokens);
    if (b < padded) to.seqused_k[b] = to.last_page_len[b] = 0;
  }
  for (std::size_t g = 0; g < groups_; ++g) {
    std::int32_t* indptr = to.kv_indptr.data() + g * (most + 1);
    std::int32_t* start = to.kv_start.data() + g * most;
    std::int32_t pages = 0;
    for (std::size_t b = 0; b < used; ++b) {
      const StepRows& rows = step.rows[b];
      const std::int64_t first = FirstAttended(windows_[g], rows.start) / block_size_;
      const std::int64_t last = (rows.start + rows.count - 1) / block_size_;
      indptr[b] = pages;
      start[b] = static_cast<std::int32_t>(first * block_size_);
      pages += static_cast<std::int32_t>(last + 1 - first);
    }
    std::fill(indptr + used, indptr + padded + 1, pages);
    std::fill(start + used, start + padded, 0);
  }
}

FaultRecord* const* StepArrays::fault_word() const { return As<FaultRecord*>(fault_word_); }

FaultRecord* StepArrays::fault_record(int slot) const {
  return faults_.data() == nullptr ? nullptr : As<FaultRecord>(faults_) + slot;
}

std::int64_t StepArrays::Stage(const blocks::PlannedStep& step, blocks::BlockManager& manager,
                               std::byte* staging, StepHeader& header, FaultRecord* fault) {
  header.num_tokens = static_cast<std::int32_t>(step.num_tokens);
  header.padded_tokens = static_cast<std::int32_t>(step.padded_tokens);
  header.num_sequences = static_cast<std::int32_t>(step.rows.size());
  header.padded_sequences = step.padded_sequences;
  header.fault = fault;
  std::memcpy(staging, &header, sizeof(header));
  std::byte* entries = staging + sizeof(StepHeader);
  std::byte* words = entries + sizeof(StepEntry) * static_cast<std::size_t>(step.padded_sequences);
  std::int32_t used = 0;  // words
  const auto append = [&](const std::int32_t* from, std::int64_t count) {
    const std::int32_t at = used;
    std::memcpy(words + std::int64_t{used} * 4, from, static_cast<std::size_t>(count) * 4);
    used += static_cast<std::int32_t>(count);
    return at;
  };
  const auto sequences = static_cast<std::size_t>(max_sequences_);
  if (reader_arrays_) {
    MakeHostArrays(step);
    for (std::size_t g = 0; g < groups_; ++g) {
      append(&next_.kv_indptr[g * (sequences + 1) + step.rows.size()], 1);
    }
  }
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const StepRows& rows = step.rows[i];
    const blocks::PlannedItem& item = step.items[i];
    const blocks::Sequence& sequence = manager.sequence(item.sequence);
    StepEntry entry;
    entry.resident_row = sequence.row;
    entry.first_row = static_cast<std::int32_t>(rows.first_row);
    entry.start = static_cast<std::int32_t>(rows.start);
    entry.count = static_cast<std::int32_t>(rows.count);
    const auto entries_now = static_cast<std::int64_t>(sequence.table.size());
    entry.delta_first = static_cast<std::int32_t>(sequence.first_dirty);
    entry.delta_count = static_cast<std::int32_t>(entries_now - sequence.first_dirty);
    entry.delta_word = append(sequence.table.data() + sequence.first_dirty, entry.delta_count);
    for (const blocks::SideTable& side : sequence.sides) {
      const std::int32_t at = append(side.table.data() + sequence.first_dirty, entry.delta_count);
      // What was given back is read by nobody, but may be loaded: it names a block there is.
      auto* staged = reinterpret_cast<std::int32_t*>(words) + at;
      std::replace(staged, staged + entry.delta_count, blocks::kNoBlock, std::int32_t{0});
    }
    if (item.position_offset >= 0) {
      entry.position_word =
          append(step.positions.data() + item.position_offset, sections_ * rows.count);
    }
    if (reader_arrays_) {
      entry.page_word = used;
      for (std::size_t g = 0; g < groups_; ++g) {
        append(&next_.kv_indptr[g * (sequences + 1) + i], 1);
        const std::int32_t first = next_.kv_start[g * sequences + i] / block_size_;
        append(&first, 1);
      }
    }
    entry.rope_choice = sequence.rope_choice;
    std::memcpy(entries + sizeof(entry) * i, &entry, sizeof(entry));
  }
  const StepEntry padding;
  for (auto i = step.rows.size(); i < static_cast<std::size_t>(step.padded_sequences); ++i) {
    std::memcpy(entries + sizeof(padding) * i, &padding, sizeof(padding));
  }
  return words - staging + std::int64_t{used} * 4;
}

Status StepArrays::Upload(const blocks::PlannedStep& step, blocks::BlockManager& manager, int slot,
                          Stream stream) {
  if (!device_.backend().has_memory()) return {};
  std::byte* staging = As<std::byte>(staging_) + slot * upload_bytes_;
  StepTablesParams params;
  params.host_bytes = Stage(step, manager, staging, params.header, fault_record(slot));
  params.upload = staging;
  params.block_size = block_size_;
  params.groups = static_cast<int>(groups_);
  params.table_group_stride = max_sequences_ * table_stride_;
  params.slot_group_stride = max_tokens_;
  params.filled_group_stride = max_sequences_;
  params.resident = As<std::int32_t>(resident_);
  params.table_stride = table_stride_;
  params.slots = As<std::int64_t>(slots_);
  params.positions = As<std::int32_t>(positions_);
  params.position_sections = sections_;
  params.section_stride = max_tokens_;
  params.rope_choice = As<std::uint32_t>(rope_choice_);
  params.cu_seqlens = As<std::int32_t>(cu_seqlens_);
  params.seqused_k = As<std::int32_t>(seqused_k_);
  params.block_table = As<std::int32_t>(block_table_);
  params.filled = As<std::int32_t>(filled_);
  params.fault = As<FaultRecord*>(fault_word_);
  params.kv_indptr = As<std::int32_t>(kv_indptr_);
  params.indptr_group_stride = max_sequences_ + std::int64_t{1};
  params.kv_indices = As<std::int32_t>(kv_indices_);
  params.kv_start = As<std::int32_t>(kv_start_);
  params.last_page_len = As<std::int32_t>(last_page_len_);
  params.batch_indices = As<std::int32_t>(batch_indices_);
  Status built = device_.backend().BuildStepTables(params, stream);
  if (built.ok() && reader_arrays_) std::swap(now_, next_);
  return built;
}

}  // namespace lariat::cache
