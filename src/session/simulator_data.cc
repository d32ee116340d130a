// SPDX-License-Identifier: Apache-2.0
#include "session/simulator_data.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "session/session_state.h"

namespace lariat::session {
namespace {

// Layers that may be on their way to the device at once.
constexpr std::size_t kStages = 4;
// Rows of one layer that are compared at once.
constexpr std::int64_t kCheckRows = 512;

}  // namespace

SimulatedData::SimulatedData(KVCache& cache, const Trace& trace, const OutputScript& script,
                             const Options& options)
    : cache_(cache),
      script_(script),
      dtype_(cache.config().dtype),
      chain_start_(kChainStart + options.seed),
      kv_lora_rank_(options.mla.kv_lora_rank),
      norm_eps_(static_cast<float>(options.mla.norm_eps)),
      checks_hits_(options.check),
      uploads_(cache.device().kind() == BackendKind::kCuda),
      fault_(options.fault, options.fault_step),
      running_(static_cast<std::size_t>(trace.size()) * static_cast<std::size_t>(script.beams())) {}

Result<std::unique_ptr<SimulatedData>> SimulatedData::Create(KVCache& cache, const Trace& trace,
                                                             const OutputScript& script,
                                                             const Options& options) {
  std::unique_ptr<SimulatedData> data(new SimulatedData(cache, trace, script, options));
  const auto num_layers = static_cast<int>(cache.config().layers.size());
  for (int layer = 0; layer < num_layers; ++layer) {
    const Result<LayerView> view = cache.Layer(layer);
    if (!view.ok()) return view.status();
    const LayerSpec& spec = cache.config().layers[static_cast<std::size_t>(layer)];
    data->layers_.push_back({.mla = spec.kind == LayerKind::kMla,
                             .heads = view->kv_heads,
                             .k_dim = view->k_dim,
                             .v_dim = view->v_dim,
                             .rope = spec.rope,
                             .window = {spec.kind, spec.window}});
  }
  Status made = data->MakeRopes();
  if (made.ok()) made = data->MakeNormWeights();
  if (made.ok()) made = data->MakeStages();
  if (!made.ok()) return made;
  return data;
}

Status SimulatedData::MakeRopes() {
  for (const RopeSpec& spec : cache_.config().ropes) {
    Result<RopeRows> rows = RopeRows::Make(spec, cache_.config().max_tokens_per_sequence);
    if (!rows.ok()) return rows.status();
    ropes_.push_back(*std::move(rows));
  }
  ropes_.emplace_back();
  return Status::Ok();
}

// Each MLA layer's norm weights, where the layers are MLA's.
Status SimulatedData::MakeNormWeights() {
  const auto is_mla = [](const LayerShape& shape) { return shape.mla; };
  if (std::none_of(layers_.begin(), layers_.end(), is_mla)) return Status::Ok();
  const std::size_t words = NormWords();
  norm_host_.resize(words * layers_.size());
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    FillNormWeight(static_cast<int>(layer), kv_lora_rank_, dtype_, &norm_host_[layer * words]);
  }
  Device& device = cache_.device();
  const std::size_t bytes = norm_host_.size() * sizeof(std::uint32_t);
  Result<DeviceBuffer> made = device.Allocate(MemoryKind::kDevice, bytes);
  if (!made.ok()) return made.status();
  norm_device_ = *std::move(made);
  const Stream stream;
  const Status copied = device.CopyToDevice(norm_device_.data(), norm_host_.data(), bytes, stream);
  return copied.ok() ? device.Synchronize(stream) : copied;
}

std::size_t SimulatedData::NormWords() const {
  return (static_cast<std::size_t>(kv_lora_rank_) * SizeOf(dtype_) + 3) / 4;
}

std::size_t SimulatedData::KeyBytes(const LayerShape& shape) const {
  return static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.k_dim) *
         SizeOf(dtype_);
}

std::size_t SimulatedData::ValueBytes(const LayerShape& shape) const {
  return static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.v_dim) *
         SizeOf(dtype_);
}

