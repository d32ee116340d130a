// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "lariat/simulator.h"
#include "lariat/trace.h"

namespace lariat::tools {

// The results of a run as one JSON document, as a table to read, and request by request as CSV.
std::string SimulationJson(const Trace& trace, const SimulatorConfig& config,
                           const SimulationResult& result);
std::string SimulationText(const Trace& trace, const SimulatorConfig& config,
                           const SimulationResult& result);
std::string RequestsCsv(const Trace& trace, const SimulationResult& result);

}  // namespace lariat::tools
