// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.h"
#include "lariat/ops.h"
#include "lariat/status.h"

namespace lariat {

// All that AppendRope checks before it launches anything; fills in the strides.
// Errors: as AppendRope.
Status CheckAppendRope(const Backend& backend, AppendRopeParams& params);

}  // namespace lariat
