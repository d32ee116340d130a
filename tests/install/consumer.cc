// SPDX-License-Identifier: Apache-2.0
// Two sequences with a shared prefix, on the null backend: no memory, no device.
#include <cstdio>
#include <vector>

#include "lariat/kv_cache.h"

int main() {
  lariat::CacheConfig config;
  config.layers.assign(32, {.kv_heads = 8, .k_dim = 128, .v_dim = 128});
  config.backend = lariat::BackendKind::kNull;
  config.memory.num_blocks = 1000;
  config.max_tokens_per_sequence = 4096;
  auto cache = lariat::KVCache::Create(config);
  if (!cache.ok()) return std::printf("%s\n", cache.status().ToString().c_str());

  std::vector<lariat::TokenId> prompt(100, 7);
  for (const lariat::TokenId last : {1, 2}) {
    prompt.back() = last;
    const auto sequence = cache->Open(prompt);
    if (!sequence.ok()) return 1;
    const lariat::StepItem item = {.sequence = *sequence, .num_tokens = 100};
    auto step = cache->Plan({&item, 1});
    if (!step.ok()) return 1;
    std::printf("hit %d of 100\n", static_cast<int>(step->rows()[0].hit));
    if (!cache->Prepare(*step, {}).ok() || !cache->Commit(*step, {}, {}).ok()) return 1;
  }
}
