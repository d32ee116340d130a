// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/types.h"
#include "storage/block_groups.h"

namespace lariat::storage {

// Where one layer's K or V lies. Head h of row r of block b starts at offset + b * block_stride + r
// * row_stride + h * head_stride from the pool's first byte. MLA's latent rows are its K, of one
// head; its V is empty.
struct Plane {
  // All in bytes.
  std::int64_t offset = 0;
  std::int64_t block_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_bytes = 0;  // of all heads: heads * dim * element size
  std::int64_t head_bytes = 0;
  int heads = 0;
  int dim = 0;  // elements

  bool empty() const { return row_bytes == 0; }
  bool rows_of_heads() const { return head_stride == head_bytes; }
};

struct LayerPlanes {
  Plane k;
  Plane v;
  int group = 0;
};

// A run of bytes that every block has: that of block b starts at offset + b * bytes.
struct BlockRange {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

// The arithmetic from (layer, K or V, block, row) to bytes, for the orders of docs/layouts.md. A
// block holds the planes of one group's layers; blocks of all groups are as large as those of the
// largest, and nothing else is padded. In kLayerMajor the first group's planes, each with all its
// blocks, divide the pool, and plane i of another group lies in the blocks' parts of plane i.
// Immutable; all offsets are 64-bit.
class BlockLayout {
 public:
  // layers: with this rank's number of heads.
  // num_blocks: of the pool; only kLayerMajor depends on it.
  BlockLayout(std::span<const LayerSpec> layers, DType dtype, int block_size, Layout layout,
              Order order, std::int64_t num_blocks);

  int block_size() const { return block_size_; }
  std::int64_t bytes_per_token() const { return bytes_per_token_; }  // of all groups, unpadded
  std::int64_t bytes_per_block() const { return bytes_per_block_; }
  const std::vector<BlockGroup>& groups() const { return groups_; }
  const std::vector<LayerPlanes>& layers() const { return layers_; }
  // What a block consists of, in the order of a contiguous block.
  const std::vector<BlockRange>& ranges() const { return ranges_; }
  // A layer with a plane that has no place, which kLayerMajor alone may have: of a group beside
  // the first, its plane i is larger than the first group's plane i. -1: none.
  int misfit() const { return misfit_; }

 private:
  // The planes of the group's layers, in order, but the empty ones.
  template <class Each>
  void ForEachPlane(const BlockGroup& group, Each each);

  int block_size_;
  std::vector<BlockGroup> groups_;
  std::int64_t bytes_per_token_ = 0;
  std::int64_t bytes_per_block_ = 0;
  std::vector<LayerPlanes> layers_;
  std::vector<BlockRange> ranges_;
  int misfit_ = -1;
};

}  // namespace lariat::storage
