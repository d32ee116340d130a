// SPDX-License-Identifier: Apache-2.0
// MlaAppend from given rows against the reference of tests/reference, on every device that answers.
#include "support/few_cases.h"
#include "support/mla_append_runner.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::AvailableDevices;
using testing::DeepSeek;
using testing::DeviceVector;
using testing::MakeMlaAppend;
using testing::MlaAppendOptions;
using testing::MlaAppendShape;
using testing::Random;
using testing::RunMlaAppend;

MlaAppendShape RandomShape(Random& random) {
  MlaAppendShape s;
  s.tokens = random.Between(1, 12);
  s.rank = static_cast<int>(random.Between(1, random.Chance(30) ? 1536 : 300));
  s.rope_dim = static_cast<int>(random.Between(0, 128));
  if (random.Chance(50)) {
    s.rank = (s.rank + 7) / 8 * 8;
    s.rope_dim = s.rope_dim / 8 * 8;
  }
  s.rotary_dim = s.rope_dim / 2 * 2;
  if (random.Chance(40)) s.rotary_dim = static_cast<int>(2 * random.Between(0, s.rope_dim / 2));
  if (random.Chance(50)) s.rotary_dim = s.rotary_dim / 8 * 8;
  s.block_size = static_cast<int>(random.OneOf<std::int64_t>({1, 2, 3, 7, 16, 64}));
  s.blocks = random.Between(1, 30 / s.block_size + 1);
  s.num_positions = random.Between(1, 50);
  s.style =
      random.OneOf({RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf});
  s.eps = random.OneOf({1e-6F, 1e-5F, 0.0F, 0.25F});
  s.normed = random.Chance(85);
  s.stride_pad = random.Chance(50) ? 0 : random.OneOf<std::int64_t>({1, 3, 8, 16});
  s.padded_percent = random.Chance(50) ? 20 : 0;
  s.bad_percent = random.Chance(30) ? 5 : 0;
  s.two_tables = random.Chance(30);
  return s;
}

template <class In, class Out>
void RandomShapes(unsigned seed) {
  // The bound must be met, and must not be so wide that it says nothing.
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    long double worst = 0;
    for (int i = 0; i < 60; ++i) {
      const MlaAppendShape shape = RandomShape(random);
      MlaAppendOptions options;
      if (random.Chance(30)) options.offset = static_cast<std::size_t>(random.Between(1, 8));
      options.indirect_fault = random.Chance(20);
      options.default_strides = shape.stride_pad == 0 && random.Chance(50);
      const auto c = MakeMlaAppend<In, Out>(random, shape);
      const auto got = RunMlaAppend(device, c, options);
      if (shape.normed) worst = std::max(worst, got.worst);
    }
    INFO(device.name() << ": the largest error of a normed latent is " << static_cast<double>(worst)
                       << " of its bound");
    CHECK(worst >= 0.05L);
    CHECK(worst <= 1.0L);
  }
}

template <class In, class Out>
std::vector<typename Out::Bits> RowOf(const reference::MlaAppendCase<In, Out>& c,
                                      const std::vector<typename Out::Bits>& cache,
                                      std::int64_t token) {
  const std::int64_t slot = c.slots[static_cast<std::size_t>(token)];
  const auto first =
      cache.begin() + slot / c.block_size * c.block_stride + slot % c.block_size * c.row_stride;
  return {first, first + c.rank + c.rope_dim};
}

}  // namespace

TEST_CASE("mla append: random shapes in every pair of types match the reference") {
  RandomShapes<F32, F32>(1);
  RandomShapes<F16, F16>(2);
  RandomShapes<B16, B16>(3);
  RandomShapes<F32, F16>(4);
  RandomShapes<F32, B16>(5);
}

