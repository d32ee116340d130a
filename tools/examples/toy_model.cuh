// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lariat/kv_cache.h"
#include "lariat/status.h"

// The model of decode_loop.cu but for its attention, and its cache: a toy without weights. Every
// row is computed alone and in a fixed order, so a batch changes no bit.

namespace toy {

using namespace lariat;

constexpr int kLayers = 3, kHeads = 4, kKvHeads = 2, kDim = 32, kWidth = kHeads * kDim;
constexpr int kRows = 32, kSequences = 4, kVocab = 251, kBlock = 8, kMaxTokens = 256;

inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "decode_loop: %s\n", status.ToString().c_str());
  std::exit(1);
}
template <class T>
T Must(Result<T> result) {
  Must(result.status());
  return *std::move(result);
}
inline void Must(cudaError_t error) {
  if (error != cudaSuccess) Must(DeviceError(cudaGetErrorString(error)));
}

inline void Expect(bool holds, const char* what) {
  if (!holds) Must(CorruptData(what));
}

// The toy's layers in a cache; Reuse::kNone: in one contiguous buffer a sequence.
inline CacheConfig Config(Reuse reuse) {
  CacheConfig config;
  config.layers.assign(kLayers, {.kv_heads = kKvHeads, .k_dim = kDim, .v_dim = kDim, .rope = 0});
  config.ropes.resize(1);
  config.ropes[0].rotary_dim = kDim;
  config.ropes[0].theta = 10000.0;
  config.dtype = DType::kFP32;
  config.backend = BackendKind::kCuda;
  config.memory.num_blocks = 64;
  config.block_size = reuse == Reuse::kNone ? kMaxTokens : kBlock;
  config.layout = reuse == Reuse::kNone ? Layout::kLayerMajor : Layout::kBlockMajor;
  config.reuse = reuse;
  config.max_sequences = kSequences;
  config.max_tokens_per_sequence = kMaxTokens;
  config.max_tokens_per_step = kRows;
  return config;
}

__device__ inline float Weight(int a, int b) { return __sinf(0.7F * a + 1.3F * b + 0.1F); }

// A row's token is given, or is the last one of a sequence's slot, which the host may not know yet.
static __global__ void Embed(const int* given, const int* last, float* x) {
  const int t = blockIdx.x, token = given[t] >= 0 ? given[t] : last[-1 - given[t]];
  x[t * kWidth + threadIdx.x] = Weight(token, static_cast<int>(threadIdx.x));
}

static __global__ void Project(const float* x, int layer, float* q, float* k, float* v) {
  const int t = blockIdx.x, i = threadIdx.x;
  q[t * kWidth + i] = x[t * kWidth + i] * (1.0F + 0.1F * layer);
  if (i >= kKvHeads * kDim) return;
  k[t * kKvHeads * kDim + i] = x[t * kWidth + 2 * i] - 0.2F * layer;
  v[t * kKvHeads * kDim + i] = x[t * kWidth + 2 * i + 1] + 0.3F * layer;
}

// The likeliest token of each row; it becomes the slot's last one where the host asks for that.
static __global__ void Sample(const float* x, const int* slot, int* token, int* last) {
  const int t = blockIdx.x;
  __shared__ float scores[kVocab];
  float score = 0;
  for (int i = 0; i < kWidth; ++i)
    score += x[t * kWidth + i] * Weight(static_cast<int>(threadIdx.x), i + 3);
  scores[threadIdx.x] = score;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int best = 0;
  for (int w = 1; w < kVocab; ++w) best = scores[w] > scores[best] ? w : best;
  token[t] = best;
  if (slot[t] >= 0) last[slot[t]] = best;
}

}  // namespace toy
