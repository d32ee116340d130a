// SPDX-License-Identifier: Apache-2.0
// RoPE frequencies and tables against the reference in long double.
#include "lariat/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "reference/rope_ref.h"
#include "support/catch.h"

namespace lariat {
namespace {

using reference::Real;

constexpr double kUnit = 0x1p-53;  // relative rounding error of one operation in double

RopeSpec BaseSpec(RopeType type, int rotary_dim = 128) {
  RopeSpec spec;
  spec.type = type;
  spec.rotary_dim = rotary_dim;
  spec.factor = 8.0;
  spec.original_max_position_embeddings = 8192;
  return spec;
}

std::vector<Real> ReferenceFrequencies(const RopeSpec& spec, std::int64_t length) {
  const int dim = spec.rotary_dim;
  const Real original = static_cast<Real>(spec.original_max_position_embeddings);
  switch (spec.type) {
    case RopeType::kDefault: return reference::DefaultFrequencies(dim, spec.theta);
    case RopeType::kLinear: return reference::LinearFrequencies(dim, spec.theta, spec.factor);
    case RopeType::kDynamic:
      return reference::DynamicFrequencies(dim, spec.theta, spec.factor, original,
                                           static_cast<Real>(length));
    case RopeType::kYarn:
      return reference::YarnFrequencies(
          dim, spec.theta, spec.factor,
          reference::YarnRangeOf(dim, spec.theta, original, spec.beta_fast, spec.beta_slow,
                                 spec.truncate));
    case RopeType::kLlama3:
      return reference::Llama3Frequencies(dim, spec.theta, spec.factor, spec.low_freq_factor,
                                          spec.high_freq_factor, original);
    case RopeType::kLongrope: {
      // Wavelengths, each multiplied by its factor.
      const bool is_long = length > spec.original_max_position_embeddings;
      std::vector<Real> frequencies = reference::DefaultFrequencies(dim, spec.theta);
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] /= Real((is_long ? spec.long_factor : spec.short_factor)[i]);
      }
      return frequencies;
    }
    case RopeType::kProportional: {
      // The first pairs of the whole head.
      std::vector<Real> frequencies = reference::LinearFrequencies(dim, spec.theta, spec.factor);
      for (int i = spec.turned_dim / 2; i < dim / 2; ++i) frequencies[i] = 0;
      return frequencies;
    }
  }
  return {};
}

// Bound of the relative error of a frequency in double, in units of 2^-53.
//   default: the exponent 2i/d, <= 1, is rounded once, which costs ln(theta) units of the power;
//     the power itself 2 and the reciprocal 1.
//   linear, longrope, proportional: one division more.
//   dynamic: the base carries 4 units of the stretch times d/(d-2), that exponent's own rounding
//     times ln(stretch), the power's 2 and the product's 1; the base's error enters at most once.
//   yarn: with f(r) = f * (1 - r + r/F), an error e of the ramp costs at most F * e. The ramp's
//     division and subtraction cost 2 units; where the range is not rounded to whole pairs, its
//     ends are off by 4 units of themselves (< d) and, through the logarithm's argument (3 units),
//     3 units of d / (2 ln theta), all over the width of the range. Sum and products: 4.
//   llama3: the turns (frequency's error and 4) are off relatively, so the blend by
//     high / (high - low) times that, which costs at most F times as much. Sum and products: 4.
double BoundInUnits(const RopeSpec& spec, std::int64_t length) {
  const double dim = spec.rotary_dim;
  const double plain = std::log(spec.theta) + 3;
  switch (spec.type) {
    case RopeType::kDefault: return plain;
    case RopeType::kLinear:
    case RopeType::kLongrope:
    case RopeType::kProportional: return plain + 1;
    case RopeType::kDynamic: {
      const double exponent = spec.rotary_dim == 2 ? 1 : dim / (dim - 2);
      const double over =
          static_cast<double>(length) / static_cast<double>(spec.original_max_position_embeddings);
      const double stretch = std::max(1.0, 1 + spec.factor * (over - 1));
      return plain + exponent * (4 + 2 * std::log(stretch)) + 3;
    }
    case RopeType::kYarn: {
      const auto range = reference::YarnRangeOf(
          spec.rotary_dim, spec.theta, static_cast<Real>(spec.original_max_position_embeddings),
          spec.beta_fast, spec.beta_slow, spec.truncate);
      const double width = static_cast<double>(std::fabs(range.high - range.low));
      const double ends = spec.truncate ? 0 : 2 * (4 * dim + 3 * dim / 2 / std::log(spec.theta));
      return plain + 4 + spec.factor * (2 + ends / width);
    }
    case RopeType::kLlama3:
      return plain + 4 +
             spec.factor * (plain + 4) * spec.high_freq_factor /
                 (spec.high_freq_factor - spec.low_freq_factor);
  }
  return 0;
}

