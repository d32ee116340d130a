// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <span>

#include "backend/params.h"

namespace lariat::cuda {

// Puts the copies on the stream, many in one call where the runtime, the driver and the stream
// allow it. They may run in any order.
cudaError_t CopyRanges(std::span<const BlockCopy> copies, cudaStream_t stream);

}  // namespace lariat::cuda
