// SPDX-License-Identifier: Apache-2.0
#include "storage/block_layout.h"

#include <algorithm>

namespace lariat::storage {

namespace {

// A plane but for its place in the pool.
Plane MakePlane(int heads, int dim, DType dtype, int block_size, Order order) {
  Plane plane;
  plane.heads = heads;
  plane.dim = dim;
  plane.head_bytes = dim * static_cast<std::int64_t>(SizeOf(dtype));
  plane.row_bytes = heads * plane.head_bytes;
  const bool rows = order == Order::kNHD;
  plane.row_stride = rows ? plane.row_bytes : plane.head_bytes;
  plane.head_stride = rows ? plane.head_bytes : plane.head_bytes * block_size;
  return plane;
}

}  // namespace

template <class Each>
void BlockLayout::ForEachPlane(const BlockGroup& group, Each each) {
  for (const int layer : group.layers) {
    LayerPlanes& planes = layers_[static_cast<std::size_t>(layer)];
    if (!planes.k.empty()) each(planes.k, layer);
    if (!planes.v.empty()) each(planes.v, layer);
  }
}

BlockLayout::BlockLayout(std::span<const LayerSpec> layers, DType dtype, int block_size,
                         Layout layout, Order order, std::int64_t num_blocks)
    : block_size_(block_size), groups_(MakeGroups(layers, dtype)) {
  for (const LayerSpec& layer : layers) {
    const Plane k = MakePlane(layer.kv_heads, layer.k_dim, dtype, block_size, order);
    const Plane v = MakePlane(layer.kv_heads, layer.v_dim, dtype, block_size, order);
    bytes_per_token_ += k.row_bytes + v.row_bytes;
    layers_.push_back({k, v});
  }
  bytes_per_block_ = groups_.front().bytes_per_token * block_size;
  if (layout == Layout::kBlockMajor) {
    // A single layer of another kind may be larger than all of the first group.
    for (const BlockGroup& group : groups_) {
      bytes_per_block_ = std::max(bytes_per_block_, group.bytes_per_token * block_size);
    }
    ranges_.push_back({0, bytes_per_block_});
  } else {
    std::int64_t offset = 0;
    ForEachPlane(groups_.front(), [&](const Plane& plane, int) {
      ranges_.push_back({offset, plane.row_bytes * block_size});
      offset += ranges_.back().bytes * num_blocks;
    });
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (const int layer : groups_[group].layers) {
      layers_[static_cast<std::size_t>(layer)].group = static_cast<int>(group);
    }
    std::int64_t offset = 0;
    std::size_t range = 0;
    ForEachPlane(groups_[group], [&](Plane& plane, int layer) {
      const std::int64_t bytes = plane.row_bytes * block_size;
      if (layout == Layout::kBlockMajor) {
        plane.offset = offset;
        plane.block_stride = bytes_per_block_;
        offset += bytes;
      } else if (range < ranges_.size() && bytes <= ranges_[range].bytes) {
        plane.offset = ranges_[range].offset;
        plane.block_stride = ranges_[range++].bytes;
      } else if (misfit_ < 0) {
        misfit_ = layer;
      }
    });
  }
}

}  // namespace lariat::storage
