// SPDX-License-Identifier: Apache-2.0
// Attention by what MlaExpand and AbsorbViews make of recorded latents, against the attention of a
// published implementation.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lariat/ops.h"
#include "support/catch.h"
#include "support/device_vector.h"
#include "support/mla_recording.h"

namespace lariat {
namespace {

using reference::ProductSum;
using reference::Row;
using testing::AvailableDevices;
using testing::Checked;
using testing::DeviceVector;
using testing::kHalfRecording;
using testing::kInterleavedRecording;
using testing::kU;
using testing::Layer;
using testing::Paged;
using testing::RecordedBound;
using testing::Recording;
using testing::Tensor;
using testing::Turned;
using testing::TurnedRow;
using testing::U;

// The recorded rows in a paged cache, expanded: k [B * T, heads, nope + rope], v [.., v].
struct Expansion {
  Tensor k, v;
};
Expansion Expand(Device device, const Layer& layer, const MlaDims& dims, int heads) {
  const std::int64_t width = dims.kv_lora_rank + dims.qk_rope_head_dim;
  const Paged paged(layer, width);
  std::vector<float> cache = paged.Poison();
  std::vector<std::int32_t> cu_tokens = {0};
  for (std::int64_t b = 0; b < layer.batch; ++b) {
    cu_tokens.push_back(cu_tokens.back() + static_cast<std::int32_t>(layer.length));
    for (std::int64_t t = 0; t < layer.length; ++t) {
      const auto to = cache.begin() + paged.Slot(b, t) * width;
      const std::int64_t row = b * layer.length + t;
      std::copy_n(layer.latent.values.begin() + row * dims.kv_lora_rank, dims.kv_lora_rank, to);
      std::copy_n(layer.k_pe.values.begin() + row * dims.qk_rope_head_dim, dims.qk_rope_head_dim,
                  to + dims.kv_lora_rank);
    }
  }
  Expansion out;
  out.k.columns = heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim);
  out.v.columns = heads * dims.v_head_dim;
  const auto poison = [&](const Tensor& tensor) {
    return std::vector<float>(U(layer.tokens() * tensor.columns), std::nanf(""));
  };
  DeviceVector<float> w(device, layer.w_kv_b.values), cache_in(device, cache);
  DeviceVector<float> k(device, poison(out.k)), v(device, poison(out.v));
  DeviceVector<std::int32_t> cu_in(device, cu_tokens), table(device, paged.table());
  MlaExpandParams p;
  p.dtype = DType::kFP32;
  p.num_tokens = layer.tokens();
  p.heads = heads;
  p.rank = dims.kv_lora_rank;
  p.rope_dim = dims.qk_rope_head_dim;
  p.nope_dim = dims.qk_nope_head_dim;
  p.v_dim = dims.v_head_dim;
  p.w_kv_b = w.data();
  p.num_ranges = static_cast<int>(layer.batch);
  p.cu_tokens = cu_in.data();
  p.block_table = table.data();
  p.block_table_stride = paged.blocks_each();
  p.cache = cache_in.data();
  p.num_blocks = paged.blocks();
  p.block_size = Paged::kBlockSize;
  p.k = k.data();
  p.v = v.data();
  const Status status = MlaExpand(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());
  out.k.values = k.Read();
  out.v.values = v.Read();
  return out;
}

// Attention of one layer by expanded keys and values, and by latents alone, against attn_out.
//
// Bound of an output o = sum p_t v_t: a score s_t is off by d_t (its key's, its query's and the
// inputs' roundings), which moves the weight p_t by p_t (d_t + sum p d) at most, to first order,
// and the output by that times |v_t - o|; the values' own errors are averaged; one unit of o was
// rounded away in the recording.
class AttentionCheck {
 public:
  AttentionCheck(const Recording& recording, const Layer& layer, const Expansion& expansion)
      : recording_(recording), layer_(layer), expansion_(expansion), dims_(recording.model.mla) {
    MlaExpandParams p;
    p.dtype = DType::kFP32;
    p.heads = heads();
    p.rank = dims_.kv_lora_rank;
    p.nope_dim = dims_.qk_nope_head_dim;
    p.v_dim = dims_.v_head_dim;
    p.w_kv_b = layer.w_kv_b.values.data();
    const Result<AbsorbedProjections> views = AbsorbViews(p);
    REQUIRE(views.ok());
    views_ = *views;
    w_ = Row(layer.w_kv_b.values.begin(), layer.w_kv_b.values.end());
    for (std::int64_t row = 0; row < layer.tokens(); ++row) {
      latents_.push_back(layer.latent.Of(row, 0, dims_.kv_lora_rank));
      k_pe_.push_back(layer.k_pe.Of(row, 0, dims_.qk_rope_head_dim));
    }
  }

