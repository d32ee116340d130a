// SPDX-License-Identifier: Apache-2.0
// Down-projections of few tokens with a long model_dim, which CUDA has kernels of its own for, and
// the first shape's kernel: every element within the bounds of docs/numerics.md, and the same bits
// in every kind of launch.
#include <algorithm>

#include "support/compress_runner.h"
#include "support/few_cases.h"

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

constexpr DependentLaunch kKinds[] = {DependentLaunch::kOff, DependentLaunch::kAfterWait,
                                      DependentLaunch::kIndexEarly};

template <class F>
struct Tried {
  double worst = 0, worst_row = 0;

  // On one device, in every kind of launch there; the bits of all of them are equal.
  void Run(Device& device, Random& random, const CompressShape& shape,
           const CompressOptions& given = {}) {
    const auto c = MakeCompress<F>(random, shape);
    const CompressReference<F> expected(c);
    CompressOptions options = given;
    reference::Rows<F> latent, k, v;
    for (const DependentLaunch kind : kKinds) {
      if (kind != kKinds[0] && device.kind() != BackendKind::kCuda) continue;
      options.dependent_launch = kind;
      const auto out = RunCompress(device, c, expected, options);
      worst = std::max(worst, out.worst);
      worst_row = std::max(worst_row, out.worst_row);
      if (kind == kKinds[0]) {
        latent = out.latent;
        k = out.k;
        v = out.v;
      }
      CHECK((out.latent.bits == latent.bits));
      CHECK((out.k.bits == k.bits));
      CHECK((out.v.bits == v.bits));
    }
  }
  void Check(const Device& device) const {
    INFO(device.name() << " " << DTypeName(F::kDType) << ": " << worst << " of the bounds");
    CHECK(worst >= 0.05);
    CHECK(worst <= 1);
  }
};

// Only the down-projection is of interest.
CompressShape Down(std::int64_t tokens, int model_dim, int rank, bool in_out) {
  CompressShape s;
  s.tokens = tokens;
  s.model_dim = model_dim;
  s.rank = rank;
  s.heads = 1;
  s.k_dim = 8;
  s.v_dim = 0;
  s.in_out = in_out;
  return s;
}

template <class F>
void Shapes(unsigned seed) {
  struct Size {
    std::int64_t tokens;
    int model_dim, rank;
  };
  // Around what a block, a warp and a tile have; inner dimensions that are no multiple of a step,
  // more than all stages at once, and parts of a cluster that have nothing to do.
  const Size sizes[] = {{1, 2048, 576},  {1, 8456, 8},    {2, 2056, 44},   {3, 9000, 40},
                        {8, 7168, 512},  {15, 2176, 84},  {16, 2048, 616}, {17, 2056, 100},
                        {31, 2048, 120}, {32, 2304, 400}, {33, 8456, 48},  {63, 2048, 24},
                        {64, 2176, 644}, {65, 2048, 64},  {5, 2048, 1000}, {4, 18000, 16}};
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    Tried<F> tried;
    test::CaseCounter counter(5);  // some of each number of rows that a kernel is made for
    for (const Size& size : sizes) {
      for (const bool in_out : {true, false}) {
        if (counter.LeaveOut()) continue;
        CompressShape s = Down(size.tokens, size.model_dim, size.rank, in_out);
        if (random.Chance(40)) s.stride_pad = random.OneOf<std::int64_t>({4, 8, 24});
        if (random.Chance(40)) s.weight_pad = random.OneOf<std::int64_t>({4, 8, 24});
        tried.Run(device, random, s);
      }
    }
    if (!test::FewCases()) tried.Check(device);
  }
}

}  // namespace

TEST_CASE("skinny products: down-projections of few tokens match the reference, bf16") {
  Shapes<B16>(11);
}
TEST_CASE("skinny products: down-projections of few tokens match the reference, fp16") {
  Shapes<F16>(12);
}

TEST_CASE("skinny products: an address off a boundary takes another way, with the same bounds") {
  for (Device& device : AvailableDevices()) {
    Random random(13);
    Tried<B16> tried;
    for (const std::size_t offset : {1, 2, 4, 8}) {
      for (const std::int64_t tokens : {1, 9}) {
        CompressOptions options;
        options.offset = offset;
        tried.Run(device, random, Down(tokens, 2048, 64, false), options);
        options.weight_offset = offset;
        options.offset = 0;
        tried.Run(device, random, Down(tokens, 2048, 64, true), options);
      }
    }
    tried.Check(device);
  }
}

// A token of NaNs and one of infinities spoil their own rows alone, whatever the kernel.
TEST_CASE("skinny products: NaNs and infinities stay in their rows") {
  for (Device& device : AvailableDevices()) {
    for (const bool in_out : {true, false}) {
      Random random(14);
      const CompressShape s = Down(20, 2048, 48, in_out);
      auto c = MakeCompress<B16>(random, s);
      const auto clean = RunCompress(device, c, CompressReference<B16>(c));
      const auto row = [&](std::int64_t t) { return c.hidden.bits.begin() + t * c.hidden.stride; };
      std::fill_n(row(3), 2048, std::uint16_t{0x7F85});
      std::fill_n(row(17), 2048, std::uint16_t{0x7F80});
      testing::DeviceVector<std::uint16_t> hidden(device, c.hidden.bits),
          down(device, c.w_down.bits), up(device, c.w_up_k.bits);
      testing::DeviceVector<std::uint16_t> k(device, std::vector<std::uint16_t>(20 * 8)),
          latent(device, std::vector<std::uint16_t>(20 * 48));
      MlaCompressParams p = testing::ShapeOf(c, true);
      p.hidden = hidden.data();
      p.w_down = down.data();
      p.w_up_k = up.data();
      p.k = k.data();
      p.latent = latent.data();
      REQUIRE(MlaCompress(device, p, Stream{}).ok());
      const auto got = latent.Read();
      for (std::int64_t t = 0; t < 20; ++t) {
        for (std::int64_t i = 0; i < 48; ++i) {
          const std::uint16_t bits = got[static_cast<std::size_t>(t * 48 + i)];
          if (t == 3) {
            CHECK(bits == 0x7FC0);  // canonical
          } else if (t == 17) {
            CHECK((bits & 0x7F80) == 0x7F80);
          } else {
            CHECK(bits == clean.latent.bits[static_cast<std::size_t>(t * 48 + i)]);
          }
        }
      }
    }
  }
}

TEST_CASE("compress: the first shape's kernel, any number of tokens, in every kind of launch") {
  for (Device& device : AvailableDevices()) {
    Random random(15);
    Tried<F32> tried;
    CompressShape s;  // the first shape's widths
    CompressOptions options;
    for (const std::int64_t tokens : {1, 2, 3, 4, 95, 384, 400}) {
      s.tokens = tokens;
      for (const bool packed : {false, true}) {
        s.stride_pad = random.OneOf<std::int64_t>({0, 1, 4});
        options.stacked = tokens % 2 == 0;
        options.packed = packed;
        tried.Run(device, random, s, options);
      }
    }
    // What it does not take: rows of weights apart, other widths of K and V.
    s.weight_pad = 4;
    options.packed = false;
    tried.Run(device, random, s, options);
    s.weight_pad = 0;
    s.k_dim = 8;
    s.v_dim = 56;
    tried.Run(device, random, s, options);
    tried.Check(device);
  }
}

}  // namespace lariat
