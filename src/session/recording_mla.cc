// SPDX-License-Identifier: Apache-2.0
// MLA layers of a recording: what makes their rows, and the attention over them.
#include <algorithm>

#include "session/recording_file.h"

namespace lariat::session {
namespace {

// [B, T, heads, dim] to [B, heads, T, dim].
std::vector<double> HeadsFirst(const std::vector<double>& values, std::int64_t batch,
                               std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  std::vector<double> result(values.size());
  auto from = values.begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < heads; ++h, from += dim) {
        const std::int64_t row = (b * heads + h) * tokens + t;
        std::copy(from, from + dim, result.begin() + row * dim);
      }
    }
  }
  return result;
}

class MlaLoader {
 public:
  MlaLoader(RecordingFile& file, const ModelConfig& model, Recording& recording,
            RecordedLayer& layer)
      : file_(file),
        model_(model),
        recording_(recording),
        layer_(layer),
        mla_(layer.mla.emplace()),
        prefix_(std::string("l").append(std::to_string(layer.layer)).append(".")),
        batch_(recording.batch),
        tokens_(recording.tokens),
        rank_(model.mla.kv_lora_rank),
        rope_(model.mla.qk_rope_head_dim),
        nope_(model.mla.qk_nope_head_dim),
        v_dim_(model.mla.v_head_dim) {
    mla_.dims = model.mla;
    mla_.hidden_size = model.hidden_size;
    mla_.heads = model.q_heads;
  }

  Status Load() {
    if (rank_ + rope_ != layer_.spec.k_dim) {
      return file_.Bad("the model's layer " + std::to_string(layer_.layer) + " has k_dim " +
                       std::to_string(layer_.spec.k_dim) +
                       "; expected kv_lora_rank + qk_rope_head_dim, " +
                       std::to_string(rank_ + rope_));
    }
    Status status = ReadCached("cache_k", rank_, layer_.k);
    if (status.ok()) status = ReadCached("cache_v", rope_, layer_.v);
    if (status.ok()) status = ReadNorm();
    if (status.ok()) status = ReadHidden();
    if (status.ok()) status = ReadRows();
    if (!status.ok()) return status;
    DropUnmade();
    return ReadAttention();
  }

 private:
  Status Read(const std::string& name, const Shape& shape, const std::string& meaning,
              std::vector<double>& values) {
    return file_.Read(prefix_ + name, shape, meaning + " by metadata and config", values);
  }

  bool Has(const std::string& name) const { return file_.Has(prefix_ + name); }

  Status ReadCached(const std::string& name, std::int64_t dim, RecordedPart& part) {
    part.name = prefix_ + name;
    if (!Has(name)) {
      recording_.Miss(part.name, part.name + " is not in the recording");
      return Status::Ok();
    }
    part.exact = file_.IsF32(part.name);
    return Read(name, {batch_, 1, tokens_, dim},
                name == "cache_k" ? "[B, 1, T, kv_lora_rank]" : "[B, 1, T, qk_rope_head_dim]",
                part.cached);
  }

  Status ReadNorm() {
    if (!Has("w.kv_a_layernorm")) return Status::Ok();
    return Read("w.kv_a_layernorm", {rank_}, "[kv_lora_rank]", mla_.norm);
  }

  // A bias cannot be given to the cache; rows then have to be.
  Status ReadHidden() {
    if (!Has("hidden") || !Has("w.kv_a_proj_with_mqa") || mla_.norm.empty() ||
        Has("b.kv_a_proj_with_mqa")) {
      return Status::Ok();
    }
    const Status status =
        Read("hidden", {batch_, tokens_, mla_.hidden_size}, "[B, T, hidden_size]", mla_.hidden);
    if (!status.ok()) return status;
    return Read("w.kv_a_proj_with_mqa", {rank_ + rope_, mla_.hidden_size},
                "[kv_lora_rank + qk_rope_head_dim, hidden_size]", mla_.w_down);
  }

