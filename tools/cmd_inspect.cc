// SPDX-License-Identifier: Apache-2.0
// `lariat inspect`: says what was understood of a model.
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands.h"
#include "inspect_report.h"
#include "lariat/model.h"

namespace lariat::tools {
namespace {

constexpr std::int64_t kMaxPosition = (std::int64_t{1} << 31) - 1;  // positions are int32
constexpr std::size_t kMaxPositions = 4096;                         // printed at once

// The flags, as written.
struct InspectOptions {
  std::string model;
  std::string dtype = "bf16";
  std::string memory;
  std::string backend = "auto";
  std::string json;
  bool list = false;
  InspectQuery query;
};

int Fail(const std::string& message) {
  spdlog::error("{}", message);
  return kExitBadUsage;
}

// The document to --json, and the table to stdout unless the document went there.
int Write(const InspectOptions& options, const std::string& json, const std::string& text) {
  if (!options.json.empty()) {
    const Status written = WriteText(options.json, json);
    if (!written.ok()) return Fail(written.message());
    if (options.json == "-") return kExitOk;
  }
  const Status written = WriteText("-", text);
  return written.ok() ? kExitOk : Fail(written.message());
}

Result<DType> ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kFP32, DType::kFP16, DType::kBF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  const bool known = name == "fp8" || name == "fp8_e4m3";
  return InvalidArgument("--dtype = " + name + (known ? ": not built in this version" : "") +
                         "; allowed: fp32, fp16, bf16");
}

int RunInspect(InspectOptions options) {
  InspectQuery& query = options.query;
  const Result<BackendKind> backend = ChooseBackend(options.backend);  // nothing runs on it
  if (!backend.ok()) return Fail(backend.status().message());
  if (options.list) return Write(options, PresetsJson(), PresetsText());
  if (options.model.empty()) return Fail("MODEL is missing: a preset (--list) or a config.json");
  const Result<DType> dtype = ParseDType(options.dtype);
  if (!dtype.ok()) return Fail(dtype.status().message());
  query.dtype = *dtype;
  if (!options.memory.empty()) {
    const Result<std::int64_t> bytes = ParseSize(options.memory);
    if (!bytes.ok()) return Fail("--memory = " + bytes.status().message());
    query.memory = *bytes;
  }
  if (query.positions.size() > kMaxPositions) {
    return Fail("--positions has " + std::to_string(query.positions.size()) +
                " of them; allowed: " + std::to_string(kMaxPositions));
  }
  const Result<ModelConfig> model = LoadModel(options.model);
  if (!model.ok()) return Fail(model.status().message());
  std::optional<RopeRows> rows;
  if (query.rope) {
    if (model->ropes.empty()) return Fail("--rope: " + options.model + " has no RoPE");
    Result<RopeRows> made = MakeRopeRows(*model, model->ropes[0], query);
    if (!made.ok()) return Fail(made.status().message());
    rows = *std::move(made);
  }
  for (const std::string& warning : model->warnings) spdlog::warn("{}: {}", model->name, warning);
  return Write(options, InspectJson(*model, query, rows), InspectText(*model, query, rows));
}

void DefineOptions(CLI::App& command, InspectOptions& o) {
  command.add_option("MODEL", o.model, "A preset (--list), or the path of a config.json");
  command.add_flag("--list", o.list, "List the presets");
  command.add_option("--dtype", o.dtype, "Of the cache: fp32|fp16|bf16")->capture_default_str();
  auto* memory = command.add_option("--memory", o.memory, "Tell what fits into it, as in 80GiB");
  command
      .add_option("--block-size", o.query.block_size,
                  "Tokens of a block (default: 16, with MLA 64)")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(memory);
  command.add_option("--lengths", o.query.lengths, "Of sequences, as in 1024,8192")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, kMaxPosition))
      ->needs(memory);
  auto* rope = command.add_flag("--rope", o.query.rope, "Print rows of the RoPE table");
  command.add_option("--positions", o.query.positions, "Which rows, as in 0,1,257")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, kMaxPosition))
      ->needs(rope);
  command
      .add_option("--length", o.query.length,
                  "Of the sequence whose table it is, where the type depends on it (default: up to "
                  "the largest position)")
      ->check(CLI::Range(std::int64_t{0}, kMaxPosition))
      ->needs(rope);
  command.add_option("--json", o.json,
                     "Write the results as JSON; - is stdout, and then nothing else");
  command.add_option("--backend", o.backend, "auto|cpu|cuda|null; nothing runs on it")
      ->capture_default_str();
}

}  // namespace

void AddInspect(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Says what was understood of a model, and what it stores");
  DefineOptions(*command, *options);
  command->callback([options, &exit_code] { exit_code = RunInspect(*options); });
}

}  // namespace lariat::tools
