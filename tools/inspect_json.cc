// SPDX-License-Identifier: Apache-2.0
// The JSON document of `lariat inspect`: every key is always there, null where it does not apply.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "inspect_report.h"
#include "inspect_words.h"

namespace lariat::tools {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(bool applies, const Json& value) { return applies ? value : Json(nullptr); }

// The parameters of a rope, as far as its type reads them.
Json RopeJson(const RopeSpec& spec) {
  const RopeType type = spec.type;
  Json json;
  json["rope_type"] = RopeTypeName(type);
  json["rope_theta"] = spec.theta;
  json["rotary_dim"] = TurningDim(spec);
  json["rope_style"] = StyleName(spec.style);
  json["attention_factor"] = AttentionFactor(spec);
  if (type == RopeType::kDefault) {
  } else if (type != RopeType::kLongrope) {
    json["factor"] = spec.factor;
  }
  if (spec.original_max_position_embeddings > 0) {
    json["original_max_position_embeddings"] = spec.original_max_position_embeddings;
  }
  if (type == RopeType::kLlama3) {
    json["low_freq_factor"] = spec.low_freq_factor;
    json["high_freq_factor"] = spec.high_freq_factor;
  } else if (type == RopeType::kYarn) {
    json["beta_fast"] = spec.beta_fast;
    json["beta_slow"] = spec.beta_slow;
    json["truncate"] = spec.truncate;
    json["mscale"] = spec.mscale ? Json(*spec.mscale) : Json(nullptr);
    json["mscale_all_dim"] = spec.mscale_all_dim ? Json(*spec.mscale_all_dim) : Json(nullptr);
  } else if (type == RopeType::kLongrope) {
    json["short_factor"] = spec.short_factor;
    json["long_factor"] = spec.long_factor;
  }
  if (!spec.mrope_sections.empty()) {
    json["mrope_section"] = spec.mrope_sections;
    json["mrope_interleaved"] = spec.mrope_layout == MropeLayout::kInterleaved;
  }
  return json;
}

Json GroupsJson(const ModelConfig& model) {
  Json groups = Json::array();
  for (const LayerGroup& group : GroupLayers(model)) {
    const LayerSpec& spec = group.spec;
    const bool stores = spec.kind != LayerKind::kLinear;
    Json json;
    json["kind"] = KindName(spec.kind);
    json["layers"] = group.layers;
    json["kv_heads"] = OrNull(stores, spec.kv_heads);
    json["head_dim"] = OrNull(stores, spec.k_dim);
    json["v_head_dim"] = OrNull(spec.v_dim > 0, spec.v_dim);
    json["window"] = OrNull(spec.window > 0, spec.window);
    json["rope"] = spec.rope < 0 ? Json(nullptr) : RopeJson(RopeOf(model, spec));
    groups.push_back(std::move(json));
  }
  return groups;
}

Json RowsJson(const RopeRows& rows) {
  Json json;
  json["inv_freq"] = rows.frequencies.inv_freq;
  json["attention_factor"] = rows.frequencies.attention_factor;
  json["softmax_scale_factor"] = rows.softmax_scale_factor;
  json["cos"] = Json::object();
  json["sin"] = Json::object();
  const std::size_t pairs = rows.frequencies.inv_freq.size();
  for (std::size_t i = 0; i < rows.positions.size(); ++i) {
    const auto row = [&](const std::vector<float>& table) {
      const float* const first = table.data() + i * pairs;
      return std::vector<float>(first, first + pairs);
    };
    const std::string position = std::to_string(rows.positions[i]);
    json["cos"][position] = row(rows.cos);
    json["sin"][position] = row(rows.sin);
  }
  return json;
}

// Sliding layers that turn by a rule of their own.
Json LocalRopeJson(const ModelConfig& model) {
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind == LayerKind::kSliding && layer.rope > 0) return RopeJson(RopeOf(model, layer));
  }
  return nullptr;
}

Json IndexerJson(const IndexerDims& indexer) {
  if (indexer.head_dim == 0) return nullptr;
  Json json;
  json["index_head_dim"] = indexer.head_dim;
  json["index_n_heads"] = OrNull(indexer.heads > 0, indexer.heads);
  json["index_topk"] = OrNull(indexer.topk > 0, indexer.topk);
  json["rope_style"] = StyleName(indexer.style);
  json["layers_with_index_cache"] = indexer.layers;
  return json;
}

