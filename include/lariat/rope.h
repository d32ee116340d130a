// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat {

// How the angle of a RoPE pair grows with its index. Names are those of Hugging Face's rope_type.
enum class RopeType : std::uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };

// "default", "linear", "dynamic", "yarn", "llama3".
std::string_view RopeTypeName(RopeType type);

// One rotation rule. `type` decides which fields are read; each says who reads it and what it may
// be. A field that is not read is not checked.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  RopeStyle style = RopeStyle::kHalf;
  int rotary_dim = 0;      // elements of a head that turn: even, 2..512; the rest pass unchanged
  double theta = 10000.0;  // base of the frequencies, > 0; yarn: > 1

  // linear, dynamic, yarn, llama3: how far the context is stretched, >= 1.
  double factor = 1.0;
  // dynamic, yarn, llama3: tokens the model was trained on before stretching, >= 1; required.
  // dynamic stretches nothing up to this length; it is max_position_embeddings in its config.
  std::int64_t original_max_position_embeddings = 0;

  // llama3: a pair that turns more than high_freq_factor times within the original length keeps
  // its frequency, one that turns less than low_freq_factor times is divided by factor, and those
  // between are blended. 0 < low < high.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;

  // yarn: turns within the original length at which stretching begins (fast) and is whole (slow);
  // 0 < slow <= fast.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;  // yarn: round the range of pairs between the two outwards to whole pairs
  // yarn: the attention factor is attention_factor where given (> 0), else
  // m(mscale) / m(mscale_all_dim) where both are given and not 0 (>= 0), else m(1), with
  // m(s) = 0.1 * s * ln(factor) + 1.
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// The frequencies of a spec.
struct RopeFrequencies {
  std::vector<double> inv_freq;   // [rotary_dim / 2], radians per position
  double attention_factor = 1.0;  // multiplies cos and sin; 1 but for yarn
};

// Works out the frequencies, in double.
//   length: tokens the table must serve, >= 0; read by kDynamic alone (0: nothing is stretched).
//     A table serves one length for as long as keys rotated with it are in use: a key that was
//     rotated under one length must not meet a query rotated under another.
// Formulas and their sources: docs/numerics.md.
// Errors: kInvalidArgument, naming the field, its value and what is allowed; also for fields that
//   are allowed one by one but give a frequency outside [1e-100, 1e100].
Result<RopeFrequencies> ComputeRopeFrequencies(const RopeSpec& spec, std::int64_t length = 0);

// Fills rows [first, first + count) of a table: cos and sin of position * inv_freq, times the
// attention factor, worked out in double and rounded once to fp32. A row depends on its position
// and the frequencies alone, so a longer table begins with the rows of a shorter one.
//   cos, sin: [count, inv_freq.size()], row-major
// REQUIRES: first >= 0, count >= 0, first + count <= 2^53, both spans hold
//   count * inv_freq.size() elements or more.
void FillRopeTable(const RopeFrequencies& frequencies, std::int64_t first, std::int64_t count,
                   std::span<float> cos, std::span<float> sin);

}  // namespace lariat
