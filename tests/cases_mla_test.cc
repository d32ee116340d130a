// SPDX-License-Identifier: Apache-2.0
// Faults of MLA and paged attention that users of other KV caches reported (K48, K62, K66, K70):
// inputs and right values were worked out apart from this project.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "lariat/ops.h"
#include "reference/mla_attention_ref.h"
#include "reference/rope_ref.h"
#include "support/catch.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat {
namespace {

using reference::Attend;
using reference::AttendAbsorbed;
using reference::Concatenated;
using reference::HeadMatrix;
using reference::Row;
using testing::AvailableDevices;
using testing::DeviceVector;
using testing::Random;
using Json = nlohmann::json;
using Matrix = std::vector<Row>;

std::string CasePath(const std::string& name) {
  return LARIAT_SHARED_DATA "/cases/" + name + ".expected.json";
}

double Distance(const Row& a, const Row& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

// A query of each head over a few latents.
struct LatentCase {
  int heads = 1, rank = 1, nope = 1, rope = 2, v = 1;
  std::vector<Matrix> w_uk, w_uv;  // [heads][nope or v, rank]
  Matrix latents, k_pe;            // k_pe and q_pe after RoPE
  Matrix q_nope, q_pe;             // [heads]
  double scale = 1;
};

// kv_b_proj as it lies, in double.
Row PackedWeight(const LatentCase& c, const MlaExpandParams& p) {
  const int per_head = c.nope + c.v;
  const std::int64_t rows = p.layout == WeightLayout::kOutIn ? c.heads * per_head : c.rank;
  Row w(static_cast<std::size_t>(rows * p.w_kv_b_stride), std::nan(""));
  for (int h = 0; h < c.heads; ++h) {
    for (int i = 0; i < per_head; ++i) {
      const Matrix& from = (i < c.nope ? c.w_uk : c.w_uv)[static_cast<std::size_t>(h)];
      for (int j = 0; j < c.rank; ++j) {
        const std::int64_t output = h * per_head + i;
        const std::int64_t at = p.layout == WeightLayout::kOutIn ? output * p.w_kv_b_stride + j
                                                                 : j * p.w_kv_b_stride + output;
        w[static_cast<std::size_t>(at)] =
            from[static_cast<std::size_t>(i < c.nope ? i : i - c.nope)]
                [static_cast<std::size_t>(j)];
      }
    }
  }
  return w;
}

// Every head's output, through the views.
Matrix Absorbed(const LatentCase& c, WeightLayout layout, int stride_pad, double scale) {
  MlaExpandParams p;
  p.dtype = DType::kFP32;
  p.heads = c.heads;
  p.rank = c.rank;
  p.nope_dim = c.nope;
  p.v_dim = c.v;
  p.layout = layout;
  p.w_kv_b_stride =
      (layout == WeightLayout::kOutIn ? c.rank : c.heads * (c.nope + c.v)) + stride_pad;
  const Row numbers = PackedWeight(c, p);
  const std::vector<float> elements(numbers.size());  // what the views are of; never read
  p.w_kv_b = elements.data();
  if (stride_pad == 0) p.w_kv_b_stride = 0;
  const Result<AbsorbedProjections> views = AbsorbViews(p);
  REQUIRE(views.ok());
  CHECK(views->w_uk.heads == c.heads);
  CHECK(views->w_uk.rows == c.nope);
  CHECK(views->w_uk.columns == c.rank);
  CHECK(views->w_uv.heads == c.heads);
  CHECK(views->w_uv.rows == c.v);
  CHECK(views->w_uv.columns == c.rank);
  const auto offset = [&](const HeadMatrices& view) {
    return static_cast<const float*>(view.data) - elements.data();
  };
  Matrix out;
  for (int h = 0; h < c.heads; ++h) {
    const auto head = static_cast<std::size_t>(h);
    out.push_back(AttendAbsorbed(HeadMatrix(views->w_uk, numbers, offset(views->w_uk), h),
                                 HeadMatrix(views->w_uv, numbers, offset(views->w_uv), h),
                                 c.q_nope[head], c.q_pe[head], c.latents, c.k_pe, scale));
  }
  return out;
}

// The long way: keys and values of every token first.
Matrix Expanded(const LatentCase& c, double scale) {
  const auto times = [](const Matrix& m, const Row& x) {
    Row y;
    for (const Row& row : m) y.push_back(reference::Dot(row, x));
    return y;
  };
  Matrix out;
  for (std::size_t h = 0; h < static_cast<std::size_t>(c.heads); ++h) {
    Matrix keys, values;
    for (std::size_t t = 0; t < c.latents.size(); ++t) {
      keys.push_back(Concatenated(times(c.w_uk[h], c.latents[t]), c.k_pe[t]));
      values.push_back(times(c.w_uv[h], c.latents[t]));
    }
    out.push_back(Attend(Concatenated(c.q_nope[h], c.q_pe[h]), keys, values, scale));
  }
  return out;
}

double Distance(const Matrix& a, const Matrix& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, Distance(a[i], b[i]));
  return most;
}

Row Turned(const Row& x, std::int64_t position) {
  Row cos, sin;
  for (const reference::Real f :
       reference::DefaultFrequencies(static_cast<int>(x.size()), 10000.0L)) {
    cos.push_back(static_cast<double>(std::cos(f * static_cast<reference::Real>(position))));
    sin.push_back(static_cast<double>(std::sin(f * static_cast<reference::Real>(position))));
  }
  return reference::RotateRow(x, cos.data(), sin.data(), static_cast<int>(cos.size()), true);
}

// Keys and values of a page table, by an MlaExpand whose weights pick them out of the latents.
struct Expansion {
  std::vector<float> k, v;
};
Expansion Pick(Device device, const Matrix& rows, int heads, int dim, int page,
               const std::vector<std::int32_t>& table, std::int64_t tokens) {
  const int rank = 2 * heads * dim;
  std::int32_t last = 0;
  for (const std::int32_t id : table) last = std::max(last, id);
  const std::int64_t blocks = last + 1;
  std::vector<float> cache(static_cast<std::size_t>(blocks * page * rank), std::nanf(""));
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const auto pages = static_cast<std::size_t>(page);
    const std::size_t at = static_cast<std::size_t>(table[t / pages]) * pages + t % pages;
    std::copy(rows[t].begin(), rows[t].end(),
              cache.begin() + static_cast<std::ptrdiff_t>(at) * rank);
  }
  std::vector<float> w(static_cast<std::size_t>(rank * rank), 0.0F);
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < 2 * dim; ++i) {  // K of all heads comes first in a row, then V
      const int from = (i < dim ? 0 : heads * dim) + h * dim + i % dim;
      w[static_cast<std::size_t>((h * 2 * dim + i) * rank + from)] = 1;
    }
  }
  const std::vector<float> poison(static_cast<std::size_t>(tokens * heads * dim), 9.0F);
  DeviceVector<float> w_in(device, w), cache_in(device, cache), k(device, poison),
      v(device, poison);
  DeviceVector<std::int32_t> cu_tokens(device, {0, static_cast<std::int32_t>(tokens)});
  DeviceVector<std::int32_t> table_in(device, table);
  MlaExpandParams p;
  p.dtype = DType::kFP32;
  p.num_tokens = tokens;
  p.heads = heads;
  p.rank = rank;
  p.nope_dim = p.v_dim = dim;
  p.w_kv_b = w_in.data();
  p.num_ranges = 1;
  p.cu_tokens = cu_tokens.data();
  p.block_table = table_in.data();
  p.block_table_stride = static_cast<std::int64_t>(table.size());
  p.cache = cache_in.data();
  p.num_blocks = blocks;
  p.block_size = page;
  p.k = k.data();
  p.v = v.data();
  REQUIRE(MlaExpand(device, p, Stream{}).ok());
  return {k.Read(), v.Read()};
}