Status SimulatedData::MakeStages() {
  std::size_t k_row = 0;
  std::size_t v_row = 0;
  for (const LayerShape& shape : layers_) {
    k_row = std::max(k_row, KeyBytes(shape));
    v_row = std::max(v_row, ValueBytes(shape));
  }
  const auto rows = static_cast<std::size_t>(cache_.config().max_tokens_per_step);
  stages_.resize(uploads_ ? kStages : 1);
  const auto allocate = [this](MemoryKind kind, std::size_t bytes, DeviceBuffer& buffer) {
    Result<DeviceBuffer> made = cache_.device().Allocate(kind, bytes);
    if (!made.ok()) return made.status();
    buffer = *std::move(made);
    return Status::Ok();
  };
  for (Stage& stage : stages_) {
    Status made = allocate(MemoryKind::kPinnedHost, rows * k_row, stage.k_host);
    if (made.ok()) made = allocate(MemoryKind::kPinnedHost, rows * v_row, stage.v_host);
    if (made.ok() && uploads_) made = allocate(MemoryKind::kDevice, rows * k_row, stage.k_device);
    if (made.ok() && uploads_) made = allocate(MemoryKind::kDevice, rows * v_row, stage.v_device);
    if (!made.ok()) return made;
  }
  return Status::Ok();
}

// The chain of each row of the step.
void SimulatedData::MakeChains(const ExecutorStep& step) {
  chains_.resize(static_cast<std::size_t>(step.step.num_tokens()));
  for (const ExecutorItem& item : step.items) {
    std::uint64_t& chain = Chain(item, item.beam);
    const bool first_step = item.start == 0 || !item.cached.empty();
    if (first_step) chain = chain_start_;
    for (const TokenId token : item.cached) chain = ChainNext(chain, token);
    ChainTokens(chain, item.tokens,
                std::span(chains_).subspan(static_cast<std::size_t>(item.first_row)));
  }
}

void SimulatedData::EndStep(const ExecutorStep& step, const ExecutorOutput& output) {
  const std::span<const ExecutorItem> items = step.items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int64_t kept = items[i].count - items[i].drafts + output.accepted[i];
    Chain(items[i], items[i].beam) =
        chains_[static_cast<std::size_t>(items[i].first_row + kept - 1)];
    for (int fork = 1; fork <= items[i].forks; ++fork) Chain(items[i], fork) = Chain(items[i], 0);
  }
  if (script_.beams() == 1) return;
  // Beams of a request that put something out stand together, in order.
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].samples || items[i].beam != 0 || items[i].forks > 0) continue;
    const std::uint64_t* const first = &Chain(items[i], 0);
    parents_.assign(first, first + script_.beams());
    for (int beam = 0; beam < script_.beams(); ++beam) {
      const int parent = output.parents[i + static_cast<std::size_t>(beam)];
      Chain(items[i], beam) = parents_[static_cast<std::size_t>(parent)];
    }
  }
}

Status SimulatedData::AppendStep(const ExecutorStep& step) {
  const Status begun = fault_.BeginStep(step);
  if (!begun.ok()) return begun;
  MakeChains(step);
  for (const ExecutorItem& item : step.items) {
    if (!checks_hits_ || item.cached.empty()) continue;
    const Status checked = CheckHit(item);
    if (!checked.ok()) return checked;
  }
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const Status appended = AppendLayer(step, layer);
    if (!appended.ok()) return appended;
  }
  const Timed timed(device_s_);
  return cache_.device().Synchronize(step.stream);
}

Status SimulatedData::AppendLayer(const ExecutorStep& step, int layer) {
  Device& device = cache_.device();
  const std::size_t turn = static_cast<std::size_t>(layer) % stages_.size();
  Stage& stage = stages_[turn];
  if (uploads_ && turn == 0 && layer > 0) {  // the ring's buffers are still being read
    const Timed timed(device_s_);
    const Status passed = device.Synchronize(step.stream);
    if (!passed.ok()) return passed;
  }
  const LayerShape& shape = layers_[static_cast<std::size_t>(layer)];
  FillStage(stage, layer);
  const Timed timed(device_s_);
  if (!uploads_) return Append(step, layer, stage.k_host.data(), stage.v_host.data());
  const std::size_t k_bytes = chains_.size() * KeyBytes(shape);
  const std::size_t v_bytes = chains_.size() * ValueBytes(shape);
  Status copied =
      device.CopyToDevice(stage.k_device.data(), stage.k_host.data(), k_bytes, step.stream);
  if (copied.ok()) {
    copied = device.CopyToDevice(stage.v_device.data(), stage.v_host.data(), v_bytes, step.stream);
  }
  if (!copied.ok()) return copied;
  return Append(step, layer, stage.k_device.data(), stage.v_device.data());
}

