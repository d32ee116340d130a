// SPDX-License-Identifier: Apache-2.0
#include "model/config_rope.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lariat::model {
namespace {

constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;
constexpr std::int64_t kMaxRotaryDim = 512;

constexpr std::array<std::string_view, 2> kThetaNames = {"rope_theta", "rotary_emb_base"};
constexpr std::array<std::string_view, 2> kPartialNames = {"partial_rotary_factor", "rotary_pct"};
constexpr std::array<std::string_view, 1> kRotaryDim = {"rotary_dim"};

constexpr std::array<std::string_view, 1> One(std::string_view name) { return {name}; }

// The names of rope_type. mrope is default with sections.
struct TypeName {
  std::string_view name;
  RopeType type;
};
constexpr std::array<TypeName, 9> kTypes = {{{"default", RopeType::kDefault},
                                             {"linear", RopeType::kLinear},
                                             {"dynamic", RopeType::kDynamic},
                                             {"yarn", RopeType::kYarn},
                                             {"longrope", RopeType::kLongrope},
                                             {"su", RopeType::kLongrope},
                                             {"llama3", RopeType::kLlama3},
                                             {"proportional", RopeType::kProportional},
                                             {"mrope", RopeType::kDefault}}};
constexpr std::string_view kAllowedTypes =
    "must be one of default, linear, dynamic, yarn, longrope (or su), llama3, proportional, mrope";

constexpr unsigned Bit(RopeType type) { return 1U << static_cast<unsigned>(type); }
constexpr unsigned kYarnBit = Bit(RopeType::kYarn);
constexpr unsigned kLongBit = Bit(RopeType::kLongrope);
constexpr unsigned kLlamaBit = Bit(RopeType::kLlama3);
constexpr unsigned kDynamicBit = Bit(RopeType::kDynamic);
constexpr unsigned kScaled = kYarnBit | kLongBit | kLlamaBit | kDynamicBit |
                             Bit(RopeType::kLinear) | Bit(RopeType::kProportional);
constexpr unsigned kAny = ~0U;

// The keys of a block, and the types that read them.
struct BlockKey {
  std::string_view name;
  unsigned types;
  bool scaling;  // means nothing in a block without a type
};
constexpr std::array<BlockKey, 18> kBlockKeys = {
    {{"rope_type", kAny, false},
     {"type", kAny, false},
     {"rope_theta", kAny, false},
     {"partial_rotary_factor", kAny, false},
     {"mrope_section", kAny, true},
     {"mrope_interleaved", kAny, false},
     {"factor", kScaled, true},
     {"original_max_position_embeddings", kScaled & ~Bit(RopeType::kLinear), true},
     {"attention_factor", kYarnBit | kLongBit, true},
     {"beta_fast", kYarnBit, true},
     {"beta_slow", kYarnBit, true},
     {"mscale", kYarnBit, true},
     {"mscale_all_dim", kYarnBit, true},
     {"truncate", kYarnBit, true},
     {"low_freq_factor", kLlamaBit, true},
     {"high_freq_factor", kLlamaBit, true},
     {"short_factor", kLongBit, true},
     {"long_factor", kLongBit, true}}};

std::string_view LayerTypeName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSliding: return "sliding_attention";
    case LayerKind::kChunked: return "chunked_attention";
    default: return "full_attention";
  }
}

bool IsLayerType(std::string_view name) {
  return name == "full_attention" || name == "sliding_attention" || name == "chunked_attention" ||
         name == "linear_attention";
}

// A number as a person writes it.
std::string Text(double value) { return Json(value).dump(); }
std::string Short(double value) {
  const bool whole = value == std::floor(value) && std::fabs(value) < 1e15;
  return whole ? std::to_string(static_cast<std::int64_t>(value)) : Text(value);
}

