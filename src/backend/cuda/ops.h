// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include "backend/params.h"

namespace lariat::cuda {

// Launchers. Each puts one kernel on the stream of the current device and returns the launch's
// error. Parameters are as a Backend gets them.
cudaError_t RopeUpdate(const RopeUpdateParams& params, cudaStream_t stream);
cudaError_t AppendRope(const AppendRopeParams& params, cudaStream_t stream);
// AppendRope in full: with three positions a token, and orders of elements that change.
cudaError_t AppendRopeSections(const AppendRopeParams& params, cudaStream_t stream);
cudaError_t BuildStepTables(const StepTablesParams& params, cudaStream_t stream);
cudaError_t MlaAppendRows(const MlaAppendParams& params, cudaStream_t stream);
cudaError_t MlaGather(const MlaGatherParams& params, cudaStream_t stream);

// Any product, slowly.
cudaError_t PlainProduct(const GemmParams& params, cudaStream_t stream);
// Products of few rows: whether it takes these and is the faster way, by shapes, strides and
// alignments alone.
bool SkinnyIsFaster(const GemmParams& params);
cudaError_t SkinnyProduct(const GemmParams& params, cudaStream_t stream);
// Of one row. REQUIRES: as SkinnyIsFaster, weights as [columns, inner].
cudaError_t OneRowProduct(const GemmParams& params, cudaStream_t stream);

// What the fused path takes, and where it is the faster one (mla_compress.cu says why).
bool FusedFits(const MlaCompressParams& params);
bool FusedIsFaster(const MlaCompressParams& params);
cudaError_t MlaCompressFused(const MlaCompressParams& params, cudaStream_t stream);
// The same for sizes that are compiled in (mla_compress_fixed.cu).
bool MlaCompressFixedTakes(const MlaCompressParams& params);
cudaError_t MlaCompressFixed(const MlaCompressParams& params, cudaStream_t stream);

}  // namespace lariat::cuda