Row Attended(const Expansion& e, const Row& query, int heads, int head, int dim, double scale) {
  Matrix keys, values;
  for (std::size_t t = 0; t < e.k.size() / static_cast<std::size_t>(heads * dim); ++t) {
    const auto at = static_cast<std::ptrdiff_t>(t) * heads * dim + head * dim;
    keys.emplace_back(e.k.begin() + at, e.k.begin() + at + dim);
    values.emplace_back(e.v.begin() + at, e.v.begin() + at + dim);
  }
  return Attend(query, keys, values, scale);
}

TEST_CASE("K48, K49: NaN behind the last token does not reach attention") {
  const Matrix rows = {{1, 0, 1, 2}, {0, 1, 3, 4}, {1, 1, 5, 6}};  // [K | V]
  for (Device& device : AvailableDevices()) {
    for (const std::vector<std::int32_t>& table : {std::vector<std::int32_t>{0}, {3}}) {
      const Expansion got = Pick(device, rows, 1, 2, 4, table, 3);
      const Row out = Attended(got, {1.0, 0.5}, 1, 0, 2, 1 / std::sqrt(2.0));
      // Small whole numbers: nothing rounds before the softmax.
      CHECK(Distance(out, {3.271322649264798, 4.271322649264798}) <= 1e-14);
    }
  }
}

