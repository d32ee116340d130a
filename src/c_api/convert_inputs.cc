// SPDX-License-Identifier: Apache-2.0
// Inputs of one layer's rows.
#include "c_api/convert.h"
#include "c_api/structs.h"

namespace lariat::c_api {

namespace {

constexpr WeightLayout kLayouts[] = {WeightLayout::kOutIn, WeightLayout::kInOut};
constexpr MlaPath kPaths[] = {MlaPath::kAuto, MlaPath::kFused, MlaPath::kGemm};

// 0 leaves what stands there.
Status ChooseLaunch(std::int32_t value, DependentLaunch& to) {
  const DependentLaunch launches[] = {to, DependentLaunch::kOff, DependentLaunch::kAfterWait,
                                      DependentLaunch::kIndexEarly};
  return Choose("dependent_launch", value, launches, to);
}

}  // namespace

Status Convert(const lariat_append_inputs* caller, AppendInputs& to) {
  lariat_append_inputs from;
  Status status = Read("inputs", caller, from);
  if (!status.ok()) return status;
  to.k = from.k;
  to.v = from.v;
  to.q = from.q;
  to.q_heads = from.q_heads;
  to.k_token_stride = from.k_token_stride;
  to.k_head_stride = from.k_head_stride;
  to.v_token_stride = from.v_token_stride;
  to.v_head_stride = from.v_head_stride;
  to.q_token_stride = from.q_token_stride;
  to.q_head_stride = from.q_head_stride;
  status = Choose("dtype", from.dtype, kDTypes, to.dtype);
  if (!status.ok()) return status;
  return ChooseLaunch(from.dependent_launch, to.dependent_launch);
}

Status Convert(const lariat_mla_append_inputs* caller, MlaAppendInputs& to) {
  lariat_mla_append_inputs from;
  Status status = Read("inputs", caller, from);
  if (!status.ok()) return status;
  to.kv_lora_rank = from.kv_lora_rank;
  to.model_dim = from.model_dim;
  to.hidden = from.hidden;
  to.hidden_stride = from.hidden_stride;
  to.w_down = from.w_down;
  to.w_down_stride = from.w_down_stride;
  to.c_kv = from.c_kv;
  to.k_pe = from.k_pe;
  to.c_kv_stride = from.c_kv_stride;
  to.k_pe_stride = from.k_pe_stride;
  to.norm_weight = from.norm_weight;
  if (from.eps != 0.0F) to.eps = from.eps;
  to.allow_tf32 = from.allow_tf32 != 0;
  status = Choose("dtype", from.dtype, kDTypes, to.dtype);
  if (status.ok()) status = Choose("layout", from.layout, kLayouts, to.layout);
  if (!status.ok()) return status;
  return ChooseLaunch(from.dependent_launch, to.dependent_launch);
}

Status Convert(const lariat_mla_expand_inputs* caller, MlaExpandInputs& to) {
  lariat_mla_expand_inputs from;
  Status status = Read("inputs", caller, from);
  if (!status.ok()) return status;
  to.kv_lora_rank = from.kv_lora_rank;
  to.heads = from.heads;
  to.nope_dim = from.nope_dim;
  to.v_dim = from.v_dim;
  to.allow_tf32 = from.allow_tf32 != 0;
  to.w_kv_b = from.w_kv_b;
  to.w_kv_b_stride = from.w_kv_b_stride;
  to.num_tokens = from.num_tokens;
  to.cu_tokens = from.cu_tokens;
  to.starts = from.starts;
  to.k = from.k;
  to.v = from.v;
  to.k_token_stride = from.k_token_stride;
  to.v_token_stride = from.v_token_stride;
  status = CheckReserved("inputs", from.reserved);
  return status.ok() ? Choose("layout", from.layout, kLayouts, to.layout) : status;
}

Status Convert(const lariat_mla_compress_inputs* caller, MlaCompressInputs& to) {
  lariat_mla_compress_inputs from;
  Status status = Read("inputs", caller, from);
  if (!status.ok()) return status;
  to.model_dim = from.model_dim;
  to.rank = from.rank;
  to.allow_tf32 = from.allow_tf32 != 0;
  to.hidden = from.hidden;
  to.hidden_stride = from.hidden_stride;
  to.w_down = from.w_down;
  to.w_down_stride = from.w_down_stride;
  to.w_up_k = from.w_up_k;
  to.w_up_k_stride = from.w_up_k_stride;
  to.w_up_v = from.w_up_v;
  to.w_up_v_stride = from.w_up_v_stride;
  to.latent = from.latent;
  to.latent_stride = from.latent_stride;
  to.q = from.q;
  to.q_heads = from.q_heads;
  to.q_token_stride = from.q_token_stride;
  to.q_head_stride = from.q_head_stride;
  status = Choose("dtype", from.dtype, kDTypes, to.dtype);
  if (status.ok()) status = Choose("layout", from.layout, kLayouts, to.layout);
  if (status.ok()) status = Choose("path", from.path, kPaths, to.path);
  if (status.ok()) status = CheckReserved("inputs", from.reserved);
  return status.ok() ? ChooseLaunch(from.dependent_launch, to.dependent_launch) : status;
}

}  // namespace lariat::c_api
