// SPDX-License-Identifier: Apache-2.0
#include "lariat/verify.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "session/recording.h"
#include "session/verify_check.h"
#include "session/verify_replay.h"

namespace lariat {
namespace {

using session::RecordedLayer;
using session::RecordedPart;
using session::Recording;
using session::Replay;
using session::ReplayChunks;
using session::ReplayInputs;
using session::TensorCheck;

struct Pass {
  const char* name;
  int block_size;
  std::optional<ReplayChunks> chunks;  // none: a shared prefix
};

// The last one's block size is as the recording's length allows.
constexpr std::array<Pass, 5> kPasses = {{
    {"one-call", 16, ReplayChunks::kAll},
    {"step", 16, ReplayChunks::kOne},
    {"odd-chunks", 16, ReplayChunks::kOdd},
    {"small-blocks", 3, ReplayChunks::kRecorded},
    {"shared-prefix", 0, std::nullopt},
}};

// The checks of one layer; of what is not compared there is none.
struct LayerChecks {
  std::optional<TensorCheck> k, v;
};

std::vector<LayerChecks> MakeChecks(const Recording& recording, DType dtype) {
  std::vector<LayerChecks> checks(recording.layers.size());
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const RecordedLayer& layer = recording.layers[i];
    const int rope = layer.spec.rope;
    const RopeSpec* const turns =
        rope < 0 ? nullptr : &recording.ropes[static_cast<std::size_t>(rope)];
    if (layer.k.compared()) {
      checks[i].k.emplace(layer.k, layer, recording, layer.spec.k_dim, turns, dtype);
    }
    if (layer.v.compared()) {
      checks[i].v.emplace(layer.v, layer, recording, layer.spec.v_dim, nullptr, dtype);
    }
  }
  return checks;
}

Result<VerifiedPass> RunPass(const Pass& pass, ReplayInputs& inputs,
                             std::vector<LayerChecks>& checks) {
  const Recording& recording = inputs.recording();
  const std::int64_t shared = recording.tokens / 2;
  const bool shares = !pass.chunks.has_value();
  const int block_size =
      shares ? static_cast<int>(std::min<std::int64_t>(4, shared)) : pass.block_size;
  Result<Replay> replay = Replay::Create(inputs, block_size, shares ? Reuse::kBlock : Reuse::kNone);
  if (!replay.ok()) return replay.status();
  const Status ran = shares ? replay->RunShared(shared) : replay->Run(*pass.chunks);
  if (!ran.ok()) return ran;
  std::vector<double> k, v;
  for (std::size_t layer = 0; layer < checks.size(); ++layer) {
    for (std::int64_t b = 0; b < recording.batch; ++b) {
      const Status read = replay->ReadBack(layer, b, k, v);
      if (!read.ok()) return read;
      if (checks[layer].k) checks[layer].k->Compare(pass.name, b, k);
      if (checks[layer].v) checks[layer].v->Compare(pass.name, b, v);
    }
  }
  return VerifiedPass{
      .name = pass.name, .steps = replay->steps(), .hit_tokens = replay->hit_tokens()};
}

// Whether a layer's rows can be stored at all, asked of the cache itself. What it does not build is
// missing; what it finds wrong is an error.
Status DropUnsupported(Recording& recording, DType dtype) {
  std::vector<RecordedLayer> kept;
  for (RecordedLayer& layer : recording.layers) {
    CacheConfig config;
    config.layers = {layer.spec};
    config.layers[0].kind = LayerKind::kFull;
    config.layers[0].window = 0;
    config.ropes = recording.ropes;
    config.dtype = dtype;
    config.backend = BackendKind::kCpu;
    config.memory.num_blocks = 1;
    config.max_tokens_per_sequence = recording.tokens;
    const Result<MemoryFootprint> footprint = KVCache::Footprint(config);
    if (footprint.ok()) {
      kept.push_back(std::move(layer));
      continue;
    }
    if (footprint.status().code() != Code::kUnsupported) return footprint.status();
    for (const RecordedPart* part : {&layer.k, &layer.v}) {
      if (part->compared()) recording.missing.push_back(part->name);
    }
    recording.reasons.push_back("layer " + std::to_string(layer.layer) +
                                " cannot be stored yet: " + footprint.status().message());
  }
  recording.layers = std::move(kept);
  return Status::Ok();
}

Status RunPasses(const Device& device, const Recording& recording, VerifyReport& report) {
  Result<std::unique_ptr<ReplayInputs>> inputs =
      ReplayInputs::Create(device, recording, report.dtype);
  if (!inputs.ok()) return inputs.status();
  std::vector<LayerChecks> checks = MakeChecks(recording, report.dtype);
  for (const Pass& pass : kPasses) {
    Result<VerifiedPass> ran = RunPass(pass, **inputs, checks);
    if (ran.ok()) {
      report.passes.push_back(*std::move(ran));
      continue;
    }
    const std::string message = std::string("pass ") + pass.name + ": " + ran.status().message();
    if (ran.status().code() != Code::kCorruptData) return {ran.status().code(), message};
    report.reasons.push_back(message);  // a finding; the other passes go on
  }
  for (const LayerChecks& layer : checks) {
    if (layer.k) report.tensors.push_back(layer.k->result());
    if (layer.v) report.tensors.push_back(layer.v->result());
  }
  return Status::Ok();
}

}  // namespace

Result<VerifyReport> VerifyRecording(const std::string& recording_path, const ModelConfig& model,
                                     const VerifyOptions& options) {
  if (options.backend == BackendKind::kNull) {
    return InvalidArgument(
        "backend = null: it stores nothing that could be compared; allowed: auto, cpu, cuda");
  }
  if (options.dtype != DType::kFP32 && options.dtype != DType::kBF16 &&
      options.dtype != DType::kFP16) {
    return InvalidArgument("dtype = " + std::string(DTypeName(options.dtype)) +
                           "; allowed: fp32, bf16, fp16");
  }
  Result<Recording> recording = session::LoadRecording(recording_path, model);
  if (!recording.ok()) return recording.status();
  const Status supported = DropUnsupported(*recording, options.dtype);
  if (!supported.ok()) return supported;
  const Result<Device> device = Device::Create(options.backend, options.device_ordinal);
  if (!device.ok()) return device.status();

  VerifyReport report;
  report.backend = device->kind();
  report.device = device->name();
  report.model = recording->model;
  report.dtype = options.dtype;
  report.missing = recording->missing;
  report.reasons = recording->reasons;
  if (!recording->layers.empty()) {
    const Status ran = RunPasses(*device, *recording, report);
    if (!ran.ok()) return ran;
  }
  report.ok = report.missing.empty() && !report.tensors.empty() &&
              report.passes.size() == kPasses.size() &&
              std::all_of(report.tensors.begin(), report.tensors.end(),
                          [](const VerifiedTensor& tensor) { return tensor.ok; });
  return report;
}

}  // namespace lariat
