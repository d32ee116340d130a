// SPDX-License-Identifier: Apache-2.0
// Replays of recordings: real ones verify, and what is broken is seen.
#include "lariat/verify.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
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
const std::vector<std::string> kOwnNames = {"llama_gqa_llama3", "qwen3_knorm_yarn",
                                            "mistral_window5",  "glm4_partial",
                                            "gemma3_hybrid",    "phi3_fused_partial"};
const std::vector<std::string> kGoldenNames = {"llama_gqa", "mistral_window6", "qwen3_knorm",
                                               "gemma3_hybrid", "glm4_partial_interleaved"};
const std::vector<DType> kTypes = {DType::kFP32, DType::kBF16, DType::kFP16};

ModelConfig ConfigOf(const std::string& stem) {
  const Result<ModelConfig> model = ModelConfig::FromHuggingFace(stem + ".config.json");
  INFO(model.status().message());
  REQUIRE(model.ok());
  return *model;
}

VerifyReport Verify(const std::string& path, const ModelConfig& model, DType dtype,
                    BackendKind backend = BackendKind::kCpu) {
  const Result<VerifyReport> report =
      VerifyRecording(path, model, {.backend = backend, .device_ordinal = 0, .dtype = dtype});
  INFO(path << ": " << report.status().message());
  REQUIRE(report.ok());
  return *report;
}

// Names of the tensors that failed.
std::set<std::string> Failed(const VerifyReport& report) {
  std::set<std::string> names;
  for (const VerifiedTensor& tensor : report.tensors) {
    if (!tensor.ok) names.insert(tensor.name);
    CHECK(tensor.ok == tensor.worst.empty());
    CHECK(tensor.ok == (tensor.max_rel_rms <= tensor.tolerance));
  }
  return names;
}

// Verifies a recording whole; returns K's largest error as a fraction of its tolerance.
double CheckVerifies(const std::string& stem, DType dtype, BackendKind backend) {
  const ModelConfig model = ConfigOf(stem);
  const VerifyReport report = Verify(stem + ".safetensors", model, dtype, backend);
  CAPTURE(stem, DTypeName(dtype));
  CHECK(report.ok);
  CHECK(report.backend == backend);
  CHECK(report.missing.empty());
  CHECK(report.passes.size() == 5);
  CHECK(report.tensors.size() == 2 * model.layers.size());
  CHECK(Failed(report).empty());
  double largest = 0;
  for (const VerifiedTensor& tensor : report.tensors) {
    const bool key = tensor.name.ends_with("cache_k");
    CAPTURE(tensor.name);
    CHECK(tensor.elements > 0);
    CHECK(tensor.compared == 5 * tensor.elements);
    if (key) largest = std::max(largest, tensor.max_rel_rms / tensor.tolerance);
    if (dtype == DType::kFP32) {
      CHECK(tensor.tolerance <= 1e-5);
      if (!key) CHECK(tensor.max_abs == 0);  // moved as they are
    } else {
      // A pair may hold all of a row: its RMS times the root of the width. One rounding of each
      // input and one of the output, 2^-8 (bf16) and 2^-11 each, and what fp32 leaves.
      const double unit = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      CHECK(tensor.tolerance <= (2 + unit) * unit * std::sqrt(48.0) + 2e-5);
      CHECK(tensor.max_abs > 0);  // it did round
    }
  }
  return largest;
}

TEST_CASE("Recordings made by tools/record_hf.py verify", "[verify]") {
  for (const DType dtype : kTypes) {
    double largest = 0;
    for (const std::string& name : kOwnNames) {
      largest = std::max(largest, CheckVerifies(kOwn + name, dtype, BackendKind::kCpu));
    }
    CHECK(largest >= 0.05);  // or the tolerance is too wide
  }
}

TEST_CASE("Recordings of another's script verify", "[verify]") {
  if (!std::filesystem::exists(kGolden)) LARIAT_SKIP("golden/ is absent");
  for (const DType dtype : kTypes) {
    double largest = 0;
    for (const std::string& name : kGoldenNames) {
      largest = std::max(largest, CheckVerifies(kGolden + name, dtype, BackendKind::kCpu));
    }
    CHECK(largest >= 0.05);
  }
}