// The type of a block. mrope: it is named so.
RopeType TypeOf(const Fields& block, bool& mrope) {
  const std::optional<std::string> rope_type = block.Text("rope_type");
  const std::optional<std::string> type = block.Text("type");
  mrope = rope_type == "mrope" || type == "mrope";
  const auto find = [&](const std::optional<std::string>& name, std::string_view key) {
    const auto* entry = std::find_if(kTypes.begin(), kTypes.end(),
                                     [&](const TypeName& t) { return name && *name == t.name; });
    if (name && entry == kTypes.end()) {
      block.report().Fail(block.Path(key), Quoted(*name), std::string(kAllowedTypes));
    }
    return entry == kTypes.end() ? RopeType::kDefault : entry->type;
  };
  const RopeType first = find(rope_type, "rope_type");
  const RopeType second = find(type, "type");
  if (rope_type && type && first != second) {
    block.report().Fail(
        block.Self(),
        "rope_type " + Quoted(*rope_type) + " and type " + Quoted(*type) + " disagree",
        "must be one type");
  }
  return rope_type ? first : second;
}

// Every key is one that the type reads, or is named in a warning.
void CheckKeys(const Fields& block, RopeType type) {
  const bool typed = block.Find("rope_type") != nullptr || block.Find("type") != nullptr;
  for (const auto& [name, value] : block.json().items()) {
    const auto* key = std::find_if(kBlockKeys.begin(), kBlockKeys.end(),
                                   [&, &n = name](const BlockKey& k) { return k.name == n; });
    if (key == kBlockKeys.end()) {
      block.report().Warn(block.Path(name), Describe(value) + " is not known, and not applied");
    } else if (!typed && key->scaling && !value.is_null()) {
      block.report().Fail(block.Path("rope_type"), "missing beside " + std::string(key->name),
                          std::string(kAllowedTypes));
    } else if ((key->types & Bit(type)) == 0 && !value.is_null()) {
      block.report().Warn(block.Path(name), Describe(value) + " is not read by rope_type " +
                                                std::string(RopeTypeName(type)));
    }
  }
}

double RequiredNumber(const Fields& block, std::string_view name, RopeType type, Range range,
                      std::string_view allowed) {
  if (block.Find(name) == nullptr) {
    block.report().Fail(
        block.Path(name), block.Has(name) ? "null" : "missing",
        "rope_type " + std::string(RopeTypeName(type)) + " requires " + std::string(allowed));
  }
  return block.Number(One(name), range).value_or(1.0);
}

std::vector<double> RequiredFactors(const Fields& block, std::string_view name, int pairs) {
  if (block.Find(name) == nullptr) {
    block.report().Fail(block.Path(name), block.Has(name) ? "null" : "missing",
                        "rope_type longrope requires a list of numbers > 0");
  }
  std::vector<double> factors = block.PositiveNumbers(name).value_or(std::vector<double>());
  if (factors.size() != static_cast<std::size_t>(pairs)) {
    block.report().Fail(block.Path(name), std::to_string(factors.size()) + " entries",
                        "must have rotary_dim/2 (" + std::to_string(pairs) + ")");
  }
  return factors;
}

}  // namespace

RopeReader::RopeReader(const Fields& config, const Family& family, std::int64_t max_positions)
    : config_(config), family_(family), max_positions_(max_positions) {
  for (const std::string_view name : {"rope_parameters", "rope_scaling"}) {
    const Json* const value = config.Find(name);
    if (value == nullptr) continue;
    if (value->is_string() && value->get_ref<const std::string&>().empty()) continue;
    if (!value->is_object()) {
      config.report().Fail(config.Path(name), Describe(*value), "must be an object or null");
      continue;
    }
    if (value->empty()) continue;
    if (block_ != nullptr) {
      if (*value != *block_) {
        config.report().Warn(config.Path(name), "differs from rope_parameters, which is used");
      }
      continue;
    }
    block_ = value;
    block_name_ = name;
    for (const auto& [key, entry] : value->items()) {
      if (IsLayerType(key) && entry.is_object()) by_kind_ = true;
    }
  }
  if (!by_kind_) return;
  const Fields block(*block_, config.Path(block_name_), config.report());
  for (const auto& [key, entry] : block_->items()) {
    if (!IsLayerType(key)) {
      block.report().Warn(block.Path(key),
                          Describe(entry) + " is not a kind of layer, and not read");
    } else if (!entry.is_object() && !entry.is_null()) {
      block.report().Fail(block.Path(key), Describe(entry), "must be an object or null");
    }
  }
}

