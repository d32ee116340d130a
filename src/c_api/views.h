// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/kv_cache.h"

namespace lariat::c_api {

// Errors: kInvalidArgument (the cache has no such group).
Status CheckGroup(const KVCache& cache, std::int32_t group);

}  // namespace lariat::c_api
