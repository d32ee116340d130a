// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.h"

namespace lariat::null {

// Addresses without memory: buffers of any size that never overlap and must not be touched.
// Copies, fills and operations succeed and do nothing.
std::shared_ptr<Backend> MakeNullBackend();

}  // namespace lariat::null
