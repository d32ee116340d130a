// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/ops.h"
namespace lariat::cuda {
cudaError_t MlaAppendRows(const MlaAppendParams&, cudaStream_t) { return cudaErrorNotSupported; }
}  // namespace lariat::cuda
