// SPDX-License-Identifier: Apache-2.0
#include "model/config_layers.h"

#include <algorithm>
#include <array>
#include <string>

namespace lariat::model {
namespace {

constexpr std::int64_t kMaxWindow = std::int64_t{1} << 31;
constexpr std::int64_t kMaxInterval = 1 << 20;

constexpr std::array<std::string_view, 1> One(std::string_view name) { return {name}; }

void CheckEntries(const Fields& config, std::string_view name, std::size_t entries, int layers) {
  if (entries == static_cast<std::size_t>(layers)) return;
  config.report().Fail(config.Path(name), std::to_string(entries) + " entries",
                       "must have num_hidden_layers (" + std::to_string(layers) + ")");
}

// layer_types, or nothing.
std::vector<LayerKind> NamedKinds(const Fields& config, int layers) {
  constexpr std::string_view kName = "layer_types";
  std::vector<LayerKind> kinds;
  const auto names = config.Texts(kName);
  if (!names) return kinds;
  CheckEntries(config, kName, names->size(), layers);
  for (const std::string& name : *names) {
    if (name == "full_attention") {
      kinds.push_back(LayerKind::kFull);
    } else if (name == "sliding_attention") {
      kinds.push_back(LayerKind::kSliding);
    } else if (name == "chunked_attention") {
      kinds.push_back(LayerKind::kChunked);
    } else if (name == "linear_attention") {
      kinds.push_back(LayerKind::kLinear);
    } else {
      config.report().Fail(
          config.Path(kName) + "[" + std::to_string(kinds.size()) + "]", Quoted(name),
          "must be full_attention, sliding_attention, chunked_attention or linear_attention");
      return kinds;
    }
  }
  return kinds;
}

// The window, 0 where it is none, off, or not the family's business.
std::int64_t ReadWindow(const Fields& config, const Family& family, bool named_sliding) {
  constexpr std::string_view kName = "sliding_window";
  const auto on = config.Bool("use_sliding_window");
  if (on.has_value() && !*on) return 0;
  if (family.window == WindowRule::kSwitched && !on && !named_sliding) return 0;
  const Json* const value = config.Find(kName);
  if (family.window == WindowRule::kIgnored && !named_sliding) {
    if (value != nullptr) {
      config.report().Warn(config.Path(kName),
                           Describe(*value) + " is not read by this model_type");
    }
    return 0;
  }
  if (value == nullptr) return config.Has(kName) ? 0 : family.window_size;
  if (value->is_number() && value->get<double>() < 1) {
    config.report().Fail(config.Path(kName), Describe(*value),
                         "must be an integer >= 1, or null for none");
    return 1;
  }
  return config.Int(One(kName), 1, kMaxWindow).value_or(1);
}

// True where the pattern says that a layer slides: a number n, all but every n-th; a text, letter
// by letter over and over, L for local.
std::vector<bool> PatternSlides(const Fields& config, const Family& family, int layers) {
  constexpr std::array<std::string_view, 2> kNames = {"sliding_window_pattern",
                                                      "_sliding_window_pattern"};
  std::vector<bool> slides(static_cast<std::size_t>(layers), false);
  const std::string_view name = config.NameOf(kNames);
  const Json* const value = name.empty() ? nullptr : config.Find(name);
  if (value != nullptr && value->is_string()) {
    const std::string letters = value->get<std::string>();
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
      config.report().Fail(config.Path(name), Describe(*value),
                           "must be an integer >= 1, or L for local and G for global layers");
      return slides;
    }
    for (std::size_t i = 0; i < slides.size(); ++i) slides[i] = letters[i % letters.size()] == 'L';
    return slides;
  }
  const std::int64_t pattern = config.Int(kNames, 1, kMaxInterval).value_or(family.window_pattern);
  for (std::size_t i = 0; i < slides.size(); ++i) {
    slides[i] = (static_cast<std::int64_t>(i) + 1) % pattern != 0;
  }
  return slides;
}

std::vector<bool> ListedSlides(const Fields& config, int layers) {
  constexpr std::string_view kName = "hybrid_layer_pattern";
  std::vector<bool> slides(static_cast<std::size_t>(layers), false);
  const auto list = config.Ints(kName, 0, 1);
  if (!list) {
    config.report().Fail(config.Path(kName), config.Has(kName) ? "null" : "missing",
                         "must be a list of 0 (full) and 1 (sliding)");
    return slides;
  }
  CheckEntries(config, kName, list->size(), layers);
  for (std::size_t i = 0; i < std::min(slides.size(), list->size()); ++i) {
    slides[i] = (*list)[i] == 1;
  }
  return slides;
}

std::vector<bool> FamilySlides(const Fields& config, const Family& family, int layers) {
  const auto count = static_cast<std::size_t>(layers);
  const bool on = config.Bool("use_sliding_window").value_or(false);
  const auto from = config.Int(One("max_window_layers"), 0, kMaxInterval);
  switch (family.window) {
    case WindowRule::kIgnored: break;
    case WindowRule::kPattern: return PatternSlides(config, family, layers);
    case WindowRule::kList: return ListedSlides(config, layers);
    case WindowRule::kAlways:
    case WindowRule::kSwitched: {
      std::vector<bool> slides(count, true);
      // The layers below max_window_layers do not slide.
      const std::int64_t otherwise = family.window == WindowRule::kSwitched ? 28 : 0;
      const std::int64_t full = on ? std::min<std::int64_t>(from.value_or(otherwise), layers) : 0;
      std::fill(slides.begin(), slides.begin() + full, false);
      return slides;
    }
  }
  return std::vector<bool>(count, false);
}

// no_rope_layers: 1 where a layer turns its keys. Empty means the default, not none.
std::vector<bool> ListedTurns(const Fields& config, int layers) {
  constexpr std::string_view kName = "no_rope_layers";
  std::vector<bool> turns(static_cast<std::size_t>(layers), true);
  const auto list = config.Ints(kName, 0, 1);
  if (list && !list->empty()) {
    CheckEntries(config, kName, list->size(), layers);
    for (std::size_t i = 0; i < std::min(turns.size(), list->size()); ++i) {
      turns[i] = (*list)[i] == 1;
    }
    return turns;
  }
  const std::int64_t interval =
      config.Int(One("no_rope_layer_interval"), 1, kMaxInterval).value_or(4);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    turns[i] = (static_cast<std::int64_t>(i) + 1) % interval != 0;
  }
  return turns;
}

