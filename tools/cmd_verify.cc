// SPDX-License-Identifier: Apache-2.0
// `lariat verify`: replays what a real model computed, and compares.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "lariat/model.h"
#include "lariat/verify.h"

namespace lariat::tools {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

// The flags, as written.
struct VerifyArguments {
  std::string recording;
  std::string config;
  std::string backend = "auto";
  std::string dtype = "fp32";
  std::string json;
};

int Fail(const std::string& message) {
  spdlog::error("{}", message);
  return kExitBadUsage;
}

// NAME.config.json beside NAME.safetensors.
Result<std::string> ConfigBeside(const std::string& recording) {
  if (!std::string_view(recording).ends_with(kSuffix)) {
    return InvalidArgument(recording + ": without --config the name must end in .safetensors");
  }
  return recording.substr(0, recording.size() - kSuffix.size()) + ".config.json";
}

Result<DType> ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kFP32, DType::kBF16, DType::kFP16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return InvalidArgument("--dtype = " + name + "; allowed: fp32, bf16, fp16");
}

std::vector<std::string> PassNames(const VerifyReport& report) {
  std::vector<std::string> names;
  for (const VerifiedPass& pass : report.passes) names.push_back(pass.name);
  return names;
}

std::string VerifyJson(const VerifyReport& report) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["backend"] = BackendName(report.backend);
  json["tensors"] = Json::array();
  for (const VerifiedTensor& tensor : report.tensors) {
    Json row;  // a number that is not finite becomes null
    row["name"] = tensor.name;
    row["elements"] = tensor.elements;
    row["max_abs"] = tensor.max_abs;
    row["max_rel_rms"] = tensor.max_rel_rms;
    row["tolerance"] = tensor.tolerance;
    row["ok"] = tensor.ok;
    json["tensors"].push_back(std::move(row));
  }
  json["passes"] = PassNames(report);
  json["missing"] = report.missing;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

std::string VerifyText(const VerifyReport& report) {
  std::string text =
      fmt::format("model    {}\nbackend  {} ({}), {} cache\n", report.model,
                  BackendName(report.backend), report.device, DTypeName(report.dtype));
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "passes   {}\n\n", Joined(PassNames(report)));
  fmt::format_to(out, "{:<16} {:>10} {:>12} {:>12} {:>12}\n", "tensor", "elements", "max error",
                 "of row RMS", "tolerance");
  for (const VerifiedTensor& tensor : report.tensors) {
    fmt::format_to(out, "{:<16} {:>10} {:>12.3g} {:>12.3g} {:>12.3g}  {}\n", tensor.name,
                   tensor.elements, tensor.max_abs, tensor.max_rel_rms, tensor.tolerance,
                   tensor.ok ? "ok" : "FAIL");
    if (!tensor.ok) fmt::format_to(out, "    {}\n", tensor.worst);
  }
  for (const std::string& name : report.missing) {
    fmt::format_to(out, "{:<16} {:>10}  missing: FAIL\n", name, "-");
  }
  fmt::format_to(out, "\n{}\n", report.ok ? "PASS" : "FAIL");
  return text;
}

int RunVerify(const VerifyArguments& arguments) {
  VerifyOptions options;
  const Result<BackendKind> backend = ChooseBackend(arguments.backend);
  if (!backend.ok()) return Fail(backend.status().message());
  options.backend = *backend;
  const Result<DType> dtype = ParseDType(arguments.dtype);
  if (!dtype.ok()) return Fail(dtype.status().message());
  options.dtype = *dtype;
  const Result<std::string> path =
      arguments.config.empty() ? ConfigBeside(arguments.recording) : arguments.config;
  if (!path.ok()) return Fail(path.status().message());
  const Result<ModelConfig> model = ModelConfig::FromHuggingFace(*path);
  if (!model.ok()) {
    const std::string hint =
        arguments.config.empty() ? "; --config names a config.json that lies elsewhere" : "";
    return Fail(model.status().message() + hint);
  }
  for (const std::string& warning : model->warnings) spdlog::warn("{}: {}", *path, warning);

  const Result<VerifyReport> report = VerifyRecording(arguments.recording, *model, options);
  if (!report.ok()) return Fail(report.status().message());
  for (const std::string& reason : report->reasons) spdlog::error("{}", reason);
  if (!arguments.json.empty()) {
    const Status written = WriteText(arguments.json, VerifyJson(*report));
    if (!written.ok()) return Fail(written.message());
  }
  if (arguments.json != "-") {
    const Status written = WriteText("-", VerifyText(*report));
    if (!written.ok()) return Fail(written.message());
  }
  return report->ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

void AddVerify(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand(
      "verify", "Replays what a real model computed through the cache, and compares");
  VerifyArguments& a = *arguments;
  command->add_option("RECORDING", a.recording, "NAME.safetensors, as tools/record_hf.py writes it")
      ->required();
  command->add_option("--config", a.config,
                      "The model's config.json (default: NAME.config.json beside the recording)");
  command->add_option("--backend", a.backend, "auto|cpu|cuda")->capture_default_str();
  command->add_option("--dtype", a.dtype, "Of the cache: fp32|bf16|fp16")->capture_default_str();
  command->add_option("--json", a.json,
                      "Write the results as JSON; - is stdout, and then nothing else");
  command->callback([arguments, &exit_code] { exit_code = RunVerify(*arguments); });
}

}  // namespace lariat::tools
