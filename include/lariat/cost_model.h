// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "lariat/status.h"
#include "lariat/types.h"

// How long a step would take on a device that need not be there: a roofline per class of work. Part
// of lariat::session. docs/simulator.md gives the formulas and works one step by hand.

namespace lariat {

// A number and where it comes from.
struct Figure {
  double value = 0.0;
  std::string source;  // never empty in a loaded DeviceSpec
};

// Which share of the device's peaks one class of work reaches, each in (0, 1].
struct Efficiency {
  Figure flops;  // e_f, of DeviceSpec::flops
  Figure bytes;  // e_b, of DeviceSpec::bytes_per_s
};

// One accelerator, as a device file describes it.
struct DeviceSpec {
  std::string name;  // the file's "name"

  Figure flops;         // F: peak FLOP/s of dense 16-bit matrix products
  Figure bytes_per_s;   // B: peak memory bandwidth
  Figure memory_bytes;  // device memory

  Efficiency gemm;
  Efficiency moe;
  Efficiency prefill_attention;
  Efficiency decode_attention;
  Figure append_bytes;  // e_b of storing rows, which needs no FLOPs worth counting

  Figure step_overhead_s;    // once a step: launching it and hearing that it has ended
  Figure kernel_overhead_s;  // once a kernel: what an empty one costs in a captured graph
  Figure kernels_per_layer;  // kernels in one layer

  Figure host_to_device_bytes_per_s;  // both of pinned memory, in large pieces
  Figure device_to_host_bytes_per_s;
};

// Loads a device: one of DeviceNames(), which are built in, or the path of a JSON file of the same
// form (docs/simulator.md). A name wins over a file called the same; "./h200" is the file.
// Errors: kInvalidArgument: neither such a name nor a file that can be read; not JSON; a key that
//   is missing, unknown or out of range, or a number without a source. The message names the file,
//   the key, its value and what is allowed.
Result<DeviceSpec> LoadDevice(const std::string& name_or_path);

// The devices that are built in, sorted: "h200".
std::vector<std::string> DeviceNames();

// Attention of one kind, over all layers.
struct AttentionCost {
  double flops = 0.0;          // per row and token of context: scores and weighted sum
  double row_bytes = 0.0;      // per row: the query read, the result written
  double context_bytes = 0.0;  // per token of context: keys and values read, or latents
};

// How far back the layers of one kind and window read.
struct AttentionWindow {
  LayerKind kind = LayerKind::kFull;  // kSliding or kChunked where it is one
  std::int64_t tokens = 0;            // LayerSpec::window

  // The first token that the row at `position` attends to.
  std::int64_t First(std::int64_t position) const {
    return kind == LayerKind::kChunked ? position - position % tokens
                                       : std::max<std::int64_t>(0, position - tokens + 1);
  }
  // The tokens that rows [0, rows) of a sequence attend to, themselves included, summed.
  std::int64_t Sum(std::int64_t rows) const {
    const auto triangle = [](std::int64_t n) { return n * (n + 1) / 2; };
    if (kind == LayerKind::kChunked)
      return rows / tokens * triangle(tokens) + triangle(rows % tokens);
    return rows <= tokens ? triangle(rows) : triangle(tokens) + (rows - tokens) * tokens;
  }
  friend bool operator==(const AttentionWindow&, const AttentionWindow&) = default;
};

// Attention of the layers of one kind and window.
struct WindowCost {
  AttentionWindow window;
  AttentionCost attention;
};

// Different windows that the layers of one model may have.
inline constexpr std::size_t kMaxWindows = 4;

// What a model costs per row, per token of context and per step, summed over its layers. A value;
// made once by MakeModelCost, or by hand.
struct ModelCost {
  int layers = 0;

  // GEMMs of all layers, experts apart.
  double gemm_weights = 0.0;     // elements, each read once a step and used once per row
  double gemm_row_values = 0.0;  // elements that a row reads and writes around these GEMMs

  // The output projection, computed only for rows whose logits are wanted.
  double head_weights = 0.0;
  double head_row_values = 0.0;

  // Routed experts; layers, weights and values are those of the experts alone.
  int moe_layers = 0;
  int experts = 0;                 // per MoE layer; 0: dense
  int experts_per_token = 0;       // 1..experts
  double expert_weights = 0.0;     // elements of one expert
  double expert_row_values = 0.0;  // elements that one row reads and writes at one expert

  // MLA's up-projection, W_UK and W_UV, counted with the GEMMs. Each token in the context of a
  // sequence that prefills is expanded by it to keys and values of all heads; one that decodes
  // attends to latents, and its row's query and result pass through it instead (absorbed).
  double up_weights = 0.0;           // elements, read once a step
  double expand_token_values = 0.0;  // elements that a token expanded reads and writes
  double absorb_row_values = 0.0;    // elements that a row reads and writes

