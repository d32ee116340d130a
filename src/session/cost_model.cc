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

Demand GemmDemand(const ModelCost& model, double rows, double logit_rows) {
  Demand demand;
  demand.flops = 2.0 * (model.gemm_weights * rows + model.head_weights * logit_rows);
  const double weights = model.gemm_weights + (logit_rows > 0 ? model.head_weights : 0.0);
  const double values = model.gemm_row_values * rows + model.head_row_values * logit_rows;
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

Demand AttentionDemand(const ModelCost& model, std::int64_t rows, std::int64_t context,
                       std::int64_t row_context) {
  Demand demand;
  demand.flops = model.attention_flops * static_cast<double>(row_context);
  demand.bytes = model.attention_row_bytes * static_cast<double>(rows) +
                 model.kv_bytes * static_cast<double>(context);
  return demand;
}

Status Refuse(const char* field, std::int64_t value, const std::string& allowed) {
  return InvalidArgument("model: " + std::string(field) + " is " + std::to_string(value) +
                         "; allowed: " + allowed);
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
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kFull) {
      return Unsupported(
          "model: a layer's kind is not full; the cost model knows full attention alone");
    }
    if (layer.kv_heads < 1) return Refuse("layers[].kv_heads", layer.kv_heads, ">= 1");
    if (layer.k_dim < 1) return Refuse("layers[].k_dim", layer.k_dim, ">= 1");
    if (layer.v_dim < 1) return Refuse("layers[].v_dim", layer.v_dim, ">= 1");
  }
  return Status::Ok();
}

// The width of one expert.
double ExpertWidth(const ModelConfig& model) {
  return static_cast<double>(model.moe_intermediate_size > 0 ? model.moe_intermediate_size
                                                             : model.intermediate_size);
}

// Adds what one layer costs. sparse: its MLP is made of experts.
void AddLayer(const ModelConfig& model, const LayerSpec& layer, bool sparse, double cache_bytes,
              ModelCost& cost) {
  const double hidden = static_cast<double>(model.hidden_size);
  const double inner = static_cast<double>(model.intermediate_size);
  const double q = static_cast<double>(model.q_heads) * layer.k_dim;       // of a row's query
  const double result = static_cast<double>(model.q_heads) * layer.v_dim;  // of its attention
  const double kv = static_cast<double>(layer.kv_heads) * (layer.k_dim + layer.v_dim);

  cost.gemm_weights += hidden * (q + kv) + result * hidden;
  cost.gemm_row_values += (hidden + q + kv) + (result + hidden);
  if (!sparse) {
    cost.gemm_weights += 3.0 * hidden * inner;
    cost.gemm_row_values += (hidden + 2.0 * inner) + (inner + hidden);
  } else {
    cost.gemm_weights += hidden * model.experts;  // the router
    cost.gemm_row_values += hidden + model.experts;
    const double shared = model.shared_experts * ExpertWidth(model);  // every row visits these
    if (shared > 0) {
      cost.gemm_weights += 3.0 * hidden * shared;
      cost.gemm_row_values += (hidden + 2.0 * shared) + (shared + hidden);
    }
    cost.moe_layers += 1;
  }

  // A multiplication and an addition per element, for the scores and for the weighted sum.
  cost.attention_flops += 2.0 * q + 2.0 * result;
  cost.attention_row_bytes += (q + result) * cost.value_bytes;
  cost.kv_bytes += kv * cache_bytes;
  cost.append_row_bytes += kv * (cost.value_bytes + cache_bytes);
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
    AddLayer(model, layer, sparse-- > 0, static_cast<double>(SizeOf(cache_dtype)), cost);
  }
  return cost;
}

StepTime CostStep(const ModelCost& model, const DeviceSpec& device, const StepWork& work) {
  StepTime time;
  const double rows = static_cast<double>(work.rows());
  if (work.rows() > 0) {
    const double logit_rows = static_cast<double>(work.logit_rows);
    time.gemm_s = Seconds(GemmDemand(model, rows, logit_rows), device.gemm, device);
    if (model.experts > 0) time.moe_s = Seconds(MoeDemand(model, rows), device.moe, device);
    time.append_s =
        model.append_row_bytes * rows / (device.append_bytes.value * device.bytes_per_s.value);
    time.overhead_s = device.step_overhead_s.value + model.layers * device.kernels_per_layer.value *
                                                         device.kernel_overhead_s.value;
  }
  time.prefill_attention_s = Seconds(
      AttentionDemand(model, work.prefill_rows, work.prefill_context, work.prefill_row_context),
      device.prefill_attention, device);
  // One row attends to its whole context.
  time.decode_attention_s =
      Seconds(AttentionDemand(model, work.decode_rows, work.decode_context, work.decode_context),
              device.decode_attention, device);
  time.host_copy_s =
      static_cast<double>(work.host_to_device_bytes) / device.host_to_device_bytes_per_s.value +
      static_cast<double>(work.device_to_host_bytes) / device.device_to_host_bytes_per_s.value;
  return time;
}

double StepSeconds(const ModelCost& model, const DeviceSpec& device, const StepWork& work) {
  return CostStep(model, device, work).total_s();
}

}  // namespace lariat
