// SPDX-License-Identifier: Apache-2.0
#include "model/config_heads.h"

#include <algorithm>
#include <array>

namespace lariat::model {
namespace {

constexpr std::array<std::string_view, 4> kHidden = {"hidden_size", "n_embd", "d_model", "dim"};
constexpr std::array<std::string_view, 4> kKvHeads = {"num_key_value_heads", "num_kv_heads",
                                                      "n_head_kv", "n_kv_heads"};
constexpr std::array<std::string_view, 2> kHeadDim = {"head_dim", "kv_channels"};
// The norms of latents are made without rms_norm_eps, with their class's default.
constexpr double kLatentNormEps = 1e-6;

constexpr std::array<std::string_view, 1> One(std::string_view name) { return {name}; }

}  // namespace

HeadReader::HeadReader(const Fields& config, const Family& family, std::int64_t hidden_size,
                       int layers, int q_heads)
    : text_(config),
      family_(family),
      report_(config.report()),
      hidden_size_(hidden_size),
      layers_(layers),
      q_heads_(q_heads) {
  ReadKvHeads();
  if (report_.ok()) ReadMla();
  if (report_.ok() && mla_.kv_lora_rank == 0) ReadHeadDims();
}

// One number, or one per layer.
void HeadReader::ReadKvHeads() {
  const int heads = q_heads_;
  const auto flag = [&](std::string_view name) { return text_.Bool(name).value_or(true); };
  const bool one =
      (family_.kv == KvRule::kFalcon && !text_.Bool("new_decoder_architecture").value_or(false) &&
       flag("multi_query")) ||
      (family_.kv == KvRule::kMultiQuery && flag("multi_query"));
  const bool grouped =
      family_.kv == KvRule::kGrouped || text_.Bool("new_decoder_architecture").value_or(false);
  kv_heads_ = one ? 1 : heads;
  if (family_.kv == KvRule::kChatGlm) {
    if (!text_.Bool("multi_query_attention").value_or(false)) return;
    kv_heads_ = static_cast<int>(text_.RequiredInt(One("multi_query_group_num"), 1, kMaxHeads));
    CheckKvHeads(text_.Path("multi_query_group_num"), kv_heads_);
    return;
  }
  if (!grouped) return;
  const std::string_view name = text_.NameOf(kKvHeads);
  if (name.empty()) {
    const bool absent = std::none_of(kKvHeads.begin(), kKvHeads.end(),
                                     [&](std::string_view n) { return text_.Has(n); });
    if (absent && family_.kv_heads > 0) {
      kv_heads_ = family_.kv_heads;
      text_.Assumed(kKvHeads[0], kv_heads_);
    }
    CheckKvHeads(text_.Path(kKvHeads[0]), kv_heads_);
  } else if (text_.Find(name)->is_array()) {
    ReadKvHeadsByLayer(name);
  } else {
    kv_heads_ = static_cast<int>(text_.Int(kKvHeads, 1, kMaxHeads).value_or(1));
    CheckKvHeads(text_.Path(name), kv_heads_);
  }
}

void HeadReader::ReadKvHeadsByLayer(std::string_view name) {
  const auto list = *text_.Ints(name, 1, kMaxHeads);
  if (list.size() != static_cast<std::size_t>(layers_)) {
    text_.report().Fail(text_.Path(name), std::to_string(list.size()) + " entries",
                        "must have num_hidden_layers (" + std::to_string(layers_) + ")");
    return;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    kv_by_layer_.push_back(static_cast<int>(list[i]));
    CheckKvHeads(text_.Path(name) + "[" + std::to_string(i) + "]", list[i]);
  }
  kv_heads_ = *std::max_element(kv_by_layer_.begin(), kv_by_layer_.end());
}

void HeadReader::CheckKvHeads(const std::string& path, std::int64_t kv_heads) const {
  if (q_heads_ % kv_heads == 0) return;
  text_.report().Fail(path, std::to_string(kv_heads),
                      "must divide num_attention_heads (" + std::to_string(q_heads_) + ")");
}

void HeadReader::ReadMla() {
  if (text_.Find("kv_lora_rank") == nullptr) {
    if (family_.mla) {
      text_.RequiredInt(One("kv_lora_rank"), 1, kMaxHeadDim,
                        "this model_type requires an integer >= 1");
    }
    return;
  }
  const auto rank = text_.Int(One("kv_lora_rank"), 1, kMaxHeadDim).value_or(1);
  const std::string why = "required because kv_lora_rank is " + std::to_string(rank);
  const auto dim = [&](std::string_view name) {
    return static_cast<int>(text_.RequiredInt(One(name), 1, kMaxHeadDim, why));
  };
  MlaDims& mla = mla_;
  mla.kv_lora_rank = static_cast<int>(rank);
  mla.qk_rope_head_dim = dim("qk_rope_head_dim");
  mla.qk_nope_head_dim = dim("qk_nope_head_dim");
  if (text_.Find("v_head_dim") == nullptr && hidden_size_ % q_heads_ == 0) {
    const std::int64_t v_dim = hidden_size_ / q_heads_;
    mla.v_head_dim = static_cast<int>(std::min(v_dim, kMaxHeadDim));
    text_.report().Warn(text_.Path("v_head_dim"), "missing; hidden_size/num_attention_heads, " +
                                                      std::to_string(v_dim) + ", is taken");
  } else {
    mla.v_head_dim = dim("v_head_dim");
  }
  mla.q_lora_rank = static_cast<int>(text_.Int(One("q_lora_rank"), 1, kMaxHeadDim).value_or(0));
  mla.norm_eps = kLatentNormEps;
}

// The widths of most layers; those of the kinds that differ are found by HeadsOf.
void HeadReader::ReadHeadDims() {
  Heads& heads = common_;
  heads.kv_heads = kv_heads_;
  const std::string_view name = text_.NameOf(kHeadDim);
  heads.k_dim_path = text_.Path(name.empty() ? kHeadDim[0] : name);
  if (!name.empty()) {
    heads.k_dim = static_cast<int>(text_.Int(kHeadDim, 1, kMaxHeadDim).value_or(2));
  } else if (family_.head_dim > 0) {
    heads.k_dim = family_.head_dim;
    if (family_.head_dim * std::int64_t{q_heads_} != hidden_size_) {
      text_.Assumed(kHeadDim[0], family_.head_dim);
    }
  } else if (hidden_size_ % q_heads_ != 0) {
    text_.report().Fail(text_.Path(text_.NameOf(kHidden)),
                        std::to_string(hidden_size_) +
                            " is not a multiple of num_attention_heads (" +
                            std::to_string(q_heads_) + ")",
                        "give head_dim");
  } else {
    const std::int64_t width = hidden_size_ / q_heads_;
    heads.k_dim = static_cast<int>(std::min(width, kMaxHeadDim));
  }
  heads.v_dim =
      static_cast<int>(text_.Int(One("v_head_dim"), 1, kMaxHeadDim).value_or(heads.k_dim));
}

Heads HeadReader::Of(LayerKind kind) const {
  Heads heads = common_;
  const bool sliding = kind == LayerKind::kSliding;
  if (!sliding && kind != LayerKind::kFull) return heads;
  const std::string_view dim_name = sliding ? "swa_head_dim" : "global_head_dim";
  const std::string_view kv_name =
      sliding ? "swa_num_key_value_heads" : "num_global_key_value_heads";
  // Gemma 4 has the latter only where keys serve as values.
  const bool own_kv = sliding || text_.Bool("attention_k_eq_v").value_or(true);
  const int otherwise = !sliding && family_.full_head_dim > 0 ? family_.full_head_dim : 0;
  const auto dim = text_.Int(One(dim_name), 1, kMaxHeadDim);
  if (dim || otherwise > 0) {
    heads.k_dim = static_cast<int>(dim.value_or(otherwise));
    heads.v_dim = heads.k_dim;
    heads.k_dim_path = text_.Path(dim_name);
  }
  if (sliding) {
    heads.v_dim =
        static_cast<int>(text_.Int(One("swa_v_head_dim"), 1, kMaxHeadDim).value_or(heads.v_dim));
  }
  if (const auto kv = text_.Int(One(kv_name), 1, kMaxHeads); kv && own_kv) {
    heads.kv_heads = static_cast<int>(*kv);
    CheckKvHeads(text_.Path(kv_name), *kv);
  }
  return heads;
}

}  // namespace lariat::model
