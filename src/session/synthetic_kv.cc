// SPDX-License-Identifier: Apache-2.0
#include "session/synthetic_kv.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

namespace lariat::session {
namespace {

static_assert(std::endian::native == std::endian::little,
              "words are stored whole, so element 0 must be the low bits");

constexpr std::uint64_t kWordStep = 0x9e3779b97f4a7c15U;
constexpr std::uint64_t kNormChain = 0x6c61726961740002U;  // of no tokens that there are

std::uint64_t RowSeed(std::uint64_t chain, int layer, KvPart part) {
  const std::uint64_t place = static_cast<std::uint64_t>(layer) * 2 + (part == KvPart::kValue);
  return MixBits(chain ^ MixBits((place + 1) * kWordStep));
}

// `pattern` in each lane of a word.
constexpr std::uint64_t Lanes16(std::uint64_t pattern) { return pattern * 0x0001000100010001U; }
constexpr std::uint64_t Lanes32(std::uint64_t pattern) { return pattern * 0x0000000100000001U; }

// How random bits become elements of a type, all lanes of a word at once: `keep` has the sign and
// the mantissa; `exponent` the three exponent bits left random, which move up by `bias` into the
// exponents of [2^-8, 1). No lane carries into the next.
struct ElementBits {
  std::size_t per_word;
  std::uint64_t keep;
  std::uint64_t exponent;
  std::uint64_t bias;

