// SPDX-License-Identifier: Apache-2.0
#include "bench_rows.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace lariat::tools {
namespace {

// What a default row on the CPU may compute in one launch: more takes seconds, and the row minutes.
constexpr std::int64_t kCpuFlops = 10'000'000'000;

Result<std::vector<const Op*>> SelectOps(const BenchOptions& options) {
  std::vector<const Op*> selected;
  for (const std::string& name : options.ops) {
    if (name == "all") {
      for (const Op& op : Ops()) selected.push_back(&op);
      continue;
    }
    const Result<const Op*> op = FindOp(name);
    if (!op.ok()) return op.status();
    selected.push_back(*op);
  }
  return selected;
}

Status AddRow(const Op& op, const std::string& shape, bool hot, std::vector<BenchRow>& rows) {
  BenchRow row;
  row.make = op.make;
  row.text = shape;
  row.hot = hot;
  Status status = NewWorkload(row);
  if (!status.ok()) return status;
  row.shape = row.workload->shape();
  if (row.workload->sets() <= Workload::kMaxSets) {
    rows.push_back(std::move(row));
    return Status::Ok();
  }
  return InvalidArgument(std::string(op.name) + " " + row.shape +
                         " is too small to be cold: its data stay in every cache");
}

}  // namespace

Status CheckOps(const BenchOptions& options) {
  if (options.ops == std::vector<std::string>{"tier"}) return Status::Ok();
  return SelectOps(options).status();
}

Status NewWorkload(BenchRow& row) {
  row.clock.reset();
  row.ceiling_timer.reset();
  row.ceiling.reset();
  row.workload = row.make(row.hot);
  return row.workload->Configure(row.text);
}

Result<std::vector<BenchRow>> SelectRows(const BenchOptions& options, BackendKind backend) {
  const Result<std::vector<const Op*>> ops = SelectOps(options);
  if (!ops.ok()) return ops.status();
  if (!options.shapes.empty() && ops->size() != 1) {
    return InvalidArgument("--shape needs one operation");
  }
  std::vector<BenchRow> rows;
  for (const Op* op : *ops) {
    for (const std::string& shape : options.shapes) {
      Status status = AddRow(*op, shape, !options.cold, rows);
      if (!status.ok())
        return Status(status.code(), "bench " + std::string(op->name) + ": " + status.message());
    }
    if (!options.shapes.empty()) continue;
    std::string last;
    for (const DefaultRow& row : op->rows) {
      if (row.only != BackendKind::kAuto && row.only != backend) continue;
      const bool forced = options.hot || options.cold;
      if (forced && last == row.shape) continue;  // differed in being hot alone
      last = row.shape;
      const Status status = AddRow(*op, row.shape, forced ? options.hot : row.hot, rows);
      if (!status.ok()) spdlog::warn("left out: {}", status.message());
    }
  }
  return rows;
}

void LeaveOutLong(std::vector<BenchRow>& rows) {
  std::erase_if(rows, [](const BenchRow& row) {
    if (row.workload->is_ceiling() || row.workload->flops() <= kCpuFlops) return false;
    spdlog::warn("left out on the cpu, --shape runs it: {} {}", row.workload->op(), row.shape);
    return true;
  });
}

}  // namespace lariat::tools
