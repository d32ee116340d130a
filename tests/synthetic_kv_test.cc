// SPDX-License-Identifier: Apache-2.0
// Keys and values made from token ids: the definition, its sensitivity, and the rotated rows that a
// cache is expected to hold. References are in double, and round by asking nearbyint.
#include "session/synthetic_kv.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lariat/rope.h"
#include "support/catch.h"

namespace {

using lariat::DType;
using lariat::RopeSpec;
using lariat::RopeStyle;
using lariat::TokenId;
using lariat::session::ChainNext;
using lariat::session::kChainStart;
using lariat::session::KvPart;
using lariat::session::RopeRows;

constexpr std::array<DType, 3> kTypes = {DType::kFP32, DType::kFP16, DType::kBF16};

// The bits of every element, whatever its type.
std::vector<std::uint32_t> BitsOf(const std::vector<std::byte>& bytes, DType dtype) {
  const std::size_t size = SizeOf(dtype);
  std::vector<std::uint32_t> bits(bytes.size() / size);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    std::memcpy(&bits[i], bytes.data() + i * size, size);
  }
  return bits;
}

// Rows with poison around them, which must stay.
template <class Fill>
std::vector<std::uint32_t> Guarded(std::size_t elements, DType dtype, Fill fill) {
  constexpr std::size_t kGuard = 64;
  const std::byte poison{0xa5};
  const std::size_t bytes = elements * SizeOf(dtype);
  std::vector<std::byte> buffer(bytes + 2 * kGuard, poison);
  fill(buffer.data() + kGuard);
  for (std::size_t i = 0; i < kGuard; ++i) {
    REQUIRE(buffer[i] == poison);
    REQUIRE(buffer[kGuard + bytes + i] == poison);
  }
  return BitsOf({buffer.begin() + kGuard, buffer.end() - kGuard}, dtype);
}

std::vector<std::uint32_t> Rows(const std::vector<std::uint64_t>& chains, int layer, KvPart part,
                                std::int64_t width, DType dtype) {
  return Guarded(chains.size() * static_cast<std::size_t>(width), dtype, [&](void* out) {
    lariat::session::FillSyntheticRows(chains, layer, part, width, dtype, out);
  });
}

std::vector<std::uint64_t> Chains(const std::vector<TokenId>& tokens) {
  std::vector<std::uint64_t> chains(tokens.size());
  lariat::session::ChainTokens(kChainStart, tokens, chains);
  return chains;
}

// --- the reference: significant bits, smallest exponent and layout of a type, by arithmetic ---

struct Format {
  int precision;  // significant bits
  int low;        // the smallest exponent of a normal number
  double most;    // the greatest finite one
};

Format FormatOf(DType dtype) {
  if (dtype == DType::kFP16) return {11, -14, 65504.0};
  if (dtype == DType::kBF16) return {8, -126, std::ldexp(255.0, 120)};
  return {24, -126, static_cast<double>(std::numeric_limits<float>::max())};
}

// To nearest, ties to even (the mode nearbyint is in).
double RoundTo(double value, DType dtype) {
  if (value == 0.0 || std::isinf(value)) return value;
  const Format format = FormatOf(dtype);
  const int place = std::max(std::ilogb(value), format.low) - (format.precision - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -place)), place);
  if (std::abs(rounded) > format.most) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return rounded;
}

// The number that bits stand for, field by field.
double ValueOf(std::uint32_t bits, DType dtype) {
  const int mantissa_bits = dtype == DType::kFP16 ? 10 : dtype == DType::kBF16 ? 7 : 23;
  const int exponent_bits = dtype == DType::kFP16 ? 5 : 8;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const bool negative = (bits >> (mantissa_bits + exponent_bits)) & 1U;
  REQUIRE(exponent != (1 << exponent_bits) - 1);  // neither infinite nor NaN
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits),
                                                      exponent - bias - mantissa_bits);
  return negative ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("the definition: known answers") {
  // From a separate implementation of the comment in synthetic_kv.h.
  const std::uint64_t first = ChainNext(kChainStart, 5);
  const std::uint64_t second = ChainNext(first, -3);
  CHECK(first == 0x0c5c96ae5662d846U);
  CHECK(second == 0x3ae4c2d7f3dfe6e5U);
  using Bits = std::vector<std::uint32_t>;
  CHECK(Rows({second}, 3, KvPart::kValue, 5, DType::kBF16) ==
        Bits{0xbb8b, 0xbebf, 0xbf7b, 0x3c70, 0x3d1f});
  CHECK(Rows({second}, 3, KvPart::kValue, 5, DType::kFP16) ==
        Bits{0xb00b, 0xb73f, 0xb3fb, 0x24f0, 0x399f});
  CHECK(Rows({second}, 3, KvPart::kValue, 3, DType::kFP32) ==
        Bits{0xbebfb40b, 0x3c7097fb, 0x3f217d9f});
}

