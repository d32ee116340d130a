// SPDX-License-Identifier: Apache-2.0
#include "storage/block_groups.h"

#include <algorithm>

namespace lariat::storage {

namespace {

std::int64_t BytesPerToken(const LayerSpec& layer, DType dtype) {
  return std::int64_t{layer.kv_heads} * (layer.k_dim + layer.v_dim) *
         static_cast<std::int64_t>(SizeOf(dtype));
}

// How far back such layers read; the first group has those that read farthest.
std::int64_t Rank(const BlockGroup& group) {
  if (group.kind == LayerKind::kFull) return std::int64_t{2} << 32;
  if (group.kind == LayerKind::kMla) return std::int64_t{1} << 32;
  return group.window;
}

// The layers by kind and window, in the order of their first layers.
std::vector<BlockGroup> ByKind(std::span<const LayerSpec> layers, DType dtype) {
  std::vector<BlockGroup> kinds;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto same = [&](const BlockGroup& group) {
      return group.kind == layers[i].kind && group.window == layers[i].window;
    };
    auto kind = std::find_if(kinds.begin(), kinds.end(), same);
    if (kind == kinds.end()) {
      kind = kinds.insert(kinds.end(), {layers[i].kind, layers[i].window, {}, 0});
    }
    kind->layers.push_back(static_cast<int>(i));
    kind->bytes_per_token += BytesPerToken(layers[i], dtype);
  }
  return kinds;
}

}  // namespace

std::vector<BlockGroup> MakeGroups(std::span<const LayerSpec> layers, DType dtype) {
  std::vector<BlockGroup> kinds = ByKind(layers, dtype);
  const auto farthest =
      std::max_element(kinds.begin(), kinds.end(),
                       [](const BlockGroup& a, const BlockGroup& b) { return Rank(a) < Rank(b); });
  std::rotate(kinds.begin(), farthest, farthest + 1);
  std::vector<BlockGroup> groups = {kinds.front()};
  const std::int64_t most = kinds.front().bytes_per_token;
  for (std::size_t k = 1; k < kinds.size(); ++k) {
    BlockGroup group = {kinds[k].kind, kinds[k].window, {}, 0};
    for (const int layer : kinds[k].layers) {
      const std::int64_t bytes = BytesPerToken(layers[static_cast<std::size_t>(layer)], dtype);
      if (!group.layers.empty() && group.bytes_per_token + bytes > most) {
        groups.push_back(group);
        group.layers.clear();
        group.bytes_per_token = 0;
      }
      group.layers.push_back(layer);
      group.bytes_per_token += bytes;
    }
    groups.push_back(group);
  }
  return groups;
}

}  // namespace lariat::storage
