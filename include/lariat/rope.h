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
enum class RopeType : std::uint8_t {
  kDefault,
  kLinear,
  kDynamic,
  kYarn,
  kLlama3,
  kLongrope,
  kProportional
};

// "default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional".
std::string_view RopeTypeName(RopeType type);

// Which pairs of a multi-section RoPE belong to which section: one section behind the other, or
// section s at the pairs i with i % 3 == s for as many pairs as it has, and section 0 at the rest.
enum class MropeLayout : std::uint8_t { kSectioned, kInterleaved };

// One rotation rule. `type` decides which fields are read; each says who reads it and what it may
// be. A field that is not read is not checked.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  RopeStyle style = RopeStyle::kHalf;
  int rotary_dim = 0;      // elements of a head that turn: even, 2..512; the rest pass unchanged
  double theta = 10000.0;  // base of the frequencies, > 0; yarn: > 1

  // all but default: how far the context is stretched, >= 1. longrope: only its attention factor.
  double factor = 1.0;
  // dynamic, yarn, llama3, longrope: tokens the model was trained on before stretching, >= 1
  // (longrope: >= 2); required. dynamic stretches nothing up to this length; it is
  // max_position_embeddings in its config. longrope takes short_factor up to it, long_factor
  // beyond.
  std::int64_t original_max_position_embeddings = 0;

  // llama3: a pair that turns more than high_freq_factor times within the original length keeps
  // its frequency, one that turns less than low_freq_factor times is divided by factor, and those
  // between are blended. 0 < low <= high.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;

  // yarn: turns within the original length at which stretching begins (fast) and is whole (slow);
  // 0 < slow <= fast.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;  // yarn: round the range of pairs between the two outwards to whole pairs
  // yarn, longrope: the attention factor is attention_factor where given (> 0). Else longrope's is
  // sqrt(1 + ln(factor) / ln(original_max_position_embeddings)), and yarn's is
  // m(mscale) / m(mscale_all_dim) where both are given and not 0 (>= 0), else m(1), with
  // m(s) = 0.1 * s * ln(factor) + 1.
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;

  // longrope: what the wavelength of each pair is multiplied by, [rotary_dim / 2], each > 0.
  std::vector<double> short_factor;
  std::vector<double> long_factor;

  // proportional: the elements of the rotary_dim that turn, even, 0..rotary_dim. The exponents are
  // those of rotary_dim, the other pairs have frequency 0.
  int turned_dim = 0;

  // Pairs in each section of a multi-section RoPE (mrope), in order: empty, or 2..4 numbers >= 1
  // with the sum rotary_dim / 2; kInterleaved: 3. The frequencies do not depend on them: a pair of
  // section s takes the token's position number s.
  std::vector<int> mrope_sections;
  MropeLayout mrope_layout = MropeLayout::kSectioned;

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// The frequencies of a spec.
struct RopeFrequencies {
  std::vector<double> inv_freq;   // [rotary_dim / 2], radians per position
  double attention_factor = 1.0;  // multiplies cos and sin; 1 but for yarn and longrope
};

// Works out the frequencies, in double.
//   length: tokens the table must serve, >= 0; read by kDynamic and kLongrope alone (0: nothing is
//     stretched, and the short factors).
//     A table serves one length for as long as keys rotated with it are in use: a key that was
//     rotated under one length must not meet a query rotated under another.
// Formulas and their sources: docs/numerics.md.
// Errors: kInvalidArgument, naming the field, its value and what is allowed; also for fields that
//   are allowed one by one but give a frequency outside [1e-100, 1e100].
Result<RopeFrequencies> ComputeRopeFrequencies(const RopeSpec& spec, std::int64_t length = 0);

// A spec whose frequencies depend on the length has several tables. One sequence keeps one of them,
// chosen by the length it may reach, and keys of different tables must not meet: the choice belongs
// to whatever identifies a cached prefix.
//
// RopeTableFor: the number of the table for a sequence of up to `length` tokens. Equal numbers mean
//   equal tables. kLongrope: 0 (short factors) or 1 (long ones). kDynamic: the tokens beyond the
//   original length, 0 up to it. Others: 0.
// RopeTableLength: a length with that table, for ComputeRopeFrequencies.
// RopeTableCount: how many there are for lengths up to `max_length`; kDynamic may have very many.
// REQUIRES: a spec for which ComputeRopeFrequencies succeeds, lengths >= 0, and a number that
//   RopeTableFor gave.
std::int64_t RopeTableFor(const RopeSpec& spec, std::int64_t length);
std::int64_t RopeTableLength(const RopeSpec& spec, std::int64_t table);
std::int64_t RopeTableCount(const RopeSpec& spec, std::int64_t max_length);

// Which section each pair belongs to, [rotary_dim / 2]; all 0 where there are no sections.
// REQUIRES: a spec for which ComputeRopeFrequencies succeeds.
std::vector<int> MropePairSections(const RopeSpec& spec);

// What DeepSeek's MLA models multiply their softmax scale by, besides the attention factor on cos
// and sin: (0.1 * mscale_all_dim * ln(factor) + 1)^2 for yarn with an mscale_all_dim that is not 0,
// else 1. Other models with yarn leave their scale as it is.
double SoftmaxScaleFactor(const RopeSpec& spec);

// Fills rows [first, first + count) of a table: cos and sin of position * inv_freq, times the
// attention factor, worked out in double and rounded once to fp32. A row depends on its position
// and the frequencies alone, so a longer table begins with the rows of a shorter one.
//   cos, sin: [count, inv_freq.size()], row-major
// REQUIRES: first >= 0, count >= 0, first + count <= 2^53, both spans hold
//   count * inv_freq.size() elements or more.
void FillRopeTable(const RopeFrequencies& frequencies, std::int64_t first, std::int64_t count,
                   std::span<float> cos, std::span<float> sin);

}  // namespace lariat