// The step's rows of a layer, on the host; a fault breaks the first one.
void SimulatedData::FillStage(const Stage& stage, int layer) {
  const LayerShape& shape = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t k_width = std::int64_t{shape.heads} * shape.k_dim;
  const std::int64_t v_width = std::int64_t{shape.heads} * shape.v_dim;
  FillSyntheticRows(chains_, layer, KvPart::kKey, k_width, dtype_, stage.k_host.data());
  FillSyntheticRows(chains_, layer, KvPart::kValue, v_width, dtype_, stage.v_host.data());
  const auto layers = static_cast<int>(layers_.size());
  if (shape.mla) {
    // The sign of an element: rounding what is normed could lose a lower bit.
    const std::size_t element = static_cast<std::size_t>(kv_lora_rank_) / 2;
    const std::size_t last_byte = (element + 1) * SizeOf(dtype_) - 1;
    fault_.Corrupt(layer, layers, static_cast<std::byte*>(stage.k_host.data()) + last_byte, 7);
  } else {
    const std::size_t middle = ValueBytes(shape) / 2;
    fault_.Corrupt(layer, layers, static_cast<std::byte*>(stage.v_host.data()) + middle, 0);
  }
}

// k, v: the step's rows, where the device reads them. MLA: k has the rows of a down-projection.
Status SimulatedData::Append(const ExecutorStep& step, int layer, const void* k, const void* v) {
  const LayerShape& shape = layers_[static_cast<std::size_t>(layer)];
  if (!shape.mla) {
    const AppendInputs inputs{.dtype = dtype_, .k = k, .v = v};
    return cache_.Append(step.step, layer, inputs, step.stream);
  }
  const std::size_t latent_bytes = static_cast<std::size_t>(kv_lora_rank_) * SizeOf(dtype_);
  const std::size_t norm_word = static_cast<std::size_t>(layer) * NormWords();
  MlaAppendInputs inputs;
  inputs.dtype = dtype_;
  inputs.kv_lora_rank = kv_lora_rank_;
  inputs.c_kv = k;
  inputs.k_pe = static_cast<const std::byte*>(k) + latent_bytes;
  inputs.c_kv_stride = inputs.k_pe_stride = shape.k_dim;
  inputs.norm_weight = static_cast<const std::uint32_t*>(norm_device_.data()) + norm_word;
  inputs.eps = norm_eps_;
  return cache_.MlaAppend(step.step, layer, inputs, step.stream);
}

CheckResult SimulatedData::check_result() const {
  CheckResult result = check_;
  result.fault_fired = fault_.fired();
  return result;
}

// What a layer must hold for these chains, whose first row stands at position `first`.
void SimulatedData::FillExpected(std::span<const std::uint64_t> chains, int layer,
                                 std::int64_t first) {
  const LayerShape& shape = layers_[static_cast<std::size_t>(layer)];
  RopeRows& rope = shape.rope < 0 ? ropes_.back() : ropes_[static_cast<std::size_t>(shape.rope)];
  rope.Reserve(first + std::ssize(chains));
  if (shape.mla) {
    const LatentNorm norm{.rank = kv_lora_rank_,
                          .weight = &norm_host_[static_cast<std::size_t>(layer) * NormWords()],
                          .eps = norm_eps_};
    FillExpectedLatents(chains, layer, rope, first, norm, shape.k_dim - kv_lora_rank_, dtype_,
                        expected_k_.data());
    return;
  }
  FillExpectedRows(chains, layer, KvPart::kKey, rope, first, shape.heads, shape.k_dim, dtype_,
                   expected_k_.data());
  FillExpectedRows(chains, layer, KvPart::kValue, rope, first, shape.heads, shape.v_dim, dtype_,
                   expected_v_.data());
}

