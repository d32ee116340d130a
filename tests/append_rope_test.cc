// SPDX-License-Identifier: Apache-2.0
// AppendRope against the reference of tests/reference, on every device that answers.
#include "support/append_runner.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::AppendOptions;
using testing::AppendShape;
using testing::AvailableDevices;
using testing::DeviceVector;
using testing::MakeAppend;
using testing::Random;
using testing::RunAppend;

AppendShape RandomShape(Random& random) {
  AppendShape s;
  s.tokens = random.Between(1, 40);
  s.kv_heads = static_cast<int>(random.Between(1, 5));
  s.q_heads = random.Chance(50) ? static_cast<int>(random.Between(1, 9)) : 0;
  s.k_dim = static_cast<int>(2 * random.Between(1, random.Chance(10) ? 256 : 40));
  s.v_dim = random.Chance(50) ? s.k_dim : static_cast<int>(2 * random.Between(1, 40));
  if (random.Chance(50)) {
    s.k_dim = (s.k_dim + 7) / 8 * 8;
    s.v_dim = (s.v_dim + 7) / 8 * 8;
  }
  s.rotary_dim = s.k_dim;
  if (random.Chance(40)) s.rotary_dim = static_cast<int>(2 * random.Between(0, s.k_dim / 2));
  if (random.Chance(30)) s.rotary_dim = s.rotary_dim / 8 * 8;
  s.block_size = static_cast<int>(random.OneOf<std::int64_t>({1, 2, 3, 4, 7, 16, 48}));
  s.blocks = random.Between(1, 60 / s.block_size + 1);
  s.num_positions = random.Between(1, 50);
  s.style = random.OneOf({RopeStyle::kInterleaved, RopeStyle::kHalf});
  s.stride_pad = random.Chance(50) ? 0 : random.OneOf<std::int64_t>({1, 3, 8, 16});
  s.heads_outermost = random.Chance(30);
  s.padded_percent = random.Chance(50) ? 20 : 0;
  s.bad_percent = random.Chance(30) ? 5 : 0;
  return s;
}

template <class In, class Out>
void RandomShapes(unsigned seed) {
  // The bound must be met, and must not be so wide that it says nothing.
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    long double worst = 0;
    for (int i = 0; i < 60; ++i) {
      const AppendShape shape = RandomShape(random);
      AppendOptions options;
      if (random.Chance(30)) options.offset = static_cast<std::size_t>(random.Between(1, 8));
      options.q_in_place = random.Chance(50);
      options.indirect_fault = random.Chance(50);
      options.dependent_launch = random.OneOf(
          {DependentLaunch::kOff, DependentLaunch::kAfterWait, DependentLaunch::kIndexEarly});
      options.default_strides = shape.stride_pad == 0 && !shape.heads_outermost;
      const auto c = MakeAppend<In, Out>(random, shape);
      worst = std::max(worst, RunAppend(device, c, options).worst);
    }
    CHECK(worst >= 0.05L);
    CHECK(worst <= 1.0L);
  }
}

AppendShape Llama(std::int64_t tokens) {
  AppendShape s;
  s.tokens = tokens;
  s.kv_heads = 2;
  s.k_dim = s.v_dim = s.rotary_dim = 128;
  s.block_size = 16;
  s.blocks = tokens / 16 + 2;
  s.num_positions = 64;
  return s;
}

}  // namespace

TEST_CASE("append: random shapes in every pair of types match the reference") {
  RandomShapes<F32, F32>(1);
  RandomShapes<F16, F16>(2);
  RandomShapes<B16, B16>(3);
  RandomShapes<F32, F16>(4);
  RandomShapes<F32, B16>(5);
}

