// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.h"
#include "backend/cpu/crew.h"

namespace lariat::cpu {

// Runs every call at once, in the calling thread and those of its crew; streams and events mean
// nothing. Large buffers take memory only where they are written. Errors: kResourceExhausted: no
// more threads.
Result<std::shared_ptr<Backend>> MakeCpuBackend(int threads);

// The operations, as loops over tokens that the crew shares (docs/numerics.md).
void RopeUpdate(const RopeUpdateParams& params, Crew& crew);
void AppendRope(const AppendRopeParams& params, Crew& crew);
void BuildStepTables(const StepTablesParams& params);
Status Gemm(const GemmParams& params, Crew& crew);  // kResourceExhausted: scratch of the thread
void MlaAppendRows(const MlaAppendParams& params, Crew& crew);
void MlaGather(const MlaGatherParams& params, Crew& crew);

}  // namespace lariat::cpu
