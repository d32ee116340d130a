// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend_decorator.h"

namespace lariat::testing {

using lariat::BackendDecorator;

}  // namespace lariat::testing
