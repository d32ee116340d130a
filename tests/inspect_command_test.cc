// SPDX-License-Identifier: Apache-2.0
// `lariat inspect` as a user runs it.
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/command.h"
#include "support/expected_model.h"

namespace lariat::test {
namespace {

const std::string kShared = LARIAT_SHARED_DATA "/models/";
const std::string kOwn = LARIAT_TEST_DATA "/configs/";

Json Inspect(const std::string& arguments) {
  const CommandResult result = RunLariat("inspect --json - " + arguments);
  INFO(arguments << "\n" << result.err);
  REQUIRE(result.exit_code == 0);
  return Json::parse(result.out);
}

void CheckRows(const std::string& folder, std::size_t least) {
  const Json rows = Json::parse(ReadFile(folder + "EXPECTED.json"));
  CHECK(rows.size() >= least);
  for (const auto& [name, row] : rows.items()) {
    CAPTURE(name);
    const Json document = Inspect(folder + row.at("file").get<std::string>());
    CheckExpected(row, document);
    CheckGroups(document);
  }
}

TEST_CASE("Every rule of the reader, each in a small config", "[inspect]") { CheckRows(kOwn, 45); }

TEST_CASE("Configs of real models are read as they are meant", "[inspect]") {
  if (!std::filesystem::exists(kShared)) LARIAT_SKIP("models/ is absent");
  CheckRows(kShared, 46);
}

TEST_CASE("Broken and hostile configs end with exit 2, quickly and small", "[inspect]") {
  if (!std::filesystem::exists(kShared + "bad")) LARIAT_SKIP("models/ is absent");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kShared + "bad")) {
    const auto begin = std::chrono::steady_clock::now();
    const CommandResult result = RunLariat("inspect --json - " + entry.path().string());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    CAPTURE(entry.path(), result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(took.count() < 1.0);
    CHECK(result.err.find(entry.path().filename().string() + ": ") != std::string::npos);
    CHECK(result.err.size() < 1000);
    ++files;
  }
  CHECK(files == 34);
  rusage usage = {};
  REQUIRE(getrusage(RUSAGE_CHILDREN, &usage) == 0);
  CHECK(usage.ru_maxrss < 256 * 1024);  // KiB, of the largest child
}

TEST_CASE("Every key is always there, null where it does not apply", "[inspect]") {
  const std::vector<std::string> keys = {"model_type",
                                         "architecture",
                                         "layers",
                                         "q_heads",
                                         "kv_heads",
                                         "head_dim",
                                         "kv_lora_rank",
                                         "qk_rope_head_dim",
                                         "qk_nope_head_dim",
                                         "v_head_dim",
                                         "rotary_dim",
                                         "rope_style",
                                         "rope_type",
                                         "rope_theta",
                                         "attention_factor",
                                         "max_position_embeddings",
                                         "sliding_window",
                                         "sliding_layers",
                                         "nope_layers",
                                         "groups",
                                         "kv_bytes_per_token",
                                         "tokens_in_memory",
                                         "rope"};
  for (const std::string model :
       {"llama-3.1-8b", "deepseek-v3", "gemma-3-1b", "gpt-oss-20b", "falcon_alibi.json"}) {
    const bool file = model.find(".json") != std::string::npos;
    const Json document = Inspect((file ? kOwn : "") + model);
    CAPTURE(model);
    for (const std::string& key : keys) CHECK(document.contains(key));
    for (const Json& group : document.at("groups")) {
      for (const char* key :
           {"kind", "layers", "kv_heads", "head_dim", "v_head_dim", "window", "rope"}) {
        CHECK(group.contains(key));
      }
    }
  }
  const Json none = Inspect(kOwn + "falcon_alibi.json");
  for (const char* key : {"rotary_dim", "rope_style", "rope_type", "rope_theta", "attention_factor",
                          "kv_lora_rank", "sliding_window", "rope", "tokens_in_memory"}) {
    CAPTURE(key);
    CHECK(none.at(key).is_null());
  }
}

TEST_CASE("Option dtype and --memory: bytes, tokens, blocks and sequences", "[inspect]") {
  // 32 layers * 2 * 8 heads * 128 elements: 131072 bytes in 16 bits, twice that in 32.
  CHECK(Inspect("llama-3.1-8b").at("kv_bytes_per_token") == 131072);
  CHECK(Inspect("llama-3.1-8b --dtype fp32").at("kv_bytes_per_token") == 262144);
  CHECK(Inspect("llama-3.1-8b --memory 80GiB").at("tokens_in_memory") == 655360);
  CHECK(Inspect("llama-3.1-8b --memory 80GiB --dtype fp32").at("tokens_in_memory") == 327680);
  // 70272 bytes a token: 1 GiB / 70272 = 15279.8
  CHECK(Inspect("deepseek-v3 --memory 1GiB").at("tokens_in_memory") == 15279);

  const CommandResult text =
      RunLariat("inspect llama-3.1-8b --memory 1GiB --block-size 32 --lengths 1000,1025,9000");
  REQUIRE(text.exit_code == 0);
  INFO(text.out);
  // 1 GiB / (32 * 131072) = 256 blocks. 1000 tokens take 32 of them, 1025 take 33, 9000 take 282.
  CHECK(text.out.find("hold 256 blocks of 32 tokens (4 MiB each): 8192 tokens") !=
        std::string::npos);
  CHECK(text.out.find("        1000            8\n") != std::string::npos);
  CHECK(text.out.find("        1025            7\n") != std::string::npos);
  CHECK(text.out.find("        9000            0\n") != std::string::npos);
  const CommandResult mla = RunLariat("inspect deepseek-v3 --memory 1GiB");
  CHECK(mla.out.find("hold 238 blocks of 64 tokens") != std::string::npos);
}

TEST_CASE("Option rope prints the rows that the cache turns by", "[inspect]") {
  const Json rope = Inspect("tinyllama-1.1b --rope --positions 0,1,257").at("rope");
  CHECK(rope.at("attention_factor") == 1.0);
  CHECK(rope.at("softmax_scale_factor") == 1.0);
  REQUIRE(rope.at("inv_freq").size() == 32);
  CHECK(rope.at("cos").size() == 3);
  for (int i = 0; i < 32; ++i) {
    const double frequency = std::pow(10000.0, -2.0 * i / 64);
    CHECK(std::fabs(rope.at("inv_freq")[i].get<double>() / frequency - 1) < 1e-14);
    for (const int position : {0, 1, 257}) {
      // Values of fp32: half a place below 1.
      const std::string key = std::to_string(position);
      CHECK(std::fabs(rope.at("cos").at(key)[i].get<double>() - std::cos(position * frequency)) <=
            0x1p-25 + 1e-12);
      CHECK(std::fabs(rope.at("sin").at(key)[i].get<double>() - std::sin(position * frequency)) <=
            0x1p-25 + 1e-12);
    }
  }
  const CommandResult text = RunLariat("inspect tinyllama-1.1b --rope --positions 1");
  CHECK(text.out.find("0.540302277     0.841470957") != std::string::npos);
}

TEST_CASE("Option length chooses the table where the type depends on it", "[inspect]") {
  const std::string config = kOwn + "phi3_longrope.json --rope ";
  // theta 10000 over 8 elements; pair 3 turns by 10^-3, divided by its factor, 2.5 or 8.
  const auto last = [&](const std::string& arguments) {
    return Inspect(config + arguments).at("rope").at("inv_freq")[3].get<double>();
  };
  CHECK(std::fabs(last("--positions 4095") / (1e-3 / 2.5) - 1) < 1e-14);
  CHECK(std::fabs(last("--positions 4096") / (1e-3 / 8) - 1) < 1e-14);
  CHECK(std::fabs(last("--length 4096 --positions 1") / (1e-3 / 2.5) - 1) < 1e-14);
  CHECK(std::fabs(last("--length 4097 --positions 1") / (1e-3 / 8) - 1) < 1e-14);
  CHECK(Inspect(config).at("rope").at("cos").empty());
}

TEST_CASE("The softmax scale factor is DeepSeek's alone", "[inspect]") {
  // (0.1 * 1 * ln 40 + 1)^2
  const double want = std::pow(0.1 * std::log(40.0) + 1, 2);
  const Json v3 = Inspect("deepseek-v3 --rope").at("rope");
  CHECK(std::fabs(v3.at("softmax_scale_factor").get<double>() / want - 1) < 1e-14);
  CHECK(v3.at("attention_factor") == 1.0);
  const Json oss = Inspect("gpt-oss-20b --rope").at("rope");
  CHECK(oss.at("softmax_scale_factor") == 1.0);
  CHECK(Agree(oss.at("attention_factor"), 1.34657359028));
}

TEST_CASE("Option list names every preset, and each can be inspected", "[inspect]") {
  const CommandResult text = RunLariat("inspect --list");
  CHECK(text.exit_code == 0);
  const CommandResult json = RunLariat("inspect --list --json -");
  REQUIRE(json.exit_code == 0);
  const Json list = Json::parse(json.out);
  CHECK(list.size() >= 40);
  for (const Json& preset : list) {
    const std::string name = preset.at("name");
    CAPTURE(name);
    CHECK(text.out.find(name + " ") != std::string::npos);
    const Json document = Inspect(name);
    CHECK(document.at("kv_bytes_per_token") == preset.at("kv_bytes_per_token"));
    CHECK(document.at("warnings").empty());
  }
}

TEST_CASE("Warnings go to stderr and into the document", "[inspect]") {
  const CommandResult result = RunLariat("inspect --json - " + kOwn + "llama_ignores_window.json");
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("sliding_window: 16 is not read by this model_type") != std::string::npos);
  const Json warnings = Json::parse(result.out).at("warnings");
  CHECK(warnings.size() == 2);  // and that it names no greatest position
}

