// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/types.h"
#include "storage/block_groups.h"

namespace lariat::storage {

// Where one layer's K or V lies. Row r of block b starts at offset + b * block_stride + r *
// row_bytes from the pool's first byte; its heads follow one another. MLA's latent rows are its K;
// its V is empty.
struct Plane {
  std::int64_t offset = 0;        // bytes
  std::int64_t block_stride = 0;  // bytes
  std::int64_t row_bytes = 0;     // heads * dim * element size
  int heads = 0;
  int dim = 0;  // elements

  bool empty() const { return row_bytes == 0; }
};

struct LayerPlanes {
  Plane k;
  Plane v;
  int group = 0;
};

// The arithmetic from (layer, K or V, block, row) to bytes, for the two orders of design and
// docs/layouts.md. A block holds the planes of one group's layers; blocks of all groups are as
// large as the largest, and nothing else is padded. Immutable; all offsets are 64-bit.
class BlockLayout {
 public:
  // layers: with this rank's number of heads.
  // num_blocks: of the pool; only kLayerMajor depends on it.
  // REQUIRES: of kLayerMajor, that MakeGroups makes one group of the layers.
  BlockLayout(std::span<const LayerSpec> layers, DType dtype, int block_size, Layout layout,
              std::int64_t num_blocks);

  int block_size() const { return block_size_; }
  std::int64_t bytes_per_token() const { return bytes_per_token_; }  // of all groups, unpadded
  std::int64_t bytes_per_block() const { return bytes_per_block_; }
  const std::vector<BlockGroup>& groups() const { return groups_; }
  const std::vector<LayerPlanes>& layers() const { return layers_; }
  // Whether a block is one run of bytes_per_block() bytes at block * bytes_per_block().
  bool contiguous_blocks() const { return layout_ == Layout::kBlockMajor; }
  // Runs of bytes that a block consists of, at most.
  std::size_t ranges_per_block() const { return contiguous_blocks() ? 1 : 2 * layers_.size(); }

 private:
  int block_size_;
  Layout layout_;
  std::vector<BlockGroup> groups_;
  std::int64_t bytes_per_token_ = 0;
  std::int64_t bytes_per_block_ = 0;
  std::vector<LayerPlanes> layers_;
};

}  // namespace lariat::storage
