// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json.hpp>

#include "bench_rows.h"
#include "lariat/device.h"
#include "lariat/status.h"

// The rows that time a whole cache on the host: `manager` and `tier`.

namespace lariat::tools {

// Runs the op, prints a table where `table` says so, and gives its rows as docs/benchmarks.md has
// them. device: for tier; manager needs none. Errors: as RunManagerBench and RunTierBench.
Result<nlohmann::ordered_json> RunManagerRows(const BenchOptions& options, bool table);
Result<nlohmann::ordered_json> RunTierRows(const BenchOptions& options, const Device& device,
                                           bool table);

}  // namespace lariat::tools
