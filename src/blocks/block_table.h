// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/huge_pages.h"
#include "blocks/block_pool.h"

namespace lariat::blocks {

// A list of blocks in memory of a fixed size, which is a BlockTableMemory's. Threads: externally
// synchronised.
class BlockTable {
 public:
  BlockTable() = default;
  // Empty.
  explicit BlockTable(std::span<BlockId> memory)
      : data_(memory.data()), capacity_(static_cast<std::uint32_t>(memory.size())) {}
  BlockTable(BlockTable&& other) noexcept { swap(other); }
  BlockTable& operator=(BlockTable&& other) noexcept {
    swap(other);
    return *this;
  }
  void swap(BlockTable& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  BlockId* data() { return data_; }
  const BlockId* data() const { return data_; }
  BlockId* begin() { return data_; }
  BlockId* end() { return data_ + size_; }
  const BlockId* begin() const { return data_; }
  const BlockId* end() const { return data_ + size_; }
  BlockId& operator[](std::size_t n) {
    assert(n < size_);
    return data_[n];
  }
  const BlockId& operator[](std::size_t n) const {
    assert(n < size_);
    return data_[n];
  }
  BlockId back() const { return (*this)[size_ - 1]; }

  // REQUIRES of all that follows: the list does not grow beyond its memory.
  void push_back(BlockId block) {
    assert(size_ < capacity_);
    data_[size_++] = block;
  }
  void pop_back() { --size_; }
  void clear() { size_ = 0; }
  // What is new is kNoBlock.
  void resize(std::size_t size) {
    assert(size <= capacity_);
    if (size > size_) std::fill(end(), data_ + size, kNoBlock);
    size_ = static_cast<std::uint32_t>(size);
  }
  void assign(std::span<const BlockId> blocks) {
    assert(blocks.size() <= capacity_);
    std::copy(blocks.begin(), blocks.end(), data_);
    size_ = static_cast<std::uint32_t>(blocks.size());
  }

 private:
  BlockId* data_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 0;
};

// Memory for the tables of sequences, of one size. Many share a huge page: a step of decoding comes
// to the ends of them all, and where each is in pages of its own it misses the TLB each time.
class BlockTableMemory {
 public:
  // size: of the tables of a sequence, in blocks;  count: of sequences, about
  BlockTableMemory(std::size_t size, std::size_t count) : size_(size) {
    // Most of a long table is never touched, and a huge page is there whole: long ones share none.
    const std::size_t bytes = size * sizeof(BlockId);
    at_once_ = bytes > kPage / kLeastInPage ? 1 : std::min(kPage / bytes, count);
  }

  std::span<BlockId> Take() {
    if (left_ == 0) {
      const std::size_t all = at_once_ * size_;
      Chunk chunk(HugePageAllocator<BlockId>().allocate(all), Free{all});
      chunks_.push_back(std::move(chunk));
      left_ = at_once_;
    }
    return {chunks_.back().get() + (at_once_ - left_--) * size_, size_};
  }

 private:
  static constexpr std::size_t kPage = HugePageAllocator<BlockId>::kPage;
  static constexpr std::size_t kLeastInPage = 128;  // sequences
  struct Free {
    std::size_t size;
    void operator()(BlockId* memory) const {
      HugePageAllocator<BlockId>().deallocate(memory, size);
    }
  };
  using Chunk = std::unique_ptr<BlockId[], Free>;

  const std::size_t size_;
  std::size_t at_once_;   // sequences of a chunk
  std::size_t left_ = 0;  // of the last one, not given out
  std::vector<Chunk> chunks_;
};

}  // namespace lariat::blocks
