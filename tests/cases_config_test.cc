// SPDX-License-Identifier: Apache-2.0
// Small configs on which users of other KV caches met faults (K177..K191, K42): inputs and right
// values were worked out apart from this project. Each needs a model_type, which the file adds.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "lariat/model.h"
#include "support/catch.h"

namespace lariat {
namespace {

using Json = nlohmann::json;

Json Cases() {
  std::ifstream file(LARIAT_TEST_DATA "/cases_config.json");
  return Json::parse(file);
}

Result<ModelConfig> Read(const Json& entry) {
  Json config = entry.at("config");
  if (!config.contains("model_type")) config["model_type"] = entry.at("model_type");
  return ModelConfig::FromHuggingFaceJson(config.dump(), "case.json");
}

std::vector<int> LayersOf(const ModelConfig& model, LayerKind kind) {
  std::vector<int> layers;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].kind == kind) layers.push_back(static_cast<int>(i));
  }
  return layers;
}

void CheckRope(const Json& want, const RopeSpec& got, int head_dim) {
  CHECK(want.at("type") == std::string(RopeTypeName(got.type)));
  CHECK(want.at("theta") == got.theta);
  if (want.contains("factor")) CHECK(want.at("factor") == got.factor);
  if (want.contains("attention_factor")) CHECK(want.at("attention_factor") == got.attention_factor);
  if (want.contains("partial_rotary_factor")) {
    CHECK(got.rotary_dim == head_dim * want.at("partial_rotary_factor").get<double>());
  }
}

void CheckHeads(const Json& right, const ModelConfig& model) {
  CHECK(right.at("layers") == model.num_layers);
  CHECK(right.at("heads") == model.q_heads);
  if (right.at("kv_heads").is_array()) {
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      CHECK(right.at("kv_heads")[i] == model.layers[i].kv_heads);
    }
  } else {
    CHECK(right.at("kv_heads") == model.kv_heads);
  }
  CHECK(right.at("kv_elements_per_token").get<std::int64_t>() * 2 ==
        KvBytesPerToken(model, DType::kBF16));
  if (right.at("mla").get<bool>()) {
    CHECK(right.at("head_dim") == model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim);
    CHECK(right.at("row") == model.layers[0].k_dim);
    CHECK(right.at("v_head_dim") == model.mla.v_head_dim);
  } else {
    CHECK(right.at("head_dim") == model.head_dim);
  }
}

TEST_CASE("K177 to K191: small configs, each the way a fault of another cache began") {
  // Here and there the rule of the model_type says more than the case does.
  const std::set<std::string> without_rope = {"K183 gpt2 names", "K183 bigcode multi_query",
                                              "K183 multi_query false"};
  const std::set<std::string> with_limit = {"K184 falcon-7b", "K184 falcon-40b"};  // 2048
  const Json cases = Cases();
  CHECK(cases.size() == 36);
  for (const auto& [name, entry] : cases.items()) {
    const Json& right = entry.at("right");
    const Result<ModelConfig> model = Read(entry);
    CAPTURE(name, model.status().message());
    if (name == "K180 theta as text") {  // may be read or refused, never be 10000: refused
      REQUIRE_FALSE(model.ok());
      CHECK(model.status().message() ==
            "case.json: rope_theta: string \"1000000\"; must be a finite number > 0");
      continue;
    }
    REQUIRE(model.ok() == !right.contains("error"));
    if (!model.ok()) {
      CHECK(model.status().code() == Code::kInvalidArgument);
      continue;
    }
    CheckHeads(right, *model);
    CHECK(right.at("sliding_layers") == LayersOf(*model, LayerKind::kSliding));
    CHECK((right.at("window").is_null() ? 0 : right.at("window").get<int>()) ==
          model->sliding_window);
    if (with_limit.count(name) == 0) {
      CHECK((right.at("max_pos").is_null() ? 0 : right.at("max_pos").get<int>()) ==
            model->max_position_embeddings);
    }
    if (without_rope.count(name) != 0) {
      CHECK(model->ropes.empty());
    } else if (right.at("rope").contains("type")) {
      REQUIRE(model->ropes.size() == 1);
      CheckRope(right.at("rope"), model->ropes[0], model->head_dim);
      CHECK(right.at("rotary_dim") == model->ropes[0].rotary_dim);
    } else {  // K42: one rule per kind of layer
      REQUIRE(model->ropes.size() == 2);
      CheckRope(right.at("rope").at("full_attention"), model->ropes[0], model->head_dim);
      CheckRope(right.at("rope").at("sliding_attention"), model->ropes[1], model->head_dim);
      CHECK(model->layers[0].rope == 1);
      CHECK(model->layers[3].rope == 0);
    }
  }
}

TEST_CASE("K190: all layers count for the size, K191: the limit is the config's") {
  // 60 layers of which every sixth is full; 4 KV heads of 1024 elements: 983040 bytes per token.
  Json config = {{"model_type", "gemma3_text"}, {"num_hidden_layers", 60},    {"hidden_size", 4096},
                 {"num_attention_heads", 8},    {"num_key_value_heads", 4},   {"head_dim", 512},
                 {"sliding_window", 1024},      {"sliding_window_pattern", 6}};
  const auto model = ModelConfig::FromHuggingFaceJson(config.dump());
  REQUIRE(model.ok());
  CHECK(LayersOf(*model, LayerKind::kFull).size() == 10);
  CHECK(KvBytesPerToken(*model, DType::kBF16) == 60 * 2 * 4 * 512 * 2);

  Json yarn = {{"model_type", "llama"},
               {"num_hidden_layers", 1},
               {"hidden_size", 64},
               {"num_attention_heads", 4},
               {"max_position_embeddings", 163840},
               {"rope_scaling",
                {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}}}};
  CHECK(ModelConfig::FromHuggingFaceJson(yarn.dump())->max_position_embeddings == 163840);
}

}  // namespace
}  // namespace lariat