TEST_CASE("append: widths 2 to 512, whole and partial rotation, K and V apart") {
  for (Device& device : AvailableDevices()) {
    Random random(6);
    for (const int dim : {2, 4, 6, 8, 46, 48, 64, 72, 80, 96, 128, 192, 256, 510, 512}) {
      AppendShape s;
      s.tokens = 5;
      s.kv_heads = 2;
      s.q_heads = 3;
      s.k_dim = dim;
      s.v_dim = 514 - dim;
      s.rotary_dim = random.OneOf({dim, dim / 4 * 2, 0});
      s.block_size = 4;
      s.blocks = 3;
      s.num_positions = 9;
      s.style = random.OneOf({RopeStyle::kInterleaved, RopeStyle::kHalf});
      RunAppend(device, MakeAppend<B16, B16>(random, s));
      RunAppend(device, MakeAppend<F32, F16>(random, s));
      const AppendOptions early{.dependent_launch = DependentLaunch::kIndexEarly};
      RunAppend(device, MakeAppend<F16, F16>(random, s), early);
      RunAppend(device, MakeAppend<F32, B16>(random, s), early);
    }
  }
}

// K36: a fault that shows only for large batches. K56: base pointers and row pitches that are not
// multiples of a vector.
TEST_CASE("append: many tokens equal few; alignment does not matter") {
  for (Device& device : AvailableDevices()) {
    Random random(7);
    AppendShape partial = Llama(10240);
    partial.kv_heads = 1;
    partial.k_dim = partial.v_dim = 32;
    partial.rotary_dim = 16;
    RunAppend(device, MakeAppend<B16, B16>(random, partial));
    for (const std::size_t offset : {0, 1, 2, 4, 8}) {
      AppendOptions options;
      options.offset = offset;
      AppendShape s = Llama(5);
      RunAppend(device, MakeAppend<B16, B16>(random, s), options);
      s.kv_heads = 1;
      s.k_dim = s.v_dim = 46;  // rows of 92 bytes
      s.rotary_dim = 46;
      RunAppend(device, MakeAppend<B16, B16>(random, s), options);
      for (const std::int64_t pad : {1, 2, 4, 8}) {
        AppendShape strided = Llama(9);
        strided.q_heads = 4;
        strided.stride_pad = pad;
        RunAppend(device, MakeAppend<F16, F16>(random, strided), options);
      }
    }
  }
}

TEST_CASE("append: NaN, infinity, -0 and subnormals") {
  for (Device& device : AvailableDevices()) {
    Random random(8);
    for (int i = 0; i < 8; ++i) {
      AppendShape s = Llama(20);
      s.k_dim = i % 2 == 0 ? 32 : 30;
      s.v_dim = i % 4 < 2 ? 16 : 18;
      s.rotary_dim = i % 2 == 0 ? 16 : 22;
      s.q_heads = 2;
      s.style = i < 4 ? RopeStyle::kHalf : RopeStyle::kInterleaved;
      s.any_bits = true;
      RunAppend(device, MakeAppend<F32, F32>(random, s));
      RunAppend(device, MakeAppend<F16, F16>(random, s));
      RunAppend(device, MakeAppend<B16, B16>(random, s));
      RunAppend(device, MakeAppend<F32, F16>(random, s));
      RunAppend(device, MakeAppend<F32, B16>(random, s));
    }
  }
}

// K48: padded rows hold NaN and must reach no slot.
TEST_CASE("append: padded tokens store nothing, q turns") {
  for (Device& device : AvailableDevices()) {
    Random random(9);
    AppendShape s = Llama(12);
    s.q_heads = 4;
    auto c = MakeAppend<B16, B16>(random, s);
    for (std::size_t t = 3; t < 12; ++t) {
      c.slots[t] = -1;
      c.positions[t] = 0;
      for (int e = 0; e < 256; ++e) c.k[t * 256 + e] = c.v[t * 256 + e] = 0x7FFF;
    }
    RunAppend(device, c);
    std::fill(c.slots.begin(), c.slots.end(), -1);
    RunAppend(device, c);  // nothing but padding
    // Padding without q: not even its position is looked at.
    s.q_heads = 0;
    auto plain = MakeAppend<B16, B16>(random, s);
    plain.slots[4] = -1;
    plain.positions[4] = -77;
    CHECK(RunAppend(device, plain).fault.kind == FaultKind::kNone);
  }
}

