// SPDX-License-Identifier: Apache-2.0
// Simulate of models that cache latents.
#include <string>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::CheckEquation;
using test::MakeConfig;
using test::Run;
using test::SmallTrace;
using test::Workload;

ModelConfig Read(const std::string& json) {
  Result<ModelConfig> model = ModelConfig::FromHuggingFaceJson(json);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return *std::move(model);
}

bool IsMla(const ModelConfig& model) {
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kMla) return false;
  }
  return true;
}

TEST_CASE("DeepSeek-V3 on null: the small trace's hits, latents' bytes", "[simulate]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 0, 64);
  config.model = *ModelPreset("deepseek-v3");
  config.concurrency = 1;
  const SimulationResult result = Run(SmallTrace(), config);
  // As "Requests one after another" counts for blocks of 64.
  CHECK(result.session.hit_tokens == 2624);
  CHECK(result.session.tokens_appended == 5359 - 2624);
  CHECK(result.session.steps == 17);
  CHECK(result.bytes_per_token == 70272);
  CHECK(result.bytes_per_block == 64 * 70272);
  CheckEquation(SmallTrace(), result);
}

TEST_CASE("Every preset whose layers are all latent is simulated", "[simulate]") {
  int models = 0;
  for (const std::string& name : ModelPresetNames()) {
    const ModelConfig model = *ModelPreset(name);
    if (!IsMla(model)) continue;
    INFO(name);
    ++models;
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 100, 64);
    config.model = model;
    const Trace trace = Workload("in=100,out=20,n=4,prefix=64");
    const SimulationResult null = Run(trace, config);
    CHECK(null.session.finished == 4);
    CHECK(null.bytes_per_token == KvBytesPerToken(model, DType::kBF16));
    config.backend = BackendKind::kCpu;
    config.check = true;
    config.concurrency = 1;  // so that prefixes are found
    const SimulationResult cpu = Run(trace, config);
    CHECK(cpu.session.hit_tokens == 3 * 64);
    CHECK(cpu.check->sequences == 4);
    CHECK(cpu.check->mismatches == 0);
  }
  CHECK(models == 6);
}

TEST_CASE("The latent cases of the check preempt, evict and find prefixes", "[check]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 82);
  config.model = test::SmallMla();
  const SimulationResult small = Run(SmallTrace(), config);
  CHECK(small.cache.evicted_blocks > 0);
  CHECK(small.session.hit_tokens > 0);
  config.memory.num_blocks = 60;
  const SimulationResult tight = Run(Workload("in=64,out=160,n=10,prefix=32"), config);
  CHECK(tight.session.preemptions > 3);
  CHECK(tight.session.recomputed_tokens > 0);
}

TEST_CASE("Latents of any width turn by the model's own rule, bit for bit", "[check]") {
  const std::string head = R"({"num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 100,
      "intermediate_size": 128, "num_attention_heads": 8, "qk_nope_head_dim": 4, "v_head_dim": 6,
      "max_position_embeddings": 4096, )";
  const std::string longrope = R"("rope_scaling": {"type": "longrope", "short_factor": [1, 2],
      "long_factor": [3, 4], "original_max_position_embeddings": 100}})";
  const std::string yarn = R"("rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
      "mscale_all_dim": 0.7, "original_max_position_embeddings": 64}})";
  const std::string rests[] = {
      R"("model_type": "deepseek_v3", "kv_lora_rank": 37, "qk_rope_head_dim": 8})",
      R"("model_type": "deepseek_v3", "kv_lora_rank": 256, "qk_rope_head_dim": 2,
         "rope_interleave": false})",
      R"("model_type": "deepseek_v2", "kv_lora_rank": 1, "qk_rope_head_dim": 64, )" + yarn,
      R"("model_type": "minicpm3", "kv_lora_rank": 19, "qk_rope_head_dim": 4, )" + longrope};
  for (const std::string& rest : rests) {
    INFO(rest);
    for (const DType dtype : {DType::kFP32, DType::kFP16, DType::kBF16}) {
      // Beyond the original lengths, and within them.
      for (const char* load : {"in=64,out=80,n=8,prefix=40", "in=30,out=20,n=8,prefix=16"}) {
        SimulatorConfig config = MakeConfig(BackendKind::kCpu, 30, 8);
        config.model = Read(head + rest);
        REQUIRE(IsMla(config.model));
        config.dtype = dtype;
        config.check = true;
        const Trace trace = Workload(load);
        const SimulationResult result = Run(trace, config);
        CHECK(result.check->sequences == 8);
        CHECK(result.check->mismatches == 0);
        CheckEquation(trace, result);
      }
    }
  }
}

TEST_CASE("A model with a linear layer is refused, with the layer and its kind", "[simulate]") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 100, 64);
  config.model = *ModelPreset("deepseek-v3");
  config.model.layers[7].kind = LayerKind::kLinear;
  const Status status = Simulate(Workload("in=10,out=2,n=1"), config).status();
  CHECK(status.code() == Code::kUnsupported);
  CHECK(status.message().find("layers[7] is linear") != std::string::npos);
}

}  // namespace
}  // namespace lariat
