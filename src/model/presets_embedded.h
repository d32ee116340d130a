// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string_view>

namespace lariat::model {

// A model file that the build took into the library.
struct EmbeddedModel {
  std::string_view name;  // the file's, without .json
  std::string_view json;
};

// Sorted by name.
std::span<const EmbeddedModel> EmbeddedModels();

}  // namespace lariat::model