// Around the ends of chunks (8), of lanes (256) and of what a kernel keeps in registers (512).
TEST_CASE("mla append: ranks 1 to 65536") {
  for (Device& device : AvailableDevices()) {
    Random random(6);
    for (const int rank :
         {1, 2, 7, 8, 9, 16, 255, 256, 257, 264, 511, 512, 513, 520, 768, 1536, 2048, 4099}) {
      MlaAppendShape s;
      s.tokens = 3;
      s.rank = rank;
      s.rope_dim = s.rotary_dim = random.OneOf({0, 6, 8, 64});
      s.blocks = 3;
      RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, s));
      RunMlaAppend(device, MakeMlaAppend<F32, F32>(random, s));
      s.normed = false;
      RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, s));
      RunMlaAppend(device, MakeMlaAppend<F32, F16>(random, s));
    }
    MlaAppendShape wide;
    wide.rank = 65536;
    RunMlaAppend(device, MakeMlaAppend<F32, F32>(random, wide));
    wide.rank = 65535;
    RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, wide));
  }
}

TEST_CASE("mla append: rope widths 0 to 65536, whole and partial rotation, every style") {
  for (Device& device : AvailableDevices()) {
    Random random(7);
    test::CaseCounter counter;
    for (const RopeStyle style :
         {RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf}) {
      for (const int rope_dim : {0, 1, 2, 7, 8, 16, 63, 64, 72, 128, 320, 513}) {
        MlaAppendShape s;
        s.tokens = 4;
        s.rank = 24;
        s.rope_dim = rope_dim;
        s.blocks = 4;
        s.num_positions = 9;
        s.style = style;
        for (const int rotary_dim : {rope_dim / 2 * 2, rope_dim / 16 * 8, rope_dim / 4 * 2, 0}) {
          if (counter.LeaveOut()) continue;
          s.rotary_dim = rotary_dim;
          RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, s));
          RunMlaAppend(device, MakeMlaAppend<F32, F32>(random, s));
          RunMlaAppend(device, MakeMlaAppend<F32, F16>(random, s));
        }
      }
      MlaAppendShape wide;
      wide.rope_dim = wide.rotary_dim = 65536;
      wide.style = style;
      RunMlaAppend(device, MakeMlaAppend<F16, F16>(random, wide));
    }
  }
}

TEST_CASE("mla append: strides, gaps and alignment do not matter") {
  for (Device& device : AvailableDevices()) {
    Random random(8);
    for (const std::size_t offset : {0, 1, 2, 4, 8}) {
      MlaAppendOptions options;
      options.offset = offset;
      for (const std::int64_t pad : {0, 1, 2, 4, 8, 64}) {
        MlaAppendShape s = DeepSeek(3);
        s.block_size = 2;
        s.blocks = 3;
        s.stride_pad = pad;
        RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, s), options);
        RunMlaAppend(device, MakeMlaAppend<F32, B16>(random, s), options);
      }
    }
    // k_pe behind c_kv in one buffer, as the projection leaves them.
    auto c = MakeMlaAppend<B16, B16>(random, DeepSeek(5));
    c.c_kv_stride = c.k_pe_stride = 576;
    c.c_kv = random.Numbers<B16>(5 * 576);
    c.k_pe.assign(c.c_kv.begin() + 512, c.c_kv.end());
    RunMlaAppend(device, c);
  }
}

TEST_CASE("mla append: no token, one token, many tokens") {
  for (Device& device : AvailableDevices()) {
    Random random(9);
    RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, DeepSeek(0)));
    MlaAppendParams nothing;
    nothing.rank = 512;
    REQUIRE(MlaAppend(device, nothing, Stream{}).ok());
    RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, DeepSeek(1)));
    MlaAppendShape many = DeepSeek(10240);
    many.rank = 16;
    many.rope_dim = many.rotary_dim = 8;
    const auto c = MakeMlaAppend<B16, B16>(random, many);
    RunMlaAppend(device, c);
    RunMlaAppend(device, c, {.offset = 1});
  }
}

