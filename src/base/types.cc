// SPDX-License-Identifier: Apache-2.0
#include "lariat/types.h"

namespace lariat {

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFP32: return "fp32";
    case DType::kFP16: return "fp16";
    case DType::kBF16: return "bf16";
    case DType::kFP64: return "fp64";
    case DType::kFP8E4M3: return "fp8_e4m3";
  }
  return "unknown";
}

std::string_view BackendName(BackendKind kind) {
  switch (kind) {
    case BackendKind::kAuto: return "auto";
    case BackendKind::kCpu: return "cpu";
    case BackendKind::kCuda: return "cuda";
    case BackendKind::kNull: return "null";
  }
  return "unknown";
}

}  // namespace lariat
