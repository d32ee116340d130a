// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "lariat/rope.h"
#include "lariat/types.h"

// What a KVCache stores, how much of it, and where.

namespace lariat {

// How far back a layer reads: all tokens, those in a window, those of its own chunk, latents of
// all; or a state of fixed size (kUnsupported for now).
enum class LayerKind : std::uint8_t { kFull, kSliding, kChunked, kMla, kLinear };

// What one layer stores per token, and how far back it reads. Layers of one kind and window form a
// group with one block table, or several groups: see MemoryFootprint::num_groups. They may differ
// in heads and widths. kLinear is kUnsupported for now.
//   kSliding: a row reads itself and the window - 1 tokens before it
//   kChunked: a row reads its own chunk, of the tokens from the last multiple of window on
struct LayerSpec {
  LayerKind kind = LayerKind::kFull;
  int kv_heads = 0;  // of the whole model, before `shard`; >= 1; kMla: 1
  // Elements of a key head: even, 2..512; kMla: kv_lora_rank + qk_rope_head_dim, 1..131072.
  int k_dim = 0;
  int v_dim = 0;   // elements of a value head: even, 2..512; kMla: 0
  int rope = -1;   // index into CacheConfig::ropes; -1: keys are stored as they come
  int window = 0;  // tokens, >= 1: of kSliding its window, of kChunked its chunk; 0 otherwise

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// Which tensor-parallel rank this cache serves. A rank stores kv_heads / size heads; where size is
// the larger, heads are replicated: rank r stores head r * kv_heads / size. One must divide the
// other. MLA's rows are whole on every rank.
struct Shard {
  int rank = 0;
  int size = 1;
};

// How much memory the pool takes: exactly one of the three.
struct MemoryConfig {
  std::int64_t num_blocks = 0;  // blocks, each of which serves one group or another
  std::int64_t bytes = 0;       // as many whole blocks as fit
  bool unlimited = false;       // grows for ever; null backend only
  // Where the pool lies, if not null: caller_bytes of memory of the backend's device (of the host
  // on cpu; on null an address that nobody looks at), at least MemoryFootprint::pool_bytes, at a
  // multiple of 256. Zeroed at Create, as far as the pool goes; not freed, and the caller's again
  // when the cache is gone. Not with unlimited.
  void* caller_memory = nullptr;
  std::int64_t caller_bytes = 0;
};

// Order of a pool's planes. kBlockMajor is [block][layer][K|V][row][head][element]: a block is one
// run of bytes. kLayerMajor is [layer][K|V][block][row][head][element]: a block is a run per plane.
// Of several groups plane i of each lies where that of the first does, in its strides;
// kUnsupported where a plane is larger than that one, or there is none.
enum class Layout : std::uint8_t { kBlockMajor, kLayerMajor };

// Order inside a plane: rows of heads, or heads of rows ([head][row][element]).
enum class Order : std::uint8_t { kNHD, kHND };

// What a prefix hit may consist of: nothing, whole blocks, or whole blocks and the first tokens of
// one more. That one is copied: the step takes a block of its own for it, and holds the source
// until it ends. Where an idle source would be needed to make room, the plan goes without such
// hits, but for items that give positions: those count from the row behind the hit that Match told.
enum class Reuse : std::uint8_t { kNone, kBlock, kToken };

// When the copy of a block in host memory is made.
//   kBack: before the block is evicted: the next victims are kept copied (HostTier::clean_blocks)
//   kThrough: as soon as the block is cached
//   kAfterHits: once so many prefix hits have claimed it (HostTier::write_after_hits)
// Suspend copies what has no copy yet, whatever the policy.
enum class WritePolicy : std::uint8_t { kBack, kThrough, kAfterHits };

// A second tier: blocks that are evicted from the device stay cached in pinned host memory if they
// have a copy there, until Fetch brings them back. A block without a copy is forgotten when it is
// evicted: no step ever waits for the host tier.
// A policy's copies take free places of the tier, or that of the least recently evicted block.
struct HostTier {
  std::int64_t num_blocks = 0;  // blocks of every layer
  std::int64_t bytes = 0;       // as many whole blocks as fit. Not both; neither: no host tier
  WritePolicy write = WritePolicy::kBack;
  int write_after_hits = 2;  // kAfterHits: >= 1
  // kBack: how many of the next victims get copies. When fewer than half of them may be left, there
  // is another look; so a step should take no more than half as many blocks: what it evicts beyond
  // those that have a copy is forgotten. 0: an eighth of the device's blocks, or of the tier's if
  // that is less. >= 0; more than the tier has blocks is taken as that.
  std::int64_t clean_blocks = 0;
};

// Which idle block (cached, held by nobody) makes room for others. A block is never evicted before
// the cached blocks below it, so it stays for as long as they do.
// kLru: the least recently used one. kPriority: the one of the lowest priority (see Retention), the
// least recently used one among equals.
enum class EvictionPolicy : std::uint8_t { kLru, kPriority };

// What a cache holds, in how much memory, and for how many sequences and steps at once.
struct CacheConfig {
  // --- what is stored ---
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;
  DType dtype = DType::kBF16;  // fp32, fp16, bf16
  float k_scale = 1.0F;        // fp8 only
  float v_scale = 1.0F;        // fp8 only
  Shard shard;