std::vector<LayerKind> FamilyKinds(const Fields& config, const Family& family,
                                   const LayerPlan& plan) {
  const int layers = static_cast<int>(plan.turns.size());
  std::vector<LayerKind> kinds(plan.turns.size(), LayerKind::kFull);
  if (family.full_interval > 0) {
    const std::int64_t interval =
        config.Int(One("full_attention_interval"), 1, kMaxInterval).value_or(family.full_interval);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if ((static_cast<std::int64_t>(i) + 1) % interval != 0) kinds[i] = LayerKind::kLinear;
    }
  } else if (plan.window > 0) {
    const std::vector<bool> slides = FamilySlides(config, family, layers);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (slides[i]) kinds[i] = LayerKind::kSliding;
    }
  } else if (plan.chunk > 0) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (plan.turns[i]) kinds[i] = LayerKind::kChunked;
    }
  }
  return kinds;
}

// 0: none.
std::int64_t ReadChunk(const Fields& config, const Family& family, bool named) {
  constexpr std::string_view kName = "attention_chunk_size";
  if (family.chunk_size == 0 && !named) return 0;
  if (!config.Has(kName)) return family.chunk_size;
  return config.Int(One(kName), 1, kMaxWindow).value_or(0);
}

void CheckNamed(const Fields& config, LayerKind kind, std::int64_t size, std::string_view name,
                std::vector<LayerKind>& kinds) {
  const auto found = std::find(kinds.begin(), kinds.end(), kind);
  if (found == kinds.end() || size > 0) return;
  if (kind == LayerKind::kSliding && !config.Bool("use_sliding_window").value_or(true)) {
    // Switched off: these layers see everything.
    std::replace(kinds.begin(), kinds.end(), kind, LayerKind::kFull);
    return;
  }
  config.report().Fail(
      config.Path(name), config.Has(name) ? "null" : "missing",
      "layer_types[" + std::to_string(found - kinds.begin()) + "] requires an integer >= 1");
}

}  // namespace

