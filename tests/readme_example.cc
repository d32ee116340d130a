// SPDX-License-Identifier: Apache-2.0
// The example of README.md, which shows the lines between the marks (tests/docs_test.py).
// readme-begin
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "lariat/kv_cache.h"

void Check(const lariat::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

int main() {
  lariat::CacheConfig config;  // Llama 3.2 1B
  config.layers.assign(16, {.kv_heads = 8, .k_dim = 64, .v_dim = 64, .rope = 0});
  config.ropes.emplace_back().rotary_dim = 64;
  config.memory.bytes = 64 << 20;
  config.max_tokens_per_sequence = 2048;
  auto cache = lariat::KVCache::Create(config);
  Check(cache.status());
  auto rows = cache->device().Allocate(lariat::MemoryKind::kDevice, 100 * 8 * 64 * 2);
  Check(rows.status());
  const lariat::Stream stream;  // a cudaStream_t of yours, or the default stream

  const std::vector<lariat::TokenId> prompt(100, 7);
  for (int request = 0; request < 2; ++request) {
    auto sequence = cache->Open(prompt);
    Check(sequence.status());
    const lariat::StepItem items[] = {{.sequence = *sequence, .num_tokens = 100}};
    auto step = cache->Plan(items);  // reserves slots; kResourceExhausted: preempt someone, retry
    Check(step.status());
    std::printf("%d of 100 prompt tokens were cached\n", static_cast<int>(step->rows()[0].hit));
    Check(cache->Prepare(*step, stream));
    for (int layer = 0; layer < 16; ++layer) {
      // Your projections fill `rows` here; your attention reads cache->View(), cache->Layer(layer).
      Check(cache->Append(*step, layer, {.k = rows->data(), .v = rows->data()}, stream));
    }
    Check(cache->Commit(*step, {}, stream));
    Check(cache->Close(*sequence));
  }
}
// readme-end
