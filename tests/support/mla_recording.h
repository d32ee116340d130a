// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lariat/model.h"
#include "lariat/safetensors.h"
#include "reference/mla_attention_ref.h"
#include "reference/mla_expand_ref.h"
#include "support/catch.h"

// Recordings of MLA models (computed in fp64, stored in fp32), and what their numbers may be off
// by.

namespace lariat::testing {

using reference::ProductSum;
using reference::Row;

inline const std::string kInterleavedRecording = LARIAT_SHARED_DATA "/golden/deepseek_v3_mla";
inline const std::string kHalfRecording = LARIAT_SHARED_DATA "/golden/deepseek_v3_mla_neox";

// The project's own recordings of MLA models, without their extensions.
inline std::vector<std::string> OwnMlaRecordings() {
  std::vector<std::string> stems;
  for (const auto& entry : std::filesystem::directory_iterator(LARIAT_TEST_DATA "/recordings")) {
    const std::filesystem::path& path = entry.path();
    const bool mla = path.stem().string().find("mla") != std::string::npos;
    if (mla && path.extension() == ".safetensors") {
      stems.push_back((path.parent_path() / path.stem()).string());
    }
  }
  REQUIRE_FALSE(stems.empty());
  return stems;
}

inline bool HasGolden() {
  return std::filesystem::exists(kInterleavedRecording + ".safetensors") &&
         std::filesystem::exists(kHalfRecording + ".safetensors");
}

inline constexpr double kU = 0x1p-24;
// Units of 2^-24 by which a recorded frequency may be off: it was worked out in fp32. Its product
// with the position rounds once more.
inline constexpr double kFrequencyUnits = 5;

inline std::size_t U(std::int64_t n) { return static_cast<std::size_t>(n); }

// A tensor [.., columns] as rows.
struct Tensor {
  std::vector<float> values;
  std::int64_t columns = 0;
  double At(std::int64_t row, std::int64_t column) const {
    return values[U(row * columns + column)];
  }
  Row Of(std::int64_t row, std::int64_t first, std::int64_t count) const {
    const auto from = values.begin() + row * columns + first;
    return {from, from + count};
  }
};

// One layer of a recording.
struct Layer {
  std::int64_t batch = 0, length = 0;  // sequences, tokens of each
  Tensor hidden, q, latent, k_pe, attn_out;
  Tensor w_down, w_norm, w_kv_b;
  std::int64_t tokens() const { return batch * length; }
};

class Recording {
 public:
  explicit Recording(const std::string& stem) {
    Result<SafetensorsFile> file = SafetensorsFile::Open(stem + ".safetensors");
    INFO(file.status().ToString());
    REQUIRE(file.ok());
    Result<ModelConfig> config = ModelConfig::FromHuggingFace(stem + ".config.json");
    INFO(config.status().ToString());
    REQUIRE(config.ok());
    model = *std::move(config);
    Result<RopeFrequencies> found = ComputeRopeFrequencies(rope());
    REQUIRE(found.ok());
    frequencies = *std::move(found);
    for (int l = 0; l < model.num_layers; ++l)
      ReadLayer(*file, std::string("l").append(std::to_string(l)).append("."));
  }

  const RopeSpec& rope() const { return model.ropes.at(0); }
  double scale() const {
    return SoftmaxScaleFactor(rope()) /
           std::sqrt(model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim);
  }

  ModelConfig model;
  double eps = 1e-6;  // of the latent's norm, which does not follow the config's rms_norm_eps
  RopeFrequencies frequencies;
  std::vector<Layer> layers;

 private:
  static Tensor Read(SafetensorsFile& file, const std::string& name) {
    Result<std::vector<float>> values = file.Read<float>(name);
    INFO(values.status().ToString());
    REQUIRE(values.ok());
    return {*std::move(values), file.Find(name)->shape.back()};
  }

