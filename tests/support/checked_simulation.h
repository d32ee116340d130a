// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/same_results.h"
#include "support/simulator_inputs.h"

namespace lariat::test {

// Served on config.backend with every row compared, with copies of a host tier early and late
// alike, and the same by null, twice.
inline SimulationResult RunChecked(const Trace& trace, SimulatorConfig config) {
  const bool tier = config.host.num_blocks > 0;
  config.check = true;
  SimulationResult result = Run(trace, config);
  REQUIRE(result.check.has_value());
  CHECK(result.session.finished == trace.size());
  CHECK(result.check->sequences == trace.size() * config.beams);
  CHECK(result.check->mismatches == 0);
  CheckEquation(trace, result, config.beams);
  if (tier && config.backend == BackendKind::kCpu) {
    config.late_copies = true;
    const SimulationResult late = Run(trace, config);
    CHECK(late.check->mismatches == 0);
    CheckSame(late, result);
  }
  config.check = false;
  config.backend = BackendKind::kNull;
  config.late_copies = false;
  CheckSame(Run(trace, config), result);
  config.late_copies = tier;
  CheckSame(Run(trace, config), result);
  return result;
}

}  // namespace lariat::test
