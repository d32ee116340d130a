// SPDX-License-Identifier: Apache-2.0
#include "session/verify_replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "session/synthetic_kv.h"

namespace lariat::session {
namespace {

// To the storage type, rounded to nearest even.
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

// A part that was not recorded is stored as zeros, so that the other can be compared.
std::vector<double> InputOrZeros(const RecordedPart& part, std::int64_t elements) {
  if (part.compared()) return part.input;
  return std::vector<double>(static_cast<std::size_t>(elements), 0.0);
}

}  // namespace

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
  const std::int64_t rows = recording_.batch * recording_.tokens;
  std::size_t widest = 0;
  for (const RecordedLayer& layer : recording_.layers) {
    const std::int64_t k_width = std::int64_t{layer.spec.kv_heads} * layer.spec.k_dim;
    const std::int64_t v_width = std::int64_t{layer.spec.kv_heads} * layer.spec.v_dim;
    LayerInputs inputs;
    inputs.k_row = static_cast<std::size_t>(k_width) * SizeOf(dtype_);
    inputs.v_row = static_cast<std::size_t>(v_width) * SizeOf(dtype_);
    inputs.k = Narrow(InputOrZeros(layer.k, rows * k_width), dtype_);
    inputs.v = Narrow(InputOrZeros(layer.v, rows * v_width), dtype_);
    widest = std::max({widest, inputs.k.size(), inputs.v.size()});
    layers_.push_back(std::move(inputs));
  }
  for (Stage* stage : {&k_, &v_}) {
    for (const MemoryKind kind : {MemoryKind::kPinnedHost, MemoryKind::kDevice}) {
      if (kind == MemoryKind::kDevice && device_.kind() == BackendKind::kCpu) continue;
      Result<DeviceBuffer> buffer = device_.Allocate(kind, widest);
      if (!buffer.ok()) return buffer.status();
      (kind == MemoryKind::kDevice ? stage->device : stage->host) = *std::move(buffer);
    }
  }
  return Status::Ok();
}

void ReplayInputs::Gather(const Step& step, std::span<const std::int64_t> batch,
                          const std::vector<std::byte>& rows, std::size_t row_bytes,
                          void* out) const {
  for (std::size_t i = 0; i < step.rows().size(); ++i) {
    const StepRows& part = step.rows()[i];
    const auto from = static_cast<std::size_t>(batch[i] * recording_.tokens + part.start);
    std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(part.first_row) * row_bytes,
                rows.data() + from * row_bytes, static_cast<std::size_t>(part.count) * row_bytes);
  }
}

Result<const void*> ReplayInputs::Upload(Stage& stage, std::size_t bytes) {
  if (device_.kind() == BackendKind::kCpu) return static_cast<const void*>(stage.host.data());
  const Status copied =
      device_.CopyToDevice(stage.device.data(), stage.host.data(), bytes, stream_);
  if (!copied.ok()) return copied;
  return static_cast<const void*>(stage.device.data());
}

Status ReplayInputs::Append(KVCache& cache, const Step& step, std::size_t layer,
                            std::span<const std::int64_t> batch) {
  const LayerInputs& inputs = layers_[layer];
  Gather(step, batch, inputs.k, inputs.k_row, k_.host.data());
  Gather(step, batch, inputs.v, inputs.v_row, v_.host.data());
  const auto rows = static_cast<std::size_t>(step.num_tokens());
  const Result<const void*> k = Upload(k_, rows * inputs.k_row);
  if (!k.ok()) return k.status();
  const Result<const void*> v = Upload(v_, rows * inputs.v_row);
  if (!v.ok()) return v.status();
  const Status appended =
      cache.Append(step, static_cast<int>(layer), {.dtype = dtype_, .k = *k, .v = *v}, stream_);
  if (!appended.ok()) return appended;
  return device_.Synchronize(stream_);  // the stages are filled again
}

Result<Replay> Replay::Create(ReplayInputs& inputs, int block_size, Reuse reuse) {
  const Recording& recording = inputs.recording();
  CacheConfig config;
  for (const RecordedLayer& layer : recording.layers) {
    LayerSpec spec = layer.spec;
    spec.kind = LayerKind::kFull;  // all rows are kept; a window is the reader's
    spec.window = 0;
    config.layers.push_back(spec);
  }
  config.ropes = recording.ropes;
  config.dtype = inputs.dtype();
  config.block_size = block_size;
  config.reuse = reuse;
  config.max_sequences = static_cast<int>(2 * recording.batch);
  config.max_tokens_per_sequence = recording.tokens;
  config.max_tokens_per_step = recording.batch * recording.tokens;
  config.memory.num_blocks =
      2 * recording.batch * ((recording.tokens + block_size - 1) / block_size);
  Result<KVCache> cache = KVCache::Create(config, inputs.device());
  if (!cache.ok()) return cache.status();
  return Replay(inputs, *std::move(cache));
}

// Sequence b's ids are b, 1, 2, ...: none shares a prefix with another.
Result<std::vector<SequenceId>> Replay::OpenAll(std::int64_t tokens) {
  std::vector<SequenceId> sequences;
  std::vector<TokenId> prompt(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i);
  for (std::int64_t b = 0; b < inputs_->recording().batch; ++b) {
    prompt[0] = static_cast<TokenId>(b);
    const Result<SequenceId> sequence = cache_.Open(prompt);
    if (!sequence.ok()) return sequence.status();
    sequences.push_back(*sequence);
  }
  return sequences;
}

