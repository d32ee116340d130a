// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lariat/status.h"

// JSON of files that nobody has vetted: bounded, strict, and with errors a person can act on.

namespace lariat::model {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxConfigBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxDepth = 64;
inline constexpr std::size_t kMaxKeyBytes = 256;
inline constexpr std::size_t kMaxValues = 200'000;  // of all kinds, containers too

// A value for a message: a number or literal as it is, a string with its type and in quotes, a
// container by name ("an object"). At most about 80 bytes.
std::string Describe(const Json& value);

// `text` for a message: control characters replaced, cut behind about `longest` bytes.
std::string Clean(std::string_view text, std::size_t longest);

// Clean, in quotes, about 60 bytes.
std::string Quoted(std::string_view text);

// Parses one JSON object. Nothing else may stand before or behind it; keys are unique; no byte
// order mark, no comments, no NaN; the limits above hold. Errors: kInvalidArgument; "line 23 column
// 4 (byte 521): ..." for what is no JSON, the path of the
//   value for what is. They do not name the file.
Result<Json> ParseConfigJson(std::string_view text);

// Reads a config file; of a directory, its config.json.
// Errors: kInvalidArgument, naming the file.
Result<std::string> ReadConfigFile(const std::string& path);

}  // namespace lariat::model