RopeSpec RandomSpec(RopeType type, std::mt19937_64& random) {
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  RopeSpec spec;
  spec.type = type;
  spec.style = random() % 2 == 0 ? RopeStyle::kInterleaved : RopeStyle::kHalf;
  spec.rotary_dim = 2 * static_cast<int>(1 + random() % 256);
  spec.theta = std::exp(uniform(std::log(1e3), std::log(1e8)));
  spec.factor = uniform(1, 64);
  // Short ones too, whose fastest pair turns less than beta_fast times.
  spec.original_max_position_embeddings =
      static_cast<std::int64_t>(std::exp(uniform(std::log(64.0), std::log(131072.0))));
  spec.low_freq_factor = uniform(0.5, 2);
  spec.high_freq_factor = spec.low_freq_factor + uniform(0.5, 8);
  spec.beta_slow = uniform(0.5, 2);
  spec.beta_fast = uniform(8, 64);
  spec.truncate = random() % 2 == 0;
  for (int i = 0; i < spec.rotary_dim / 2; ++i) {
    spec.short_factor.push_back(uniform(0.5, 4));
    spec.long_factor.push_back(uniform(1, 64));
  }
  spec.turned_dim = 2 * static_cast<int>(random() % (spec.rotary_dim / 2 + 1));
  return spec;
}

TEST_CASE("RoPE frequencies equal the reference for random specs of every type") {
  const auto type =
      GENERATE(RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn,
               RopeType::kLlama3, RopeType::kLongrope, RopeType::kProportional);
  CAPTURE(RopeTypeName(type));
  double closest = 0;  // the largest error seen, over its bound
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const RopeSpec spec = RandomSpec(type, random);
    const auto length = static_cast<std::int64_t>(random() % 400000);
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec, length);
    CAPTURE(seed, spec.rotary_dim, spec.theta, spec.factor, length);
    REQUIRE(got.ok());
    const std::vector<Real> want = ReferenceFrequencies(spec, length);
    REQUIRE(got->inv_freq.size() == want.size());
    const double bound = BoundInUnits(spec, length);
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (want[i] == 0) REQUIRE(got->inv_freq[i] == 0.0);
      if (want[i] == 0) continue;
      const Real error = std::fabs(got->inv_freq[i] - want[i]) / want[i] / kUnit;
      CAPTURE(i, got->inv_freq[i], static_cast<double>(want[i]));
      REQUIRE(static_cast<double>(error) <= bound);
      closest = std::max(closest, static_cast<double>(error) / bound);
    }
  }
  // A bound that nothing comes near would prove little.
  CHECK(closest >= 1.0 / 20);
}

