// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "support/case_cache.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat::testing {

inline constexpr int kLatentRank = 37;  // odd on purpose
inline constexpr int kLatentRope = 10;
inline constexpr int kLatentWidth = kLatentRank + kLatentRope;

// Layers of latents of 37 elements and k_pe of 10, of which 8 turn; blocks of 4 tokens.
inline CacheConfig LatentConfig(int layers = 2) {
  CacheConfig config;
  const LayerSpec layer{.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = kLatentWidth, .rope = 0};
  config.layers.assign(static_cast<std::size_t>(layers), layer);
  RopeSpec& rope = config.ropes.emplace_back();
  rope.rotary_dim = 8;
  rope.style = RopeStyle::kInterleavedToHalf;
  config.dtype = DType::kBF16;
  config.backend = BackendKind::kCpu;
  config.memory.num_blocks = 16;
  config.block_size = 4;
  config.max_sequences = 6;
  config.max_tokens_per_sequence = 40;
  config.max_tokens_per_step = 32;
  return config;
}

inline KVCache Make(const CacheConfig& config, const Device& device) {
  auto made = KVCache::Create(config, device);
  if (!made.ok()) FAIL(made.status().ToString());
  return *std::move(made);
}

inline Step Prepared(KVCache& cache, const std::vector<StepItem>& items, const StepShape& shape) {
  auto step = cache.Plan(items, shape);
  if (!step.ok()) FAIL(step.status().ToString());
  CaseCache::Must(cache.Prepare(*step, {}));
  return *std::move(step);
}

// `rows` of `total` rows are numbers, the rest, which a padded step reads, NaN.
template <class F>
std::vector<typename F::Bits> PaddedRows(Random& random, std::int64_t rows, std::int64_t total,
                                         std::int64_t width) {
  auto values = random.Numbers<F>(rows * width);
  values.resize(static_cast<std::size_t>(total * width), F::kCanonicalNaN);
  return values;
}

template <class F>
std::vector<typename F::Bits> StoredRows(KVCache& cache, SequenceId id, int layer,
                                         std::int64_t count) {
  std::vector<typename F::Bits> rows(static_cast<std::size_t>(count * kLatentWidth));
  CaseCache::Must(cache.ReadRows(id, layer, 0, count, rows.data(), nullptr));
  return rows;
}

// Appends the step's rows to both layers.
template <class F>
void AppendRows(KVCache& cache, const Step& step, Random& random) {
  for (int layer = 0; layer < 2; ++layer) {
    DeviceVector<typename F::Bits> rows(
        cache.device(),
        PaddedRows<F>(random, step.num_tokens(), step.padded_tokens(), kLatentWidth));
    MlaAppendInputs inputs;
    inputs.dtype = F::kDType;
    inputs.kv_lora_rank = kLatentRank;
    inputs.c_kv = rows.data();
    inputs.k_pe = rows.data() + kLatentRank;
    inputs.c_kv_stride = inputs.k_pe_stride = kLatentWidth;
    CaseCache::Must(cache.MlaAppend(step, layer, inputs, {}));
    CaseCache::Must(cache.device().Synchronize({}));
  }
}

}  // namespace lariat::testing