TEST_CASE("a chain depends on every token so far, and can be continued anywhere") {
  const std::vector<TokenId> tokens = {7, 7, -1, 0, 2147483647, -2147483647 - 1, 3};
  const std::vector<std::uint64_t> chains = Chains(tokens);
  std::uint64_t chain = kChainStart;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    chain = ChainNext(chain, tokens[i]);
    CHECK(chains[i] == chain);
  }
  std::vector<std::uint64_t> tail(3);
  CHECK(lariat::session::ChainTokens(
            chains[3], std::vector<TokenId>{2147483647, -2147483647 - 1, 3}, tail) == chains[6]);
  CHECK(tail[0] == chains[4]);
  CHECK(lariat::session::ChainTokens(99, {}, {}) == 99);

  std::set<std::uint64_t> ends = {chains.back()};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::vector<TokenId> changed = tokens;
    changed[i] ^= 1;
    CHECK(ends.insert(Chains(changed).back()).second);
    changed = tokens;
    changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
    if (i != 1) CHECK(ends.insert(Chains(changed).back()).second);  // 0 and 1 are the same token
  }
}

TEST_CASE("elements are ordinary numbers, spread over signs, exponents and mantissas") {
  const std::vector<std::uint64_t> chains = Chains({1, 2, 3, 4, 5, 6, 7, 8});
  for (const DType dtype : kTypes) {
    const std::vector<std::uint32_t> bits = Rows(chains, 0, KvPart::kKey, 4096, dtype);
    REQUIRE(bits.size() == 32768);
    std::array<int, 8> exponents = {};
    int negative = 0;
    std::uint32_t ones = 0, zeros = 0;
    for (const std::uint32_t element : bits) {
      const double value = ValueOf(element, dtype);
      REQUIRE(std::abs(value) >= 1.0 / 256);
      REQUIRE(std::abs(value) < 1.0);
      ++exponents[static_cast<std::size_t>(std::ilogb(value) + 8)];
      if (value < 0) ++negative;
      ones |= element;
      zeros |= ~element;
    }
    // 4096 expected in each of 8, deviation 60; 16384 negative, deviation 91: six of them.
    for (const int count : exponents) CHECK(std::abs(count - 4096) < 360);
    CHECK(std::abs(negative - 16384) < 546);
    // Every mantissa bit and the sign is seen as 0 and as 1.
    const std::uint32_t varied = ones & zeros;
    const std::uint32_t wanted = dtype == DType::kFP32   ? 0x807fffffU
                                 : dtype == DType::kFP16 ? 0x83ffU
                                                         : 0x807fU;
    CHECK((varied & wanted) == wanted);
  }
}

TEST_CASE("rows of other tokens, layers or parts are other rows, narrow rows begin wide ones") {
  const std::vector<std::uint64_t> chains = Chains({4, 4, 5});
  for (const DType dtype : kTypes) {
    std::vector<std::vector<std::uint32_t>> rows;
    for (const std::uint64_t chain : chains) {
      for (const int layer : {0, 1, 79}) {
        for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
          rows.push_back(Rows({chain}, layer, part, 1024, dtype));
        }
      }
    }
    for (std::size_t a = 0; a < rows.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        int equal = 0;
        for (std::size_t i = 0; i < 1024; ++i) equal += rows[a][i] == rows[b][i];
        // bf16 has 2^11 patterns: half an equal one expected, ten are never seen by chance.
        CHECK(equal < 10);
      }
    }
    for (const std::int64_t width : {0, 1, 2, 3, 4, 5, 7, 64, 1023}) {
      const std::vector<std::uint32_t> narrow = Rows({chains[0]}, 0, KvPart::kKey, width, dtype);
      CHECK(std::equal(narrow.begin(), narrow.end(), rows[0].begin()));
    }
    // Several rows at once are the rows one by one.
    const std::vector<std::uint32_t> together = Rows(chains, 79, KvPart::kValue, 7, dtype);
    for (std::size_t r = 0; r < 3; ++r) {
      const std::vector<std::uint32_t> alone = Rows({chains[r]}, 79, KvPart::kValue, 7, dtype);
      CHECK(std::equal(alone.begin(), alone.end(),
                       together.begin() + static_cast<std::ptrdiff_t>(r) * 7));
    }
  }
}

