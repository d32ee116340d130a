// SPDX-License-Identifier: Apache-2.0
#include "session/recording.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <utility>

#include "session/recording_file.h"

namespace lariat::session {
namespace {

// Reads one file against one config.
class Loader {
 public:
  Loader(RecordingFile file, const ModelConfig& model) : file_(std::move(file)), model_(model) {}

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
  Status ReadMetadata() {
    std::int64_t steps = 0;
    Status status = file_.ReadCount("B", 1, recording_.batch);
    if (status.ok()) status = file_.ReadCount("prefill", 1, recording_.prefill);
    if (status.ok()) status = file_.ReadCount("steps", 0, steps);
    if (!status.ok()) return status;
    recording_.tokens = recording_.prefill + steps;
    if (recording_.tokens < 2 || recording_.tokens > std::numeric_limits<std::int32_t>::max()) {
      return file_.Bad("metadata prefill + steps = " + std::to_string(recording_.tokens) +
                       "; expected 2 to 2^31 - 1");
    }
    const auto& metadata = file_.file().metadata();
    const auto name = metadata.find("model");
    if (name != metadata.end()) recording_.model = name->second;
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
    for (const SafetensorsTensor& tensor : file_.file().tensors()) {
      const std::int64_t layer = LayerOf(tensor.name);
      if (layer >= static_cast<std::int64_t>(model_.layers.size())) {
        return file_.Bad("tensor " + tensor.name + " of shape " + ShapeText(tensor.shape) +
                         ": the config has " + std::to_string(model_.layers.size()) +
                         " layers; expected l0 to l" + std::to_string(model_.layers.size() - 1));
      }
    }
    return Status::Ok();
  }

  // Tokens that the model's own cache keeps: a window of W needs W - 1 beside the newest one.
  std::int64_t KeptTokens(const LayerSpec& spec) const {
    return spec.window > 1 ? std::min<std::int64_t>(recording_.tokens, spec.window - 1)
                           : recording_.tokens;
  }

  Status ReadLayer(int index, const LayerSpec& spec) {
    if (spec.kind == LayerKind::kLinear) return Status::Ok();  // keeps nothing per token
    RecordedLayer layer;
    layer.layer = index;
    layer.spec = spec;
    layer.kept = KeptTokens(spec);
    Status read;
    if (spec.kind == LayerKind::kMla) {
      for (const char* const part : {"k", "v"}) read_.insert(CacheName(index, part));
      read = ReadMlaLayer(file_, model_, recording_, layer);
    } else {
      read = ReadPart("k", spec.k_dim, layer, layer.k);
      if (read.ok()) read = ReadPart("v", spec.v_dim, layer, layer.v);
    }
    if (!read.ok()) return read;
    if (layer.k.compared() || layer.v.compared()) recording_.layers.push_back(std::move(layer));
    return Status::Ok();
  }

  static std::string CacheName(int layer, const std::string& part) {
    return std::string("l").append(std::to_string(layer)).append(".cache_").append(part);
  }

  // part: "k" or "v"; dim: elements of a head in the cache.
  Status ReadPart(const std::string& part, std::int64_t dim, const RecordedLayer& layer,
                  RecordedPart& out) {
    const std::string prefix = std::string("l").append(std::to_string(layer.layer)).append(".");
    const std::int64_t heads = layer.spec.kv_heads;
    out.name = CacheName(layer.layer, part);
    read_.insert(out.name);
    const SafetensorsTensor* const cached = file_.file().Find(out.name);
    if (cached == nullptr) {
      recording_.Miss(out.name, out.name + " is not in the recording");
      return Status::Ok();
    }
    const Shape kept = {recording_.batch, heads, layer.kept, dim};
    Status status = file_.Check(*cached, kept, kKept);
    if (!status.ok()) return status;
    // What RoPE turns: the normed heads where there are such.
    const std::string norm = prefix + part + "_norm";
    const std::string proj = prefix + part + "_proj";
    const bool normed = file_.Has(norm);
    if (!normed && !file_.Has(proj)) {
      recording_.Miss(
          out.name, proj + ", from which " + out.name + " would be made, is not in the recording");
      return Status::Ok();
    }
    const std::int64_t batch = recording_.batch, tokens = recording_.tokens;
    status = normed ? file_.Read(norm, {batch, tokens, heads, dim},
                                 "[B, T, kv_heads, head_dim] by metadata and config", out.input)
                    : file_.Read(proj, {batch, tokens, heads * dim},
                                 "[B, T, kv_heads * head_dim] by metadata and config", out.input);
    if (status.ok()) status = file_.Read(out.name, kept, kKept, out.cached);
    out.exact = file_.IsF32(normed ? norm : proj) && file_.IsF32(out.name);
    return status;
  }

  // What else calls itself a cache.
  void AddUnread() {
    for (const SafetensorsTensor& tensor : file_.file().tensors()) {
      if (LayerOf(tensor.name) < 0 || read_.contains(tensor.name)) continue;
      const std::size_t dot = tensor.name.find('.');
      if (tensor.name.compare(dot, 7, ".cache_") != 0) continue;
      recording_.Miss(tensor.name, tensor.name + ": by the config its layer has no such cache");
    }
  }

  static constexpr const char* kKept =
      "[B, kv_heads, tokens kept, head_dim] by metadata and config";

  RecordingFile file_;
  const ModelConfig& model_;
  Recording recording_;
  std::set<std::string> read_;
};

}  // namespace

void Recording::Miss(const std::string& name, const std::string& reason) {
  missing.push_back(name);
  if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
    reasons.push_back(reason);
  }
}

Result<Recording> LoadRecording(const std::string& path, const ModelConfig& model) {
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  return Loader(RecordingFile(path, *std::move(file)), model).Load();
}

}  // namespace lariat::session
