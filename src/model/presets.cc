// SPDX-License-Identifier: Apache-2.0
// The models known by name: files of facts in models/, in the form of a config.json and read by the
// same reader.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "lariat/model.h"
#include "model/config_json.h"
#include "model/presets_embedded.h"

namespace lariat {
namespace {

std::string PresetList() {
  std::string list;
  for (const model::EmbeddedModel& preset : model::EmbeddedModels()) {
    list.append(list.empty() ? "" : ", ").append(preset.name);
  }
  return list;
}

bool IsPreset(std::string_view name) {
  const auto presets = model::EmbeddedModels();
  return std::any_of(presets.begin(), presets.end(),
                     [&](const model::EmbeddedModel& preset) { return preset.name == name; });
}

}  // namespace

Result<ModelConfig> ModelPreset(std::string_view name) {
  for (const model::EmbeddedModel& preset : model::EmbeddedModels()) {
    if (preset.name != name) continue;
    Result<ModelConfig> read =
        ModelConfig::FromHuggingFaceJson(preset.json, std::string(name) + ".json");
    if (read.ok()) read->name = name;
    return read;
  }
  return InvalidArgument("model " + model::Quoted(name) +
                         " is not known; allowed: " + PresetList());
}

std::vector<std::string> ModelPresetNames() {
  std::vector<std::string> names;
  for (const model::EmbeddedModel& preset : model::EmbeddedModels()) {
    names.emplace_back(preset.name);
  }
  return names;
}

Result<ModelConfig> LoadModel(const std::string& name_or_path) {
  if (IsPreset(name_or_path)) return ModelPreset(name_or_path);
  std::error_code ignored;
  if (!std::filesystem::exists(name_or_path, ignored)) {
    return InvalidArgument("model " + model::Quoted(name_or_path) +
                           ": no such file; allowed: the path of a config.json, or one of " +
                           PresetList());
  }
  return ModelConfig::FromHuggingFace(name_or_path);
}

}  // namespace lariat