TEST_CASE("mla append: one call equals the same tokens in several, and twice gives the same bits") {
  for (Device& device : AvailableDevices()) {
    Random random(10);
    const auto c = MakeMlaAppend<B16, B16>(random, DeepSeek(40));
    const auto whole = RunMlaAppend(device, c).cache;
    CHECK((RunMlaAppend(device, c).cache == whole));
    auto rest = c;
    for (const std::int64_t count : {1, 20, 3, 16}) {
      auto part = rest;
      part.tokens = count;
      rest.cache = RunMlaAppend(device, part).cache;
      rest.c_kv.erase(rest.c_kv.begin(), rest.c_kv.begin() + count * c.c_kv_stride);
      rest.k_pe.erase(rest.k_pe.begin(), rest.k_pe.begin() + count * c.k_pe_stride);
      rest.slots.erase(rest.slots.begin(), rest.slots.begin() + count);
      rest.positions.erase(rest.positions.begin(), rest.positions.begin() + count);
    }
    CHECK((rest.cache == whole));
  }
}

TEST_CASE("mla append: NaN, infinity, -0 and subnormals") {
  for (Device& device : AvailableDevices()) {
    Random random(11);
    for (int i = 0; i < 12; ++i) {
      MlaAppendShape s = DeepSeek(10);
      s.rank = i % 2 == 0 ? 32 : 30;
      s.rope_dim = i % 2 == 0 ? 24 : 27;
      s.rotary_dim = i % 2 == 0 ? 16 : 22;
      s.style = static_cast<RopeStyle>(i % 3);
      s.normed = i < 6;
      s.any_bits = true;
      RunMlaAppend(device, MakeMlaAppend<F32, F32>(random, s));
      RunMlaAppend(device, MakeMlaAppend<F16, F16>(random, s));
      RunMlaAppend(device, MakeMlaAppend<B16, B16>(random, s));
      RunMlaAppend(device, MakeMlaAppend<F32, F16>(random, s));
      RunMlaAppend(device, MakeMlaAppend<F32, B16>(random, s));
    }
  }
}

TEST_CASE("mla append: a NaN fills its own latent and nothing else") {
  for (Device& device : AvailableDevices()) {
    Random random(12);
    auto c = MakeMlaAppend<B16, B16>(random, DeepSeek(9));
    const auto clean = RunMlaAppend(device, c).cache;
    c.c_kv[static_cast<std::size_t>(4 * c.c_kv_stride + 77)] = 0xFF81;
    const auto got = RunMlaAppend(device, c).cache;
    for (std::int64_t t = 0; t < 9; ++t) {
      auto expected = RowOf(c, clean, t);
      if (t == 4) std::fill(expected.begin(), expected.begin() + 512, B16::kCanonicalNaN);
      CHECK((RowOf(c, got, t) == expected));
    }
    // An infinity: the factor is 0, so it becomes NaN itself and the rest of its latent 0.
    c.c_kv[static_cast<std::size_t>(4 * c.c_kv_stride + 77)] = 0x7F80;
    const auto row = RowOf(c, RunMlaAppend(device, c).cache, 4);
    CHECK(row[77] == B16::kCanonicalNaN);
    CHECK((row[76] & 0x7FFF) == 0);
  }
}

TEST_CASE("mla append: a latent of zeros stays zeros, and is NaN where eps is 0") {
  for (Device& device : AvailableDevices()) {
    Random random(13);
    for (const bool normed : {true, false}) {
      for (const float eps : {1e-6F, 0.0F}) {
        MlaAppendShape s = DeepSeek(2);
        s.eps = eps;
        s.normed = normed;
        auto c = MakeMlaAppend<F32, F16>(random, s);
        std::fill(c.c_kv.begin(), c.c_kv.begin() + 512, 0);
        const auto row = RowOf(c, RunMlaAppend(device, c).cache, 0);
        CHECK((row[3] & 0x7FFF) == (normed && eps == 0 ? F16::kCanonicalNaN : 0));
      }
    }
  }
}