TEST_CASE("Recordings verify on CUDA", "[verify]") {
  if (!Device::Create(BackendKind::kCuda).ok()) LARIAT_SKIP("no CUDA device");
  for (const DType dtype : kTypes) {
    for (const std::string& name : kOwnNames) {
      CheckVerifies(kOwn + name, dtype, BackendKind::kCuda);
    }
  }
}

TEST_CASE("Every pass takes the steps that its name says", "[verify]") {
  const std::string stem = kOwn + "llama_gqa_llama3";  // 2 sequences of 11 + 8 tokens
  const VerifyReport report = Verify(stem + ".safetensors", ConfigOf(stem), DType::kBF16);
  // Odd chunks: 1 + 3 + 5 + 7 + 3 of the first sequence, 3 + 5 + 7 + 4 of the second. Shared: the
  // first 9 tokens of each, in blocks of 4.
  const std::vector<VerifiedPass> expected = {{"one-call", 1, 0},
                                              {"step", 19, 0},
                                              {"odd-chunks", 5, 0},
                                              {"small-blocks", 9, 0},
                                              {"shared-prefix", 2, 2 * 8}};
  REQUIRE(report.passes.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(report.passes[i].name == expected[i].name);
    CHECK(report.passes[i].steps == expected[i].steps);
    CHECK(report.passes[i].hit_tokens == expected[i].hit_tokens);
  }
}

