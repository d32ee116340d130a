// SPDX-License-Identifier: Apache-2.0
// MlaExpand against the reference of tests/reference, on every device that answers.
#include <memory>

#include "support/backend_decorator.h"
#include "support/expand_runner.h"
#include "support/few_cases.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::AvailableDevices;
using testing::DeepSeek;
using testing::DeviceVector;
using testing::ExpandOptions;
using testing::ExpandShape;
using testing::MakeExpand;
using testing::Random;
using testing::RunExpand;

ExpandShape RandomShape(Random& random) {
  ExpandShape s;
  s.heads = static_cast<int>(random.Between(1, random.Chance(10) ? 128 : 6));
  s.rank = static_cast<int>(random.Between(1, random.Chance(10) ? 1536 : 96));
  const auto width = [&](int most) {
    return random.Chance(15) ? 0 : static_cast<int>(random.Between(1, most));
  };
  const int most = static_cast<int>(400'000 / (std::int64_t{s.heads} * s.rank)) / 8;
  s.nope_dim = width(std::clamp(most, 1, 64));
  s.v_dim = width(std::clamp(most, 1, 64));
  s.rope_dim = width(40);
  if (random.Chance(50)) {  // aligned
    s.rank = (s.rank + 7) / 8 * 8;
    s.rope_dim = (s.rope_dim + 7) / 8 * 8;
    s.nope_dim = (s.nope_dim + 7) / 8 * 8;
  }
  s.transposed = random.Chance(50);
  s.counts.clear();
  for (std::int64_t r = random.Between(0, 6); r > 0; --r) {
    s.counts.push_back(random.Chance(30) ? 0 : random.Between(1, 9));
  }
  s.with_starts = random.Chance(60);
  s.padding = random.Chance(40) ? random.Between(1, 5) : 0;
  s.block_size = static_cast<int>(random.OneOf<std::int64_t>({1, 2, 3, 16, 64}));
  s.spare_blocks = random.Between(0, 3);
  s.stride_pad = random.Chance(50) ? 0 : random.OneOf<std::int64_t>({1, 3, 8, 16});
  return s;
}

template <class F>
void RandomShapes(unsigned seed) {
  // The bound must be met, and must not be so wide that it says nothing.
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    double worst = 0;
    for (int i = 0; i < 60; ++i) {
      const ExpandShape shape = RandomShape(random);
      ExpandOptions options;
      if (random.Chance(30)) options.offset = static_cast<std::size_t>(random.Between(1, 8));
      options.indirect_fault = random.Chance(50);
      options.default_strides = shape.stride_pad == 0;
      worst = std::max(worst, RunExpand(device, MakeExpand<F>(random, shape), options).worst);
    }
    CAPTURE(device.name(), worst);
    CHECK(worst >= 0.05);
    CHECK(worst <= 1.0);
  }
}

// The products of calls and of Warmups, and the scratch that either asked for.
class Recorder : public testing::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  Status Gemm(const GemmParams& params, Stream stream) override {
    run.push_back(params);
    return refuse ? DeviceError("refused") : BackendDecorator::Gemm(params, stream);
  }
  Status WarmupGemm(const GemmParams& params, Stream stream) override {
    warmed.push_back(params);
    return refuse ? DeviceError("refused") : BackendDecorator::WarmupGemm(params, stream);
  }
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream stream) override {
    scratch.push_back(bytes);
    return refuse_scratch ? ResourceExhausted("refused")
                          : BackendDecorator::Scratch(use, bytes, stream);
  }
  std::vector<GemmParams> run, warmed;
  std::vector<std::size_t> scratch;
  bool refuse = false, refuse_scratch = false;
};

// Whether an algorithm chosen for one product serves the other, of another number of rows.
bool SameAlgorithm(const GemmParams& a, const GemmParams& b) {
  const auto alignment = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16;
  };
  return a.dtype == b.dtype && a.allow_tf32 == b.allow_tf32 && a.columns == b.columns &&
         a.inner == b.inner && a.a_stride == b.a_stride && a.layout == b.layout &&
         a.w_stride == b.w_stride && a.c_stride == b.c_stride && a.batch == b.batch &&
         a.w_batch_stride == b.w_batch_stride && a.c_batch_stride == b.c_batch_stride &&
         alignment(a.a) == alignment(b.a) && alignment(a.w) == alignment(b.w) &&
         alignment(a.c) == alignment(b.c);
}

}  // namespace

TEST_CASE("expand: random ranges, layouts and strides match the reference in fp32") {
  RandomShapes<F32>(1);
}

TEST_CASE("expand: random ranges, layouts and strides match the reference in 16 bits") {
  RandomShapes<F16>(2);
  RandomShapes<B16>(3);
}

