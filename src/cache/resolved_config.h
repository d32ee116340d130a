// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "lariat/kv_cache.h"
#include "storage/block_layout.h"

namespace lariat::cache {

// A configuration that was checked, with what follows from it.
struct ResolvedConfig {
  std::vector<LayerSpec> layers;  // with this rank's heads
  std::int64_t num_blocks = 0;    // 0 when unlimited
  std::int64_t clean_blocks = 0;  // of the host tier; 0 without one
  std::int64_t table_stride = 0;  // entries of a block table's row
  std::vector<storage::BlockGroup> groups;
  int position_sections = 1;  // 3 where a rope has mrope sections
  std::uint32_t two_tables =
      0;  // bit r: ropes[r] has a table for the original length and one beyond
  MemoryFootprint footprint;

  storage::BlockLayout MakeLayout(const CacheConfig& config) const {
    return {layers, config.dtype, config.block_size, config.layout, config.order, num_blocks};
  }
};

// The bits of `two_tables` whose second table a sequence of up to max_length tokens turns by (0:
// the cache's limit).
std::uint32_t TablesFor(const CacheConfig& config, const ResolvedConfig& resolved,
                        std::int64_t max_length);

// Bytes of the arrays that steps live in (step_arrays.h).
struct StepArraySizes {
  std::int64_t upload_bytes = 0;  // of one step, at most
  std::int64_t device_bytes = 0;  // all device arrays
  std::int64_t pinned_bytes = 0;  // staging ring and fault records
};
StepArraySizes SizeStepArrays(const CacheConfig& config, const ResolvedConfig& resolved);

// Records of steps at once: the live ones and those whose device work may still run.
constexpr int StepRing(const CacheConfig& config) { return config.max_steps_in_flight + 2; }

// Heads that `shard` stores of a layer with kv_heads; the same on every rank.
constexpr int LocalHeads(int kv_heads, const Shard& shard) {
  return kv_heads >= shard.size ? kv_heads / shard.size : 1;
}

// kind: the backend that will run it; kAuto is taken as one with memory.
// Errors: kInvalidArgument and kUnsupported, as KVCache::Create documents.
Result<ResolvedConfig> Resolve(const CacheConfig& config, BackendKind kind);

}  // namespace lariat::cache