  constexpr std::uint64_t operator()(std::uint64_t random) const {
    return (random & keep) | ((random & exponent) + bias);
  }
};

constexpr ElementBits kBF16Bits = {4, Lanes16(0x807f), Lanes16(0x0380), Lanes16(119U << 7)};
constexpr ElementBits kFP16Bits = {4, Lanes16(0x83ff), Lanes16(0x1c00), Lanes16(7U << 10)};
constexpr ElementBits kFP32Bits = {2, Lanes32(0x807fffff), Lanes32(0x03800000),
                                   Lanes32(std::uint64_t{119} << 23)};

constexpr ElementBits BitsOf(DType dtype) {
  if (dtype == DType::kBF16) return kBF16Bits;
  return dtype == DType::kFP16 ? kFP16Bits : kFP32Bits;
}

// Four words of the storage each turn, which the compiler interleaves: they depend on the counter
// alone.
void FillRow(std::uint64_t seed, const ElementBits bits, std::size_t bytes, std::byte* out) {
  const std::size_t words = bytes / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = bits(MixBits(seed + (i + 1) * kWordStep));
    std::memcpy(out + i * sizeof(word), &word, sizeof(word));
  }
  const std::size_t tail = bytes % sizeof(std::uint64_t);
  if (tail == 0) return;
  const std::uint64_t word = bits(MixBits(seed + (words + 1) * kWordStep));
  std::memcpy(out + words * sizeof(word), &word, tail);
}

// Element access by type: the value in fp32, and back with one rounding.
struct FP32Access {
  using Bits = float;
  static float Get(Bits x) { return x; }
  static Bits Put(float x) { return x; }
};
struct BF16Access {
  using Bits = std::uint16_t;
  static float Get(Bits x) { return FromBF16(x); }
  static Bits Put(float x) { return ToBF16(x); }
};
struct FP16Access {
  using Bits = std::uint16_t;
  static float Get(Bits x) { return FromFP16(x); }
  static Bits Put(float x) { return ToFP16(x); }
};

// One head: unpacked, turned, packed, each a plain loop that the compiler vectorises. The build
// forbids contraction, so each line rounds as often as it has operators. kFrom, kTo: where pairs
// stand before and after, 2 for (2i, 2i + 1), 1 for (i, i + pairs).
template <class Access, int kFrom, int kTo>
void RotatePairs(const float* cos, const float* sin, int pairs, typename Access::Bits* head) {
  constexpr int kMostPairs = 256;  // rotary_dim is 512 at most
  std::array<float, kMostPairs> x, y;
  const auto partner = [&](int step) { return head + (step == 2 ? 1 : pairs); };
  for (int i = 0; i < pairs; ++i) x[i] = Access::Get(head[i * kFrom]);
  for (int i = 0; i < pairs; ++i) y[i] = Access::Get(partner(kFrom)[i * kFrom]);
  for (int i = 0; i < pairs; ++i) {
    const float low = x[i] * cos[i] - y[i] * sin[i];
    const float high = x[i] * sin[i] + y[i] * cos[i];
    x[i] = low;
    y[i] = high;
  }
  for (int i = 0; i < pairs; ++i) head[i * kTo] = Access::Put(x[i]);
  for (int i = 0; i < pairs; ++i) partner(kTo)[i * kTo] = Access::Put(y[i]);
}

template <class Access>
void RotateHead(const RopeRows& rope, std::int64_t position, typename Access::Bits* head) {
  const float* cos = rope.cos(position);
  const float* sin = rope.sin(position);
  const int pairs = rope.rotary_dim() / 2;
  switch (rope.style()) {
    case RopeStyle::kInterleaved: return RotatePairs<Access, 2, 2>(cos, sin, pairs, head);
    case RopeStyle::kHalf: return RotatePairs<Access, 1, 1>(cos, sin, pairs, head);
    case RopeStyle::kInterleavedToHalf: return RotatePairs<Access, 2, 1>(cos, sin, pairs, head);
  }
}

template <class Access>
void RotateAll(const RopeRows& rope, std::int64_t first, std::int64_t count, int heads,
               int head_dim, void* rows) {
  auto* head = static_cast<typename Access::Bits*>(rows);
  for (std::int64_t row = 0; row < count; ++row) {
    for (int h = 0; h < heads; ++h, head += head_dim) RotateHead<Access>(rope, first + row, head);
  }
}

// In the one order that docs/numerics.md fixes: chunks of 8 squares, dealt to 32 lanes, which are
// then added pairwise.
template <class Access>
float SumOfSquares(const typename Access::Bits* x, int count) {
  constexpr int kChunk = 8, kLanes = 32;
  std::array<float, kLanes> lanes{};
  for (int chunk = 0; chunk * kChunk < count; ++chunk) {
    float sum = 0;
    for (int i = chunk * kChunk; i < std::min(count, (chunk + 1) * kChunk); ++i) {
      const float value = Access::Get(x[i]);
      const float square = value * value;
      sum = sum + square;
    }
    lanes[chunk % kLanes] += sum;
  }
  for (int away = kLanes / 2; away > 0; away /= 2) {
    for (int lane = 0; lane < away; ++lane) lanes[lane] += lanes[lane + away];
  }
  return lanes[0];
}

template <class Access>
void NormLatent(const LatentNorm& norm, typename Access::Bits* x) {
  const auto* weight = static_cast<const typename Access::Bits*>(norm.weight);
  const float mean = SumOfSquares<Access>(x, norm.rank) / static_cast<float>(norm.rank);
  const float inverse = 1.0F / std::sqrt(mean + norm.eps);
  for (int i = 0; i < norm.rank; ++i) {
    const float scaled = Access::Get(x[i]) * inverse;
    x[i] = Access::Put(scaled * Access::Get(weight[i]));
  }
}

template <class Access>
void FinishLatents(const RopeRows& rope, std::int64_t first, std::int64_t count,
                   const LatentNorm& norm, int rope_dim, void* rows) {
  auto* row = static_cast<typename Access::Bits*>(rows);
  for (std::int64_t r = 0; r < count; ++r, row += norm.rank + rope_dim) {
    NormLatent<Access>(norm, row);
    if (rope.rotary_dim() > 0) RotateHead<Access>(rope, first + r, row + norm.rank);
  }
}

}  // namespace

