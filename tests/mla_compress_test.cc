// SPDX-License-Identifier: Apache-2.0
// MlaCompress against the reference of tests/reference, on every device that answers, by every path
// that it has there.
#include <limits>

#include "backend/backend.h"
#include "support/compress_runner.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::AvailableDevices;
using testing::CompressOptions;
using testing::CompressReference;
using testing::CompressShape;
using testing::MakeCompress;
using testing::Random;
using testing::RunCompress;

// Evenly by the power of two.
int LogBetween(Random& random, int low, int high) {
  int bits = 0;
  while ((low << (bits + 1)) <= high) ++bits;
  const std::int64_t from = std::int64_t{low} << random.Between(0, bits);
  return static_cast<int>(random.Between(from, std::min<std::int64_t>(2 * from - 1, high)));
}

// Any widths, as long as there are no more than so many multiply-adds.
CompressShape RandomShape(Random& random, std::int64_t most_work) {
  for (;;) {
    CompressShape s;
    s.tokens = random.Chance(3) ? 0 : LogBetween(random, 1, 4096);
    s.model_dim = LogBetween(random, 1, 2048);
    s.rank = LogBetween(random, 1, 1536);
    s.heads = LogBetween(random, 1, 128);
    s.k_dim = LogBetween(random, 8, 256);
    s.v_dim = random.Chance(60) ? s.k_dim : LogBetween(random, 8, 256);
    if (random.Chance(10)) s.v_dim = 0;
    if (random.Chance(50)) {
      s.model_dim = (s.model_dim + 7) / 8 * 8;
      s.rank = (s.rank + 7) / 8 * 8;
      s.k_dim = s.k_dim / 8 * 8;
      s.v_dim = s.v_dim / 8 * 8;
    }
    s.in_out = random.Chance(60);
    if (random.Chance(40)) s.stride_pad = random.OneOf<std::int64_t>({1, 2, 3, 8, 16});
    if (random.Chance(40)) s.weight_pad = random.OneOf<std::int64_t>({1, 2, 3, 8, 16});
    const std::int64_t weights =
        s.rank * (s.model_dim + std::int64_t{s.heads} * (s.k_dim + s.v_dim));
    if ((s.tokens + 4) * weights <= most_work) return s;
  }
}

CompressOptions RandomOptions(Random& random, const CompressShape& s) {
  CompressOptions options;
  if (random.Chance(30)) options.offset = static_cast<std::size_t>(random.Between(1, 8));
  if (random.Chance(30)) options.weight_offset = static_cast<std::size_t>(random.Between(1, 8));
  options.packed = random.Chance(40);
  options.stacked = s.v_dim > 0 && random.Chance(50);
  options.want_latent = random.Chance(60);
  const bool contiguous = s.stride_pad == 0 && s.weight_pad == 0 && !options.stacked;
  options.default_strides = contiguous && random.Chance(50);
  return options;
}

// The paths that a case can take on a device.
template <class F>
std::vector<MlaPath> PathsOf(const Device& device, const reference::MlaCompressCase<F>& c) {
  if (device.backend().FusedFits(testing::ShapeOf(c, false))) {
    return {MlaPath::kAuto, MlaPath::kFused, MlaPath::kGemm};
  }
  return {MlaPath::kAuto};
}

struct Worst {
  double element = 0, row = 0;
  template <class F>
  void Add(const testing::CompressOutcome<F>& out) {
    element = std::max(element, out.worst);
    row = std::max(row, out.worst_row);
  }
  // The bounds must be met, and must not be so wide that they say nothing.
  void Check() const {
    CHECK(element >= 0.05);
    CHECK(element <= 1);
    CHECK(row >= 0.05);
    CHECK(row <= 1);
  }
};

template <class F>
void RandomShapes(unsigned seed) {
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    Worst all, fused;
    for (int i = 0; i < 40; ++i) {
      const CompressShape shape = RandomShape(random, 2'000'000);
      const auto c = MakeCompress<F>(random, shape);
      const CompressReference<F> expected(c);
      CompressOptions options = RandomOptions(random, shape);
      for (const MlaPath path : PathsOf(device, c)) {
        options.path = path;
        const auto out = RunCompress(device, c, expected, options);
        all.Add(out);
        if (path == MlaPath::kFused) fused.Add(out);
      }
    }
    INFO(device.name() << " " << DTypeName(F::kDType) << ": " << all.element << " of the bounds, "
                       << all.row << " of those by row");
    all.Check();
    if (device.kind() == BackendKind::kCuda) fused.Check();
  }
}

CompressShape Seed() {
  CompressShape s;
  s.tokens = 4 * 96;
  return s;
}

}  // namespace

