// SPDX-License-Identifier: Apache-2.0
#include "session/verify_replay.h"

#include <algorithm>
#include <utility>

namespace lariat::session {
namespace {

// Rows of [latent | k_pe] apart: k keeps the latents.
void SplitRows(std::int64_t rank, std::int64_t width, std::vector<double>& k,
               std::vector<double>& v) {
  std::vector<double> latents;
  v.clear();
  for (auto row = k.begin(); row != k.end(); row += width) {
    latents.insert(latents.end(), row, row + rank);
    v.insert(v.end(), row + rank, row + width);
  }
  k = std::move(latents);
}

}  // namespace

LayerSpec StoredSpecOf(const RecordedLayer& layer) {
  LayerSpec spec = layer.spec;
  if (spec.kind != LayerKind::kMla) spec.kind = LayerKind::kFull;
  spec.window = 0;
  return spec;
}

Replay::Replay(ReplayInputs& inputs, KVCache cache)
    : inputs_(&inputs), cache_(std::move(cache)), expanded_(inputs.layers().size()) {
  for (auto& layer : expanded_) {
    layer.resize(static_cast<std::size_t>(inputs.recording().batch));
  }
}

Result<Replay> Replay::Create(ReplayInputs& inputs, int block_size, Reuse reuse) {
  const Recording& recording = inputs.recording();
  CacheConfig config;
  for (std::size_t layer = 0; layer < inputs.layers().size(); ++layer) {
    config.layers.push_back(StoredSpecOf(inputs.Recorded(layer)));
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
  for (std::size_t layer = 0; status.ok() && layer < inputs_->layers().size(); ++layer) {
    status = inputs_->Append(cache_, step, layer, batch);
    if (status.ok()) status = inputs_->Expand(cache_, step, layer, batch, expanded_[layer]);
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
  const RecordedLayer& recorded = inputs_->Recorded(layer);
  const auto rows = static_cast<std::size_t>(recorded.kept * recorded.spec.kv_heads);
  const std::size_t size = SizeOf(inputs_->dtype());
  // Poisoned with NaNs: what is not read back is not equal to anything.
  constexpr std::byte kPoison{0xff};
  std::vector<std::byte> k_bytes(rows * static_cast<std::size_t>(recorded.spec.k_dim) * size,
                                 kPoison);
  std::vector<std::byte> v_bytes(rows * static_cast<std::size_t>(recorded.spec.v_dim) * size,
                                 kPoison);
  const Status read =
      cache_.ReadRows(sequences_[static_cast<std::size_t>(b)], static_cast<int>(layer),
                      recording.tokens - recorded.kept, recorded.kept, k_bytes.data(),
                      v_bytes.empty() ? nullptr : v_bytes.data());
  if (!read.ok()) return read;
  Widen(k_bytes, inputs_->dtype(), k);
  Widen(v_bytes, inputs_->dtype(), v);
  if (recorded.mla) SplitRows(recorded.mla->dims.kv_lora_rank, recorded.spec.k_dim, k, v);
  return Status::Ok();
}

}  // namespace lariat::session
