// SPDX-License-Identifier: Apache-2.0
// The reader of config.json on any bytes: no crash, no allocation by a number in the text, and what
// a ModelConfig promises.
#include <string_view>

#include "fuzz/fuzz.h"
#include "lariat/model.h"

namespace lariat::fuzz {
namespace {

void CheckModel(const ModelConfig& model) {
  Check(model.num_layers >= 1 && std::ssize(model.layers) == model.num_layers,
        "there are as many layers as it says");
  Check(model.hidden_size >= 0 && model.vocab_size >= 0 && model.intermediate_size >= 0 &&
            model.q_heads >= 1 && model.max_position_embeddings >= 0,
        "sizes are not negative");
  for (const LayerSpec& layer : model.layers) {
    Check(layer.rope >= -1 && layer.rope < std::ssize(model.ropes), "a layer's rope is there");
    Check(layer.kv_heads >= 0 && layer.k_dim >= 0 && layer.v_dim >= 0 && layer.window >= 0,
          "a layer's sizes are not negative");
  }
  Check(model.parameters >= 0, "parameters did not overflow");
  std::int64_t grouped = 0;
  for (const LayerGroup& group : GroupLayers(model)) grouped += std::ssize(group.layers);
  Check(grouped == model.num_layers, "every layer is in one group");
  Check(KvBytesPerToken(model, DType::kBF16) >= 0, "bytes did not overflow");
}

}  // namespace
}  // namespace lariat::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = lariat::ModelConfig::FromHuggingFaceJson(text, "fuzz");
  if (model.ok()) {
    lariat::fuzz::CheckModel(*model);
  } else {
    const std::string& why = model.status().message();
    lariat::fuzz::Check(why.substr(0, 4) == "fuzz" && why.size() < 4096, "a refusal says where");
  }
  return 0;
}
