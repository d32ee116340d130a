// SPDX-License-Identifier: Apache-2.0
#include "cache/resolved_config.h"

#include <algorithm>
#include <limits>
#include <string>

#include "backend/params.h"
#include "blocks/event_log.h"

namespace lariat::cache {

namespace {

constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();
constexpr int kMaxLatentRow = 131072;           // elements
constexpr std::uintptr_t kPoolAlignment = 256;  // as Device::Allocate gives it

bool HasWindow(LayerKind kind) {
  return kind == LayerKind::kSliding || kind == LayerKind::kChunked;
}

Status OutOfRange(const std::string& field, std::int64_t value, const std::string& allowed) {
  return InvalidArgument(field + " " + std::to_string(value) + ": allowed are " + allowed);
}

Status CheckRange(const std::string& field, std::int64_t value, std::int64_t low,
                  std::int64_t high) {
  if (value >= low && value <= high) return {};
  return OutOfRange(field, value, std::to_string(low) + " to " + std::to_string(high));
}

Status CheckWidth(const std::string& field, int value) {
  if (value >= 2 && value <= 512 && value % 2 == 0) return {};
  return OutOfRange(field, value, "even widths from 2 to 512");
}

std::string LayerName(std::size_t index) { return "layers[" + std::to_string(index) + "]."; }

// A rope turns no more than a row has.
Status CheckLayerRope(const CacheConfig& config, std::size_t index) {
  const LayerSpec& layer = config.layers[index];
  const std::string name = LayerName(index);
  const auto ropes = static_cast<int>(config.ropes.size());
  if (Status s = CheckRange(name + "rope", layer.rope, -1, ropes - 1); !s.ok()) return s;
  if (layer.rope < 0) return {};
  const RopeSpec& rope = config.ropes[static_cast<std::size_t>(layer.rope)];
  const std::string rope_name = "ropes[" + std::to_string(layer.rope) + "].";
  if (rope.rotary_dim > layer.k_dim) {
    return OutOfRange(rope_name + "rotary_dim", rope.rotary_dim,
                      "those up to " + name + "k_dim " + std::to_string(layer.k_dim));
  }
  if (layer.kind == LayerKind::kMla && !rope.mrope_sections.empty()) {
    return Unsupported(rope_name + "mrope_sections with " + name +
                       "kind mla: several positions are not built for MLA");
  }
  return {};
}

// Of full attention, or of windows.
Status CheckHeadsLayer(const CacheConfig& config, std::size_t index) {
  const LayerSpec& layer = config.layers[index];
  const std::string name = LayerName(index);
  if (Status s = CheckRange(name + "kv_heads", layer.kv_heads, 1, 65536); !s.ok()) return s;
  if (Status s = CheckWidth(name + "k_dim", layer.k_dim); !s.ok()) return s;
  if (Status s = CheckWidth(name + "v_dim", layer.v_dim); !s.ok()) return s;
  if (!HasWindow(layer.kind) && layer.window != 0) {
    return OutOfRange(name + "window", layer.window, "0 for full attention");
  }
  if (HasWindow(layer.kind) && (layer.window < 1 || layer.window > 1 << 30)) {
    return OutOfRange(name + "window", layer.window, "1 to 1073741824 for a layer with a window");
  }
  if (Status s = CheckLayerRope(config, index); !s.ok()) return s;
  const int size = config.shard.size;
  if (layer.kv_heads % size != 0 && size % layer.kv_heads != 0) {
    return InvalidArgument(name + "kv_heads " + std::to_string(layer.kv_heads) +
                           " and shard.size " + std::to_string(size) +
                           ": one must divide the other");
  }
  return {};
}

// One latent row a token, the same on every rank of whatever shard.
Status CheckMlaLayer(const CacheConfig& config, std::size_t index) {
  const LayerSpec& layer = config.layers[index];
  const std::string name = LayerName(index);
  if (layer.kv_heads != 1) return OutOfRange(name + "kv_heads", layer.kv_heads, "1 for MLA");
  if (Status s = CheckRange(name + "k_dim", layer.k_dim, 1, kMaxLatentRow); !s.ok()) return s;
  if (layer.v_dim != 0) return OutOfRange(name + "v_dim", layer.v_dim, "0 for MLA");
  if (layer.window != 0) return OutOfRange(name + "window", layer.window, "0 for MLA");
  return CheckLayerRope(config, index);
}

Status CheckLayer(const CacheConfig& config, std::size_t index) {
  const LayerKind kind = config.layers[index].kind;
  if (kind == LayerKind::kLinear) {
    return Unsupported(LayerName(index) + "kind linear: the state of linear layers is not built");
  }
  if (static_cast<int>(kind) > static_cast<int>(LayerKind::kLinear)) {
    return OutOfRange(LayerName(index) + "kind", static_cast<int>(kind),
                      "kFull, kSliding, kChunked and kMla");
  }
  return kind == LayerKind::kMla ? CheckMlaLayer(config, index) : CheckHeadsLayer(config, index);
}

Status CheckUse(const CacheConfig& config) {
  if (Status s = CheckRange("eviction", static_cast<int>(config.eviction), 0, 1); !s.ok()) return s;
  if (Status s = CheckRange("max_steps_in_flight", config.max_steps_in_flight, 1, 16); !s.ok()) {
    return s;
  }
  if (config.max_pinned_blocks < 0) {
    return InvalidArgument("max_pinned_blocks " + std::to_string(config.max_pinned_blocks) +
                           ": allowed are 0 and more");
  }
  if (Status s = CheckRange("max_events", config.max_events, 0, 1 << 24); !s.ok()) return s;
  if (Status s = CheckRange("max_sequences", config.max_sequences, 1, 1 << 20); !s.ok()) return s;
  if (Status s = CheckRange("max_tokens_per_sequence", config.max_tokens_per_sequence, 1, 1 << 30);
      !s.ok()) {
    return s;
  }
  if (Status s = CheckRange("max_tokens_per_step", config.max_tokens_per_step, 1, 1 << 30);
      !s.ok()) {
    return s;
  }
  return {};
}

Status CheckStored(const CacheConfig& config) {
  if (config.dtype == DType::kFP8E4M3) return Unsupported("dtype fp8_e4m3 is not built");
  if (config.dtype == DType::kFP64) {
    return InvalidArgument("dtype fp64: allowed are fp32, fp16, bf16");
  }
  if (config.k_scale != 1.0F || config.v_scale != 1.0F) {
    return Unsupported("k_scale, v_scale: only fp8 has scales, and it is not built");
  }
  if (Status s = CheckRange("shard.size", config.shard.size, 1, 1 << 16); !s.ok()) return s;
  if (Status s = CheckRange("shard.rank", config.shard.rank, 0, config.shard.size - 1); !s.ok()) {
    return s;
  }
  if (config.layers.empty()) return InvalidArgument("layers: at least one is needed");
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (Status s = CheckLayer(config, i); !s.ok()) return s;
  }
  if (config.ropes.size() > 32) {
    return OutOfRange("ropes: their number", static_cast<std::int64_t>(config.ropes.size()),
                      "up to 32");
  }
  for (std::size_t i = 0; i < config.ropes.size(); ++i) {
    const std::size_t sections = config.ropes[i].mrope_sections.size();
    if (sections != 0 && sections != 3) {
      return Unsupported("ropes[" + std::to_string(i) + "].mrope_sections: " +
                         std::to_string(sections) + " sections; only 3 are built");
    }
    const auto frequencies =
        ComputeRopeFrequencies(config.ropes[i], config.max_tokens_per_sequence);
    if (!frequencies.ok()) {
      return {frequencies.status().code(),
              "ropes[" + std::to_string(i) + "]: " + frequencies.status().message()};
    }
  }
  return {};
}

Status CheckLayout(const CacheConfig& config) {
  if (Status s = CheckRange("block_size", config.block_size, 1, 1 << 30); !s.ok()) return s;
  if (Status s = CheckRange("layout", static_cast<int>(config.layout), 0, 1); !s.ok()) return s;
  return CheckRange("order", static_cast<int>(config.order), 0, 1);
}

// What the caller gives for a pool of so many bytes.
Status CheckCallerMemory(const MemoryConfig& memory, std::int64_t pool_bytes) {
  if (memory.caller_memory == nullptr) {
    if (memory.caller_bytes == 0) return {};
    return OutOfRange("memory.caller_bytes", memory.caller_bytes, "0 without caller_memory");
  }
  if (memory.unlimited) {
    return InvalidArgument("memory.caller_memory: not with unlimited, whose pool has no size");
  }
  if (reinterpret_cast<std::uintptr_t>(memory.caller_memory) % kPoolAlignment != 0) {
    return InvalidArgument("memory.caller_memory: it must lie at a multiple of " +
                           std::to_string(kPoolAlignment) + " bytes");
  }
  if (memory.caller_bytes >= pool_bytes) return {};
  return OutOfRange("memory.caller_bytes", memory.caller_bytes,
                    std::to_string(pool_bytes) + " and more, which the pool takes");
}

// Sets num_blocks and the pool's bytes.
Status ResolveMemory(const CacheConfig& config, BackendKind kind, ResolvedConfig& resolved) {
  const MemoryConfig& memory = config.memory;
  if (memory.num_blocks < 0)
    return OutOfRange("memory.num_blocks", memory.num_blocks, "1 and more");
  if (memory.bytes < 0) return OutOfRange("memory.bytes", memory.bytes, "1 and more");
  if ((memory.num_blocks > 0) + (memory.bytes > 0) + (memory.unlimited ? 1 : 0) != 1) {
    return InvalidArgument("memory: exactly one of num_blocks, bytes and unlimited is to be set");
  }
  if (memory.unlimited) {
    if (kind == BackendKind::kNull) return {};
    return InvalidArgument("memory.unlimited on the " + std::string(BackendName(kind)) +
                           " backend: only null has memory without limit");
  }
  MemoryFootprint& footprint = resolved.footprint;
  resolved.num_blocks =
      memory.num_blocks > 0 ? memory.num_blocks : memory.bytes / footprint.bytes_per_block;
  if (resolved.num_blocks == 0) {
    return OutOfRange("memory.bytes", memory.bytes,
                      "at least one block of " + std::to_string(footprint.bytes_per_block));
  }
  if (Status s = CheckRange("memory.num_blocks", resolved.num_blocks, 1, kMaxBlocks); !s.ok()) {
    return s;
  }
  if (resolved.num_blocks > std::numeric_limits<std::int64_t>::max() / footprint.bytes_per_block) {
    return OutOfRange("memory.num_blocks", resolved.num_blocks, "pools below 2^63 bytes");
  }
  return {};
}

// Sets the host tier's places and what follows from them.
Status ResolveHost(const CacheConfig& config, ResolvedConfig& resolved) {
  const HostTier& host = config.host;
  if (host.num_blocks < 0) return OutOfRange("host.num_blocks", host.num_blocks, "0 and more");
  if (host.bytes < 0) return OutOfRange("host.bytes", host.bytes, "0 and more");
  if (host.num_blocks > 0 && host.bytes > 0) {
    return InvalidArgument("host: only one of num_blocks and bytes is to be set");
  }
  if (static_cast<int>(host.write) > static_cast<int>(WritePolicy::kAfterHits)) {
    return OutOfRange("host.write", static_cast<int>(host.write), "kBack, kThrough and kAfterHits");
  }
  if (host.write_after_hits < 1) {
    return OutOfRange("host.write_after_hits", host.write_after_hits, "1 and more");
  }
  if (host.clean_blocks < 0) {
    return OutOfRange("host.clean_blocks", host.clean_blocks, "0 and more");
  }
  if (host.num_blocks == 0 && host.bytes == 0) return {};
  if (config.memory.unlimited) {
    return Unsupported("host beside memory.unlimited: nothing would ever be evicted");
  }
  MemoryFootprint& footprint = resolved.footprint;
  const std::int64_t blocks =
      host.num_blocks > 0 ? host.num_blocks : host.bytes / footprint.bytes_per_block;
  if (blocks == 0) {
    return OutOfRange("host.bytes", host.bytes,
                      "at least one block of " + std::to_string(footprint.bytes_per_block));
  }
  if (Status s = CheckRange("host.num_blocks", blocks, 1, kMaxBlocks); !s.ok()) return s;
  if (blocks > std::numeric_limits<std::int64_t>::max() / footprint.bytes_per_block) {
    return OutOfRange("host.num_blocks", blocks, "tiers below 2^63 bytes");
  }
  footprint.num_host_blocks = blocks;
  footprint.host_tier_bytes = blocks * footprint.bytes_per_block;
  const std::int64_t eighth = std::max<std::int64_t>(1, std::min(blocks, resolved.num_blocks) / 8);
  resolved.clean_blocks = std::min(blocks, host.clean_blocks > 0 ? host.clean_blocks : eighth);
  return {};
}

}  // namespace

