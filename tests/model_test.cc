// SPDX-License-Identifier: Apache-2.0
// The model presets against the facts that were published, by hand and from the models' configs.
#include "lariat/model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/catch.h"

namespace lariat {
namespace {

struct Facts {
  std::string name;
  std::int64_t parameters;
  std::int64_t kv_bytes_bf16;
  int layers, q_heads, kv_heads, head_dim;
  std::int64_t max_positions;
};

// parameters: what the authors' weight files hold, biases and buffers aside.
const std::vector<Facts>& AllFacts() {
  static const std::vector<Facts> facts = {
      {"llama-3.1-8b", 8'030'261'248, 131072, 32, 32, 8, 128, 131072},
      {"llama-3.2-1b", 1'235'814'400, 32768, 16, 32, 8, 64, 131072},
      {"smollm2-135m", 134'515'008, 23040, 30, 9, 3, 64, 8192},
  };
  return facts;
}

TEST_CASE("Presets have the published facts") {
  for (const Facts& facts : AllFacts()) {
    CAPTURE(facts.name);
    const Result<ModelConfig> model = ModelPreset(facts.name);
    REQUIRE(model.ok());
    CHECK(model->name == facts.name);
    CHECK(model->model_type == "llama");
    CHECK(model->parameters == facts.parameters);
    CHECK(KvBytesPerToken(*model, DType::kBF16) == facts.kv_bytes_bf16);
    CHECK(KvBytesPerToken(*model, DType::kFP32) == 2 * facts.kv_bytes_bf16);
    CHECK(model->dtype == DType::kBF16);
    CHECK(model->num_layers == facts.layers);
    CHECK(model->q_heads == facts.q_heads);
    CHECK(model->kv_heads == facts.kv_heads);
    CHECK(model->head_dim == facts.head_dim);
    CHECK(model->max_position_embeddings == facts.max_positions);
    CHECK(model->experts == 0);

    LayerSpec layer;
    layer.kind = LayerKind::kFull;
    layer.kv_heads = facts.kv_heads;
    layer.k_dim = layer.v_dim = facts.head_dim;
    layer.rope = 0;
    CHECK(model->layers == std::vector<LayerSpec>(static_cast<std::size_t>(facts.layers), layer));
    REQUIRE(model->ropes.size() == 1);
    CHECK(ComputeRopeFrequencies(model->ropes[0]).ok());
  }
}

TEST_CASE("Presets rotate as their checkpoints were trained") {
  RopeSpec rope;
  rope.type = RopeType::kLlama3;
  rope.style = RopeStyle::kHalf;
  rope.rotary_dim = 128;
  rope.theta = 500000.0;
  rope.factor = 8.0;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_position_embeddings = 8192;
  CHECK(ModelPreset("llama-3.1-8b")->ropes[0] == rope);
  rope.rotary_dim = 64;
  rope.factor = 32.0;
  CHECK(ModelPreset("llama-3.2-1b")->ropes[0] == rope);
  RopeSpec plain;
  plain.rotary_dim = 64;
  plain.theta = 100000.0;
  CHECK(ModelPreset("smollm2-135m")->ropes[0] == plain);
}

TEST_CASE("KV bytes per token count keys and values apart") {
  ModelConfig model;
  CHECK(KvBytesPerToken(model, DType::kBF16) == 0);
  LayerSpec layer;
  layer.kv_heads = 3;
  layer.k_dim = 192;
  layer.v_dim = 128;
  model.layers = {layer, layer};
  layer.kv_heads = 1;
  model.layers.push_back(layer);
  // (3 + 3 + 1) heads * (192 + 128) elements * 2 bytes
  CHECK(KvBytesPerToken(model, DType::kBF16) == 4480);
}

TEST_CASE("Preset names are listed, sorted, and each is a model") {
  const std::vector<std::string> names = ModelPresetNames();
  CHECK(names == std::vector<std::string>{"llama-3.1-8b", "llama-3.2-1b", "smollm2-135m"});
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) CHECK(ModelPreset(name).ok());
}

TEST_CASE("Other models and config files are refused by name, with the list of what there is") {
  for (const std::string name : {"", "llama-3.1-70b", "LLAMA-3.1-8B", "llama-3.1-8b ",
                                 "config.json", "/models/llama-3.1-8b.json"}) {
    CAPTURE(name);
    const Result<ModelConfig> model = ModelPreset(name);
    REQUIRE_FALSE(model.ok());
    CHECK(model.status().code() == Code::kUnsupported);
    CHECK(model.status().message() ==
          "model '" + name +
              "' is not known, and config.json is not read by this version; allowed: "
              "llama-3.1-8b, llama-3.2-1b, smollm2-135m");
  }
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST_CASE("Presets equal the models' published config.json") {
  const std::string folder = LARIAT_SHARED_DATA "/models/";
  if (!std::filesystem::exists(folder + "EXPECTED.json")) LARIAT_SKIP("models/ is absent");
  const nlohmann::json all = ReadJson(folder + "EXPECTED.json");
  for (const std::string& name : ModelPresetNames()) {
    CAPTURE(name);
    const ModelConfig model = *ModelPreset(name);
    const nlohmann::json& expected = all.at(name);
    CHECK(expected.at("model_type") == model.model_type);
    CHECK(expected.at("architecture") == "gqa");
    CHECK(expected.at("layers") == model.num_layers);
    CHECK(expected.at("q_heads") == model.q_heads);
    CHECK(expected.at("kv_heads") == model.kv_heads);
    CHECK(expected.at("head_dim") == model.head_dim);
    CHECK(expected.at("rotary_dim") == model.ropes[0].rotary_dim);
    CHECK(expected.at("rope_style") == "half");
    CHECK(model.ropes[0].style == RopeStyle::kHalf);
    CHECK(expected.at("rope_type") == std::string(RopeTypeName(model.ropes[0].type)));
    CHECK(expected.at("rope_theta") == model.ropes[0].theta);
    CHECK(expected.at("rope_attention_factor") ==
          ComputeRopeFrequencies(model.ropes[0])->attention_factor);
    CHECK(expected.at("max_position_embeddings") == model.max_position_embeddings);
    CHECK(expected.at("kv_bytes_per_token_bf16") == KvBytesPerToken(model, DType::kBF16));
    if (const nlohmann::json& scaling = expected.at("rope_scaling"); !scaling.is_null()) {
      CHECK(scaling.at("factor") == model.ropes[0].factor);
      CHECK(scaling.at("low_freq_factor") == model.ropes[0].low_freq_factor);
      CHECK(scaling.at("high_freq_factor") == model.ropes[0].high_freq_factor);
      CHECK(scaling.at("original_max_position_embeddings") ==
            model.ropes[0].original_max_position_embeddings);
    }

    const nlohmann::json config = ReadJson(folder + expected.at("file").get<std::string>());
    CHECK(config.at("hidden_size") == model.hidden_size);
    CHECK(config.at("intermediate_size") == model.intermediate_size);
    CHECK(config.at("vocab_size") == model.vocab_size);
    CHECK(config.at("tie_word_embeddings") == model.tie_word_embeddings);
    CHECK(config.at("torch_dtype") == "bfloat16");
  }
}

}  // namespace
}  // namespace lariat
