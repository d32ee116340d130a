// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "base/float16.h"
#include "lariat/types.h"

// From run-time element types to template arguments: calls `run` with std::type_identity tags.

namespace lariat {

// fp32, fp16, bf16, fp64. REQUIRES: dtype is one of them.
template <class Run>
auto WithType(DType dtype, Run&& run) {
  switch (dtype) {
    case DType::kFP64: return run(std::type_identity<double>{});
    case DType::kFP16: return run(std::type_identity<Fp16>{});
    case DType::kBF16: return run(std::type_identity<Bf16>{});
    default: return run(std::type_identity<float>{});
  }
}

// The pairs (input, stored) of AppendRope. REQUIRES: the pair is one of them.
template <class Run>
auto WithAppendTypes(DType in, DType stored, Run&& run) {
  if (in == DType::kFP16) return run(std::type_identity<Fp16>{}, std::type_identity<Fp16>{});
  if (in == DType::kBF16) return run(std::type_identity<Bf16>{}, std::type_identity<Bf16>{});
  switch (stored) {
    case DType::kFP16: return run(std::type_identity<float>{}, std::type_identity<Fp16>{});
    case DType::kBF16: return run(std::type_identity<float>{}, std::type_identity<Bf16>{});
    default: return run(std::type_identity<float>{}, std::type_identity<float>{});
  }
}

}  // namespace lariat
