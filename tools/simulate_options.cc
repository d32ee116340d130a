// SPDX-License-Identifier: Apache-2.0
#include "simulate_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"
#include "lariat/cost_model.h"
#include "lariat/model.h"
#include "option_checks.h"
#include "simulate_values.h"

namespace lariat::tools {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;  // more than any trace has
constexpr std::int64_t kMaxBlocks = 2147483647;            // a block's number is an int32

// A value out of a list, of which the last ones are known and not built.
CLI::Validator Choice(std::initializer_list<std::string_view> built,
                      std::initializer_list<std::string_view> not_built = {}) {
  const std::vector<std::string> allowed(built.begin(), built.end());
  const std::vector<std::string> known(not_built.begin(), not_built.end());
  const std::string list = CLI::detail::join(allowed, "|");
  return {[allowed, known, list](std::string& value) -> std::string {
            if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return {};
            if (std::find(known.begin(), known.end(), value) != known.end()) {
              return NotBuilt(value) + "; allowed: " + list;
            }
            return value + "; allowed: " + list;
          },
          list};
}

// Flags of later versions: known, so that they are not taken for a misspelling.
void DefineNotBuilt(CLI::App& command, SimulateOptions& options) {
  for (const std::string name : {"--gpus", "--weights-dtype", "--report"}) {
    command
        .add_option_function<std::string>(
            name, [name, &options](const std::string&) { options.not_built = name; })
        ->expected(0, 1)
        ->group("");
  }
}

void DefineInputs(CLI::App& command, SimulateOptions& o) {
  const std::string group = "What is replayed";
  auto* trace =
      command.add_option("--trace", o.trace, "A trace file")->check(NotEmpty())->group(group);
  auto* workload =
      command
          .add_option("--workload", o.workload,
                      "A made-up load instead, as in in=1024,out=256,n=1000,prefix=512")
          ->check(NotEmpty())
          ->group(group)
          ->excludes(trace);
  command.add_option("--format", o.format, "Of the trace")
      ->check(Choice({"auto", "mooncake", "azure", "burstgpt", "bailian", "tokens"}))
      ->group(group)
      ->excludes(workload)
      ->capture_default_str();
  command.add_option("--limit", o.limit, "Stop after this many good lines")
      ->check(CLI::Range(std::int64_t{1}, kMaxCount))
      ->group(group)
      ->excludes(workload);
  command.add_option("--rate", o.rate, "Arrivals this many times as fast")
      ->check(RateRange())
      ->group(group)
      ->excludes(workload)
      ->capture_default_str();
  command.add_flag("--strict", o.strict, "A bad line ends the command instead of being left out")
      ->group(group)
      ->excludes(workload);
  command
      .add_flag("--follow-turns", o.follow_turns,
                "A session's next turn waits for the answer before it")
      ->group(group)
      ->excludes(workload);
  auto* concurrency =
      command
          .add_option("--concurrency", o.concurrency,
                      "So many requests at any time, instead of arrivals by the trace's clock")
          ->check(CLI::Range(std::int64_t{1}, kMaxCount))
          ->group(group);
  command.add_flag("--sequential", o.sequential, "Each request ends before the next begins")
      ->group(group)
      ->excludes(concurrency);
}

void DefineCache(CLI::App& command, SimulateOptions& o) {
  const std::string group = "The cache";
  command.add_option("--model", o.model, "Whose keys and values")
      ->group(group)
      ->capture_default_str();
  command.add_option("--dtype", o.dtype, "Of the cache (default: the model's; bf16 for fp32)")
      ->check(Choice({"fp32", "fp16", "bf16"}, {"fp8_e4m3", "fp8", "auto"}))
      ->group(group);
  command.add_option("--device", o.device, "Whose time is simulated: a name or a device file")
      ->group(group)
      ->capture_default_str();
  command.add_option("--backend", o.backend, "Where the cache runs: auto|cpu|cuda|null")
      ->group(group)
      ->capture_default_str();
  command.add_option("--block-size", o.block_size, "Tokens of a block (default: 16, with MLA 64)")
      ->check(CLI::Range(1, 1 << 24))
      ->group(group);
  command.add_option("--layout", o.layout, "Order of the pool's planes")
      ->check(Choice({"block-major", "layer-major"}))
      ->group(group)
      ->capture_default_str();
  command.add_option("--order", o.order, "Inside a plane: rows of heads, or heads of rows")
      ->check(Choice({"nhd", "hnd"}))
      ->group(group)
      ->capture_default_str();
  auto* memory = command.add_option("--memory", o.memory, "Of the pool, as in 8GiB or 80GB")
                     ->group(group)
                     ->capture_default_str();
  auto* blocks = command.add_option("--blocks", o.blocks, "Blocks of the pool, instead")
                     ->check(CLI::Range(std::int64_t{1}, kMaxBlocks))
                     ->group(group)
                     ->excludes(memory);
  command.add_flag("--unlimited", o.unlimited, "A pool that never ends; null backend only")
      ->group(group)
      ->excludes(memory)
      ->excludes(blocks);
  command.add_option("--reuse", o.reuse, "What a prefix hit is made of")
      ->check(Choice({"block", "token"}))
      ->group(group)
      ->capture_default_str();
  auto* host = command
                   .add_option("--host-memory", o.host_memory,
                               "Of a second tier that keeps evicted blocks, as in 64GiB")
                   ->check(NotEmpty())
                   ->type_name("SIZE")
                   ->group(group);
  command
      .add_option(
          "--write-policy", o.write_policy,
          "When blocks are copied there: before they are evicted, at once, or after two hits")
      ->check(Choice({"back", "through", "after-hits"}))
      ->group(group)
      ->needs(host)
      ->capture_default_str();
  command
      .add_flag("--late-copies", o.late_copies,
                "Copies between the tiers end as late as they may; cpu and null backends only")
      ->group(group)
      ->needs(host);
  command.add_option("--policy", o.policy, "Which cached block goes first")
      ->check(Choice({"lru", "priority"}))
      ->group(group)
      ->capture_default_str();
}

void DefineSession(CLI::App& command, SimulateOptions& o) {
  const std::string group = "The session";
  command.add_option("--max-batch", o.max_batch, "Sequences that run at once")
      ->check(CLI::Range(1, 1 << 16))
      ->group(group)
      ->capture_default_str();
  command.add_option("--prefill-chunk", o.prefill_chunk, "Token budget of a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->group(group)
      ->capture_default_str();
  command
      .add_option("--max-length", o.max_length,
                  "Prompt and output of a request, beyond which it is refused: N|model|none")
      ->group(group)
      ->capture_default_str();
  command.add_option("--preempt", o.preempt, "What becomes of a request without room")
      ->check(Choice({"recompute", "swap", "auto"}))
      ->group(group)
      ->capture_default_str();
  auto* speculate =
      command
          .add_option("--speculate", o.speculate,
                      "K drafts a decode step, each accepted with probability P, as in 4:0.7")
          ->check(NotEmpty())
          ->type_name("K:P")
          ->group(group);
  command
      .add_option("--beams", o.beams, "Sequences that each request forks into behind its prompt")
      ->check(CLI::Range(1, 64))
      ->group(group)
      ->excludes(speculate);
}

void DefineResults(CLI::App& command, SimulateOptions& o) {
  const std::string group = "Data, checks and results";
  command.add_option("--seed", o.seed, "Of made-up prompts, keys and values")
      ->transform(DecimalUint64())
      ->group(group)
      ->capture_default_str();
  auto* check = command.add_flag("--check", o.check, "Compare every stored row of every sequence")
                    ->group(group);
  auto* fault =
      command.add_option("--inject-fault", o.fault, "Break one write, to see --check fail")
          ->check(Choice({"stale", "shift", "bit"}))
          ->group(group)
          ->needs(check);
  command.add_option("--at", o.fault_step, "From this step on, counted from 1")
      ->check(CLI::Range(std::int64_t{1}, kMaxCount))
      ->group(group)
      ->needs(fault)
      ->capture_default_str();
  command
      .add_option("--json", o.json, "Write the results as JSON; - is stdout, and then nothing else")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--requests-out", o.requests_out,
                  "Write one line per request as CSV; - is stdout, and then nothing else")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option(
          "--trace-out", o.trace_out,
          "Write steps, requests and transfers on the virtual clock for Perfetto, as Chrome "
          "trace-event JSON; - is stdout, and then nothing else")
      ->check(NotEmpty())
      ->group(group);
}

Result<Trace> LoadTrace(const SimulateOptions& options) {
  if (!options.workload.empty()) return MakeWorkload(options.workload, options.seed);
  if (options.trace.empty()) return InvalidArgument("one of --trace and --workload is required");
  const Result<TraceFormat> format = ParseTraceFormat(options.format);
  if (!format.ok()) return format.status();
  return ReadTrace(
      options.trace,
      {.format = *format, .limit = options.limit, .rate = options.rate, .strict = options.strict});
}

// Also of files that are not there yet, which weakly_canonical leaves relative.
bool SameFile(const std::string& one, const std::string& other) {
  const auto whole = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  };
  return one == other || whole(one) == whole(other);
}

