// SPDX-License-Identifier: Apache-2.0
// RoPE types whose table depends on the length, sections, and rules around the tables.
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "lariat/rope.h"
#include "reference/rope_ref.h"
#include "support/catch.h"

namespace lariat {
namespace {

RopeSpec Longrope() {
  RopeSpec spec;
  spec.type = RopeType::kLongrope;
  spec.rotary_dim = 8;
  spec.factor = 32;
  spec.original_max_position_embeddings = 4096;
  spec.short_factor = {1, 1.05, 1.1, 1.2};
  spec.long_factor = {1.1, 2, 8, 24};
  return spec;
}

RopeSpec Dynamic() {
  RopeSpec spec;
  spec.type = RopeType::kDynamic;
  spec.rotary_dim = 16;
  spec.factor = 4;
  spec.original_max_position_embeddings = 1024;
  return spec;
}

RopeFrequencies Frequencies(const RopeSpec& spec, std::int64_t length = 0) {
  Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec, length);
  INFO(frequencies.status().ToString());
  REQUIRE(frequencies.ok());
  return *std::move(frequencies);
}

TEST_CASE("Longrope has two tables, and the length chooses") {
  const RopeSpec spec = Longrope();
  for (const std::int64_t length : {0, 1, 4095, 4096}) CHECK(RopeTableFor(spec, length) == 0);
  for (const std::int64_t length : {4097, 131072}) CHECK(RopeTableFor(spec, length) == 1);
  CHECK(RopeTableCount(spec, 4096) == 1);
  CHECK(RopeTableCount(spec, 4097) == 2);
  CHECK(RopeTableCount(spec, 1 << 20) == 2);
  CHECK(Frequencies(spec, 4096).inv_freq != Frequencies(spec, 4097).inv_freq);
  CHECK(Frequencies(spec, 4097).inv_freq == Frequencies(spec, 131072).inv_freq);
  RopeSpec same = spec;
  same.long_factor = same.short_factor;
  CHECK(RopeTableCount(same, 131072) == 1);
  CHECK(RopeTableFor(same, 131072) == 0);
}

TEST_CASE("Dynamic has a table per length beyond the original one") {
  const RopeSpec spec = Dynamic();
  CHECK(RopeTableCount(spec, 1024) == 1);
  CHECK(RopeTableCount(spec, 1034) == 11);
  CHECK(RopeTableFor(spec, 1024) == 0);
  CHECK(RopeTableFor(spec, 1025) == 1);
  CHECK(Frequencies(spec, 1025).inv_freq != Frequencies(spec, 1026).inv_freq);
}

TEST_CASE("A table's number and its length belong together") {
  RopeSpec plain;
  plain.rotary_dim = 16;
  for (const RopeSpec& spec : {Longrope(), Dynamic(), plain}) {
    for (const std::int64_t length : {0, 1, 1024, 1025, 4096, 4097, 9999}) {
      const std::int64_t table = RopeTableFor(spec, length);
      CAPTURE(RopeTypeName(spec.type), length, table);
      CHECK(table < RopeTableCount(spec, length));
      CHECK(RopeTableFor(spec, RopeTableLength(spec, table)) == table);
      CHECK(Frequencies(spec, RopeTableLength(spec, table)).inv_freq ==
            Frequencies(spec, length).inv_freq);
    }
  }
}

TEST_CASE("K23, K24: one sequence keeps one table, and the choice tells prefixes apart") {
  std::ifstream file(LARIAT_TEST_DATA "/cases_longrope.json");
  const nlohmann::json data = nlohmann::json::parse(file);
  const nlohmann::json& input = data.at("input");
  RopeSpec spec = Longrope();
  spec.theta = input.at("base");
  spec.short_factor = input.at("short").get<std::vector<double>>();
  spec.long_factor = input.at("long").get<std::vector<double>>();
  spec.factor = input.at("max").get<double>() / input.at("orig").get<double>();
  CHECK(std::fabs(Frequencies(spec).attention_factor - data.at("amplitude").get<double>()) <=
        1e-15);
  // A row turned by the table of a sequence of some length.
  const auto rotated = [&](const char* row, const char* position, std::int64_t length) {
    const RopeFrequencies frequencies = Frequencies(spec, length);
    std::vector<double> cos, sin;
    for (const double f : frequencies.inv_freq) {
      const double angle = input.at(position).get<double>() * f;
      cos.push_back(std::cos(angle) * frequencies.attention_factor);
      sin.push_back(std::sin(angle) * frequencies.attention_factor);
    }
    return reference::RotateRow(input.at(row).get<std::vector<double>>(), cos.data(), sin.data(), 4,
                                false);
  };
  const auto score = [&](std::int64_t q_length, std::int64_t k_length) {
    const std::vector<double> q = rotated("q", "pos_q", q_length);
    const std::vector<double> k = rotated("k", "pos_k", k_length);
    double sum = 0;
    for (std::size_t i = 0; i < q.size(); ++i) sum += q[i] * k[i];
    return sum;
  };
  const auto want = [&](const char* group, const char* name) {
    return data.at(group).at(name).get<double>();
  };
  // Angles up to 4096 in double are off by 5e-13; 8 products of numbers up to 3 make 4e-11 of it.
  CHECK(std::fabs(score(4096, 4096) - want("right", "one table, short")) < 1e-10);
  CHECK(std::fabs(score(4097, 4097) - want("right", "one table, long")) < 1e-10);
  CHECK(std::fabs(score(4097, 4000) - want("wrong", "q long, cached k short")) < 1e-10);
  // K24: a prefix of a prompt of 1078 tokens must not serve one of 5136.
  CHECK(RopeTableFor(spec, 1078) != RopeTableFor(spec, 5136));
}

TEST_CASE("Longrope's attention factor: given, or by how far the context is stretched") {
  RopeSpec spec = Longrope();
  CHECK(std::fabs(Frequencies(spec).attention_factor -
                  std::sqrt(1 + std::log(32.0) / std::log(4096.0))) < 1e-15);
  spec.attention_factor = 1.25;
  CHECK(Frequencies(spec).attention_factor == 1.25);
  spec.attention_factor.reset();
  spec.factor = 1;
  CHECK(Frequencies(spec).attention_factor == 1.0);
}

TEST_CASE("Proportional turns the first pairs of the whole head") {
  RopeSpec spec;
  spec.type = RopeType::kProportional;
  spec.rotary_dim = 16;
  spec.turned_dim = 4;
  const std::vector<double> turned = Frequencies(spec).inv_freq;
  CHECK(turned == std::vector<double>{1.0, 1.0 / std::pow(10000.0, 2.0 / 16), 0, 0, 0, 0, 0, 0});
  // Not a partial rotary of 4 elements, whose second pair is slower.
  RopeSpec partial;
  partial.rotary_dim = 4;
  CHECK(Frequencies(partial).inv_freq[1] < turned[1]);
  // A pair that stands still leaves its elements as they are.
  std::vector<float> cos(8, 9.0F), sin(8, 9.0F);
  FillRopeTable(Frequencies(spec), 777, 1, cos, sin);
  CHECK(cos[2] == 1.0F);
  CHECK(sin[2] == 0.0F);
}

TEST_CASE("Llama 3 with equal bands blends nothing") {
  RopeSpec spec;
  spec.type = RopeType::kLlama3;
  spec.rotary_dim = 2;
  spec.theta = 2;
  spec.factor = 4;
  spec.low_freq_factor = spec.high_freq_factor = 1;
  // Pair 0 turns original / (2 pi) times: in 6 tokens less than once, in 7 more.
  spec.original_max_position_embeddings = 6;
  CHECK(Frequencies(spec).inv_freq[0] == 0.25);
  spec.original_max_position_embeddings = 7;
  CHECK(Frequencies(spec).inv_freq[0] == 1.0);
  // At the bound itself: 0 / 0, were it blended.
  spec.low_freq_factor = spec.high_freq_factor = 7 * 1.0 / (2.0 * std::acos(-1.0));
  CHECK(Frequencies(spec).inv_freq[0] == 1.0);
}

TEST_CASE("K02: sections share the pairs out, and the table does not see them") {
  RopeSpec spec;
  spec.rotary_dim = 128;
  const RopeFrequencies plain = Frequencies(spec);
  spec.mrope_sections = {16, 24, 24};
  CHECK(Frequencies(spec).inv_freq == plain.inv_freq);
  const std::vector<int> sectioned = MropePairSections(spec);
  REQUIRE(sectioned.size() == 64);
  for (int i = 0; i < 64; ++i) CHECK(sectioned[i] == (i < 16 ? 0 : i < 40 ? 1 : 2));

  spec.mrope_layout = MropeLayout::kInterleaved;
  spec.mrope_sections = {24, 20, 20};
  const std::vector<int> interleaved = MropePairSections(spec);
  REQUIRE(interleaved.size() == 64);
  // t h w t h w ... up to pair 59, then t alone.
  for (int i = 0; i < 64; ++i) CHECK(interleaved[i] == (i < 60 ? i % 3 : 0));
  spec.rotary_dim = 64;
  spec.mrope_sections = {11, 11, 10};
  CHECK(Frequencies(spec).inv_freq.size() == 32);
  const std::vector<int> uneven = MropePairSections(spec);
  for (int i = 0; i < 32; ++i) CHECK(uneven[i] == i % 3);
  spec.mrope_sections.clear();
  CHECK(MropePairSections(spec) == std::vector<int>(32, 0));
}

TEST_CASE("DeepSeek's softmax scale factor") {
  RopeSpec spec;
  CHECK(SoftmaxScaleFactor(spec) == 1.0);
  spec.type = RopeType::kYarn;
  spec.factor = 40;
  CHECK(SoftmaxScaleFactor(spec) == 1.0);
  spec.mscale_all_dim = 0;
  CHECK(SoftmaxScaleFactor(spec) == 1.0);
  spec.mscale_all_dim = 0.707;
  const double m = 0.1 * 0.707 * std::log(40.0) + 1;
  CHECK(std::fabs(SoftmaxScaleFactor(spec) / (m * m) - 1) < 1e-15);
  spec.type = RopeType::kLlama3;
  CHECK(SoftmaxScaleFactor(spec) == 1.0);
}

struct BadSpec {
  std::string message;
  std::function<void(RopeSpec&)> spoil;
};

TEST_CASE("Bad lists and sections are refused by field, value and what is allowed") {
  const auto proportional = [](int turned) {
    return [turned](RopeSpec& s) {
      s.type = RopeType::kProportional;
      s.turned_dim = turned;
    };
  };
  const auto sections = [](std::vector<int> pairs, MropeLayout layout = MropeLayout::kSectioned) {
    return [pairs, layout](RopeSpec& s) {
      s.mrope_sections = pairs;
      s.mrope_layout = layout;
    };
  };
  const std::vector<BadSpec> cases = {
      {"original_max_position_embeddings is 1; allowed: >= 2",
       [](RopeSpec& s) { s.original_max_position_embeddings = 1; }},
      {"short_factor has 3 entries; allowed: rotary_dim / 2, which is 4",
       [](RopeSpec& s) { s.short_factor.pop_back(); }},
      {"long_factor has 0 entries; allowed: rotary_dim / 2, which is 4",
       [](RopeSpec& s) { s.long_factor.clear(); }},
      {"long_factor[2] is 0; allowed: finite, > 0", [](RopeSpec& s) { s.long_factor[2] = 0; }},
      {"short_factor[0] is nan; allowed: finite, > 0",
       [](RopeSpec& s) { s.short_factor[0] = std::nan(""); }},
      {"attention_factor is 0; allowed: finite, > 0", [](RopeSpec& s) { s.attention_factor = 0; }},
      {"factor is 0.5; allowed: finite, >= 1", [](RopeSpec& s) { s.factor = 0.5; }},
      {"turned_dim is 3; allowed: an even number in 0..rotary_dim, which is 8", proportional(3)},
      {"turned_dim is 10; allowed: an even number in 0..rotary_dim, which is 8", proportional(10)},
      {"mrope_sections' sum is 5; allowed: rotary_dim / 2, which is 4", sections({1, 2, 2})},
      {"mrope_sections[1] is 0; allowed: >= 1", sections({2, 0, 2})},
      {"mrope_sections has 1 entries; allowed: 2..4", sections({4})},
      {"mrope_sections has 2 entries; allowed: 3", sections({2, 2}, MropeLayout::kInterleaved)},
      {"mrope_sections[1] is 2; allowed: every third pair of 4, from pair 1 on",
       sections({1, 2, 1}, MropeLayout::kInterleaved)},
      {"mrope_layout is 2; allowed: 0 (sectioned), 1 (interleaved)",
       sections({2, 2}, static_cast<MropeLayout>(2))}};
  for (const BadSpec& c : cases) {
    RopeSpec spec = Longrope();
    c.spoil(spec);
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec);
    CAPTURE(c.message, got.status().message());
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().code() == Code::kInvalidArgument);
    CHECK(got.status().message().rfind(c.message, 0) == 0);
  }
  CHECK(ComputeRopeFrequencies(Longrope(), -1).status().message() == "length is -1; allowed: >= 0");
}

}  // namespace
}  // namespace lariat
