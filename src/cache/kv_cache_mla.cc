// SPDX-License-Identifier: Apache-2.0
// Calls of MLA: latent rows in and out of the cache, and keys and values made through a latent.
#include <algorithm>

#include "backend/append_check.h"
#include "backend/device_range.h"
#include "cache/kv_cache_impl.h"

namespace lariat {

using blocks::PlannedStep;

namespace {

// Of MlaAppendParams.
constexpr int kMaxRank = 65536;
constexpr int kMaxRopeDim = 65536;

}  // namespace

// --- Rows appended ----------------------------------------------------------------------------

// A row is [latent | k_pe], and its rope turns elements of k_pe alone.
Status KVCache::Impl::CheckRank(int layer, int kv_lora_rank) const {
  const LayerSpec& spec = resolved.layers[static_cast<std::size_t>(layer)];
  const int rotary_dim =
      spec.rope < 0 ? 0 : config.ropes[static_cast<std::size_t>(spec.rope)].rotary_dim;
  const int least = std::max(1, spec.k_dim - kMaxRopeDim);
  const int most = std::min(kMaxRank, spec.k_dim - rotary_dim);
  if (kv_lora_rank >= least && kv_lora_rank <= most) return {};
  return InvalidArgument("kv_lora_rank " + std::to_string(kv_lora_rank) + ": allowed are " +
                         std::to_string(least) + " to " + std::to_string(most) +
                         " in rows of k_dim " + std::to_string(spec.k_dim) + ", of which " +
                         std::to_string(rotary_dim) + " elements turn");
}

MlaAppendParams KVCache::Impl::AppendParams(int layer, const MlaAppendInputs& inputs,
                                            std::int64_t tokens) const {
  const LayerSpec& spec = resolved.layers[static_cast<std::size_t>(layer)];
  const storage::Plane& plane = storage.layout().layers()[static_cast<std::size_t>(layer)].k;
  const auto element = static_cast<std::int64_t>(SizeOf(config.dtype));
  const StepView view = arrays.view(GroupOf(layer));
  MlaAppendParams params;
  params.in_dtype = inputs.dtype;
  params.dtype = config.dtype;
  params.num_tokens = tokens;
  params.rank = inputs.kv_lora_rank;
  params.rope_dim = spec.k_dim - inputs.kv_lora_rank;
  params.hidden = inputs.hidden;
  params.hidden_stride = inputs.hidden_stride;
  params.model_dim = inputs.model_dim;
  params.layout = inputs.layout;
  params.w_down = inputs.w_down;
  params.w_down_stride = inputs.w_down_stride;
  params.allow_tf32 = inputs.allow_tf32;
  params.c_kv = inputs.c_kv;
  params.k_pe = inputs.k_pe;
  params.c_kv_stride = inputs.c_kv_stride;
  params.k_pe_stride = inputs.k_pe_stride;
  params.norm_weight = inputs.norm_weight;
  params.eps = inputs.eps;
  params.dependent_launch = inputs.dependent_launch;
  params.slots = view.slots;
  params.positions = view.positions;
  SetRope(layer, params);
  params.cache = storage.base() + plane.offset;
  params.num_slots = resolved.num_blocks * config.block_size;
  params.block_size = config.block_size;
  params.block_stride = plane.block_stride / element;
  params.row_stride = plane.row_stride / element;
  params.fault_indirect = arrays.fault_word();
  return params;
}

Status KVCache::Impl::MlaAppend(std::uint64_t id, int layer, const MlaAppendInputs& inputs,
                                Stream stream) {
  const Result<const PlannedStep*> plan = PlanInUse(id, layer, /*mla=*/true);
  if (!plan.ok()) return plan.status();
  if (Status s = CheckRank(layer, inputs.kv_lora_rank); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  const DeviceRange range("MlaAppend");
  return lariat::MlaAppend(device, AppendParams(layer, inputs, (*plan)->padded_tokens), stream);
}

Status KVCache::Impl::Warmup(int layer, const MlaAppendInputs& inputs, Stream stream) {
  if (Status s = CheckLayer(layer, /*mla=*/true); !s.ok()) return s;
  if (Status s = CheckRank(layer, inputs.kv_lora_rank); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  return lariat::Warmup(device, AppendParams(layer, inputs, config.max_tokens_per_step), stream);
}

// --- Rows expanded ----------------------------------------------------------------------------

MlaExpandParams KVCache::Impl::ExpandParams(int layer, const MlaExpandInputs& inputs,
                                            int sequences) const {
  const LayerSpec& spec = resolved.layers[static_cast<std::size_t>(layer)];
  const storage::Plane& plane = storage.layout().layers()[static_cast<std::size_t>(layer)].k;
  const auto element = static_cast<std::int64_t>(SizeOf(config.dtype));
  const StepView view = arrays.view(GroupOf(layer));
  MlaExpandParams params;
  params.dtype = config.dtype;
  params.num_tokens = inputs.num_tokens;
  params.heads = inputs.heads;
  params.rank = inputs.kv_lora_rank;
  params.rope_dim = spec.k_dim - inputs.kv_lora_rank;
  params.nope_dim = inputs.nope_dim;
  params.v_dim = inputs.v_dim;
  params.layout = inputs.layout;
  params.w_kv_b = inputs.w_kv_b;
  params.w_kv_b_stride = inputs.w_kv_b_stride;
  params.allow_tf32 = inputs.allow_tf32;
  params.num_ranges = sequences;
  params.cu_tokens = inputs.cu_tokens;
  params.starts = inputs.starts;
  params.block_table = view.block_table;
  params.block_table_stride = view.block_table_stride;
  params.cache = storage.base() + plane.offset;
  params.num_blocks = resolved.num_blocks;
  params.block_size = config.block_size;
  params.block_stride = plane.block_stride / element;
  params.row_stride = plane.row_stride / element;
  params.k = inputs.k;
  params.v = inputs.v;
  params.k_token_stride = inputs.k_token_stride;
  params.v_token_stride = inputs.v_token_stride;
  params.fault_indirect = arrays.fault_word();
  return params;
}

Status KVCache::Impl::MlaExpand(std::uint64_t id, int layer, const MlaExpandInputs& inputs,
                                Stream stream) {
  const Result<const PlannedStep*> plan = PlanInUse(id, layer, /*mla=*/true);
  if (!plan.ok()) return plan.status();
  if (Status s = CheckRank(layer, inputs.kv_lora_rank); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  const DeviceRange range("MlaExpand");
  return lariat::MlaExpand(device, ExpandParams(layer, inputs, (*plan)->padded_sequences), stream);
}

Status KVCache::Impl::Warmup(int layer, const MlaExpandInputs& inputs, Stream stream) {
  if (Status s = CheckLayer(layer, /*mla=*/true); !s.ok()) return s;
  if (Status s = CheckRank(layer, inputs.kv_lora_rank); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  return lariat::Warmup(device, ExpandParams(layer, inputs, config.max_sequences), stream);
}

// --- Keys and values through a latent -----------------------------------------------------------

// What AppendRope would refuse only behind the products.
Status KVCache::Impl::CheckCompress(const MlaCompressInputs& inputs) const {
  if (inputs.dtype != config.dtype && inputs.dtype != DType::kFP32) {
    return InvalidArgument("dtype " + std::string(DTypeName(inputs.dtype)) +
                           ": allowed are the cache's " + std::string(DTypeName(config.dtype)) +
                           " and fp32");
  }
  return CheckQuery(inputs.q, inputs.q_heads);
}

Result<MlaCompressParams> KVCache::Impl::CompressParams(int layer, const MlaCompressInputs& inputs,
                                                        std::int64_t tokens, Stream stream) {
  const LayerSpec& spec = resolved.layers[static_cast<std::size_t>(layer)];
  const auto element = static_cast<std::int64_t>(SizeOf(inputs.dtype));
  const std::int64_t k_width = std::int64_t{spec.kv_heads} * spec.k_dim;
  const std::int64_t width = k_width + std::int64_t{spec.kv_heads} * spec.v_dim;
  const Result<void*> rows = device.backend().Scratch(
      ScratchUse::kRows, static_cast<std::size_t>(tokens * width * element), stream);
  if (!rows.ok()) return rows.status();
  MlaCompressParams params;
  params.dtype = inputs.dtype;
  params.num_tokens = tokens;
  params.model_dim = inputs.model_dim;
  params.rank = inputs.rank;
  params.heads = spec.kv_heads;
  params.k_dim = spec.k_dim;
  params.v_dim = spec.v_dim;
  params.layout = inputs.layout;
  params.path = inputs.path;
  params.allow_tf32 = inputs.allow_tf32;
  params.hidden = inputs.hidden;
  params.hidden_stride = inputs.hidden_stride;
  params.w_down = inputs.w_down;
  params.w_down_stride = inputs.w_down_stride;
  params.w_up_k = inputs.w_up_k;
  params.w_up_v = inputs.w_up_v;
  params.w_up_k_stride = inputs.w_up_k_stride;
  params.w_up_v_stride = inputs.w_up_v_stride;
  params.k = *rows;
  params.v = static_cast<std::byte*>(*rows) + k_width * element;
  params.k_token_stride = params.v_token_stride = width;
  params.latent = inputs.latent;
  params.latent_stride = inputs.latent_stride;
  params.dependent_launch = inputs.dependent_launch;
  return params;
}

Status KVCache::Impl::MlaCompress(std::uint64_t id, int layer, const MlaCompressInputs& inputs,
                                  Stream stream) {
  const Result<const PlannedStep*> plan = PlanInUse(id, layer, /*mla=*/false);
  if (!plan.ok()) return plan.status();
  if (Status s = CheckCompress(inputs); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  const DeviceRange range("MlaCompress");
  const std::int64_t tokens = (*plan)->padded_tokens;
  const Result<MlaCompressParams> made = CompressParams(layer, inputs, tokens, stream);
  if (!made.ok()) return made.status();
  AppendInputs rows;
  rows.dtype = inputs.dtype;
  rows.k = made->k;
  rows.v = made->v;
  rows.k_token_stride = made->k_token_stride;
  rows.v_token_stride = made->v_token_stride;
  rows.q = inputs.q;
  rows.q_heads = inputs.q_heads;
  rows.q_token_stride = inputs.q_token_stride;
  rows.q_head_stride = inputs.q_head_stride;
  rows.dependent_launch = inputs.dependent_launch;
  const AppendRopeParams append = AppendParams(layer, rows, tokens);
  // What it would refuse only behind the products, with names of its own where they differ.
  AppendRopeParams checked = append;
  if (Status s = CheckAppendRope(device.backend(), checked); !s.ok()) return s;
  if (Status s = lariat::MlaCompress(device, *made, stream); !s.ok()) return s;
  return AppendRope(device, append, stream);
}

Status KVCache::Impl::Warmup(int layer, const MlaCompressInputs& inputs, Stream stream) {
  if (Status s = CheckLayer(layer, /*mla=*/false); !s.ok()) return s;
  if (Status s = CheckCompress(inputs); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  const Result<MlaCompressParams> made =
      CompressParams(layer, inputs, config.max_tokens_per_step, stream);
  if (!made.ok()) return made.status();
  return lariat::Warmup(device, *made, stream);
}

// --- The public calls ---------------------------------------------------------------------------

Status KVCache::MlaAppend(const Step& step, int layer, const MlaAppendInputs& inputs,
                          Stream stream) {
  return Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->MlaAppend(step.id_, layer, inputs, stream)
                                     : NotOfThisCache();
  });
}

Status KVCache::MlaExpand(const Step& step, int layer, const MlaExpandInputs& inputs,
                          Stream stream) {
  return Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->MlaExpand(step.id_, layer, inputs, stream)
                                     : NotOfThisCache();
  });
}

Status KVCache::MlaCompress(const Step& step, int layer, const MlaCompressInputs& inputs,
                            Stream stream) {
  return Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->MlaCompress(step.id_, layer, inputs, stream)
                                     : NotOfThisCache();
  });
}

Status KVCache::Warmup(int layer, const MlaAppendInputs& inputs, Stream stream) {
  return Guarded([&] { return impl_->Warmup(layer, inputs, stream); });
}

Status KVCache::Warmup(int layer, const MlaExpandInputs& inputs, Stream stream) {
  return Guarded([&] { return impl_->Warmup(layer, inputs, stream); });
}

Status KVCache::Warmup(int layer, const MlaCompressInputs& inputs, Stream stream) {
  return Guarded([&] { return impl_->Warmup(layer, inputs, stream); });
}

}  // namespace lariat
