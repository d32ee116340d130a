// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string_view>

namespace lariat::session {

// A device file that the build took into the library.
struct EmbeddedDevice {
  std::string_view name;  // the file's, without .json
  std::string_view json;
};

// Sorted by name.
std::span<const EmbeddedDevice> EmbeddedDevices();

}  // namespace lariat::session
