// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "blocks/transfer.h"
#include "lariat/device.h"
#include "storage/block_storage.h"

namespace lariat::storage {

// The host tier's pinned memory: places of one block each, here pages. A page holds a block's
// planes one behind the other, whatever the pool's layout is. Threads: externally synchronised.
// Streams: copies are ordered on the stream given and not waited for; those of one call may run in
// any order.
class HostStorage {
 public:
  // Allocates `num_pages` pages; their bytes are unspecified.
  static Result<HostStorage> Create(Device device, const BlockLayout& layout,
                                    std::int64_t num_pages);

  // Copies blocks to pages. Allocates nothing. When it fails, some of the copies may have been put
  // on the stream.
  Status Down(const BlockStorage& blocks, std::span<const blocks::TierCopy> moves, Stream stream) {
    return Copy(blocks, moves, true, stream);
  }
  // Copies pages to blocks.
  Status Up(const BlockStorage& blocks, std::span<const blocks::TierCopy> moves, Stream stream) {
    return Copy(blocks, moves, false, stream);
  }

 private:
  // Moves are handed on in lots, so that no list grows with the call.
  static constexpr std::size_t kMostMoves = 256;

  HostStorage(Device device, DeviceBuffer pages, std::int64_t page_bytes, std::size_t ranges)
      : device_(std::move(device)), pages_(std::move(pages)), page_bytes_(page_bytes) {
    copies_.reserve(kMostMoves * ranges);
  }
  Status Copy(const BlockStorage& blocks, std::span<const blocks::TierCopy> moves, bool down,
              Stream stream);

  Device device_;
  DeviceBuffer pages_;
  std::int64_t page_bytes_ = 0;
  std::vector<BlockCopy> copies_;  // scratch
};

}  // namespace lariat::storage
