// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat {

// How the angle of a RoPE pair grows with its index. Names are those of Hugging Face's rope_type.
enum class RopeType : std::uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };

// "default", "linear", "dynamic", "yarn", "llama3".
std::string_view RopeTypeName(RopeType type);

// One rotation rule. Which fields are read depends on `type`; the rest are ignored.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  RopeStyle style = RopeStyle::kHalf;
  int rotary_dim = 0;     // elements of a head that turn: even, 2..512; the rest pass unchanged
  double theta = 10000.0;  // base of the frequencies, > 0

  double factor = 1.0;  // linear, dynamic, yarn, llama3: how far the context is stretched, >= 1
  // Tokens the model was trained on before stretching. yarn, llama3: required. dynamic: the length
  // up to which nothing is stretched.
  std::int64_t original_max_position_embeddings = 0;

  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3, > low_freq_factor

  double beta_fast = 32.0;                  // yarn
  double beta_slow = 1.0;                   // yarn
  bool truncate = true;                     // yarn: round the correction range to whole pairs
  std::optional<double> attention_factor;   // yarn: given outright, wins over mscale
  std::optional<double> mscale;             // yarn
  std::optional<double> mscale_all_dim;     // yarn

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// The frequencies of a spec.
struct RopeFrequencies {
  std::vector<double> inv_freq;    // [rotary_dim / 2], radians per position
  double attention_factor = 1.0;   // multiplies cos and sin
};

// Works out the frequencies, in double.
//   length: tokens the table must serve; read by kDynamic alone (0: nothing is stretched)
// Sources of the formulas: docs/numerics.md.
// Errors: kInvalidArgument, naming the field.
Result<RopeFrequencies> ComputeRopeFrequencies(const RopeSpec& spec, std::int64_t length = 0);

// Fills rows [first, first + count) of a table: cos and sin of position * inv_freq, times the
// attention factor, worked out in double and rounded once to fp32.
//   cos, sin: [count, rotary_dim / 2], row-major
// REQUIRES: first >= 0, count >= 0, both spans hold count * inv_freq.size() elements.
void FillRopeTable(const RopeFrequencies& frequencies, std::int64_t first, std::int64_t count,
                   std::span<float> cos, std::span<float> sin);

}  // namespace lariat