  int heads() const { return recording_.model.q_heads; }

  void CheckHead(int head) {
    const reference::HeadMatrix w_uk = Matrix(views_.w_uk, head), w_uv = Matrix(views_.w_uv, head);
    MakeRows(head);
    for (std::int64_t b = 0; b < layer_.batch; ++b) {
      for (std::int64_t t = 0; t < layer_.length; ++t) CheckQuery(b, t, head, w_uk, w_uv);
    }
  }

  double worst = 0;           // of outputs, as a fraction of the bound
  double worst_absorbed = 0;  // distance from the long way in double

 private:
  reference::HeadMatrix Matrix(const HeadMatrices& view, int head) const {
    const auto first = static_cast<const float*>(view.data) - layer_.w_kv_b.values.data();
    return {view, w_, first, head};
  }

  // All keys and values of a head: as expanded, exact, and what they may be off by.
  void MakeRows(int head) {
    keys_.clear(), values_.clear(), exact_keys_.clear(), exact_values_.clear();
    key_bounds_.clear(), value_bounds_.clear();
    const int nope = dims_.qk_nope_head_dim, v = dims_.v_head_dim;
    const std::int64_t key = nope + dims_.qk_rope_head_dim;
    for (std::int64_t row = 0; row < layer_.tokens(); ++row) {
      keys_.push_back(expansion_.k.Of(row, head * key, key));
      values_.push_back(expansion_.v.Of(row, std::int64_t{head} * v, v));
      Row exact, bounds;
      for (int i = 0; i < nope + v; ++i) {
        ProductSum sum;
        for (int j = 0; j < dims_.kv_lora_rank; ++j) {
          sum.Add(layer_.w_kv_b.At(head * (nope + v) + i, j), latents_[U(row)][U(j)]);
        }
        exact.push_back(sum.value);
        bounds.push_back(RecordedBound(sum));
      }
      const Row& k_pe = k_pe_[U(row)];
      exact_keys_.push_back(reference::Concatenated({exact.begin(), exact.begin() + nope}, k_pe));
      exact_values_.emplace_back(exact.begin() + nope, exact.end());
      Row key_bound(bounds.begin(), bounds.begin() + nope);
      for (const double element : k_pe) key_bound.push_back(kU * std::fabs(element));
      key_bounds_.push_back(std::move(key_bound));
      value_bounds_.emplace_back(bounds.begin() + nope, bounds.end());
    }
  }

  void CheckQuery(std::int64_t b, std::int64_t t, int head, const reference::HeadMatrix& w_uk,
                  const reference::HeadMatrix& w_uv) {
    const int nope = dims_.qk_nope_head_dim, rope = dims_.qk_rope_head_dim, v = dims_.v_head_dim;
    const std::int64_t row = b * layer_.length + t;
    const std::int64_t key = nope + rope;
    const Row q_nope = layer_.q.Of(row, head * key, nope);
    const Row q_raw = layer_.q.Of(row, head * key + nope, rope);
    const TurnedRow q_pe = Turned(recording_, q_raw, Row(q_raw.size(), 0.0), t);
    const Row query = reference::Concatenated(q_nope, q_pe.value);
    Row query_bound;
    for (const double element : q_nope) query_bound.push_back(kU * std::fabs(element));
    query_bound = reference::Concatenated(query_bound, q_pe.bound);

    const auto seen = [&](const std::vector<Row>& rows) {  // causal
      const auto first = rows.begin() + b * layer_.length;
      return std::vector<Row>(first, first + t + 1);
    };
    const std::vector<Row> keys = seen(keys_), values = seen(values_);
    const double scale = recording_.scale();
    const Row weights = reference::SoftmaxWeights(query, keys, scale);
    const Row out = reference::Mean(weights, values);
    const Row bounds = OutputBounds(b, query, query_bound, weights, keys, values, out);
    for (int i = 0; i < v; ++i) {
      Checked(std::fabs(out[U(i)] - layer_.attn_out.At(row, head * v + i)), bounds[U(i)], worst);
    }
    const Row exact = reference::Attend(query, seen(exact_keys_), seen(exact_values_), scale);
    const Row absorbed = reference::AttendAbsorbed(w_uk, w_uv, q_nope, q_pe.value, seen(latents_),
                                                   seen(k_pe_), scale);
    for (int i = 0; i < v; ++i) {
      worst_absorbed = std::max(worst_absorbed, std::fabs(absorbed[U(i)] - exact[U(i)]));
    }
  }

