// SPDX-License-Identifier: Apache-2.0
// `lariat verify` as a user runs it.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/command.h"
#include "support/safetensors_edit.h"

namespace lariat::test {
namespace {

const std::string kOwn = LARIAT_TEST_DATA "/recordings/";
const std::string kGolden = LARIAT_SHARED_DATA "/golden/";

using Json = nlohmann::json;

TEST_CASE("verify: the document, the text and the exit codes", "[verify]") {
  const CommandResult json = RunLariat("verify " + kOwn + "gemma3_hybrid.safetensors --json - ");
  INFO(json.err);
  REQUIRE(json.exit_code == 0);
  const Json document = Json::parse(json.out);
  std::set<std::string> keys;
  for (const auto& [key, value] : document.items()) keys.insert(key);
  CHECK(keys == std::set<std::string>{"backend", "tensors", "passes", "missing"});
  CHECK((document.at("backend") == "cpu" || document.at("backend") == "cuda"));
  CHECK(document.at("missing") == Json::array());
  CHECK(document.at("passes") ==
        Json({"one-call", "step", "odd-chunks", "small-blocks", "shared-prefix"}));
  REQUIRE(document.at("tensors").size() == 6);
  const Json& tensor = document.at("tensors")[0];
  keys.clear();
  for (const auto& [key, value] : tensor.items()) keys.insert(key);
  CHECK(keys ==
        std::set<std::string>{"name", "elements", "max_abs", "max_rel_rms", "tolerance", "ok"});
  CHECK(tensor.at("name") == "l0.cache_k");
  CHECK(tensor.at("elements") == 2 * 2 * 5 * 16);  // window 6 keeps 5 tokens
  CHECK(document.at("tensors")[4].at("elements") == 2 * 2 * 15 * 16);

  const CommandResult text =
      RunLariat("verify --backend cpu --dtype bf16 " + kOwn + "mistral_window5.safetensors");
  CHECK(text.exit_code == 0);
  CHECK(text.out.find("\nPASS\n") != std::string::npos);
  CHECK(text.out.find("cpu") != std::string::npos);
  CHECK(text.out.find("bf16 cache") != std::string::npos);
  CHECK(RunLariat("verify " + kOwn + "glm4_partial.safetensors --config " + kOwn +
                  "glm4_partial.config.json --dtype fp16")
            .exit_code == 0);
}

TEST_CASE("verify: MLA", "[verify]") {
  const std::string stem = kOwn + "mla_halves_yarn";
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    const CommandResult result =
        RunLariat("verify " + stem + ".safetensors --json - --dtype " + dtype);
    CAPTURE(dtype, result.err);
    CHECK(result.exit_code == 0);
    const Json document = Json::parse(result.out);
    CHECK(document.at("missing") == Json::array());
    CHECK(document.at("passes").size() == 5);
    std::vector<std::string> names;
    for (const Json& tensor : document.at("tensors")) names.push_back(tensor.at("name"));
    CHECK(names == std::vector<std::string>{"l0.cache_k", "l0.cache_v", "l0.attn_out", "l1.cache_k",
                                            "l1.cache_v", "l1.attn_out"});
    CHECK(document.at("tensors")[2].at("elements") == 3 * 11 * 3 * 7);
  }
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  EditedFile copy = EditedFile::Load(stem + ".safetensors");
  copy.at("l0.cache_v").Negate(7);
  copy.Write(path);
  const std::string arguments = "verify --backend cpu --config " + stem + ".config.json " + path;
  CommandResult result = RunLariat(arguments);
  INFO(result.out);
  CHECK(result.exit_code == 1);
  CHECK(result.out.find("sequence 0, head 0, token 1, element 1: stored") != std::string::npos);

  for (const std::string tensor : {"l0.kv_a_proj_with_mqa", "l0.hidden", "l0.w.kv_b_proj"}) {
    copy.tensors.erase(tensor);
  }
  copy.Write(path);
  result = RunLariat(arguments + " --json -");
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("l0.kv_a_proj_with_mqa") != std::string::npos);
  CHECK(Json::parse(result.out).at("missing") == Json({"l0.cache_v", "l0.attn_out"}));
}

TEST_CASE("verify: what is not compared is missing and fails", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const EditedFile whole = EditedFile::Load(kOwn + "gemma3_hybrid.safetensors");
  const auto missing = [&](const EditedFile& copy) {
    copy.Write(path);
    const CommandResult result =
        RunLariat("verify " + path + " --json - --config " + kOwn + "gemma3_hybrid.config.json");
    INFO(result.err);
    CHECK(result.exit_code == 1);
    const Json document = Json::parse(result.out);
    CHECK(document.at("tensors").size() + document.at("missing").size() >= 6);
    for (const Json& tensor : document.at("tensors")) CHECK(tensor.at("ok") == true);
    return document.at("missing");
  };
  EditedFile copy = whole;
  copy.tensors.erase("l1.cache_k");
  CHECK(missing(copy) == Json({"l1.cache_k"}));
  copy = whole;
  copy.tensors.erase("l1.v_proj");
  CHECK(missing(copy) == Json({"l1.cache_v"}));
  copy = whole;
  copy.tensors.erase("l2.k_norm");
  copy.tensors.erase("l2.k_proj");
  CHECK(missing(copy) == Json({"l2.cache_k"}));
  copy = whole;
  copy.tensors["l0.cache_index_k"] = copy.at("l0.cache_k");
  CHECK(missing(copy) == Json({"l0.cache_index_k"}));
  copy = whole;
  for (auto it = copy.tensors.begin(); it != copy.tensors.end();) {
    it = it->first.starts_with("l2.") ? copy.tensors.erase(it) : std::next(it);
  }
  CHECK(missing(copy) == Json({"l2.cache_k", "l2.cache_v"}));
}

