// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "lariat/model.h"
#include "lariat/safetensors.h"
#include "llama.h"

namespace lariat::examples {

namespace {

namespace fs = std::filesystem;

// The files that hold a checkpoint's tensors.
class WeightFiles {
 public:
  static Result<WeightFiles> Open(const std::string& folder) {
    std::vector<std::string> paths;
    std::error_code error;
    if (fs::exists(fs::path(folder) / "model.safetensors", error)) {
      paths.push_back((fs::path(folder) / "model.safetensors").string());
    } else {
      for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
           entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (name.starts_with("model-") && name.ends_with(".safetensors")) {
          paths.push_back(entry->path().string());
        }
      }
      std::sort(paths.begin(), paths.end());
    }
    if (paths.empty()) {
      return InvalidArgument(folder + ": no model.safetensors and no model-*.safetensors in it");
    }
    WeightFiles files;
    files.folder_ = folder;
    for (const std::string& path : paths) {
      Result<SafetensorsFile> file = SafetensorsFile::Open(path);
      if (!file.ok()) return file.status();
      files.files_.push_back(*std::move(file));
    }
    return files;
  }

  bool Has(const std::string& name) const { return Find(name) != files_.end(); }

  Status Read(const std::string& name, const std::vector<std::int64_t>& shape,
              std::vector<float>& out) {
    const auto file = files_.begin() + (Find(name) - files_.cbegin());
    if (file == files_.end()) return InvalidArgument(folder_ + ": no tensor " + name);
    const SafetensorsTensor& tensor = *file->Find(name);
    if (tensor.shape != shape) {
      return InvalidArgument(name + ": shape " + Text(tensor.shape) + "; config.json wants " +
                             Text(shape));
    }
    return Convert(*file, tensor, out);
  }

 private:
  std::vector<SafetensorsFile>::const_iterator Find(const std::string& name) const {
    return std::find_if(files_.begin(), files_.end(),
                        [&](const SafetensorsFile& file) { return file.Find(name) != nullptr; });
  }

  static std::string Text(const std::vector<std::int64_t>& shape) {
    std::ostringstream text;
    for (std::size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "[" : ", ") << shape[i];
    text << (shape.empty() ? "[]" : "]");
    return text.str();
  }

  // Without a copy in double where that would be the greater part of the memory.
  static Status Convert(SafetensorsFile& file, const SafetensorsTensor& tensor,
                        std::vector<float>& out) {
    if (tensor.type == SafetensorsType::kF32) {
      Result<std::vector<float>> values = file.Read<float>(tensor.name);
      if (values.ok()) out = *std::move(values);
      return values.status();
    }
    if (tensor.type == SafetensorsType::kBF16) {
      const Result<std::vector<std::uint16_t>> bits = file.Read<std::uint16_t>(tensor.name);
      if (!bits.ok()) return bits.status();
      out.resize(bits->size());
      std::transform(bits->begin(), bits->end(), out.begin(), [](std::uint16_t value) {
        return std::bit_cast<float>(std::uint32_t{value} << 16);
      });
      return Status::Ok();
    }
    const Result<std::vector<double>> values = file.ReadAsDouble(tensor.name);
    if (!values.ok()) return values.status();
    out.resize(values->size());
    std::transform(values->begin(), values->end(), out.begin(),
                   [](double value) { return static_cast<float>(value); });
    return Status::Ok();
  }

  std::string folder_;
  std::vector<SafetensorsFile> files_;
};

// What ModelConfig does not tell of a config.json, as it has nothing to do with a cache.
Status ReadRest(const std::string& path, LlamaShape& shape) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return InvalidArgument(path + ": is no JSON object");
  const auto eps = json.find("rms_norm_eps");
  if (eps == json.end() || !eps->is_number() || !(eps->get<double>() >= 0)) {
    return InvalidArgument(path + ": rms_norm_eps: missing, or no number >= 0");
  }
  shape.norm_eps = eps->get<float>();
  const auto act = json.find("hidden_act");
  if (act != json.end() && *act != "silu") {
    return Unsupported(path + ": hidden_act: " + act->dump() + "; allowed: \"silu\"");
  }
  for (const char* const field : {"attention_bias", "mlp_bias"}) {
    const auto bias = json.find(field);
    if (bias != json.end() && *bias != false && !bias->is_null()) {
      return Unsupported(path + ": " + field + ": " + bias->dump() + "; allowed: false");
    }
  }
  return Status::Ok();
}

Result<LlamaShape> ShapeOf(const ModelConfig& config) {
  if (config.model_type != "llama") {
    return Unsupported("model_type = \"" + config.model_type + "\"; allowed: \"llama\"");
  }
  const LayerSpec spec = config.layers.empty() ? LayerSpec{} : config.layers.front();
  const bool alike = std::all_of(config.layers.begin(), config.layers.end(),
                                 [&](const LayerSpec& layer) { return layer == spec; });
  if (!alike || spec.kind != LayerKind::kFull || spec.k_dim != spec.v_dim || spec.rope != 0 ||
      config.ropes.size() != 1 || config.experts != 0) {
    return Unsupported("the layers are not those of a dense Llama with full attention and RoPE");
  }
  return LlamaShape{.layers = config.num_layers,
                    .q_heads = config.q_heads,
                    .kv_heads = spec.kv_heads,
                    .head_dim = spec.k_dim,
                    .hidden = config.hidden_size,
                    .intermediate = config.intermediate_size,
                    .vocab = config.vocab_size,
                    .max_length = config.max_position_embeddings,
                    .rope = config.ropes.front()};
}