// How many of the rows in stored_k_ and stored_v_ are not what they must be.
std::int64_t SimulatedData::CompareRows(int layer, std::int64_t first, std::int64_t count) {
  const LayerShape& shape = layers_[static_cast<std::size_t>(layer)];
  const std::span<const std::uint64_t> chains =
      std::span(expected_chains_)
          .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  FillExpected(chains, layer, first);
  const auto differ = [](const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b,
                         std::size_t begin, std::size_t bytes) {
    return bytes > 0 &&
           std::memcmp(reinterpret_cast<const std::byte*>(a.data()) + begin,
                       reinterpret_cast<const std::byte*>(b.data()) + begin, bytes) != 0;
  };
  const std::size_t k_bytes = KeyBytes(shape);
  const std::size_t v_bytes = ValueBytes(shape);
  std::int64_t wrong = 0;
  for (std::size_t row = 0; row < chains.size(); ++row) {
    wrong += differ(stored_k_, expected_k_, row * k_bytes, k_bytes) ||
             differ(stored_v_, expected_v_, row * v_bytes, v_bytes);
  }
  return wrong;
}

Result<std::int64_t> SimulatedData::CheckRows(SequenceId sequence, int layer, std::int64_t first,
                                              std::int64_t end) {
  const LayerShape& shape = layers_[static_cast<std::size_t>(layer)];
  const std::size_t k_words = (KeyBytes(shape) * kCheckRows + 3) / 4;
  const std::size_t v_words = (ValueBytes(shape) * kCheckRows + 3) / 4;
  stored_k_.resize(k_words);
  expected_k_.resize(k_words);
  stored_v_.resize(v_words);
  expected_v_.resize(v_words);
  std::int64_t mismatches = 0;
  for (; first < end; first += kCheckRows) {
    const std::int64_t count = std::min(kCheckRows, end - first);
    const Status read =
        cache_.ReadRows(sequence, layer, first, count, stored_k_.data(), stored_v_.data());
    if (!read.ok()) return read;
    mismatches += CompareRows(layer, first, count);
  }
  return mismatches;
}

// What the windows before the first row that is computed read of a hit: later, when the sequence is
// checked, those rows are given back.
Status SimulatedData::CheckHit(const ExecutorItem& item) {
  const std::int64_t hit = std::ssize(item.cached);
  expected_chains_.assign(static_cast<std::size_t>(hit), 0);
  ChainTokens(chain_start_, item.cached, expected_chains_);
  // Of a block that the hit ends in, the copy is not to be read yet.
  const std::int64_t end = hit - hit % cache_.config().block_size;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].window.tokens == 0) continue;
    const std::int64_t first = layers_[layer].window.First(hit);
    const Result<std::int64_t> kept = cache_.FirstRow(item.sequence, static_cast<int>(layer));
    if (!kept.ok()) return kept.status();
    check_.mismatches += std::max<std::int64_t>(0, std::min(*kept, hit) - first);
    const Result<std::int64_t> wrong =
        CheckRows(item.sequence, static_cast<int>(layer), std::max(first, *kept), end);
    if (!wrong.ok()) return wrong.status();
    check_.mismatches += *wrong;
  }
  return Status::Ok();
}

Status SimulatedData::CheckSequence(const SequenceEnd& end, std::int64_t generated) {
  const std::int64_t settled = end.settled;
  script_.Tokens(static_cast<std::int64_t>(end.tag), end.beam, generated, tokens_);
  // A row too many has no token: whatever it holds is wrong.
  const std::int64_t known = std::min(settled, std::ssize(tokens_));
  expected_chains_.assign(static_cast<std::size_t>(settled), 0);
  ChainTokens(chain_start_, std::span(tokens_).first(static_cast<std::size_t>(known)),
              expected_chains_);
  std::int64_t mismatches = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const Result<std::int64_t> kept = cache_.FirstRow(end.sequence, static_cast<int>(layer));
    if (!kept.ok()) return kept.status();
    // A row that the next one would still attend to has to be there.
    const AttentionWindow& window = layers_[layer].window;
    const std::int64_t needed = window.tokens == 0 ? 0 : window.First(settled);
    mismatches += std::max<std::int64_t>(0, std::min(*kept, settled) - needed);
    const Result<std::int64_t> wrong =
        CheckRows(end.sequence, static_cast<int>(layer), *kept, settled);
    if (!wrong.ok()) return wrong.status();
    mismatches += *wrong;
  }
  check_.mismatches += mismatches;
  check_.sequences += end.reason == SequenceEndReason::kFinished ? 1 : 0;
  fault_.Checked(end.sequence, mismatches > 0);
  return Status::Ok();
}

}  // namespace lariat::session