TEST_CASE("verify: a failed comparison exits 1 and says where", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  EditedFile copy = EditedFile::Load(kOwn + "mistral_window5.safetensors");
  copy.at("l0.cache_k").Negate(17);
  copy.Write(path);
  const CommandResult result = RunLariat("verify " + path + " --backend cpu --config " + kOwn +
                                         "mistral_window5.config.json");
  INFO(result.out);
  CHECK(result.exit_code == 1);
  CHECK(result.out.find("FAIL") != std::string::npos);
  // 15 tokens of which a window of 5 keeps the last four; element 17 is the second row's second.
  CHECK(result.out.find("sequence 0, head 0, token 12, element 1: stored") != std::string::npos);
}

TEST_CASE("verify: bad input is exit 2 and says what is expected", "[verify]") {
  const TempFolder folder;
  const std::string stem = kOwn + "llama_gqa_llama3";
  const std::string good = stem + ".safetensors";
  const EditedFile whole = EditedFile::Load(good);
  std::ofstream(folder.File("text.safetensors")) << "no safetensors file";
  whole.Write(folder.File("alone.safetensors"));
  struct Case {
    std::string arguments, text;
  };
  std::vector<Case> cases = {
      {"", "RECORDING"},
      {folder.File("none.safetensors") + " --config " + stem + ".config.json", "no such file"},
      {folder.File("text.safetensors") + " --config " + stem + ".config.json", "header"},
      {folder.File("alone.safetensors"), "alone.config.json"},
      {folder.File("alone.safetensors"), "--config"},
      {stem + ".config.json", ".safetensors"},
      {good + " --config " + good, "llama_gqa_llama3.safetensors"},
      {good + " --backend null", "allowed: auto, cpu, cuda"},
      {good + " --backend gpu", "auto, cpu, cuda, null"},
      {good + " --dtype fp8", "fp32, bf16, fp16"},
      {good + " --json /nonexistent/x", "cannot be written"},
      // one config against another's recording
      {good + " --config " + kOwn + "glm4_partial.config.json", "the config has 1 layers"},
      {kOwn + "mistral_window5.safetensors --config " + kOwn + "glm4_partial.config.json",
       "l0.cache_k has shape [2, 1, 4, 16]; expected [2, 2, 15, 16]"},
  };
  int number = 0;
  const auto broken = [&](const std::string& text, const std::function<void(EditedFile&)>& change) {
    EditedFile copy = whole;
    change(copy);
    const std::string path = folder.File(std::to_string(number++) + ".safetensors");
    copy.Write(path);
    cases.push_back({path + " --config " + stem + ".config.json", text});
  };
  broken("metadata B", [](EditedFile& f) { f.metadata.erase("B"); });
  broken("metadata B = \"0\"", [](EditedFile& f) { f.metadata["B"] = "0"; });
  broken("metadata prefill = \"11x\"", [](EditedFile& f) { f.metadata["prefill"] = "11x"; });
  broken("metadata steps = \"-1\"", [](EditedFile& f) { f.metadata["steps"] = "-1"; });
  broken("prefill + steps = 1", [](EditedFile& f) {
    f.metadata["steps"] = "0";
    f.metadata["prefill"] = "1";
  });
  broken("l0.cache_k has shape [2, 2, 19, 16]; expected [2, 2, 20, 16]",
         [](EditedFile& f) { f.metadata["steps"] = "9"; });
  broken("expected [3, 2, 19, 16]", [](EditedFile& f) { f.metadata["B"] = "3"; });
  broken("metadata B", [](EditedFile& f) { f.metadata["B"] = "9223372036854775808"; });
  broken("l1.k_proj has shape [38, 32]; expected [2, 19, 32]", [](EditedFile& f) {
    f.at("l1.k_proj").shape = {38, 32};
  });
  broken("l1.cache_v has dtype I32; expected F32 or F64",
         [](EditedFile& f) { f.at("l1.cache_v").dtype = "I32"; });
  broken("l2.cache_k", [](EditedFile& f) { f.tensors["l2.cache_k"] = f.at("l1.cache_k"); });
  const std::string latents = kOwn + "mla_pairs";
  const auto broken_mla = [&](const std::string& tensor, const std::string& text) {
    EditedFile copy = EditedFile::Load(latents + ".safetensors");
    copy.at(tensor).shape = {copy.at(tensor).size()};
    const std::string path = folder.File(std::to_string(number++) + ".safetensors");
    copy.Write(path);
    cases.push_back(
        {path + " --config " + latents + ".config.json",
         tensor + " has shape [" + std::to_string(copy.at(tensor).size()) + "]; expected " + text});
  };
  broken_mla("l0.cache_k", "[1, 1, 13, 33], [B, 1, T, kv_lora_rank]");
  broken_mla("l0.cache_v", "[1, 1, 13, 8]");
  broken_mla("l0.hidden", "[1, 13, 24]");
  broken_mla("l0.kv_a_proj_with_mqa", "[1, 13, 41]");
  broken_mla("l0.w.kv_a_proj_with_mqa", "[41, 24]");
  broken_mla("l0.w.kv_b_proj", "[34, 33]");
  broken_mla("l0.q_b_proj", "[1, 13, 26]");
  broken_mla("l0.attn_out", "[1, 13, 24]");
  for (const Case& c : cases) {
    const CommandResult result = RunLariat("verify " + c.arguments);
    CAPTURE(c.arguments, result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.find(c.text) != std::string::npos);
  }
  CHECK(RunLariat("verify " + good, "LARIAT_BACKEND=null ").exit_code == 2);
}

}  // namespace
}  // namespace lariat::test
