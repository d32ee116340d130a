// SPDX-License-Identifier: Apache-2.0
#include "storage/host_storage.h"

#include <algorithm>
#include <utility>

namespace lariat::storage {

Result<HostStorage> HostStorage::Create(Device device, const BlockLayout& layout,
                                        std::int64_t num_pages) {
  const std::int64_t page_bytes = layout.bytes_per_block();
  Result<DeviceBuffer> pages =
      device.Allocate(MemoryKind::kPinnedHost, static_cast<std::size_t>(page_bytes * num_pages));
  if (!pages.ok()) return pages.status();
  return HostStorage(std::move(device), *std::move(pages), page_bytes, layout.ranges().size());
}

Status HostStorage::Copy(const BlockStorage& blocks, std::span<const blocks::TierCopy> moves,
                         bool down, Stream stream) {
  while (!moves.empty()) {
    const auto lot = moves.first(std::min(moves.size(), kMostMoves));
    copies_.clear();
    for (const blocks::TierCopy& move : lot) {
      std::byte* page = static_cast<std::byte*>(pages_.data()) + move.host * page_bytes_;
      blocks.ForEachRange(move.block, [&](std::byte* range, std::size_t bytes) {
        void* const to = down ? page : range;
        const void* const from = down ? range : page;
        copies_.push_back({to, from, bytes});
        page += bytes;
      });
    }
    if (Status s = device_.backend().Copy(copies_, stream); !s.ok()) return s;
    moves = moves.subspan(lot.size());
  }
  return {};
}

}  // namespace lariat::storage
