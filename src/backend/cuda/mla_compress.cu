// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/ops.h"
namespace lariat::cuda {
bool FusedFits(const MlaCompressParams&) { return false; }
bool FusedIsFaster(const MlaCompressParams&) { return false; }
cudaError_t MlaCompressFused(const MlaCompressParams&, cudaStream_t) { return cudaErrorNotSupported; }
}  // namespace lariat::cuda
