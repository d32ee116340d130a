// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat::cuda {

// The Status of a runtime call. Errors that do not stick are taken off the thread, so that they do
// not turn up in a caller's own checks.
inline Status ToStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return DeviceError(std::string(call) + ": " + cudaGetErrorName(error) + ": " +
                     cudaGetErrorString(error));
}

inline cudaStream_t Handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace lariat::cuda