TEST_CASE("16-bit roundings: every value, every tie, random numbers") {
  using lariat::session::FromBF16;
  using lariat::session::FromFP16;
  using lariat::session::ToBF16;
  using lariat::session::ToFP16;
  const auto check = [](float x) {
    const double half = RoundTo(static_cast<double>(x), DType::kFP16);
    const double brain = RoundTo(static_cast<double>(x), DType::kBF16);
    // Compared as values; signs of zero too.
    const float got_half = FromFP16(ToFP16(x));
    const float got_brain = FromBF16(ToBF16(x));
    if (static_cast<double>(got_half) != half || static_cast<double>(got_brain) != brain ||
        std::signbit(got_half) != std::signbit(x) || std::signbit(got_brain) != std::signbit(x)) {
      INFO("x " << x);
      CHECK(static_cast<double>(got_half) == half);
      CHECK(static_cast<double>(got_brain) == brain);
      CHECK(std::signbit(got_half) == std::signbit(x));
      CHECK(std::signbit(got_brain) == std::signbit(x));
    }
  };
  int finite = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const std::uint16_t half = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7c00) != 0x7c00) {
      const float value = FromFP16(half);
      if (static_cast<double>(value) != ValueOf(bits, DType::kFP16)) CHECK(bits == 0x10000);
      if (ToFP16(value) != half) CHECK(bits == 0x10000);
      // The tie between this and the next, and its neighbours.
      const float next = FromFP16(static_cast<std::uint16_t>(half + ((bits & 0x7fff) < 0x7bff)));
      const float tie = (value + next) / 2;
      check(tie);
      check(std::nextafterf(tie, 1e9F));
      check(std::nextafterf(tie, -1e9F));
      ++finite;
    }
    if ((bits & 0x7f80) != 0x7f80) {
      const float value = FromBF16(half);
      if (static_cast<double>(value) != ValueOf(bits, DType::kBF16)) CHECK(bits == 0x10000);
      for (const std::uint32_t below : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
        check(std::bit_cast<float>(bits << 16 | below));
      }
    }
  }
  CHECK(finite == 63488);
  std::mt19937 random(3);
  for (int i = 0; i < 300000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(x)) check(x);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(ToFP16(infinity) == 0x7c00);
  CHECK(ToBF16(-infinity) == 0xff80);
  CHECK(std::isinf(FromFP16(0xfc00)));
  CHECK(ToFP16(std::nanf("1")) == 0x7e00);
  CHECK(ToBF16(-std::nanf("1")) == 0x7fc0);
  CHECK(ToBF16(std::bit_cast<float>(0x7f800001U)) == 0x7fc0);
  CHECK(std::isnan(FromFP16(0x7c01)));
}

TEST_CASE("table rows are those of FillRopeTable, however far they are asked for") {
  RopeSpec spec;
  spec.type = lariat::RopeType::kLlama3;
  spec.rotary_dim = 64;
  spec.theta = 500000.0;
  spec.factor = 8.0;
  spec.original_max_position_embeddings = 8192;
  const auto frequencies = lariat::ComputeRopeFrequencies(spec);
  REQUIRE(frequencies.ok());
  std::vector<float> cos(3000 * 32), sin(3000 * 32);
  lariat::FillRopeTable(*frequencies, 0, 3000, cos, sin);

  lariat::Result<RopeRows> rows = RopeRows::Make(spec, 0);
  REQUIRE(rows.ok());
  CHECK(rows->rotary_dim() == 64);
  for (const std::int64_t count : {1, 10, 257, 258, 3000, 5}) {
    rows->Reserve(count);
    const std::size_t bytes = static_cast<std::size_t>(count) * 32 * sizeof(float);
    CHECK(std::memcmp(rows->cos(0), cos.data(), bytes) == 0);
    CHECK(std::memcmp(rows->sin(0), sin.data(), bytes) == 0);
  }
  spec.rotary_dim = 3;
  CHECK_FALSE(RopeRows::Make(spec, 0).ok());
}