std::uint32_t TablesFor(const CacheConfig& config, const ResolvedConfig& resolved,
                        std::int64_t max_length) {
  if (max_length == 0) max_length = config.max_tokens_per_sequence;
  std::uint32_t tables = 0;
  for (std::size_t r = 0; r < config.ropes.size(); ++r) {
    const bool two = (resolved.two_tables & 1U << r) != 0;
    if (two && max_length > 0 && RopeTableFor(config.ropes[r], max_length) != 0) tables |= 1U << r;
  }
  return tables;
}

StepArraySizes SizeStepArrays(const CacheConfig& config, const ResolvedConfig& resolved) {
  const std::int64_t sequences = config.max_sequences;
  const std::int64_t tokens = config.max_tokens_per_step;
  const auto groups = static_cast<std::int64_t>(resolved.groups.size());
  const std::int64_t table = groups * sequences * resolved.table_stride * 4;
  const std::int64_t positions = tokens * resolved.position_sections * 4;
  const std::int64_t choices = resolved.two_tables == 0 ? 0 : tokens * 4;
  StepArraySizes sizes;
  // Header, entries, every table entry changed, every position given.
  sizes.upload_bytes = static_cast<std::int64_t>(sizeof(StepHeader)) +
                       sequences * static_cast<std::int64_t>(sizeof(StepEntry)) + table + positions;
  // Positions, choices, cu_seqlens, seqused_k, the fault word; and of each group slots, filled,
  // both tables.
  sizes.device_bytes = positions + choices + (sequences + 1) * 4 + sequences * 4 + 8 +
                       groups * (tokens * 8 + sequences * 4) + 2 * table;
  if (config.reader_arrays) {
    // Of each group its number of blocks, and two words per sequence.
    sizes.upload_bytes += groups * (1 + 2 * sequences) * 4;
    // Of each group kv_indptr, kv_indices and kv_start; last_page_len and batch_indices.
    sizes.device_bytes += groups * (2 * sequences + 1) * 4 + table + sequences * 4 + tokens * 4;
  }
  sizes.pinned_bytes =
      StepRing(config) * (sizes.upload_bytes + static_cast<std::int64_t>(sizeof(FaultRecord)));
  return sizes;
}

