// SPDX-License-Identifier: Apache-2.0
// Inputs of MLA layers: hidden states or given rows, weights, and keys and values made of latents.
#include <algorithm>
#include <cstring>
#include <utility>

#include "session/verify_inputs.h"

namespace lariat::session {
namespace {

// [c_kv | k_pe] of every token; zeros for what was not recorded.
std::vector<double> GivenRows(const RecordedMla& mla, std::int64_t tokens) {
  const std::int64_t rank = mla.dims.kv_lora_rank, rope = mla.dims.qk_rope_head_dim;
  std::vector<double> rows(static_cast<std::size_t>(tokens * (rank + rope)), 0.0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto row = rows.begin() + t * (rank + rope);
    if (!mla.c_kv.empty()) std::copy_n(mla.c_kv.begin() + t * rank, rank, row);
    if (!mla.k_pe.empty()) std::copy_n(mla.k_pe.begin() + t * rope, rope, row + rank);
  }
  return rows;
}

}  // namespace

Result<DeviceBuffer> ReplayInputs::ToDevice(const std::vector<double>& values, DType dtype) {
  const std::vector<std::byte> bytes = Narrow(values, dtype);
  Result<DeviceBuffer> buffer = device_.Allocate(MemoryKind::kDevice, bytes.size());
  if (!buffer.ok()) return buffer;
  Status copied = device_.CopyToDevice(buffer->data(), bytes.data(), bytes.size(), stream_);
  if (copied.ok()) copied = device_.Synchronize(stream_);
  if (!copied.ok()) return copied;
  return buffer;
}

Status ReplayInputs::MakeMla(const ReplayLayer& layer, LayerInputs& inputs) {
  const RecordedMla& mla = *recording_.layers[layer.recorded].mla;
  const bool from_hidden = layer.source == LatentSource::kHidden;
  const std::int64_t rows = recording_.batch * recording_.tokens;
  inputs.dtype = from_hidden ? dtype_ : DType::kFP32;
  inputs.k.bytes = Narrow(from_hidden ? mla.hidden : GivenRows(mla, rows), inputs.dtype);
  const auto upload = [&](const std::vector<double>& values, DType dtype, DeviceBuffer& buffer) {
    if (values.empty()) return Status::Ok();
    Result<DeviceBuffer> made = ToDevice(values, dtype);
    if (made.ok()) buffer = *std::move(made);
    return made.status();
  };
  Status made = upload(mla.norm, inputs.dtype, inputs.norm);
  if (made.ok() && from_hidden) made = upload(mla.w_down, inputs.dtype, inputs.w_down);
  if (made.ok()) made = upload(mla.w_kv_b, dtype_, inputs.w_kv_b);
  if (!made.ok() || !mla.attn_out.compared()) return made;

  const std::int64_t head_k = mla.dims.qk_nope_head_dim + mla.dims.qk_rope_head_dim;
  const auto grow = [&](DeviceBuffer& buffer, std::int64_t elements, std::size_t size) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * size;
    if (buffer.size() >= bytes) return Status::Ok();
    Result<DeviceBuffer> larger = device_.Allocate(MemoryKind::kDevice, bytes);
    if (larger.ok()) buffer = *std::move(larger);
    return larger.status();
  };
  made = grow(expanded_k_, rows * mla.heads * head_k, SizeOf(dtype_));
  if (made.ok()) made = grow(expanded_v_, rows * mla.heads * mla.dims.v_head_dim, SizeOf(dtype_));
  if (made.ok()) made = grow(cu_tokens_, recording_.batch + 1, sizeof(std::int32_t));
  return made;
}