TEST_CASE("expand: the widths of DeepSeek-V3, blocks of 1, 16 and 64") {
  for (Device& device : AvailableDevices()) {
    Random random(4);
    for (const int block_size : {1, 16, 64}) {
      ExpandShape s = DeepSeek({7, 0, 3});
      s.block_size = block_size;
      s.with_starts = true;
      s.transposed = block_size == 16;
      RunExpand(device, MakeExpand<B16>(random, s));
    }
    ExpandShape all = DeepSeek({3});
    all.heads = 128;
    RunExpand(device, MakeExpand<B16>(random, all));
  }
}

// In 16 bits the rounding at the end hides the sum's error; here the sums themselves are looked at,
// up to the longest.
TEST_CASE("expand: long sums stay within the bound of fp32, and near it") {
  for (Device& device : AvailableDevices()) {
    Random random(5);
    double worst = 0;
    for (const int rank : {64, 512, 1536}) {
      ExpandShape s;
      s.heads = 3;
      s.rank = rank;
      s.nope_dim = 40;
      s.v_dim = 24;
      s.counts = {40};
      auto c = MakeExpand<F32>(random, s);
      const auto plain = RunExpand(device, c);
      worst = std::max(worst, plain.worst);
      // TF32 is allowed, not asked for: the CPU's bits do not change.
      c.tf32 = true;
      const auto tf32 = RunExpand(device, c);
      if (device.kind() == BackendKind::kCpu) CHECK((plain.k == tf32.k));
    }
    CAPTURE(device.name(), worst);
    CHECK(worst >= 0.05);
  }
}

TEST_CASE("expand: parts of width 0 are left out") {
  for (Device& device : AvailableDevices()) {
    Random random(6);
    for (int without = 0; without < 8; ++without) {
      ExpandShape s;
      s.rank = 24;
      if ((without & 1) != 0) s.nope_dim = 0;
      if ((without & 2) != 0) s.rope_dim = 0;
      if ((without & 4) != 0) s.v_dim = 0;
      s.padding = 2;
      RunExpand(device, MakeExpand<F32>(random, s));
      RunExpand(device, MakeExpand<F16>(random, s));
    }
  }
}

TEST_CASE("expand: no tokens, one token, no ranges") {
  for (Device& device : AvailableDevices()) {
    Random random(7);
    ExpandShape s;
    for (const auto& counts : {std::vector<std::int64_t>{}, {0}, {0, 0, 0}, {1}, {0, 1, 0}}) {
      for (const std::int64_t padding : {0, 1, 4}) {
        s.counts = counts;
        s.padding = padding;
        RunExpand(device, MakeExpand<B16>(random, s));
      }
    }
    // Nothing is needed where there is nothing to do.
    MlaExpandParams p;
    p.heads = 1;
    p.rank = 1;
    CHECK(MlaExpand(device, p, Stream{}).ok());
    // Rows of no range need no ranges, and no cache.
    s.counts = {};
    s.padding = 3;
    const auto c = MakeExpand<F32>(random, s);
    DeviceVector<std::uint32_t> w(device, c.w), k(device, c.k), v(device, c.v);
    p = testing::ShapeOf(c, true);
    p.num_blocks = p.block_table_stride = 0;
    p.w_kv_b = w.data();
    p.k = k.data();
    p.v = v.data();
    REQUIRE(MlaExpand(device, p, Stream{}).ok());
    CHECK((k.Read() == std::vector<std::uint32_t>(c.k.size(), 0)));
    CHECK((v.Read() == std::vector<std::uint32_t>(c.v.size(), 0)));
  }
}

// Fewer output rows than the ranges have: a caller that cuts its batch.
TEST_CASE("expand: rows past num_tokens are not written") {
  for (Device& device : AvailableDevices()) {
    Random random(8);
    ExpandShape s;
    s.counts = {5, 6};
    auto c = MakeExpand<B16>(random, s);
    c.tokens = 7;
    RunExpand(device, c);
  }
}

TEST_CASE("expand: many ranges, most of them empty") {
  for (Device& device : AvailableDevices()) {
    Random random(9);
    for (const int ranges : {31, 32, 33, 1000, 1057}) {
      ExpandShape s;
      s.heads = 1;
      s.rank = s.nope_dim = s.v_dim = s.rope_dim = 2;
      s.counts.clear();
      for (int r = 0; r < ranges; ++r) s.counts.push_back(random.Chance(70) ? 0 : 1);
      s.with_starts = random.Chance(50);
      s.padding = random.Between(0, 2);
      RunExpand(device, MakeExpand<F32>(random, s));
      // All tokens in one range, at any place among empty ones.
      std::fill(s.counts.begin(), s.counts.end(), 0);
      s.counts[static_cast<std::size_t>(random.Between(0, ranges - 1))] = 9;
      RunExpand(device, MakeExpand<F32>(random, s));
    }
  }
}

