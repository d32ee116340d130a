// SPDX-License-Identifier: Apache-2.0
// RoPE as its papers write it, by wavelengths and in long double: obviously right rather than fast,
// and without a line of src/.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace lariat::reference {

using Real = long double;

inline const Real kTwoPi = 2 * std::acos(Real{-1});

// Positions after which pair i has turned once.
inline Real Wavelength(int i, int rotary_dim, Real theta) {
  return kTwoPi * std::pow(theta, Real(2 * i) / rotary_dim);
}

inline std::vector<Real> FrequenciesOf(const std::vector<Real>& wavelengths) {
  std::vector<Real> frequencies;
  for (const Real w : wavelengths) frequencies.push_back(kTwoPi / w);
  return frequencies;
}

inline std::vector<Real> DefaultFrequencies(int rotary_dim, Real theta) {
  std::vector<Real> waves;
  for (int i = 0; i < rotary_dim / 2; ++i) waves.push_back(Wavelength(i, rotary_dim, theta));
  return FrequenciesOf(waves);
}

// Position interpolation: position p of the long context is position p / factor of the short one.
inline std::vector<Real> LinearFrequencies(int rotary_dim, Real theta, Real factor) {
  std::vector<Real> waves;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    waves.push_back(factor * Wavelength(i, rotary_dim, theta));
  }
  return FrequenciesOf(waves);
}

// Dynamic NTK: another base once the length passes the original one.
inline std::vector<Real> DynamicFrequencies(int rotary_dim, Real theta, Real factor, Real original,
                                            Real length) {
  if (length < original) length = original;
  const Real stretch = factor * length / original - (factor - 1);
  const Real exponent = rotary_dim == 2 ? Real{1} : Real(rotary_dim) / (rotary_dim - 2);
  return DefaultFrequencies(rotary_dim, theta * std::pow(stretch, exponent));
}

// Llama 3: short waves stay, long ones are stretched, a line in the number of turns between.
inline std::vector<Real> Llama3Frequencies(int rotary_dim, Real theta, Real factor, Real low,
                                           Real high, Real original) {
  std::vector<Real> frequencies;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    const Real wave = Wavelength(i, rotary_dim, theta);
    if (wave < original / high) {
      frequencies.push_back(kTwoPi / wave);
    } else if (wave > original / low) {
      frequencies.push_back(kTwoPi / (factor * wave));
    } else {
      const Real kept = (original / wave - low) / (high - low);
      frequencies.push_back(kTwoPi / wave * (kept + (1 - kept) / factor));
    }
  }
  return frequencies;
}

// YaRN's correction range: the pair indices that turn beta_fast and beta_slow times within the
// original length.
struct YarnRange {
  Real low = 0;
  Real high = 0;
};

inline YarnRange YarnRangeOf(int rotary_dim, Real theta, Real original, Real beta_fast,
                             Real beta_slow, bool truncate) {
  // Wavelength(i) = original / turns, solved for i.
  const auto pair_of = [&](Real turns) {
    return Real(rotary_dim) / 2 * (std::log(original / turns / kTwoPi) / std::log(theta));
  };
  YarnRange range{pair_of(beta_fast), pair_of(beta_slow)};
  if (truncate) range = {std::floor(range.low), std::ceil(range.high)};
  if (range.low < 0) range.low = 0;
  if (range.high > rotary_dim - 1) range.high = rotary_dim - 1;
  if (range.low == range.high) range.high += Real{0.001};
  return range;
}

inline std::vector<Real> YarnFrequencies(int rotary_dim, Real theta, Real factor,
                                         const YarnRange& range) {
  std::vector<Real> frequencies;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    Real stretched = (i - range.low) / (range.high - range.low);
    if (stretched < 0) stretched = 0;
    if (stretched > 1) stretched = 1;
    const Real frequency = kTwoPi / Wavelength(i, rotary_dim, theta);
    frequencies.push_back(frequency * ((1 - stretched) + stretched / factor));
  }
  return frequencies;
}

// YaRN's magnitude of cos and sin; a scale of 0 stands for one that is not given.
inline Real YarnAttention(Real factor, Real mscale, Real mscale_all_dim) {
  const auto magnitude = [&](Real scale) {
    return factor <= 1 ? Real{1} : 1 + scale * std::log(factor) / 10;
  };
  if (mscale == 0 || mscale_all_dim == 0) return magnitude(1);
  return magnitude(mscale) / magnitude(mscale_all_dim);
}

// Turns the first 2 * pairs elements of a row; the rest stays. cos and sin may hold any type.
template <class Table>
std::vector<double> RotateRow(const std::vector<double>& row, const Table* cos, const Table* sin,
                              int pairs, bool interleaved) {
  std::vector<double> out = row;
  for (int i = 0; i < pairs; ++i) {
    const std::size_t first = static_cast<std::size_t>(interleaved ? 2 * i : i);
    const std::size_t second = static_cast<std::size_t>(interleaved ? 2 * i + 1 : i + pairs);
    const Real x = row[first];
    const Real y = row[second];
    out[first] = static_cast<double>(x * cos[i] - y * sin[i]);
    out[second] = static_cast<double>(x * sin[i] + y * cos[i]);
  }
  return out;
}

}  // namespace lariat::reference