TEST_CASE("K62: keys and values do not depend on the ids of pages") {
  const std::string path = CasePath("K62_paged_decode");
  if (!std::filesystem::exists(path)) LARIAT_SKIP("cases/K62_paged_decode is absent");
  std::ifstream file(path);
  const Json json = Json::parse(file);
  const Json& input = json.at("input");
  const auto k = input.at("k").get<std::vector<Matrix>>();
  const auto v = input.at("v").get<std::vector<Matrix>>();
  const auto q = input.at("q").get<Matrix>();
  const auto right = json.at("right").at("out").get<Matrix>();
  Matrix rows;
  for (std::size_t t = 0; t < k.size(); ++t) {
    rows.push_back(Concatenated(Concatenated(k[t][0], k[t][1]), Concatenated(v[t][0], v[t][1])));
  }
  for (Device& device : AvailableDevices()) {
    std::vector<Expansion> got;
    for (const Json& table : input.at("tables")) {
      got.push_back(Pick(device, rows, 2, 4, 2, table.get<std::vector<std::int32_t>>(), 5));
    }
    REQUIRE(got.size() == 2);
    CHECK(got[0].k == got[1].k);
    CHECK(got[0].v == got[1].v);
    for (int h = 0; h < 4; ++h) {
      const auto head = static_cast<std::size_t>(h);
      const Row out = Attended(got[0], q[head], 2, h / 2, 4, 0.5);
      // Numbers below 1 are rounded to fp32, by 2^-25: a score moves by half the sum of four
      // |q| 2^-25, 2^-24 at most, the output by twice that and 2^-25 of its own.
      CHECK(Distance(out, right[head]) <= 5 * 0x1p-25);
    }
  }
}

TEST_CASE("K66: absorbed attention equals the long way, scaled by the whole head") {
  const std::string path = CasePath("K66_mla_scale");
  if (!std::filesystem::exists(path)) LARIAT_SKIP("cases/K66_mla_scale is absent");
  std::ifstream file(path);
  const Json json = Json::parse(file);
  const Json& input = json.at("input");
  LatentCase c;
  c.heads = input.at("heads");
  c.nope = input.at("nope");
  c.rope = input.at("rope");
  c.rank = input.at("latent");
  c.v = input.at("v");
  c.w_uk = input.at("Wuk").get<std::vector<Matrix>>();
  c.w_uv = input.at("Wuv").get<std::vector<Matrix>>();
  c.latents = input.at("latents").get<Matrix>();
  c.q_nope = input.at("q_nope").get<Matrix>();
  REQUIRE(input.at("pairing") == "inter");
  const auto positions = input.at("positions").get<std::vector<std::int64_t>>();
  for (std::size_t t = 0; t < positions.size(); ++t) {
    c.k_pe.push_back(Turned(input.at("k_pe_raw")[t].get<Row>(), positions[t]));
  }
  for (const Json& q_pe : input.at("q_pe_raw")) {
    c.q_pe.push_back(Turned(q_pe.get<Row>(), input.at("query_position")));
  }
  const auto right = json.at("right").get<Matrix>();
  const auto wrong = json.at("wrong_scale_from_latent_width").get<Matrix>();
  const double scale = 1 / std::sqrt(c.nope + c.rope);
  const double latent_scale = 1 / std::sqrt(c.rank + c.rope);
  CHECK(Distance(Expanded(c, scale), right) <= 1e-13);
  for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    for (const int pad : {0, 3}) {
      CHECK(Distance(Absorbed(c, layout, pad, scale), right) <= 1e-13);
      CHECK(Distance(Absorbed(c, layout, pad, latent_scale), wrong) <= 1e-13);
    }
  }
  CHECK(Distance(right, wrong) > 1e-3);
}

