// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>

#include <cstdint>
#endif

namespace lariat {

// Asks for huge pages under memory that was just allocated, where it is large enough to hold some
// and the system has them: what is read at random all over it then misses the TLB far less.
inline void PreferHugePages(void* memory, std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kPage = 4096;
  constexpr std::size_t kLeast = std::size_t{4} << 20;  // whatever its address, a page of 2 MiB
  if (bytes < kLeast) return;
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (first + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (first + bytes) / kPage * kPage;
  // A hint: without them all is as right as with them.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

template <class T>
struct HugePageAllocator : std::allocator<T> {
  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>& /*other*/) noexcept {}  // NOLINT: a conversion
  template <class U>
  struct rebind {
    using other = HugePageAllocator<U>;
  };
  T* allocate(std::size_t count) {
    T* const memory = std::allocator<T>::allocate(count);
    PreferHugePages(memory, count * sizeof(T));
    return memory;
  }
};

// For arrays that are read at random.
template <class T>
using HugePageVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace lariat
