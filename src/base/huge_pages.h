// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace lariat {

// Memory for large arrays that are read at random. From half a huge page on it is made of whole
// ones, where the system has them, so that such reads miss the TLB far less.
template <class T>
struct HugePageAllocator {
  using value_type = T;
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>& /*other*/) noexcept {}  // NOLINT: a conversion

  T* allocate(std::size_t count) {
    if (IsSmall(count)) return std::allocator<T>().allocate(count);
    const std::size_t bytes = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    void* const memory = ::operator new (bytes, std::align_val_t{kPage});
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // A hint: without them all is as right as with them.
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    if (IsSmall(count)) return std::allocator<T>().deallocate(memory, count);
    ::operator delete (memory, std::align_val_t{kPage});
  }
  bool operator==(const HugePageAllocator& /*other*/) const { return true; }

 private:
  // Lengths that do not fit are the standard allocator's to refuse.
  static bool IsSmall(std::size_t count) {
    return count < kPage / 2 / sizeof(T) || count > PTRDIFF_MAX / sizeof(T) - kPage;
  }
};

template <class T>
using HugePageVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace lariat
