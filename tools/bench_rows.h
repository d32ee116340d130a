// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench_ops.h"
#include "bench_product.h"
#include "bench_timer.h"
#include "bench_workload.h"
#include "lariat/status.h"

// Which rows one run of `lariat bench` has.

namespace lariat::tools {

struct BenchOptions {
  std::vector<std::string> ops;
  std::vector<std::string> shapes;
  bool hot = false;
  bool cold = false;
  std::string backend = "auto";
  std::string json;
  int threads = 1;
  bool explain = false;
  std::string compare;    // a file; empty: none
  double tolerance = -1;  // percent; negative: any
};

// One line of the result.
struct BenchRow {
  MakeWorkload make = nullptr;
  std::string text;   // as given: what differs from the defaults
  std::string shape;  // every key
  bool hot = false;
  std::unique_ptr<Workload> workload;
  bool prepared = false;
  Status status;
  double median_s = 0;
  std::vector<std::string> tuning;  // how it was done, where that is asked for
  // Where the row has a ceiling of its own.
  std::unique_ptr<Workload> ceiling;
  std::unique_ptr<Timer> ceiling_timer;
  std::vector<double> ceiling_samples;
  double ceiling_s = 0;               // their median; 0: it has none
  std::optional<ProductClock> clock;  // of its products; none: it has none
  std::vector<double> product_samples;
  double products_s = 0;  // their median; 0: it has none
};

// Gives the row a workload without buffers; one that it had goes, and what was made on it.
Status NewWorkload(BenchRow& row);
// --hot and --cold change every default row; a shape that was asked for is hot unless it is said.
Result<std::vector<BenchRow>> SelectRows(const BenchOptions& options, BackendKind backend);
// Whether all operations are known. Errors: kInvalidArgument.
Status CheckOps(const BenchOptions& options);
// Default rows that are made for a GPU; --shape runs them anyhow.
void LeaveOutLong(std::vector<BenchRow>& rows);

}  // namespace lariat::tools
