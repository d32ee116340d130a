// SPDX-License-Identifier: Apache-2.0
#include "storage/block_storage.h"

#include <utility>

namespace lariat::storage {

Result<BlockStorage> BlockStorage::Create(Device device, BlockLayout layout,
                                          std::int64_t num_blocks, std::size_t max_moves) {
  DeviceBuffer pool;
  if (num_blocks > 0) {
    const auto bytes = static_cast<std::size_t>(layout.bytes_per_block() * num_blocks);
    Result<DeviceBuffer> allocated = device.Allocate(MemoryKind::kDevice, bytes);
    if (!allocated.ok()) return allocated.status();
    pool = *std::move(allocated);
    if (Status filled = device.Fill(pool.data(), 0, bytes, Stream{}); !filled.ok()) return filled;
  }
  BlockStorage storage(std::move(device), std::move(layout), std::move(pool));
  const std::size_t ranges =
      storage.layout_.contiguous_blocks() ? 1 : 2 * storage.layout_.layers().size();
  storage.copies_.reserve(max_moves * ranges);
  return storage;
}

Status BlockStorage::Move(std::span<const BlockMove> moves, Stream stream) {
  if (moves.empty() || !device_.backend().has_memory()) return {};
  copies_.clear();
  for (const BlockMove& move : moves) {
    if (layout_.contiguous_blocks()) {
      const std::int64_t bytes = layout_.bytes_per_block();
      copies_.push_back(
          {base() + move.to * bytes, base() + move.from * bytes, static_cast<std::size_t>(bytes)});
      continue;
    }
    for (const LayerPlanes& planes : layout_.layers()) {
      for (const Plane* plane : {&planes.k, &planes.v}) {
        if (plane->empty()) continue;
        copies_.push_back({At(*plane, move.to, 0), At(*plane, move.from, 0),
                           static_cast<std::size_t>(plane->block_stride)});
      }
    }
  }
  return device_.backend().Copy(copies_, stream);
}

Status BlockStorage::ReadRows(int layer, std::int32_t block, int first_row, int rows, void* k,
                              void* v, Stream stream) {
  const LayerPlanes& planes = layout_.layers()[static_cast<std::size_t>(layer)];
  for (const auto& [plane, out] : {std::pair{&planes.k, k}, std::pair{&planes.v, v}}) {
    if (out == nullptr || plane->empty()) continue;
    const BlockCopy copy{out, At(*plane, block, first_row),
                         static_cast<std::size_t>(rows * plane->row_bytes)};
    if (Status copied = device_.backend().Copy({&copy, 1}, stream); !copied.ok()) return copied;
  }
  return {};
}

}  // namespace lariat::storage
