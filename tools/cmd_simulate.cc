// SPDX-License-Identifier: Apache-2.0
// `lariat simulate`: replays a trace and reports.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "commands.h"
#include "simulate_options.h"
#include "simulate_report.h"
#include "simulate_timeline.h"

namespace lariat::tools {
namespace {

// A bar on stderr, drawn ten times a second at most, and only where a person watches.
class ProgressBar {
 public:
  ProgressBar() : shown_(isatty(STDERR_FILENO) != 0) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() {
    if (drawn_) std::fprintf(stderr, "\r\033[K");
  }

  bool shown() const { return shown_; }

  void Draw(std::int64_t ended, std::int64_t total) {
    // The clock is asked now and then only: steps are short.
    if (++calls_ % 64 != 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    constexpr std::int64_t kWidth = 40;
    const std::int64_t filled = kWidth * ended / total;
    const std::string bar(static_cast<std::size_t>(filled), '=');
    std::fprintf(stderr, "\r[%-40s] %3lld %% of %lld requests", bar.c_str(),
                 static_cast<long long>(100 * ended / total), static_cast<long long>(total));
  }

 private:
  const bool shown_;
  bool drawn_ = false;
  std::uint64_t calls_ = 0;
  std::chrono::steady_clock::time_point last_;
};

int Fail(const Status& status) {
  spdlog::error("{}", status.message());
  return kExitBadUsage;
}

// An error of the cache, in the words of the command line.
Status ByFlag(const Status& status, const SimulateOptions& options) {
  const std::string& text = status.message();
  const std::string memory = "--memory " + options.memory;
  const std::pair<std::string_view, std::string> fields[] = {
      {"memory.bytes", memory + ": bytes"},
      {"memory.num_blocks", options.blocks > 0 ? "--blocks" : memory + ": blocks"},
      {"block_size", "--block-size"},
      {"layout layer_major", "--layout layer-major"},
      {"max_sequences", "--max-batch, plus 1:"},
      {"max_tokens_per_step", "--prefill-chunk"},
      {"beams", "--beams"},
      {"layers[", "--model: layers["},
      {"ropes[", "--model: ropes["},
      {"model: ", "--model: "}};
  for (const auto& [field, flag] : fields) {
    if (text.compare(0, field.size(), field) == 0) {
      return {status.code(), flag + text.substr(field.size())};
    }
  }
  if (status.code() != Code::kResourceExhausted || options.unlimited) return status;
  const std::string pool =
      options.blocks > 0 ? "--blocks " + std::to_string(options.blocks) : memory;
  return {status.code(), pool + ": " + text};
}

void WarnOfBadLines(const Trace& trace) {
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < trace.errors().size() && i < kShown; ++i) {
    spdlog::warn("{}", trace.ErrorText(trace.errors()[i]));
  }
  const auto more = trace.bad_lines() - static_cast<std::int64_t>(kShown);
  if (more > 0) spdlog::warn("and {} more", more);
  if (trace.bad_lines() > 0) {
    spdlog::warn("{} bad lines of {} were left out", trace.bad_lines(), trace.name());
  }
}

void WarnOfNoTurns(const Trace& trace) {
  for (const TraceRequest& request : trace.requests()) {
    if (request.parent >= 0) return;
  }
  spdlog::warn("--follow-turns: {} does not say that a request follows another", trace.name());
}

Status WriteResults(const SimulateOptions& options, const SimulateInputs& inputs,
                    const SimulationResult& result) {
  if (!options.requests_out.empty()) {
    Status written = WriteText(options.requests_out, RequestsCsv(inputs.trace, result));
    if (!written.ok()) return written;
  }
  if (!options.json.empty()) {
    Status written = WriteText(options.json, SimulationJson(inputs.trace, inputs.config, result));
    if (!written.ok()) return written;
  }
  for (const std::string& path : {options.json, options.requests_out, options.trace_out}) {
    if (path == "-") return Status::Ok();
  }
  return WriteText("-", SimulationText(inputs.trace, inputs.config, result));
}

int RunSimulate(const SimulateOptions& options) {
  Result<SimulateInputs> inputs = LoadSimulateInputs(options);
  if (!inputs.ok()) return Fail(inputs.status());
  WarnOfBadLines(inputs->trace);
  if (options.follow_turns) WarnOfNoTurns(inputs->trace);
  for (const std::string& warning : inputs->config.model.warnings) {
    spdlog::warn("{}: {}", inputs->config.model.name, warning);
  }
  Timeline timeline;
  if (!options.trace_out.empty()) {
    if (Status opened = timeline.Open(options.trace_out); !opened.ok()) return Fail(opened);
    inputs->config.observer = &timeline;
  }
  const Result<SimulationResult> result = [&] {
    ProgressBar bar;
    if (bar.shown()) {
      inputs->config.progress = [&bar](std::int64_t ended, std::int64_t total) {
        bar.Draw(ended, total);
      };
    }
    return Simulate(inputs->trace, inputs->config);
  }();
  if (!result.ok()) {
    timeline.Drop();
    return Fail(ByFlag(result.status(), options));
  }
  if (Status closed = timeline.Close(); !closed.ok()) return Fail(closed);
  const Status written = WriteResults(options, *inputs, *result);
  if (!written.ok()) return Fail(written);
  if (!result->check) return kExitOk;
  if (inputs->config.fault != InjectedFault::kNone && !result->check->fault_fired) {
    spdlog::error("--inject-fault {} --at {}: no step from there on had a row to break",
                  options.fault, options.fault_step);
    return kExitBadUsage;
  }
  if (result->check->sequences == 0) {
    spdlog::warn("--check compared nothing: no request finished");
    return kExitCheckFailed;
  }
  return result->check->mismatches == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace

void AddSimulate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Replays a request trace, or a made-up load, through the cache");
  DefineSimulateOptions(*command, *options);
  command->callback([options, &exit_code] { exit_code = RunSimulate(*options); });
}

}  // namespace lariat::tools