TEST_CASE("One negated element is seen, wherever it is", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  for (const std::string& name : kOwnNames) {
    const ModelConfig model = ConfigOf(kOwn + name);
    const EditedFile whole = EditedFile::Load(kOwn + name + ".safetensors");
    for (const std::string tensor : {"l0.cache_k", "l0.cache_v"}) {
      const std::int64_t size = whole.tensors.at(tensor).size();
      for (const std::int64_t at : {std::int64_t{0}, size / 3, size / 2, size - 1}) {
        EditedFile copy = whole;
        REQUIRE(std::fabs(copy.at(tensor).Get(at)) > 1e-4);
        copy.at(tensor).Negate(at);
        copy.Write(path);
        const VerifyReport report = Verify(path, model, DType::kFP32);
        CAPTURE(name, tensor, at);
        CHECK_FALSE(report.ok);
        CHECK(Failed(report) == std::set<std::string>{tensor});
        const std::string element = "element " + std::to_string(at % model.layers[0].k_dim) + ":";
        for (const VerifiedTensor& t : report.tensors) {
          if (!t.ok) CHECK(t.worst.find(element) != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("In 16 bits too, a negated value of V and a large one of K are seen", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const ModelConfig model = ConfigOf(kOwn + "llama_gqa_llama3");
  const EditedFile whole = EditedFile::Load(kOwn + "llama_gqa_llama3.safetensors");
  for (const DType dtype : {DType::kBF16, DType::kFP16}) {
    for (const std::string tensor : {"l1.cache_k", "l1.cache_v"}) {
      EditedFile copy = whole;
      EditedTensor& edited = copy.at(tensor);
      std::int64_t at = 0;  // the smallest of V, the largest of K
      for (std::int64_t i = 1; i < edited.size(); ++i) {
        const bool larger = std::fabs(edited.Get(i)) > std::fabs(edited.Get(at));
        if (larger == (tensor == "l1.cache_k")) at = i;
      }
      edited.Negate(at);
      copy.Write(path);
      const VerifyReport report = Verify(path, model, dtype);
      CAPTURE(tensor, at, edited.Get(at));
      CHECK(Failed(report) == std::set<std::string>{tensor});
    }
  }
}

TEST_CASE("K and V swapped, a NaN, and rows out of place are seen", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const ModelConfig model = ConfigOf(kOwn + "gemma3_hybrid");
  const EditedFile whole = EditedFile::Load(kOwn + "gemma3_hybrid.safetensors");
  for (const DType dtype : kTypes) {
    EditedFile copy = whole;
    std::swap(copy.at("l2.cache_k"), copy.at("l2.cache_v"));
    copy.Write(path);
    CHECK(Failed(Verify(path, model, dtype)) == std::set<std::string>{"l2.cache_k", "l2.cache_v"});

    copy = whole;
    copy.at("l1.cache_v").Set(7, std::nanf(""));
    copy.Write(path);
    CHECK(Failed(Verify(path, model, dtype)) == std::set<std::string>{"l1.cache_v"});

    copy = whole;  // the two sequences of the window's keys
    std::string& bytes = copy.at("l0.cache_k").bytes;
    std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2),
                bytes.end());
    copy.Write(path);
    CHECK(Failed(Verify(path, model, dtype)) == std::set<std::string>{"l0.cache_k"});

    copy = whole;  // keys without their norm
    copy.tensors.erase("l0.k_norm");
    copy.Write(path);
    CHECK(Failed(Verify(path, model, dtype)) == std::set<std::string>{"l0.cache_k"});
  }
}

// What a reader of configs gets wrong.
struct Misreading {
  std::string name;
  std::function<void(ModelConfig&)> change;
  std::set<std::string> failed;
};

TEST_CASE("A misread config is seen in every type", "[verify]") {
  const std::set<std::string> both = {"l0.cache_k", "l1.cache_k"};
  const std::set<std::string> one = {"l0.cache_k"};
  const std::vector<Misreading> misreadings = {
      {"llama_gqa_llama3", [](ModelConfig& m) { m.ropes[0].type = RopeType::kDefault; }, both},
      {"llama_gqa_llama3", [](ModelConfig& m) { m.ropes[0].type = RopeType::kLinear; }, both},
      {"llama_gqa_llama3", [](ModelConfig& m) { m.ropes[0].factor = 4; }, both},
      {"llama_gqa_llama3", [](ModelConfig& m) { m.ropes[0].style = RopeStyle::kInterleaved; },
       both},
      {"llama_gqa_llama3", [](ModelConfig& m) { m.layers[1].rope = -1; }, {"l1.cache_k"}},
      {"qwen3_knorm_yarn", [](ModelConfig& m) { m.ropes[0].type = RopeType::kDefault; }, one},
      {"qwen3_knorm_yarn", [](ModelConfig& m) { m.ropes[0].attention_factor = 1.0; }, one},
      {"glm4_partial", [](ModelConfig& m) { m.ropes[0].style = RopeStyle::kHalf; }, one},
      {"glm4_partial", [](ModelConfig& m) { m.ropes[0].rotary_dim = 16; }, one},
      {"phi3_fused_partial", [](ModelConfig& m) { m.ropes[0].rotary_dim = 8; }, one},
      {"mistral_window5", [](ModelConfig& m) { m.ropes[0].theta = 20000; }, one},
      {"gemma3_hybrid",
       [](ModelConfig& m) { m.layers[2].rope = m.layers[0].rope; },
       {"l2.cache_k"}},
  };
  for (const Misreading& misreading : misreadings) {
    ModelConfig model = ConfigOf(kOwn + misreading.name);
    misreading.change(model);
    for (const DType dtype : kTypes) {
      const VerifyReport report = Verify(kOwn + misreading.name + ".safetensors", model, dtype);
      CAPTURE(misreading.name, &misreading - misreadings.data(), DTypeName(dtype));
      CHECK_FALSE(report.ok);
      CHECK(Failed(report) == misreading.failed);
    }
  }
}

// --- the command ----------------------------------------------------------------------------

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

TEST_CASE("verify: MLA is missing, said plainly, and fails", "[verify]") {
  std::vector<std::string> stems = {kOwn + "deepseek_v3_mla"};
  if (std::filesystem::exists(kGolden)) {
    stems.push_back(kGolden + "deepseek_v3_mla");
    stems.push_back(kGolden + "deepseek_v3_mla_neox");
  }
  for (const std::string& stem : stems) {
    const CommandResult result = RunLariat("verify " + stem + ".safetensors --json -");
    CAPTURE(stem, result.err);
    CHECK(result.exit_code == 1);
    CHECK(result.err.find("MLA") != std::string::npos);
    const Json document = Json::parse(result.out);
    CHECK(document.at("tensors").empty());
    CHECK(document.at("passes").empty());
    CHECK(document.at("missing").size() == 2 * ConfigOf(stem).layers.size());
  }
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
