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
  storage.copies_.reserve(max_moves * storage.layout_.ranges_per_block());
  return storage;
}

Status BlockStorage::Move(std::span<const BlockMove> moves, Stream stream) {
  if (moves.empty() || !device_.backend().has_memory()) return {};
  copies_.clear();
  for (const BlockMove& move : moves) {
    std::size_t next = copies_.size();
    ForEachRange(move.from, [&](std::byte* from, std::size_t bytes) {
      copies_.push_back({nullptr, from, bytes});
    });
    ForEachRange(move.to, [&](std::byte* to, std::size_t) { copies_[next++].dst = to; });
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
