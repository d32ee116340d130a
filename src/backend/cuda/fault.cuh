// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/ops.h"

namespace lariat::cuda {

// Records a fault: the smallest token wins, and of one token's faults a slot before a position. The
// record may lie in mapped host memory, hence the system-wide fences; only this device's threads
// compete for it, and the host reads it after an event.
//
// A fault that cannot win is dropped without the lock: once `kind` is set, `token` only falls.
inline __device__ __noinline__ void RecordFault(FaultRecord* record, FaultKind kind,
                                                std::int64_t token, std::int64_t value) {
  volatile FaultRecord* seen = record;
  const auto wins = [&] {
    if (seen->kind == FaultKind::kNone) return true;
    __threadfence_system();
    const std::int64_t recorded = seen->token;
    return token < recorded || (token == recorded && kind < seen->kind);
  };
  if (!wins()) return;
  while (atomicCAS(&record->lock, 0U, 1U) != 0U) __nanosleep(100);
  __threadfence_system();
  if (wins()) {
    seen->value = value;
    seen->token = token;
    __threadfence_system();
    seen->kind = kind;
  }
  __threadfence_system();
  atomicExch(&record->lock, 0U);
}

}  // namespace lariat::cuda
