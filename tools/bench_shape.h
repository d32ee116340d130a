// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lariat/ops.h"
#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat::tools {

// A value out of a few words: `value` is the index into `words`.
struct Choice {
  std::vector<std::string_view> words;
  int value = 0;
};

// The key "launch" of operations that have dependent launches; its value is the DependentLaunch.
inline Choice LaunchChoice(DependentLaunch value = DependentLaunch::kOff) {
  return {{"off", "wait", "early"}, static_cast<int>(value)};
}

// One key of a --shape text and the variable behind it. Numbers may be min..max.
struct ShapeField {
  std::string_view key;
  std::variant<std::int64_t*, DType*, RopeStyle*, Choice*> value;
  std::int64_t min = 0;
  std::int64_t max = 0;
};

// Reads "T=1024,q_heads=32,dtype=fp16" into the variables; keys that are not named stay.
// Errors: kInvalidArgument: an unknown or repeated key, a value that is not allowed.
Status ReadShape(std::string_view text, std::span<const ShapeField> fields);

// The same text back, with every key but dtype.
std::string ShapeText(std::span<const ShapeField> fields);

}  // namespace lariat::tools
