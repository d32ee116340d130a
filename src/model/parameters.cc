// SPDX-License-Identifier: Apache-2.0
#include "model/parameters.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lariat::model {
namespace {

constexpr std::array<std::string_view, 1> One(std::string_view name) { return {name}; }

// Counts in double, which is exact up to 2^53, far above any model, and cannot wrap.
class Counter {
 public:
  Counter(const Fields& config, const Family& family, const ModelConfig& model)
      : config_(config),
        facts_(family.vectors),
        matrices_(family.mlp_matrices),
        model_(model),
        hidden_(static_cast<double>(model.hidden_size)),
        qkv_bias_(Bias("attention_bias", facts_.qkv_bias)),
        o_bias_(Bias("attention_bias", facts_.o_bias) && (facts_.o_bias || !facts_.qkv_bias)),
        mlp_bias_(Bias("mlp_bias", facts_.mlp_bias)) {}

  double Count() const {
    const double vocab = static_cast<double>(model_.vocab_size);
    double total = (model_.tie_word_embeddings ? 1 : 2) * vocab * hidden_ + Norm();
    int dense_layers = model_.num_layers - model_.moe_layers;
    for (const LayerSpec& layer : model_.layers) total += Attention(layer) + facts_.norms * Norm();
    total += dense_layers * Mlp(static_cast<double>(DenseWidth()));
    total += model_.moe_layers * Experts();
    return total;
  }

 private:
  bool Bias(std::string_view key, bool otherwise) const {
    const Json* const value = config_.Find(key);
    return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
  }

  double Size(std::string_view key) const {
    return static_cast<double>(config_.Int(One(key), 0, 1 << 30).value_or(0));
  }

  double Norm() const { return hidden_ * (facts_.norm_bias ? 2 : 1); }

  std::int64_t DenseWidth() const {
    return config_.Int(One("intermediate_size_mlp"), 1, 1 << 30).value_or(model_.intermediate_size);
  }

  double Mlp(double width) const {
    const double biases = mlp_bias_ ? (matrices_ - 1) * width + hidden_ : 0;
    return matrices_ * hidden_ * width + biases;
  }

  double Experts() const {
    const double width = static_cast<double>(model_.moe_intermediate_size);
    const double biases = facts_.expert_bias ? 2 * width + hidden_ : 0;
    const double router =
        model_.experts * (hidden_ + (facts_.expert_bias ? 1 : 0) + (facts_.router_score ? 1 : 0));
    return router + model_.experts * (3 * hidden_ * width + biases) +
           model_.shared_experts * 3 * hidden_ * width;
  }

  double Attention(const LayerSpec& layer) const {
    if (layer.kind == LayerKind::kMla) return Latent();
    if (layer.kind == LayerKind::kLinear) return Linear();
    const double heads = model_.q_heads;
    const double gate = Bias("attn_output_gate", false) ? 2 : 1;
    const double q = gate * heads * layer.k_dim;
    const double kv = static_cast<double>(layer.kv_heads) * (layer.k_dim + layer.v_dim);
    double total = hidden_ * (q + kv) + heads * layer.v_dim * hidden_;
    if (qkv_bias_) total += q + kv;
    if (o_bias_) total += hidden_;
    if (facts_.qk_norm) total += 2 * layer.k_dim;
    if (facts_.sinks) total += heads;
    return total;
  }

  double Latent() const {
    const MlaDims& mla = model_.mla;
    const double heads = model_.q_heads;
    const double q_out = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
    const double q =
        mla.q_lora_rank == 0 ? hidden_ * q_out : mla.q_lora_rank * (hidden_ + 1.0 + q_out);
    const double down = hidden_ * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank;
    const double up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim);
    const double out = heads * mla.v_head_dim * hidden_;
    return q + down + up + out;
  }

  // A gated delta net: queries, keys, values and gates, two vectors and a short convolution.
  double Linear() const {
    const double value_heads = Size("linear_num_value_heads");
    const double keys = Size("linear_num_key_heads") * Size("linear_key_head_dim");
    const double values = value_heads * Size("linear_value_head_dim");
    const double inputs = hidden_ * (2 * keys + 2 * values + 2 * value_heads);
    const double convolution = (2 * keys + values) * Size("linear_conv_kernel_dim");
    return inputs + convolution + values * hidden_ + 2 * value_heads +
           Size("linear_value_head_dim");
  }

  const Fields& config_;
  const VectorFacts& facts_;
  const int matrices_;
  const ModelConfig& model_;
  const double hidden_;
  const bool qkv_bias_, o_bias_, mlp_bias_;
};

// The indexers of the layers that have one: two projections, a norm with a bias, and weights of
// its heads.
double Indexers(const ModelConfig& model) {
  const double dim = model.indexer.head_dim;
  const double heads = model.indexer.heads;
  const double hidden = static_cast<double>(model.hidden_size);
  const double one = model.mla.q_lora_rank * heads * dim + hidden * dim + 2 * dim + hidden * heads;
  return static_cast<double>(model.indexer.layers.size()) * one;
}

}  // namespace

std::int64_t CountParameters(const Fields& config, const Family& family, const ModelConfig& model) {
  const double total = Counter(config, family, model).Count() + Indexers(model);
  constexpr double kMost = 9e18;
  return static_cast<std::int64_t>(std::min(total, kMost));
}

}  // namespace lariat::model
