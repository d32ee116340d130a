// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "support/case_cache.h"

namespace lariat::testing {

// A window of a layer, for configurations worked out by hand.
struct Window {
  int tokens = 1;
  LayerKind kind = LayerKind::kSliding;
};

// One layer of full attention, and one for each window: group 0, and 1, 2, ...
inline CacheConfig WindowConfig(int block_size, std::int64_t blocks,
                                const std::vector<Window>& windows,
                                BackendKind backend = BackendKind::kNull) {
  CacheConfig config = CaseCache::Config(block_size, blocks, backend);
  for (const Window& window : windows) {
    LayerSpec& layer = config.layers.emplace_back(config.layers[0]);
    layer.kind = window.kind;
    layer.window = window.tokens;
  }
  return config;
}

class WindowCache : public CaseCache {
 public:
  using CaseCache::CaseCache;
  WindowCache(int block_size, std::int64_t blocks, const std::vector<Window>& windows)
      : CaseCache(WindowConfig(block_size, blocks, windows)) {}

  std::vector<int> TableIn(int group, SequenceId id) {
    const auto table = cache().BlockTable(id, group);
    if (!table.ok()) FAIL(table.status().ToString());
    return {table->begin(), table->end()};
  }
  // Leading entries of the table that are given back; fails if others are.
  std::int64_t GivenBack(int group, SequenceId id) {
    const std::vector<int> table = TableIn(group, id);
    std::int64_t count = 0;
    while (count < std::ssize(table) && table[static_cast<std::size_t>(count)] == -1) ++count;
    for (std::int64_t b = count; b < std::ssize(table); ++b) {
      if (table[static_cast<std::size_t>(b)] == -1) FAIL("a hole in a table");
    }
    return count;
  }
  // Blocks of all groups that the sequence's tables name.
  std::int64_t Held(SequenceId id) {
    const int groups = cache().footprint().num_groups;
    std::int64_t held = 0;
    for (int group = 0; group < groups; ++group) {
      held += std::ssize(TableIn(group, id)) - GivenBack(group, id);
    }
    return held;
  }
  std::int64_t MinLength(SequenceId id) { return cache().GetExtent(id)->min_length; }
};

}  // namespace lariat::testing
