// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "lariat/device.h"
#include "lariat/status.h"

namespace lariat::tools {

// What the cache's host tier takes, on the host's clock, as a server sees it.
struct TierRow {
  std::string op;  // tier-suspend, tier-resume, tier-both, tier-prepare, tier-append, ..-beside
  std::string shape;
  double median_s = 0;
  double p99_s = 0;
  // Each 0 where it does not apply.
  double gb_per_s = 0;  // of rows that move blocks
  double ceiling = 0;   // GB/s of one copy of the same bytes, by turns
  double alone = 0;     // of ..-beside: the median over that without copies beside
};

// shapes: as on the command line, each for one row of every op; empty: the default rows.
// Errors: kInvalidArgument (a shape), kResourceExhausted, kCorruptData (rows came back changed),
//   kDeviceError.
Result<std::vector<TierRow>> RunTierBench(Device device, const std::vector<std::string>& shapes);

}  // namespace lariat::tools
