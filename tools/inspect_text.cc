// SPDX-License-Identifier: Apache-2.0
// The table of `lariat inspect`.
#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "inspect_report.h"
#include "inspect_words.h"

namespace lariat::tools {
namespace {

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char buffer[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return buffer;
}

std::string Line(const char* label, const std::string& text) {
  return Format("%-12s ", label) + text + "\n";
}

// "1.5 GiB": three digits, powers of 1024.
std::string Bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 6; ++unit) value /= 1024;
  return Format("%.4g %s", value, kUnits[unit]);
}

// "0-4,6-10", cut where it is long.
std::string Ranges(const std::vector<int>& layers) {
  constexpr std::size_t kLongest = 40;
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    if (text.size() > kLongest) return text + ",...";
    text.append(text.empty() ? "" : ",").append(std::to_string(layers[i]));
    if (end - i > 1) text.append("-").append(std::to_string(layers[end - 1]));
    i = end;
  }
  return text;
}

std::string Number(std::int64_t value) { return value > 0 ? std::to_string(value) : "-"; }

std::string RopeLine(const RopeSpec& spec) {
  std::string text =
      Format("%s, theta %g, %d elements, pairs %s", std::string(RopeTypeName(spec.type)).c_str(),
             spec.theta, TurningDim(spec), std::string(StyleName(spec.style)).c_str());
  if (spec.type != RopeType::kDefault) text += Format(", factor %g", spec.factor);
  if (spec.original_max_position_embeddings > 0) {
    text += Format(" over %lld", static_cast<long long>(spec.original_max_position_embeddings));
  }
  const double attention = AttentionFactor(spec);
  if (attention != 1.0) text += Format(", attention factor %.6g", attention);
  if (!spec.mrope_sections.empty()) {
    text +=
        spec.mrope_layout == MropeLayout::kInterleaved ? ", interleaved sections" : ", sections";
    for (const int pairs : spec.mrope_sections) text += Format(" %d", pairs);
  }
  return text;
}

std::string HeadsLine(const ModelConfig& model) {
  const std::string queries = Format("%d layers, %d query heads", model.num_layers, model.q_heads);
  if (!IsMla(model)) {
    return queries + Format(", %d KV heads of %d", model.kv_heads, model.head_dim);
  }
  const MlaDims& mla = model.mla;
  return queries + Format(", latents of %d + %d turned; heads of %d + %d, values of %d",
                          mla.kv_lora_rank, mla.qk_rope_head_dim, mla.qk_nope_head_dim,
                          mla.qk_rope_head_dim, mla.v_head_dim);
}

std::string SizeLine(const ModelConfig& model) {
  std::string text = Format(
      "hidden %lld, intermediate %lld, vocabulary %lld", static_cast<long long>(model.hidden_size),
      static_cast<long long>(model.intermediate_size), static_cast<long long>(model.vocab_size));
  if (model.experts > 0) {
    text +=
        Format("; %d of %d experts of %lld in %d layers", model.experts_per_token, model.experts,
               static_cast<long long>(model.moe_intermediate_size), model.moe_layers);
  }
  return text + Format("; %.4g G parameters", static_cast<double>(model.parameters) / 1e9);
}

std::string GroupTable(const ModelConfig& model) {
  std::string text = Format("%-8s %7s %8s %6s %6s %8s %5s  %s\n", "kind", "layers", "KV heads",
                            "K dim", "V dim", "window", "RoPE", "which");
  for (const LayerGroup& group : GroupLayers(model)) {
    const LayerSpec& spec = group.spec;
    text += Format("%-8s %7zu %8s %6s %6s %8s %5s  ", std::string(KindName(spec.kind)).c_str(),
                   group.layers.size(), Number(spec.kv_heads).c_str(), Number(spec.k_dim).c_str(),
                   Number(spec.v_dim).c_str(), Number(spec.window).c_str(),
                   spec.rope < 0 ? "-" : std::to_string(spec.rope).c_str()) +
            Ranges(group.layers) + "\n";
  }
  return text;
}

