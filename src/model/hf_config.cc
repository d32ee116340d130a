// SPDX-License-Identifier: Apache-2.0
// A model's config.json. What a family leaves out, and its rules, stand in families.cc.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "lariat/model.h"
#include "model/config_fields.h"
#include "model/config_heads.h"
#include "model/config_layers.h"
#include "model/config_rope.h"
#include "model/families.h"
#include "model/parameters.h"

namespace lariat {
namespace {

using model::ConfigReport;
using model::Describe;
using model::Family;
using model::Fields;
using model::HeadReader;
using model::Heads;
using model::Json;
using model::LayerPlan;
using model::RopeReader;

// Nothing real comes near; products of these stay inside 63 bits.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

// The names of one fact, over all families.
constexpr std::array<std::string_view, 4> kLayers = {"num_hidden_layers", "n_layer", "n_layers",
                                                     "num_layers"};
constexpr std::array<std::string_view, 4> kHidden = {"hidden_size", "n_embd", "d_model", "dim"};
constexpr std::array<std::string_view, 3> kHeads = {"num_attention_heads", "n_head", "n_heads"};
constexpr std::array<std::string_view, 5> kPositions = {"max_position_embeddings", "n_positions",
                                                        "seq_length", "n_ctx", "model_max_length"};
constexpr std::array<std::string_view, 4> kIntermediate = {"intermediate_size", "ffn_hidden_size",
                                                           "n_inner", "ffn_dim"};
constexpr std::array<std::string_view, 2> kVocab = {"vocab_size", "padded_vocab_size"};
constexpr std::array<std::string_view, 3> kExperts = {"num_local_experts", "n_routed_experts",
                                                      "num_experts"};
constexpr std::array<std::string_view, 3> kExpertsPerToken = {"num_experts_per_tok",
                                                              "experts_per_token", "top_k_experts"};
constexpr std::array<std::string_view, 3> kTextModels = {"text_config", "llm_config",
                                                         "language_config"};

// Fields that change what a model computes in a way that this reader does not follow.
struct Unread {
  std::string_view name;
  std::string_view what;
};
constexpr std::array<Unread, 3> kUnread = {
    {{"use_dynamic_ntk", "is not applied: the RoPE is read as it was trained"},
     {"use_logn_attn", "is not applied: it scales queries, not what a cache stores"},
     {"num_kv_shared_layers", "is not applied: every layer is counted with a cache of its own"}}};

constexpr std::array<std::string_view, 1> One(std::string_view name) { return {name}; }

// A family of which nothing is known: the common rules.
constexpr Family kUnknownFamily = {.window = model::WindowRule::kAlways};

// Reads one config. Every function may leave an error in the report, upon which Read stops at the
// next step that could stumble over it.
class Reader {
 public:
  Reader(const Fields& top, const Fields& text, ConfigReport& report)
      : top_(top), text_(text), report_(report) {}

  Result<ModelConfig> Read(const std::string& name) {
    model_.name = name;
    FindRow();
    if (report_.ok()) ReadSizes();
    if (report_.ok()) ReadHeads();
    if (report_.ok()) ReadLayers();
    if (report_.ok()) ReadIndexer();
    if (report_.ok()) ReadExperts();
    if (report_.ok()) ReadRest();
    if (!report_.ok()) return report_.status();
    model_.warnings = report_.warnings();
    return std::move(model_);
  }

 private:
  bool IsMla() const { return model_.mla.kv_lora_rank > 0; }

  // The model_type that is shown is the whole model's, the family the text model's.
  void FindRow() {
    std::string type = top_.Text("model_type").value_or("");
    if (type.empty()) {
      const std::vector<std::string> architectures =
          top_.Texts("architectures").value_or(std::vector<std::string>());
      for (const std::string& architecture : architectures) {
        if (type.empty()) type = model::ModelTypeOfArchitecture(architecture);
      }
      if (!type.empty()) report_.Warn("model_type", "missing; " + type + " by architectures");
    }
    const std::string text_type = text_.Text("model_type").value_or(type);
    if (type.empty()) type = text_type;
    if (type.empty()) {
      report_.Fail("model_type", "missing", "it decides the RoPE layout and the defaults");
      return;
    }
    model_.model_type = model::Clean(type, 80);
    family_ = model::FindFamily(text_type);
    if (family_ == nullptr) family_ = model::FindFamily(type);
    if (family_ != nullptr) return;
    family_ = &kUnknownFamily;
    report_.Warn("model_type", model::Quoted(text_type) +
                                   " is not known; the common rules are used (RoPE pairs half, "
                                   "defaults of llama)");
  }

