// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "lariat/model.h"

// What both forms of `lariat inspect` say about a model.
namespace lariat::tools {

inline std::string_view KindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kFull: return "full";
    case LayerKind::kSliding: return "sliding";
    case LayerKind::kChunked: return "chunked";
    case LayerKind::kMla: return "mla";
    case LayerKind::kLinear: return "linear";
  }
  return "unknown";
}

// The checkpoint's pairing; how a cache orders what it stores does not change it.
inline std::string_view StyleName(RopeStyle style) {
  return style == RopeStyle::kHalf ? "half" : "interleaved";
}

// REQUIRES: layer.rope >= 0.
inline const RopeSpec& RopeOf(const ModelConfig& model, const LayerSpec& layer) {
  return model.ropes[static_cast<std::size_t>(layer.rope)];
}

// Elements of a head that turn.
inline int TurningDim(const RopeSpec& spec) {
  return spec.type == RopeType::kProportional ? spec.turned_dim : spec.rotary_dim;
}

inline double AttentionFactor(const RopeSpec& spec) {
  const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
  return frequencies.ok() ? frequencies->attention_factor : 1.0;
}

// Elements of a head of the config's head_dim that turn: of the main rope, unless its layers have
// heads of another width.
inline int CommonRotaryDim(const ModelConfig& model) {
  int best = -1;
  for (const LayerSpec& layer : model.layers) {
    if (layer.rope < 0 || layer.k_dim != model.head_dim) continue;
    if (best < 0 || layer.rope < best) best = layer.rope;
  }
  return TurningDim(model.ropes[static_cast<std::size_t>(best < 0 ? 0 : best)]);
}

// Elements of a value head in layers whose key heads have the config's head_dim; head_dim where
// there is none.
inline int OwnValueDim(const ModelConfig& model) {
  for (const LayerSpec& layer : model.layers) {
    if (layer.k_dim == model.head_dim && layer.v_dim > 0) return layer.v_dim;
  }
  return model.head_dim;
}

}  // namespace lariat::tools
