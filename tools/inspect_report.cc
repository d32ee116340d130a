// SPDX-License-Identifier: Apache-2.0
#include "inspect_report.h"

#include <algorithm>

#include "lariat/kv_cache.h"

namespace lariat::tools {

bool IsMla(const ModelConfig& model) { return model.mla.kv_lora_rank > 0; }

Result<RopeRows> MakeRopeRows(const ModelConfig& model, const RopeSpec& spec,
                              const InspectQuery& query) {
  std::int64_t length = query.length;
  if (length < 0) {
    for (const std::int64_t position : query.positions) length = std::max(length, position + 1);
    length = std::max<std::int64_t>(length, 0);
  }
  Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec, length);
  if (!frequencies.ok()) return frequencies.status();
  RopeRows rows;
  rows.frequencies = *std::move(frequencies);
  rows.softmax_scale_factor = IsMla(model) ? SoftmaxScaleFactor(spec) : 1.0;
  rows.positions = query.positions;
  const std::size_t pairs = rows.frequencies.inv_freq.size();
  rows.cos.resize(rows.positions.size() * pairs);
  rows.sin.resize(rows.positions.size() * pairs);
  for (std::size_t i = 0; i < rows.positions.size(); ++i) {
    FillRopeTable(rows.frequencies, rows.positions[i], 1,
                  std::span(rows.cos).subspan(i * pairs, pairs),
                  std::span(rows.sin).subspan(i * pairs, pairs));
  }
  return rows;
}

namespace {

// A cache of the model without memory, which knows how many blocks a sequence takes. None of a
// model with layers that no cache stores.
Result<KVCache> MakeRuler(const ModelConfig& model, const InspectQuery& query, int block_size,
                          std::int64_t longest) {
  CacheConfig config;
  config.layers = model.layers;
  config.ropes = model.ropes;
  config.dtype = query.dtype;
  config.backend = BackendKind::kNull;
  config.memory.unlimited = true;
  config.block_size = block_size;
  config.max_sequences = 1;
  config.max_tokens_per_sequence = std::max<std::int64_t>(longest, 1);
  return KVCache::Create(config);
}

}  // namespace

MemoryFit FitMemory(const ModelConfig& model, const InspectQuery& query) {
  MemoryFit fit;
  const std::int64_t bytes_per_token = KvBytesPerToken(model, query.dtype);
  fit.block_size = query.block_size > 0 ? query.block_size : IsMla(model) ? 64 : 16;
  fit.bytes_per_block = bytes_per_token * fit.block_size;
  fit.lengths = query.lengths;
  if (fit.lengths.empty()) {
    const std::int64_t most =
        model.max_position_embeddings > 0 ? model.max_position_embeddings : 131072;
    for (std::int64_t length = 1024; length < most; length *= 4) fit.lengths.push_back(length);
    fit.lengths.push_back(most);
  }
  if (bytes_per_token == 0 || !query.memory) return fit;
  const std::int64_t longest = *std::max_element(fit.lengths.begin(), fit.lengths.end());
  const Result<KVCache> ruler = MakeRuler(model, query, fit.block_size, longest);
  fit.counts_windows = ruler.ok();
  if (ruler.ok()) fit.bytes_per_block = ruler->footprint().bytes_per_block;
  fit.blocks = *query.memory / fit.bytes_per_block;
  fit.tokens = *query.memory / bytes_per_token;
  for (const std::int64_t length : fit.lengths) {
    const std::int64_t blocks = ruler.ok() ? ruler->BlocksFor(length, length)
                                           : (length + fit.block_size - 1) / fit.block_size;
    fit.sequences.push_back(fit.blocks / std::max<std::int64_t>(1, blocks));
  }
  return fit;
}

}  // namespace lariat::tools