LayerPlan PlanLayers(const Fields& config, const Family& family, int layers, bool mla) {
  LayerPlan plan;
  const auto count = static_cast<std::size_t>(layers);
  plan.turns.assign(count, true);
  std::vector<LayerKind> named = NamedKinds(config, layers);
  if (mla) {
    plan.kinds.assign(count, LayerKind::kMla);
    const auto odd = std::find_if(named.begin(), named.end(),
                                  [](LayerKind kind) { return kind != LayerKind::kFull; });
    if (odd != named.end()) {
      config.report().Warn(config.Path("layer_types"),
                           "entry " + std::to_string(odd - named.begin()) +
                               " is not full_attention; all layers are read as latent attention");
    }
    return plan;
  }
  const auto has = [&](LayerKind kind) {
    return std::find(named.begin(), named.end(), kind) != named.end();
  };
  if (family.nope == NopeRule::kList) plan.turns = ListedTurns(config, layers);
  plan.window = ReadWindow(config, family, has(LayerKind::kSliding));
  plan.chunk = ReadChunk(config, family, has(LayerKind::kChunked));
  if (named.size() == count) {
    CheckNamed(config, LayerKind::kSliding, plan.window, "sliding_window", named);
    CheckNamed(config, LayerKind::kChunked, plan.chunk, "attention_chunk_size", named);
    plan.kinds = std::move(named);
  } else {
    plan.kinds = FamilyKinds(config, family, plan);
  }
  if (family.nope == NopeRule::kFullLayers && plan.window > 0) {
    for (std::size_t i = 0; i < count; ++i) plan.turns[i] = plan.kinds[i] != LayerKind::kFull;
  }
  return plan;
}

std::vector<bool> PlanExperts(const Fields& config, int layers, bool experts) {
  std::vector<bool> sparse(static_cast<std::size_t>(layers), experts);
  if (!experts) return sparse;
  const auto dense_first = config.Int(One("first_k_dense_replace"), 0, kMaxInterval).value_or(0);
  const auto at = [](std::size_t i) { return static_cast<std::int64_t>(i); };
  // moe_layer_freq is a number, or a list of one per layer.
  const Json* const frequency = config.Find("moe_layer_freq");
  if (frequency != nullptr && frequency->is_array()) {
    const auto list = config.Ints("moe_layer_freq", 0, 1);
    CheckEntries(config, "moe_layer_freq", list->size(), layers);
    for (std::size_t i = 0; i < std::min(sparse.size(), list->size()); ++i) {
      sparse[i] = (*list)[i] == 1;
    }
    return sparse;
  }
  constexpr std::array<std::string_view, 3> kSteps = {"moe_layer_freq", "decoder_sparse_step",
                                                      "interleave_moe_layer_step"};
  const std::int64_t step = config.Int(kSteps, 1, kMaxInterval).value_or(1);
  // DeepSeek counts layers from 0, the others from 1.
  const bool from_one = config.Find("moe_layer_freq") == nullptr;
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    sparse[i] = at(i) >= dense_first && (at(i) + (from_one ? 1 : 0)) % step == 0;
  }
  const auto dense = config.Ints("mlp_only_layers", 0, kMaxInterval);
  for (const std::int64_t layer : dense.value_or(std::vector<std::int64_t>())) {
    if (layer < layers) sparse[static_cast<std::size_t>(layer)] = false;
  }
  if (const auto types = config.Texts("mlp_layer_types")) {
    CheckEntries(config, "mlp_layer_types", types->size(), layers);
    for (std::size_t i = 0; i < std::min(sparse.size(), types->size()); ++i) {
      sparse[i] = (*types)[i] == "sparse";
    }
  }
  return sparse;
}

}  // namespace lariat::model