TEST_CASE("RoPE types differ where they should and agree where they should") {
  const auto frequencies = [](const RopeSpec& spec, std::int64_t length = 0) {
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec, length);
    REQUIRE(got.ok());
    return got->inv_freq;
  };
  const std::vector<double> plain = frequencies(BaseSpec(RopeType::kDefault));
  REQUIRE(plain.size() == 64);
  CHECK(plain[0] == 1.0);
  CHECK(plain[32] == 0.01);  // 10000^(-1/2)

  SECTION("linear divides every frequency by the factor") {
    const std::vector<double> linear = frequencies(BaseSpec(RopeType::kLinear));
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(linear[i] == plain[i] / 8);
  }
  SECTION("dynamic stretches nothing up to the original length, then more and more") {
    const RopeSpec spec = BaseSpec(RopeType::kDynamic);
    CHECK(frequencies(spec, 0) == plain);
    CHECK(frequencies(spec, 8192) == plain);
    const std::vector<double> longer = frequencies(spec, 8193);
    const std::vector<double> longest = frequencies(spec, 65536);
    CHECK(longer[0] == 1.0);
    for (std::size_t i = 1; i < plain.size(); ++i) {
      CHECK(longer[i] < plain[i]);
      CHECK(longest[i] < longer[i]);
    }
    // The slowest pair of d elements has theta'^(-(d-2)/d) = theta^(-(d-2)/d) / stretch, and the
    // stretch at 8 times the length with factor 8 is 8 * 8 - 7 = 57.
    CHECK(std::fabs(longest[63] * 57 / plain[63] - 1) < 1e-14);
    RopeSpec two = spec;
    two.rotary_dim = 2;
    CHECK(frequencies(two, 65536) == std::vector<double>{1.0});
  }
  SECTION("only dynamic reads the length, only its style a rotation") {
    for (const RopeType type :
         {RopeType::kDefault, RopeType::kLinear, RopeType::kYarn, RopeType::kLlama3}) {
      RopeSpec spec = BaseSpec(type);
      const std::vector<double> half = frequencies(spec, 0);
      CHECK(frequencies(spec, 1 << 20) == half);
      spec.style = RopeStyle::kInterleaved;
      CHECK(frequencies(spec) == half);
    }
  }
  SECTION("a factor of 1 is the default") {
    for (const RopeType type :
         {RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn, RopeType::kLlama3}) {
      RopeSpec spec = BaseSpec(type);
      spec.factor = 1.0;
      const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec);
      REQUIRE(got.ok());
      CHECK(got->attention_factor == 1.0);
      // yarn and llama3 blend a frequency with itself, three roundings apart.
      for (std::size_t i = 0; i < plain.size(); ++i) {
        CHECK(std::fabs(got->inv_freq[i] / plain[i] - 1) <= 3 * kUnit);
      }
    }
  }
  SECTION("yarn keeps the fast pairs and stretches the slow ones whole") {
    RopeSpec spec = BaseSpec(RopeType::kYarn);
    const std::vector<double> yarn = frequencies(spec);
    // Turns within 8192 positions: 32 at pair 25.8, 1 at pair 49.8; rounded outwards 25 and 50.
    for (std::size_t i = 0; i <= 25; ++i) CHECK(yarn[i] == plain[i]);
    for (std::size_t i = 50; i < 64; ++i) CHECK(yarn[i] == plain[i] / 8);
    for (std::size_t i = 26; i < 50; ++i) {
      CHECK(yarn[i] < plain[i]);
      CHECK(yarn[i] > plain[i] / 8);
    }
    spec.truncate = false;
    const std::vector<double> exact = frequencies(spec);
    CHECK(exact[26] > yarn[26]);  // the range begins later
    CHECK(exact[49] < yarn[49]);  // and ends earlier
    CHECK(exact[50] == plain[50] / 8);
    // No pair turns even once within 6 positions: the range is empty, and begins at pair 0.
    spec.truncate = true;
    spec.original_max_position_embeddings = 6;
    const std::vector<double> empty = frequencies(spec);
    CHECK(empty[0] == 1.0);
    for (std::size_t i = 1; i < 64; ++i) CHECK(empty[i] == plain[i] / 8);
  }
}

TEST_CASE("YaRN's attention factor: given, by both mscales, or by the factor") {
  const auto attention = [](const RopeSpec& spec) {
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec);
    REQUIRE(got.ok());
    return got->attention_factor;
  };
  // Three operations on numbers of about 1, and a logarithm within one unit in the last place.
  const auto near = [](double got, Real want) {
    return std::fabs(static_cast<double>(got - want)) <= 6 * kUnit * static_cast<double>(want);
  };
  RopeSpec spec = BaseSpec(RopeType::kYarn);
  spec.factor = 40.0;
  CHECK(near(attention(spec), reference::YarnAttention(40, 0, 0)));
  CHECK(near(attention(spec), Real{1.3688879454113936L}));
  spec.mscale = 0.707;
  CHECK(near(attention(spec), reference::YarnAttention(40, 0, 0)));  // one alone is not used
  spec.mscale_all_dim = 1.0;
  CHECK(near(attention(spec), reference::YarnAttention(40, Real{0.707}, 1)));
  CHECK(attention(spec) < 1.0);
  spec.mscale_all_dim = 0.707;
  CHECK(attention(spec) == 1.0);
  spec.mscale_all_dim = 0.0;
  CHECK(near(attention(spec), reference::YarnAttention(40, 0, 0)));  // 0 counts as not given
  spec.attention_factor = 0.5;
  CHECK(attention(spec) == 0.5);

  for (const RopeType type :
       {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kLlama3}) {
    spec.type = type;
    CHECK(attention(spec) == 1.0);
  }
}

struct BadField {
  RopeType type;
  std::string field;  // the message begins with it
  std::string value;  // and goes on with this
  std::function<void(RopeSpec&)> spoil;
};

