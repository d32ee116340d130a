// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.h"

namespace lariat::cuda {

// A CUDA device of sm_80 or later. Every call makes the device current and puts the caller's back.
// Errors: kDeviceError (no driver or device), kInvalidArgument (no such ordinal), kUnsupported (an
//   older device).
Result<std::shared_ptr<Backend>> MakeCudaBackend(int ordinal);

}  // namespace lariat::cuda