  void ReadLayer(SafetensorsFile& file, const std::string& prefix) {
    Layer& layer = layers.emplace_back();
    const char* query = model.mla.q_lora_rank > 0 ? "q_b_proj" : "q_proj";
    layer.hidden = Read(file, prefix + "hidden");
    layer.q = Read(file, prefix + query);
    layer.latent = Read(file, prefix + "cache_k");
    layer.k_pe = Read(file, prefix + "cache_v");
    layer.attn_out = Read(file, prefix + "attn_out");
    layer.w_down = Read(file, prefix + "w.kv_a_proj_with_mqa");
    layer.w_norm = Read(file, prefix + "w.kv_a_layernorm");
    layer.w_kv_b = Read(file, prefix + "w.kv_b_proj");
    const std::vector<std::int64_t>& shape = file.Find(prefix + "hidden")->shape;
    layer.batch = shape[0];
    layer.length = shape[1];
  }
};

// A paged cache of fp32 latent rows, its blocks in another order than the tokens'.
class Paged {
 public:
  static constexpr int kBlockSize = 16;
  Paged(const Layer& layer, std::int64_t width)
      : width_(width), blocks_((layer.length - 1) / kBlockSize + 1) {
    for (std::int64_t b = 0; b < layer.batch; ++b) {
      for (std::int64_t i = 0; i < blocks_; ++i) {
        table_.push_back(static_cast<std::int32_t>((blocks_ - 1 - i) * layer.batch + b));
      }
    }
  }
  std::int64_t blocks() const { return static_cast<std::int64_t>(table_.size()); }
  std::int64_t blocks_each() const { return blocks_; }
  const std::vector<std::int32_t>& table() const { return table_; }
  std::int64_t Slot(std::int64_t sequence, std::int64_t token) const {
    return table_[U(sequence * blocks_ + token / kBlockSize)] * kBlockSize + token % kBlockSize;
  }
  std::vector<float> Poison() const {
    return std::vector<float>(U(blocks() * kBlockSize * width_), std::nanf(""));
  }

 private:
  std::int64_t width_, blocks_;
  std::vector<std::int32_t> table_;
};

// Which elements make pair i, before and after it turns.
struct Places {
  std::size_t x, y, to_x, to_y;
};
inline Places PlacesOf(RopeStyle style, std::size_t pair, std::size_t pairs) {
  const bool from_half = style == RopeStyle::kHalf;
  const bool to_half = style != RopeStyle::kInterleaved;
  const std::size_t x = from_half ? pair : 2 * pair, to_x = to_half ? pair : 2 * pair;
  return {x, from_half ? x + pairs : x + 1, to_x, to_half ? to_x + pairs : to_x + 1};
}

// A row turned in double, and how far the recorded one may be from it: `error` of each element of
// the input; the recording's fp32 table (2 units of the pair's length) and its rounding, 4 units
// in all; and the angle, which is off by so much of the pair's other element.
struct TurnedRow {
  Row value, bound;
};
inline TurnedRow Turned(const Recording& recording, const Row& x, const Row& error,
                        std::int64_t position) {
  TurnedRow turned{x, error};
  const std::size_t pairs = recording.frequencies.inv_freq.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const Places at = PlacesOf(recording.rope().style, i, pairs);
    const double frequency = recording.frequencies.inv_freq[i];
    const double angle = static_cast<double>(position) * frequency;
    const double c = recording.frequencies.attention_factor * std::cos(angle);
    const double s = recording.frequencies.attention_factor * std::sin(angle);
    const double turned_x = x[at.x] * c - x[at.y] * s;
    const double turned_y = x[at.x] * s + x[at.y] * c;
    const double common = 4 * kU * std::hypot(turned_x, turned_y);
    const double turn = (kFrequencyUnits + 1) * kU * angle;
    turned.value[at.to_x] = turned_x;
    turned.value[at.to_y] = turned_y;
    turned.bound[at.to_x] = error[at.x] * std::fabs(c) + error[at.y] * std::fabs(s) + common +
                            turn * std::fabs(turned_y);
    turned.bound[at.to_y] = error[at.x] * std::fabs(s) + error[at.y] * std::fabs(c) + common +
                            turn * std::fabs(turned_x);
  }
  return turned;
}

// A sum of products as fp32 works it out of what was recorded: besides the sum's own error, either
// input of each product was rounded by one unit, by Cauchy-Schwarz 2 units of
// sqrt(n sum of squares) at most.
inline double RecordedBound(const ProductSum& sum) {
  return sum.SumBound() + 2 * kU * std::sqrt(sum.count * sum.squares);
}

inline void Checked(double error, double bound, double& worst) {
  CAPTURE(error, bound);
  if (!(error <= bound)) CHECK(error <= bound);
  worst = std::max(worst, error / bound);
}

}  // namespace lariat::testing
