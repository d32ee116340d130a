// SPDX-License-Identifier: Apache-2.0
// MlaAppend from hidden: against a reference in double, and against its two steps taken apart.
#include "backend/backend.h"
#include "reference/mla_hidden_ref.h"
#include "support/few_cases.h"
#include "support/mla_append_runner.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using reference::MlaHiddenCase;
using testing::AvailableDevices;
using testing::DeepSeek;
using testing::DeviceVector;
using testing::MlaAppendShape;
using testing::Random;

template <class In, class Out>
MlaHiddenCase<In, Out> MakeHidden(Random& random, const MlaAppendShape& s, int model_dim,
                                  bool transposed, std::int64_t pad) {
  MlaHiddenCase<In, Out> c;
  c.append = testing::MakeMlaAppend<In, Out>(random, s);
  c.append.c_kv.clear();
  c.append.k_pe.clear();
  c.model_dim = model_dim;
  c.transposed = transposed;
  c.hidden_stride = model_dim + pad;
  const std::int64_t width = s.rank + s.rope_dim;
  c.w_stride = (transposed ? width : model_dim) + pad;
  c.hidden = random.Numbers<In>(s.tokens * c.hidden_stride);
  c.w = random.Numbers<In>((transposed ? model_dim : width) * c.w_stride);
  return c;
}

// A case's arrays on a device, and the call's parameters.
template <class In, class Out>
struct OnDevice {
  OnDevice(Device& device, const MlaHiddenCase<In, Out>& c, std::size_t offset = 0)
      : hidden(device, c.hidden, offset),
        w(device, c.w, offset),
        norm_weight(device, c.append.norm_weight, offset),
        cache(device, c.append.cache, offset),
        cos(device, c.append.cos, offset),
        sin(device, c.append.sin, offset),
        slots(device, c.append.slots),
        positions(device, c.append.positions),
        fault(device, {FaultRecord{}}),
        params(testing::ShapeOf(c.append, false)) {
    params.c_kv_stride = params.k_pe_stride = 0;
    params.hidden = hidden.data();
    params.hidden_stride = c.hidden_stride;
    params.model_dim = c.model_dim;
    params.layout = c.transposed ? WeightLayout::kInOut : WeightLayout::kOutIn;
    params.w_down = w.data();
    params.w_down_stride = c.w_stride;
    params.allow_tf32 = c.tf32;
    if (!c.append.norm_weight.empty()) params.norm_weight = norm_weight.data();
    params.slots = slots.data();
    params.positions = positions.data();
    params.cos = reinterpret_cast<const float*>(cos.data());
    params.sin = reinterpret_cast<const float*>(sin.data());
    params.cache = cache.data();
    params.fault = fault.data();
  }
  DeviceVector<typename In::Bits> hidden, w, norm_weight;
  DeviceVector<typename Out::Bits> cache;
  DeviceVector<std::uint32_t> cos, sin;
  DeviceVector<std::int64_t> slots;
  DeviceVector<std::int32_t> positions;
  DeviceVector<FaultRecord> fault;
  MlaAppendParams params;
};

// Largest errors as fractions of their bounds.
struct Worst {
  long double latent = 0, key = 0;
};

// Checks every element of a cache: rows within their bounds, the rest untouched. REQUIRES: no token
// is at fault.
template <class In, class Out>
Worst CheckHidden(const MlaHiddenCase<In, Out>& c, const std::vector<typename Out::Bits>& cache) {
  const auto hidden = reference::DecodeAll<In>(c.hidden);
  const auto w = reference::DecodeAll<In>(c.w);
  auto untouched = cache;
  Worst worst;
  std::int64_t wrong = 0;
  for (std::int64_t t = 0; t < c.append.tokens; ++t) {
    const std::int64_t slot = c.append.slots[static_cast<std::size_t>(t)];
    if (slot < 0) continue;
    auto at = static_cast<std::size_t>(slot / c.append.block_size * c.append.block_stride +
                                       slot % c.append.block_size * c.append.row_stride);
    int column = 0;
    for (const reference::Near& near : MlaHiddenRow(c, hidden, w, t)) {
      const long double ratio = std::fabs(Out::Decode(cache[at]) - near.value) / near.error;
      if (!(ratio <= 1) && ++wrong < 4) {
        UNSCOPED_INFO("token " << t << ", element " << at << ": "
                               << static_cast<double>(Out::Decode(cache[at])) << ", not within "
                               << static_cast<double>(near.error) << " of "
                               << static_cast<double>(near.value));
      }
      long double& part = column++ < c.append.rank ? worst.latent : worst.key;
      part = std::max(part, ratio);
      untouched[at] = c.append.cache[at];
      ++at;
    }
  }
  CHECK(wrong == 0);
  CHECK((untouched == c.append.cache));
  return worst;
}

MlaAppendShape SmallShape(Random& random) {
  MlaAppendShape s;
  s.tokens = random.Between(1, 8);
  s.rank = static_cast<int>(random.Between(1, 100));
  s.rope_dim = static_cast<int>(random.Between(0, 40));
  if (random.Chance(50)) {
    s.rank = (s.rank + 7) / 8 * 8;
    s.rope_dim = s.rope_dim / 8 * 8;
  }
  s.rotary_dim = static_cast<int>(2 * random.Between(0, s.rope_dim / 2));
  if (random.Chance(50)) s.rotary_dim = s.rope_dim / 8 * 8;
  s.block_size = 4;
  s.blocks = 3;
  s.num_positions = 20;
  s.style =
      random.OneOf({RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf});
  s.stride_pad = random.OneOf<std::int64_t>({0, 0, 3, 8});
  s.padded_percent = 15;
  return s;
}

