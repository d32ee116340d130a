// SPDX-License-Identifier: Apache-2.0
// The reader of config.json: what it refuses, what it warns of, what it keeps for a cache.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lariat/model.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace lariat {
namespace {

using test::TempFolder;

using Json = nlohmann::json;

Json Llama() {
  return {{"model_type", "llama"},    {"num_hidden_layers", 4},   {"hidden_size", 64},
          {"num_attention_heads", 8}, {"num_key_value_heads", 2}, {"max_position_embeddings", 128}};
}

Result<ModelConfig> Read(const Json& config) {
  return ModelConfig::FromHuggingFaceJson(config.dump(), "c.json");
}

std::string ErrorOf(std::string_view text) {
  const Result<ModelConfig> model = ModelConfig::FromHuggingFaceJson(text, "c.json");
  REQUIRE_FALSE(model.ok());
  CHECK(model.status().code() == Code::kInvalidArgument);
  CHECK(model.status().message().size() < 600);
  return model.status().message();
}

// The base, with some members replaced (null stays null, "absent" goes away).
Json With(const Json& changes, Json base = Llama()) {
  for (const auto& [key, value] : changes.items()) {
    if (value == "absent") {
      base.erase(key);
    } else {
      base[key] = value;
    }
  }
  return base;
}

Json Scaled(const Json& block) { return With({{"rope_scaling", block}}); }

const Json kMla = {{"model_type", "deepseek_v3"}, {"kv_lora_rank", 32}, {"qk_rope_head_dim", 8},
                   {"qk_nope_head_dim", 16},      {"v_head_dim", 12},   {"num_key_value_heads", 8}};

TEST_CASE("Fields that are wrong are named, with what is there and what is allowed") {
  struct Case {
    Json config;
    std::string message;
  };
  const std::vector<Case> cases = {
      {With({{"num_hidden_layers", -32}}), "num_hidden_layers: -32; must be an integer >= 1"},
      {With({{"num_hidden_layers", nullptr}}), "num_hidden_layers: null; must be an integer >= 1"},
      {With({{"num_hidden_layers", "absent"}}),
       "num_hidden_layers: missing; must be an integer >= 1"},
      {With({{"num_hidden_layers", "32"}}), "num_hidden_layers: string \"32\"; must be an integer"},
      {With({{"num_hidden_layers", true}}), "num_hidden_layers: true; must be an integer"},
      {With({{"num_hidden_layers", 4000000000}}), "num_hidden_layers: 4000000000; must be <= 4096"},
      {With({{"num_hidden_layers", 1e300}}), "num_hidden_layers: 1e+300; must be <= 4096"},
      {With({{"num_attention_heads", 0}}), "num_attention_heads: 0; must be an integer >= 1"},
      {With({{"num_key_value_heads", 5}}),
       "num_key_value_heads: 5; must divide num_attention_heads (8)"},
      {With({{"num_key_value_heads", 7.5}}), "num_key_value_heads: 7.5; must be an integer"},
      {With({{"num_key_value_heads", {1, 2, 3, 4}}}),
       "num_key_value_heads[2]: 3; must divide num_attention_heads (8)"},
      {With({{"num_key_value_heads", {1, 2}}}),
       "num_key_value_heads: 2 entries; must have num_hidden_layers (4)"},
      {With({{"hidden_size", 65}}),
       "hidden_size: 65 is not a multiple of num_attention_heads (8); give head_dim"},
      {With({{"head_dim", 127}}),
       "head_dim: 127; the rotary dimension must be even (127 * partial_rotary_factor 1 = 127)"},
      {With({{"head_dim", 1024}}), "head_dim: 1024; the rotary dimension must be <= 512"},
      {With({{"partial_rotary_factor", 1.5}}), "partial_rotary_factor: 1.5; must be > 0 and <= 1"},
      {With({{"partial_rotary_factor", 0}}), "partial_rotary_factor: 0; must be > 0 and <= 1"},
      {With({{"rope_theta", 0}}), "rope_theta: 0; must be a finite number > 0"},
      {With({{"model_type", "absent"}}),
       "model_type: missing; it decides the RoPE layout and the defaults"},
      {With({{"model_type", 7}}), "model_type: 7; must be a string"},
      {With({{"text_config", "gemma"}}), "text_config: string; must be an object"},
      {With({{"text_config", Json::array()}}), "text_config: an array; must be an object"},
      {With({{"text_config", Json::object()}}),
       "text_config.num_hidden_layers: missing; must be an integer >= 1"},
      {With({{"tie_word_embeddings", "yes"}}),
       "tie_word_embeddings: string \"yes\"; must be true or false"},
      // Windows and kinds.
      {With({{"model_type", "mistral"}, {"sliding_window", 0}}),
       "sliding_window: 0; must be an integer >= 1, or null for none"},
      {With({{"layer_types", {"full_attention"}}}),
       "layer_types: 1 entries; must have num_hidden_layers (4)"},
      {With({{"layer_types", {"full_attention", "mystery", "full_attention", "full_attention"}}}),
       "layer_types[1]: \"mystery\"; must be full_attention, sliding_attention, "
       "chunked_attention or linear_attention"},
      {With({{"layer_types", {"full_attention", 3, "full_attention", "full_attention"}}}),
       "layer_types[1]: 3; must be a string"},
      {With({{"layer_types",
              {"full_attention", "sliding_attention", "full_attention", "full_attention"}}}),
       "sliding_window: missing; layer_types[1] requires an integer >= 1"},
      {With({{"model_type", "exaone4"}, {"sliding_window", 8}, {"sliding_window_pattern", "LXG"}}),
       "sliding_window_pattern: string \"LXG\"; must be an integer >= 1, or L for local and G for "
       "global layers"},
      {With({{"model_type", "smollm3"}, {"no_rope_layers", {1, 0}}}),
       "no_rope_layers: 2 entries; must have num_hidden_layers (4)"},
      {With({{"model_type", "mimo_v2_flash"}, {"sliding_window", 8}}),
       "hybrid_layer_pattern: missing; must be a list of 0 (full) and 1 (sliding)"},
      // Latent attention.
      {With({{"model_type", "deepseek_v3"}}),
       "kv_lora_rank: missing; this model_type requires an integer >= 1"},
      {With({{"qk_rope_head_dim", "absent"}}, With(kMla)),
       "qk_rope_head_dim: missing; required because kv_lora_rank is 32"},
      {With({{"qk_rope_head_dim", 7}}, With(kMla)), "qk_rope_head_dim: 7; must be even and <= 512"},
      // RoPE.
      {With({{"rope_scaling", "{}"}}), "rope_scaling: string \"{}\"; must be an object or null"},
      {Scaled({{"rope_type", "spiral"}}),
       "rope_scaling.rope_type: \"spiral\"; must be one of default, linear, dynamic, yarn, "
       "longrope (or su), llama3, proportional, mrope"},
      {Scaled({{"factor", 2}}),
       "rope_scaling.rope_type: missing beside factor; must be one of default, linear, dynamic, "
       "yarn, longrope (or su), llama3, proportional, mrope"},
      {Scaled({{"rope_type", "llama3"}, {"type", "yarn"}, {"factor", 8}}),
       "rope_scaling: rope_type \"llama3\" and type \"yarn\" disagree; must be one type"},
      {Scaled({{"type", "linear"}, {"factor", 0.0}}),
       "rope_scaling.factor: 0; must be a finite number >= 1"},
      {Scaled({{"type", "linear"}}),
       "rope_scaling.factor: missing; rope_type linear requires a finite number >= 1"},
      {Scaled({{"type", "llama3"}, {"factor", 8}, {"original_max_position_embeddings", 64}}),
       "rope_scaling.low_freq_factor: missing; rope_type llama3 requires a finite number > 0"},
      {With({{"max_position_embeddings", "absent"},
             {"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}),
       "max_position_embeddings: missing; rope_type dynamic requires an integer >= 1"},
      {Scaled({{"type", "longrope"}, {"short_factor", {1, 2, 3}}, {"long_factor", {1, 2, 3, 4}}}),
       "rope_scaling.short_factor: 3 entries; must have rotary_dim/2 (4)"},
      {Scaled(
           {{"type", "longrope"}, {"short_factor", {0, 2, 3, 4}}, {"long_factor", {1, 2, 3, 4}}}),
       "rope_scaling.short_factor[0]: 0; must be a finite number > 0"},
      {Scaled({{"type", "longrope"}, {"short_factor", {1, 2, 3, 4}}}),
       "rope_scaling.long_factor: missing; rope_type longrope requires a list of numbers > 0"},
      {Scaled({{"type", "mrope"}}),
       "rope_scaling.mrope_section: missing; rope_type mrope requires a list of integers >= 1"},
      {Scaled({{"type", "mrope"}, {"mrope_section", {1, 2, 2}}}),
       "rope_scaling.mrope_section: sum 5; must be rotary_dim/2 (4)"},
      {Scaled({{"type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 2}}),
       "rope_scaling: beta_fast is 1; allowed: finite, >= beta_slow, which is 2"},
      {With({{"sliding_window", 8},
             {"layer_types", Json::array({"full_attention", "sliding_attention", "full_attention",
                                          "full_attention"})},
             {"rope_parameters", {{"full_attention", {{"rope_theta", 5}}}}}}),
       "rope_parameters.sliding_attention: missing; the model has layers of this kind"},
  };
  for (const Case& c : cases) CHECK(ErrorOf(c.config.dump()) == "c.json: " + c.message);
}

TEST_CASE("Text that is no JSON is refused with its place") {
  const std::string good = Llama().dump();
  std::string deep = "{\"x\": ";
  for (int i = 0; i < 10000; ++i) deep += '[';
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "file is empty; expected a JSON object"},
      {"[" + good + "]", "top level is an array; must be an object"},
      {"7", "top level is 7; must be an object"},
      {"{\n  \"a\": 1,\n  ",
       "line 3 column 3 (byte 14): unexpected end of file; expected a key or '}'"},
      {"{\"a\": [1, 2", "line 1 column 12 (byte 11): unexpected end of file; expected ',' or ']'"},
      {"{\"a\": ", "line 1 column 7 (byte 6): unexpected end of file; expected a value"},
      {"{\"a\": NaN}", "line 1 column 7 (byte 6): NaN is not JSON"},
      {"{\"a\": -Infinity}", "line 1 column 8 (byte 7): Infinity is not JSON"},
      {"{'a': 1}", "line 1 column 2 (byte 1): \"'\" is not JSON"},
      {"{\"a\": 1} {}", "line 1 column 10 (byte 9): text after the end of the JSON object"},
      {"// x\n" + good, "line 1 column 1 (byte 0): comments are not JSON"},
      {"{\"a\": \"\xFF\"}", "line 1 column 8 (byte 7): invalid UTF-8 (byte ff)"},
      {"{\"a\": \"\xED\xA0\x80\"}", "line 1 column 8 (byte 7): invalid UTF-8 (byte ed)"},
      {"{\"a\": \"\xC0\x80\"}", "line 1 column 8 (byte 7): invalid UTF-8 (byte c0)"},
      {std::string("\xFF\xFE{\0}\0", 6), "file is not UTF-8 (UTF-16 byte order mark)"},
      {"\xEF\xBB\xBF" + good, "file begins with a byte order mark; must be UTF-8 without one"},
      {deep, "line 1 column 70 (byte 69): nesting deeper than 64 levels"},
      {"{\"a\": {\"b\": 1, \"c\": [{\"d\": 32, \"d\": 64}]}}",
       "a.c[0].d: given twice (32, then 64)"},
      {"{\"a\": 1, \"a\": {}}", "a: given twice (1, then an object)"},
      {"{\"a\": {\"b\": 1e999}}", "a.b: 1e999 is out of range; must be a finite number"},
      {"{\"a\": ]}", "line 1 column 7 (byte 6): \"]\" is out of place; expected a value"},
      {"}", "line 1 column 1 (byte 0): \"}\" is out of place; expected a JSON object"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text.substr(0, 60));
    CHECK(ErrorOf(text) == "c.json: " + message);
  }
}

TEST_CASE("Files without end are refused, and messages stay short") {
  const std::string key(std::size_t{1} << 20, 'k');
  CHECK(ErrorOf("{\"" + key + "\": 1}").find("a key of 1048576 bytes") != std::string::npos);
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 200'000; ++i) many += ",0";
  CHECK(ErrorOf(many + "]}").find("more than 200000 values") != std::string::npos);
  CHECK(ErrorOf(std::string((std::size_t{4} << 20) + 1, ' ')).find("over 4194304 bytes") !=
        std::string::npos);
  // A long and ugly value is cut.
  const std::string error = ErrorOf(With({{"hidden_size", std::string(5000, '\n')}}).dump());
  CHECK(error.find('\n') == std::string::npos);
  CHECK(error.size() < 200);
}

TEST_CASE("Odd but real files are accepted") {
  // An integer where a number is meant, and a whole number written as a fraction.
  CHECK(Read(With({{"rope_theta", 10000}}))->ropes[0].theta == 10000.0);
  CHECK(Read(With({{"num_hidden_layers", 4.0}}))->num_layers == 4);
  CHECK(Read(With({{"rope_scaling", ""}}))->ropes[0].type == RopeType::kDefault);
  CHECK(Read(With({{"rope_scaling", Json::object()}}))->ropes[0].type == RopeType::kDefault);
  const std::string text = Llama().dump();
  CHECK(ModelConfig::FromHuggingFaceJson("\n" + text + "\n").ok());
  CHECK(Read(With({{"pruned_heads", Json::object()}, {"id2label", {{"0", "x"}}}})).ok());
  // su is longrope, mrope is default: no conflicts.
  const Json lists = {{"rope_type", "longrope"},
                      {"type", "su"},
                      {"short_factor", {1, 2, 3, 4}},
                      {"long_factor", {1, 2, 3, 4}}};
  CHECK(Read(Scaled(lists))->ropes[0].type == RopeType::kLongrope);
  CHECK(Read(Scaled({{"rope_type", "default"}, {"type", "mrope"}, {"mrope_section", {1, 1, 2}}}))
            .ok());
  const Json equal = {{"type", "llama3"},
                      {"factor", 8},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 1.0},
                      {"original_max_position_embeddings", 64}};
  CHECK(Read(Scaled(equal)).ok());
  const Json betas = {{"type", "yarn"},
                      {"factor", 8},
                      {"beta_fast", 1},
                      {"beta_slow", 1},
                      {"original_max_position_embeddings", 64}};
  CHECK(Read(Scaled(betas)).ok());
  // A window longer than any sequence.
  CHECK(Read(With({{"model_type", "mistral"}, {"sliding_window", 262144}}))->layers[0].window ==
        262144);
}

std::string WarningsOf(const Json& config) {
  const Result<ModelConfig> model = Read(config);
  INFO(model.status().message());
  REQUIRE(model.ok());
  std::string all;
  for (const std::string& warning : model->warnings) all += warning + "\n";
  return all;
}

TEST_CASE("What is not applied or was assumed is named in a warning") {
  CHECK(WarningsOf(Llama()).empty());
  struct Case {
    Json config;
    std::string warning;
  };
  const std::vector<Case> cases = {
      {Scaled({{"type", "linear"}, {"factor", 2}, {"spin", 3}}),
       "rope_scaling.spin: 3 is not known, and not applied\n"},
      {Scaled({{"type", "linear"}, {"factor", 2}, {"beta_fast", 3}}),
       "rope_scaling.beta_fast: 3 is not read by rope_type linear\n"},
      {Scaled({{"type", "default"}, {"factor", 2}}),
       "rope_scaling.factor: 2 is not read by rope_type default\n"},
      {Scaled({{"type", "yarn"}, {"factor", 4}}),
       "rope_scaling.original_max_position_embeddings: missing; max_position_embeddings, 128, is "
       "taken\n"},
      {With({{"rope_parameters", {{"rope_theta", 5}}}, {"rope_scaling", {{"rope_theta", 6}}}}),
       "rope_scaling: differs from rope_parameters, which is used\n"},
      {With({{"max_position_embeddings", "absent"}}),
       "max_position_embeddings: missing; the length of a sequence is not limited\n"},
      {With({{"model_max_length", 4096}}),
       "model_max_length: 4096 differs from max_position_embeddings, 128, which is used\n"},
      {With({{"model_type", "mistral"},
             {"sliding_window", nullptr},
             {"num_key_value_heads", "absent"}}),
       "num_key_value_heads: missing; 8, the default of this model_type, is taken\n"},
      {With({{"torch_dtype", "int3"}}),
       "torch_dtype: \"int3\" is not a type of a cache; bfloat16 is taken\n"},
      {With({{"num_kv_shared_layers", 2}}),
       "num_kv_shared_layers: 2 is not applied: every layer is counted with a cache of its own\n"},
      {With({{"sliding_window", 64}}), "sliding_window: 64 is not read by this model_type\n"},
  };
  for (const Case& c : cases) CHECK(WarningsOf(c.config) == c.warning);
  // A family that nobody has heard of is read all the same, and said so.
  CHECK(WarningsOf(With({{"model_type", "brand_new"}}))
            .find("model_type: \"brand_new\" is not known") == 0);
  // However many there are, they end.
  Json block = {{"type", "linear"}, {"factor", 2}};
  for (int i = 0; i < 1000; ++i) block[std::string("key").append(std::to_string(i))] = i;
  CHECK(Read(Scaled(block))->warnings.size() == 64);
}

TEST_CASE("Layers carry what a cache stores") {
  const ModelConfig mla = *Read(With(kMla));
  REQUIRE(mla.layers.size() == 4);
  LayerSpec latent;
  latent.kind = LayerKind::kMla;
  latent.kv_heads = 1;
  latent.k_dim = 40;
  latent.rope = 0;
  CHECK(mla.layers == std::vector<LayerSpec>(4, latent));
  CHECK(mla.ropes[0].style == RopeStyle::kInterleavedToHalf);
  CHECK(mla.ropes[0].rotary_dim == 8);
  CHECK(mla.mla.norm_eps == 1e-6);
  CHECK(Read(With({{"rms_norm_eps", 1e-5}}, With(kMla)))->mla.norm_eps == 1e-6);
  CHECK(Read(Llama())->mla.norm_eps == 0);
  CHECK(Read(With({{"rope_interleave", false}}, With(kMla)))->ropes[0].style == RopeStyle::kHalf);
  CHECK(Read(With({{"model_type", "deepseek_v2"}}, With(kMla)))->ropes[0].style ==
        RopeStyle::kInterleaved);

  const ModelConfig gemma = *Read(With({{"model_type", "gemma3_text"},
                                        {"head_dim", 16},
                                        {"sliding_window", 8},
                                        {"sliding_window_pattern", 2}}));
  LayerSpec sliding;
  sliding.kind = LayerKind::kSliding;
  sliding.kv_heads = 2;
  sliding.k_dim = sliding.v_dim = 16;
  sliding.rope = 1;
  sliding.window = 8;
  LayerSpec full = sliding;
  full.kind = LayerKind::kFull;
  full.rope = 0;
  full.window = 0;
  CHECK(gemma.layers == std::vector<LayerSpec>{sliding, full, sliding, full});
  const std::vector<LayerGroup> groups = GroupLayers(gemma);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].layers == std::vector<int>{0, 2});
  CHECK(groups[1].spec == full);

  const ModelConfig linear = *Read(With({{"model_type", "qwen3_next"}, {"head_dim", 32}}));
  CHECK(linear.layers[0].kind == LayerKind::kLinear);
  CHECK(linear.layers[0].kv_heads == 0);
  CHECK(linear.layers[3].kind == LayerKind::kFull);
}

TEST_CASE("The checkpoint's type is found under either name, inside or outside") {
  CHECK(Read(Llama())->dtype == DType::kBF16);
  CHECK(Read(With({{"torch_dtype", "float16"}}))->dtype == DType::kFP16);
  CHECK(Read(With({{"dtype", "float32"}}))->dtype == DType::kFP32);
  const Json nested = {{"model_type", "x"}, {"torch_dtype", "float16"}, {"text_config", Llama()}};
  CHECK(Read(nested)->dtype == DType::kFP16);
}

TEST_CASE("Which layers have experts, and how wide they are") {
  const Json moe = {{"num_experts", 8},
                    {"num_experts_per_tok", 2},
                    {"moe_intermediate_size", 32},
                    {"intermediate_size", 96}};
  const auto layers = [&](const Json& more) {
    const Result<ModelConfig> model = Read(With(more, With(moe)));
    INFO(model.status().message());
    REQUIRE(model.ok());
    CHECK(model->experts == 8);
    CHECK(model->moe_intermediate_size == 32);
    return model->moe_layers;
  };
  CHECK(layers(Json::object()) == 4);
  CHECK(layers({{"first_k_dense_replace", 3}}) == 1);
  CHECK(layers({{"decoder_sparse_step", 2}}) == 2);
  CHECK(layers({{"mlp_only_layers", {0, 3}}}) == 2);
  CHECK(layers({{"moe_layer_freq", {0, 1, 1, 1}}}) == 3);
  CHECK(layers({{"mlp_layer_types", {"dense", "sparse", "dense", "dense"}}}) == 1);
  CHECK(Read(With({{"num_local_experts", 4}, {"intermediate_size", 96}}))->moe_intermediate_size ==
        96);
}

TEST_CASE("A file is read by its path, and a folder by its config.json") {
  const TempFolder folder;
  const std::string path = folder.File("config.json");
  CHECK(ModelConfig::FromHuggingFace(path).status().message().find(path + ": ") == 0);
  std::ofstream(path) << Llama().dump();
  for (const std::string& name : {path, folder.File("")}) {
    CAPTURE(name);
    const Result<ModelConfig> model = LoadModel(name);
    REQUIRE(model.ok());
    CHECK(model->name == name);
    CHECK(model->num_layers == 4);
  }
  std::ofstream(folder.File("bad.json")) << "{";
  const Result<ModelConfig> bad = LoadModel(folder.File("bad.json"));
  REQUIRE_FALSE(bad.ok());
  CHECK(bad.status().message().find(folder.File("bad.json") + ": line 1") == 0);
  CHECK_FALSE(LoadModel("no-such-model").ok());
}

}  // namespace
}  // namespace lariat
