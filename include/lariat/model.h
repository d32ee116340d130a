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

// Dimensions of multi-head latent attention; all 0 in a model without it.
struct MlaDims {
  int kv_lora_rank = 0;      // elements of a latent
  int qk_rope_head_dim = 0;  // elements of a key that turn, stored beside the latent
  int qk_nope_head_dim = 0;
  int v_head_dim = 0;
  int q_lora_rank = 0;  // 0: queries are projected at once
  // What the latent's RMSNorm adds to the mean square. Models of the transformers library give
  // this norm 1e-6 whatever their rms_norm_eps says.
  double norm_eps = 0;
};

// Keys of a sparse-attention indexer, which are stored besides K and V and not counted with them.
struct IndexerDims {
  int head_dim = 0;  // 0: the model has none
  int heads = 0;     // of its queries; it stores one key per token
  int topk = 0;
  RopeStyle style = RopeStyle::kHalf;
  std::vector<int> layers;  // those with a key cache of their own
};

// A decoder-only transformer. A value; thread rules as for one.
struct ModelConfig {
  std::string name;        // the preset's: "llama-3.1-8b"; else the file's path
  std::string model_type;  // Hugging Face's, at the top of the config: "llama"

  // --- what a cache stores: copy these into CacheConfig ---
  // kMla layers have kv_heads 1, k_dim kv_lora_rank + qk_rope_head_dim and v_dim 0 (an odd sum and
  // widths over 512 included); kLinear layers store nothing per token: heads and widths 0.
  // LayerSpec::window is the window of kSliding and the chunk of kChunked layers.
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;               // the main one first; empty: none turns
  DType dtype = DType::kBF16;                // the checkpoint's; bf16 where it does not say
  std::int64_t max_position_embeddings = 0;  // tokens a sequence may have; 0: the caller's choice

  // --- how it attends ---
  MlaDims mla;
  IndexerDims indexer;
  std::int64_t sliding_window = 0;        // tokens; 0: none, or switched off
  std::int64_t attention_chunk_size = 0;  // tokens; 0: no chunked layers

  // --- what a cost model counts ---
  int num_layers = 0;  // as many as layers has
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // width of the gated MLP
  std::int64_t vocab_size = 0;
  int q_heads = 0;
  // The config's; layers may differ. kv_heads is the config's for MLA too, head_dim is 0 there.
  int kv_heads = 0;
  int head_dim = 0;
  bool tie_word_embeddings = false;  // the output projection is the embedding table
  int experts = 0;                   // per MoE layer; 0: dense
  int experts_per_token = 0;
  int shared_experts = 0;                  // of a width of moe_intermediate_size each
  int moe_layers = 0;                      // the others have the dense MLP
  std::int64_t moe_intermediate_size = 0;  // of one expert; 0: dense
  // Elements of all weights; tied ones count once. docs/models.md says for which families exactly.
  std::int64_t parameters = 0;

  // What the file says and this reader does not apply, or what it assumed, each naming its field.
  std::vector<std::string> warnings;

  // Reads a model's config.json, or the config.json of a folder, by the rules of the transformers
  // library (docs/models.md).
  // Errors: kInvalidArgument: "<file>: <field>: <what is there>; <what is allowed>", or the place
  //   in the file for what is no JSON.
  static Result<ModelConfig> FromHuggingFace(const std::string& path);
  // The same of a text. name: what errors call it.
  static Result<ModelConfig> FromHuggingFaceJson(std::string_view json,
                                                 const std::string& name = "config.json");
};

// Layers that store alike, of one kind, heads, widths, window and RoPE.
struct LayerGroup {
  LayerSpec spec;
  std::vector<int> layers;  // ascending
};

// The layers by groups, in the order of their first layers.
std::vector<LayerGroup> GroupLayers(const ModelConfig& model);

// Bytes that one token takes in all layers, unsharded, in `dtype`: K and V, or latents. Windows and
// indexer keys are not counted.
std::int64_t KvBytesPerToken(const ModelConfig& model, DType dtype);

// The model of that name, one of ModelPresetNames().
// Errors: kInvalidArgument: any other name; the message lists what there is.
Result<ModelConfig> ModelPreset(std::string_view name);

// Sorted.
std::vector<std::string> ModelPresetNames();

// A preset by its name, else ModelConfig::FromHuggingFace. A name wins over a file called the same;
// "./phi-4" is the file.
// Errors: kInvalidArgument: neither a name nor a file that can be read, or as FromHuggingFace.
Result<ModelConfig> LoadModel(const std::string& name_or_path);

}  // namespace lariat
