// SPDX-License-Identifier: Apache-2.0
// Replays of recordings with latents: real ones verify, and what is broken is seen.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lariat/verify.h"
#include "support/catch.h"
#include "support/safetensors_edit.h"
#include "support/temp_folder.h"

namespace lariat::test {
namespace {

const std::string kOwn = LARIAT_TEST_DATA "/recordings/";
const std::string kGolden = LARIAT_SHARED_DATA "/golden/";
// Pairs to halves; halves, YaRN with an amplitude; pairs where they lie.
const std::vector<std::string> kOwnNames = {"deepseek_v3_mla", "mla_halves_yarn", "mla_pairs"};
const std::vector<std::string> kGoldenNames = {"deepseek_v3_mla", "deepseek_v3_mla_neox"};
const std::vector<DType> kTypes = {DType::kFP32, DType::kBF16, DType::kFP16};

using Names = std::set<std::string>;

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

Names Failed(const VerifyReport& report) {
  Names names;
  for (const VerifiedTensor& tensor : report.tensors) {
    if (!tensor.ok) names.insert(tensor.name);
    CHECK(tensor.ok == tensor.worst.empty());
    CHECK(tensor.ok == (tensor.max_rel_rms <= tensor.tolerance));
  }
  return names;
}

// The largest error as a fraction of its tolerance, for each kind of tensor.
using Largest = std::map<std::string, double>;

// ways: in which rows are made
void CheckVerifies(const std::string& path, const ModelConfig& model, DType dtype, int ways,
                   Largest& largest, BackendKind backend = BackendKind::kCpu) {
  const VerifyReport report = Verify(path, model, dtype, backend);
  CAPTURE(path, DTypeName(dtype));
  CHECK(report.ok);
  CHECK(report.backend == backend);
  CHECK(report.missing.empty());
  CHECK(report.passes.size() == 5);
  CHECK(report.tensors.size() == 3 * model.layers.size());
  CHECK(Failed(report).empty());
  for (const VerifiedTensor& tensor : report.tensors) {
    CAPTURE(tensor.name);
    CHECK(tensor.elements > 0);
    CHECK(tensor.compared == 5 * ways * tensor.elements);
    CHECK(tensor.max_abs > 0);
    if (dtype == DType::kFP32) CHECK(tensor.tolerance < 4e-5);
    double& seen = largest[tensor.name.substr(tensor.name.find('.') + 1)];
    seen = std::max(seen, tensor.max_rel_rms / tensor.tolerance);
  }
}

TEST_CASE("MLA recordings verify, from hidden states and from given rows", "[verify]") {
  for (const DType dtype : kTypes) {
    Largest largest;
    for (const std::string& name : kOwnNames) {
      const std::string stem = kOwn + name;
      CheckVerifies(stem + ".safetensors", ConfigOf(stem), dtype, 2, largest);
    }
    CAPTURE(DTypeName(dtype));
    CHECK(largest.size() == 3);
    CHECK(largest["cache_k"] >= 0.05);  // or the tolerance is too wide
    CHECK(largest["attn_out"] >= 0.05);
    // In fp32 it allows for angles in fp32 at later positions than there are.
    if (dtype != DType::kFP32) CHECK(largest["cache_v"] >= 0.05);
  }
}

TEST_CASE("MLA recordings of another's script verify, in each way", "[verify]") {
  if (!std::filesystem::exists(kGolden)) LARIAT_SKIP("golden/ is absent");
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const auto erased = [&](const EditedFile& whole, const std::string& name) {
    EditedFile copy = whole;
    for (const std::string layer : {"l0.", "l1."}) copy.tensors.erase(layer + name);
    copy.Write(path);
  };
  for (const DType dtype : kTypes) {
    Largest both, from_hidden, from_rows;
    for (const std::string& name : kGoldenNames) {
      const std::string stem = kGolden + name;
      const ModelConfig model = ConfigOf(stem);
      const EditedFile whole = EditedFile::Load(stem + ".safetensors");
      CheckVerifies(stem + ".safetensors", model, dtype, 2, both);
      erased(whole, "kv_a_proj_with_mqa");
      CheckVerifies(path, model, dtype, 1, from_hidden);
      erased(whole, "hidden");
      CheckVerifies(path, model, dtype, 1, from_rows);
    }
    for (const Largest& way : {both, from_hidden, from_rows}) {
      for (const auto& [kind, seen] : way) {
        CAPTURE(DTypeName(dtype), kind, &way - &both);
        CHECK(seen >= 0.05);
        CHECK(seen <= 1);
      }
    }
  }
}

TEST_CASE("MLA recordings verify on CUDA", "[verify]") {
  if (!Device::Create(BackendKind::kCuda).ok()) LARIAT_SKIP("no CUDA device");
  Largest largest;
  for (const DType dtype : kTypes) {
    for (const std::string& name : kOwnNames) {
      const std::string stem = kOwn + name;
      CheckVerifies(stem + ".safetensors", ConfigOf(stem), dtype, 2, largest, BackendKind::kCuda);
    }
  }
}

TEST_CASE("Without hidden states, weights or rows the others serve", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const std::string stem = kOwn + "mla_pairs";
  const ModelConfig model = ConfigOf(stem);
  const EditedFile whole = EditedFile::Load(stem + ".safetensors");
  const auto without = [&](const std::vector<std::string>& names) {
    EditedFile copy = whole;
    for (const std::string& name : names) REQUIRE(copy.tensors.erase("l0." + name) == 1);
    copy.Write(path);
    return Verify(path, model, DType::kFP32);
  };
  const auto compared = [](const VerifyReport& report) {
    CHECK(report.ok);
    CHECK(report.missing.empty());
    REQUIRE(report.tensors.size() == 3);
    return report.tensors[0].compared / report.tensors[0].elements / 5;
  };
  CHECK(compared(without({"w.kv_a_proj_with_mqa"})) == 1);
  CHECK(compared(without({"hidden", "kv_a_layernorm", "w.q_b_proj"})) == 1);
  CHECK(compared(without({"kv_a_proj_with_mqa", "kv_a_layernorm"})) == 1);
  const VerifyReport normed = without({"hidden", "w.kv_a_layernorm"});
  CHECK(compared(normed) == 1);
  CHECK(normed.tensors[0].max_abs == 0);  // moved as they are
  // A bias cannot be given to the cache; the rows that it is part of can.
  EditedFile biased = whole;
  biased.tensors["l0.b.kv_a_proj_with_mqa"] = whole.tensors.at("l0.w.kv_a_layernorm");
  biased.Write(path);
  CHECK(compared(Verify(path, model, DType::kFP32)) == 1);
}

TEST_CASE("What of an MLA layer cannot be compared is missing and fails", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const std::string stem = kOwn + "mla_pairs";
  const ModelConfig model = ConfigOf(stem);
  const EditedFile whole = EditedFile::Load(stem + ".safetensors");
  struct Case {
    std::vector<std::string> without;
    std::vector<std::string> missing;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {{"cache_k"}, {"l0.cache_k", "l0.attn_out"}, "l0.cache_k is not in the recording"},
      {{"cache_v"}, {"l0.cache_v", "l0.attn_out"}, "l0.cache_v is not in the recording"},
      {{"hidden", "kv_a_proj_with_mqa"}, {"l0.cache_v", "l0.attn_out"}, "l0.kv_a_proj_with_mqa"},
      {{"w.kv_a_layernorm", "kv_a_layernorm"},
       {"l0.cache_k", "l0.attn_out"},
       "l0.w.kv_a_layernorm"},
      {{"hidden", "kv_a_proj_with_mqa", "kv_a_layernorm"},
       {"l0.cache_k", "l0.cache_v", "l0.attn_out"},
       "the recording has none of those"},
      {{"w.kv_b_proj"}, {"l0.attn_out"}, "l0.w.kv_b_proj is not in the recording"},
      {{"q_b_proj"}, {"l0.attn_out"}, "neither l0.q_b_proj nor l0.q_proj"},
  };
  for (const Case& c : cases) {
    EditedFile copy = whole;
    for (const std::string& name : c.without) REQUIRE(copy.tensors.erase("l0." + name) == 1);
    copy.Write(path);
    const VerifyReport report = Verify(path, model, DType::kFP32);
    CAPTURE(c.without.front(), c.without.size());
    CHECK_FALSE(report.ok);
    CHECK(report.missing == c.missing);
    CHECK(report.tensors.size() + (copy.tensors.contains("l0.attn_out") ? 0 : 1) +
              report.missing.size() >=
          3);
    for (const VerifiedTensor& tensor : report.tensors) CHECK(tensor.ok);
    const bool said = std::any_of(
        report.reasons.begin(), report.reasons.end(),
        [&](const std::string& reason) { return reason.find(c.reason) != std::string::npos; });
    CHECK(said);
  }
  // A model that attends to a part of its tokens only.
  ModelConfig sparse = model;
  sparse.indexer.head_dim = 8;
  sparse.indexer.topk = 12;
  CHECK(Verify(stem + ".safetensors", sparse, DType::kFP32).missing ==
        std::vector<std::string>{"l0.attn_out"});
  sparse.indexer.topk = 13;
  CHECK(Verify(stem + ".safetensors", sparse, DType::kFP32).ok);
}

TEST_CASE("One negated element of an MLA layer is seen, wherever it is", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  for (const std::string& name : kOwnNames) {
    const ModelConfig model = ConfigOf(kOwn + name);
    const EditedFile whole = EditedFile::Load(kOwn + name + ".safetensors");
    for (const std::string tensor : {"l0.cache_k", "l0.cache_v", "l0.attn_out"}) {
      const std::int64_t size = whole.tensors.at(tensor).size();
      for (const std::int64_t at : {std::int64_t{0}, size / 3, size / 2, size - 1}) {
        EditedFile copy = whole;
        REQUIRE(std::fabs(copy.at(tensor).Get(at)) > 1e-4);
        copy.at(tensor).Negate(at);
        copy.Write(path);
        CAPTURE(name, tensor, at);
        CHECK(Failed(Verify(path, model, DType::kFP32)) == Names{tensor});
      }
      // In 16 bits the largest one.
      EditedFile copy = whole;
      EditedTensor& edited = copy.at(tensor);
      std::int64_t at = 0;
      for (std::int64_t i = 1; i < size; ++i) {
        if (std::fabs(edited.Get(i)) > std::fabs(edited.Get(at))) at = i;
      }
      edited.Negate(at);
      copy.Write(path);
      for (const DType dtype : {DType::kBF16, DType::kFP16}) {
        CAPTURE(name, tensor, at, DTypeName(dtype));
        CHECK(Failed(Verify(path, model, dtype)) == Names{tensor});
      }
    }
  }
}

// What a recording, a reader of configs, or an operation gets wrong.
struct Mistake {
  std::string what;
  std::function<void(EditedFile&, ModelConfig&)> make;
  Names failed;
};

// Rotates a tensor's elements to the left.
void Shift(EditedTensor& tensor, std::int64_t elements) {
  std::rotate(tensor.bytes.begin(), tensor.bytes.begin() + 4 * elements, tensor.bytes.end());
}

void SwapPairs(EditedTensor& tensor) {
  for (std::int64_t i = 0; i + 1 < tensor.size(); i += 2) {
    const float first = tensor.Get(i);
    tensor.Set(i, tensor.Get(i + 1));
    tensor.Set(i + 1, first);
  }
}

void CheckSeen(const std::string& name, const std::vector<Mistake>& mistakes) {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const EditedFile whole = EditedFile::Load(kOwn + name + ".safetensors");
  for (const Mistake& mistake : mistakes) {
    EditedFile copy = whole;
    ModelConfig model = ConfigOf(kOwn + name);
    mistake.make(copy, model);
    copy.Write(path);
    for (const DType dtype : kTypes) {
      const VerifyReport report = Verify(path, model, dtype);
      CAPTURE(name, mistake.what, DTypeName(dtype));
      CHECK_FALSE(report.ok);
      CHECK(Failed(report) == mistake.failed);
    }
  }
}

TEST_CASE("Wrong rows, weights and configs of MLA layers are seen in every type", "[verify]") {
  // 3 sequences of 11 tokens; rank 20, rope 6, 3 heads of 10 + 6 and 7.
  CheckSeen(
      "mla_halves_yarn",
      {
          {"negated k_pe",
           [](EditedFile& f, ModelConfig&) {
             for (std::int64_t i = 0; i < f.at("l0.cache_v").size(); ++i) {
               f.at("l0.cache_v").Negate(i);
             }
           },
           {"l0.cache_v"}},
          {"swapped pairs",
           [](EditedFile& f, ModelConfig&) { SwapPairs(f.at("l1.cache_v")); },
           {"l1.cache_v"}},
          {"latents one token off",
           [](EditedFile& f, ModelConfig&) { Shift(f.at("l0.cache_k"), 20); },
           {"l0.cache_k"}},
          {"k_pe of another sequence",
           [](EditedFile& f, ModelConfig&) { Shift(f.at("l0.cache_v"), 11 * 6); },
           {"l0.cache_v"}},
          {"no norm",
           [](EditedFile& f, ModelConfig&) {
             EditedTensor& latents = f.at("l0.cache_k");
             for (std::int64_t i = 0; i < latents.size(); ++i) {
               latents.Set(i, f.at("l0.kv_a_proj_with_mqa").Get(i / 20 * 26 + i % 20));
             }
           },
           {"l0.cache_k"}},
          {"a norm without its weight",
           [](EditedFile& f, ModelConfig&) {
             for (std::int64_t i = 0; i < 20; ++i) f.at("l1.w.kv_a_layernorm").Set(i, 1);
           },
           {"l1.cache_k"}},
          {"another eps",
           [](EditedFile&, ModelConfig& m) { m.mla.norm_eps = 1e-3; },
           {"l0.cache_k", "l1.cache_k"}},
          {"pairs for halves",
           [](EditedFile&, ModelConfig& m) { m.ropes[0].style = RopeStyle::kInterleavedToHalf; },
           {"l0.cache_v", "l1.cache_v", "l0.attn_out", "l1.attn_out"}},
          {"no RoPE",
           [](EditedFile&, ModelConfig& m) { m.layers[0].rope = -1; },
           {"l0.cache_v", "l0.attn_out"}},
          {"the scores' factor left out",
           [](EditedFile&, ModelConfig& m) {
             const Result<RopeFrequencies> turning = ComputeRopeFrequencies(m.ropes[0]);
             m.ropes[0].attention_factor = turning->attention_factor;
             m.ropes[0].mscale_all_dim = 0;
           },
           {"l0.attn_out", "l1.attn_out"}},
          {"W_UV before W_UK",
           [](EditedFile& f, ModelConfig&) {
             EditedTensor& weights = f.at("l0.w.kv_b_proj");
             for (std::ptrdiff_t h = 0; h < 3; ++h) {
               const auto head = weights.bytes.begin() + h * 17 * 20 * 4;
               std::rotate(head, head + 10 * 20 * 4, head + 17 * 20 * 4);
             }
           },
           {"l0.attn_out"}},
          {"one weight of an expansion negated",
           [](EditedFile& f, ModelConfig&) { f.at("l1.w.kv_b_proj").Negate(16 * 20 + 3); },
           {"l1.attn_out"}},
          {"queries one token off",
           [](EditedFile& f, ModelConfig&) { Shift(f.at("l0.q_proj"), 3 * 16); },
           {"l0.attn_out"}},
          {"one NaN",
           [](EditedFile& f, ModelConfig&) { f.at("l0.cache_k").Set(7, std::nanf("")); },
           {"l0.cache_k", "l0.attn_out"}},
      });
  CheckSeen("mla_pairs",
            {{"pairs written as halves",
              [](EditedFile&, ModelConfig& m) { m.ropes[0].style = RopeStyle::kInterleavedToHalf; },
              {"l0.cache_v"}},
             {"another theta",
              [](EditedFile&, ModelConfig& m) { m.ropes[0].theta = 5000; },
              {"l0.cache_v", "l0.attn_out"}}});
  CheckSeen("deepseek_v3_mla",
            {{"halves for pairs",
              [](EditedFile&, ModelConfig& m) { m.ropes[0].style = RopeStyle::kHalf; },
              {"l0.cache_v", "l0.attn_out"}}});
}

TEST_CASE("The rows of one way alone betray a mistake of the other", "[verify]") {
  const TempFolder folder;
  const std::string path = folder.File("copy.safetensors");
  const std::string stem = kOwn + "mla_halves_yarn";
  const ModelConfig model = ConfigOf(stem);
  for (const auto& [tensor, way] : std::vector<std::pair<std::string, std::string>>{
           {"l0.hidden", "from hidden"},
           {"l0.w.kv_a_proj_with_mqa", "from hidden"},
           {"l0.kv_a_proj_with_mqa", "from given rows"}}) {
    EditedFile copy = EditedFile::Load(stem + ".safetensors");
    for (std::int64_t i = 0; i < 26; ++i) copy.at(tensor).Negate(i);
    copy.Write(path);
    for (const DType dtype : kTypes) {
      const VerifyReport report = Verify(path, model, dtype);
      CAPTURE(tensor, DTypeName(dtype));
      CHECK(Failed(report).contains("l0.cache_k"));
      CHECK(report.tensors[0].worst.find("pass one-call " + way) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lariat::test
