// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/status.h"

namespace lariat::c_api {

// A cache has one block table, group 0.
Status CheckGroup(std::int32_t group);

}  // namespace lariat::c_api
