// SPDX-License-Identifier: Apache-2.0
// Latent rows made from token ids, as a cache must hold them, against the reference of MlaAppend.
#include <cstring>
#include <vector>

#include "reference/mla_append_ref.h"
#include "session/synthetic_kv.h"
#include "support/compare.h"

namespace lariat {
namespace {

using session::KvPart;
using session::LatentNorm;
using session::RopeRows;

constexpr std::int64_t kFirst = 70;
constexpr std::int64_t kRows = 3;
constexpr int kLayer = 4;
constexpr float kEps = 1e-3F;  // large enough to be seen beside the means

struct LatentShape {
  int rank = 1, rope_dim = 0, rotary_dim = 0;
  RopeStyle style = RopeStyle::kInterleaved;
};

std::vector<std::uint64_t> Chains() {
  const std::vector<TokenId> tokens = {5, 6, 7};
  std::vector<std::uint64_t> chains(tokens.size());
  session::ChainTokens(session::kChainStart, tokens, chains);
  return chains;
}

template <class F>
std::vector<typename F::Bits> NormWeight(int layer, int rank) {
  std::vector<typename F::Bits> weight(static_cast<std::size_t>(rank));
  session::FillNormWeight(layer, rank, F::kDType, weight.data());
  return weight;
}

RopeRows MakeRope(const LatentShape& shape) {
  if (shape.rotary_dim == 0) return {};
  RopeSpec spec;
  spec.style = shape.style;
  spec.rotary_dim = shape.rotary_dim;
  Result<RopeRows> rope = RopeRows::Make(spec, 0);
  REQUIRE(rope.ok());
  rope->Reserve(kFirst + kRows);
  return *std::move(rope);
}

// The rows as they come out of a down-projection, then what the reference makes of them.
template <class F>
std::vector<reference::Expected<F>> ExpectedRows(const LatentShape& shape, const RopeRows& rope) {
  reference::MlaAppendCase<F, F> c;
  const std::int64_t width = shape.rank + shape.rope_dim;
  std::vector<typename F::Bits> rows(static_cast<std::size_t>(kRows * width));
  session::FillSyntheticRows(Chains(), kLayer, KvPart::kKey, width, F::kDType, rows.data());
  c.rank = shape.rank;
  c.rope_dim = shape.rope_dim;
  c.rotary_dim = shape.rotary_dim;
  c.style = shape.style;
  c.eps = kEps;
  c.c_kv_stride = c.k_pe_stride = width;
  c.c_kv = rows;
  c.k_pe.assign(rows.begin() + shape.rank, rows.end());
  c.norm_weight = NormWeight<F>(kLayer, shape.rank);
  std::vector<reference::Expected<F>> expected;
  for (std::int64_t t = 0; t < kRows; ++t) {
    c.positions.push_back(static_cast<std::int32_t>(t));
    for (int i = 0; i < shape.rotary_dim / 2; ++i) {
      c.cos.push_back(std::bit_cast<std::uint32_t>(rope.cos(kFirst + t)[i]));
      c.sin.push_back(std::bit_cast<std::uint32_t>(rope.sin(kFirst + t)[i]));
    }
  }
  for (std::int64_t t = 0; t < kRows; ++t) {
    const auto row = reference::MlaRow(c, t);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  return expected;
}

template <class F>
void CheckLatents(const LatentShape& shape) {
  INFO(DTypeName(F::kDType) << " rank " << shape.rank << " rope_dim " << shape.rope_dim
                            << " rotary_dim " << shape.rotary_dim << " style "
                            << static_cast<int>(shape.style));
  const RopeRows rope = MakeRope(shape);
  const auto weight = NormWeight<F>(kLayer, shape.rank);
  constexpr std::size_t kGuard = 16;
  const auto elements = static_cast<std::size_t>(kRows * (shape.rank + shape.rope_dim));
  const auto poison = static_cast<typename F::Bits>(0xA5A5A5A5U);
  std::vector<typename F::Bits> got(elements + kGuard, poison);
  session::FillExpectedLatents(Chains(), kLayer, rope, kFirst,
                               LatentNorm{.rank = shape.rank, .weight = weight.data(), .eps = kEps},
                               shape.rope_dim, F::kDType, got.data());
  for (std::size_t i = elements; i < got.size(); ++i) CHECK(got[i] == poison);
  got.resize(elements);
  testing::CheckElements<F>("rows", ExpectedRows<F>(shape, rope), got);
}

TEST_CASE("expected latents are normed and turned as the contract says, bit for bit") {
  for (const RopeStyle style :
       {RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf}) {
    for (const LatentShape& shape :
         {LatentShape{512, 64, 64, style}, LatentShape{1, 2, 2, style}, LatentShape{7, 6, 4, style},
          LatentShape{8, 5, 2, style}, LatentShape{9, 0, 0, style}, LatentShape{255, 3, 0, style},
          LatentShape{256, 32, 32, style}, LatentShape{265, 64, 16, style},
          LatentShape{1536, 128, 128, style}}) {
      CheckLatents<reference::B16>(shape);
      CheckLatents<reference::F16>(shape);
      CheckLatents<reference::F32>(shape);
    }
  }
}

TEST_CASE("a norm's weight is its layer's, whatever the run, and changes every element") {
  const auto first = NormWeight<reference::F32>(0, 64);
  CHECK(NormWeight<reference::F32>(0, 64) == first);
  const auto other = NormWeight<reference::F32>(1, 64);
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i] != other[i]);
}

}  // namespace
}  // namespace lariat