TEST_CASE("expected keys are turned as the contract says, bit for bit, values are not") {
  constexpr std::int64_t kFirst = 100;
  const std::vector<std::uint64_t> chains = Chains({9, 8, 7, 6, 5});
  for (const DType dtype : kTypes) {
    for (const RopeStyle style :
         {RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf}) {
      for (const auto& [heads, head_dim, rotary] : {std::array{2, 64, 64}, std::array{3, 40, 10},
                                                    std::array{1, 6, 2}, std::array{1, 512, 512}}) {
        RopeSpec spec;
        spec.style = style;
        spec.rotary_dim = rotary;
        lariat::Result<RopeRows> rope = RopeRows::Make(spec, 0);
        REQUIRE(rope.ok());
        rope->Reserve(kFirst + 5);
        const std::int64_t width = std::int64_t{heads} * head_dim;
        const auto expected = [&, heads = heads, head_dim = head_dim](KvPart part,
                                                                      const RopeRows& table) {
          return Guarded(chains.size() * static_cast<std::size_t>(width), dtype, [&](void* out) {
            lariat::session::FillExpectedRows(chains, 2, part, table, kFirst, heads, head_dim,
                                              dtype, out);
          });
        };
        const std::vector<std::uint32_t> plain = Rows(chains, 2, KvPart::kKey, width, dtype);
        CHECK(expected(KvPart::kKey, RopeRows()) == plain);
        CHECK(expected(KvPart::kValue, *rope) == Rows(chains, 2, KvPart::kValue, width, dtype));

        const std::vector<std::uint32_t> got = expected(KvPart::kKey, *rope);
        std::int64_t wrong = 0, turned = 0;
        for (std::size_t at = 0; at < got.size(); ++at) {
          const std::size_t row = at / static_cast<std::size_t>(width);
          const int i = static_cast<int>(at % static_cast<std::size_t>(head_dim));
          if (i >= rotary) {
            wrong += got[at] != plain[at];
            continue;
          }
          const bool is_paired = style == RopeStyle::kInterleaved;
          const bool was_paired = style != RopeStyle::kHalf;
          const int pair = is_paired ? i / 2 : i % (rotary / 2);
          const bool is_first = is_paired ? i % 2 == 0 : i < rotary / 2;
          const auto before = [&](int place) {
            return ValueOf(
                plain[at - static_cast<std::size_t>(i) + static_cast<std::size_t>(place)], dtype);
          };
          const double x = before(was_paired ? 2 * pair : pair);
          const double y = before(was_paired ? 2 * pair + 1 : pair + rotary / 2);
          const double own = is_first ? x : y;
          const double other = is_first ? y : x;
          const double cos =
              static_cast<double>(rope->cos(kFirst + static_cast<std::int64_t>(row))[pair]);
          const double sin =
              static_cast<double>(rope->sin(kFirst + static_cast<std::int64_t>(row))[pair]);
          // Products of two fp32 are exact in double; a sum rounded to double and then to fp32 is
          // the sum rounded to fp32, as 53 >= 2 * 24 + 2.
          const double kept = RoundTo(own * cos, DType::kFP32);
          const double mixed = RoundTo(other * sin, DType::kFP32);
          const double sum = RoundTo(is_first ? kept - mixed : kept + mixed, DType::kFP32);
          wrong += ValueOf(got[at], dtype) != RoundTo(sum, dtype);
          turned += got[at] != plain[at];
        }
        INFO(heads << " heads of " << head_dim << ", " << rotary << " turned");
        CHECK(wrong == 0);
        CHECK(turned > 0);
      }
    }
  }
}
