// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "lariat/model.h"

namespace lariat {

std::vector<LayerGroup> GroupLayers(const ModelConfig& model) {
  std::vector<LayerGroup> groups;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const LayerGroup& g) { return g.spec == model.layers[i]; });
    if (group == groups.end()) group = groups.insert(groups.end(), {model.layers[i], {}});
    group->layers.push_back(static_cast<int>(i));
  }
  return groups;
}

std::int64_t KvBytesPerToken(const ModelConfig& model, DType dtype) {
  std::int64_t elements = 0;
  for (const LayerSpec& layer : model.layers) {
    elements += std::int64_t{layer.kv_heads} * (std::int64_t{layer.k_dim} + layer.v_dim);
  }
  return elements * static_cast<std::int64_t>(SizeOf(dtype));
}

}  // namespace lariat