TEST_CASE("Absorbed attention equals the long way in any shape") {
  Random random(1);
  const auto matrix = [&](int rows, int columns) {
    Matrix m;
    for (int r = 0; r < rows; ++r) {
      Row& row = m.emplace_back();
      for (int i = 0; i < columns; ++i) {
        row.push_back(static_cast<double>(random.Between(-1'000'000, 1'000'000)) / 1e6);
      }
    }
    return m;
  };
  for (int i = 0; i < 30; ++i) {
    LatentCase c;
    c.heads = static_cast<int>(random.Between(1, 5));
    c.rank = static_cast<int>(random.Between(1, 40));
    c.nope = static_cast<int>(random.Between(i % 5 == 0 ? 0 : 1, 20));
    c.v = static_cast<int>(random.Between(i % 7 == 0 ? 0 : 1, 20));
    c.rope = static_cast<int>(random.Between(1, 8));
    const auto tokens = static_cast<int>(random.Between(1, 6));
    for (int h = 0; h < c.heads; ++h) {
      c.w_uk.push_back(matrix(c.nope, c.rank));
      c.w_uv.push_back(matrix(c.v, c.rank));
    }
    c.latents = matrix(tokens, c.rank);
    c.k_pe = matrix(tokens, c.rope);
    c.q_nope = matrix(c.heads, c.nope);
    c.q_pe = matrix(c.heads, c.rope);
    const double scale = 1 / std::sqrt(c.nope + c.rope);
    const Matrix long_way = Expanded(c, scale);
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      for (const int pad : {0, 5}) {
        // Sums of at most 40 * 20 products below 1, each way: 1e-13 is 450 units of 2^-52.
        CHECK(Distance(Absorbed(c, layout, pad, scale), long_way) <= 1e-13);
      }
    }
  }
}

// K66: the scale of real models. K70: a scale of its own that only models with mscale have.
TEST_CASE("Softmax scales: by the width of the whole head, times mscale squared") {
  const auto scale = [](const std::string& name) {
    const Result<ModelConfig> model = ModelPreset(name);
    INFO(name << ": " << model.status().ToString());
    REQUIRE(model.ok());
    REQUIRE(model->mla.kv_lora_rank > 0);
    return 1 / std::sqrt(model->mla.qk_nope_head_dim + model->mla.qk_rope_head_dim) *
           SoftmaxScaleFactor(model->ropes[0]);
  };
  const double m = 0.1 * 1.0 * std::log(40.0) + 1;
  CHECK(std::fabs(m * m - 1.873854) < 1e-6);
  CHECK(std::fabs(scale("deepseek-v3") / (0.07216878364870323 * m * m) - 1) <= 1e-15);
  // Other models with yarn: the attention factor on cos and sin is all there is.
  Json yarn = {{"model_type", "llama"},
               {"num_hidden_layers", 1},
               {"hidden_size", 64},
               {"num_attention_heads", 4},
               {"rope_scaling",
                {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}}}};
  const Result<ModelConfig> other = ModelConfig::FromHuggingFaceJson(yarn.dump());
  REQUIRE(other.ok());
  REQUIRE(other->ropes.at(0).type == RopeType::kYarn);
  CHECK(SoftmaxScaleFactor(other->ropes[0]) == 1.0);
  const Result<ModelConfig> gpt_oss = ModelPreset("gpt-oss-20b");
  REQUIRE(gpt_oss.ok());
  REQUIRE(gpt_oss->ropes.at(0).type == RopeType::kYarn);
  CHECK(SoftmaxScaleFactor(gpt_oss->ropes[0]) == 1.0);
}

}  // namespace
}  // namespace lariat
