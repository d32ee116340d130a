// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/ops.h"
#include "lariat/types.h"

// What a step hands to one layer of a KVCache.

namespace lariat {

// Inputs of one layer's append, device memory. Row t is the step's row t; padded_tokens() rows are
// read where the captured shape is padded (their contents do not matter).
struct AppendInputs {
  DType dtype = DType::kBF16;  // of k, v and q: the cache's, or fp32
  const void* k = nullptr;     // [T, kv_heads, k_dim], this rank's heads
  const void* v = nullptr;     // [T, kv_heads, v_dim]
  void* q = nullptr;           // [T, q_heads, k_dim], turned in place; null: none
  int q_heads = 0;
  // Elements; 0: contiguous.
  std::int64_t k_token_stride = 0, k_head_stride = 0;
  std::int64_t v_token_stride = 0, v_head_stride = 0;
  std::int64_t q_token_stride = 0, q_head_stride = 0;
  // As in AppendRopeParams. The cache writes slots, positions and table choices in Prepare and the
  // tables in Create, so kIndexEarly takes a kernel that is no dependent launch between a step's
  // Prepare and its first append.
  DependentLaunch dependent_launch = DependentLaunch::kOff;
};

// Inputs of one MLA layer's append, device memory; the fields are those of MlaAppendParams (ops.h).
// Rows as AppendInputs.
struct MlaAppendInputs {
  DType dtype = DType::kBF16;  // of all inputs: the cache's, or fp32
  int kv_lora_rank = 0;        // elements of the latent; the rest of LayerSpec::k_dim is k_pe
  // Either hidden and the down-projection ...
  const void* hidden = nullptr;  // [T, model_dim]
  std::int64_t hidden_stride = 0;
  int model_dim = 0;
  WeightLayout layout = WeightLayout::kOutIn;
  const void* w_down = nullptr;  // kOutIn: [k_dim, model_dim]
  std::int64_t w_down_stride = 0;
  bool allow_tf32 = false;
  // ... or its result.
  const void* c_kv = nullptr;  // [T, kv_lora_rank]
  const void* k_pe = nullptr;  // [T, k_dim - kv_lora_rank]
  std::int64_t c_kv_stride = 0, k_pe_stride = 0;
  const void* norm_weight = nullptr;  // [kv_lora_rank]; null: the latent is stored as it comes
  float eps = 1e-6F;
  DependentLaunch dependent_launch = DependentLaunch::kAfterWait;
};

// What MlaExpand makes of one MLA layer's rows; the fields are those of MlaExpandParams (ops.h).
// Range r is of the step's sequence r, in the order of its items.
struct MlaExpandInputs {
  int kv_lora_rank = 0;
  int heads = 0;  // this rank's
  int nope_dim = 0;
  int v_dim = 0;
  WeightLayout layout = WeightLayout::kOutIn;
  const void* w_kv_b = nullptr;  // kOutIn: [heads * (nope_dim + v_dim), kv_lora_rank]
  std::int64_t w_kv_b_stride = 0;
  bool allow_tf32 = false;
  std::int64_t num_tokens = 0;              // rows of k and v
  const std::int32_t* cu_tokens = nullptr;  // [padded_sequences() + 1], ascending from 0
  const std::int32_t* starts = nullptr;     // [padded_sequences()]; null: all 0
  void* k = nullptr;                        // [num_tokens, heads, nope_dim + rope dim]
  void* v = nullptr;                        // [num_tokens, heads, v_dim]
  std::int64_t k_token_stride = 0, v_token_stride = 0;
};

// Inputs of MlaCompress into one full-attention layer; the fields are those of MlaCompressParams
// (ops.h), q those of AppendInputs.
struct MlaCompressInputs {
  DType dtype = DType::kBF16;  // of all inputs: the cache's, or fp32
  int model_dim = 0;
  int rank = 0;
  WeightLayout layout = WeightLayout::kInOut;
  MlaPath path = MlaPath::kAuto;
  bool allow_tf32 = false;
  const void* hidden = nullptr;  // [T, model_dim]
  std::int64_t hidden_stride = 0;
  const void* w_down = nullptr;  // kInOut: [model_dim, rank]
  std::int64_t w_down_stride = 0;
  const void* w_up_k = nullptr;  // kInOut: [rank, kv_heads * k_dim], this rank's heads
  const void* w_up_v = nullptr;  // kInOut: [rank, kv_heads * v_dim]
  std::int64_t w_up_k_stride = 0, w_up_v_stride = 0;
  void* latent = nullptr;  // [T, rank], written; null: not wanted
  std::int64_t latent_stride = 0;
  void* q = nullptr;  // [T, q_heads, k_dim], turned in place; null: none
  int q_heads = 0;
  std::int64_t q_token_stride = 0, q_head_stride = 0;
  // Of the products, as in MlaCompressParams, and of the append behind them, as in AppendInputs.
  DependentLaunch dependent_launch = DependentLaunch::kOff;
};

}  // namespace lariat