Status ReadLayer(WeightFiles& files, const LlamaShape& shape, int number, LlamaLayer& layer) {
  const std::string prefix = std::string("model.layers.").append(std::to_string(number)) + ".";
  const std::int64_t q_width = std::int64_t{shape.q_heads} * shape.head_dim;
  const std::int64_t kv_width = std::int64_t{shape.kv_heads} * shape.head_dim;
  struct Tensor {
    const char* name;
    std::vector<std::int64_t> shape;
    std::vector<float>* out;
  };
  const Tensor tensors[] = {
      {"input_layernorm", {shape.hidden}, &layer.attention_norm},
      {"self_attn.q_proj", {q_width, shape.hidden}, &layer.q},
      {"self_attn.k_proj", {kv_width, shape.hidden}, &layer.k},
      {"self_attn.v_proj", {kv_width, shape.hidden}, &layer.v},
      {"self_attn.o_proj", {shape.hidden, q_width}, &layer.o},
      {"post_attention_layernorm", {shape.hidden}, &layer.mlp_norm},
      {"mlp.gate_proj", {shape.intermediate, shape.hidden}, &layer.gate},
      {"mlp.up_proj", {shape.intermediate, shape.hidden}, &layer.up},
      {"mlp.down_proj", {shape.hidden, shape.intermediate}, &layer.down},
  };
  for (const Tensor& tensor : tensors) {
    const Status read = files.Read(prefix + tensor.name + ".weight", tensor.shape, *tensor.out);
    if (!read.ok()) return read;
  }
  return Status::Ok();
}

// Uniform in [-1, 1): the same on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  float operator()() {  // splitmix64
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    x ^= x >> 31;
    return static_cast<float>(static_cast<double>(x >> 40) / (1 << 23) - 1);
  }
  // A matrix whose products keep the size of what they are given, times `gain`.
  std::vector<float> Matrix(std::int64_t out, std::int64_t in, float gain = 1) {
    std::vector<float> matrix(static_cast<std::size_t>(out * in));
    const float scale = gain * std::sqrt(3.0F / static_cast<float>(in));
    for (float& value : matrix) value = scale * (*this)();
    return matrix;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

Result<Llama> LoadLlama(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return InvalidArgument(folder + ": no such folder");
  const Result<ModelConfig> config = ModelConfig::FromHuggingFace(folder);
  if (!config.ok()) return config.status();
  const Result<LlamaShape> shape = ShapeOf(*config);
  if (!shape.ok()) return shape.status();
  Llama model{.name = folder, .shape = *shape, .warnings = config->warnings};
  const Status rest = ReadRest((fs::path(folder) / "config.json").string(), model.shape);
  if (!rest.ok()) return rest;
  Result<WeightFiles> files = WeightFiles::Open(folder);
  if (!files.ok()) return files.status();

  const std::int64_t hidden = shape->hidden;
  Status read = files->Read("model.embed_tokens.weight", {shape->vocab, hidden}, model.embedding);
  if (read.ok()) read = files->Read("model.norm.weight", {hidden}, model.norm);
  if (read.ok() && !config->tie_word_embeddings) {
    read = files->Read("lm_head.weight", {shape->vocab, hidden}, model.head);
  }
  model.layers.resize(static_cast<std::size_t>(shape->layers));
  for (int layer = 0; read.ok() && layer < shape->layers; ++layer) {
    read = ReadLayer(*files, model.shape, layer, model.layers[static_cast<std::size_t>(layer)]);
  }
  if (!read.ok()) return read;
  return model;
}

Llama TinyLlama(std::uint64_t seed) {
  Llama model{.name = "tiny"};
  LlamaShape& shape = model.shape;
  shape = {.layers = 2,
           .q_heads = 4,
           .kv_heads = 2,
           .head_dim = 16,
           .hidden = 64,
           .intermediate = 128,
           .vocab = 256,
           .max_length = 1024};
  shape.rope.rotary_dim = shape.head_dim;
  Draw draw(seed);
  const std::int64_t q_width = std::int64_t{shape.q_heads} * shape.head_dim;
  const std::int64_t kv_width = std::int64_t{shape.kv_heads} * shape.head_dim;
  const std::vector<float> ones(static_cast<std::size_t>(shape.hidden), 1.0F);
  model.embedding = draw.Matrix(shape.vocab, shape.hidden);
  for (int layer = 0; layer < shape.layers; ++layer) {
    // Sharp scores and large values: what a row attends to decides what comes next.
    model.layers.push_back({.attention_norm = ones,
                            .mlp_norm = ones,
                            .q = draw.Matrix(q_width, shape.hidden, 1.5F),
                            .k = draw.Matrix(kv_width, shape.hidden, 1.5F),
                            .v = draw.Matrix(kv_width, shape.hidden, 4),
                            .o = draw.Matrix(shape.hidden, q_width, 4),
                            .gate = draw.Matrix(shape.intermediate, shape.hidden),
                            .up = draw.Matrix(shape.intermediate, shape.hidden),
                            .down = draw.Matrix(shape.hidden, shape.intermediate)});
  }
  model.norm = ones;
  model.head = draw.Matrix(shape.vocab, shape.hidden);
  return model;
}

}  // namespace lariat::examples