TEST_CASE("append: the record holds the smallest faulty token, slot before position") {
  for (Device& device : AvailableDevices()) {
    Random random(10);
    for (const bool indirect : {false, true}) {
      for (const std::int64_t tokens : {50, 3000}) {
        AppendShape s = Llama(tokens);
        s.kv_heads = 1;
        s.k_dim = s.v_dim = s.rotary_dim = 16;
        AppendOptions options;
        options.indirect_fault = indirect;
        auto c = MakeAppend<B16, B16>(random, s);
        CHECK(RunAppend(device, c, options).fault.kind == FaultKind::kNone);
        c.positions[33] = 64;
        c.positions[21] = -3;
        CHECK(RunAppend(device, c, options).fault.value == -3);
        c.slots[21] = c.num_slots;
        CHECK(RunAppend(device, c, options).fault.kind == FaultKind::kSlot);
        c.slots[20] = -1;  // padding is not a fault
        c.slots[7] = INT64_MAX;
        const FaultRecord fault = RunAppend(device, c, options).fault;
        CHECK(fault.token == 7);
        CHECK(fault.value == INT64_MAX);
        for (auto& slot : c.slots) slot = c.num_slots + 5;  // all of them at once
        CHECK(RunAppend(device, c, options).fault.token == 0);
      }
    }
  }
}

TEST_CASE("append: one record serves many launches") {
  for (Device& device : AvailableDevices()) {
    Random random(11);
    const auto c = MakeAppend<F32, F32>(random, Llama(8));
    DeviceVector<std::uint32_t> k(device, c.k), k_cache(device, c.k_cache), cos(device, c.cos);
    DeviceVector<std::int32_t> positions(device, c.positions);
    DeviceVector<FaultRecord> record(device, {FaultRecord{}});
    AppendRopeParams p = testing::ShapeOf(c, false);
    p.k = p.v = k.data();
    p.k_cache = p.v_cache = k_cache.data();
    p.cos = p.sin = reinterpret_cast<const float*>(cos.data());
    p.positions = positions.data();
    p.fault = record.data();
    const std::vector<std::pair<std::size_t, std::int64_t>> faults = {
        {5, 9000}, {6, 8000}, {2, 7000}};
    for (const auto& [token, slot] : faults) {
      std::vector<std::int64_t> wrong(c.slots.size(), -1);
      wrong[token] = slot;
      DeviceVector<std::int64_t> slots(device, wrong);
      p.slots = slots.data();
      REQUIRE(AppendRope(device, p, Stream{}).ok());
      REQUIRE(device.Synchronize(Stream{}).ok());
    }
    CHECK(record.Read()[0].token == 2);
    CHECK(record.Read()[0].value == 7000);
    // A word that holds no address, and no record at all: the token is skipped all the same.
    DeviceVector<FaultRecord*> none(device, {nullptr});
    DeviceVector<std::int64_t> slots(device, std::vector<std::int64_t>(8, 5000));
    p.slots = slots.data();
    p.fault = nullptr;
    REQUIRE(AppendRope(device, p, Stream{}).ok());
    p.fault_indirect = none.data();
    REQUIRE(AppendRope(device, p, Stream{}).ok());
    CHECK((k_cache.Read() == c.k_cache));
  }
}