std::uint64_t ChainTokens(std::uint64_t chain, std::span<const TokenId> tokens,
                          std::span<std::uint64_t> chains) {
  assert(chains.size() >= tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    chain = ChainNext(chain, tokens[i]);
    chains[i] = chain;
  }
  return chain;
}

void FillSyntheticRows(std::span<const std::uint64_t> chains, int layer, KvPart part,
                       std::int64_t width, DType dtype, void* out) {
  assert(dtype == DType::kFP32 || dtype == DType::kFP16 || dtype == DType::kBF16);
  const ElementBits bits = BitsOf(dtype);
  const std::size_t bytes = static_cast<std::size_t>(width) * SizeOf(dtype);
  std::byte* row = static_cast<std::byte*>(out);
  for (const std::uint64_t chain : chains) {
    FillRow(RowSeed(chain, layer, part), bits, bytes, row);
    row += bytes;
  }
}

Result<RopeRows> RopeRows::Make(const RopeSpec& spec, std::int64_t length) {
  Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec, length);
  if (!frequencies.ok()) return frequencies.status();
  RopeRows rows;
  rows.frequencies_ = *std::move(frequencies);
  rows.style_ = spec.style;
  return rows;
}

void RopeRows::Reserve(std::int64_t count) {
  if (count <= count_ || rotary_dim() == 0) return;
  const std::int64_t wanted = std::max({count, count_ * 2, std::int64_t{256}});
  cos_.resize(Offset(wanted));
  sin_.resize(Offset(wanted));
  FillRopeTable(frequencies_, count_, wanted - count_, std::span(cos_).subspan(Offset(count_)),
                std::span(sin_).subspan(Offset(count_)));
  count_ = wanted;
}

void RotateRows(const RopeRows& rope, std::int64_t first, std::int64_t count, int heads,
                int head_dim, DType dtype, void* rows) {
  assert(rope.rotary_dim() <= head_dim);
  if (rope.rotary_dim() == 0) return;
  switch (dtype) {
    case DType::kBF16: return RotateAll<BF16Access>(rope, first, count, heads, head_dim, rows);
    case DType::kFP16: return RotateAll<FP16Access>(rope, first, count, heads, head_dim, rows);
    case DType::kFP32: return RotateAll<FP32Access>(rope, first, count, heads, head_dim, rows);
    default: assert(false);
  }
}

void FillExpectedRows(std::span<const std::uint64_t> chains, int layer, KvPart part,
                      const RopeRows& rope, std::int64_t first, int heads, int head_dim,
                      DType dtype, void* out) {
  FillSyntheticRows(chains, layer, part, std::int64_t{heads} * head_dim, dtype, out);
  if (part == KvPart::kValue) return;
  RotateRows(rope, first, static_cast<std::int64_t>(chains.size()), heads, head_dim, dtype, out);
}

void FillNormWeight(int layer, int rank, DType dtype, void* out) {
  const std::uint64_t chain = kNormChain;
  FillSyntheticRows({&chain, 1}, layer, KvPart::kKey, rank, dtype, out);
}

void FillExpectedLatents(std::span<const std::uint64_t> chains, int layer, const RopeRows& rope,
                         std::int64_t first, const LatentNorm& norm, int rope_dim, DType dtype,
                         void* out) {
  assert(rope.rotary_dim() <= rope_dim);
  FillSyntheticRows(chains, layer, KvPart::kKey, norm.rank + rope_dim, dtype, out);
  const auto count = static_cast<std::int64_t>(chains.size());
  switch (dtype) {
    case DType::kBF16: return FinishLatents<BF16Access>(rope, first, count, norm, rope_dim, out);
    case DType::kFP16: return FinishLatents<FP16Access>(rope, first, count, norm, rope_dim, out);
    case DType::kFP32: return FinishLatents<FP32Access>(rope, first, count, norm, rope_dim, out);
    default: assert(false);
  }
}

}  // namespace lariat::session
