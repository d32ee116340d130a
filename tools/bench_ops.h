// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench_workload.h"
#include "lariat/status.h"

namespace lariat::tools {

using MakeWorkload = std::unique_ptr<Workload> (*)(bool hot);

struct DefaultRow {
  std::string shape;
  bool hot;
  BackendKind only = BackendKind::kAuto;  // the backend that has the row; kAuto: all
};

// What `lariat bench` can run, with the rows that it runs where no shape is given.
struct Op {
  const char* name;
  MakeWorkload make;
  std::vector<DefaultRow> rows;
};

const std::vector<Op>& Ops();
// Their names and "all", for messages.
std::string OpNames();
// Errors: kInvalidArgument.
Result<const Op*> FindOp(const std::string& name);

}  // namespace lariat::tools
