// SPDX-License-Identifier: Apache-2.0
// RoPE frequencies against tables recorded from a published implementation, read by our own reader.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lariat/rope.h"
#include "lariat/safetensors.h"
#include "support/catch.h"

namespace lariat {
namespace {

// The RopeSpec of a recording's config. Fields as Hugging Face names them.
RopeSpec SpecOfRecording(const nlohmann::json& config) {
  const nlohmann::json& rope = config.at("rope_parameters");
  RopeSpec spec;
  const std::string type = rope.at("rope_type");
  for (const RopeType t : {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic,
                           RopeType::kYarn, RopeType::kLlama3, RopeType::kLongrope}) {
    if (type == RopeTypeName(t)) spec.type = t;
  }
  const double partial = rope.value("partial_rotary_factor", 1.0);
  spec.rotary_dim = static_cast<int>(config.at("head_dim").get<int>() * partial);
  spec.theta = rope.at("rope_theta");
  spec.factor = rope.value("factor", 1.0);
  spec.original_max_position_embeddings =
      rope.value("original_max_position_embeddings", std::int64_t{0});
  spec.low_freq_factor = rope.value("low_freq_factor", 1.0);
  spec.high_freq_factor = rope.value("high_freq_factor", 4.0);
  spec.beta_fast = rope.value("beta_fast", 32.0);
  spec.beta_slow = rope.value("beta_slow", 1.0);
  if (rope.contains("mscale")) spec.mscale = rope["mscale"].get<double>();
  if (rope.contains("mscale_all_dim")) spec.mscale_all_dim = rope["mscale_all_dim"].get<double>();
  if (spec.type == RopeType::kLongrope) {
    spec.short_factor = rope.at("short_factor").get<std::vector<double>>();
    spec.long_factor = rope.at("long_factor").get<std::vector<double>>();
    spec.factor = config.at("max_position_embeddings").get<double>() /
                  static_cast<double>(spec.original_max_position_embeddings);
  }
  return spec;
}

// Bound of a recorded frequency's relative error.
//   Recorded in double (some value does not fit fp32): the power of an exact exponent (the widths
//   are powers of two) costs 2 units of 2^-53 and the reciprocal 1, on either side.
//   Recorded in fp32: the same in units of 2^-24, and 3 for a division or a blend. A blend adds
//   what its weight is off, relative to the result: for llama3 with factor 8 and bands 1 and 4,
//   turns off by 6 units move the weight by at most turns * 6 / 3, which against the blended
//   frequency is at most 14 units (at one turn); for yarn the weight of a pair that is not wholly
//   stretched is at least one over the width of the range (14 pairs and fewer), and off by 1 unit,
//   so 14. longrope's factors were rounded to fp32 as well: half a unit.
double RecordedBound(const RopeSpec& spec, const std::vector<double>& recorded) {
  const bool fp32 = std::all_of(recorded.begin(), recorded.end(), [](double v) {
    return static_cast<double>(static_cast<float>(v)) == v;
  });
  if (!fp32) return 2 * 3 * 0x1p-53;
  const bool blends = spec.type == RopeType::kYarn || spec.type == RopeType::kLlama3;
  return (blends ? 6 + 14 : spec.type == RopeType::kLongrope ? 6.5 : 6) * 0x1p-24;
}

// Compares with one recorded table; the largest error seen, over its bound.
double CompareTable(SafetensorsFile& file, const std::string& tensor, const RopeSpec& spec,
                    std::int64_t length) {
  CAPTURE(tensor, length);
  const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec, length);
  REQUIRE(got.ok());
  const Result<std::vector<double>> want = file.Read<double>(tensor);
  REQUIRE(want.ok());
  REQUIRE(got->inv_freq.size() == want->size());
  const double bound = RecordedBound(spec, *want);
  double closest = 0;
  for (std::size_t i = 0; i < want->size(); ++i) {
    const double error = std::fabs(got->inv_freq[i] / (*want)[i] - 1);
    CAPTURE(i, got->inv_freq[i], (*want)[i]);
    REQUIRE(error <= bound);
    closest = std::max(closest, error / bound);
  }
  return closest;
}

TEST_CASE("RoPE frequencies equal those recorded from a published implementation") {
  const std::string path = LARIAT_SHARED_DATA "/golden/rope_tables.safetensors";
  if (!std::filesystem::exists(path)) LARIAT_SKIP("golden/rope_tables.safetensors is absent");
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  int cases = 0;
  int by_length = 0;
  double closest = 0;
  for (const auto& [name, text] : file->metadata()) {
    if (name.find(".seq") != std::string::npos) continue;  // of another case's length
    const nlohmann::json recording = nlohmann::json::parse(text);
    const RopeSpec spec = SpecOfRecording(recording.at("config"));
    CAPTURE(name);
    const Result<RopeFrequencies> got = ComputeRopeFrequencies(spec);
    REQUIRE(got.ok());
    CHECK(std::fabs(got->attention_factor - recording.at("attention_factor").get<double>()) <=
          1e-12);
    closest = std::max(closest, CompareTable(*file, name + ".inv_freq", spec, 0));
    ++cases;
    // Tables of sequences of length N.
    for (const std::int64_t length : {1024, 4096, 4097, 8192, 20000, 131072}) {
      const std::string suffix = ".seq" + std::to_string(length);
      const auto attention = file->metadata().find(name + suffix + ".attention_factor");
      if (attention == file->metadata().end()) continue;
      closest = std::max(closest, CompareTable(*file, name + ".inv_freq" + suffix, spec, length));
      const Result<RopeFrequencies> of_length = ComputeRopeFrequencies(spec, length);
      REQUIRE(of_length.ok());
      CHECK(std::fabs(of_length->attention_factor - std::stod(attention->second)) <= 1e-12);
      ++by_length;
    }
  }
  CHECK(cases == 9);
  CHECK(by_length == 6);
  CHECK(closest >= 1.0 / 20);
}

}  // namespace
}  // namespace lariat
