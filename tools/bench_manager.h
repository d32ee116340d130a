// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "lariat/status.h"

namespace lariat::tools {

// What the cache's bookkeeping costs, in CPU time of one thread on the null backend.
struct ManagerRow {
  std::string op;     // what is done: manager-cold, manager-warm, manager-step, manager-partial
  std::string shape;  // on what
  std::string per;    // of which one is timed: block, sequence, match
  double median_s = 0;
  double p99_s = 0;
};

// shapes: as on the command line, each for one row of every op; empty: the default rows.
// Errors: kInvalidArgument (a shape), kResourceExhausted.
Result<std::vector<ManagerRow>> RunManagerBench(const std::vector<std::string>& shapes);

}  // namespace lariat::tools
