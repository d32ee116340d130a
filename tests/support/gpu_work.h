// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>

#include "lariat/kv_cache.h"

namespace lariat::testing {

// A reader as an attention kernel is one: for each sequence b of the padded batch and each of its
// seqused_k[b] tokens, through the block table, copies the K and V rows of one layer, 2-byte
// elements, to out [padded_sequences, max_tokens, kv_heads, k_dim + v_dim]. All that it reads is on
// the device when it runs.
struct GatherParams {
  StepView view;
  LayerView layer;
  int padded_sequences = 0;
  std::int64_t max_tokens = 0;
  std::uint16_t* out = nullptr;
};

void GatherOnHost(const GatherParams& params);

// The rest needs a GPU; each returns "" or CUDA's error.
const char* GatherOnDevice(const GatherParams& params, Stream stream);
// Keeps the stream busy, so that all behind it is late.
const char* Spin(Stream stream, double milliseconds);
// The same until *flag is not 0. flag: mapped host memory.
const char* SpinUntil(Stream stream, int* flag);

// Work captured once from a stream, to be launched many times.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();
  const char* Capture(Stream stream, const std::function<void()>& work);
  const char* Launch(Stream stream);
  bool captured() const { return graph_ != nullptr; }

 private:
  void* graph_ = nullptr;
};

}  // namespace lariat::testing
