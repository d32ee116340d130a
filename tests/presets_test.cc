// SPDX-License-Identifier: Apache-2.0
// The model presets against the facts that were published, by hand and from the models' configs.
// The number of weights depends on nearly every fact of a model, so that a misprint in a preset
// would show in it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lariat/cost_model.h"
#include "lariat/model.h"
#include "support/catch.h"

namespace lariat {
namespace {

struct Facts {
  std::string name;
  std::int64_t parameters;
  std::int64_t kv_bytes_bf16;
};

// parameters: what the authors' weight files hold (buffers and, of DeepSeek and Kimi, the layers
// for predicting several tokens aside).
const std::vector<Facts>& AllFacts() {
  static const std::vector<Facts> facts = {
      {"llama-2-7b", 6'738'415'616, 524288},
      {"llama-2-13b", 13'015'864'320, 819200},
      {"llama-2-70b", 68'976'648'192, 327680},
      {"llama-3-8b", 8'030'261'248, 131072},
      {"llama-3.1-8b", 8'030'261'248, 131072},
      {"llama-3.1-70b", 70'553'706'496, 327680},
      {"llama-3.1-405b", 405'853'388'800, 516096},
      {"llama-3.2-1b", 1'235'814'400, 32768},
      {"llama-3.2-3b", 3'212'749'824, 114688},
      {"mistral-7b-v0.1", 7'241'732'096, 131072},
      {"mistral-7b-v0.3", 7'248'023'552, 131072},
      {"mistral-nemo-12b", 12'247'782'400, 163840},
      {"mistral-small-24b", 23'572'403'200, 163840},
      {"mixtral-8x7b", 46'702'792'704, 131072},
      {"qwen2.5-0.5b", 494'032'768, 12288},
      {"qwen2.5-1.5b", 1'543'714'304, 28672},
      {"qwen2.5-3b", 3'085'938'688, 36864},
      {"qwen2.5-7b", 7'615'616'512, 57344},
      {"qwen2.5-14b", 14'770'033'664, 196608},
      {"qwen2.5-32b", 32'763'876'352, 262144},
      {"qwen2.5-72b", 72'706'203'648, 327680},
      {"qwen3-8b", 8'190'735'360, 147456},
      {"qwen3-14b", 14'768'307'200, 163840},
      {"qwen3-32b", 32'762'123'264, 262144},
      {"qwen3-30b-a3b", 30'532'122'624, 98304},
      {"gemma-2-2b", 2'614'341'888, 106496},
      {"gemma-2-9b", 9'241'705'984, 344064},
      {"gemma-2-27b", 27'227'128'320, 376832},
      {"gemma-3-1b", 999'885'952, 26624},
      {"phi-3-mini-4k", 3'821'079'552, 393216},
      {"phi-4", 14'659'507'200, 204800},
      {"glm-4-9b-chat", 9'399'951'360, 40960},
      {"command-r-v01", 34'980'831'232, 1310720},
      {"gpt-oss-20b", 20'914'757'184, 49152},
      {"gpt-oss-120b", 116'829'156'672, 73728},
      {"deepseek-v2-lite", 15'706'484'224, 31104},
      {"deepseek-v3", 671'026'419'200, 70272},
      {"kimi-k2", 1'026'408'232'448, 70272},
      {"smollm2-135m", 134'515'008, 23040},
      {"smollm2-360m", 361'821'120, 40960},
      {"smollm2-1.7b", 1'711'376'384, 196608},
      {"tinyllama-1.1b", 1'100'048'384, 22528},
  };
  return facts;
}

TEST_CASE("Presets have the published number of weights, and the bytes that follow") {
  for (const Facts& facts : AllFacts()) {
    CAPTURE(facts.name);
    const Result<ModelConfig> model = ModelPreset(facts.name);
    REQUIRE(model.ok());
    CHECK(model->name == facts.name);
    CHECK(model->parameters == facts.parameters);
    CHECK(KvBytesPerToken(*model, DType::kBF16) == facts.kv_bytes_bf16);
    CHECK(KvBytesPerToken(*model, DType::kFP32) == 2 * facts.kv_bytes_bf16);
  }
}

TEST_CASE("Every preset is whole: nothing was assumed, and each layer turns by a good rule") {
  for (const std::string& name : ModelPresetNames()) {
    CAPTURE(name);
    const Result<ModelConfig> model = ModelPreset(name);
    REQUIRE(model.ok());
    CHECK(model->warnings.empty());
    CHECK(model->num_layers == static_cast<int>(model->layers.size()));
    CHECK(model->hidden_size > 0);
    CHECK(model->intermediate_size > 0);
    CHECK(model->vocab_size > 0);
    CHECK(model->max_position_embeddings >= 2048);
    for (const LayerSpec& layer : model->layers) {
      REQUIRE(layer.rope >= 0);
      REQUIRE(layer.rope < static_cast<int>(model->ropes.size()));
    }
    for (const RopeSpec& rope : model->ropes) CHECK(ComputeRopeFrequencies(rope).ok());
  }
}

TEST_CASE("The models that people run are there") {
  const std::vector<std::string> names = ModelPresetNames();
  for (const char* family :
       {"llama-2-",    "llama-3.1-",  "llama-3.2-",    "mistral-", "mixtral-",
        "qwen2.5-",    "qwen3-",      "gemma-2-",      "gemma-3-", "phi-3-",
        "phi-4",       "glm-4-",      "command-r-",    "gpt-oss-", "deepseek-v2-lite",
        "deepseek-v3", "deepseek-r1", "deepseek-v3.2", "kimi-k2",  "smollm2-",
        "tinyllama-"}) {
    CAPTURE(family);
    CHECK(std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return name.rfind(family, 0) == 0; }));
  }
}

TEST_CASE("What a step costs is made of all the weights") {
  std::vector<ModelConfig> models;
  for (const std::string& name : ModelPresetNames()) models.push_back(*ModelPreset(name));
  // Dense layers before sparse ones, and shared experts, which no preset has with full attention.
  models.push_back(*ModelConfig::FromHuggingFaceJson(R"({
      "model_type": "glm4_moe", "num_hidden_layers": 5, "hidden_size": 1024, "vocab_size": 1000,
      "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
      "intermediate_size": 4096, "moe_intermediate_size": 512, "n_routed_experts": 16,
      "num_experts_per_tok": 2, "n_shared_experts": 3, "first_k_dense_replace": 2})"));
  CHECK(models.back().moe_layers == 3);
  for (const ModelConfig& model : models) {
    const Result<ModelCost> cost = MakeModelCost(model, DType::kBF16);
    if (!cost.ok()) continue;  // a kind of layer that the cost model does not know
    CAPTURE(model.name);
    const double embedding = static_cast<double>(model.vocab_size * model.hidden_size);
    const double weights = cost->gemm_weights + cost->up_weights + cost->head_weights +
                           double{1} * cost->moe_layers * cost->experts * cost->expert_weights +
                           (model.tie_word_embeddings ? 0 : embedding);
    // Norms and biases are left out of it: less than one in a thousand.
    CHECK(weights <= static_cast<double>(model.parameters));
    // The cost model knows no indexer.
    if (model.indexer.head_dim > 0) continue;
    CHECK(weights >= 0.999 * static_cast<double>(model.parameters));
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
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) CHECK(ModelPreset(name).ok());
}

TEST_CASE("Other models are refused by name, with the list of what there is") {
  for (const std::string name :
       {"", "llama-3.1-9b", "LLAMA-3.1-8B", "llama-3.1-8b ", "config.json"}) {
    CAPTURE(name);
    const Result<ModelConfig> model = ModelPreset(name);
    REQUIRE_FALSE(model.ok());
    CHECK(model.status().code() == Code::kInvalidArgument);
    CHECK(model.status().message().rfind("model \"" + name + "\" is not known; allowed: ", 0) == 0);
    CHECK(model.status().message().find("llama-3.1-8b, ") != std::string::npos);
  }
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// The shared config of a preset that has another name there.
std::string SharedName(const std::string& name) {
  for (const auto& [preset, shared] :
       {std::pair{"gemma-3-1b", "gemma-3-1b-it"}, std::pair{"gemma-3-12b", "gemma-3-12b-it"},
        std::pair{"glm-4-9b", "glm-4-9b-hf"}, std::pair{"glm-4-9b-chat", "glm-4-9b-chat-hf"}}) {
    if (name == preset) return shared;
  }
  return name;
}

TEST_CASE("Presets equal the models' published config.json") {
  const std::string folder = LARIAT_SHARED_DATA "/models/";
  if (!std::filesystem::exists(folder + "EXPECTED.json")) LARIAT_SKIP("models/ is absent");
  const nlohmann::json all = ReadJson(folder + "EXPECTED.json");
  int compared = 0;
  for (const std::string& name : ModelPresetNames()) {
    if (!all.contains(SharedName(name))) continue;
    CAPTURE(name);
    const ModelConfig preset = *ModelPreset(name);
    const Result<ModelConfig> file = ModelConfig::FromHuggingFace(
        folder + all.at(SharedName(name)).at("file").get<std::string>());
    REQUIRE(file.ok());
    CHECK(preset.layers == file->layers);
    CHECK(preset.ropes == file->ropes);
    CHECK(preset.dtype == file->dtype);
    CHECK(preset.max_position_embeddings == file->max_position_embeddings);
    CHECK(preset.mla.q_lora_rank == file->mla.q_lora_rank);
    CHECK(preset.parameters == file->parameters);
    CHECK(preset.experts_per_token == file->experts_per_token);
    CHECK(preset.tie_word_embeddings == file->tie_word_embeddings);
    ++compared;
  }
  CHECK(compared >= 18);
}

}  // namespace
}  // namespace lariat