std::optional<Fields> RopeReader::BlockOf(LayerKind kind) const {
  if (block_ == nullptr) return {};
  const std::string path = config_.Path(block_name_);
  if (!by_kind_) return Fields(*block_, path, config_.report());
  const Fields kinds(*block_, path, config_.report());
  const std::string_view name = LayerTypeName(kind);
  const Json* const entry = kinds.Find(name);
  if (entry == nullptr) {
    if (!kinds.Has(name)) {
      config_.report().Fail(kinds.Path(name), "missing", "the model has layers of this kind");
    }
    return {};
  }
  static const Json empty = Json::object();
  return Fields(entry->is_object() ? *entry : empty, kinds.Path(name), config_.report());
}

double RopeReader::Theta(const std::optional<Fields>& block) const {
  std::optional<double> theta;
  if (block) theta = block->Number(One("rope_theta"), Range::kPositive);
  if (!theta) theta = config_.Number(kThetaNames, Range::kPositive);
  double value = theta.value_or(family_.theta);
  if (!theta && family_.names[0].empty()) {
    config_.report().Warn(config_.Path("rope_theta"), "missing; 10000 is assumed");
  }
  if (!family_.theta_multiplier.empty()) {
    const std::array<std::string_view, 1> name = One(family_.theta_multiplier);
    value *= config_.Number(name, Range::kPositive).value_or(1.0);
  }
  return value;
}

double RopeReader::Partial(const std::optional<Fields>& block, std::string& path) const {
  const std::string_view name = config_.NameOf(kPartialNames);
  const std::optional<double> outside = config_.Number(kPartialNames, Range::kShare);
  path = config_.Path(name.empty() ? kPartialNames[0] : name);
  if (block) {
    const auto inside = block->Number(One("partial_rotary_factor"), Range::kShare);
    if (inside) {
      path = block->Path("partial_rotary_factor");
      if (outside && *outside != *inside && !by_kind_) {
        config_.report().Warn(config_.Path(name), Text(*outside) + " differs from " + path + ", " +
                                                      Text(*inside) + ", which is used");
      }
      return *inside;
    }
  }
  return outside.value_or(family_.partial);
}

void RopeReader::SetRotaryDim(const std::optional<Fields>& block, int head_dim,
                              const std::string& head_dim_path, RopeSpec& spec) const {
  std::string path;
  const double partial = Partial(block, path);
  std::int64_t dim = static_cast<std::int64_t>(head_dim * partial);
  if (spec.type == RopeType::kProportional) {
    // The pairs of the whole head; the first `partial` of them turn.
    spec.turned_dim = 2 * static_cast<int>(head_dim * partial / 2);
    dim = head_dim;
  } else if (family_.rotary_dim > 0 && config_.NameOf(kPartialNames).empty()) {
    dim = config_.Int(kRotaryDim, 2, head_dim).value_or(std::min(family_.rotary_dim, head_dim));
    path = config_.Path("rotary_dim");
  }
  if (dim % 2 != 0 || dim < 2) {
    const std::string product = std::to_string(head_dim) + " * partial_rotary_factor " +
                                Short(partial) + " = " + Short(head_dim * partial);
    config_.report().Fail(head_dim_path, std::to_string(head_dim),
                          "the rotary dimension must be even (" + product + ")");
    dim = 2;
  }
  if (dim > kMaxRotaryDim) {
    config_.report().Fail(head_dim_path, std::to_string(head_dim),
                          "the rotary dimension must be <= " + std::to_string(kMaxRotaryDim));
    dim = 2;
  }
  spec.rotary_dim = static_cast<int>(dim);
}

