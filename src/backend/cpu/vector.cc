// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/vector.h"

#include <algorithm>
#include <atomic>

namespace lariat::cpu {
namespace {

Width Find() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return Width::kBase;
  const bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return all ? Width::kAvx512 : Width::kAvx2;
#else
  return Width::kBase;
#endif
}

std::atomic<Width>& Used() {
  static std::atomic<Width> used{Find()};
  return used;
}

}  // namespace

std::string_view WidthName(Width width) {
  switch (width) {
    case Width::kAvx512: return "avx512";
    case Width::kAvx2: return "avx2";
    default: return "base";
  }
}

Width WidestVectors() { return Used().load(std::memory_order_relaxed); }

void UseWidth(Width width) { Used().store(std::min(width, Find()), std::memory_order_relaxed); }

}  // namespace lariat::cpu
