// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/model.h"
#include "model/config_fields.h"
#include "model/families.h"

namespace lariat::model {

// Elements of all weights of the text model, worked out from their shapes: ModelConfig::parameters.
// Reads everything of `model` but that. Saturates.
std::int64_t CountParameters(const Fields& config, const Family& family, const ModelConfig& model);

}  // namespace lariat::model
