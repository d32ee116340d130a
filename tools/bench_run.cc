// SPDX-License-Identifier: Apache-2.0
#include "bench_run.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "bench_ceiling.h"
#include "bench_explain.h"
#include "commands.h"

namespace lariat::tools {
namespace {

constexpr int kSamples = 11;

double Median(std::vector<double>& samples) {
  const auto middle = samples.begin() + std::ssize(samples) / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

Status Bench::RunAll() {
  const Result<Stream> stream = device_.CreateStream();
  if (!stream.ok()) return stream.status();
  stream_ = *stream;
  const Result<double> ceiling = MeasureCopyCeiling(device_, stream_);
  if (!ceiling.ok()) return ceiling.status();
  ceiling_ = *ceiling / 1e9;
  if (table_) {
    fmt::print("backend {} ({}), copy ceiling {:.1f} GB/s\n", BackendName(device_.kind()),
               device_.name(), ceiling_);
    fmt::print("{:<12} {:>4} {:>12} {:>9} {:>9}  shape\n", "op", "", "median us", "GB/s",
               "ceiling");
  }
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    benchmark::RegisterBenchmark(std::to_string(i).c_str(),
                                 [this, i](benchmark::State& state) { Sample(rows_[i], state); })
        ->UseManualTime()
        ->Iterations(1)
        ->Repetitions(kSamples)
        ->Unit(benchmark::kNanosecond);
  }
  benchmark::RunSpecifiedBenchmarks(this);
  benchmark::ClearRegisteredBenchmarks();
  return Status::Ok();
}

Status Bench::Prepare(BenchRow& row) {
  row.prepared = true;
  try {
    Status status = row.workload->Prepare(device_, stream_);
    if (status.ok()) status = row.workload->Check(stream_);
    if (status.ok() && !row.workload->products().empty()) {
      Result<ProductClock> clock = ProductClock::Create(device_, *row.workload, stream_);
      if (!clock.ok()) return clock.status();
      row.clock = *std::move(clock);
    }
    if (status.ok()) status = timer_->Begin(*row.workload, stream_);
    if (status.ok() && explain_) row.tuning = Explain(device_, *row.workload, stream_);
    if (status.ok()) row.ceiling = row.workload->MakeCeiling();
    if (row.ceiling != nullptr) {
      row.ceiling_timer = MakeTimer(device_);
      status = row.ceiling_timer->Begin(*row.ceiling, stream_);
    }
    return status;
  } catch (const std::bad_alloc&) {  // of the data on the host
    return row.workload->NoRoom();
  }
}

double Bench::Ceiling(const BenchRow& row) const {
  if (row.workload->is_ceiling()) {
    return row.workload->flops() > 0 ? TflopPerS(row) : GbPerS(row);
  }
  if (row.ceiling_s > 0) return static_cast<double>(row.workload->bytes()) / row.ceiling_s / 1e9;
  if (row.products_s == 0) return ceiling_;
  double flops = 0;
  for (const Product& p : row.workload->products()) {
    flops += 2.0 * static_cast<double>(p.batch * p.rows) * static_cast<double>(p.columns * p.inner);
  }
  return flops / row.products_s / 1e12;
}

double Bench::Fraction(const BenchRow& row) const {
  if (row.workload->is_ceiling()) return 1;
  return row.products_s > 0 ? row.products_s / row.median_s : GbPerS(row) / Ceiling(row);
}

// One repetition; the first one makes the row ready.
void Bench::Sample(BenchRow& row, benchmark::State& state) {
  if (!row.prepared) row.status = Prepare(row);
  if (row.status.ok() && row.clock) {
    const Result<double> products = row.clock->Sample();
    if (products.ok()) row.product_samples.push_back(*products);
    row.status = products.status();
  }
  if (row.status.ok() && row.ceiling_timer) {
    const Result<double> ceiling = row.ceiling_timer->Sample();
    if (ceiling.ok()) row.ceiling_samples.push_back(*ceiling);
    row.status = ceiling.status();
  }
  Result<double> sample = row.status.ok() ? timer_->Sample() : Result<double>(row.status);
  if (!sample.ok()) {
    row.status = sample.status();
    state.SkipWithError(row.status.message().c_str());
    return;
  }
  for ([[maybe_unused]] auto iteration : state) state.SetIterationTime(*sample);
}

// Called when all repetitions of a row are done.
void Bench::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    BenchRow& row = rows_[std::stoul(run.run_name.function_name)];
    if (run.run_type == Run::RT_Aggregate && run.aggregate_name == "median" && row.status.ok()) {
      row.median_s = run.GetAdjustedRealTime() / 1e9;
      if (!row.product_samples.empty()) row.products_s = Median(row.product_samples);
      if (!row.ceiling_samples.empty()) row.ceiling_s = Median(row.ceiling_samples);
      if (table_) PrintRow(row);
    }
  }
  if (runs.empty()) return;
  BenchRow& row = rows_[std::stoul(runs.front().run_name.function_name)];
  timer_->End();
  const Status emptied = NewWorkload(row);
  if (row.status.ok()) row.status = emptied;
}

void Bench::PrintRow(const BenchRow& row) const {
  fmt::print("{:<12} {:>4} {:>12.3f} {:>9.1f} {:>8.1f}%  {} {}\n", row.workload->op(),
             row.hot ? "hot" : "cold", row.median_s * 1e6, GbPerS(row), 100 * Fraction(row),
             DTypeName(row.workload->dtype()), row.shape);
  for (const std::string& line : row.tuning) fmt::print("{:<17}   {}\n", "", line);
  std::fflush(stdout);
}

int Bench::Outcome() const {
  int outcome = kExitOk;
  for (const BenchRow& row : rows_) {
    if (row.status.ok()) continue;
    spdlog::error("{} {}: {}", row.workload->op(), row.shape, row.status.message());
    // A wrong result says more than a row that could not be run.
    const bool wrong = row.status.code() == Code::kCorruptData;
    if (outcome != kExitCheckFailed) outcome = wrong ? kExitCheckFailed : kExitBadUsage;
  }
  return outcome;
}

nlohmann::ordered_json Bench::Json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows_) {
    if (!row.status.ok()) continue;
    list.push_back({{"op", row.workload->op()},
                    {"shape", row.shape},
                    {"dtype", DTypeName(row.workload->dtype())},
                    {"backend", BackendName(device_.kind())},
                    {"hot", row.hot},
                    {"pdl", row.workload->pdl() && device_.kind() == BackendKind::kCuda},
                    {"median_us", row.median_s * 1e6},
                    {"gb_per_s", GbPerS(row)},
                    {"tflop_per_s", TflopPerS(row)},
                    {"ceiling", Ceiling(row)},
                    {"fraction", Fraction(row)}});
    // One thread goes without saying: the key is not one of those that scripts rely on.
    if (device_.cpu_threads() > 1 && device_.kind() == BackendKind::kCpu) {
      list.back()["threads"] = device_.cpu_threads();
    }
    if (explain_) list.back()["tuning"] = row.tuning;
  }
  return list;
}

}  // namespace lariat::tools