std::int64_t RopeReader::OriginalPositions(const Fields& block, const RopeSpec& spec) const {
  constexpr std::string_view kName = "original_max_position_embeddings";
  const std::optional<std::int64_t> inside = block.Int(One(kName), 1, kMaxPositions);
  const std::optional<std::int64_t> outside = config_.Int(One(kName), 1, kMaxPositions);
  // The library stretches dynamic from max_position_embeddings on, whatever the block says.
  const bool dynamic = spec.type == RopeType::kDynamic;
  if (dynamic && inside && *inside != max_positions_) {
    config_.report().Warn(block.Path(kName), std::to_string(*inside) +
                                                 " is not read by rope_type dynamic, which takes "
                                                 "max_position_embeddings");
  }
  if (!dynamic && outside && !by_kind_) {
    if (inside && *inside != *outside) {
      config_.report().Warn(block.Path(kName), std::to_string(*inside) + " differs from " +
                                                   config_.Path(kName) + ", " +
                                                   std::to_string(*outside) + ", which is used");
    }
    return *outside;
  }
  if (!dynamic && inside) return *inside;
  if (max_positions_ == 0) {
    config_.report().Fail(
        config_.Path("max_position_embeddings"), "missing",
        "rope_type " + std::string(RopeTypeName(spec.type)) + " requires an integer >= 1");
  }
  if (spec.type == RopeType::kYarn || spec.type == RopeType::kLlama3) {
    config_.report().Warn(block.Path(kName), "missing; max_position_embeddings, " +
                                                 std::to_string(max_positions_) + ", is taken");
  }
  return std::max<std::int64_t>(max_positions_, 1);
}

void RopeReader::ReadScaling(const Fields& block, RopeSpec& spec) const {
  const RopeType type = spec.type;
  if ((kBlockKeys[7].types & Bit(type)) != 0 && type != RopeType::kProportional) {
    spec.original_max_position_embeddings = OriginalPositions(block, spec);
  }
  const bool optional_factor = type == RopeType::kYarn || type == RopeType::kLongrope;
  if (optional_factor && block.Find("factor") == nullptr) {
    const double ratio = static_cast<double>(max_positions_) /
                         static_cast<double>(spec.original_max_position_embeddings);
    spec.factor = std::max(ratio, 1.0);
  } else if (type == RopeType::kProportional) {
    spec.factor = block.Number(One("factor"), Range::kAtLeastOne).value_or(1.0);
  } else {
    spec.factor = RequiredNumber(block, "factor", type, Range::kAtLeastOne, "a finite number >= 1");
  }
  if (type == RopeType::kYarn || type == RopeType::kLongrope) {
    spec.attention_factor = block.Number(One("attention_factor"), Range::kPositive);
  }
  if (type == RopeType::kYarn) {
    // 0 stands for the default, as in the library.
    const auto turns = [&](std::string_view name, double otherwise) {
      const double value = block.Number(One(name), Range::kNotNegative).value_or(0.0);
      return value == 0.0 ? otherwise : value;
    };
    spec.beta_fast = turns("beta_fast", 32.0);
    spec.beta_slow = turns("beta_slow", 1.0);
    spec.mscale = block.Number(One("mscale"), Range::kNotNegative);
    spec.mscale_all_dim = block.Number(One("mscale_all_dim"), Range::kNotNegative);
    spec.truncate = block.Bool("truncate").value_or(true);
  } else if (type == RopeType::kLlama3) {
    constexpr std::string_view kAllowed = "a finite number > 0";
    spec.low_freq_factor =
        RequiredNumber(block, "low_freq_factor", type, Range::kPositive, kAllowed);
    spec.high_freq_factor =
        RequiredNumber(block, "high_freq_factor", type, Range::kPositive, kAllowed);
  } else if (type == RopeType::kLongrope) {
    spec.short_factor = RequiredFactors(block, "short_factor", spec.rotary_dim / 2);
    spec.long_factor = RequiredFactors(block, "long_factor", spec.rotary_dim / 2);
  }
}

