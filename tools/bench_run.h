// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <benchmark/benchmark.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "bench_rows.h"
#include "bench_timer.h"
#include "lariat/device.h"
#include "lariat/status.h"

// The run of one `lariat bench` over the rows that have a device.

namespace lariat::tools {

// A device, its timer, and the rows that Google Benchmark goes through.
class Bench : public benchmark::BenchmarkReporter {
 public:
  // table: print one. explain: say of each row how it was done.
  Bench(Device device, std::vector<BenchRow> rows, bool table, bool explain)
      : device_(std::move(device)),
        timer_(MakeTimer(device_)),
        rows_(std::move(rows)),
        table_(table),
        explain_(explain) {}
  ~Bench() override { device_.DestroyStream(stream_); }

  Status RunAll();
  // The exit code that the rows add up to; tells what went wrong.
  int Outcome() const;
  // The rows that ran, as docs/benchmarks.md has them.
  nlohmann::ordered_json Json() const;

 private:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override;

  void Sample(BenchRow& row, benchmark::State& state);
  Status Prepare(BenchRow& row);
  // In GB/s where bytes are moved, in TFLOP/s where there are products.
  double Ceiling(const BenchRow& row) const;
  double Fraction(const BenchRow& row) const;
  double GbPerS(const BenchRow& row) const {
    return static_cast<double>(row.workload->bytes()) / row.median_s / 1e9;
  }
  double TflopPerS(const BenchRow& row) const {
    return static_cast<double>(row.workload->flops()) / row.median_s / 1e12;
  }
  void PrintRow(const BenchRow& row) const;

  Device device_;
  std::unique_ptr<Timer> timer_;
  std::vector<BenchRow> rows_;
  bool table_;
  bool explain_;
  Stream stream_;
  double ceiling_ = 0;  // GB/s
};

}  // namespace lariat::tools
