// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/guarded.h"

namespace lariat {

// Scratch memory of a backend, by owner (a stream, or a thread) and use. What was handed out stays,
// since captured graphs may hold its address. An owner's buffers of one use at least double where
// there is room, so together they take less than twice the largest. Threads: any.
class ScratchPool {
 public:
  explicit ScratchPool(Backend& backend) : backend_(backend) {}
  ~ScratchPool() {
    for (const auto& [key, buffers] : buffers_) {
      for (const Buffer& buffer : buffers) {
        backend_.Free(MemoryKind::kDevice, buffer.data, buffer.bytes);
      }
    }
  }
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // The owner's newest buffer of that use where it is large enough, else null.
  void* Find(std::uintptr_t owner, int use, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find({owner, use});
    if (found == buffers_.end() || found->second.back().bytes < bytes) return nullptr;
    return found->second.back().data;
  }

  // The same, after adding a buffer where there is none. Errors: kResourceExhausted.
  Result<void*> Get(std::uintptr_t owner, int use, std::size_t bytes) {
    if (void* found = Find(owner, use, bytes)) return found;
    const std::lock_guard lock(mutex_);
    Result<void*> made = Guarded([&] { return Add(buffers_[{owner, use}], bytes); });
    if (!made.ok()) {
      const auto entry = buffers_.find({owner, use});
      if (entry != buffers_.end() && entry->second.empty()) buffers_.erase(entry);
    }
    return made;
  }

 private:
  static constexpr std::size_t kLeastBytes = 4096;
  struct Buffer {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  Result<void*> Add(std::vector<Buffer>& buffers, std::size_t bytes) {
    std::size_t size = bytes < kLeastBytes ? kLeastBytes : bytes;
    if (!buffers.empty() && size < 2 * buffers.back().bytes) size = 2 * buffers.back().bytes;
    buffers.reserve(buffers.size() + 1);
    Result<void*> made = backend_.Allocate(MemoryKind::kDevice, size);
    if (!made.ok() && size > bytes) {
      size = bytes;
      made = backend_.Allocate(MemoryKind::kDevice, size);
    }
    if (made.ok()) buffers.push_back({*made, size});
    return made;
  }

  Backend& backend_;
  std::mutex mutex_;
  std::map<std::pair<std::uintptr_t, int>, std::vector<Buffer>> buffers_;  // none is empty
};

}  // namespace lariat
