// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstring>
#include <span>

#include "lariat/types.h"

namespace lariat {

// Folds the 128-bit product of two words: one multiplication mixes all their bits.
inline std::uint64_t MixWords(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// Hashes token ids, for lookups within this process alone: whoever relies on equality compares the
// tokens too.
inline std::uint64_t HashTokens(std::uint64_t seed, std::span<const TokenId> tokens) {
  constexpr std::uint64_t kOdd0 = 0x9E3779B97F4A7C15ULL;  // golden ratio
  constexpr std::uint64_t kOdd1 = 0xC2B2AE3D27D4EB4FULL;
  std::uint64_t h = MixWords(seed ^ kOdd0, kOdd1 ^ tokens.size());
  const TokenId* p = tokens.data();
  std::size_t left = tokens.size();
  for (; left >= 2; left -= 2, p += 2) {
    std::uint64_t pair;
    std::memcpy(&pair, p, sizeof(pair));
    h = MixWords(h ^ pair, kOdd0 + pair);
  }
  if (left != 0) h = MixWords(h ^ static_cast<std::uint32_t>(*p), kOdd1);
  return h;
}

}  // namespace lariat
