// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string_view>

namespace lariat::cpu {

// One loop compiled for several widths of vectors; the widest that the machine has is taken at run
// time. The compiler makes the vectors. None of them fuses products and sums (-ffp-contract=off),
// so all give the same bits.
enum class Width : std::uint8_t { kBase, kAvx2, kAvx512 };
std::string_view WidthName(Width width);

// Of this machine, or less where UseWidth has said so.
Width WidestVectors();
// For tests: no wider than this from now on. What the machine does not have is not taken.
void UseWidth(Width width);

// What a wide loop is made of: inlined into it, or it would be compiled for the base alone.
#define LARIAT_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__)
template <class Body>
[[gnu::target("avx2,f16c")]] void RunAvx2(const Body& body, std::int64_t first, std::int64_t last) {
  body.Run(first, last);
}
template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]] void RunAvx512(const Body& body,
                                                                          std::int64_t first,
                                                                          std::int64_t last) {
  body.Run(first, last);
}
#endif

// body.Run(first, last), which is LARIAT_INLINE.
template <class Body>
void RunWide(const Body& body, std::int64_t first, std::int64_t last) {
#if defined(__x86_64__)
  switch (WidestVectors()) {
    case Width::kAvx512: return RunAvx512(body, first, last);
    case Width::kAvx2: return RunAvx2(body, first, last);
    default: break;
  }
#endif
  body.Run(first, last);
}

}  // namespace lariat::cpu
