// SPDX-License-Identifier: Apache-2.0
#include "storage/block_storage.h"

#include <algorithm>
#include <utility>

namespace lariat::storage {

Result<BlockStorage> BlockStorage::Create(Device device, BlockLayout layout,
                                          std::int64_t num_blocks, std::size_t max_moves,
                                          void* caller_memory) {
  BlockStorage storage(std::move(device), std::move(layout), num_blocks, caller_memory);
  if (Status s = storage.Acquire(); !s.ok()) return s;
  storage.copies_.reserve(std::min(max_moves, kMostMoves) * storage.layout_.ranges().size());
  return storage;
}

Status BlockStorage::Acquire() {
  if (bytes_ == 0) return {};
  DeviceBuffer pool;
  void* base = caller_memory_;
  if (base == nullptr) {
    Result<DeviceBuffer> allocated = device_.Allocate(MemoryKind::kDevice, bytes_);
    if (!allocated.ok()) return allocated.status();
    pool = *std::move(allocated);
    base = pool.data();
  }
  if (Status filled = device_.Fill(base, 0, bytes_, Stream{}); !filled.ok()) return filled;
  pool_ = std::move(pool);
  base_ = static_cast<std::byte*>(base);
  return {};
}

void BlockStorage::Release() {
  pool_ = {};
  base_ = nullptr;
}

Status BlockStorage::Move(std::span<const BlockMove> moves, Stream stream) {
  if (!device_.backend().has_memory()) return {};
  while (!moves.empty()) {
    const auto lot = moves.first(std::min(moves.size(), kMostMoves));
    copies_.clear();
    for (const BlockMove& move : lot) {
      std::size_t next = copies_.size();
      ForEachRange(move.from, [&](std::byte* from, std::size_t bytes) {
        copies_.push_back({nullptr, from, bytes});
      });
      ForEachRange(move.to, [&](std::byte* to, std::size_t) { copies_[next++].dst = to; });
    }
    if (Status s = device_.backend().Copy(copies_, stream); !s.ok()) return s;
    moves = moves.subspan(lot.size());
  }
  return {};
}

Status BlockStorage::ReadRows(int layer, std::int32_t block, int first_row, int rows, void* k,
                              void* v, Stream stream) {
  const LayerPlanes& planes = layout_.layers()[static_cast<std::size_t>(layer)];
  for (const auto& [plane, out] : {std::pair{&planes.k, k}, std::pair{&planes.v, v}}) {
    if (out == nullptr || plane->empty()) continue;
    const std::byte* from = base() + plane->offset + block * plane->block_stride +
                            std::int64_t{first_row} * plane->row_stride;
    // Rows of heads are one run; heads of rows are one each.
    const int runs = plane->rows_of_heads() ? 1 : plane->heads;
    const std::int64_t bytes = rows * plane->row_bytes / runs;
    auto* to = static_cast<std::byte*>(out);
    for (int run = 0; run < runs; ++run) {
      const BlockCopy copy{to, from, static_cast<std::size_t>(bytes)};
      if (Status copied = device_.backend().Copy({&copy, 1}, stream); !copied.ok()) return copied;
      from += plane->head_stride;
      to += bytes;
    }
  }
  return {};
}

}  // namespace lariat::storage