Status Replay::Run(ReplayChunks chunks) {
  const Recording& recording = inputs_->recording();
  Result<std::vector<SequenceId>> opened = OpenAll(recording.tokens);
  if (!opened.ok()) return opened.status();
  sequences_ = *std::move(opened);
  std::vector<std::int64_t> done(sequences_.size(), 0), counts(sequences_.size(), 0);
  const auto chunk = [&](std::int64_t b, std::int64_t step) -> std::int64_t {
    switch (chunks) {
      case ReplayChunks::kAll: return recording.tokens;
      case ReplayChunks::kOne: return 1;
      case ReplayChunks::kOdd: return 1 + 2 * ((b + step) % 6);
      case ReplayChunks::kRecorded: return step == 0 ? recording.prefill : 1;
    }
    return 1;
  };
  for (std::int64_t step = 0;; ++step) {
    std::int64_t rows = 0;
    for (std::size_t b = 0; b < done.size(); ++b) {
      counts[b] = std::min(chunk(static_cast<std::int64_t>(b), step), recording.tokens - done[b]);
      done[b] += counts[b];
      rows += counts[b];
    }
    if (rows == 0) return Status::Ok();
    const Status ran = RunStep(sequences_, counts, 0);
    if (!ran.ok()) return ran;
  }
}

Status Replay::RunShared(std::int64_t shared) {
  const Recording& recording = inputs_->recording();
  const Result<std::vector<SequenceId>> owners = OpenAll(shared);
  if (!owners.ok()) return owners.status();
  std::vector<std::int64_t> counts(owners->size(), shared);
  const Status owned = RunStep(*owners, counts, 0);
  if (!owned.ok()) return owned;
  Result<std::vector<SequenceId>> opened = OpenAll(recording.tokens);
  if (!opened.ok()) return opened.status();
  sequences_ = *std::move(opened);
  std::fill(counts.begin(), counts.end(), recording.tokens);
  const int block = cache_.config().block_size;
  return RunStep(sequences_, counts, shared / block * block);
}

Status Replay::RunStep(std::span<const SequenceId> sequences, std::span<const std::int64_t> counts,
                       std::int64_t hit) {
  std::vector<StepItem> items;
  std::vector<std::int64_t> batch;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    if (counts[b] == 0) continue;
    items.push_back({.sequence = sequences[b], .num_tokens = counts[b]});
    batch.push_back(static_cast<std::int64_t>(b));
  }
  Result<Step> step = cache_.Plan(items);
  if (!step.ok()) return step.status();
  return Store(*step, batch, hit);
}

Status Replay::Store(Step& step, std::span<const std::int64_t> batch, std::int64_t hit) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::int64_t found = step.rows()[i].hit;
    if (found == hit) continue;
    return CorruptData("sequence " + std::to_string(batch[i]) + " found " + std::to_string(found) +
                       " tokens cached; expected " + std::to_string(hit));
  }
  const Stream stream = inputs_->stream();
  Status status = cache_.Prepare(step, stream);
  for (std::size_t layer = 0; status.ok() && layer < inputs_->recording().layers.size(); ++layer) {
    status = inputs_->Append(cache_, step, layer, batch);
  }
  if (status.ok()) status = cache_.Commit(step, {}, stream);
  ++steps_;
  if (status.ok()) status = inputs_->device().Synchronize(stream);
  if (!status.ok()) return status;
  const Result<PollReport> report = cache_.Poll();
  if (!report.ok()) return report.status();
  if (!report->faults.empty()) {
    const StepFault& fault = report->faults[0];
    return CorruptData("the device recorded a slot or position out of range, " +
                       std::to_string(fault.value) + ", at row " + std::to_string(fault.token));
  }
  return Status::Ok();
}

Status Replay::ReadBack(std::size_t layer, std::int64_t b, std::vector<double>& k,
                        std::vector<double>& v) {
  const Recording& recording = inputs_->recording();
  const RecordedLayer& recorded = recording.layers[layer];
  const auto rows = static_cast<std::size_t>(recorded.kept * recorded.spec.kv_heads);
  const std::size_t size = SizeOf(inputs_->dtype());
  // Poisoned with NaNs: what is not read back is not equal to anything.
  constexpr std::byte kPoison{0xff};
  std::vector<std::byte> k_bytes(rows * static_cast<std::size_t>(recorded.spec.k_dim) * size,
                                 kPoison);
  std::vector<std::byte> v_bytes(rows * static_cast<std::size_t>(recorded.spec.v_dim) * size,
                                 kPoison);
  const Status read = cache_.ReadRows(sequences_[static_cast<std::size_t>(b)],
                                      static_cast<int>(layer), recording.tokens - recorded.kept,
                                      recorded.kept, k_bytes.data(), v_bytes.data());
  if (!read.ok()) return read;
  Widen(k_bytes, inputs_->dtype(), k);
  Widen(v_bytes, inputs_->dtype(), v);
  return Status::Ok();
}

}  // namespace lariat::session