TEST_CASE("expand: k and v may be columns of one buffer") {
  for (Device& device : AvailableDevices()) {
    Random random(10);
    const ExpandShape s;
    const auto c = MakeExpand<F32>(random, s);
    const auto expected = reference::MlaExpand(c);
    const std::int64_t stride = c.k_stride + c.v_stride + 3;
    DeviceVector<std::uint32_t> both(
        device, std::vector<std::uint32_t>(static_cast<std::size_t>(c.tokens * stride), 7));
    DeviceVector<std::uint32_t> w(device, c.w), cache(device, c.cache);
    DeviceVector<std::int32_t> cu_tokens(device, c.cu_tokens), table(device, c.block_table);
    MlaExpandParams p = testing::ShapeOf(c, true);
    p.w_kv_b = w.data();
    p.cache = cache.data();
    p.cu_tokens = cu_tokens.data();
    p.block_table = table.data();
    p.k = both.data();
    p.v = both.data() + c.k_stride;
    p.k_token_stride = p.v_token_stride = stride;
    REQUIRE(MlaExpand(device, p, Stream{}).ok());
    std::vector<std::uint32_t> k, v;
    const auto rows = both.Read();
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const auto row = rows.begin() + t * stride;
      k.insert(k.end(), row, row + c.k_stride);
      v.insert(v.end(), row + c.k_stride, row + c.k_stride + c.v_stride);
      CHECK(std::all_of(row + stride - 3, row + stride, [](auto bits) { return bits == 7; }));
    }
    testing::CheckProducts<F32>("k", expected.k, k);
    testing::CheckProducts<F32>("v", expected.v, v);
  }
}

TEST_CASE("expand: Warmup gets ready what a call takes, before any memory is known") {
  Result<std::shared_ptr<Backend>> cpu = MakeBackend(BackendKind::kCpu, 0);
  REQUIRE(cpu.ok());
  Random random(16);
  for (const bool transposed : {false, true}) {
    for (const int nope_dim : {6, 0}) {
      const auto backend = std::make_shared<Recorder>(*cpu);
      Device device(backend);
      ExpandShape s;
      s.heads = 3;
      s.rank = 20;
      s.nope_dim = nope_dim;
      s.transposed = transposed;
      const auto c = MakeExpand<B16>(random, s);
      MlaExpandParams p = testing::ShapeOf(c, true);
      p.num_tokens = 100;
      REQUIRE(Warmup(device, p, Stream{}).ok());
      REQUIRE(backend->run.empty());
      REQUIRE(backend->scratch == std::vector<std::size_t>{100 * 20 * 2});
      const Result<std::int64_t> bytes = WorkspaceBytes(device, p);
      REQUIRE(bytes.ok());
      CHECK(*bytes == 100 * 20 * 2);
      RunExpand(device, c);
      REQUIRE(backend->warmed.size() == (nope_dim > 0 ? 2 : 1));
      for (const GemmParams& product : backend->run) {
        CHECK(std::any_of(backend->warmed.begin(), backend->warmed.end(), [&](const auto& warm) {
          return warm.rows == 100 && SameAlgorithm(product, warm);
        }));
      }
      CHECK(backend->run.size() == 2 * backend->warmed.size());  // the runner calls twice
    }
  }
}

TEST_CASE("expand: what a backend refuses comes back") {
  Result<std::shared_ptr<Backend>> null = MakeBackend(BackendKind::kNull, 0);
  REQUIRE(null.ok());
  const auto backend = std::make_shared<Recorder>(*null);
  Device device(backend);
  Random random(17);
  const MlaExpandParams p = testing::ShapeOf(MakeExpand<B16>(random, ExpandShape{}), true);
  backend->refuse = true;
  CHECK(MlaExpand(device, p, Stream{}).code() == Code::kDeviceError);
  CHECK(Warmup(device, p, Stream{}).code() == Code::kDeviceError);
  CHECK(backend->run.size() + backend->warmed.size() == 2);  // none behind the first
  backend->refuse_scratch = true;
  CHECK(MlaExpand(device, p, Stream{}).code() == Code::kResourceExhausted);
  CHECK(Warmup(device, p, Stream{}).code() == Code::kResourceExhausted);
}

TEST_CASE("expand: a device that has warmed up and one that has not give the same bits") {
  for (Device& device : AvailableDevices()) {
    Random random(18);
    // Warmup tries a hundred launches for each power of two.
    ExpandShape s = DeepSeek({test::FewCases() ? 3 : 33});
    s.heads = 3;
    const auto c = MakeExpand<B16>(random, s);
    MlaExpandParams p = testing::ShapeOf(c, false);
    p.num_tokens = test::FewCases() ? 4 : 100;
    REQUIRE(Warmup(device, p, Stream{}).ok());
    const auto got = RunExpand(device, c);
    Result<Device> cold = Device::Create(device.kind());
    REQUIRE(cold.ok());
    const auto again = RunExpand(*cold, c);
    CHECK((got.k == again.k));
    CHECK((got.v == again.v));
  }
}

}  // namespace lariat
