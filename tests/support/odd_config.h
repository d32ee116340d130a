// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "lariat/kv_cache.h"

namespace lariat::testing {

// 3 layers of 5 heads, keys of 12 and values of 6 elements, blocks of 8 tokens.
inline CacheConfig Odd() {
  CacheConfig config;
  LayerSpec layer;
  layer.kv_heads = 5;
  layer.k_dim = 12;
  layer.v_dim = 6;
  layer.rope = 0;
  config.layers.assign(3, layer);
  RopeSpec& rope = config.ropes.emplace_back();
  rope.rotary_dim = 10;
  config.dtype = DType::kBF16;
  config.backend = BackendKind::kCpu;
  config.memory.num_blocks = 7;
  config.block_size = 8;
  config.max_sequences = 9;
  config.max_tokens_per_sequence = 100;
  config.max_tokens_per_step = 50;
  return config;
}

}  // namespace lariat::testing
