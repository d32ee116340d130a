// SPDX-License-Identifier: Apache-2.0
#include "session/verify_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "session/synthetic_kv.h"

namespace lariat::session {
namespace {

// A part that was not recorded is stored as zeros, so that the other can be compared.
std::vector<double> InputOrZeros(const RecordedPart& part, std::int64_t elements) {
  if (part.compared()) return part.input;
  return std::vector<double>(static_cast<std::size_t>(elements), 0.0);
}

}  // namespace

std::vector<std::byte> Narrow(const std::vector<double>& values, DType dtype) {
  const std::size_t size = SizeOf(dtype);
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    if (dtype == DType::kFP32) {
      std::memcpy(bytes.data() + i * size, &single, size);
    } else {
      const std::uint16_t half = dtype == DType::kBF16 ? ToBF16(single) : ToFP16(single);
      std::memcpy(bytes.data() + i * size, &half, size);
    }
  }
  return bytes;
}

void Widen(const std::vector<std::byte>& bytes, DType dtype, std::vector<double>& values) {
  const std::size_t size = SizeOf(dtype);
  values.resize(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFP32) {
      float single = 0;
      std::memcpy(&single, bytes.data() + i * size, size);
      values[i] = double{single};
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i * size, size);
      values[i] = double{dtype == DType::kBF16 ? FromBF16(half) : FromFP16(half)};
    }
  }
}

std::vector<ReplayLayer> ReplayLayersOf(const Recording& recording) {
  std::vector<ReplayLayer> layers;
  for (std::size_t i = 0; i < recording.layers.size(); ++i) {
    const std::optional<RecordedMla>& mla = recording.layers[i].mla;
    if (mla && mla->from_hidden()) layers.push_back({i, LatentSource::kHidden});
    if (!mla || mla->from_rows()) layers.push_back({i, LatentSource::kRows});
  }
  return layers;
}

Result<std::unique_ptr<ReplayInputs>> ReplayInputs::Create(Device device,
                                                           const Recording& recording,
                                                           DType dtype) {
  std::unique_ptr<ReplayInputs> inputs(new ReplayInputs(std::move(device), recording, dtype));
  const Status made = inputs->Make();
  if (!made.ok()) return made;
  return inputs;
}

ReplayInputs::~ReplayInputs() {
  if (own_stream_) device_.DestroyStream(stream_);
}

Status ReplayInputs::Make() {
  const Result<Stream> stream = device_.CreateStream();
  if (!stream.ok()) return stream.status();
  stream_ = *stream;
  own_stream_ = true;
  layers_ = ReplayLayersOf(recording_);
  const std::int64_t rows = recording_.batch * recording_.tokens;
  std::size_t widest_k = 0, widest_v = 0;
  for (const ReplayLayer& layer : layers_) {
    const RecordedLayer& recorded = recording_.layers[layer.recorded];
    LayerInputs inputs;
    if (recorded.mla) {
      if (Status made = MakeMla(layer, inputs); !made.ok()) return made;
    } else {
      const std::int64_t k_width = std::int64_t{recorded.spec.kv_heads} * recorded.spec.k_dim;
      const std::int64_t v_width = std::int64_t{recorded.spec.kv_heads} * recorded.spec.v_dim;
      inputs.dtype = dtype_;
      inputs.k.bytes = Narrow(InputOrZeros(recorded.k, rows * k_width), dtype_);
      inputs.v.bytes = Narrow(InputOrZeros(recorded.v, rows * v_width), dtype_);
    }
    inputs.k.row = inputs.k.bytes.size() / static_cast<std::size_t>(rows);
    inputs.v.row = inputs.v.bytes.size() / static_cast<std::size_t>(rows);
    widest_k = std::max(widest_k, inputs.k.bytes.size());
    widest_v = std::max(widest_v, inputs.v.bytes.size());
    inputs_.push_back(std::move(inputs));
  }
  if (Status made = MakeStage(k_, widest_k); !made.ok()) return made;
  return MakeStage(v_, widest_v);
}

Status ReplayInputs::MakeStage(Stage& stage, std::size_t bytes) {
  for (const MemoryKind kind : {MemoryKind::kPinnedHost, MemoryKind::kDevice}) {
    if (kind == MemoryKind::kDevice && device_.kind() == BackendKind::kCpu) continue;
    Result<DeviceBuffer> buffer = device_.Allocate(kind, bytes);
    if (!buffer.ok()) return buffer.status();
    (kind == MemoryKind::kDevice ? stage.device : stage.host) = *std::move(buffer);
  }
  return Status::Ok();
}

Result<const void*> ReplayInputs::Take(Stage& stage, const Rows& rows, const Step& step,
                                       std::span<const std::int64_t> batch) {
  auto* const out = static_cast<std::byte*>(stage.host.data());
  for (std::size_t i = 0; i < step.rows().size(); ++i) {
    const StepRows& part = step.rows()[i];
    const auto from = static_cast<std::size_t>(batch[i] * recording_.tokens + part.start);
    std::memcpy(out + static_cast<std::size_t>(part.first_row) * rows.row,
                rows.bytes.data() + from * rows.row,
                static_cast<std::size_t>(part.count) * rows.row);
  }
  if (device_.kind() == BackendKind::kCpu) return static_cast<const void*>(out);
  const Status copied = device_.CopyToDevice(
      stage.device.data(), out, static_cast<std::size_t>(step.num_tokens()) * rows.row, stream_);
  if (!copied.ok()) return copied;
  return static_cast<const void*>(stage.device.data());
}

Status ReplayInputs::Append(KVCache& cache, const Step& step, std::size_t layer,
                            std::span<const std::int64_t> batch) {
  const LayerInputs& inputs = inputs_[layer];
  Status appended;
  if (Recorded(layer).mla) {
    appended = AppendMla(cache, step, layer, batch);
  } else {
    const Result<const void*> k = Take(k_, inputs.k, step, batch);
    if (!k.ok()) return k.status();
    const Result<const void*> v = Take(v_, inputs.v, step, batch);
    if (!v.ok()) return v.status();
    appended = cache.Append(step, static_cast<int>(layer),
                            {.dtype = inputs.dtype, .k = *k, .v = *v}, stream_);
  }
  if (!appended.ok()) return appended;
  return device_.Synchronize(stream_);  // the stages are filled again
}

}  // namespace lariat::session
