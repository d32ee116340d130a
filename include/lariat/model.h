// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/rope.h"
#include "lariat/status.h"
#include "lariat/types.h"

// What is known of a model without its weights. Part of lariat::session: a server that fills
// CacheConfig itself does not need it.

namespace lariat {

// A decoder-only transformer. A value; thread rules as for one.
struct ModelConfig {
  std::string name;        // the preset's: "llama-3.1-8b"
  std::string model_type;  // Hugging Face's: "llama"

  // --- what a cache stores: copy these into CacheConfig ---
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;
  DType dtype = DType::kBF16;                // the checkpoint's
  std::int64_t max_position_embeddings = 0;  // tokens a sequence may have

  // --- what a cost model counts ---
  int num_layers = 0;  // as many as layers has
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // width of the gated MLP
  std::int64_t vocab_size = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  bool tie_word_embeddings = false;  // the output projection is the embedding table
  int experts = 0;                   // per MoE layer; 0: dense
  int experts_per_token = 0;
  std::int64_t parameters = 0;  // elements of all weights; tied ones count once
};

// Bytes that one token takes in all layers, K and V, unsharded, in `dtype`. Windows are ignored.
std::int64_t KvBytesPerToken(const ModelConfig& model, DType dtype);

// The model of that name, one of ModelPresetNames().
// Errors: kUnsupported: any other name, and any path of a config.json, which this version does not
//   read; the message names it and lists what there is.
Result<ModelConfig> ModelPreset(std::string_view name);

// Sorted.
std::vector<std::string> ModelPresetNames();

}  // namespace lariat