  Row OutputBounds(std::int64_t b, const Row& query, const Row& query_bound, const Row& weights,
                   const std::vector<Row>& keys, const std::vector<Row>& values,
                   const Row& out) const {
    Row moved;
    double average = 0;
    for (std::size_t t = 0; t < keys.size(); ++t) {
      const Row& key_bound = key_bounds_[U(b * layer_.length) + t];
      double d = 0;
      for (std::size_t i = 0; i < query.size(); ++i) {
        d += std::fabs(query[i]) * key_bound[i] + query_bound[i] * std::fabs(keys[t][i]);
      }
      moved.push_back(recording_.scale() * d);
      average += weights[t] * moved.back();
    }
    Row bounds;
    for (std::size_t i = 0; i < out.size(); ++i) {
      double bound = kU * std::fabs(out[i]);
      for (std::size_t t = 0; t < keys.size(); ++t) {
        bound += weights[t] * ((moved[t] + average) * std::fabs(values[t][i] - out[i]) +
                               value_bounds_[U(b * layer_.length) + t][i]);
      }
      bounds.push_back(bound);
    }
    return bounds;
  }

  const Recording& recording_;
  const Layer& layer_;
  const Expansion& expansion_;
  const MlaDims dims_;
  AbsorbedProjections views_;
  Row w_;
  std::vector<Row> latents_, k_pe_;
  std::vector<Row> keys_, values_, exact_keys_, exact_values_, key_bounds_, value_bounds_;
};

double CheckAttention(const std::string& stem) {
  const Recording recording(stem);
  double worst = 0;
  for (Device& device : AvailableDevices()) {
    for (const Layer& layer : recording.layers) {
      INFO(stem << " on " << device.name());
      const Expansion expansion =
          Expand(device, layer, recording.model.mla, recording.model.q_heads);
      AttentionCheck check(recording, layer, expansion);
      for (int head = 0; head < check.heads(); ++head) check.CheckHead(head);
      // Both sum a few hundred products of numbers of order 1 in double.
      CHECK(check.worst_absorbed <= 1e-13);
      worst = std::max(worst, check.worst);
    }
  }
  return worst;
}

TEST_CASE("Own MLA recordings: expanded and absorbed attention give attn_out") {
  double worst = 0;
  for (const std::string& stem : testing::OwnMlaRecordings()) {
    worst = std::max(worst, CheckAttention(stem));
  }
  CAPTURE(worst);
  CHECK(worst >= 0.05);
}

TEST_CASE("Public MLA recordings with yarn: expanded and absorbed attention give attn_out") {
  if (!testing::HasGolden()) LARIAT_SKIP("golden/deepseek_v3_mla* are absent");
  REQUIRE(Recording(kInterleavedRecording).rope().style == RopeStyle::kInterleavedToHalf);
  REQUIRE(Recording(kHalfRecording).rope().style == RopeStyle::kHalf);
  REQUIRE(std::fabs(SoftmaxScaleFactor(Recording(kHalfRecording).rope()) - 1.873854) < 1e-6);
  const double worst =
      std::max(CheckAttention(kInterleavedRecording), CheckAttention(kHalfRecording));
  CAPTURE(worst);
  CHECK(worst >= 0.05);
}

}  // namespace
}  // namespace lariat
