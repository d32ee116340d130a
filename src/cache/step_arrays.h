// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "backend/params.h"
#include "blocks/block_manager.h"
#include "cache/resolved_config.h"
#include "lariat/device.h"
#include "lariat/kv_cache.h"
#include "storage/block_groups.h"

namespace lariat::cache {

// The device arrays that a step is read from, at addresses that never change, and the pinned
// staging from which one launch fills them: it takes a few kilobytes along, or reads host
// memory, so that no copy stands in line behind the host tier's. One set of arrays serves all
// steps: each Upload overwrites them in stream order. On a device without memory everything is null
// and Upload does nothing. Owns its buffers. Threads: externally synchronised.
class StepArrays {
 public:
  static Result<StepArrays> Create(Device device, const CacheConfig& config,
                                   const ResolvedConfig& resolved);

  // group: one there is
  StepView view(int group = 0) const;
  StepHostView host_view(int group = 0) const;
  // The device word from which appends take the fault record of the step now uploaded.
  FaultRecord* const* fault_word() const;
  // The record of ring entry `slot`; null without memory.
  FaultRecord* fault_record(int slot) const;

  // Writes the step's changed table entries and rows into staging `slot` and starts the launch that
  // makes the arrays of it.
  // Costs O(changed entries + sequences) on the host.
  // REQUIRES: the last upload from this slot has passed.
  Status Upload(const blocks::PlannedStep& step, blocks::BlockManager& manager, int slot,
                Stream stream);

 private:
  StepArrays(Device device, const CacheConfig& config, const ResolvedConfig& resolved)
      : device_(std::move(device)),
        block_size_(config.block_size),
        max_sequences_(config.max_sequences),
        max_tokens_(config.max_tokens_per_step),
        sections_(resolved.position_sections),
        table_stride_(resolved.table_stride),
        groups_(resolved.groups.size()),
        windows_(resolved.groups),
        reader_arrays_(config.reader_arrays) {}
  Status Allocate(const CacheConfig& config, const ResolvedConfig& resolved);
  // Fills staging with the header, the entries, and words for all groups; returns its bytes.
  std::int64_t Stage(const blocks::PlannedStep& step, blocks::BlockManager& manager,
                     std::byte* staging, StepHeader& header, FaultRecord* fault);

  // What HostView tells, of the largest step.
  struct HostArrays {
    int sequences = -1;  // padded; -1: no step yet
    std::int32_t max_seqlen_q = 0, max_seqlen_k = 0;
    std::vector<std::int32_t> cu_seqlens, seqused_k, last_page_len;
    std::vector<std::int32_t> kv_indptr, kv_start;  // of each group, one behind the other
  };
  void SizeHostArrays(HostArrays& arrays) const;
  // Fills `next_` of a step.
  void MakeHostArrays(const blocks::PlannedStep& step);

  Device device_;
  int block_size_;
  int max_sequences_;
  std::int64_t max_tokens_;
  int sections_;
  std::int64_t table_stride_;
  std::size_t groups_;
  std::vector<storage::BlockGroup> windows_;  // of each group
  bool reader_arrays_;
  HostArrays now_, next_;  // of the step that was uploaded last, and of one that is being staged
  std::int64_t upload_bytes_ = 0;
  DeviceBuffer positions_, rope_choice_, cu_seqlens_, seqused_k_, fault_word_;
  DeviceBuffer slots_, block_table_, resident_, filled_;  // of each group, one behind the other
  DeviceBuffer kv_indptr_, kv_indices_, kv_start_;        // so these
  DeviceBuffer last_page_len_, batch_indices_;
  DeviceBuffer staging_;  // [ring, upload_bytes], pinned
  DeviceBuffer faults_;   // [ring] FaultRecord, mapped
};

}  // namespace lariat::cache