  // --- how much, and where ---
  BackendKind backend = BackendKind::kAuto;
  int device_ordinal = 0;
  int cpu_threads = 1;  // as DeviceOptions::cpu_threads, where Create makes the device
  MemoryConfig memory;
  HostTier host;        // kUnsupported with unlimited memory
  int block_size = 16;  // tokens per block, >= 1; readers of MLA's rows want 64
  Layout layout = Layout::kBlockMajor;
  Order order = Order::kNHD;

  // --- how it is used ---
  Reuse reuse = Reuse::kBlock;
  EvictionPolicy eviction = EvictionPolicy::kLru;
  std::int64_t max_pinned_blocks = 0;  // that Pin may hold at once, >= 0
  // Changes of the index that wait for KVCache::DrainEvents at most, 0..2^24; 0: there are none,
  // and they cost nothing.
  std::int64_t max_events = 0;
  int max_steps_in_flight = 2;               // 1..16
  int max_sequences = 256;                   // open at once, >= 1
  std::int64_t max_tokens_per_sequence = 0;  // required; sizes RoPE and block tables
  std::int64_t max_tokens_per_step = 8192;   // rows of one step, padding included
  // Each Prepare also makes what some attention kernels and their planners want: StepView's
  // kv_indptr and what is behind it, and KVCache::HostView.
  bool reader_arrays = false;
};

// What a configuration would take, in bytes.
struct MemoryFootprint {
  std::int64_t bytes_per_token = 0;  // all layers, K and V, this rank, unpadded
  std::int64_t bytes_per_block = 0;  // block_size tokens of one group; the same for every group
  // Layers with a block table of their own. The first group has all layers of full attention, or
  // else all MLA layers, or else those of the widest window, and its blocks are not padded: the
  // layers of another kind or window are as many groups as it takes for none to be larger.
  // Blocks of the first group are kept to the end of their sequence; those of windows are given
  // back when no later row reads them.
  int num_groups = 1;
  std::int64_t padding_bytes = 0;  // that one block of each group, together, leaves unused
  std::int64_t num_blocks = 0;     // 0 when unlimited
  std::int64_t pool_bytes = 0;
  std::int64_t rope_table_bytes = 0;
  std::int64_t step_array_bytes = 0;   // device arrays of StepView and what feeds them
  std::int64_t pinned_host_bytes = 0;  // staging ring, fault records and the host tier
  std::int64_t num_host_blocks = 0;
  std::int64_t host_tier_bytes = 0;  // of pinned_host_bytes
  // Host memory of max_events, with the names of the blocks that there are room for.
  std::int64_t event_log_bytes = 0;
};

// What KVCache::Supports is asked for.
enum class Feature : std::uint8_t { kTransfers, kReleaseReacquire, kTokenReuse, kCheckSlots };

}  // namespace lariat
