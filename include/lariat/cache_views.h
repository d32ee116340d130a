// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>

#include "lariat/cache_config.h"
#include "lariat/types.h"

// What a KVCache (lariat/kv_cache.h) shows of itself: arrays and addresses for kernels, and
// counters.

namespace lariat {

// Arrays of the most recently prepared step, device memory at addresses that never change. They
// hold padded_tokens / padded_sequences valid entries; null pointers on the null backend. Slots and
// block tables are those of one group of layers (LayerView::group); all groups share the rest.
struct StepView {
  const std::int64_t* slots = nullptr;  // [max_tokens_per_step]; padding -1
  // [sections, max_tokens_per_step], sections 3 where a rope has mrope sections, else 1; padding 0
  const std::int32_t* positions = nullptr;
  // [max_tokens_per_step]: bit r says that the row turns by the second table of ropes[r]; padding
  // 0. Null where no rope has two.
  const std::uint32_t* rope_choice = nullptr;
  const std::int32_t* cu_seqlens = nullptr;  // [max_sequences + 1]; padding T
  const std::int32_t* seqused_k =
      nullptr;  // [max_sequences], tokens after this step's append; padding 0
  // [max_sequences, block_table_stride], batch order; padding 0. Of blocks before a window, which
  // were given back, no matter: a block's number.
  const std::int32_t* block_table = nullptr;
  std::int64_t block_table_stride = 0;  // ceil(max_tokens_per_sequence / block_size)

  // With CacheConfig::reader_arrays, else null: the group's blocks of each sequence behind those of
  // the one before it, as FlashInfer reads them. Sequence b has kv_indices[kv_indptr[b] ..
  // kv_indptr[b + 1]): the blocks from the one of token kv_start[b] on. Of layers with a window
  // that is the block of the first token which the step's first row attends to; else it is 0.
  const std::int32_t* kv_indptr = nullptr;   // [max_sequences + 1]; padding: the number of blocks
  const std::int32_t* kv_indices = nullptr;  // what is behind the last block, no matter: a block's
                                             // number
  const std::int32_t* kv_start = nullptr;    // [max_sequences], a multiple of block_size; padding 0
  // [max_sequences], tokens in the last block, 1..block_size; padding 0
  const std::int32_t* last_page_len = nullptr;
  // [max_tokens_per_step], which sequence of the step a row is of; padding -1
  const std::int32_t* batch_indices = nullptr;
};

// The same of the most recently prepared step in host memory, for planners of attention kernels:
// padded_sequences entries (cu_seqlens and kv_indptr: one more). Valid until the next Prepare.
// Empty before the first one, without CacheConfig::reader_arrays, and on the null backend.
struct StepHostView {
  std::span<const std::int32_t> cu_seqlens;
  std::span<const std::int32_t> seqused_k;
  std::span<const std::int32_t> kv_indptr;  // of the group; so the next
  std::span<const std::int32_t> kv_start;
  std::span<const std::int32_t> last_page_len;
  // The most rows and, after this step's append, tokens of a sequence of the step. A captured graph
  // is to be given bounds for all its replays.
  std::int32_t max_seqlen_q = 0;
  std::int32_t max_seqlen_k = 0;
};

// One layer's planes, for an attention kernel. Element (block, row, head, i) of K is at
// k + block * k_block_stride + row * k_row_stride + head * k_head_stride + i, in elements.
// MLA: K is the latent rows, of one head; v is null, v_dim and V's strides are 0.
struct LayerView {
  DType dtype = DType::kBF16;
  int group = 0;  // whose slots and block table are the layer's
  LayerKind kind = LayerKind::kFull;
  int window = 0;    // as LayerSpec::window
  int kv_heads = 0;  // this rank's
  int k_dim = 0;
  int v_dim = 0;
  int block_size = 0;
  std::int64_t num_blocks = 0;
  void* k = nullptr;
  void* v = nullptr;
  std::int64_t k_block_stride = 0, k_row_stride = 0, k_head_stride = 0;
  std::int64_t v_block_stride = 0, v_row_stride = 0, v_head_stride = 0;
  // [num_positions, rotary_dim / 2], or two of them in a row (StepView::rope_choice); null without
  // RoPE.
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t num_positions = 0;
};

// Counters since Create, and the pool now. free + idle + held + reserved + in_transit = total.
struct Stats {
  std::int64_t total_blocks = 0;  // grows when unlimited
  std::int64_t free_blocks = 0;
  std::int64_t idle_blocks = 0;  // cached, held by nobody
  std::int64_t held_blocks = 0;
  std::int64_t reserved_blocks = 0;       // taken by live steps, not committed yet
  std::int64_t in_transit_blocks = 0;     // taken by a Fetch or Resume that is not accepted yet
  std::int64_t peak_used_blocks = 0;      // most held + reserved + in transit at once
  std::int64_t indexed_blocks = 0;        // cached on the device
  std::int64_t pinned_blocks = 0;         // held by Pin, by others too or not
  std::int64_t evicted_blocks = 0;        // indexed blocks that left the device to make room
  std::int64_t quota_evicted_blocks = 0;  // idle ones freed because of SetQuota
  std::int64_t expired_blocks = 0;        // idle ones whose retention ended
  std::int64_t merged_blocks = 0;         // full blocks found equal to an indexed one at Commit
  std::int64_t copied_blocks = 0;         // copy-on-write
  std::int64_t hit_tokens = 0;            // claimed by first Plans that were prepared
  std::int64_t tokens_committed = 0;
  std::int64_t sequences = 0;  // open
  std::int64_t live_steps = 0;
  // The host tier.
  std::int64_t host_blocks = 0;       // places
  std::int64_t host_used = 0;         // that hold a block
  std::int64_t host_held = 0;         // of those: of suspended sequences, or read by a transfer
  std::int64_t offloaded_blocks = 0;  // copied to the host
  std::int64_t onboarded_blocks = 0;  // copied to the device by transfers that were accepted
  std::int64_t host_evicted = 0;      // cached blocks dropped from the host to make room
  // With CacheConfig::max_events.
  std::int64_t events = 0;       // there were so far
  std::int64_t lost_events = 0;  // of them, nobody drained in time
};

}  // namespace lariat
