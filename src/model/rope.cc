// SPDX-License-Identifier: Apache-2.0
// RoPE frequencies and tables, in double throughout. docs/numerics.md has each formula and its
// source; the names here are those of the papers and of Hugging Face's configs.
#include "lariat/rope.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>

namespace lariat {
namespace {

constexpr int kMaxRotaryDim = 512;

// Frequencies outside this range serve no model, and position * frequency stays far from overflow
// within it.
constexpr double kMinFrequency = 1e-100;
constexpr double kMaxFrequency = 1e100;

// The shortest text that reads back as `value`.
template <class T>
std::string Text(T value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return {buffer, end};
}

template <class T>
Status Refuse(std::string_view field, T value, std::string_view allowed) {
  return InvalidArgument(std::string(field) + " is " + Text(value) +
                         "; allowed: " + std::string(allowed));
}

Status CheckAbove(std::string_view field, double value, double bound) {
  if (std::isfinite(value) && value > bound) return Status::Ok();
  return Refuse(field, value, "finite, > " + Text(bound));
}

Status CheckAtLeast(std::string_view field, double value, double bound) {
  if (std::isfinite(value) && value >= bound) return Status::Ok();
  return Refuse(field, value, "finite, >= " + Text(bound));
}

Status CheckLlama3(const RopeSpec& spec) {
  if (Status s = CheckAbove("low_freq_factor", spec.low_freq_factor, 0); !s.ok()) return s;
  if (std::isfinite(spec.high_freq_factor) && spec.high_freq_factor >= spec.low_freq_factor) {
    return Status::Ok();
  }
  return Refuse("high_freq_factor", spec.high_freq_factor,
                "finite, >= low_freq_factor, which is " + Text(spec.low_freq_factor));
}

Status CheckFactors(std::string_view field, const std::vector<double>& factors, int pairs) {
  if (factors.size() != static_cast<std::size_t>(pairs)) {
    return InvalidArgument(std::string(field) + " has " + Text(factors.size()) +
                           " entries; allowed: rotary_dim / 2, which is " + Text(pairs));
  }
  for (std::size_t i = 0; i < factors.size(); ++i) {
    Status s = CheckAbove(std::string(field) + "[" + Text(i) + "]", factors[i], 0);
    if (!s.ok()) return s;
  }
  return Status::Ok();
}

Status CheckLongrope(const RopeSpec& spec) {
  // The attention factor divides by ln(original).
  if (spec.original_max_position_embeddings < 2) {
    return Refuse("original_max_position_embeddings", spec.original_max_position_embeddings,
                  ">= 2 (type longrope requires it)");
  }
  const int pairs = spec.rotary_dim / 2;
  if (Status s = CheckFactors("short_factor", spec.short_factor, pairs); !s.ok()) return s;
  if (Status s = CheckFactors("long_factor", spec.long_factor, pairs); !s.ok()) return s;
  if (!spec.attention_factor) return Status::Ok();
  return CheckAbove("attention_factor", *spec.attention_factor, 0);
}

Status CheckProportional(const RopeSpec& spec) {
  const int turned = spec.turned_dim;
  if (turned >= 0 && turned <= spec.rotary_dim && turned % 2 == 0) return Status::Ok();
  return Refuse("turned_dim", turned,
                "an even number in 0..rotary_dim, which is " + Text(spec.rotary_dim));
}

Status CheckMrope(const RopeSpec& spec) {
  const std::vector<int>& sections = spec.mrope_sections;
  if (sections.empty()) return Status::Ok();
  const bool interleaved = spec.mrope_layout == MropeLayout::kInterleaved;
  if (spec.mrope_layout > MropeLayout::kInterleaved) {
    return Refuse("mrope_layout", static_cast<int>(spec.mrope_layout),
                  "0 (sectioned), 1 (interleaved)");
  }
  if (sections.size() < 2 || sections.size() > 4 || (interleaved && sections.size() != 3)) {
    return InvalidArgument("mrope_sections has " + Text(sections.size()) +
                           " entries; allowed: " + (interleaved ? "3" : "2..4"));
  }
  const int pairs = spec.rotary_dim / 2;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (sections[i] < 1) return Refuse("mrope_sections[" + Text(i) + "]", sections[i], ">= 1");
    sum += sections[i];
  }
  if (sum != pairs) {
    return Refuse("mrope_sections' sum", sum, "rotary_dim / 2, which is " + Text(pairs));
  }
  // The last pair of section s is 3 * (n - 1) + s.
  for (int s = 1; interleaved && s < 3; ++s) {
    const std::int64_t n = sections[static_cast<std::size_t>(s)];
    if (3 * (n - 1) + s < pairs) continue;
    return Refuse("mrope_sections[" + Text(s) + "]", n,
                  "every third pair of " + Text(pairs) + ", from pair " + Text(s) + " on");
  }
  return Status::Ok();
}

Status CheckYarn(const RopeSpec& spec) {
  // The correction range divides by ln(theta).
  if (Status s = CheckAbove("theta", spec.theta, 1); !s.ok()) return s;
  if (Status s = CheckAbove("beta_slow", spec.beta_slow, 0); !s.ok()) return s;
  if (!std::isfinite(spec.beta_fast) || spec.beta_fast < spec.beta_slow) {
    return Refuse("beta_fast", spec.beta_fast,
                  "finite, >= beta_slow, which is " + Text(spec.beta_slow));
  }
  if (spec.attention_factor) {
    if (Status s = CheckAbove("attention_factor", *spec.attention_factor, 0); !s.ok()) return s;
  }
  if (spec.mscale) {
    if (Status s = CheckAtLeast("mscale", *spec.mscale, 0); !s.ok()) return s;
  }
  if (spec.mscale_all_dim) return CheckAtLeast("mscale_all_dim", *spec.mscale_all_dim, 0);
  return Status::Ok();
}

bool ReadsLength(const RopeSpec& spec) {
  return spec.type == RopeType::kDynamic || spec.type == RopeType::kLongrope;
}

Status CheckSpec(const RopeSpec& spec, std::int64_t length) {
  if (spec.type > RopeType::kProportional) {
    return Refuse("type", static_cast<int>(spec.type),
                  "0 (default), 1 (linear), 2 (dynamic), 3 (yarn), 4 (llama3), 5 (longrope), "
                  "6 (proportional)");
  }
  if (spec.style > RopeStyle::kInterleavedToHalf) {
    return Refuse("style", static_cast<int>(spec.style),
                  "0 (interleaved), 1 (half), 2 (interleaved to half)");
  }
  if (spec.rotary_dim < 2 || spec.rotary_dim > kMaxRotaryDim || spec.rotary_dim % 2 != 0) {
    return Refuse("rotary_dim", spec.rotary_dim, "an even number in 2.." + Text(kMaxRotaryDim));
  }
  if (Status s = CheckAbove("theta", spec.theta, 0); !s.ok()) return s;
  if (Status s = CheckMrope(spec); !s.ok()) return s;
  if (spec.type == RopeType::kDefault) return Status::Ok();

  if (Status s = CheckAtLeast("factor", spec.factor, 1); !s.ok()) return s;
  if (spec.type == RopeType::kLinear) return Status::Ok();
  if (spec.type == RopeType::kProportional) return CheckProportional(spec);

  if (ReadsLength(spec) && length < 0) return Refuse("length", length, ">= 0");
  if (spec.type == RopeType::kLongrope) return CheckLongrope(spec);
  if (spec.original_max_position_embeddings < 1) {
    return Refuse("original_max_position_embeddings", spec.original_max_position_embeddings,
                  ">= 1 (type " + std::string(RopeTypeName(spec.type)) + " requires it)");
  }
  if (spec.type == RopeType::kLlama3) return CheckLlama3(spec);
  if (spec.type == RopeType::kYarn) return CheckYarn(spec);
  return Status::Ok();
}

// theta^(-2i / rotary_dim)
std::vector<double> PlainFrequencies(int rotary_dim, double theta) {
  std::vector<double> inv_freq(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = 1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / rotary_dim);
  }
  return inv_freq;
}

