// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "lariat/status.h"

namespace lariat::session {

// One recorded tensor that is compared, and what it is made from.
struct RecordedPart {
  std::string name;            // "l0.cache_k"
  std::vector<double> input;   // [B, T, heads, dim]: what RoPE turns, or raw values; MLA: empty
  std::vector<double> cached;  // [B, heads, kept, dim]; empty: not compared
  bool exact = false;          // both are recorded in fp32, so what is only moved is equal
  bool compared() const { return !cached.empty(); }
};

// What makes the rows of an MLA layer, and what attends to them. k is the normed latent, v the
// turned k_pe.
struct RecordedMla {
  MlaDims dims;                  // the model's
  std::int64_t hidden_size = 0;  // the model's
  int heads = 0;                 // of queries

  // Rows from hidden states: all three are there, or hidden is empty. Given rows need norm too.
  std::vector<double> hidden;  // [B, T, hidden_size]
  std::vector<double> w_down;  // [rank + rope, hidden_size]
  std::vector<double> norm;    // [rank]

  // Given rows; both empty: none are given. What one of them lacks is stored as zeros.
  std::vector<double> c_kv;  // [B, T, rank], before the norm
  std::vector<double> k_pe;  // [B, T, rope], before RoPE
  bool normed = false;       // c_kv is what came out of the norm; norm is empty

  // Attention to keys and values that are made from the rows; not compared: all empty.
  std::vector<double> w_kv_b;  // [heads * (nope + v), rank]
  std::vector<double> q;       // [B, T, heads, nope + rope], before RoPE
  RecordedPart attn_out;       // cached: [B, heads, T, v]

  bool from_hidden() const { return !hidden.empty(); }
  bool from_rows() const { return !c_kv.empty() || !k_pe.empty(); }
};

struct RecordedLayer {
  int layer = 0;          // of the model
  LayerSpec spec;         // the model's
  std::int64_t kept = 0;  // tokens in `cached`: the last ones
  RecordedPart k, v;
  std::optional<RecordedMla> mla;
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

  void Miss(const std::string& name, const std::string& reason);
};

// Errors: kInvalidArgument, kCorruptData (see VerifyRecording).
Result<Recording> LoadRecording(const std::string& path, const ModelConfig& model);

}  // namespace lariat::session
