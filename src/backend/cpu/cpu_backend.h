// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.h"

namespace lariat::cpu {

// Runs every call at once, in the calling thread; streams and events mean nothing. Large buffers
// take memory only where they are written.
std::shared_ptr<Backend> MakeCpuBackend();

// The operations, as plain loops (docs/numerics.md).
void RopeUpdate(const RopeUpdateParams& params);
void AppendRope(const AppendRopeParams& params);
void BuildStepTables(const StepTablesParams& params);
Status Gemm(const GemmParams& params);  // kResourceExhausted: scratch of the thread
void MlaAppendRows(const MlaAppendParams& params);
void MlaGather(const MlaGatherParams& params);

}  // namespace lariat::cpu