void RopeReader::ReadMrope(const Fields& block, RopeSpec& spec) const {
  constexpr std::string_view kName = "mrope_section";
  const auto sections = block.Ints(kName, 1, kMaxRotaryDim);
  if (!sections) return;
  std::int64_t sum = 0;
  for (const std::int64_t pairs : *sections) {
    spec.mrope_sections.push_back(static_cast<int>(pairs));
    sum += pairs;
  }
  spec.mrope_layout = family_.mrope;
  if (const auto interleaved = block.Bool("mrope_interleaved")) {
    spec.mrope_layout = *interleaved ? MropeLayout::kInterleaved : MropeLayout::kSectioned;
  }
  const int pairs = spec.rotary_dim / 2;
  if (sum != pairs) {
    block.report().Fail(block.Path(kName), "sum " + std::to_string(sum),
                        "must be rotary_dim/2 (" + std::to_string(pairs) + ")");
  }
}

// What passes field by field and is no rule all the same.
void RopeReader::Validate(const std::string& path, const RopeSpec& spec) const {
  if (!config_.report().ok()) return;
  const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
  if (frequencies.ok()) return;
  // The message is "<what>; <allowed>" already.
  const std::string& message = frequencies.status().message();
  const std::size_t cut = message.find("; ");
  config_.report().Fail(path, message.substr(0, cut),
                        cut == std::string::npos ? "must be a RoPE" : message.substr(cut + 2));
}

RopeSpec RopeReader::Finish(const std::optional<Fields>& block, RopeSpec spec) const {
  if (block && spec.type != RopeType::kDefault) ReadScaling(*block, spec);
  if (block) ReadMrope(*block, spec);
  Validate(config_.Path(block_ == nullptr ? "rope_theta" : block_name_), spec);
  return spec;
}

void RopeReader::ReadBlock(const Fields& block, RopeSpec& spec) const {
  bool mrope = false;
  spec.type = TypeOf(block, mrope);
  CheckKeys(block, spec.type);
  if (mrope && block.Find("mrope_section") == nullptr) {
    block.report().Fail(block.Path("mrope_section"), "missing",
                        "rope_type mrope requires a list of integers >= 1");
  }
}

RopeSpec RopeReader::Read(LayerKind kind, int head_dim, const std::string& head_dim_path) const {
  RopeSpec spec;
  spec.style = family_.style;
  const bool local = kind == LayerKind::kSliding && family_.local_plain && !by_kind_;
  const std::optional<Fields> block = BlockOf(local ? LayerKind::kFull : kind);
  if (block) ReadBlock(*block, spec);
  spec.theta = Theta(block);
  if (local) {
    spec.type = RopeType::kDefault;
    if (!family_.local_theta_key.empty()) {
      const std::array<std::string_view, 1> name = One(family_.local_theta_key);
      spec.theta = config_.Number(name, Range::kPositive).value_or(family_.local_theta);
    }
  }
  SetRotaryDim(block, head_dim, head_dim_path, spec);
  return Finish(local ? std::optional<Fields>() : block, std::move(spec));
}

RopeSpec RopeReader::ReadMla(int qk_rope_head_dim) const {
  RopeSpec spec;
  spec.style = family_.style;
  if (family_.style_by_key && !config_.Bool("rope_interleave").value_or(true)) {
    spec.style = RopeStyle::kHalf;
  }
  const std::optional<Fields> block = BlockOf(LayerKind::kFull);
  if (block) ReadBlock(*block, spec);
  spec.theta = Theta(block);
  spec.rotary_dim = qk_rope_head_dim;
  if (qk_rope_head_dim % 2 != 0 || qk_rope_head_dim > kMaxRotaryDim) {
    config_.report().Fail(config_.Path("qk_rope_head_dim"), std::to_string(qk_rope_head_dim),
                          "must be even and <= " + std::to_string(kMaxRotaryDim));
    spec.rotary_dim = 2;
  }
  if (spec.type == RopeType::kProportional) spec.turned_dim = spec.rotary_dim;
  return Finish(block, std::move(spec));
}

}  // namespace lariat::model
