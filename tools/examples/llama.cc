// SPDX-License-Identifier: Apache-2.0
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "lariat/kv_cache.h"

namespace lariat::examples {

namespace {

// Sixteen sums side by side, then one after another: always in this order, and the compiler may
// keep the sixteen in vector registers.
float Dot(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (std::int64_t lane = 0; i + lane < n; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

// out[t] (+)= weights * x[t]. Each weight row is read once for all rows of the step.
void Multiply(const std::vector<float>& weights, const std::vector<float>& x, std::int64_t rows,
              std::int64_t width_out, std::int64_t width_in, std::vector<float>& out,
              bool add = false) {
  for (std::int64_t o = 0; o < width_out; ++o) {
    const float* const weight = weights.data() + o * width_in;
    for (std::int64_t t = 0; t < rows; ++t) {
      const float value = Dot(weight, x.data() + t * width_in, width_in);
      float& place = out[static_cast<std::size_t>(t * width_out + o)];
      place = add ? place + value : value;
    }
  }
}

void Normalise(const float* x, const std::vector<float>& weight, float eps, float* out) {
  const std::int64_t n = std::ssize(weight);
  const float scale = 1.0F / std::sqrt(Dot(x, x, n) / static_cast<float>(n) + eps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[static_cast<std::size_t>(i)];
}

void NormaliseRows(const std::vector<float>& x, const std::vector<float>& weight, float eps,
                   std::int64_t rows, std::vector<float>& out) {
  const std::int64_t n = std::ssize(weight);
  for (std::int64_t t = 0; t < rows; ++t) {
    Normalise(x.data() + t * n, weight, eps, out.data() + t * n);
  }
}

void Grow(std::vector<float>& buffer, std::int64_t size) {
  if (std::ssize(buffer) < size) buffer.resize(static_cast<std::size_t>(size));
}

}  // namespace

LlamaExecutor::LlamaExecutor(const Llama& model, Sampled sampled)
    : model_(model), sampled_(std::move(sampled)) {}

// The attention kernel: one query row and head at a time over the sequence's blocks. It finds its
// way as any kernel does, by the arrays of StepView and the strides of LayerView.
void LlamaExecutor::Attend(const ExecutorStep& step, const LayerView& view) {
  const StepView arrays = step.cache.View(view.group);
  const LlamaShape& shape = model_.shape;
  const int group = shape.q_heads / view.kv_heads;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(view.k_dim)));
  const auto* const keys = static_cast<const float*>(view.k);
  const auto* const values = static_cast<const float*>(view.v);
  for (std::int64_t s = 0; s < std::ssize(step.items); ++s) {
    const std::int32_t* const blocks = arrays.block_table + s * arrays.block_table_stride;
    const std::int64_t rows = arrays.cu_seqlens[s + 1] - arrays.cu_seqlens[s];
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t row = arrays.cu_seqlens[s] + r;
      // Causal: of the tokens that are there after this step, those up to the row's own.
      const std::int64_t length = arrays.seqused_k[s] - rows + r + 1;
      Grow(scores_, length);
      for (int head = 0; head < shape.q_heads; ++head) {
        const std::int64_t kv_head = head / group;
        const float* const query = q_.data() + (row * shape.q_heads + head) * view.k_dim;
        float largest = -INFINITY;
        for (std::int64_t p = 0; p < length; ++p) {
          const float* const key = keys + blocks[p / view.block_size] * view.k_block_stride +
                                   p % view.block_size * view.k_row_stride +
                                   kv_head * view.k_head_stride;
          const float score = Dot(query, key, view.k_dim) * scale;
          scores_[static_cast<std::size_t>(p)] = score;
          largest = std::max(largest, score);
        }
        float* const out = attended_.data() + (row * shape.q_heads + head) * view.v_dim;
        std::fill(out, out + view.v_dim, 0.0F);
        float total = 0;
        for (std::int64_t p = 0; p < length; ++p) {
          const float weight = std::exp(scores_[static_cast<std::size_t>(p)] - largest);
          const float* const value = values + blocks[p / view.block_size] * view.v_block_stride +
                                     p % view.block_size * view.v_row_stride +
                                     kv_head * view.v_head_stride;
          total += weight;
          for (int i = 0; i < view.v_dim; ++i) out[i] += weight * value[i];
        }
        for (int i = 0; i < view.v_dim; ++i) out[i] /= total;
      }
    }
  }
}

// Greedy; of equal logits the lowest token.
TokenId LlamaExecutor::Sample(std::int64_t row, float& logprob) {
  const LlamaShape& shape = model_.shape;
  Normalise(hidden_.data() + row * shape.hidden, model_.norm, shape.norm_eps, normed_.data());
  Grow(logits_, shape.vocab);
  Multiply(model_.head.empty() ? model_.embedding : model_.head, normed_, 1, shape.vocab,
           shape.hidden, logits_);
  const auto end = logits_.begin() + shape.vocab;
  const auto best = std::max_element(logits_.begin(), end);
  float total = 0;
  for (auto logit = logits_.begin(); logit != end; ++logit) total += std::exp(*logit - *best);
  logprob = -std::log(total);
  return static_cast<TokenId>(best - logits_.begin());
}

Status LlamaExecutor::Run(const ExecutorStep& step, ExecutorOutput& output) {
  const auto begin = std::chrono::steady_clock::now();
  const LlamaShape& shape = model_.shape;
  const std::int64_t rows = step.step.num_tokens();
  const std::int64_t q_width = static_cast<std::int64_t>(shape.q_heads) * shape.head_dim;
  const std::int64_t kv_width = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
  for (std::vector<float>* buffer : {&hidden_, &normed_}) Grow(*buffer, rows * shape.hidden);
  for (std::vector<float>* buffer : {&q_, &attended_}) Grow(*buffer, rows * q_width);
  for (std::vector<float>* buffer : {&k_, &v_}) Grow(*buffer, rows * kv_width);
  for (std::vector<float>* buffer : {&gate_, &up_}) Grow(*buffer, rows * shape.intermediate);

  for (const ExecutorItem& item : step.items) {
    float* out = hidden_.data() + item.first_row * shape.hidden;
    for (const TokenId token : item.tokens) {
      out = std::copy_n(model_.embedding.data() + token * shape.hidden, shape.hidden, out);
    }
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    const LlamaLayer& weights = model_.layers[static_cast<std::size_t>(layer)];
    NormaliseRows(hidden_, weights.attention_norm, shape.norm_eps, rows, normed_);
    Multiply(weights.q, normed_, rows, q_width, shape.hidden, q_);
    Multiply(weights.k, normed_, rows, kv_width, shape.hidden, k_);
    Multiply(weights.v, normed_, rows, kv_width, shape.hidden, v_);
    // Turns q in place and k on its way into the cache, by each row's position.
    const AppendInputs inputs = {.dtype = DType::kFP32,
                                 .k = k_.data(),
                                 .v = v_.data(),
                                 .q = q_.data(),
                                 .q_heads = shape.q_heads};
    const Status appended = step.cache.Append(step.step, layer, inputs, step.stream);
    if (!appended.ok()) return appended;
    const Result<LayerView> view = step.cache.Layer(layer);
    if (!view.ok()) return view.status();
    Attend(step, *view);
    Multiply(weights.o, attended_, rows, shape.hidden, q_width, hidden_, true);

    NormaliseRows(hidden_, weights.mlp_norm, shape.norm_eps, rows, normed_);
    Multiply(weights.gate, normed_, rows, shape.intermediate, shape.hidden, gate_);
    Multiply(weights.up, normed_, rows, shape.intermediate, shape.hidden, up_);
    for (std::int64_t i = 0; i < rows * shape.intermediate; ++i) {
      float& gate = gate_[static_cast<std::size_t>(i)];
      gate = gate / (1.0F + std::exp(-gate)) * up_[static_cast<std::size_t>(i)];
    }
    Multiply(weights.down, gate_, rows, shape.hidden, shape.intermediate, hidden_, true);
  }
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const ExecutorItem& item = step.items[i];
    if (!item.samples) continue;  // in a prompt's middle
    float logprob = 0;
    output.next[i] = Sample(item.first_row + item.count - 1, logprob);
    output.stop[i] = sampled_(item.tag, output.next[i], logprob) ? 1 : 0;
  }
  output.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return Status::Ok();
}

}  // namespace lariat::examples