// K48: padded rows hold NaN and must reach no slot.
TEST_CASE("mla append: padded tokens store nothing, their positions are not looked at") {
  for (Device& device : AvailableDevices()) {
    Random random(14);
    auto c = MakeMlaAppend<B16, B16>(random, DeepSeek(12));
    for (std::size_t t = 3; t < 12; ++t) {
      c.slots[t] = -1;
      c.positions[t] = t % 2 == 0 ? 0 : -77;
      std::fill_n(c.c_kv.begin() + static_cast<std::ptrdiff_t>(t * 512), 512, 0x7FFF);
    }
    CHECK(RunMlaAppend(device, c).fault.kind == FaultKind::kNone);
    std::fill(c.slots.begin(), c.slots.end(), -1);
    RunMlaAppend(device, c);  // nothing but padding
    // A cache of no slots: every token that is not padding is at fault.
    MlaAppendShape none = DeepSeek(4);
    none.blocks = 0;
    auto nowhere = MakeMlaAppend<B16, B16>(random, none);
    nowhere.slots = {-1, 0, 5, -1};
    CHECK(RunMlaAppend(device, nowhere).fault.token == 1);
  }
}

TEST_CASE("mla append: the record holds the smallest faulty token, slot before position") {
  for (Device& device : AvailableDevices()) {
    Random random(15);
    for (const bool indirect : {false, true}) {
      for (const std::int64_t tokens : {50, 4500}) {
        for (const int rank : {16, 15}) {
          MlaAppendShape s = DeepSeek(tokens);
          s.rank = rank;
          s.rope_dim = s.rotary_dim = 8;
          s.normed = false;  // the reference takes its time
          MlaAppendOptions options;
          options.indirect_fault = indirect;
          auto c = MakeMlaAppend<B16, B16>(random, s);
          CHECK(RunMlaAppend(device, c, options).fault.kind == FaultKind::kNone);
          c.positions[33] = 50;
          c.positions[21] = -3;
          CHECK(RunMlaAppend(device, c, options).fault.value == -3);
          c.slots[21] = c.num_slots;
          CHECK(RunMlaAppend(device, c, options).fault.kind == FaultKind::kSlot);
          c.slots[20] = -1;  // padding is not a fault
          c.slots[7] = INT64_MAX;
          const FaultRecord fault = RunMlaAppend(device, c, options).fault;
          CHECK(fault.token == 7);
          CHECK(fault.value == INT64_MAX);
          for (auto& slot : c.slots) slot = c.num_slots + 5;  // all of them at once
          CHECK(RunMlaAppend(device, c, options).fault.token == 0);
        }
      }
    }
  }
}

TEST_CASE("mla append: where nothing turns, positions are not read") {
  for (Device& device : AvailableDevices()) {
    Random random(16);
    for (const int rope_dim : {64, 0, 5}) {
      MlaAppendShape s = DeepSeek(6);
      s.rope_dim = rope_dim;
      s.rotary_dim = 0;
      auto c = MakeMlaAppend<B16, B16>(random, s);
      for (auto& position : c.positions) position = -5;
      CHECK(RunMlaAppend(device, c).fault.kind == FaultKind::kNone);
    }
  }
}

TEST_CASE("mla append: CUDA gives the CPU's bits, whatever the width of an access") {
  std::vector<Device> devices = AvailableDevices();
  if (devices.size() < 2) LARIAT_SKIP("no CUDA device");
  Random random(17);
  for (const int rank : {512, 48, 1536}) {
    for (const std::int64_t tokens : {1, 64, 300, 5000}) {
      MlaAppendShape s = DeepSeek(tokens);
      s.rank = rank;
      s.style = random.OneOf({RopeStyle::kInterleaved, RopeStyle::kHalf});
      if (tokens == 5000) s.rope_dim = s.rotary_dim = 16;
      if (tokens == 5000 && rank > 48) continue;
      const auto c = MakeMlaAppend<F32, B16>(random, s);
      const auto cpu = RunMlaAppend(devices[0], c).cache;
      CHECK((cpu == RunMlaAppend(devices[1], c).cache));
      CHECK((cpu == RunMlaAppend(devices[1], c, {.offset = 1}).cache));
    }
  }
}

}  // namespace lariat
