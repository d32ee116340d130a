// SPDX-License-Identifier: Apache-2.0
// `lariat bench`: what the operations cost on this machine. Google Benchmark runs and repeats;
// docs/benchmarks.md says how figures are taken.
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench_compare.h"
#include "bench_host.h"
#include "bench_rows.h"
#include "bench_run.h"
#include "commands.h"
#include "option_checks.h"

namespace lariat::tools {
namespace {

int Fail(const Status& status) {
  spdlog::error("{}", status.message());
  return kExitBadUsage;
}

bool Names(const BenchOptions& options, std::string_view op) {
  return std::find(options.ops.begin(), options.ops.end(), op) != options.ops.end();
}

// What is wrong with the options together, before anything runs.
Status CheckOptions(const BenchOptions& options) {
  if (Status s = CheckOutput("--json", options.json); !s.ok()) return s;
  for (const char* const name : {"manager", "tier"}) {
    if (!Names(options, name)) continue;
    if (options.ops.size() > 1) {
      return InvalidArgument(std::string("bench ") + name +
                             " is run alone or as a part of all: it times the host, not a device");
    }
    if (options.hot || options.cold) {
      return InvalidArgument(std::string("bench ") + name +
                             " has rows of its own, without --hot and --cold");
    }
    if (options.explain) {
      return InvalidArgument(std::string("bench ") + name +
                             " has no tuning to tell: --explain is for operations");
    }
    if (options.threads != 1 && std::string_view(name) == "manager") {
      return InvalidArgument("bench manager is timed on one thread, without --threads");
    }
  }
  return Status::Ok();
}

// The rows that ran, and the exit code that they add up to.
struct Outcome {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  int exit_code = kExitOk;

  void Add(const nlohmann::ordered_json& more) {
    for (const auto& row : more) rows.push_back(row);
  }
  // A wrong result says more than a row that could not be run.
  void AddExit(int code) {
    if (code != kExitOk && exit_code != kExitCheckFailed) exit_code = code;
  }
  void AddHost(const char* op, const Result<nlohmann::ordered_json>& more) {
    if (more.ok()) return Add(*more);
    spdlog::error("bench {}: {}", op, more.status().message());
    AddExit(more.status().code() == Code::kCorruptData ? kExitCheckFailed : kExitBadUsage);
  }
};

// Errors: of what keeps all rows from running.
Status RunDeviceRows(const BenchOptions& options, const Device& device, bool table, Outcome& out) {
  Result<std::vector<BenchRow>> rows = SelectRows(options, device.kind());
  if (!rows.ok()) return rows.status();
  if (device.kind() == BackendKind::kCpu && options.shapes.empty()) LeaveOutLong(*rows);
  Bench bench(device, *std::move(rows), table, options.explain);
  if (Status run = bench.RunAll(); !run.ok()) return run;
  out.Add(bench.Json());
  out.AddExit(bench.Outcome());
  return Status::Ok();
}

Status RunRows(const BenchOptions& options, bool table, Outcome& out) {
  if (Names(options, "manager")) {
    out.AddHost("manager", RunManagerRows(options, table));
    return Status::Ok();
  }
  const Result<BackendKind> backend = ChooseBackend(options.backend);
  if (!backend.ok()) return backend.status();
  if (*backend == BackendKind::kNull) {
    return InvalidArgument("bench needs a backend with memory, cpu or cuda");
  }
  if (Status known = CheckOps(options); !known.ok()) return known;
  const Result<Device> device = Device::Create(*backend, 0, {.cpu_threads = options.threads});
  if (!device.ok()) return device.status();
  if (!Names(options, "tier")) {
    if (Status run = RunDeviceRows(options, *device, table, out); !run.ok()) return run;
  }
  const bool all = Names(options, "all") && !options.hot && !options.cold;
  if (all || Names(options, "tier")) out.AddHost("tier", RunTierRows(options, *device, table));
  if (all) out.AddHost("manager", RunManagerRows(options, table));
  return Status::Ok();
}

int RunBench(const BenchOptions& options) {
  if (const Status s = CheckOptions(options); !s.ok()) return Fail(s);
  std::optional<Comparison> comparison;
  if (!options.compare.empty()) {
    Result<Comparison> loaded = Comparison::Load(options.compare);
    if (!loaded.ok()) return Fail(loaded.status());
    comparison = *std::move(loaded);
  }
  const bool table = options.json != "-";
  Outcome out;
  if (const Status run = RunRows(options, table, out); !run.ok()) return Fail(run);
  if (comparison && !out.rows.empty()) {
    comparison->Annotate(out.rows);
    if (table) comparison->Print(out.rows);
    if (options.tolerance >= 0 && !Comparison::HasRatio(out.rows)) {
      spdlog::error("--tolerance: {} has none of these rows", options.compare);
      out.AddExit(kExitBadUsage);
    }
    if (options.tolerance >= 0 && Comparison::LogSlower(out.rows, options.tolerance) > 0) {
      out.AddExit(kExitCheckFailed);
    }
  }
  if (!options.json.empty() && !out.rows.empty()) {
    const Status written = WriteText(options.json, out.rows.dump(2) + "\n");
    if (!written.ok()) return Fail(written);
  }
  return out.exit_code;
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
      ->add_option("--threads", options->threads,
                   "Threads of the CPU backend; products bring those of their library")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--explain", options->explain, "Tell how each row was done, by what tuning");
  CLI::Option* const compare =
      command
          ->add_option("--compare", options->compare,
                       "The JSON of an earlier run: ratios of its times to these")
          ->check(NotEmpty());
  command
      ->add_option("--tolerance", options->tolerance,
                   "Exit code 1 where a row is slower than before by more than so many percent")
      ->check(NumberRange(0, 1e6))
      ->needs(compare);
  command
      ->add_option("--json", options->json,
                   "Write the results as JSON; - is stdout, and then nothing else")
      ->check(NotEmpty());
  command->callback([options, &exit_code] { exit_code = RunBench(*options); });
}

}  // namespace lariat::tools
