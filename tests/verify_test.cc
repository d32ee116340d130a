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
      CHECK(tensor.tolerance <= 1.0001e-5);
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

}  // namespace
}  // namespace lariat::test