TEST_CASE("compress: the seed shape, in every type, layout and path") {
  const auto run = [](auto format, unsigned seed) {
    using F = decltype(format);
    for (Device& device : AvailableDevices()) {
      Random random(seed);
      Worst worst;
      for (const bool in_out : {true, false}) {
        CompressShape shape = Seed();
        shape.in_out = in_out;
        const auto c = MakeCompress<F>(random, shape);
        const CompressReference<F> expected(c);
        for (const MlaPath path : PathsOf(device, c)) {
          CompressOptions options;
          options.path = path;
          options.default_strides = true;
          worst.Add(RunCompress(device, c, expected, options));
          options.default_strides = false;
          options.packed = options.stacked = true;
          options.want_latent = false;
          worst.Add(RunCompress(device, c, expected, options));
        }
        const bool fused = device.kind() == BackendKind::kCuda && in_out;
        CHECK(MlaCompressPathOf(device, testing::ShapeOf(c, true)) ==
              (fused ? MlaPath::kFused : MlaPath::kGemm));
      }
      worst.Check();
    }
  };
  run(F32{}, 1);
  run(F16{}, 2);
  run(B16{}, 3);
}

TEST_CASE("compress: random shapes match the reference, fp32") { RandomShapes<F32>(4); }
TEST_CASE("compress: random shapes match the reference, fp16") { RandomShapes<F16>(5); }
TEST_CASE("compress: random shapes match the reference, bf16") { RandomShapes<B16>(6); }

TEST_CASE("compress: the ends of every range") {
  const CompressShape shapes[] = {{1, 1, 1, 1, 1, 0},
                                  {2, 1, 1, 1, 1, 1},
                                  {1, 7, 1536, 1, 8, 8},
                                  {3, 5, 2, 128, 256, 256},
                                  {4096, 9, 3, 1, 8, 16},
                                  {1, 8192, 3, 1, 16, 16},
                                  {7, 64, 1030, 1, 16, 0, true, 0, 2},
                                  {5, 300, 70, 3, 100, 77},
                                  {600, 24, 8, 2, 8, 8}};
  for (Device& device : AvailableDevices()) {
    Random random(7);
    for (CompressShape shape : shapes) {
      for (const bool in_out : {true, false}) {
        shape.in_out = in_out;
        const auto narrow = MakeCompress<B16>(random, shape);
        const auto wide = MakeCompress<F32>(random, shape);
        const CompressReference<B16> narrow_expected(narrow);
        const CompressReference<F32> wide_expected(wide);
        for (const MlaPath path : PathsOf(device, wide)) {
          CompressOptions options;
          options.path = path;
          RunCompress(device, narrow, narrow_expected, options);
          RunCompress(device, wide, wide_expected, options);
        }
      }
    }
  }
}

// K56: pointers and row pitches that are not multiples of a vector, of tokens, of weights, of both.
TEST_CASE("compress: alignment does not matter") {
  for (Device& device : AvailableDevices()) {
    Random random(8);
    for (const auto& [pad, weight_pad] : {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 6}, {4, 4}}) {
      CompressShape shape = Seed();
      shape.tokens = 9;
      shape.stride_pad = pad;
      shape.weight_pad = weight_pad;
      const auto wide = MakeCompress<F32>(random, shape);
      const auto narrow = MakeCompress<F16>(random, shape);
      const CompressReference<F32> wide_expected(wide);
      const CompressReference<F16> narrow_expected(narrow);
      for (const auto& [offset, weight_offset] :
           {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 2}, {4, 4}}) {
        for (const MlaPath path : PathsOf(device, wide)) {
          CompressOptions options;
          options.path = path;
          options.offset = static_cast<std::size_t>(offset);
          options.weight_offset = static_cast<std::size_t>(weight_offset);
          RunCompress(device, wide, wide_expected, options);
          options.packed = options.stacked = true;
          RunCompress(device, narrow, narrow_expected, options);
        }
      }
    }
  }
}

TEST_CASE("compress: the same bits on every run, with and without the latent") {
  const auto run = [](Device& device, auto format, const CompressShape& shape) {
    using F = decltype(format);
    Random random(9);
    const auto c = MakeCompress<F>(random, shape);
    const CompressReference<F> expected(c);
    for (const MlaPath path : PathsOf(device, c)) {
      CompressOptions options;
      options.path = path;
      const auto first = RunCompress(device, c, expected, options);
      const auto second = RunCompress(device, c, expected, options);
      options.want_latent = false;
      const auto third = RunCompress(device, c, expected, options);
      CHECK((first.latent.bits == second.latent.bits));
      CHECK((first.k.bits == second.k.bits));
      CHECK((first.v.bits == second.v.bits));
      CHECK((first.k.bits == third.k.bits));
      CHECK((first.v.bits == third.v.bits));
    }
  };
  for (Device& device : AvailableDevices()) {
    for (const std::int64_t tokens : {1, 65, 401}) {
      CompressShape shape = Seed();
      shape.tokens = tokens;
      run(device, F32{}, shape);
      run(device, B16{}, shape);
      shape.in_out = false;
      run(device, F16{}, shape);
    }
  }
}

