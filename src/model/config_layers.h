// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "lariat/model.h"
#include "model/config_fields.h"
#include "model/families.h"

namespace lariat::model {

// Which kind each layer is, and which ones leave their keys as they come.
struct LayerPlan {
  std::vector<LayerKind> kinds;
  std::vector<bool> turns;
  std::int64_t window = 0;  // of kSliding; also where it is given and no layer slides
  std::int64_t chunk = 0;   // of kChunked
};

LayerPlan PlanLayers(const Fields& config, const Family& family, int layers, bool mla);

// Which layers have experts.
std::vector<bool> PlanExperts(const Fields& config, int layers, bool experts);

}  // namespace lariat::model
