// SPDX-License-Identifier: Apache-2.0
// docs/simulator.md has each formula in words, and one step worked by hand.
#include "lariat/cost_model.h"

#include <algorithm>
#include <cmath>

namespace lariat {
namespace {

// What a class of work asks of the device.
struct Demand {
  double flops = 0.0;
  double bytes = 0.0;
};

double Seconds(const Demand& demand, const Efficiency& reach, const DeviceSpec& device) {
  return std::max(demand.flops / (reach.flops.value * device.flops.value),
                  demand.bytes / (reach.bytes.value * device.bytes_per_s.value));
}

Demand GemmDemand(const ModelCost& model, const StepWork& work) {
  const auto rows = static_cast<double>(work.rows());
  const auto logit_rows = static_cast<double>(work.logit_rows);
  const auto absorbed = static_cast<double>(work.decode_rows);
  const auto expanded = static_cast<double>(work.prefill_context);
  Demand demand;
  demand.flops = 2.0 * (model.gemm_weights * rows + model.up_weights * (absorbed + expanded) +
                        model.head_weights * logit_rows);
  const double weights =
      model.gemm_weights + model.up_weights + (logit_rows > 0 ? model.head_weights : 0.0);
  const double values = model.gemm_row_values * rows + model.absorb_row_values * absorbed +
                        model.expand_token_values * expanded + model.head_row_values * logit_rows;
  demand.bytes = model.weight_bytes * weights + model.value_bytes * values;
  return demand;
}

// Rows choose their experts independently and evenly: one is left out by all rows with probability
// (1 - k/E)^rows.
Demand MoeDemand(const ModelCost& model, double rows) {
  const double share = static_cast<double>(model.experts_per_token) / model.experts;
  const double distinct = model.experts * (1.0 - std::pow(1.0 - share, rows));
  const double visits = rows * model.experts_per_token;
  Demand demand;
  demand.flops = 2.0 * model.moe_layers * model.expert_weights * visits;
  demand.bytes = model.moe_layers * (model.weight_bytes * model.expert_weights * distinct +
                                     model.value_bytes * model.expert_row_values * visits);
  return demand;
}

void AddAttentionDemand(const AttentionCost& cost, std::int64_t rows, std::int64_t context,
                        std::int64_t row_context, Demand& demand) {
  demand.flops += cost.flops * static_cast<double>(row_context);
  demand.bytes += cost.row_bytes * static_cast<double>(rows) +
                  cost.context_bytes * static_cast<double>(context);
}

Demand PrefillAttentionDemand(const ModelCost& model, const StepWork& work) {
  Demand demand;
  AddAttentionDemand(model.prefill_attention, work.prefill_rows, work.prefill_context,
                     work.prefill_row_context, demand);
  for (std::size_t w = 0; w < model.windows.size() && model.windows[w].window.tokens > 0; ++w) {
    const WindowWork& in_window = work.windows[w];
    AddAttentionDemand(model.windows[w].attention, work.prefill_rows, in_window.prefill_context,
                       in_window.prefill_row_context, demand);
  }
  return demand;
}

// One row attends to its whole context, or to all of it that is in the window.
Demand DecodeAttentionDemand(const ModelCost& model, const StepWork& work) {
  Demand demand;
  AddAttentionDemand(model.decode_attention, work.decode_rows, work.decode_context,
                     work.decode_context, demand);
  for (std::size_t w = 0; w < model.windows.size() && model.windows[w].window.tokens > 0; ++w) {
    const std::int64_t context = work.windows[w].decode_context;
    AddAttentionDemand(model.windows[w].attention, work.decode_rows, context, context, demand);
  }
  return demand;
}

Status Refuse(const char* field, std::int64_t value, const std::string& allowed) {
  return InvalidArgument("model: " + std::string(field) + " is " + std::to_string(value) +
                         "; allowed: " + allowed);
}

Status CheckLatents(const MlaDims& mla, const LayerSpec& layer) {
  if (mla.kv_lora_rank < 1) return Refuse("mla.kv_lora_rank", mla.kv_lora_rank, ">= 1");
  if (mla.qk_rope_head_dim < 0) return Refuse("mla.qk_rope_head_dim", mla.qk_rope_head_dim, ">= 0");
  if (mla.qk_nope_head_dim < 0) return Refuse("mla.qk_nope_head_dim", mla.qk_nope_head_dim, ">= 0");
  if (mla.v_head_dim < 1) return Refuse("mla.v_head_dim", mla.v_head_dim, ">= 1");
  if (mla.q_lora_rank < 0) return Refuse("mla.q_lora_rank", mla.q_lora_rank, ">= 0");
  const std::int64_t row = std::int64_t{mla.kv_lora_rank} + mla.qk_rope_head_dim;
  if (layer.k_dim == row) return Status::Ok();
  return Refuse("layers[].k_dim", layer.k_dim,
                std::to_string(row) + ", which is kv_lora_rank + qk_rope_head_dim");
}

Status CheckLayer(const ModelConfig& model, std::size_t index) {
  const LayerSpec& layer = model.layers[index];
  if (layer.kind == LayerKind::kMla) return CheckLatents(model.mla, layer);
  if (layer.kind == LayerKind::kLinear) {
    return Unsupported(
        "model: layers[" + std::to_string(index) +
        "] is linear; allowed: full, sliding, chunked and mla, others are not built");
  }
  if (layer.kind != LayerKind::kFull && layer.window < 1) {
    return Refuse("layers[].window", layer.window, ">= 1 of a layer with a window");
  }
  if (layer.kv_heads < 1) return Refuse("layers[].kv_heads", layer.kv_heads, ">= 1");
  if (layer.k_dim < 1) return Refuse("layers[].k_dim", layer.k_dim, ">= 1");
  if (layer.v_dim < 1) return Refuse("layers[].v_dim", layer.v_dim, ">= 1");
  return Status::Ok();
}

Status CheckModel(const ModelConfig& model) {
  if (model.hidden_size < 1) return Refuse("hidden_size", model.hidden_size, ">= 1");
  if (model.intermediate_size < 1) {
    return Refuse("intermediate_size", model.intermediate_size, ">= 1");
  }
  if (model.vocab_size < 1) return Refuse("vocab_size", model.vocab_size, ">= 1");
  if (model.q_heads < 1) return Refuse("q_heads", model.q_heads, ">= 1");
  if (model.layers.empty()) return Refuse("layers", 0, ">= 1 of them");
  if (model.num_layers != static_cast<std::int64_t>(model.layers.size())) {
    return Refuse("num_layers", model.num_layers,
                  std::to_string(model.layers.size()) + ", as many as layers has");
  }
  if (model.experts < 0) return Refuse("experts", model.experts, ">= 0");
  if (model.experts > 0 &&
      (model.experts_per_token < 1 || model.experts_per_token > model.experts)) {
    return Refuse("experts_per_token", model.experts_per_token,
                  "1.." + std::to_string(model.experts) + ", which is experts");
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (Status s = CheckLayer(model, i); !s.ok()) return s;
  }
  return Status::Ok();
}

// The width of one expert.
double ExpertWidth(const ModelConfig& model) {
  return static_cast<double>(model.moe_intermediate_size > 0 ? model.moe_intermediate_size
                                                             : model.intermediate_size);
}

// Adds one matrix that every row passes through.
void AddGemm(double inputs, double outputs, ModelCost& cost) {
  cost.gemm_weights += inputs * outputs;
  cost.gemm_row_values += inputs + outputs;
}

// A query of q elements and a result of `result` in all heads together; a multiplication and an
// addition per element, for the scores and for the weighted sum.
void AddAttention(double q, double result, double context_bytes, double value_bytes,
                  AttentionCost& cost) {
  cost.flops += 2.0 * q + 2.0 * result;
  cost.row_bytes += (q + result) * value_bytes;
  cost.context_bytes += context_bytes;
}

// The costs of the window of this layer, or null where there is no place for one more.
WindowCost* FindWindow(const LayerSpec& layer, ModelCost& cost) {
  const AttentionWindow window{layer.kind, layer.window};
  for (WindowCost& known : cost.windows) {
    if (known.window.tokens == 0) known.window = window;
    if (known.window == window) return &known;
  }
  return nullptr;
}

Status AddHeadsAttention(const ModelConfig& model, const LayerSpec& layer, double cache_bytes,
                         ModelCost& cost) {
  const double hidden = static_cast<double>(model.hidden_size);
  const double q = static_cast<double>(model.q_heads) * layer.k_dim;       // of a row's query
  const double result = static_cast<double>(model.q_heads) * layer.v_dim;  // of its attention
  const double kv = static_cast<double>(layer.kv_heads) * (layer.k_dim + layer.v_dim);
  AddGemm(hidden, q + kv, cost);
  AddGemm(result, hidden, cost);
  cost.append_row_bytes += kv * (cost.value_bytes + cache_bytes);
  if (layer.kind != LayerKind::kFull) {
    WindowCost* const window = FindWindow(layer, cost);
    if (window == nullptr) {
      return Unsupported("model: layers[].window: the layers have more than " +
                         std::to_string(kMaxWindows) + " different windows");
    }
    AddAttention(q, result, kv * cache_bytes, cost.value_bytes, window->attention);
    return {};
  }
  for (AttentionCost* attention : {&cost.prefill_attention, &cost.decode_attention}) {
    AddAttention(q, result, kv * cache_bytes, cost.value_bytes, *attention);
  }
  return {};
}

void AddLatentAttention(const ModelConfig& model, double cache_bytes, ModelCost& cost) {
  const MlaDims& mla = model.mla;
  const double hidden = static_cast<double>(model.hidden_size);
  const double heads = static_cast<double>(model.q_heads);
  const double rank = mla.kv_lora_rank;
  const double row = rank + mla.qk_rope_head_dim;  // as cached
  const double q = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
  const double result = heads * mla.v_head_dim;
  const double expanded = q + result;  // keys are as wide as queries
  if (mla.q_lora_rank > 0) AddGemm(hidden, mla.q_lora_rank, cost);
  AddGemm(mla.q_lora_rank > 0 ? mla.q_lora_rank : hidden, q, cost);
  AddGemm(hidden, row, cost);
  AddGemm(result, hidden, cost);
  const double nope = heads * mla.qk_nope_head_dim;
  cost.up_weights += rank * (nope + result);
  cost.expand_token_values += row + expanded;
  cost.absorb_row_values += (nope + heads * rank) + (heads * rank + result);
  AddAttention(q, result, expanded * cost.value_bytes, cost.value_bytes, cost.prefill_attention);
  AddAttention(heads * row, heads * rank, row * cache_bytes, cost.value_bytes,
               cost.decode_attention);
  cost.append_row_bytes += row * (cost.value_bytes + cache_bytes);
}

// sparse: the layer's MLP is made of experts.
void AddMlp(const ModelConfig& model, bool sparse, ModelCost& cost) {
  const double hidden = static_cast<double>(model.hidden_size);
  const auto add_gated = [&](double inner) {
    AddGemm(hidden, 2.0 * inner, cost);
    AddGemm(inner, hidden, cost);
  };
  if (!sparse) return add_gated(static_cast<double>(model.intermediate_size));
  AddGemm(hidden, model.experts, cost);                             // the router
  const double shared = model.shared_experts * ExpertWidth(model);  // every row visits these
  if (shared > 0) add_gated(shared);
  cost.moe_layers += 1;
}

}  // namespace

Result<ModelCost> MakeModelCost(const ModelConfig& model, DType cache_dtype, DType weights_dtype) {
  if (Status s = CheckModel(model); !s.ok()) return s;
  const double hidden = static_cast<double>(model.hidden_size);
  const double vocab = static_cast<double>(model.vocab_size);
  ModelCost cost;
  cost.layers = model.num_layers;
  cost.weight_bytes = static_cast<double>(SizeOf(weights_dtype));
  cost.value_bytes = static_cast<double>(SizeOf(weights_dtype));
  cost.head_weights = hidden * vocab;
  cost.head_row_values = hidden + vocab;
  if (model.experts > 0) {
    cost.experts = model.experts;
    cost.experts_per_token = model.experts_per_token;
    const double inner = ExpertWidth(model);
    cost.expert_weights = 3.0 * hidden * inner;
    cost.expert_row_values = (hidden + 2.0 * inner) + (inner + hidden);
  }
  // Which layers are sparse does not matter, only how many; a model that does not say has no
  // others.
  int sparse = model.experts == 0 ? 0 : model.moe_layers == 0 ? model.num_layers : model.moe_layers;
  for (const LayerSpec& layer : model.layers) {
    const auto cache_bytes = static_cast<double>(SizeOf(cache_dtype));
    if (layer.kind == LayerKind::kMla) {
      AddLatentAttention(model, cache_bytes, cost);
    } else if (Status s = AddHeadsAttention(model, layer, cache_bytes, cost); !s.ok()) {
      return s;
    }
    AddMlp(model, sparse-- > 0, cost);
  }
  return cost;
}

StepTime CostStep(const ModelCost& model, const DeviceSpec& device, const StepWork& work) {
  StepTime time;
  const double rows = static_cast<double>(work.rows());
  if (work.rows() > 0) {
    time.gemm_s = Seconds(GemmDemand(model, work), device.gemm, device);
    if (model.experts > 0) time.moe_s = Seconds(MoeDemand(model, rows), device.moe, device);
    time.append_s =
        model.append_row_bytes * rows / (device.append_bytes.value * device.bytes_per_s.value);
    time.overhead_s = device.step_overhead_s.value + model.layers * device.kernels_per_layer.value *
                                                         device.kernel_overhead_s.value;
  }
  time.prefill_attention_s =
      Seconds(PrefillAttentionDemand(model, work), device.prefill_attention, device);
  time.decode_attention_s =
      Seconds(DecodeAttentionDemand(model, work), device.decode_attention, device);
  time.host_copy_s =
      static_cast<double>(work.host_to_device_bytes) / device.host_to_device_bytes_per_s.value +
      static_cast<double>(work.device_to_host_bytes) / device.device_to_host_bytes_per_s.value;
  return time;
}

double StepSeconds(const ModelCost& model, const DeviceSpec& device, const StepWork& work) {
  return CostStep(model, device, work).total_s();
}

}  // namespace lariat
