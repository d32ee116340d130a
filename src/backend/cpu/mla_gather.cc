// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu_backend.h"
namespace lariat::cpu {
void MlaGather(const MlaGatherParams&) {}
}  // namespace lariat::cpu
