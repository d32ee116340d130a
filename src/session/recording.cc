// SPDX-License-Identifier: Apache-2.0
#include "session/recording.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "lariat/safetensors.h"

namespace lariat::session {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - 1;  // positions are int32

std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

// Reads one file against one config.
class Loader {
 public:
  Loader(std::string path, SafetensorsFile file, const ModelConfig& model)
      : path_(std::move(path)), file_(std::move(file)), model_(model) {}

  Result<Recording> Load() {
    Status status = ReadMetadata();
    if (status.ok()) status = CheckNames();
    if (!status.ok()) return status;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      status = ReadLayer(static_cast<int>(i), model_.layers[i]);
      if (!status.ok()) return status;
    }
    AddUnread();
    recording_.ropes = model_.ropes;
    return std::move(recording_);
  }

 private:
  Status Bad(const std::string& message) const { return InvalidArgument(path_ + ": " + message); }

  // A whole number of the metadata.
  Status ReadCount(const std::string& name, std::int64_t least, std::int64_t& value) const {
    const std::string allowed =
        "; expected a whole number from " + std::to_string(least) + " to 2^31 - 1";
    const auto found = file_.metadata().find(name);
    if (found == file_.metadata().end()) return Bad("metadata " + name + " is not there" + allowed);
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least ||
        value > kMaxCount) {
      return Bad("metadata " + name + " = \"" + text.substr(0, 40) + "\"" + allowed);
    }
    return Status::Ok();
  }

  Status ReadMetadata() {
    std::int64_t steps = 0;
    Status status = ReadCount("B", 1, recording_.batch);
    if (status.ok()) status = ReadCount("prefill", 1, recording_.prefill);
    if (status.ok()) status = ReadCount("steps", 0, steps);
    if (!status.ok()) return status;
    recording_.tokens = recording_.prefill + steps;
    if (recording_.tokens < 2 || recording_.tokens > kMaxCount) {
      return Bad("metadata prefill + steps = " + std::to_string(recording_.tokens) +
                 "; expected 2 to 2^31 - 1");
    }
    const auto name = file_.metadata().find("model");
    if (name != file_.metadata().end()) recording_.model = name->second;
    return Status::Ok();
  }

  // The layer in a name of the form lN.rest, or -1.
  static std::int64_t LayerOf(const std::string& name) {
    std::int64_t layer = -1;
    if (name.empty() || name[0] != 'l') return -1;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + 1, end, layer);
    const bool dot = error == std::errc() && rest != end && *rest == '.';
    return dot ? layer : -1;
  }

  Status CheckNames() const {
    for (const SafetensorsTensor& tensor : file_.tensors()) {
      const std::int64_t layer = LayerOf(tensor.name);
      if (layer >= static_cast<std::int64_t>(model_.layers.size())) {
        return Bad("tensor " + tensor.name + " of shape " + ShapeText(tensor.shape) +
                   ": the config has " + std::to_string(model_.layers.size()) +
                   " layers; expected l0 to l" + std::to_string(model_.layers.size() - 1));
      }
    }
    return Status::Ok();
  }

  Status CheckTensor(const SafetensorsTensor& tensor, const Shape& expected,
                     const std::string& meaning) const {
    if (tensor.shape != expected) {
      return Bad("tensor " + tensor.name + " has shape " + ShapeText(tensor.shape) + "; expected " +
                 ShapeText(expected) + ", " + meaning);
    }
    if (tensor.type != SafetensorsType::kF32 && tensor.type != SafetensorsType::kF64) {
      return Bad("tensor " + tensor.name + " has dtype " +
                 std::string(SafetensorsTypeName(tensor.type)) + "; expected F32 or F64");
    }
    return Status::Ok();
  }

  void Miss(const std::string& name, const std::string& reason) {
    recording_.missing.push_back(name);
    if (std::find(recording_.reasons.begin(), recording_.reasons.end(), reason) ==
        recording_.reasons.end()) {
      recording_.reasons.push_back(reason);
    }
  }

  // Tokens that the model's own cache keeps: a window of W needs W - 1 beside the newest one.
  std::int64_t KeptTokens(const LayerSpec& spec) const {
    return spec.window > 1 ? std::min<std::int64_t>(recording_.tokens, spec.window - 1)
                           : recording_.tokens;
  }

  Status ReadLayer(int index, const LayerSpec& spec) {
    if (spec.kind == LayerKind::kLinear) return Status::Ok();  // keeps nothing per token
    RecordedLayer layer{.layer = index, .spec = spec, .kept = KeptTokens(spec), .k = {}, .v = {}};
    const bool mla = spec.kind == LayerKind::kMla;
    Status read = ReadPart("k", mla ? model_.mla.kv_lora_rank : spec.k_dim, layer, layer.k);
    if (read.ok()) {
      read = ReadPart("v", mla ? model_.mla.qk_rope_head_dim : spec.v_dim, layer, layer.v);
    }
    if (!read.ok()) return read;
    if (layer.k.compared() || layer.v.compared()) recording_.layers.push_back(std::move(layer));
    return Status::Ok();
  }

  // part: "k" or "v"; dim: elements of a head in the cache.
  Status ReadPart(const std::string& part, std::int64_t dim, const RecordedLayer& layer,
                  RecordedPart& out) {
    const std::string prefix = std::string("l").append(std::to_string(layer.layer)).append(".");
    const std::int64_t heads = layer.spec.kv_heads;
    out.name = prefix + "cache_" + part;
    read_.insert(out.name);
    const SafetensorsTensor* const cached = file_.Find(out.name);
    if (cached == nullptr) {
      Miss(out.name, out.name + " is not in the recording");
      return Status::Ok();
    }
    Status status = CheckTensor(*cached, {recording_.batch, heads, layer.kept, dim},
                                "[B, kv_heads, tokens kept, head_dim] by metadata and config");
    if (!status.ok()) return status;
    if (layer.spec.kind == LayerKind::kMla) {
      Miss(out.name,
           "MLA layers keep latents and k_pe, which the cache cannot store yet: cache_k "
           "and cache_v of MLA layers are not compared");
      return Status::Ok();
    }
    // What RoPE turns: the normed heads where there are such.
    const SafetensorsTensor* input = file_.Find(prefix + part + "_norm");
    const Shape by_heads = {recording_.batch, recording_.tokens, heads, dim};
    const Shape flat = {recording_.batch, recording_.tokens, heads * dim};
    if (input != nullptr) {
      status = CheckTensor(*input, by_heads, "[B, T, kv_heads, head_dim] by metadata and config");
    } else if ((input = file_.Find(prefix + part + "_proj")) != nullptr) {
      status = CheckTensor(*input, flat, "[B, T, kv_heads * head_dim] by metadata and config");
    } else {
      Miss(out.name, prefix + part + "_proj, from which " + out.name +
                         " would be made, is not in the recording");
    }
    if (!status.ok() || input == nullptr) return status;
    return ReadValues(*input, *cached, out);
  }

  Status ReadValues(const SafetensorsTensor& input, const SafetensorsTensor& cached,
                    RecordedPart& out) {
    Result<std::vector<double>> values = file_.ReadAsDouble(input.name);
    if (!values.ok()) return values.status();
    out.input = *std::move(values);
    values = file_.ReadAsDouble(cached.name);
    if (!values.ok()) return values.status();
    out.cached = *std::move(values);
    out.exact = input.type == SafetensorsType::kF32 && cached.type == SafetensorsType::kF32;
    return Status::Ok();
  }

  // What else calls itself a cache.
  void AddUnread() {
    for (const SafetensorsTensor& tensor : file_.tensors()) {
      if (LayerOf(tensor.name) < 0 || read_.contains(tensor.name)) continue;
      const std::size_t dot = tensor.name.find('.');
      if (tensor.name.compare(dot, 7, ".cache_") != 0) continue;
      Miss(tensor.name, tensor.name + ": by the config its layer has no such cache");
    }
  }

  const std::string path_;
  SafetensorsFile file_;
  const ModelConfig& model_;
  Recording recording_;
  std::set<std::string> read_;
};

}  // namespace

Result<Recording> LoadRecording(const std::string& path, const ModelConfig& model) {
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  return Loader(path, *std::move(file), model).Load();
}

}  // namespace lariat::session