// The base grows with the length, so that the slowest pair is stretched as far as `factor` asks
// and the fastest hardly at all. The published factor * length / original - (factor - 1) is written
// so that nothing cancels.
double DynamicTheta(const RopeSpec& spec, std::int64_t length) {
  // A single pair has frequency 1 whatever the base, and the exponent below would divide by 0.
  if (spec.rotary_dim == 2 || length <= spec.original_max_position_embeddings) return spec.theta;
  const double original = static_cast<double>(spec.original_max_position_embeddings);
  const double beyond = static_cast<double>(length - spec.original_max_position_embeddings);
  const double stretch = 1.0 + spec.factor * beyond / original;
  return spec.theta * std::pow(stretch, spec.rotary_dim / (spec.rotary_dim - 2.0));
}

// The (fractional) pair index that turns `turns` times within the original length.
double YarnPairOfTurns(const RopeSpec& spec, double turns) {
  const double original = static_cast<double>(spec.original_max_position_embeddings);
  return spec.rotary_dim * std::log(original / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(spec.theta));
}

void StretchYarn(const RopeSpec& spec, std::vector<double>& inv_freq) {
  double low = YarnPairOfTurns(spec, spec.beta_fast);
  double high = YarnPairOfTurns(spec, spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  // The upper limit is rotary_dim - 1, not the last pair: the published rule, and models were
  // trained with it.
  low = std::max(low, 0.0);
  high = std::min(high, spec.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / spec.factor * ramp + inv_freq[i] * (1.0 - ramp);
  }
}

// m(s) of docs/numerics.md.
double YarnMagnitude(const RopeSpec& spec, double scale) {
  return 0.1 * scale * std::log(spec.factor) + 1.0;
}

double YarnAttentionFactor(const RopeSpec& spec) {
  if (spec.attention_factor) return *spec.attention_factor;
  const double mscale = spec.mscale.value_or(0.0);
  const double mscale_all_dim = spec.mscale_all_dim.value_or(0.0);
  if (mscale == 0.0 || mscale_all_dim == 0.0) {
    return YarnMagnitude(spec, 1.0);
  }
  return YarnMagnitude(spec, mscale) / YarnMagnitude(spec, mscale_all_dim);
}

double LongropeAttentionFactor(const RopeSpec& spec) {
  if (spec.attention_factor) return *spec.attention_factor;
  const double original = static_cast<double>(spec.original_max_position_embeddings);
  return std::sqrt(1.0 + std::log(spec.factor) / std::log(original));
}

void StretchLongrope(const RopeSpec& spec, std::int64_t length, std::vector<double>& inv_freq) {
  const bool is_long = length > spec.original_max_position_embeddings;
  const std::vector<double>& factors = is_long ? spec.long_factor : spec.short_factor;
  for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= factors[i];
}

// Pairs past turned_dim stand still.
void StretchProportional(const RopeSpec& spec, std::vector<double>& inv_freq) {
  const auto turned = static_cast<std::size_t>(spec.turned_dim / 2);
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = i < turned ? inv_freq[i] / spec.factor : 0.0;
  }
}

