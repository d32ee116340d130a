// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace lariat::testing {

// How often operator new was called in this program; links its replacement in.
std::int64_t CountOfNew();

}  // namespace lariat::testing