// Where the results go, before a run that may take long.
Status CheckOutputs(const SimulateOptions& options) {
  const std::pair<std::string, const std::string&> outputs[] = {
      {"--json", options.json},
      {"--requests-out", options.requests_out},
      {"--trace-out", options.trace_out}};
  for (const auto& [flag, path] : outputs) {
    if (Status s = CheckOutput(flag, path); !s.ok()) return s;
  }
  for (const auto& [flag, path] : outputs) {
    for (const auto& [other_flag, other] : outputs) {
      if (flag == other_flag) break;  // pairs, each once
      if (path.empty() || other.empty() || !SameFile(path, other)) continue;
      return InvalidArgument(other_flag + " and " + flag + " both name " +
                             (other == "-" ? "standard output" : other));
    }
  }
  const std::pair<std::string, const std::string&> inputs[] = {
      {"--trace", options.trace}, {"--model", options.model}, {"--device", options.device}};
  for (const auto& [flag, path] : outputs) {
    for (const auto& [input_flag, input] : inputs) {
      if (path.empty() || path == "-" || input.empty() || !SameFile(path, input)) continue;
      return InvalidArgument(flag + " = " + path + ": is what " + input_flag + " reads");
    }
  }
  return Status::Ok();
}

}  // namespace

void DefineSimulateOptions(CLI::App& command, SimulateOptions& options) {
  DefineInputs(command, options);
  DefineCache(command, options);
  DefineSession(command, options);
  DefineResults(command, options);
  DefineNotBuilt(command, options);
}