void StretchLlama3(const RopeSpec& spec, std::vector<double>& inv_freq) {
  const double original = static_cast<double>(spec.original_max_position_embeddings);
  for (double& frequency : inv_freq) {
    const double turns = original * frequency / (2.0 * std::numbers::pi);
    // Not only beyond it: at it the blend is the same frequency, and where both bounds are equal
    // there is no blend, but 0 / 0.
    if (turns >= spec.high_freq_factor) continue;
    if (turns < spec.low_freq_factor) {
      frequency /= spec.factor;
      continue;
    }
    const double smooth =
        (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
    frequency = (1.0 - smooth) * frequency / spec.factor + smooth * frequency;
  }
}

}  // namespace

std::string_view RopeTypeName(RopeType type) {
  switch (type) {
    case RopeType::kDefault: return "default";
    case RopeType::kLinear: return "linear";
    case RopeType::kDynamic: return "dynamic";
    case RopeType::kYarn: return "yarn";
    case RopeType::kLlama3: return "llama3";
    case RopeType::kLongrope: return "longrope";
    case RopeType::kProportional: return "proportional";
  }
  return "unknown";
}

Result<RopeFrequencies> ComputeRopeFrequencies(const RopeSpec& spec, std::int64_t length) {
  if (Status s = CheckSpec(spec, length); !s.ok()) return s;
  const bool dynamic = spec.type == RopeType::kDynamic;
  const double theta = dynamic ? DynamicTheta(spec, length) : spec.theta;

  RopeFrequencies out;
  out.inv_freq = PlainFrequencies(spec.rotary_dim, theta);
  if (spec.type == RopeType::kLinear) {
    for (double& frequency : out.inv_freq) frequency /= spec.factor;
  } else if (spec.type == RopeType::kYarn) {
    StretchYarn(spec, out.inv_freq);
    out.attention_factor = YarnAttentionFactor(spec);
  } else if (spec.type == RopeType::kLlama3) {
    StretchLlama3(spec, out.inv_freq);
  } else if (spec.type == RopeType::kLongrope) {
    StretchLongrope(spec, length, out.inv_freq);
    out.attention_factor = LongropeAttentionFactor(spec);
  } else if (spec.type == RopeType::kProportional) {
    StretchProportional(spec, out.inv_freq);
  }

  const bool may_stand = spec.type == RopeType::kProportional;
  for (const double frequency : out.inv_freq) {
    if (may_stand && frequency == 0.0) continue;
    if (frequency >= kMinFrequency && frequency <= kMaxFrequency) continue;
    return InvalidArgument("theta " + Text(spec.theta) + " with factor " + Text(spec.factor) +
                           " gives the frequency " + Text(frequency) +
                           "; allowed: " + Text(kMinFrequency) + ".." + Text(kMaxFrequency));
  }
  if (!std::isfinite(out.attention_factor) || out.attention_factor <= 0) {
    return Refuse("attention factor worked out from mscale and mscale_all_dim",
                  out.attention_factor, "finite, > 0");
  }
  return out;
}

