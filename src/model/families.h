// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "lariat/rope.h"

// What a config.json leaves to its model_type. A family is a row of the table in families.cc; a new
// one needs no code unless it brings a rule that no row has yet.

namespace lariat::model {

// How many KV heads there are.
enum class KvRule : std::uint8_t {
  kGrouped,     // num_key_value_heads
  kFalcon,      // of new_decoder_architecture alone; else multi_query (true): 1
  kMultiQuery,  // multi_query (true): 1, else as many as query heads
  kChatGlm,     // multi_query_group_num where multi_query_attention is on, else query heads
};

// Which layers slide, where layer_types does not say. use_sliding_window: false switches all off.
enum class WindowRule : std::uint8_t {
  kIgnored,   // none, whatever sliding_window says
  kAlways,    // all
  kSwitched,  // those from max_window_layers on, where use_sliding_window is on
  kPattern,   // all but every sliding_window_pattern-th
  kList,      // those with a 1 in hybrid_layer_pattern
};

// Which layers do not turn their keys.
enum class NopeRule : std::uint8_t {
  kNone,
  kList,        // those with a 0 in no_rope_layers; without it every no_rope_layer_interval-th
  kFullLayers,  // full attention, where other layers slide
};

// Vectors beside the weight matrices, for counting parameters.
struct VectorFacts {
  int norms = 2;              // per layer, of hidden_size
  bool norm_bias = false;     // LayerNorm instead of RMSNorm
  bool qk_norm = false;       // one per head_dim for queries and one for keys
  bool qkv_bias = false;      // where attention_bias does not say
  bool o_bias = false;        // likewise
  bool mlp_bias = false;      // likewise
  bool sinks = false;         // one per query head
  bool expert_bias = false;   // and of the router
  bool router_score = false;  // a correction per expert
};

struct Family {
  std::array<std::string_view, 4> names = {};  // model_type, of the text model or of the whole

  // --- RoPE ---
  bool has_rope = true;
  RopeStyle style = RopeStyle::kHalf;
  bool style_by_key = false;  // rope_interleave: false means kHalf
  double theta = 10000.0;
  std::string_view theta_multiplier = {};  // key of a number that multiplies it
  double partial = 1.0;                    // share of a head that turns
  int rotary_dim = 0;                      // not 0: the config counts elements; this is the default
  bool local_plain = false;                // sliding layers turn unscaled
  std::string_view local_theta_key = {};   // and by a theta of their own
  double local_theta = 0.0;                // its default; 0: that of the others
  MropeLayout mrope = MropeLayout::kSectioned;
  NopeRule nope = NopeRule::kNone;

  // --- heads ---
  KvRule kv = KvRule::kGrouped;
  int heads = 0;          // 0: must be given
  int kv_heads = 0;       // where the key is missing; 0: as many as query heads
  int head_dim = 0;       // 0: hidden_size / heads
  int full_head_dim = 0;  // of full layers, where global_head_dim is missing; 0: head_dim
  bool mla = false;       // kv_lora_rank must be given

  // --- layers ---
  WindowRule window = WindowRule::kIgnored;
  std::int64_t window_size = 0;  // where the key is missing; 0: none
  int window_pattern = 0;
  std::int64_t chunk_size = 0;  // > 0: layers with RoPE are chunked
  int full_interval = 0;        // > 0: others are linear

  // --- limits and weights ---
  std::int64_t max_positions = 0;  // where the key is missing; 0: the caller must say
  bool tied = false;
  int mlp_matrices = 3;  // 2: without a gate
  int mlp_divisor = 1;   // of intermediate_size; 2: it counts gate and up together
  VectorFacts vectors = {};
};

// Sorted by no rule: rows of kin stand together.
std::span<const Family> Families();

// The row of a model_type; null: none.
const Family* FindFamily(std::string_view model_type);

// The model_type that an entry of `architectures` stands for ("LlamaForCausalLM" for llama); empty:
// none.
std::string_view ModelTypeOfArchitecture(std::string_view architecture);

}  // namespace lariat::model
