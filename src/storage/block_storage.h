// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "lariat/device.h"
#include "storage/block_layout.h"

namespace lariat::storage {

struct BlockMove {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

// The bytes behind block ids: owns the device pool and turns moves of blocks into copies.
// Threads: externally synchronised. Streams: copies are ordered on the stream given and not waited
// for.
class BlockStorage {
 public:
  // Allocates the pool (nothing for a pool without limit, whose backend has no memory), or takes
  // the caller's memory if not null, which is then as large as it has to be; zeroes it. max_moves:
  // the most moves of one call.
  static Result<BlockStorage> Create(Device device, BlockLayout layout, std::int64_t num_blocks,
                                     std::size_t max_moves, void* caller_memory = nullptr);

  const BlockLayout& layout() const { return layout_; }
  std::byte* base() const { return base_; }

  // Frees the pool (the caller's memory: lets go of it), and takes and zeroes it again. In between
  // base() is null. REQUIRES: no device work uses it.
  void Release();
  Status Acquire();

  // Calls `range(first byte, bytes)` for each run of bytes that a block consists of, in the order
  // of a contiguous block.
  template <class Range>
  void ForEachRange(std::int32_t block, Range range) const {
    for (const BlockRange& part : layout_.ranges()) {
      range(base() + part.offset + block * part.bytes, static_cast<std::size_t>(part.bytes));
    }
  }

  // Allocates nothing. REQUIRES: no block is both a source and a target.
  Status Move(std::span<const BlockMove> moves, Stream stream);

  // Copies rows [first_row, first_row + rows) of one block and layer to host memory.
  //   k: [rows, heads, dim] of K, or [heads, rows, dim] where the plane has heads of rows; may be
  //   null; v alike, not looked at where there is no such plane
  // Host memory must live until the stream has passed the call.
  Status ReadRows(int layer, std::int32_t block, int first_row, int rows, void* k, void* v,
                  Stream stream);

 private:
  BlockStorage(Device device, BlockLayout layout, std::int64_t num_blocks, void* caller_memory)
      : device_(std::move(device)),
        layout_(std::move(layout)),
        bytes_(static_cast<std::size_t>(layout_.bytes_per_block() * num_blocks)),
        caller_memory_(caller_memory) {}
  // Moves are handed on in lots, so that no list grows with the call.
  static constexpr std::size_t kMostMoves = 256;

  Device device_;
  BlockLayout layout_;
  std::size_t bytes_;  // of the pool; 0 when unlimited
  void* caller_memory_;
  DeviceBuffer pool_;  // empty where the memory is the caller's
  std::byte* base_ = nullptr;
  std::vector<BlockCopy> copies_;  // scratch
};

}  // namespace lariat::storage