std::vector<int> LayersWhere(const ModelConfig& model, auto&& condition) {
  std::vector<int> layers;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (condition(model.layers[i])) layers.push_back(static_cast<int>(i));
  }
  return layers;
}

void AddHeads(const ModelConfig& model, Json& json) {
  const bool mla = IsMla(model);
  const bool gqa_v = !mla && OwnValueDim(model) != model.head_dim;
  json["q_heads"] = model.q_heads;
  json["kv_heads"] = model.kv_heads;
  json["head_dim"] = OrNull(!mla, model.head_dim);
  json["kv_lora_rank"] = OrNull(mla, model.mla.kv_lora_rank);
  json["qk_rope_head_dim"] = OrNull(mla, model.mla.qk_rope_head_dim);
  json["qk_nope_head_dim"] = OrNull(mla, model.mla.qk_nope_head_dim);
  json["v_head_dim"] = OrNull(mla || gqa_v, mla ? model.mla.v_head_dim : OwnValueDim(model));
}

void AddMainRope(const ModelConfig& model, Json& json) {
  const bool turns = !model.ropes.empty();
  const RopeSpec spec = turns ? model.ropes[0] : RopeSpec();
  json["rotary_dim"] = OrNull(turns, turns ? CommonRotaryDim(model) : 0);
  json["rope_style"] = OrNull(turns, StyleName(spec.style));
  json["rope_type"] = OrNull(turns, RopeTypeName(spec.type));
  json["rope_theta"] = OrNull(turns, spec.theta);
  json["attention_factor"] = turns ? Json(AttentionFactor(spec)) : Json(nullptr);
}

}  // namespace

std::string InspectJson(const ModelConfig& model, const InspectQuery& query,
                        const std::optional<RopeRows>& rope) {
  const auto of_kind = [&](LayerKind kind) {
    return LayersWhere(model, [kind](const LayerSpec& layer) { return layer.kind == kind; });
  };
  Json json;
  json["model_type"] = model.model_type;
  json["architecture"] = IsMla(model) ? "mla" : "gqa";
  json["layers"] = model.num_layers;
  AddHeads(model, json);
  AddMainRope(model, json);
  json["max_position_embeddings"] =
      OrNull(model.max_position_embeddings > 0, model.max_position_embeddings);
  json["sliding_window"] = OrNull(model.sliding_window > 0, model.sliding_window);
  json["sliding_layers"] = of_kind(LayerKind::kSliding);
  json["nope_layers"] =
      model.ropes.empty() ? std::vector<int>() : LayersWhere(model, [](const LayerSpec& layer) {
        return layer.rope < 0 && layer.kind != LayerKind::kLinear;
      });
  json["groups"] = GroupsJson(model);
  json["kv_bytes_per_token"] = KvBytesPerToken(model, query.dtype);
  const bool holds = query.memory && KvBytesPerToken(model, query.dtype) > 0;
  json["tokens_in_memory"] = OrNull(holds, FitMemory(model, query).tokens);
  json["rope"] = rope ? RowsJson(*rope) : Json(nullptr);

  // Beyond the common part: what it leaves out.
  json["rope_local"] = LocalRopeJson(model);
  json["attention_chunk_size"] = OrNull(model.attention_chunk_size > 0, model.attention_chunk_size);
  json["chunked_layers"] = of_kind(LayerKind::kChunked);
  json["indexer"] = IndexerJson(model.indexer);
  json["parameters"] = OrNull(model.parameters > 0, model.parameters);
  json["warnings"] = model.warnings;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string PresetsJson() {
  Json list = Json::array();
  for (const std::string& name : ModelPresetNames()) {
    const Result<ModelConfig> model = ModelPreset(name);
    if (!model.ok()) continue;  // never: a test reads them all
    Json json;
    json["name"] = name;
    json["model_type"] = model->model_type;
    json["architecture"] = IsMla(*model) ? "mla" : "gqa";
    json["layers"] = model->num_layers;
    json["kv_bytes_per_token"] = KvBytesPerToken(*model, DType::kBF16);
    json["max_position_embeddings"] = model->max_position_embeddings;
    list.push_back(std::move(json));
  }
  return list.dump(2) + "\n";
}

}  // namespace lariat::tools