// K50: a chunk's slots start at its own first token. K51: slots are made and taken apart with one
// block size.
TEST_CASE("append: chunks of a prompt fill the same cache as one call") {
  for (Device& device : AvailableDevices()) {
    Random random(12);
    AppendShape s = Llama(16);
    s.k_dim = s.v_dim = s.rotary_dim = 16;
    s.block_size = 4;
    s.blocks = 6;
    const auto c = MakeAppend<B16, B16>(random, s);
    const auto whole = RunAppend(device, c);
    DeviceVector<std::uint16_t> k(device, c.k), v(device, c.v);
    DeviceVector<std::uint16_t> k_cache(device, c.k_cache), v_cache(device, c.v_cache);
    DeviceVector<std::uint32_t> cos(device, c.cos), sin(device, c.sin);
    DeviceVector<std::int64_t> slots(device, c.slots);
    DeviceVector<std::int32_t> positions(device, c.positions);
    for (const auto& [first, count] : {std::pair{0, 4}, {4, 4}, {8, 5}, {13, 3}}) {
      AppendRopeParams p = testing::ShapeOf(c, true);
      p.num_tokens = count;
      p.k = k.data() + first * c.k_strides.token;
      p.v = v.data() + first * c.v_strides.token;
      p.slots = slots.data() + first;
      p.positions = positions.data() + first;
      p.cos = reinterpret_cast<const float*>(cos.data());
      p.sin = reinterpret_cast<const float*>(sin.data());
      p.k_cache = k_cache.data();
      p.v_cache = v_cache.data();
      REQUIRE(AppendRope(device, p, Stream{}).ok());
    }
    CHECK((k_cache.Read() == whole.k_cache));
    CHECK((v_cache.Read() == whole.v_cache));
  }
}

TEST_CASE("append: slot 75849 of blocks of 16 is block 4740, row 9") {
  for (Device& device : AvailableDevices()) {
    Random random(13);
    AppendShape s;
    s.k_dim = s.v_dim = s.rotary_dim = 2;
    s.block_size = 16;
    s.blocks = 16384;
    auto c = MakeAppend<F32, F32>(random, s);
    c.slots[0] = 75849;
    const auto got = RunAppend(device, c);
    CHECK(got.v_cache[(4740 * 16 + 9) * 2] == c.v[0]);
  }
}

TEST_CASE("append: no tokens is no work and does not stick") {  // K58
  for (Device& device : AvailableDevices()) {
    Random random(14);
    AppendShape s = Llama(0);
    RunAppend(device, MakeAppend<B16, B16>(random, s));
    AppendRopeParams p;
    p.kv_heads = 8;
    p.k_dim = p.v_dim = p.rotary_dim = 64;
    REQUIRE(AppendRope(device, p, Stream{}).ok());
    RunAppend(device, MakeAppend<B16, B16>(random, Llama(3)));
    // A cache of no slots: every token that is not padding is at fault.
    AppendShape none = Llama(4);
    none.blocks = 0;
    auto c = MakeAppend<B16, B16>(random, none);
    c.slots = {-1, 0, 5, -1};
    CHECK(RunAppend(device, c).fault.token == 1);
  }
}

TEST_CASE("append: CUDA gives the CPU's bits, whatever the vector width") {
  std::vector<Device> devices = AvailableDevices();
  if (devices.size() < 2) LARIAT_SKIP("no CUDA device");
  Random random(15);
  for (int i = 0; i < 8; ++i) {
    AppendShape s = Llama(60);
    s.q_heads = 5;
    s.rotary_dim = i % 2 == 0 ? 128 : 64;
    s.style = i < 4 ? RopeStyle::kHalf : RopeStyle::kInterleaved;
    s.any_bits = i % 4 < 2;
    const auto c = MakeAppend<F32, B16>(random, s);
    AppendOptions narrow;
    narrow.offset = 1;
    const auto cpu = RunAppend(devices[0], c);
    const auto wide_bits = RunAppend(devices[1], c);
    const auto narrow_bits = RunAppend(devices[1], c, narrow);
    CHECK((cpu.k_cache == wide_bits.k_cache));
    CHECK((cpu.k_cache == narrow_bits.k_cache));
    CHECK((cpu.v_cache == wide_bits.v_cache));
    CHECK((cpu.q_out == wide_bits.q_out));
    CHECK((cpu.q_out == narrow_bits.q_out));
  }
}

}  // namespace lariat
