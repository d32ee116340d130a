// SPDX-License-Identifier: Apache-2.0
#include "storage/block_layout.h"

#include <algorithm>

namespace lariat::storage {

BlockLayout::BlockLayout(std::span<const LayerSpec> layers, DType dtype, int block_size,
                         Layout layout, std::int64_t num_blocks)
    : block_size_(block_size), layout_(layout), groups_(MakeGroups(layers, dtype)) {
  const auto element = static_cast<std::int64_t>(SizeOf(dtype));
  std::int64_t offset = 0;
  const auto place = [&](int heads, int dim) {
    Plane plane;
    plane.heads = heads;
    plane.dim = dim;
    plane.row_bytes = std::int64_t{heads} * dim * element;
    plane.offset = offset;
    bytes_per_token_ += plane.row_bytes;
    const std::int64_t in_block = plane.row_bytes * block_size;
    plane.block_stride = in_block;  // of kLayerMajor; kBlockMajor is known once all are placed
    offset += layout == Layout::kBlockMajor ? in_block : in_block * num_blocks;
    return plane;
  };
  layers_.resize(layers.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    offset = 0;
    for (const int layer : groups_[group].layers) {
      const LayerSpec& spec = layers[static_cast<std::size_t>(layer)];
      const Plane k = place(spec.kv_heads, spec.k_dim);
      const Plane v = place(spec.kv_heads, spec.v_dim);
      layers_[static_cast<std::size_t>(layer)] = {k, v, static_cast<int>(group)};
    }
    bytes_per_block_ = std::max(bytes_per_block_, groups_[group].bytes_per_token * block_size);
  }
  if (layout == Layout::kBlockMajor) {
    for (LayerPlanes& planes : layers_) {
      planes.k.block_stride = bytes_per_block();
      if (!planes.v.empty()) planes.v.block_stride = bytes_per_block();
    }
  }
}

}  // namespace lariat::storage
