// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/rope.h"
#include "lariat/status.h"
#include "lariat/types.h"

// Keys and values that are a function of (token ids so far, layer, K or V, element) alone. They are
// made once as the inputs of an append, and once more, from the token ids, as what a cache must
// hold.
//
//   row seed = Mix(chain, layer, part)     chain: over the ids of tokens 0..t
//   word i   = splitmix64(row seed + i)    64 random bits: four 16-bit or two 32-bit elements
//   element  = random sign and mantissa, exponent one of eight: +-[2^-8, 1)
//
// Elements are made in the storage type's own bits, so no rounding stands between the two uses, and
// every mantissa bit counts. Never zero, subnormal, infinite or NaN.

namespace lariat::session {

// The chain of no tokens.
inline constexpr std::uint64_t kChainStart = 0x6c61726961740001U;

// splitmix64's finalizer: a bijection in which every bit reaches every bit.
constexpr std::uint64_t MixBits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// The chain with one more token; tokens may be negative.
constexpr std::uint64_t ChainNext(std::uint64_t chain, TokenId token) {
  return MixBits(chain + 0x9e3779b97f4a7c15U + static_cast<std::uint32_t>(token));
}

// chains[i] becomes the chain up to and with tokens[i]; `chain` is that of what comes before.
// Returns the last one, or `chain` where there are none.
// REQUIRES: chains holds tokens.size() elements.
std::uint64_t ChainTokens(std::uint64_t chain, std::span<const TokenId> tokens,
                          std::span<std::uint64_t> chains);

enum class KvPart : std::uint8_t { kKey, kValue };

// Fills one row per chain: out[chains.size()][width] of dtype, contiguous.
// REQUIRES: dtype is kFP32, kFP16 or kBF16; width >= 0; out holds chains.size() * width elements
// and
//   is aligned for dtype; layer >= 0.
void FillSyntheticRows(std::span<const std::uint64_t> chains, int layer, KvPart part,
                       std::int64_t width, DType dtype, void* out);

// The rows of one RoPE table, on the host, made as far as they are asked for.
// Thread rules: externally synchronised.
class RopeRows {
 public:
  RopeRows() = default;  // no RoPE: rotary_dim 0

  // length: what a cache makes its table for (RopeType::kDynamic reads it).
  // Errors: those of ComputeRopeFrequencies.
  static Result<RopeRows> Make(const RopeSpec& spec, std::int64_t length);

  int rotary_dim() const { return static_cast<int>(frequencies_.inv_freq.size()) * 2; }
  RopeStyle style() const { return style_; }

  // Makes rows [0, count); a few more are made in reserve.
  void Reserve(std::int64_t count);
  // Row `position`, rotary_dim / 2 elements.
  // REQUIRES: 0 <= position < the greatest count reserved.
  const float* cos(std::int64_t position) const { return cos_.data() + Offset(position); }
  const float* sin(std::int64_t position) const { return sin_.data() + Offset(position); }

 private:
  std::size_t Offset(std::int64_t position) const {
    return static_cast<std::size_t>(position) * frequencies_.inv_freq.size();
  }

  RopeFrequencies frequencies_;
  RopeStyle style_ = RopeStyle::kHalf;
  std::int64_t count_ = 0;
  std::vector<float> cos_, sin_;
};

// Turns key rows in place as an append does: row r stands at position first + r; of each head the
// first rotary_dim elements turn (kInterleavedToHalf: and move), in fp32 with each product and sum
// rounded, then one rounding to dtype; the others stay as they are. Without RoPE nothing changes.
//   rows: [count, heads, head_dim] of dtype, contiguous
// REQUIRES: rope holds rows [first, first + count); rotary_dim <= head_dim; dtype as above.
void RotateRows(const RopeRows& rope, std::int64_t first, std::int64_t count, int heads,
                int head_dim, DType dtype, void* rows);

// What a cache must hold for these chains: FillSyntheticRows, and for keys RotateRows with the
// first row at position `first`. heads * head_dim elements a row.
void FillExpectedRows(std::span<const std::uint64_t> chains, int layer, KvPart part,
                      const RopeRows& rope, std::int64_t first, int heads, int head_dim,
                      DType dtype, void* out);

// --- Latent rows of MLA: a row of K's definition, `rank` elements of latent and then those of
// k_pe.

// The weight of a layer's RMSNorm: rank elements of dtype, of the layer alone.
void FillNormWeight(int layer, int rank, DType dtype, void* out);

struct LatentNorm {
  int rank = 0;                  // >= 1
  const void* weight = nullptr;  // [rank] of the rows' dtype
  float eps = 0.0F;
};

// What a cache must hold for these chains: FillSyntheticRows of rank + rope_dim elements, then the
// latent normed in the order that docs/numerics.md fixes and k_pe turned as RotateRows does, each
// operation rounded in fp32 and the result once to dtype. rank + rope_dim elements a row.
// REQUIRES: as FillExpectedRows; rotary_dim <= rope_dim.
void FillExpectedLatents(std::span<const std::uint64_t> chains, int layer, const RopeRows& rope,
                         std::int64_t first, const LatentNorm& norm, int rope_dim, DType dtype,
                         void* out);

// --- roundings, to nearest even; NaN becomes the canonical quiet NaN. Without branches, so that
// loops over them vectorise.

inline std::uint16_t ToBF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // Half of the last kept place, less one where that place is even: ties go to even.
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded);
}

inline float FromBF16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t ToFP16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Below 2^-14 the places of fp16 are those of 0.5 in fp32: the addition rounds to them.
  const float moved = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(moved) - 0x3f000000U;
  const std::uint32_t rebiased = magnitude - (112U << 23);
  const std::uint32_t normal = (rebiased + 0xfffU + ((rebiased >> 13) & 1U)) >> 13;
  std::uint32_t result = magnitude < 0x38800000U ? small : normal;
  result = magnitude >= 0x477ff000U ? 0x7c00U : result;  // 65520 and up round to infinity
  result |= sign;
  return static_cast<std::uint16_t>(magnitude > 0x7f800000U ? 0x7e00U : result);
}

inline float FromFP16(std::uint16_t bits) {
  const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  // As an fp32 of the smallest exponents, 2^112 times too small; the product is exact, and brings
  // subnormals to their value.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t special = 0x7f800000U | (magnitude << 13);  // infinity, NaN
  return std::bit_cast<float>(
      sign | (magnitude >= 0x7c00U ? special : std::bit_cast<std::uint32_t>(scaled)));
}

}  // namespace lariat::session