TEST_CASE("Bad usage of inspect is exit 2 and says what is allowed", "[inspect]") {
  const TempFolder folder;
  struct Case {
    std::string arguments, text;
  };
  for (const Case& c :
       {Case{"", "MODEL"}, Case{"no-such-model", "llama-3.1-8b"},
        Case{"/nonexistent/config.json", "no such file"}, Case{folder.File(""), "config.json"},
        Case{"llama-3.1-8b --dtype fp8", "not built in this version"},
        Case{"llama-3.1-8b --dtype int3", "fp32, fp16, bf16"},
        Case{"llama-3.1-8b --memory lots", "--memory"},
        Case{"llama-3.1-8b --positions 1", "--rope"}, Case{"llama-3.1-8b --lengths 1", "--memory"},
        Case{"llama-3.1-8b --rope --positions -1", "--positions"},
        Case{"llama-3.1-8b --rope --positions 2147483648", "--positions"},
        Case{"llama-3.1-8b --backend gpu", "auto, cpu, cuda, null"},
        Case{"llama-3.1-8b --json /nonexistent/x", "cannot be written"},
        Case{kOwn + "falcon_alibi.json --rope", "has no RoPE"}}) {
    const CommandResult result = RunLariat("inspect " + c.arguments);
    CAPTURE(c.arguments, result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.find(c.text) != std::string::npos);
  }
}

TEST_CASE("simulate takes a config.json and every preset, and refuses what is neither",
          "[inspect]") {
  const std::string load = "simulate --workload in=64,out=8,n=3 --backend null ";
  const CommandResult config =
      RunLariat(load + "--model " + kOwn + "qwen2_window_off.json --json -");
  INFO(config.err);
  REQUIRE(config.exit_code == 2);  // the cost model needs sizes that this config leaves out
  CHECK(config.err.find("intermediate_size") != std::string::npos);
  for (const std::string model :
       {"phi-4", "qwen3-30b-a3b", "mixtral-8x7b", "command-r-v01", "deepseek-v3", "gemma-2-2b",
        "mistral-7b-v0.1", "phi-3-mini-4k"}) {
    CAPTURE(model);
    const CommandResult result = RunLariat(load + "--json - --model " + model);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(Json::parse(result.out).at("model") == model);
  }
  CHECK(RunLariat(load + "--model no-such-model").exit_code == 2);
}

}  // namespace
}  // namespace lariat::test