// K48: what does not belong to a token reaches none of its results.
TEST_CASE("compress: a token of NaNs, or of infinities, stays alone") {
  const auto run = [](Device& device, auto format) {
    using F = decltype(format);
    using Bits = typename F::Bits;
    Random random(10);
    CompressShape shape = Seed();
    shape.tokens = 11;
    shape.rank = 45;
    auto c = MakeCompress<F>(random, shape);
    const CompressReference<F> expected(c);
    for (const MlaPath path : PathsOf(device, c)) {
      CompressOptions options;
      options.path = path;
      const auto clean = RunCompress(device, c, expected, options);
      for (const Bits bad : {F::kCanonicalNaN, F::kExponentMask}) {
        auto dirty = c;
        for (const std::int64_t t : {2, 10}) {
          for (std::int64_t i = 0; i < c.model_dim; ++i) {
            dirty.hidden.bits[static_cast<std::size_t>(t * c.hidden.stride + i)] = bad;
          }
        }
        testing::DeviceVector<Bits> hidden(device, dirty.hidden.bits);
        testing::DeviceVector<Bits> w_down(device, c.w_down.bits);
        testing::DeviceVector<Bits> w_up_k(device, c.w_up_k.bits), w_up_v(device, c.w_up_v.bits);
        testing::DeviceVector<Bits> k(device, std::vector<Bits>(11 * 128));
        testing::DeviceVector<Bits> v(device, std::vector<Bits>(11 * 128));
        MlaCompressParams p = testing::ShapeOf(c, true);
        p.path = path;
        p.hidden = hidden.data();
        p.w_down = w_down.data();
        p.w_up_k = w_up_k.data();
        p.w_up_v = w_up_v.data();
        p.k = k.data();
        p.v = v.data();
        REQUIRE(MlaCompress(device, p, Stream{}).ok());
        const std::vector<Bits> got = k.Read();
        for (std::size_t i = 0; i < got.size(); ++i) {
          const bool is_bad = i / 128 == 2 || i / 128 == 10;
          if (is_bad && !F::IsNaN(got[i])) FAIL("k[" << i << "] should be NaN");
          if (!is_bad && got[i] != clean.k.bits[i]) FAIL("k[" << i << "] has changed");
        }
      }
    }
  };
  for (Device& device : AvailableDevices()) {
    run(device, F32{});
    run(device, F16{});
    run(device, B16{});
  }
}

TEST_CASE("compress: TF32 where it is allowed") {
  for (Device& device : AvailableDevices()) {
    Random random(11);
    for (const bool in_out : {true, false}) {
      CompressShape shape = Seed();
      shape.tokens = 129;
      shape.rank = 128;
      shape.in_out = in_out;
      auto c = MakeCompress<F32>(random, shape);
      c.tf32 = true;
      const CompressReference<F32> expected(c);
      for (const MlaPath path : PathsOf(device, c)) {
        CompressOptions options;
        options.path = path;
        RunCompress(device, c, expected, options);
      }
    }
  }
}

TEST_CASE("compress: both paths around the number of tokens where they change places") {
  auto device = Device::Create(BackendKind::kCuda);
  if (!device.ok()) LARIAT_SKIP("no CUDA device answers");
  for (const int rank : {8, 48, 64}) {
    Random random(12);
    CompressShape shape = Seed();
    shape.rank = rank;
    MlaCompressParams p = testing::ShapeOf(MakeCompress<F32>(random, shape), true);
    const auto fused = [&](std::int64_t tokens) {
      p.num_tokens = tokens;
      return MlaCompressPathOf(*device, p) == MlaPath::kFused;
    };
    REQUIRE(fused(1));
    // Fewer tokens are never the slower ones: a Warmup for many serves them all.
    std::int64_t low = 1, high = std::int64_t{1} << 24;
    REQUIRE_FALSE(fused(high));
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (fused(middle) ? low : high) = middle;
    }
    for (std::int64_t tokens = 1; tokens < low; tokens += low / 37 + 1) CHECK(fused(tokens));
    for (std::int64_t tokens = high; tokens < 8 * high; tokens += high / 5) {
      CHECK_FALSE(fused(tokens));
    }
    if (low * rank > 200'000) low = 200'000 / rank;  // what the reference has time for
    for (shape.tokens = low - 1; shape.tokens <= low + 2; ++shape.tokens) {
      const auto c = MakeCompress<F32>(random, shape);
      const CompressReference<F32> expected(c);
      for (const MlaPath path : PathsOf(*device, c)) {
        CompressOptions options;
        options.path = path;
        RunCompress(*device, c, expected, options);
      }
    }
  }
}

}  // namespace lariat
