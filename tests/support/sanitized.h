// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whether a sanitizer is in this program (g++ and clang++ say it each in its own way).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LARIAT_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LARIAT_TEST_SANITIZED 1
#endif
#endif

namespace lariat::testing {

#ifdef LARIAT_TEST_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Of seeds, or of calls from one: a sanitizer makes each several times as long, and sees what a
// path does with memory at its first turn. The release build takes all.
template <class T>
constexpr T HalfIfSanitized(T all) {
  return kSanitized ? (all + 1) / 2 : all;
}

}  // namespace lariat::testing
