// SPDX-License-Identifier: Apache-2.0
#include "cache/step_arrays.h"

#include <algorithm>
#include <cstring>

#include "backend/backend.h"

namespace lariat::cache {

namespace {

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
  return view;
}

FaultRecord* const* StepArrays::fault_word() const { return As<FaultRecord*>(fault_word_); }

FaultRecord* StepArrays::fault_record(int slot) const {
  return faults_.data() == nullptr ? nullptr : As<FaultRecord>(faults_) + slot;
}

void StepArrays::Stage(const blocks::PlannedStep& step, blocks::BlockManager& manager,
                       std::byte* staging, StepHeader& header, FaultRecord* fault) const {
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
    entry.rope_choice = sequence.rope_choice;
    std::memcpy(entries + sizeof(entry) * i, &entry, sizeof(entry));
  }
  const StepEntry padding;
  for (auto i = step.rows.size(); i < static_cast<std::size_t>(step.padded_sequences); ++i) {
    std::memcpy(entries + sizeof(padding) * i, &padding, sizeof(padding));
  }
}

Status StepArrays::Upload(const blocks::PlannedStep& step, blocks::BlockManager& manager, int slot,
                          Stream stream) {
  if (!device_.backend().has_memory()) return {};
  std::byte* staging = As<std::byte>(staging_) + slot * upload_bytes_;
  StepTablesParams params;
  Stage(step, manager, staging, params.header, fault_record(slot));
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
  return device_.backend().BuildStepTables(params, stream);
}

}  // namespace lariat::cache