  AttentionCost prefill_attention;  // of layers without a window; the two differ for MLA alone
  AttentionCost decode_attention;
  std::array<WindowCost, kMaxWindows> windows;  // of the others; tokens 0: no more
  double append_row_bytes = 0.0;  // per row: K and V, or its latent, read as they come and written

  double weight_bytes = 2.0;  // bytes of one weight element
  double value_bytes = 2.0;   // bytes of one activation
};

// The costs of `model` with its cache in cache_dtype and its weights and activations in
// weights_dtype, unsharded.
// Errors: kInvalidArgument: a field of the model that is missing (<= 0) or contradicts another,
//   named. kUnsupported: a layer of kind kLinear, or more than kMaxWindows different windows.
Result<ModelCost> MakeModelCost(const ModelConfig& model, DType cache_dtype,
                                DType weights_dtype = DType::kBF16);

// What layers with one window see of a step: as the fields of the same names in StepWork, of the
// tokens in their window.
struct WindowWork {
  AttentionWindow window;  // tokens 0: none
  std::int64_t prefill_context = 0;
  std::int64_t prefill_row_context = 0;
  std::int64_t decode_context = 0;
};

// The work of one step, as sums over its sequences: adding a sequence costs a few additions and
// costing a step nothing that depends on their number.
struct StepWork {
  StepWork() = default;
  // For a model whose layers have windows: these have to be known when sequences are added.
  explicit StepWork(const ModelCost& model) {
    for (std::size_t w = 0; w < windows.size(); ++w) windows[w].window = model.windows[w].window;
  }

  std::int64_t prefill_rows = 0;          // rows of sequences with more than one row
  std::int64_t prefill_context = 0;       // sum over those sequences of their length after the step
  std::int64_t prefill_row_context = 0;   // sum over those rows of the tokens each attends to
  std::int64_t decode_rows = 0;           // sequences with one row
  std::int64_t decode_context = 0;        // sum over them of their length after the step
  std::int64_t logit_rows = 0;            // rows whose logits are wanted
  std::int64_t host_to_device_bytes = 0;  // copies that the step waits for
  std::int64_t device_to_host_bytes = 0;
  std::array<WindowWork, kMaxWindows> windows;

  // Adds a sequence that computes `rows` rows and is `context` tokens long after them; row i of
  // them attends to itself and the context - rows + i tokens before it. `logits`: its last row's
  // logits are wanted (it decodes, or its prompt ends in this step). Rows 0 adds nothing.
  // REQUIRES: 0 <= rows <= context <= 2^31.
  void Add(std::int64_t rows, std::int64_t context, bool logits) {
    if (rows == 1) {
      decode_rows += 1;
      decode_context += context;
    } else if (rows > 1) {
      prefill_rows += rows;
      prefill_context += context;
      prefill_row_context += rows * context - rows * (rows - 1) / 2;
    }
    if (rows > 0 && logits) logit_rows += 1;
    for (WindowWork& work : windows) {
      if (work.window.tokens == 0 || rows == 0) break;
      const std::int64_t read = context - work.window.First(context - rows);
      if (rows == 1) {
        work.decode_context += read;
      } else {
        work.prefill_context += read;
        work.prefill_row_context += work.window.Sum(context) - work.window.Sum(context - rows);
      }
    }
  }

  std::int64_t rows() const { return prefill_rows + decode_rows; }
};

// Seconds of a step by class. A class without work takes none.
struct StepTime {
  double gemm_s = 0.0;
  double moe_s = 0.0;
  double prefill_attention_s = 0.0;
  double decode_attention_s = 0.0;
  double append_s = 0.0;
  double host_copy_s = 0.0;
  double overhead_s = 0.0;

  double total_s() const {
    return gemm_s + moe_s + prefill_attention_s + decode_attention_s + append_s + host_copy_s +
           overhead_s;
  }
};

// The time of a step: per class the greater of FLOPs / (e_f F) and bytes / (e_b B), plus the copies
// and the overhead. The same numbers give the same bits on every machine with IEEE doubles, but for
// MoE models, which need pow. Takes well under a microsecond and allocates nothing.
// REQUIRES: a loaded device, counts >= 0; of a model with windows, work made for it.
StepTime CostStep(const ModelCost& model, const DeviceSpec& device, const StepWork& work);

// CostStep(...).total_s().
double StepSeconds(const ModelCost& model, const DeviceSpec& device, const StepWork& work);

}  // namespace lariat