TEST_CASE("A bad RopeSpec is refused by field, value and what is allowed") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<BadField> bad = {
      {RopeType::kDefault, "type", "7", [](RopeSpec& s) { s.type = static_cast<RopeType>(7); }},
      {RopeType::kDefault, "style", "3", [](RopeSpec& s) { s.style = static_cast<RopeStyle>(3); }},
      {RopeType::kYarn, "theta", "1", [](RopeSpec& s) { s.theta = 1; }},
      {RopeType::kYarn, "beta_fast", "0.5", [](RopeSpec& s) { s.beta_fast = 0.5; }},
      {RopeType::kYarn, "attention_factor", "0", [](RopeSpec& s) { s.attention_factor = 0; }},
      {RopeType::kLlama3, "high_freq_factor", "0.5", [](RopeSpec& s) { s.high_freq_factor = 0.5; }},
      {RopeType::kLlama3, "low_freq_factor", "0", [](RopeSpec& s) { s.low_freq_factor = 0; }},
  };
  for (const int dim : {0, -2, 1, 63, 514, std::numeric_limits<int>::max()}) {
    bad.push_back({RopeType::kDefault, "rotary_dim", std::to_string(dim),
                   [dim](RopeSpec& s) { s.rotary_dim = dim; }});
  }
  for (const auto& [text, value] : {std::pair{"nan", kNan}, std::pair{"inf", kInf},
                                    std::pair{"-inf", -kInf}, std::pair{"-1", -1.0}}) {
    const auto add = [&, text = text](RopeType type, const char* field, auto spoil) {
      bad.push_back({type, field, text, spoil});
    };
    add(RopeType::kDefault, "theta", [value = value](RopeSpec& s) { s.theta = value; });
    for (const RopeType type :
         {RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn, RopeType::kLlama3}) {
      add(type, "factor", [value = value](RopeSpec& s) { s.factor = value; });
    }
    add(RopeType::kLlama3, "low_freq_factor",
        [value = value](RopeSpec& s) { s.low_freq_factor = value; });
    add(RopeType::kLlama3, "high_freq_factor",
        [value = value](RopeSpec& s) { s.high_freq_factor = value; });
    add(RopeType::kYarn, "beta_fast", [value = value](RopeSpec& s) { s.beta_fast = value; });
    add(RopeType::kYarn, "beta_slow", [value = value](RopeSpec& s) { s.beta_slow = value; });
    add(RopeType::kYarn, "attention_factor",
        [value = value](RopeSpec& s) { s.attention_factor = value; });
    add(RopeType::kYarn, "mscale", [value = value](RopeSpec& s) { s.mscale = value; });
    add(RopeType::kYarn, "mscale_all_dim",
        [value = value](RopeSpec& s) { s.mscale_all_dim = value; });
  }
  bad.push_back({RopeType::kDefault, "theta", "0", [](RopeSpec& s) { s.theta = 0; }});
  for (const RopeType type :
       {RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn, RopeType::kLlama3}) {
    bad.push_back({type, "factor", "0", [](RopeSpec& s) { s.factor = 0; }});
    bad.push_back({type, "factor", "0.5", [](RopeSpec& s) { s.factor = 0.5; }});
    if (type == RopeType::kLinear) continue;
    for (const int original : {0, -1}) {
      bad.push_back({type, "original_max_position_embeddings", std::to_string(original),
                     [original](RopeSpec& s) { s.original_max_position_embeddings = original; }});
    }
  }

  for (const BadField& b : bad) {
    RopeSpec spec = BaseSpec(b.type);
    REQUIRE(ComputeRopeFrequencies(spec).ok());
    b.spoil(spec);
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec);
    CAPTURE(RopeTypeName(b.type), b.field, b.value, got.status().message());
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().code() == Code::kInvalidArgument);
    CHECK(got.status().message().rfind(b.field, 0) == 0);
    CHECK(got.status().message().find(" is " + b.value + "; allowed: ") != std::string::npos);
  }
}