  void ReadSizes() {
    model_.num_layers = static_cast<int>(text_.RequiredInt(kLayers, 1, kMaxLayers));
    if (family_->heads > 0 && text_.NameOf(kHeads).empty()) {
      model_.q_heads = family_->heads;
      text_.Assumed(kHeads[0], family_->heads);
    } else {
      model_.q_heads = static_cast<int>(text_.RequiredInt(kHeads, 1, model::kMaxHeads));
    }
    model_.hidden_size = text_.RequiredInt(kHidden, 1, kMaxWidth);
    model_.max_position_embeddings = text_.Int(kPositions, 1, kMaxPositions).value_or(0);
    if (model_.max_position_embeddings > 0) return;
    model_.max_position_embeddings = family_->max_positions;
    if (family_->max_positions > 0) {
      text_.Assumed(kPositions[0], family_->max_positions);
    } else {
      report_.Warn(text_.Path(kPositions[0]), "missing; the length of a sequence is not limited");
    }
  }

  void ReadHeads() {
    heads_.emplace(text_, *family_, model_.hidden_size, model_.num_layers, model_.q_heads);
    model_.kv_heads = heads_->kv_heads();
    model_.head_dim = heads_->common().k_dim;
    model_.mla = heads_->mla();
  }

  void ReadLayers() {
    const LayerPlan plan = model::PlanLayers(text_, *family_, model_.num_layers, IsMla());
    if (!report_.ok()) return;
    model_.sliding_window = plan.window;
    const bool chunked =
        std::find(plan.kinds.begin(), plan.kinds.end(), LayerKind::kChunked) != plan.kinds.end();
    model_.attention_chunk_size = chunked ? plan.chunk : 0;
    const RopeReader ropes(text_, *family_, model_.max_position_embeddings);
    const bool turning = family_->has_rope && !text_.Bool("alibi").value_or(false);
    // Full layers first: theirs is the main rope.
    for (const LayerKind kind : {LayerKind::kMla, LayerKind::kFull, LayerKind::kChunked,
                                 LayerKind::kSliding, LayerKind::kLinear}) {
      AddLayers(plan, kind, turning, ropes);
      if (!report_.ok()) return;
    }
  }

  void AddLayers(const LayerPlan& plan, LayerKind kind, bool turning, const RopeReader& ropes) {
    model_.layers.resize(plan.kinds.size());
    LayerSpec spec;
    bool begun = false;
    int rope = -1;
    for (std::size_t i = 0; i < plan.kinds.size(); ++i) {
      if (plan.kinds[i] != kind) continue;
      if (!begun) spec = SpecOf(plan, kind);
      begun = true;
      if (turning && plan.turns[i] && kind != LayerKind::kLinear && rope < 0) {
        rope = AddRope(kind == LayerKind::kMla
                           ? ropes.ReadMla(model_.mla.qk_rope_head_dim)
                           : ropes.Read(kind, spec.k_dim, heads_->Of(kind).k_dim_path));
      }
      spec.rope = plan.turns[i] ? rope : -1;
      const std::vector<int>& kv_heads = heads_->kv_by_layer();
      if (!kv_heads.empty() && kind != LayerKind::kLinear) spec.kv_heads = kv_heads[i];
      model_.layers[i] = spec;
    }
  }

  LayerSpec SpecOf(const LayerPlan& plan, LayerKind kind) {
    LayerSpec spec;
    spec.kind = kind;
    if (kind == LayerKind::kLinear) return spec;
    if (kind == LayerKind::kMla) {
      spec.kv_heads = 1;
      spec.k_dim = model_.mla.kv_lora_rank + model_.mla.qk_rope_head_dim;
      return spec;
    }
    const Heads heads = heads_->Of(kind);
    spec.kv_heads = heads.kv_heads;
    spec.k_dim = heads.k_dim;
    spec.v_dim = heads.v_dim;
    if (kind == LayerKind::kSliding) spec.window = ToInt(plan.window);
    if (kind == LayerKind::kChunked) spec.window = ToInt(plan.chunk);
    return spec;
  }

  static int ToInt(std::int64_t value) {
    return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
  }

  int AddRope(RopeSpec spec) {
    const auto found = std::find(model_.ropes.begin(), model_.ropes.end(), spec);
    const auto index = static_cast<int>(found - model_.ropes.begin());
    if (found == model_.ropes.end()) model_.ropes.push_back(std::move(spec));
    return index;
  }