Result<SimulateInputs> LoadSimulateInputs(const SimulateOptions& options) {
  if (!options.not_built.empty()) return Unsupported(NotBuilt(options.not_built));
  if (Status s = CheckOutputs(options); !s.ok()) return s;
  if (options.rate != 1.0 && (options.sequential || options.concurrency > 0)) {
    return InvalidArgument("--rate has no effect with " +
                           std::string(options.sequential ? "--sequential" : "--concurrency") +
                           ": requests are sent as others end, not by the trace's clock");
  }
  const Result<BackendKind> backend = ChooseBackend(options.backend);
  if (!backend.ok()) return backend.status();
  if (options.check && *backend == BackendKind::kNull) {
    return InvalidArgument("--check needs a backend with memory, cpu or cuda: null stores nothing");
  }
  Result<ModelConfig> model = LoadModel(options.model);
  if (!model.ok()) return Status(model.status().code(), "--model: " + model.status().message());
  Result<DeviceSpec> device = LoadDevice(options.device);
  if (!device.ok()) return Status(device.status().code(), "--device: " + device.status().message());
  const std::vector<std::string> built_in = DeviceNames();
  if (std::find(built_in.begin(), built_in.end(), options.device) == built_in.end()) {
    device->name += " (" + options.device + ")";  // a file may call itself as it likes
  }
  const Result<std::int64_t> max_length = ParseMaxLength(options.max_length, *model);
  if (!max_length.ok()) return max_length.status();
  const Result<Speculation> speculation = ParseSpeculate(options.speculate);
  if (!speculation.ok()) return speculation.status();
  const Result<MemoryConfig> memory = ParseMemory(options, *backend);
  if (!memory.ok()) return memory.status();
  const Result<HostTier> host = ParseHostTier(options);
  if (!host.ok()) return host.status();
  Result<Trace> trace = LoadTrace(options);
  if (!trace.ok()) return trace.status();

  SimulateInputs inputs;
  inputs.trace = *std::move(trace);
  SimulatorConfig& config = inputs.config;
  config.dtype = ChooseDType(options.dtype, model->dtype);
  config.block_size = ChooseBlockSize(options.block_size, *model);
  config.layout = options.layout == "layer-major" ? Layout::kLayerMajor : Layout::kBlockMajor;
  config.order = options.order == "hnd" ? Order::kHND : Order::kNHD;
  config.model = *std::move(model);
  config.device = *std::move(device);
  config.backend = *backend;
  config.memory = *memory;
  config.reuse = options.reuse == "token" ? Reuse::kToken : Reuse::kBlock;
  config.host = *host;
  config.late_copies = options.late_copies;
  config.preempt = ParsePreempt(options.preempt);
  config.eviction = options.policy == "priority" ? EvictionPolicy::kPriority : EvictionPolicy::kLru;
  config.max_batch = options.max_batch;
  config.prefill_chunk = options.prefill_chunk;
  config.max_length = *max_length;
  config.draft_tokens = speculation->drafts;
  config.acceptance = speculation->acceptance;
  config.beams = std::max(1, options.beams);
  config.concurrency = options.sequential ? 1 : options.concurrency;
  config.follow_turns = options.follow_turns;
  config.seed = options.seed;
  config.check = options.check;
  config.fault = ParseFault(options.fault);
  config.fault_step = options.fault_step;
  return inputs;
}

}  // namespace lariat::tools