Status ReplayInputs::AppendMla(KVCache& cache, const Step& step, std::size_t layer,
                               std::span<const std::int64_t> batch) {
  const LayerInputs& inputs = inputs_[layer];
  const RecordedMla& mla = *Recorded(layer).mla;
  const std::int64_t rank = mla.dims.kv_lora_rank;
  const Result<const void*> rows = Take(k_, inputs.k, step, batch);
  if (!rows.ok()) return rows.status();
  MlaAppendInputs call;
  call.dtype = inputs.dtype;
  call.kv_lora_rank = mla.dims.kv_lora_rank;
  call.norm_weight = inputs.norm.data();
  call.eps = static_cast<float>(mla.dims.norm_eps);
  if (layers_[layer].source == LatentSource::kHidden) {
    call.hidden = *rows;
    call.model_dim = static_cast<int>(mla.hidden_size);
    call.w_down = inputs.w_down.data();
  } else {
    const auto* const first = static_cast<const std::byte*>(*rows);
    call.c_kv = first;
    call.k_pe = first + static_cast<std::size_t>(rank) * SizeOf(inputs.dtype);
    call.c_kv_stride = call.k_pe_stride = rank + mla.dims.qk_rope_head_dim;
  }
  return cache.MlaAppend(step, static_cast<int>(layer), call, stream_);
}

Status ReplayInputs::Expand(KVCache& cache, const Step& step, std::size_t layer,
                            std::span<const std::int64_t> batch, std::span<ExpandedRows> out) {
  if (!Recorded(layer).mla || !Recorded(layer).mla->attn_out.compared()) return Status::Ok();
  const RecordedMla& mla = *Recorded(layer).mla;
  std::vector<std::int32_t> cu_tokens = {0};
  for (const StepRows& rows : step.rows()) {
    const bool whole = rows.start + rows.count == recording_.tokens;
    cu_tokens.push_back(cu_tokens.back() +
                        (whole ? static_cast<std::int32_t>(recording_.tokens) : 0));
  }
  if (cu_tokens.back() == 0) return Status::Ok();
  // What is not written is not equal to anything.
  constexpr std::uint8_t kPoison = 0xff;
  Status status = device_.CopyToDevice(cu_tokens_.data(), cu_tokens.data(),
                                       cu_tokens.size() * sizeof(cu_tokens[0]), stream_);
  for (DeviceBuffer* const buffer : {&expanded_k_, &expanded_v_}) {
    if (status.ok()) status = device_.Fill(buffer->data(), kPoison, buffer->size(), stream_);
  }
  if (!status.ok()) return status;
  MlaExpandInputs call;
  call.kv_lora_rank = mla.dims.kv_lora_rank;
  call.heads = mla.heads;
  call.nope_dim = mla.dims.qk_nope_head_dim;
  call.v_dim = mla.dims.v_head_dim;
  call.w_kv_b = inputs_[layer].w_kv_b.data();
  call.num_tokens = cu_tokens.back();
  call.cu_tokens = static_cast<const std::int32_t*>(cu_tokens_.data());
  call.k = expanded_k_.data();
  call.v = expanded_v_.data();
  status = cache.MlaExpand(step, static_cast<int>(layer), call, stream_);
  if (!status.ok()) return status;
  return ReadExpanded(mla, cu_tokens, batch, out);
}

Status ReplayInputs::ReadExpanded(const RecordedMla& mla, std::span<const std::int32_t> cu_tokens,
                                  std::span<const std::int64_t> batch,
                                  std::span<ExpandedRows> out) {
  const auto read = [&](const DeviceBuffer& from, std::int64_t row, std::size_t i,
                        std::vector<double>& values) {
    const std::size_t row_bytes = static_cast<std::size_t>(row) * SizeOf(dtype_);
    std::vector<std::byte> bytes(static_cast<std::size_t>(recording_.tokens) * row_bytes);
    Status copied = device_.CopyToHost(bytes.data(),
                                       static_cast<const std::byte*>(from.data()) +
                                           static_cast<std::size_t>(cu_tokens[i]) * row_bytes,
                                       bytes.size(), stream_);
    if (copied.ok()) copied = device_.Synchronize(stream_);
    if (copied.ok()) Widen(bytes, dtype_, values);
    return copied;
  };
  const std::int64_t head_k = mla.dims.qk_nope_head_dim + mla.dims.qk_rope_head_dim;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (cu_tokens[i] == cu_tokens[i + 1]) continue;
    ExpandedRows& rows = out[static_cast<std::size_t>(batch[i])];
    Status status = read(expanded_k_, mla.heads * head_k, i, rows.k);
    if (status.ok()) {
      status = read(expanded_v_, std::int64_t{mla.heads} * mla.dims.v_head_dim, i, rows.v);
    }
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace lariat::session
