// SPDX-License-Identifier: Apache-2.0
#include "model/families.h"

#include <string>

namespace lariat::model {
namespace {

constexpr auto kHalf = RopeStyle::kHalf;
constexpr auto kInterleaved = RopeStyle::kInterleaved;
constexpr auto kInterleavedToHalf = RopeStyle::kInterleavedToHalf;

// Defaults are those of the transformers library's config classes.
constexpr Family kFamilies[] = {
    // Llama and those that share its shape.
    {.names = {"llama"}},
    {.names = {"arcee", "seed_oss", "apertus", "internlm2"}},
    {.names = {"granite", "olmo", "hunyuan_v1_dense", "minicpm"}},
    {.names = {"mistral", "ministral"},
     .kv_heads = 8,
     .window = WindowRule::kAlways,
     .window_size = 4096},
    {.names = {"mistral3", "ministral3"}, .kv_heads = 8, .window = WindowRule::kAlways},
    {.names = {"mixtral"}, .theta = 1e6, .kv_heads = 8, .window = WindowRule::kAlways},
    {.names = {"smollm3"},
     .theta = 2e6,
     .nope = NopeRule::kList,
     .kv_heads = 4,
     .window = WindowRule::kSwitched,
     .tied = true},
    {.names = {"llama4_text", "llama4"},
     .style = kInterleaved,
     .theta = 5e5,
     .nope = NopeRule::kList,
     .kv_heads = 8,
     .head_dim = 128,
     .chunk_size = 8192},

    // Qwen.
    {.names = {"qwen"}, .mlp_divisor = 2, .vectors = {.qkv_bias = true}},
    {.names = {"qwen2"},
     .kv_heads = 32,
     .window = WindowRule::kSwitched,
     .vectors = {.qkv_bias = true}},
    {.names = {"qwen2_moe"},
     .kv_heads = 16,
     .window = WindowRule::kSwitched,
     .vectors = {.qkv_bias = true}},
    {.names = {"qwen2_vl_text", "qwen2_vl", "qwen2_5_vl_text", "qwen2_5_vl"},
     .kv_heads = 8,
     .window = WindowRule::kSwitched,
     .vectors = {.qkv_bias = true}},
    {.names = {"qwen3"},
     .kv_heads = 32,
     .head_dim = 128,
     .window = WindowRule::kSwitched,
     .vectors = {.qk_norm = true}},
    {.names = {"qwen3_moe"},
     .kv_heads = 4,
     .window = WindowRule::kSwitched,
     .vectors = {.qk_norm = true}},
    {.names = {"qwen3_vl_text", "qwen3_vl", "qwen3_vl_moe_text", "qwen3_vl_moe"},
     .theta = 5e6,
     .mrope = MropeLayout::kInterleaved,
     .kv_heads = 32,
     .vectors = {.qk_norm = true}},
    {.names = {"qwen3_next"},
     .partial = 0.25,
     .kv_heads = 2,
     .head_dim = 256,
     .full_interval = 4,
     .vectors = {.qk_norm = true}},
    {.names = {"qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"},
     .partial = 0.25,
     .mrope = MropeLayout::kInterleaved,
     .kv_heads = 4,
     .head_dim = 256,
     .full_interval = 4,
     .vectors = {.qk_norm = true}},

    // Gemma.
    {.names = {"gemma"}, .kv_heads = 16, .head_dim = 256, .tied = true},
    {.names = {"gemma2"},
     .kv_heads = 4,
     .head_dim = 256,
     .window = WindowRule::kPattern,
     .window_size = 4096,
     .window_pattern = 2,
     .tied = true,
     .vectors = {.norms = 4}},
    {.names = {"gemma3_text", "gemma3"},
     .theta = 1e6,
     .local_plain = true,
     .local_theta_key = "rope_local_base_freq",
     .local_theta = 10000.0,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .window = WindowRule::kPattern,
     .window_size = 4096,
     .window_pattern = 6,
     .max_positions = 131072,
     .tied = true,
     .vectors = {.norms = 4, .qk_norm = true}},
    {.names = {"gemma4_text", "gemma4"},
     .kv_heads = 4,
     .head_dim = 256,
     .full_head_dim = 512,
     .window = WindowRule::kPattern,
     .window_size = 512,
     .window_pattern = 6,
     .max_positions = 131072,
     .tied = true,
     .vectors = {.norms = 4, .qk_norm = true}},

    // Phi.
    {.names = {"phi"},
     .partial = 0.5,
     .mlp_matrices = 2,
     .vectors =
         {.norms = 1, .norm_bias = true, .qkv_bias = true, .o_bias = true, .mlp_bias = true}},
    {.names = {"phi3"}, .window = WindowRule::kAlways},
    {.names = {"phimoe"}, .theta = 1e6, .kv_heads = 8, .window = WindowRule::kAlways},

    // GLM.
    {.names = {"glm"},
     .style = kInterleaved,
     .partial = 0.5,
     .kv_heads = 2,
     .head_dim = 128,
     .vectors = {.qkv_bias = true}},
    {.names = {"glm4", "glm4v_text", "glm4v"},
     .style = kInterleaved,
     .partial = 0.5,
     .kv_heads = 2,
     .head_dim = 128,
     .vectors = {.norms = 4, .qkv_bias = true}},
    {.names = {"glm4_moe"}, .partial = 0.5, .kv_heads = 8, .vectors = {.router_score = true}},
    {.names = {"chatglm"},
     .style = kInterleaved,
     .theta_multiplier = "rope_ratio",
     .partial = 0.5,
     .kv = KvRule::kChatGlm,
     .vectors = {.qkv_bias = true}},

    // Cohere.
    {.names = {"cohere"}, .style = kInterleaved, .tied = true, .vectors = {.norms = 1}},
    {.names = {"cohere2"},
     .style = kInterleaved,
     .nope = NopeRule::kFullLayers,
     .window = WindowRule::kPattern,
     .window_size = 4096,
     .window_pattern = 4,
     .tied = true,
     .vectors = {.norms = 1}},

    // OpenAI.
    {.names = {"gpt_oss"},
     .theta = 150000.0,
     .kv_heads = 8,
     .head_dim = 64,
     .window = WindowRule::kPattern,
     .window_size = 128,
     .window_pattern = 2,
     .vectors = {.qkv_bias = true, .o_bias = true, .sinks = true, .expert_bias = true}},
    {.names = {"gpt2"},
     .has_rope = false,
     .tied = true,
     .mlp_matrices = 2,
     .vectors = {.norm_bias = true, .qkv_bias = true, .o_bias = true, .mlp_bias = true}},
    {.names = {"gpt_bigcode"},
     .has_rope = false,
     .kv = KvRule::kMultiQuery,
     .tied = true,
     .mlp_matrices = 2,
     .vectors = {.norm_bias = true, .qkv_bias = true, .o_bias = true, .mlp_bias = true}},

    // Latent attention.
    {.names = {"deepseek_v2"}, .style = kInterleaved, .mla = true},
    {.names = {"deepseek_v3", "kimi_k2", "deepseek_v32"},
     .style = kInterleavedToHalf,
     .style_by_key = true,
     .mla = true,
     .vectors = {.router_score = true}},
    {.names = {"glm_moe_dsa", "glm4_moe_lite"},
     .style = kInterleavedToHalf,
     .style_by_key = true,
     .mla = true,
     .vectors = {.router_score = true}},
    {.names = {"minicpm3"}, .style = kHalf, .mla = true},

    // Others.
    {.names = {"falcon", "RefinedWeb", "RefinedWebModel"},
     .kv = KvRule::kFalcon,
     .max_positions = 2048,
     .tied = true,
     .mlp_matrices = 2,
     .vectors = {.norm_bias = true}},
    {.names = {"gptj", "codegen"},
     .style = kInterleaved,
     .rotary_dim = 64,
     .mlp_matrices = 2,
     .vectors = {.norms = 1, .norm_bias = true, .mlp_bias = true}},
    {.names = {"gpt_neox"},
     .partial = 0.25,
     .mlp_matrices = 2,
     .vectors = {.norm_bias = true, .qkv_bias = true, .o_bias = true, .mlp_bias = true}},
    {.names = {"stablelm"}, .partial = 0.25, .vectors = {.norm_bias = true}},
    {.names = {"nemotron", "persimmon"},
     .partial = 0.5,
     .mlp_matrices = 2,
     .vectors = {.norm_bias = true}},
    {.names = {"starcoder2"},
     .kv_heads = 2,
     .window = WindowRule::kAlways,
     .mlp_matrices = 2,
     .vectors = {.norm_bias = true, .qkv_bias = true, .o_bias = true, .mlp_bias = true}},
    {.names = {"olmo2"}},
    {.names = {"olmo3"},
     .local_plain = true,
     .window = WindowRule::kPattern,
     .window_size = 4096,
     .window_pattern = 4},
    {.names = {"exaone4"},
     .nope = NopeRule::kFullLayers,
     .window = WindowRule::kPattern,
     .window_pattern = 4},
    {.names = {"ernie4_5", "ernie4_5_moe"}, .style = kInterleaved, .theta = 5e5, .tied = true},
    {.names = {"minimax_m2"}, .theta = 5e6, .rotary_dim = 64, .kv_heads = 8},
    {.names = {"mimo_v2_flash"},
     .local_plain = true,
     .local_theta_key = "swa_rope_theta",
     .local_theta = 10000.0,
     .window = WindowRule::kList},
};

// "DeepseekV3" and "deepseek_v3" alike.
std::string Folded(std::string_view name) {
  std::string folded;
  for (const char c : name) {
    if (c != '_') folded += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return folded;
}

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view model_type) {
  if (model_type.empty()) return nullptr;
  for (const Family& family : kFamilies) {
    for (const std::string_view name : family.names) {
      if (name == model_type) return &family;
    }
  }
  return nullptr;
}

std::string_view ModelTypeOfArchitecture(std::string_view architecture) {
  for (const std::string_view suffix :
       {"ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "Model"}) {
    if (architecture.size() <= suffix.size() || !architecture.ends_with(suffix)) continue;
    const std::string stem = Folded(architecture.substr(0, architecture.size() - suffix.size()));
    for (const Family& family : kFamilies) {
      for (const std::string_view name : family.names) {
        if (!name.empty() && Folded(name) == stem) return name;
      }
    }
  }
  return {};
}

}  // namespace lariat::model
