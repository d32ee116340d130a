// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "lariat/rope.h"
#include "lariat/types.h"
#include "session/recording.h"

// How far stored elements may be from recorded ones: docs/numerics.md, "Replayed recordings".

namespace lariat::session {

// How far rounding to a format moves a number: relative * |number| + absolute at most.
struct RoundingUnits {
  double relative = 0;
  double absolute = 0;  // of a subnormal number
};
RoundingUnits UnitsOf(DType dtype);

constexpr double Square(double x) { return x * x; }

// Of fp32, in which recordings are kept and sums are made.
inline constexpr double kSingle = 0x1p-24;

// An error that is the sum of many independent ones of single[i] at most is taken to be within
// kDeviations times the root of the sum of their squares.
inline constexpr double kDeviations = 6;

// Pair `pair` of a head: which elements it is read from and written to.
struct RopePair {
  std::int64_t in_x, in_y, out_x, out_y;
};
RopePair PairOf(const RopeSpec& rope, std::int64_t pair);

// rope: null where nothing turns.
double AttentionFactorOf(const RopeSpec* rope, std::int64_t tokens);

// How far a model's own cos and sin, from angles in fp32, may put a key off at a position, as a
// fraction of its row's RMS.
double TurnedShare(std::int64_t position);

// The root mean square of `size` numbers.
double RootMeanSquare(const double* values, std::int64_t size);

// Bounds of part.cached, for rows of dim elements that go in rounded to dtype, whole or turned.
// rope: null where nothing turns (V, and K without RoPE)
std::vector<double> BoundsOf(const RecordedPart& part, const RecordedLayer& layer,
                             const Recording& recording, std::int64_t dim, const RopeSpec* rope,
                             DType dtype);

// What makes an MLA layer's rows.
enum class LatentSource : std::uint8_t {
  kHidden,  // hidden states and weights, in the cache's type
  kRows     // given rows, in fp32
};

// Bounds of an MLA layer's latents, [B, T, rank], and of its turned k_pe, [B, T, rope].
struct LatentBounds {
  std::vector<double> latent, k_pe;
};
LatentBounds LatentBoundsOf(const RecordedLayer& layer, const Recording& recording,
                            LatentSource source, DType dtype);

}  // namespace lariat::session