template <class In, class Out>
void RandomShapes(unsigned seed) {
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    Worst worst;
    for (int i = 0; i < 40; ++i) {
      const MlaAppendShape shape = SmallShape(random);
      auto c =
          MakeHidden<In, Out>(random, shape, static_cast<int>(random.Between(1, 200)),
                              /*transposed=*/i % 2 == 1, random.OneOf<std::int64_t>({0, 5, 8}));
      c.tf32 = i % 8 == 7;
      OnDevice<In, Out> call(device, c, random.OneOf<std::size_t>({0, 0, 1, 8}));
      const Status status = MlaAppend(device, call.params, Stream{});
      INFO(device.name() << ": T " << shape.tokens << " rank " << shape.rank << " rope "
                         << shape.rope_dim << " model_dim " << c.model_dim << " layout "
                         << c.transposed << " tf32 " << c.tf32 << " " << status.ToString());
      REQUIRE(status.ok());
      const Worst found = CheckHidden(c, call.cache.Read());
      worst.latent = std::max(worst.latent, found.latent);
      worst.key = std::max(worst.key, found.key);
      CHECK(call.fault.Read()[0].kind == FaultKind::kNone);
    }
    INFO(device.name() << ": the largest errors are " << static_cast<double>(worst.latent)
                       << " and " << static_cast<double>(worst.key) << " of their bounds");
    CHECK(worst.latent >= 0.05L);
    CHECK(worst.key >= 0.05L);
  }
}

// The product alone, then the call from the rows that it left.
template <class In, class Out>
std::vector<typename Out::Bits> InTwoSteps(Device& device, const MlaHiddenCase<In, Out>& c) {
  OnDevice<In, Out> call(device, c);
  MlaAppendParams& p = call.params;
  const std::int64_t width = p.rank + p.rope_dim;
  DeviceVector<typename In::Bits> rows(
      device, std::vector<typename In::Bits>(static_cast<std::size_t>(p.num_tokens * width), 0));
  GemmParams g;
  g.dtype = p.in_dtype;
  g.rows = p.num_tokens;
  g.columns = width;
  g.inner = p.model_dim;
  g.a = p.hidden;
  g.a_stride = p.hidden_stride;
  g.layout = p.layout;
  g.w = p.w_down;
  g.w_stride = p.w_down_stride;
  g.c = rows.data();
  g.c_stride = width;
  REQUIRE(device.backend().Gemm(g, Stream{}).ok());
  p.hidden = nullptr;
  p.c_kv = rows.data();
  p.k_pe = rows.data() + p.rank;
  p.c_kv_stride = p.k_pe_stride = width;
  REQUIRE(MlaAppend(device, p, Stream{}).ok());
  return call.cache.Read();
}

}  // namespace

TEST_CASE("mla append from hidden: random shapes in both layouts match the reference") {
  RandomShapes<F32, F32>(1);
  RandomShapes<F16, F16>(2);
  RandomShapes<B16, B16>(3);
  RandomShapes<F32, F16>(4);
  RandomShapes<F32, B16>(5);
}

TEST_CASE("mla append from hidden: equals the product, then given rows, bit for bit, twice") {
  for (Device& device : AvailableDevices()) {
    Random random(6);
    for (const bool transposed : {false, true}) {
      for (const std::int64_t tokens : {1, 7, 130}) {
        if (test::FewCases() && tokens > 1) continue;  // Warmup tries a hundred launches for each
        MlaAppendShape odd = DeepSeek(tokens);
        odd.rank = 45;
        odd.rope_dim = 10;
        odd.rotary_dim = 6;
        for (const MlaAppendShape& shape : {DeepSeek(tokens), odd}) {
          const auto c = MakeHidden<B16, B16>(random, shape, 96, transposed, 0);
          OnDevice<B16, B16> first(device, c), second(device, c);
          REQUIRE(Warmup(device, first.params, Stream{}).ok());
          REQUIRE(MlaAppend(device, first.params, Stream{}).ok());
          REQUIRE(MlaAppend(device, second.params, Stream{}).ok());
          const auto whole = first.cache.Read();
          CHECK((whole == second.cache.Read()));
          CHECK((whole == InTwoSteps(device, c)));
          CHECK(whole != c.append.cache);
        }
      }
    }
  }
}

TEST_CASE("mla append from hidden: no tokens, and tokens that are padded or at fault") {
  for (Device& device : AvailableDevices()) {
    Random random(7);
    const auto none = MakeHidden<F32, F32>(random, DeepSeek(0), 40, false, 0);
    OnDevice<F32, F32> nothing(device, none);
    REQUIRE(MlaAppend(device, nothing.params, Stream{}).ok());
    CHECK((nothing.cache.Read() == none.append.cache));

    // NaN in a padded token's hidden state reaches no row.
    auto c = MakeHidden<F32, F32>(random, DeepSeek(5), 40, false, 0);
    c.append.slots[1] = -1;
    std::fill_n(c.hidden.begin() + 40, 40, F32::kCanonicalNaN);
    OnDevice<F32, F32> padded(device, c);
    REQUIRE(MlaAppend(device, padded.params, Stream{}).ok());
    CheckHidden(c, padded.cache.Read());
    CHECK(padded.fault.Read()[0].kind == FaultKind::kNone);

    c.append.positions[3] = -8;
    c.append.slots[4] = c.append.num_slots;
    OnDevice<F32, F32> faulty(device, c);
    REQUIRE(MlaAppend(device, faulty.params, Stream{}).ok());
    const FaultRecord fault = faulty.fault.Read()[0];
    CHECK(fault.kind == FaultKind::kPosition);
    CHECK(fault.token == 3);
    CHECK(fault.value == -8);
    c.append.slots[3] = c.append.slots[4] = -1;
    CheckHidden(c, faulty.cache.Read());
  }
}

}  // namespace lariat