  void ReadIndexer() {
    const auto dim = text_.Int(One("index_head_dim"), 1, model::kMaxHeadDim);
    if (!dim) return;
    IndexerDims& indexer = model_.indexer;
    indexer.head_dim = static_cast<int>(*dim);
    indexer.heads =
        static_cast<int>(text_.Int(One("index_n_heads"), 1, model::kMaxHeads).value_or(0));
    indexer.topk = ToInt(text_.Int(One("index_topk"), 1, kMaxPositions).value_or(0));
    const bool interleaved = text_.Bool("indexer_rope_interleave").value_or(false);
    indexer.style = interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf;
    const auto types = text_.Texts("indexer_types");
    if (types && types->size() != static_cast<std::size_t>(model_.num_layers)) {
      report_.Fail(text_.Path("indexer_types"), std::to_string(types->size()) + " entries",
                   "must have num_hidden_layers (" + std::to_string(model_.num_layers) + ")");
      return;
    }
    // Without a list: all, or the first ones and then every index_topk_freq-th.
    const std::int64_t every = text_.Int(One("index_topk_freq"), 1, kMaxLayers).value_or(1);
    const std::int64_t skip = text_.Int(One("index_skip_topk_offset"), 0, kMaxLayers).value_or(0);
    for (int i = 0; i < model_.num_layers; ++i) {
      const bool own = types ? (*types)[static_cast<std::size_t>(i)] == "full"
                             : std::max<std::int64_t>(i - skip + 1, 0) % every == 0;
      if (own) indexer.layers.push_back(i);
    }
  }

  void ReadExperts() {
    model_.experts = ToInt(text_.Int(kExperts, 1, model::kMaxHeads).value_or(0));
    model_.intermediate_size =
        text_.Int(kIntermediate, 1, kMaxWidth).value_or(0) / family_->mlp_divisor;
    if (model_.intermediate_size == 0 && family_->mlp_matrices == 2) {
      model_.intermediate_size = 4 * model_.hidden_size;  // what these families do without it
    }
    if (model_.experts == 0) return;
    model_.experts_per_token = ToInt(text_.Int(kExpertsPerToken, 1, model_.experts).value_or(1));
    model_.shared_experts =
        ToInt(text_.Int(One("n_shared_experts"), 0, model::kMaxHeads).value_or(0));
    model_.moe_intermediate_size =
        text_.Int(One("moe_intermediate_size"), 1, kMaxWidth).value_or(model_.intermediate_size);
    const std::vector<bool> sparse = model::PlanExperts(text_, model_.num_layers, true);
    model_.moe_layers = static_cast<int>(std::count(sparse.begin(), sparse.end(), true));
  }

  void ReadRest() {
    model_.vocab_size = text_.Int(kVocab, 1, kMaxVocab).value_or(0);
    const auto inner_tied = text_.Bool("tie_word_embeddings");
    const auto outer_tied = top_.Bool("tie_word_embeddings");
    model_.tie_word_embeddings = inner_tied.value_or(outer_tied.value_or(family_->tied));
    ReadDType();
    for (const Unread& unread : kUnread) {
      const Json* const value = text_.Find(unread.name);
      const bool off = value == nullptr || *value == false || *value == 0;
      if (!off)
        report_.Warn(text_.Path(unread.name), Describe(*value) + " " + std::string(unread.what));
    }
    model_.parameters = model::CountParameters(text_, *family_, model_);
  }

  void ReadDType() {
    std::string path;
    std::string name;
    for (const Fields* fields : {&text_, &top_}) {
      for (const std::string_view key : {"dtype", "torch_dtype"}) {
        if (!name.empty()) continue;
        name = fields->Text(key).value_or("");
        path = fields->Path(key);
      }
    }
    if (name.rfind("torch.", 0) == 0) name = name.substr(6);
    model_.dtype = DType::kBF16;
    if (name == "float16" || name == "half") model_.dtype = DType::kFP16;
    if (name == "float32" || name == "float") model_.dtype = DType::kFP32;
    if (name.empty() || name == "bfloat16" || model_.dtype != DType::kBF16) return;
    report_.Warn(path, model::Quoted(name) + " is not a type of a cache; bfloat16 is taken");
  }

  const Fields& top_;
  const Fields& text_;
  ConfigReport& report_;
  const Family* family_ = nullptr;
  ModelConfig model_;
  std::optional<HeadReader> heads_;
};

Result<ModelConfig> ReadConfig(std::string_view json, const std::string& name) {
  const Result<Json> parsed = model::ParseConfigJson(json);
  if (!parsed.ok()) return InvalidArgument(name + ": " + parsed.status().message());
  ConfigReport report(name);
  const Fields top(*parsed, "", report);
  // A model of several parts keeps its language model's config in one of these.
  const std::string_view inner = top.NameOf(kTextModels);
  if (inner.empty()) return Reader(top, top, report).Read(name);
  const Json& text = *top.Find(inner);
  if (!text.is_object()) {
    const std::string what = text.is_string() ? "string" : Describe(text);
    report.Fail(top.Path(inner), what, "must be an object");
    return report.status();
  }
  return Reader(top, Fields(text, std::string(inner), report), report).Read(name);
}

}  // namespace

Result<ModelConfig> ModelConfig::FromHuggingFaceJson(std::string_view json,
                                                     const std::string& name) {
  return ReadConfig(json, model::Clean(name, 400));
}

Result<ModelConfig> ModelConfig::FromHuggingFace(const std::string& path) {
  const Result<std::string> text = model::ReadConfigFile(path);
  if (!text.ok()) return text.status();
  return FromHuggingFaceJson(*text, path);
}

}  // namespace lariat
