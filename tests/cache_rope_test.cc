// SPDX-License-Identifier: Apache-2.0
// KVCache with ropes that have several tables or several positions: what is stored is worked out
// here from the frequencies, pair by pair.
#include <array>
#include <cmath>
#include <vector>

#include "lariat/kv_cache.h"
#include "support/catch.h"
#include "support/device_vector.h"

namespace lariat::testing {
namespace {

constexpr int kDim = 8;
constexpr std::int64_t kMax = 64;

RopeSpec Longrope() {
  RopeSpec rope;
  rope.type = RopeType::kLongrope;
  rope.rotary_dim = kDim;
  rope.factor = 4;
  rope.original_max_position_embeddings = 16;
  rope.short_factor = {1, 1.5, 2, 2.5};
  rope.long_factor = {3, 5, 7, 9};
  return rope;
}

CacheConfig Config(const RopeSpec& rope) {
  CacheConfig config;
  config.layers.assign(2, {.kv_heads = 1, .k_dim = kDim, .v_dim = kDim, .rope = 0});
  config.ropes.push_back(rope);
  config.dtype = DType::kFP32;
  config.block_size = 4;
  config.memory.num_blocks = 40;
  config.max_sequences = 4;
  config.max_tokens_per_sequence = kMax;
  config.max_tokens_per_step = 32;
  return config;
}

SequenceId OpenPrompt(KVCache& cache, std::int64_t tokens, std::int64_t max_length) {
  std::vector<TokenId> prompt;
  for (std::int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<TokenId>(100 + i));
  OpenOptions options;
  options.max_length = max_length;
  Result<SequenceId> opened = cache.Open(prompt, options);
  REQUIRE(opened.ok());
  return *opened;
}

float Input(std::int64_t row, int element) {
  return static_cast<float>(std::sin(static_cast<double>(row) * 0.7 + element * 1.3));
}

// Appends the items' rows of both layers; row r's key is Input(r, .).
std::vector<StepRows> RunStep(KVCache& cache, const std::vector<StepItem>& items) {
  Result<Step> step = cache.Plan(items);
  INFO(step.status().ToString());
  REQUIRE(step.ok());
  const std::vector<StepRows> rows(step->rows().begin(), step->rows().end());
  std::vector<float> values;
  for (std::int64_t r = 0; r < step->num_tokens(); ++r) {
    for (int e = 0; e < kDim; ++e) values.push_back(Input(r, e));
  }
  DeviceVector<float> k(cache.device(), values);
  REQUIRE(cache.Prepare(*step, Stream{}).ok());
  for (int layer = 0; layer < 2; ++layer) {
    AppendInputs inputs = {.dtype = DType::kFP32, .k = k.data(), .v = k.data()};
    inputs.dependent_launch = DependentLaunch::kAfterWait;  // right behind what writes the slots
    const Status appended = cache.Append(*step, layer, inputs, Stream{});
    INFO(appended.ToString());
    REQUIRE(appended.ok());
  }
  REQUIRE(cache.Commit(*step, {}, Stream{}).ok());
  return rows;
}

// Key row `index` of the sequence must be Input(row, .) turned by `positions` (one for each
// section) under these frequencies. Tolerance: the table's rounding, two products and a sum in
// fp32, each within 2^-24 of values below 2.
void CheckKey(KVCache& cache, SequenceId sequence, std::int64_t index, std::int64_t row,
              const std::array<std::int64_t, 3>& positions, const RopeFrequencies& frequencies,
              const std::vector<int>& sections, RopeStyle style) {
  std::vector<float> got(kDim);
  REQUIRE(cache.ReadRows(sequence, 1, index, 1, got.data(), nullptr).ok());
  for (int i = 0; i < kDim / 2; ++i) {
    const int section = sections.empty() ? 0 : sections[static_cast<std::size_t>(i)];
    const double angle = static_cast<double>(positions[static_cast<std::size_t>(section)]) *
                         frequencies.inv_freq[static_cast<std::size_t>(i)];
    const double c = std::cos(angle) * frequencies.attention_factor;
    const double s = std::sin(angle) * frequencies.attention_factor;
    const bool half_in = style == RopeStyle::kHalf;
    const bool half_out = style != RopeStyle::kInterleaved;
    const double x = Input(row, half_in ? i : 2 * i);
    const double y = Input(row, half_in ? i + kDim / 2 : 2 * i + 1);
    INFO("index " << index << " pair " << i);
    CHECK(std::fabs(got[half_out ? i : 2 * i] - (x * c - y * s)) < 8 * 0x1p-24);
    CHECK(std::fabs(got[half_out ? i + kDim / 2 : 2 * i + 1] - (x * s + y * c)) < 8 * 0x1p-24);
  }
}

TEST_CASE("A sequence turns by the table of its length, and shares with its like alone",
          "[cache]") {
  for (Device& device : AvailableDevices()) {
    Result<KVCache> cache = KVCache::Create(Config(Longrope()), device);
    INFO(cache.status().ToString());
    REQUIRE(cache.ok());
    const SequenceId small = OpenPrompt(*cache, 13, 16);
    const SequenceId large = OpenPrompt(*cache, 13, 17);  // beyond the original length (K23, K24)
    RunStep(*cache, {{.sequence = small, .num_tokens = 13}, {.sequence = large, .num_tokens = 13}});
    const RopeFrequencies by_short = *ComputeRopeFrequencies(Longrope(), 16);
    const RopeFrequencies by_long = *ComputeRopeFrequencies(Longrope(), kMax);
    REQUIRE(by_short.inv_freq != by_long.inv_freq);
    for (std::int64_t i = 0; i < 13; ++i) {
      CheckKey(*cache, small, i, i, {i}, by_short, {}, RopeStyle::kHalf);
      CheckKey(*cache, large, i, 13 + i, {i}, by_long, {}, RopeStyle::kHalf);
    }
    CHECK(cache->GetStats().indexed_blocks == 6);  // no merge across tables
    std::vector<TokenId> prompt;
    for (int i = 0; i < 13; ++i) prompt.push_back(100 + i);
    OpenOptions options;
    options.max_length = 20;
    CHECK(cache->Match(prompt, options).tokens == 12);
    REQUIRE(cache->Close(large).ok());
    REQUIRE(cache->Clear().ok());
    CHECK(cache->Match(prompt, options).tokens == 0);
    options.max_length = 16;
    CHECK(cache->Match(prompt, options).tokens == 0);
  }
}

TEST_CASE("One table serves a cache that never goes beyond the original length", "[cache]") {
  CacheConfig config = Config(Longrope());
  config.max_tokens_per_sequence = 16;
  Result<KVCache> cache = KVCache::Create(config, *Device::Create(BackendKind::kCpu));
  REQUIRE(cache.ok());
  CHECK(cache->footprint().rope_table_bytes == 16 * kDim * 4);
  CHECK(cache->View().rope_choice == nullptr);
  config.max_tokens_per_sequence = 17;
  CHECK(KVCache::Footprint(config)->rope_table_bytes == 2 * 17 * kDim * 4);
}

TEST_CASE("Dynamic: the plain table up to the original length, else that of the cache's limit",
          "[cache]") {
  RopeSpec rope;
  rope.type = RopeType::kDynamic;
  rope.rotary_dim = kDim;
  rope.factor = 2;
  rope.original_max_position_embeddings = 16;
  Result<KVCache> cache = KVCache::Create(Config(rope), *Device::Create(BackendKind::kCpu));
  REQUIRE(cache.ok());
  const SequenceId plain = OpenPrompt(*cache, 9, 16);
  const SequenceId stretched = OpenPrompt(*cache, 9, 0);
  RunStep(*cache, {{.sequence = plain, .num_tokens = 9}, {.sequence = stretched, .num_tokens = 9}});
  for (std::int64_t i = 0; i < 9; ++i) {
    CheckKey(*cache, plain, i, i, {i}, *ComputeRopeFrequencies(rope, 0), {}, RopeStyle::kHalf);
    CheckKey(*cache, stretched, i, 9 + i, {i}, *ComputeRopeFrequencies(rope, kMax), {},
             RopeStyle::kHalf);
  }
}

TEST_CASE("mrope: each pair turns by its section's position", "[cache]") {
  for (Device& device : AvailableDevices()) {
    for (const MropeLayout layout : {MropeLayout::kSectioned, MropeLayout::kInterleaved}) {
      RopeSpec rope;
      rope.rotary_dim = kDim;
      rope.mrope_sections = {2, 1, 1};
      rope.mrope_layout = layout;
      const std::vector<int> sections = layout == MropeLayout::kSectioned
                                            ? std::vector<int>{0, 0, 1, 2}
                                            : std::vector<int>{0, 1, 2, 0};
      Result<KVCache> cache = KVCache::Create(Config(rope), device);
      REQUIRE(cache.ok());
      const SequenceId image = OpenPrompt(*cache, 6, 0);
      const SequenceId text = OpenPrompt(*cache, 3, 0);
      const std::vector<std::int32_t> positions = {0, 1, 1, 1, 1, 2,   // time
                                                   0, 1, 1, 2, 2, 3,   // height
                                                   0, 1, 2, 1, 2, 3};  // width
      RunStep(*cache, {{.sequence = image, .num_tokens = 6, .positions = positions},
                       {.sequence = text, .num_tokens = 3}});
      const RopeFrequencies frequencies = *ComputeRopeFrequencies(rope);
      for (std::int64_t i = 0; i < 6; ++i) {
        const auto at = static_cast<std::size_t>(i);
        CheckKey(*cache, image, i, i, {positions[at], positions[6 + at], positions[12 + at]},
                 frequencies, sections, RopeStyle::kHalf);
      }
      for (std::int64_t i = 0; i < 3; ++i) {
        CheckKey(*cache, text, i, 6 + i, {i, i, i}, frequencies, sections, RopeStyle::kHalf);
      }
      // Rows at an image's positions are nobody else's prefix, unless extra keys name the image.
      CHECK(cache->GetStats().indexed_blocks == 0);
    }
  }
}

TEST_CASE("DeepSeek-V3's order: pairs come in interleaved and are stored in halves", "[cache]") {
  for (Device& device : AvailableDevices()) {
    RopeSpec rope;
    rope.rotary_dim = kDim;
    rope.style = RopeStyle::kInterleavedToHalf;
    Result<KVCache> cache = KVCache::Create(Config(rope), device);
    REQUIRE(cache.ok());
    const SequenceId sequence = OpenPrompt(*cache, 5, 0);
    RunStep(*cache, {{.sequence = sequence, .num_tokens = 5}});
    for (std::int64_t i = 0; i < 5; ++i) {
      CheckKey(*cache, sequence, i, i, {i}, *ComputeRopeFrequencies(rope), {}, rope.style);
    }
  }
}

TEST_CASE("Positions for a wrong number of sections are refused", "[cache]") {
  Result<KVCache> cache = KVCache::Create(Config(Longrope()), *Device::Create(BackendKind::kNull));
  REQUIRE(cache.ok());
  const SequenceId sequence = OpenPrompt(*cache, 6, 0);
  const std::vector<std::int32_t> positions(6, 0);
  const StepItem item = {.sequence = sequence, .num_tokens = 2, .positions = positions};
  CHECK(cache->Plan({&item, 1}).status().code() == Code::kInvalidArgument);
  RopeSpec rope;
  rope.rotary_dim = kDim;
  rope.mrope_sections = {2, 2};
  CHECK(KVCache::Create(Config(rope), *Device::Create(BackendKind::kNull)).status().code() ==
        Code::kUnsupported);
}

}  // namespace
}  // namespace lariat::testing