TEST_CASE("RopeSpec fields that go together are checked together, those not read are not") {
  RopeSpec spec = BaseSpec(RopeType::kDynamic);
  const Result<RopeFrequencies> negative = ComputeRopeFrequencies(spec, -1);
  REQUIRE_FALSE(negative.ok());
  CHECK(negative.status().message() == "length is -1; allowed: >= 0");

  // Allowed one by one, and a base that overflows together.
  spec.theta = 1e300;
  spec.factor = 1e9;
  CHECK(ComputeRopeFrequencies(spec, std::int64_t{1} << 40).status().code() ==
        Code::kInvalidArgument);
  for (const double theta : {1e-300, 1e300}) {
    RopeSpec extreme = BaseSpec(RopeType::kDefault);
    extreme.theta = theta;
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(extreme);
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().message().find("theta ") == 0);
  }

  RopeSpec unread = BaseSpec(RopeType::kDefault);
  unread.factor = std::numeric_limits<double>::quiet_NaN();
  unread.original_max_position_embeddings = -1;
  unread.high_freq_factor = 0;
  unread.beta_fast = -1;
  unread.mscale = -1;
  CHECK(ComputeRopeFrequencies(unread, -1).ok());
}

// cos or sin in fp32 is off by half its last place, and by what the angle is off in double: the
// product is rounded once, relatively 2^-53. (cos and sin in double and the product with the
// attention factor add 3 units of 2^-53 to a number <= attention.)
double TableBound(Real want, Real angle, double attention) {
  const double half_place =
      want == 0 ? 0 : std::ldexp(1.0, std::ilogb(static_cast<double>(want)) - 24);
  return half_place + attention * (static_cast<double>(std::fabs(angle)) + 3) * kUnit;
}

TEST_CASE("A RoPE table is the reference rounded once to fp32") {
  const auto [dim, theta, attention] =
      GENERATE(table<int, double, double>({{2, 1e4, 1.0},
                                           {64, 1e5, 1.0},
                                           {128, 5e5, 1.0},
                                           {96, 1e4, 1.1902380714238083},
                                           {512, 1e6, 0.7}}));
  RopeSpec spec;
  spec.rotary_dim = dim;
  spec.theta = theta;
  Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
  REQUIRE(frequencies.ok());
  frequencies->attention_factor = attention;
  const std::size_t pairs = frequencies->inv_freq.size();
  double closest = 0;
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{4000}, std::int64_t{131000},
                                   std::int64_t{1048575}, std::int64_t{1} << 31}) {
    constexpr std::int64_t kRows = 77;
    // Poisoned, with a rest behind the table that must stay.
    const float poison = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> cos(kRows * pairs + 5, poison);
    std::vector<float> sin(kRows * pairs + 5, poison);
    FillRopeTable(*frequencies, first, kRows, cos, sin);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < pairs; ++i) {
        const Real angle = static_cast<Real>(first + row) * frequencies->inv_freq[i];
        const std::size_t at = static_cast<std::size_t>(row) * pairs + i;
        for (const auto& [got, want] : {std::pair{cos[at], attention * std::cos(angle)},
                                        std::pair{sin[at], attention * std::sin(angle)}}) {
          CAPTURE(first, row, i, got, static_cast<double>(want));
          const double bound = TableBound(want, angle, attention);
          const double error = std::fabs(static_cast<double>(got - want));
          if (!(error <= bound)) REQUIRE(error <= bound);
          if (bound > 0) closest = std::max(closest, error / bound);
        }
      }
    }
    for (std::size_t i = kRows * pairs; i < cos.size(); ++i) {
      CHECK(std::isnan(cos[i]));
      CHECK(std::isnan(sin[i]));
    }
  }
  CHECK(closest >= 0.9);  // rounding comes near half a place somewhere
}

TEST_CASE("Rows of a RoPE table depend on their position alone") {
  const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(BaseSpec(RopeType::kYarn));
  REQUIRE(frequencies.ok());
  constexpr std::size_t kPairs = 64;
  std::vector<float> cos(40 * kPairs, 7.0F), sin(40 * kPairs, 7.0F);
  FillRopeTable(*frequencies, 100, 40, cos, sin);
  for (std::size_t row = 0; row < 40; ++row) {
    std::vector<float> one_cos(kPairs, 7.0F), one_sin(kPairs, 7.0F);
    FillRopeTable(*frequencies, static_cast<std::int64_t>(100 + row), 1, one_cos, one_sin);
    CHECK(std::memcmp(one_cos.data(), &cos[row * kPairs], kPairs * sizeof(float)) == 0);
    CHECK(std::memcmp(one_sin.data(), &sin[row * kPairs], kPairs * sizeof(float)) == 0);
  }
  std::vector<float> untouched(3, 7.0F);
  FillRopeTable(*frequencies, 5, 0, untouched, untouched);
  CHECK(untouched == std::vector<float>(3, 7.0F));
}

}  // namespace
}  // namespace lariat