  Status ReadRows() {
    if (Has("kv_a_proj_with_mqa")) {
      std::vector<double> rows;
      const Status status = Read("kv_a_proj_with_mqa", {batch_, tokens_, rank_ + rope_},
                                 "[B, T, kv_lora_rank + qk_rope_head_dim]", rows);
      if (!status.ok()) return status;
      for (auto row = rows.begin(); row != rows.end(); row += rank_ + rope_) {
        if (!mla_.norm.empty()) mla_.c_kv.insert(mla_.c_kv.end(), row, row + rank_);
        mla_.k_pe.insert(mla_.k_pe.end(), row + rank_, row + rank_ + rope_);
      }
    }
    if (!mla_.c_kv.empty() || mla_.from_hidden() || !Has("kv_a_layernorm")) return Status::Ok();
    mla_.normed = true;
    mla_.norm.clear();
    layer_.k.exact = layer_.k.exact && file_.IsF32(prefix_ + "kv_a_layernorm");
    return Read("kv_a_layernorm", {batch_, tokens_, rank_}, "[B, T, kv_lora_rank]", mla_.c_kv);
  }

  // What neither way of making rows gives is not compared.
  void DropUnmade() {
    if (mla_.from_hidden()) return;
    const std::string whole = prefix_ + "hidden with " + prefix_ + "w.kv_a_proj_with_mqa and " +
                              prefix_ + "w.kv_a_layernorm";
    if (mla_.c_kv.empty()) {
      Drop(layer_.k, whole + ", " + prefix_ + "kv_a_proj_with_mqa with " + prefix_ +
                         "w.kv_a_layernorm, or " + prefix_ + "kv_a_layernorm");
    }
    if (mla_.k_pe.empty()) Drop(layer_.v, whole + ", or " + prefix_ + "kv_a_proj_with_mqa");
  }

  void Drop(RecordedPart& part, const std::string& sources) {
    if (!part.compared()) return;
    part.cached.clear();
    recording_.Miss(part.name, "the recording has none of those from which " + part.name +
                                   " would be made: " + sources);
  }

  // The attention's output is compared where it was recorded.
  Status ReadAttention() {
    mla_.attn_out.name = prefix_ + "attn_out";
    if (!Has("attn_out")) return Status::Ok();
    const std::string lack = LackOfAttention();
    if (!lack.empty()) {
      recording_.Miss(mla_.attn_out.name, mla_.attn_out.name + " cannot be compared: " + lack);
      return Status::Ok();
    }
    const std::int64_t heads = mla_.heads;
    const std::string q = Has("q_b_proj") ? "q_b_proj" : "q_proj";
    Status status = Read(q, {batch_, tokens_, heads * (nope_ + rope_)},
                         "[B, T, heads * (qk_nope_head_dim + qk_rope_head_dim)]", mla_.q);
    if (status.ok()) {
      status = Read("w.kv_b_proj", {heads * (nope_ + v_dim_), rank_},
                    "[heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]", mla_.w_kv_b);
    }
    std::vector<double> out;
    if (status.ok()) {
      status =
          Read("attn_out", {batch_, tokens_, heads * v_dim_}, "[B, T, heads * v_head_dim]", out);
    }
    if (!status.ok()) return status;
    mla_.attn_out.cached = HeadsFirst(out, batch_, tokens_, heads, v_dim_);
    return Status::Ok();
  }

  // Empty: nothing is lacking.
  std::string LackOfAttention() const {
    if (!layer_.k.compared() || !layer_.v.compared()) {
      return "it is made from " + layer_.k.name + " and " + layer_.v.name;
    }
    if (!Has("w.kv_b_proj")) return prefix_ + "w.kv_b_proj is not in the recording";
    if (!Has("q_b_proj") && !Has("q_proj")) {
      return "neither " + prefix_ + "q_b_proj nor " + prefix_ + "q_proj is in the recording";
    }
    if (model_.indexer.head_dim > 0 && tokens_ > model_.indexer.topk) {
      return "the model attends to the " + std::to_string(model_.indexer.topk) +
             " tokens that its indexer chooses, of " + std::to_string(tokens_);
    }
    return "";
  }

  RecordingFile& file_;
  const ModelConfig& model_;
  Recording& recording_;
  RecordedLayer& layer_;
  RecordedMla& mla_;
  const std::string prefix_;
  const std::int64_t batch_, tokens_, rank_, rope_, nope_, v_dim_;
};

}  // namespace

Status ReadMlaLayer(RecordingFile& file, const ModelConfig& model, Recording& recording,
                    RecordedLayer& layer) {
  return MlaLoader(file, model, recording, layer).Load();
}

}  // namespace lariat::session