std::string MemoryTable(const ModelConfig& model, const InspectQuery& query) {
  const MemoryFit fit = FitMemory(model, query);
  if (fit.sequences.empty()) return "No layer stores anything per token.\n";
  std::string text =
      Format("%s hold %lld blocks of %d tokens (%s each): %lld tokens\n",
             Bytes(*query.memory).c_str(), static_cast<long long>(fit.blocks), fit.block_size,
             Bytes(fit.bytes_per_block).c_str(), static_cast<long long>(fit.tokens));
  text += Format("%12s %12s\n", "length", "sequences");
  for (std::size_t i = 0; i < fit.lengths.size(); ++i) {
    text += Format("%12lld %12lld\n", static_cast<long long>(fit.lengths[i]),
                   static_cast<long long>(fit.sequences[i]));
  }
  if (model.sliding_window == 0) return text;
  text += fit.counts_windows
              ? "A block holds one group of layers; tokens do not count windows, sequences do.\n"
              : "Windows are not counted: sliding layers may need less.\n";
  return text;
}

std::string RowTable(const RopeRows& rows) {
  std::string text = Format("RoPE 0: attention factor %.17g, softmax scale factor %.17g\n",
                            rows.frequencies.attention_factor, rows.softmax_scale_factor);
  text += Format("%5s %23s", "pair", "inv_freq");
  for (const std::int64_t position : rows.positions) {
    const std::string at = std::to_string(position);
    text += Format(" %15s %15s", ("cos " + at).c_str(), ("sin " + at).c_str());
  }
  const std::size_t pairs = rows.frequencies.inv_freq.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    text += Format("\n%5zu %23.17g", i, rows.frequencies.inv_freq[i]);
    for (std::size_t p = 0; p < rows.positions.size(); ++p) {
      text += Format(" %15.9g %15.9g", static_cast<double>(rows.cos[p * pairs + i]),
                     static_cast<double>(rows.sin[p * pairs + i]));
    }
  }
  return text + "\n";
}

}  // namespace

std::string InspectText(const ModelConfig& model, const InspectQuery& query,
                        const std::optional<RopeRows>& rope) {
  const std::int64_t bytes = KvBytesPerToken(model, query.dtype);
  std::string text = Line("model", model.name + " (" + model.model_type + ")");
  text += Line("attention", std::string(IsMla(model) ? "MLA, " : "GQA, ") + HeadsLine(model));
  text += Line("size", SizeLine(model));
  text += Line("positions", model.max_position_embeddings > 0
                                ? std::to_string(model.max_position_embeddings)
                                : "not limited by the config");
  for (std::size_t i = 0; i < model.ropes.size(); ++i) {
    text += Line(Format("RoPE %zu", i).c_str(), RopeLine(model.ropes[i]));
  }
  if (model.ropes.empty()) text += Line("RoPE", "none");
  if (model.indexer.head_dim > 0) {
    text += Line("indexer", Format("keys of %d in %zu layers, not counted below",
                                   model.indexer.head_dim, model.indexer.layers.size()));
  }
  text += Line("KV per token",
               Format("%lld bytes (%s) in %s", static_cast<long long>(bytes), Bytes(bytes).c_str(),
                      std::string(DTypeName(query.dtype)).c_str()));
  text.append("\n").append(GroupTable(model));
  if (query.memory) text.append("\n").append(MemoryTable(model, query));
  if (rope) text.append("\n").append(RowTable(*rope));
  return text;
}

std::string PresetsText() {
  std::string text = Format("%-20s %-14s %-5s %7s %14s %10s\n", "name", "model_type", "", "layers",
                            "KV B/token bf16", "positions");
  for (const std::string& name : ModelPresetNames()) {
    const Result<ModelConfig> model = ModelPreset(name);
    if (!model.ok()) continue;  // never: a test reads them all
    text += Format("%-20s %-14s %-5s %7d %15lld %10lld\n", name.c_str(), model->model_type.c_str(),
                   IsMla(*model) ? "mla" : "gqa", model->num_layers,
                   static_cast<long long>(KvBytesPerToken(*model, DType::kBF16)),
                   static_cast<long long>(model->max_position_embeddings));
  }
  return text;
}

}  // namespace lariat::tools
