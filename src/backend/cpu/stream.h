// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/vector.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Stores past the caches: a line that is written whole need not be read first, which is a third of
// the traffic of a copy. For more bytes than the caches keep until somebody reads them.

namespace lariat::cpu {

// Whether there are such stores.
#if defined(__SSE2__)
inline constexpr bool kStoresPast = true;
#else
inline constexpr bool kStoresPast = false;
#endif
inline constexpr std::int64_t kLine = 64;  // bytes that caches keep together
// Bytes of a call from which they may as well go past all caches.
inline constexpr std::int64_t kPastBytes = std::int64_t{16} << 20;

// Copies bytes that do not overlap; past the caches where `past` says so and the machine can: to
// addresses and in numbers that are multiples of 16.
LARIAT_INLINE void StoreBytes(void* to, const void* from, std::size_t bytes, bool past) {
#if defined(__SSE2__)
  if (past && (reinterpret_cast<std::uintptr_t>(to) | bytes) % sizeof(__m128i) == 0) {
    for (std::size_t i = 0; i < bytes / sizeof(__m128i); ++i) {
      _mm_stream_si128(static_cast<__m128i*>(to) + i,
                       _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
    }
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// Stores past the caches are seen before what the thread stores after this; nothing else orders
// them.
LARIAT_INLINE void OrderStores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Asks for the lines of what will soon be read, or written.
LARIAT_INLINE void FetchLines(const void* from, std::int64_t bytes, bool to_write) {
  const auto* const at = static_cast<const char*>(from);
  for (std::int64_t i = 0; i < bytes; i += kLine) {
    if (to_write) {
      __builtin_prefetch(at + i, 1);
    } else {
      __builtin_prefetch(at + i, 0);
    }
  }
}

}  // namespace lariat::cpu
