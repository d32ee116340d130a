// SPDX-License-Identifier: Apache-2.0
#include "lariat/verify.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "session/recording.h"
#include "session/verify_attention.h"
#include "session/verify_bounds.h"
#include "session/verify_check.h"
#include "session/verify_replay.h"

namespace lariat {
namespace {

using session::LatentSource;
using session::MlaAttention;
using session::RecordedLayer;
using session::RecordedPart;
using session::Recording;
using session::Replay;
using session::ReplayChunks;
using session::ReplayInputs;
using session::ReplayLayer;
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

// The checks of one layer of the recording; of what is not compared there is none.
struct LayerChecks {
  std::optional<TensorCheck> k, v, attn_out;
  std::optional<MlaAttention> attention;
};

// How far what one of the cache's layers stores may be off.
struct LayerBounds {
  std::vector<double> k, v;
};

struct Checks {
  std::vector<LayerChecks> layers;  // the recording's
  std::vector<LayerBounds> bounds;  // the cache's
};

LayerChecks MakeLayerChecks(const RecordedLayer& layer, const Recording& recording, DType dtype) {
  LayerChecks checks;
  const auto add = [&](const RecordedPart& part, std::int64_t heads, std::int64_t dim,
                       std::optional<TensorCheck>& check) {
    if (part.compared()) check.emplace(part, heads, layer.kept, dim, recording.tokens);
  };
  if (!layer.mla) {
    add(layer.k, layer.spec.kv_heads, layer.spec.k_dim, checks.k);
    add(layer.v, layer.spec.kv_heads, layer.spec.v_dim, checks.v);
    return checks;
  }
  add(layer.k, 1, layer.mla->dims.kv_lora_rank, checks.k);
  add(layer.v, 1, layer.mla->dims.qk_rope_head_dim, checks.v);
  add(layer.mla->attn_out, layer.mla->heads, layer.mla->dims.v_head_dim, checks.attn_out);
  if (checks.attn_out) checks.attention.emplace(layer, recording, dtype);
  return checks;
}

LayerBounds MakeLayerBounds(const RecordedLayer& layer, const Recording& recording,
                            LatentSource source, DType dtype) {
  if (layer.mla) {
    session::LatentBounds bounds = session::LatentBoundsOf(layer, recording, source, dtype);
    return {std::move(bounds.latent), std::move(bounds.k_pe)};
  }
  const int rope = layer.spec.rope;
  const RopeSpec* const turns =
      rope < 0 ? nullptr : &recording.ropes[static_cast<std::size_t>(rope)];
  return {session::BoundsOf(layer.k, layer, recording, layer.spec.k_dim, turns, dtype),
          session::BoundsOf(layer.v, layer, recording, layer.spec.v_dim, nullptr, dtype)};
}

Checks MakeChecks(const ReplayInputs& inputs) {
  const Recording& recording = inputs.recording();
  Checks checks;
  for (const RecordedLayer& layer : recording.layers) {
    checks.layers.push_back(MakeLayerChecks(layer, recording, inputs.dtype()));
  }
  for (const ReplayLayer& layer : inputs.layers()) {
    checks.bounds.push_back(
        MakeLayerBounds(recording.layers[layer.recorded], recording, layer.source, inputs.dtype()));
  }
  return checks;
}

// The part of [B, ...] that is sequence b's.
std::span<const double> OfSequence(const std::vector<double>& values, std::int64_t b,
                                   std::int64_t elements) {
  return std::span(values).subspan(static_cast<std::size_t>(b * elements),
                                   static_cast<std::size_t>(elements));
}

// Compares what one of the cache's layers holds of sequence b.
Status CompareLayer(const Pass& pass, const ReplayInputs& inputs, Replay& replay, std::size_t layer,
                    std::int64_t b, Checks& checks) {
  const ReplayLayer& which = inputs.layers()[layer];
  LayerChecks& check = checks.layers[which.recorded];
  const LayerBounds& bounds = checks.bounds[layer];
  std::string place = pass.name;
  if (inputs.Recorded(layer).mla) {
    place += which.source == LatentSource::kHidden ? " from hidden" : " from given rows";
  }
  std::vector<double> k, v;
  const Status read = replay.ReadBack(layer, b, k, v);
  if (!read.ok()) return read;
  if (check.k) {
    check.k->Compare(place, b, k, OfSequence(bounds.k, b, check.k->elements_per_sequence()));
  }
  if (check.v) {
    check.v->Compare(place, b, v, OfSequence(bounds.v, b, check.v->elements_per_sequence()));
  }
  if (check.attn_out) {
    std::vector<double> out, allowed;
    check.attention->Attend(b, k, v, replay.Expanded(layer, b), out, allowed);
    check.attn_out->Compare(place, b, out, allowed);
  }
  return Status::Ok();
}

Result<VerifiedPass> RunPass(const Pass& pass, ReplayInputs& inputs, Checks& checks) {
  const Recording& recording = inputs.recording();
  const std::int64_t shared = recording.tokens / 2;
  const bool shares = !pass.chunks.has_value();
  const int block_size =
      shares ? static_cast<int>(std::min<std::int64_t>(4, shared)) : pass.block_size;
  Result<Replay> replay = Replay::Create(inputs, block_size, shares ? Reuse::kBlock : Reuse::kNone);
  if (!replay.ok()) return replay.status();
  const Status ran = shares ? replay->RunShared(shared) : replay->Run(*pass.chunks);
  if (!ran.ok()) return ran;
  for (std::size_t layer = 0; layer < inputs.layers().size(); ++layer) {
    for (std::int64_t b = 0; b < recording.batch; ++b) {
      const Status compared = CompareLayer(pass, inputs, *replay, layer, b, checks);
      if (!compared.ok()) return compared;
    }
  }
  return VerifiedPass{
      .name = pass.name, .steps = replay->steps(), .hit_tokens = replay->hit_tokens()};
}

// What is compared.
std::vector<const RecordedPart*> PartsOf(const RecordedLayer& layer) {
  std::vector<const RecordedPart*> parts = {&layer.k, &layer.v};
  if (layer.mla) parts.push_back(&layer.mla->attn_out);
  std::erase_if(parts, [](const RecordedPart* part) { return !part->compared(); });
  return parts;
}

// Whether a layer's rows can be stored at all, asked of the cache itself. What it does not build is
// missing; what it finds wrong is an error.
Status DropUnsupported(Recording& recording, DType dtype) {
  std::vector<RecordedLayer> kept;
  for (RecordedLayer& layer : recording.layers) {
    CacheConfig config;
    config.layers = {session::StoredSpecOf(layer)};
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
    const std::string reason = "layer " + std::to_string(layer.layer) +
                               " cannot be stored yet: " + footprint.status().message();
    for (const RecordedPart* part : PartsOf(layer)) recording.Miss(part->name, reason);
  }
  recording.layers = std::move(kept);
  return Status::Ok();
}

Status RunPasses(const Device& device, const Recording& recording, VerifyReport& report) {
  Result<std::unique_ptr<ReplayInputs>> inputs =
      ReplayInputs::Create(device, recording, report.dtype);
  if (!inputs.ok()) return inputs.status();
  Checks checks = MakeChecks(**inputs);
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
  for (const LayerChecks& layer : checks.layers) {
    for (const std::optional<TensorCheck>* check : {&layer.k, &layer.v, &layer.attn_out}) {
      if (*check) report.tensors.push_back((*check)->result());
    }
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
