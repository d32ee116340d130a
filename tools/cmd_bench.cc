// SPDX-License-Identifier: Apache-2.0
// `lariat bench`: what the operations cost on this machine. Google Benchmark runs and repeats;
// docs/benchmarks.md says how figures are taken.
#include <benchmark/benchmark.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench_manager.h"
#include "bench_ops.h"
#include "bench_rows.h"
#include "bench_tier.h"
#include "bench_timer.h"
#include "commands.h"
#include "option_checks.h"

namespace lariat::tools {
namespace {

constexpr int kSamples = 11;

double Median(std::vector<double>& samples) {
  const auto middle = samples.begin() + std::ssize(samples) / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// The run of one command: a device, its timer, and the rows that Google Benchmark goes through.
class Bench : public benchmark::BenchmarkReporter {
 public:
  Bench(Device device, std::unique_ptr<Timer> timer, std::vector<BenchRow> rows, bool table)
      : device_(std::move(device)),
        timer_(std::move(timer)),
        rows_(std::move(rows)),
        table_(table) {}
  ~Bench() override { device_.DestroyStream(stream_); }

  Status RunAll();
  // The exit code that the rows add up to; tells what went wrong.
  int Outcome() const;
  bool has_results() const {
    return std::any_of(rows_.begin(), rows_.end(), [](const BenchRow& r) { return r.status.ok(); });
  }
  std::string Json() const;

 private:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override;

  void Sample(BenchRow& row, benchmark::State& state);
  Status Prepare(BenchRow& row);
  // In GB/s where bytes are moved, in TFLOP/s where there are products.
  double Ceiling(const BenchRow& row) const;
  double Fraction(const BenchRow& row) const {
    return row.products_s > 0 ? row.products_s / row.median_s : GbPerS(row) / Ceiling(row);
  }
  double GbPerS(const BenchRow& row) const {
    return static_cast<double>(row.workload->bytes()) / row.median_s / 1e9;
  }
  void PrintRow(const BenchRow& row) const;

  Device device_;
  std::unique_ptr<Timer> timer_;
  std::vector<BenchRow> rows_;
  bool table_;
  Stream stream_;
  double ceiling_ = 0;  // GB/s
};

Status Bench::RunAll() {
  const Result<Stream> stream = device_.CreateStream();
  if (!stream.ok()) return stream.status();
  stream_ = *stream;
  const Result<double> ceiling = [&]() -> Result<double> {
    try {
      return timer_->CopyCeiling(stream_);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("the copy ceiling: takes twice 268435456 bytes, more than there is");
    }
  }();
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
  if (row.ceiling_s > 0) return static_cast<double>(row.workload->bytes()) / row.ceiling_s / 1e9;
  if (row.products_s == 0) return ceiling_;
  double flops = 0;
  for (const Product& p : row.workload->products()) {
    flops += 2.0 * static_cast<double>(p.batch * p.rows) * static_cast<double>(p.columns * p.inner);
  }
  return flops / row.products_s / 1e12;
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

std::string Bench::Json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows_) {
    if (!row.status.ok()) continue;
    list.push_back(
        {{"op", row.workload->op()},
         {"shape", row.shape},
         {"dtype", DTypeName(row.workload->dtype())},
         {"backend", BackendName(device_.kind())},
         {"hot", row.hot},
         {"pdl", row.workload->pdl() && device_.kind() == BackendKind::kCuda},
         {"median_us", row.median_s * 1e6},
         {"gb_per_s", GbPerS(row)},
         {"tflop_per_s", static_cast<double>(row.workload->flops()) / row.median_s / 1e12},
         {"ceiling", Ceiling(row)},
         {"fraction", Fraction(row)}});
  }
  return list.dump(2) + "\n";
}

int Fail(const Status& status) {
  spdlog::error("{}", status.message());
  return kExitBadUsage;
}

// The cache's bookkeeping: neither bytes nor a device.
int RunManager(const BenchOptions& options) {
  if (options.hot || options.cold) {
    return Fail(InvalidArgument("bench manager has rows of its own, without --hot and --cold"));
  }
  const Result<std::vector<ManagerRow>> rows = RunManagerBench(options.shapes);
  if (!rows.ok()) {
    spdlog::error("bench manager: {}", rows.status().message());
    return rows.status().code() == Code::kCorruptData ? kExitCheckFailed : kExitBadUsage;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (options.json != "-") fmt::print("{:<16} {:>10} {:>10}  per\n", "op", "median ns", "p99 ns");
  for (const ManagerRow& row : *rows) {
    if (options.json != "-") {
      fmt::print("{:<16} {:>10.1f} {:>10.1f}  {}, {}\n", row.op, row.median_s * 1e9,
                 row.p99_s * 1e9, row.per, row.shape);
    }
    list.push_back({{"op", row.op},
                    {"shape", row.shape},
                    {"backend", BackendName(BackendKind::kNull)},
                    {"per", row.per},
                    {"median_us", row.median_s * 1e6},
                    {"p99_us", row.p99_s * 1e6}});
  }
  if (options.json.empty()) return kExitOk;
  const Status written = WriteText(options.json, list.dump(2) + "\n");
  return written.ok() ? kExitOk : Fail(written);
}

// A whole cache with a host tier, on the host's clock.
int RunTier(const BenchOptions& options) {
  if (options.hot || options.cold) {
    return Fail(InvalidArgument("bench tier has rows of its own, without --hot and --cold"));
  }
  const Result<BackendKind> backend = ChooseBackend(options.backend);
  if (!backend.ok()) return Fail(backend.status());
  if (*backend == BackendKind::kNull) {
    return Fail(InvalidArgument("bench needs a backend with memory, cpu or cuda"));
  }
  const Result<Device> device = Device::Create(*backend);
  if (!device.ok()) return Fail(device.status());
  const Result<std::vector<TierRow>> rows = RunTierBench(*device, options.shapes);
  if (!rows.ok()) {
    spdlog::error("bench tier: {}", rows.status().message());
    return rows.status().code() == Code::kCorruptData ? kExitCheckFailed : kExitBadUsage;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const bool table = options.json != "-";
  if (table) {
    fmt::print("backend {} ({})\n{:<20} {:>12} {:>10} {:>8} {:>9} {:>8}\n",
               BackendName(device->kind()), device->name(), "op", "median us", "p99 us", "GB/s",
               "ceiling", "x alone");
  }
  const auto text = [](double value, const char* unit) {
    return value > 0 ? fmt::format("{:.2f}{}", value, unit) : std::string();
  };
  const auto number = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  for (const TierRow& row : *rows) {
    const double fraction = row.ceiling > 0 ? row.gb_per_s / row.ceiling : 0;
    if (table) {
      fmt::print("{:<20} {:>12.2f} {:>10.2f} {:>8} {:>9} {:>8}  {}\n", row.op, row.median_s * 1e6,
                 row.p99_s * 1e6, text(row.gb_per_s, ""), text(100 * fraction, " %"),
                 text(row.alone, ""), row.shape);
    }
    list.push_back({{"op", row.op},
                    {"shape", row.shape},
                    {"backend", BackendName(device->kind())},
                    {"median_us", row.median_s * 1e6},
                    {"p99_us", row.p99_s * 1e6},
                    {"gb_per_s", number(row.gb_per_s)},
                    {"ceiling", number(row.ceiling)},
                    {"fraction", number(fraction)},
                    {"times_alone", number(row.alone)}});
  }
  if (options.json.empty()) return kExitOk;
  const Status written = WriteText(options.json, list.dump(2) + "\n");
  return written.ok() ? kExitOk : Fail(written);
}

int RunBench(const BenchOptions& options) {
  const Status output = CheckOutput("--json", options.json);
  if (!output.ok()) return Fail(output);
  const auto& ops = options.ops;
  for (const auto& [name, run] : {std::pair{"manager", &RunManager}, std::pair{"tier", &RunTier}}) {
    if (std::find(ops.begin(), ops.end(), name) == ops.end()) continue;
    if (ops.size() == 1) return run(options);
    return Fail(InvalidArgument(std::string("bench ") + name +
                                " is run alone: it times the host, not a device"));
  }
  const Result<BackendKind> backend = ChooseBackend(options.backend);
  if (!backend.ok()) return Fail(backend.status());
  if (*backend == BackendKind::kNull) {
    return Fail(InvalidArgument("bench needs a backend with memory, cpu or cuda"));
  }
  Result<std::vector<BenchRow>> rows = SelectRows(options);
  if (!rows.ok()) return Fail(rows.status());
  Result<Device> device = Device::Create(*backend);
  if (!device.ok()) return Fail(device.status());
  if (device->kind() == BackendKind::kCpu && options.shapes.empty()) LeaveOutLong(*rows);
  Bench bench(*device, MakeTimer(*device), *std::move(rows), options.json != "-");
  const Status run = bench.RunAll();
  if (!run.ok()) return Fail(run);
  if (!options.json.empty() && bench.has_results()) {
    const Status written = WriteText(options.json, bench.Json());
    if (!written.ok()) return Fail(written);
  }
  return bench.Outcome();
}

}  // namespace

void AddBench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* const command =
      app.add_subcommand("bench", "What the operations cost, beside this machine's ceiling");
  command->add_option("op", options->ops, OpNames() + "; or manager or tier, alone")->required();
  command
      ->add_option("--shape", options->shapes,
                   "KEY=VALUE,... over the operation's defaults; may be repeated")
      ->check(NotEmpty())
      ->allow_extra_args(false);
  CLI::Option* const hot =
      command->add_flag("--hot", options->hot, "One working set, again and again");
  command->add_flag("--cold", options->cold, "Working sets of more than 200 MB in turn")
      ->excludes(hot);
  command->add_option("--backend", options->backend, "auto, cpu, cuda")->capture_default_str();
  command
      ->add_option("--json", options->json,
                   "Write the results as JSON; - is stdout, and then nothing else")
      ->check(NotEmpty());
  command->callback([options, &exit_code] { exit_code = RunBench(*options); });
}

}  // namespace lariat::tools
