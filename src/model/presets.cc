// SPDX-License-Identifier: Apache-2.0
// The models known by name. Each number is that of the config.json which its authors published.
#include <array>

#include "lariat/model.h"

namespace lariat {
namespace {

// The fields of a config.json of model_type "llama". All layers are alike.
struct LlamaConfig {
  std::string_view name;
  int num_hidden_layers;
  std::int64_t hidden_size;
  std::int64_t intermediate_size;
  std::int64_t vocab_size;
  int num_attention_heads;
  int num_key_value_heads;
  int head_dim;
  bool tie_word_embeddings;
  std::int64_t max_position_embeddings;
  double rope_theta;
  double rope_factor;  // of rope_type llama3 over 8192 tokens, bands 1 and 4; 0: default
};

// Sorted by name.
constexpr std::array<LlamaConfig, 3> kPresets = {{
    {.name = "llama-3.1-8b",
     .num_hidden_layers = 32,
     .hidden_size = 4096,
     .intermediate_size = 14336,
     .vocab_size = 128256,
     .num_attention_heads = 32,
     .num_key_value_heads = 8,
     .head_dim = 128,
     .tie_word_embeddings = false,
     .max_position_embeddings = 131072,
     .rope_theta = 500000.0,
     .rope_factor = 8.0},
    {.name = "llama-3.2-1b",
     .num_hidden_layers = 16,
     .hidden_size = 2048,
     .intermediate_size = 8192,
     .vocab_size = 128256,
     .num_attention_heads = 32,
     .num_key_value_heads = 8,
     .head_dim = 64,
     .tie_word_embeddings = true,
     .max_position_embeddings = 131072,
     .rope_theta = 500000.0,
     .rope_factor = 32.0},
    {.name = "smollm2-135m",
     .num_hidden_layers = 30,
     .hidden_size = 576,
     .intermediate_size = 1536,
     .vocab_size = 49152,
     .num_attention_heads = 9,
     .num_key_value_heads = 3,
     .head_dim = 64,
     .tie_word_embeddings = true,
     .max_position_embeddings = 8192,
     .rope_theta = 100000.0,
     .rope_factor = 0.0},
}};

RopeSpec RopeOf(const LlamaConfig& config) {
  RopeSpec rope;
  rope.style = RopeStyle::kHalf;
  rope.rotary_dim = config.head_dim;
  rope.theta = config.rope_theta;
  if (config.rope_factor > 0) {
    rope.type = RopeType::kLlama3;
    rope.factor = config.rope_factor;
    rope.low_freq_factor = 1.0;
    rope.high_freq_factor = 4.0;
    rope.original_max_position_embeddings = 8192;
  }
  return rope;
}

// Elements of all weights. A layer has q, k, v and o projections, a gated MLP of three matrices and
// two norms, none with a bias; around the layers stand the embedding, a norm and the output
// projection.
std::int64_t CountParameters(const LlamaConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_width = std::int64_t{config.num_attention_heads} * config.head_dim;
  const std::int64_t kv_width = std::int64_t{config.num_key_value_heads} * config.head_dim;
  const std::int64_t attention = 2 * hidden * q_width + 2 * hidden * kv_width;
  const std::int64_t mlp = 3 * hidden * config.intermediate_size;
  const std::int64_t norms = 2 * hidden;
  const std::int64_t embeddings = (config.tie_word_embeddings ? 1 : 2) * config.vocab_size * hidden;
  return embeddings + config.num_hidden_layers * (attention + mlp + norms) + hidden;
}

ModelConfig Expand(const LlamaConfig& config) {
  ModelConfig model;
  model.name = config.name;
  model.model_type = "llama";
  LayerSpec layer;
  layer.kind = LayerKind::kFull;
  layer.kv_heads = config.num_key_value_heads;
  layer.k_dim = config.head_dim;
  layer.v_dim = config.head_dim;
  layer.rope = 0;
  model.layers.assign(static_cast<std::size_t>(config.num_hidden_layers), layer);
  model.ropes = {RopeOf(config)};
  model.dtype = DType::kBF16;
  model.max_position_embeddings = config.max_position_embeddings;
  model.num_layers = config.num_hidden_layers;
  model.hidden_size = config.hidden_size;
  model.intermediate_size = config.intermediate_size;
  model.vocab_size = config.vocab_size;
  model.q_heads = config.num_attention_heads;
  model.kv_heads = config.num_key_value_heads;
  model.head_dim = config.head_dim;
  model.tie_word_embeddings = config.tie_word_embeddings;
  model.parameters = CountParameters(config);
  return model;
}

}  // namespace

std::int64_t KvBytesPerToken(const ModelConfig& model, DType dtype) {
  std::int64_t elements = 0;
  for (const LayerSpec& layer : model.layers) {
    elements += std::int64_t{layer.kv_heads} * (std::int64_t{layer.k_dim} + layer.v_dim);
  }
  return elements * static_cast<std::int64_t>(SizeOf(dtype));
}

Result<ModelConfig> ModelPreset(std::string_view name) {
  for (const LlamaConfig& preset : kPresets) {
    if (preset.name == name) return Expand(preset);
  }
  std::string message = "model '" + std::string(name) +
                        "' is not known, and config.json is not read by this version; allowed: ";
  std::string_view separator;
  for (const LlamaConfig& preset : kPresets) {
    message.append(separator).append(preset.name);
    separator = ", ";
  }
  return Unsupported(std::move(message));
}

std::vector<std::string> ModelPresetNames() {
  std::vector<std::string> names;
  for (const LlamaConfig& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

}  // namespace lariat
