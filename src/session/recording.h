// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "lariat/status.h"

namespace lariat::session {

// K or V of one layer of a recording.
struct RecordedPart {
  std::string name;            // of the cache's tensor: "l0.cache_k"
  std::vector<double> input;   // [B, T, kv_heads, dim]: what RoPE turns, or raw values
  std::vector<double> cached;  // [B, kv_heads, kept, dim]; empty: not compared
  bool exact = false;          // both are recorded in fp32, so what is only moved is equal
  bool compared() const { return !cached.empty(); }
};

struct RecordedLayer {
  int layer = 0;          // of the model
  LayerSpec spec;         // the model's
  std::int64_t kept = 0;  // tokens in `cached`: the last ones
  RecordedPart k, v;
};

// What a model computed, checked against its config.
struct Recording {
  std::string model;
  std::int64_t batch = 0;             // B, >= 1
  std::int64_t prefill = 0;           // tokens of the first call, >= 1
  std::int64_t tokens = 0;            // T, >= 2
  std::vector<RopeSpec> ropes;        // the model's
  std::vector<RecordedLayer> layers;  // those with something to compare
  std::vector<std::string> missing;   // tensors that should be compared and cannot be
  std::vector<std::string> reasons;   // why
};

// Errors: kInvalidArgument, kCorruptData (see VerifyRecording).
Result<Recording> LoadRecording(const std::string& path, const ModelConfig& model);

}  // namespace lariat::session