std::int64_t RopeTableFor(const RopeSpec& spec, std::int64_t length) {
  if (!ReadsLength(spec) || length <= spec.original_max_position_embeddings) return 0;
  if (spec.type == RopeType::kDynamic) return length - spec.original_max_position_embeddings;
  return spec.short_factor == spec.long_factor ? 0 : 1;
}

std::int64_t RopeTableLength(const RopeSpec& spec, std::int64_t table) {
  return table == 0 ? 0 : spec.original_max_position_embeddings + table;
}

std::int64_t RopeTableCount(const RopeSpec& spec, std::int64_t max_length) {
  // Numbers grow with the length, without gaps.
  return RopeTableFor(spec, max_length) + 1;
}

std::vector<int> MropePairSections(const RopeSpec& spec) {
  std::vector<int> section_of(static_cast<std::size_t>(spec.rotary_dim / 2), 0);
  const bool interleaved = spec.mrope_layout == MropeLayout::kInterleaved;
  std::size_t first = 0;
  for (std::size_t s = 0; s < spec.mrope_sections.size(); ++s) {
    const auto pairs = static_cast<std::size_t>(spec.mrope_sections[s]);
    if (interleaved && s == 0) continue;  // takes what the others leave
    for (std::size_t i = 0; i < pairs; ++i) {
      section_of[interleaved ? 3 * i + s : first + i] = static_cast<int>(s);
    }
    first += pairs;
  }
  return section_of;
}

double SoftmaxScaleFactor(const RopeSpec& spec) {
  if (spec.type != RopeType::kYarn || spec.mscale_all_dim.value_or(0.0) == 0.0) return 1.0;
  const double magnitude = YarnMagnitude(spec, *spec.mscale_all_dim);
  return magnitude * magnitude;
}

void FillRopeTable(const RopeFrequencies& frequencies, std::int64_t first, std::int64_t count,
                   std::span<float> cos, std::span<float> sin) {
  const std::size_t pairs = frequencies.inv_freq.size();
  assert(first >= 0 && count >= 0);
  assert(cos.size() >= static_cast<std::size_t>(count) * pairs);
  assert(sin.size() >= static_cast<std::size_t>(count) * pairs);
  for (std::int64_t row = 0; row < count; ++row) {
    const double position = static_cast<double>(first + row);
    float* cos_row = cos.data() + static_cast<std::size_t>(row) * pairs;
    float* sin_row = sin.data() + static_cast<std::size_t>(row) * pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = position * frequencies.inv_freq[i];
      cos_row[i] = static_cast<float>(std::cos(angle) * frequencies.attention_factor);
      sin_row[i] = static_cast<float>(std::sin(angle) * frequencies.attention_factor);
    }
  }
}

}  // namespace lariat
