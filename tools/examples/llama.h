// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lariat/rope.h"
#include "lariat/session.h"
#include "lariat/status.h"

// A Llama-architecture model on the CPU, in fp32: what the server runs. Part of the example, not of
// the library.

namespace lariat::examples {

struct LlamaShape {
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocab = 0;
  std::int64_t max_length = 0;  // tokens of a sequence
  float norm_eps = 1e-5F;
  RopeSpec rope = {};
};

// Matrices are [out, in], row-major, as checkpoints have them.
struct LlamaLayer {
  std::vector<float> attention_norm, mlp_norm;  // [hidden]
  std::vector<float> q, k, v;                   // [heads * head_dim, hidden]
  std::vector<float> o;                         // [hidden, q_heads * head_dim]
  std::vector<float> gate, up;                  // [intermediate, hidden]
  std::vector<float> down;                      // [hidden, intermediate]
};

struct Llama {
  std::string name = {};
  LlamaShape shape = {};
  std::vector<float> embedding = {};  // [vocab, hidden]
  std::vector<LlamaLayer> layers = {};
  std::vector<float> norm = {};            // [hidden]
  std::vector<float> head = {};            // [vocab, hidden]; empty: the embedding
  std::vector<std::string> warnings = {};  // of config.json
};

// Reads config.json and model.safetensors (or all model-*.safetensors) of a folder.
// Errors: kInvalidArgument, kUnsupported (not of this architecture), kCorruptData.
Result<Llama> LoadLlama(const std::string& folder);

// A model of 2 layers and 256 tokens with weights drawn by the seed. It says nothing of meaning,
// but each answer depends on the whole prompt.
Llama TinyLlama(std::uint64_t seed);

// Runs the model for a Session, one step at a time. All that is worked out for a row depends on
// that row and the cached rows before it alone, in a fixed order: so an answer is the same whatever
// else is in the batch, wherever the prompt was split, and whether its rows were computed, found
// cached or computed again after a preemption.
class LlamaExecutor final : public Executor {
 public:
  // Told of each token; answers whether it ends the request with that tag.
  using Sampled = std::function<bool(std::uint64_t tag, TokenId token, float logprob)>;
  // model: must outlive it.
  LlamaExecutor(const Llama& model, Sampled sampled);

  Status Run(const ExecutorStep& step, ExecutorOutput& output) override;

 private:
  void Attend(const ExecutorStep& step, const LayerView& view);
  TokenId Sample(std::int64_t row, float& logprob);

  const Llama& model_;
  Sampled sampled_;
  // [rows, ...], grown to the largest step.
  std::vector<float> hidden_, normed_, q_, k_, v_, attended_, gate_, up_;
  std::vector<float> scores_;  // of one row and head
  std::vector<float> logits_;
};

}  // namespace lariat::examples