Result<ResolvedConfig> Resolve(const CacheConfig& config, BackendKind kind) {
  if (Status s = CheckUse(config); !s.ok()) return s;
  if (Status s = CheckStored(config); !s.ok()) return s;
  if (Status s = CheckLayout(config); !s.ok()) return s;

  ResolvedConfig resolved;
  resolved.layers = config.layers;
  for (LayerSpec& layer : resolved.layers) {
    layer.kv_heads = LocalHeads(layer.kv_heads, config.shard);
  }
  resolved.table_stride =
      (config.max_tokens_per_sequence + config.block_size - 1) / config.block_size;
  MemoryFootprint& footprint = resolved.footprint;
  // The pool's size does not matter yet.
  const storage::BlockLayout layout(resolved.layers, config.dtype, config.block_size, config.layout,
                                    config.order, 0);
  resolved.groups = layout.groups();
  if (const int misfit = layout.misfit(); misfit >= 0) {
    return Unsupported("layout layer_major with " + LayerName(static_cast<std::size_t>(misfit)) +
                       "k_dim and v_dim: the group's planes have to fit one by one into those of "
                       "the first group; use block_major");
  }
  footprint.bytes_per_token = layout.bytes_per_token();
  footprint.bytes_per_block = layout.bytes_per_block();
  footprint.num_groups = static_cast<int>(resolved.groups.size());
  footprint.padding_bytes = footprint.num_groups * footprint.bytes_per_block -
                            layout.bytes_per_token() * config.block_size;
  if (Status s = ResolveMemory(config, kind, resolved); !s.ok()) return s;
  if (Status s = ResolveHost(config, resolved); !s.ok()) return s;
  footprint.num_blocks = resolved.num_blocks;
  const std::int64_t places = footprint.num_host_blocks;
  footprint.event_log_bytes =
      blocks::EventLog::Bytes(config.max_events, config.block_size,
                              places == 0 ? resolved.num_blocks : 2 * resolved.num_blocks + places);
  footprint.pool_bytes = resolved.num_blocks * footprint.bytes_per_block;
  if (Status s = CheckCallerMemory(config.memory, footprint.pool_bytes); !s.ok()) return s;
  for (std::size_t r = 0; r < config.ropes.size(); ++r) {
    const RopeSpec& rope = config.ropes[r];
    const bool two = RopeTableFor(rope, config.max_tokens_per_sequence) != 0;
    if (two) resolved.two_tables |= 1U << r;
    if (!rope.mrope_sections.empty()) resolved.position_sections = 3;
    footprint.rope_table_bytes +=
        (two ? 2 : 1) * config.max_tokens_per_sequence * rope.rotary_dim * 4;
  }
  const StepArraySizes sizes = SizeStepArrays(config, resolved);
  if (sizes.upload_bytes / 4 > kMaxBlocks) {
    return OutOfRange("max_sequences", config.max_sequences,
                      "those whose block tables of all groups have less than 2^31 entries");
  }
  footprint.step_array_bytes = sizes.device_bytes;
  if (sizes.pinned_bytes > std::numeric_limits<std::int64_t>::max() - footprint.host_tier_bytes) {
    return OutOfRange("host.num_blocks", footprint.num_host_blocks, "tiers below 2^63 bytes");
  }
  footprint.pinned_host_bytes = sizes.pinned_bytes + footprint.host_tier_bytes;
  return resolved;
}

}  // namespace lariat::cache
