// SPDX-License-Identifier: Apache-2.0
// Chains of dependent launches, each of which reads what the one before it wrote: the bits are
// those of the CPU, which does one call after another.
#include <bit>
#include <cmath>

#include "support/append_runner.h"
#include "support/few_cases.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F32;
using testing::AppendShape;
using testing::AvailableDevices;
using testing::DeviceVector;
using testing::MakeAppend;
using testing::Random;

constexpr DependentLaunch kKinds[] = {DependentLaunch::kOff, DependentLaunch::kAfterWait,
                                      DependentLaunch::kIndexEarly};

// A stream of its own: the default stream orders more than its own work.
struct OwnStream {
  explicit OwnStream(Device& on) : device(on), stream(*on.CreateStream()) {}
  ~OwnStream() { device.DestroyStream(stream); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Device device;
  Stream stream;
};

struct Turned {
  std::vector<std::uint16_t> q, k_cache, v_cache;
  FaultRecord fault;
};

// q is turned in place again and again, and the K rows that a call stores are the next one's k: a
// call that reads too early misses a turn.
Turned TurnAgain(Device device, const reference::AppendRopeCase<B16, B16>& c, DependentLaunch kind,
                 int times) {
  const OwnStream own(device);
  DeviceVector<std::uint16_t> q(device, c.q), v(device, c.v), v_cache(device, c.v_cache);
  DeviceVector<std::uint16_t> even(device, c.k_cache), odd(device, c.k_cache);
  DeviceVector<std::uint32_t> cos(device, c.cos), sin(device, c.sin);
  DeviceVector<std::int64_t> slots(device, c.slots);
  DeviceVector<std::int32_t> positions(device, c.positions);
  AppendRopeParams p = testing::ShapeOf(c, true);
  p.q = p.q_out = q.data();
  p.v = v.data();
  p.v_cache = v_cache.data();
  p.slots = slots.data();
  p.positions = positions.data();
  p.cos = reinterpret_cast<const float*>(cos.data());
  p.sin = reinterpret_cast<const float*>(sin.data());
  DeviceVector<FaultRecord> fault(device, {FaultRecord{}});
  p.fault = fault.data();
  p.dependent_launch = kind;
  for (int i = 0; i < times; ++i) {
    p.k = (i % 2 == 0 ? even : odd).data();
    p.k_cache = (i % 2 == 0 ? odd : even).data();
    const Status status = AppendRope(device, p, own.stream);
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  REQUIRE(device.Synchronize(own.stream).ok());
  return {q.Read(), (times % 2 == 0 ? even : odd).Read(), v_cache.Read(), fault.Read()[0]};
}

// The same on every device and in every kind of launch.
void CheckAll(const reference::AppendRopeCase<B16, B16>& c, int times) {
  std::vector<Device> devices = AvailableDevices();
  const Turned want = TurnAgain(devices[0], c, DependentLaunch::kOff, times);
  for (Device& device : devices) {
    for (const DependentLaunch kind : kKinds) {
      // The CPU has no launches: once shows that it takes the field.
      if (device.kind() == BackendKind::kCpu && c.tokens > 1) continue;
      INFO(device.name() << " T " << c.tokens << " q heads " << c.q_heads << " launch "
                         << static_cast<int>(kind));
      const Turned got = TurnAgain(device, c, kind, times);
      CHECK((got.q == want.q));
      CHECK((got.k_cache == want.k_cache));
      CHECK((got.v_cache == want.v_cache));
      CHECK(got.fault.token == want.fault.token);
      CHECK(got.fault.value == want.fault.value);
    }
  }
}

}  // namespace

TEST_CASE("dependent launch: appends that read what the one before them wrote") {
  Random random(1);
  for (const auto& [tokens, q_heads] : {std::pair{1, 4}, {40, 8}, {300, 8}}) {
    AppendShape s;
    s.tokens = tokens;
    s.kv_heads = 2;
    s.q_heads = q_heads;
    s.k_dim = s.v_dim = s.rotary_dim = 128;
    s.block_size = 4;
    s.blocks = tokens / 4 + 1;
    s.num_positions = 64;
    auto c = MakeAppend<B16, B16>(random, s);
    for (std::size_t i = 0; i < c.cos.size(); ++i) {  // angles, so that nothing grows
      const float angle = static_cast<float>(i % 97) * 0.1F;
      c.cos[i] = std::bit_cast<std::uint32_t>(std::cos(angle));
      c.sin[i] = std::bit_cast<std::uint32_t>(std::sin(angle));
    }
    c.k_cache = random.Numbers<B16>(static_cast<std::int64_t>(c.k_cache.size()));
    for (std::size_t t = 0; t < c.slots.size(); ++t) c.slots[t] = static_cast<std::int64_t>(t);
    CheckAll(c, 31);
  }
}

TEST_CASE("dependent launch: updates whose cache is the output of the one before") {
  constexpr std::int64_t kBatch = 2, kTokens = 5, kLength = 300, kHeads = 4, kDim = 64;
  constexpr std::int64_t kRow = kHeads * kDim, kCache = kBatch * kLength * kRow;
  constexpr int kTimes = 60;
  std::vector<Device> devices = AvailableDevices();
  Random random(2);
  const auto cache = random.Numbers<F32>(2 * kCache);
  const auto fresh = random.Numbers<F32>(kTimes * kBatch * kTokens * kRow);
  const auto table = random.Numbers<F32>(kLength * kDim / 2);
  std::vector<std::int32_t> positions;
  for (int i = 0; i < kTimes * kBatch * kTokens; ++i) {
    positions.push_back(static_cast<std::int32_t>(random.Between(0, kLength - 1)));
  }
  const auto run = [&](Device& device, DependentLaunch kind) {
    const OwnStream own(device);
    DeviceVector<std::uint32_t> a(device, cache), b(device, cache), rows(device, fresh);
    DeviceVector<std::uint32_t> cos(device, table);
    DeviceVector<std::int32_t> at(device, positions);
    RopeUpdateParams p;
    p.batch = kBatch;
    p.new_tokens = kTokens;
    p.cache_len = kLength;
    p.heads = kHeads;
    p.head_dim = p.rotary_dim = kDim;
    p.cos = p.sin = cos.data();
    p.dependent_launch = kind;
    for (int i = 0; i < kTimes; ++i) {
      p.k_new = p.v_new = rows.data() + i * kBatch * kTokens * kRow;
      p.positions = at.data() + i * kBatch * kTokens;
      const auto* const from = (i % 2 == 0 ? a : b).data();
      p.cache_k = from;
      p.cache_v = from + kCache;
      p.out = (i % 2 == 0 ? b : a).data();
      REQUIRE(RopeUpdate(device, p, own.stream).ok());
    }
    REQUIRE(device.Synchronize(own.stream).ok());
    return (kTimes % 2 == 0 ? a : b).Read();
  };
  const auto want = run(devices[0], DependentLaunch::kOff);
  for (Device& device : devices) {
    for (const DependentLaunch kind : kKinds) {
      INFO(device.name() << " launch " << static_cast<int>(kind));
      CHECK((run(device, kind) == want));
    }
  }
}

// The rows that a call stores are what the next one norms and turns again.
TEST_CASE("dependent launch: latent rows that the call before stored") {
  constexpr std::int64_t kWidth = 576;
  constexpr int kTimes = 40;
  std::vector<Device> devices = AvailableDevices();
  Random random(4);
  for (const std::int64_t tokens : {1, 70, 300}) {
    const auto start = random.Numbers<B16>(tokens * kWidth);
    const std::vector<std::uint16_t> ones(512, 0x3F80);
    std::vector<std::uint32_t> cos, sin;
    for (int i = 0; i < 64 * 32; ++i) {
      const float angle = static_cast<float>(i % 97) * 0.1F;
      cos.push_back(std::bit_cast<std::uint32_t>(std::cos(angle)));
      sin.push_back(std::bit_cast<std::uint32_t>(std::sin(angle)));
    }
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < tokens; ++t) {
      slots.push_back(t);
      positions.push_back(static_cast<std::int32_t>(t % 64));
    }
    const auto run = [&](Device& device, DependentLaunch kind) {
      const OwnStream own(device);
      DeviceVector<std::uint16_t> even(device, start), odd(device, start), weight(device, ones);
      DeviceVector<std::uint32_t> c(device, cos), s(device, sin);
      DeviceVector<std::int64_t> to(device, slots);
      DeviceVector<std::int32_t> at(device, positions);
      MlaAppendParams p;
      p.num_tokens = p.num_slots = tokens;
      p.rank = 512;
      p.rope_dim = p.rotary_dim = 64;
      p.c_kv_stride = p.k_pe_stride = kWidth;
      p.norm_weight = weight.data();
      p.slots = to.data();
      p.positions = at.data();
      p.cos = reinterpret_cast<const float*>(c.data());
      p.sin = reinterpret_cast<const float*>(s.data());
      p.num_positions = 64;
      p.dependent_launch = kind;
      for (int i = 0; i < kTimes; ++i) {
        p.c_kv = (i % 2 == 0 ? even : odd).data();
        p.k_pe = static_cast<const std::uint16_t*>(p.c_kv) + 512;
        p.cache = (i % 2 == 0 ? odd : even).data();
        REQUIRE(MlaAppend(device, p, own.stream).ok());
      }
      REQUIRE(device.Synchronize(own.stream).ok());
      return (kTimes % 2 == 0 ? even : odd).Read();
    };
    const auto want = run(devices[0], DependentLaunch::kOff);
    for (Device& device : devices) {
      for (const DependentLaunch kind : kKinds) {
        INFO(device.name() << " T " << tokens << " launch " << static_cast<int>(kind));
        CHECK((run(device, kind) == want));
      }
    }
  }
}

// The keys that a call puts out are the hidden states of the next one: a product that reads rows
// before they are there gives others.
TEST_CASE("dependent launch: products of what the call before put out") {
  constexpr int kTimes = 12;
  struct Shape {
    DType dtype;
    std::int64_t tokens;
    int model_dim, rank;
  };
  for (Device& device : AvailableDevices()) {
    if (device.kind() != BackendKind::kCuda) continue;  // elsewhere there is one kind
    Random random(5);
    // Warmup tries a hundred launches for each power of two.
    const bool few = test::FewCases();
    for (const Shape& shape : {Shape{DType::kBF16, 1, 2048, 512},
                               {DType::kBF16, few ? 2 : 16, 2048, 512},
                               {DType::kBF16, few ? 2 : 64, 2048, 512},
                               {DType::kFP32, 384, 256, 48}}) {
      const std::size_t element = SizeOf(shape.dtype);
      const auto data = [&](std::int64_t elements, float size) {
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(elements) * element);
        for (std::int64_t i = 0; i < elements; ++i) {
          const float value = size * static_cast<float>(random.Between(-1000, 1000)) / 1000;
          const auto bits = std::bit_cast<std::uint32_t>(value) >> (element == 2 ? 16 : 0);
          for (std::size_t b = 0; b < element; ++b) {
            bytes[static_cast<std::size_t>(i) * element + b] =
                static_cast<std::uint8_t>(bits >> (8 * b));
          }
        }
        return bytes;
      };
      // Of a size that keeps numbers near 1.
      const auto start = data(shape.tokens * shape.model_dim, 1);
      const auto w_down = data(std::int64_t{shape.model_dim} * shape.rank,
                               1.7F / std::sqrt(static_cast<float>(shape.model_dim)));
      const auto w_up = data(std::int64_t{shape.model_dim} * shape.rank,
                             1.7F / std::sqrt(static_cast<float>(shape.rank)));
      // The first shape's rows are those of K and V side by side.
      const bool first_shape = element == 4;
      const auto run = [&](DependentLaunch kind) {
        const OwnStream own(device);
        DeviceVector<std::uint8_t> even(device, start), odd(device, start);
        DeviceVector<std::uint8_t> down(device, w_down), up(device, w_up);
        MlaCompressParams p;
        p.dtype = shape.dtype;
        p.num_tokens = shape.tokens;
        p.model_dim = shape.model_dim;
        p.rank = shape.rank;
        p.heads = shape.model_dim / 64;
        p.k_dim = first_shape ? 32 : 64;
        p.v_dim = first_shape ? 32 : 0;
        p.k_token_stride = p.v_token_stride = shape.model_dim;
        p.layout = first_shape ? WeightLayout::kInOut : WeightLayout::kOutIn;
        p.w_down = down.data();
        p.w_up_k = up.data();
        if (first_shape) p.w_up_v = up.data() + w_up.size() / 2;
        p.dependent_launch = kind;
        REQUIRE(Warmup(device, p, own.stream).ok());
        for (int i = 0; i < kTimes; ++i) {
          p.hidden = (i % 2 == 0 ? even : odd).data();
          std::uint8_t* const to = (i % 2 == 0 ? odd : even).data();
          p.k = to;
          if (first_shape) p.v = to + shape.model_dim / 2 * element;
          REQUIRE(MlaCompress(device, p, own.stream).ok());
        }
        REQUIRE(device.Synchronize(own.stream).ok());
        return (kTimes % 2 == 0 ? even : odd).Read();
      };
      const auto want = run(DependentLaunch::kOff);
      CHECK(want != start);
      for (const DependentLaunch kind : kKinds) {
        INFO(device.name() << " T " << shape.tokens << " launch " << static_cast<int>(kind));
        CHECK((run(kind) == want));
      }
    }
  }
}

TEST_CASE("dependent launch: large steps, on which a unit may have two heads") {
  Random random(3);
  for (const auto& [tokens, q_heads] : {std::pair{4100, 0}, {1200, 40}, {3600, 3}}) {
    AppendShape s;
    s.tokens = tokens;  // 32 to 36 MiB of traffic
    s.kv_heads = 8;
    s.q_heads = q_heads;
    s.k_dim = s.v_dim = 128;
    s.rotary_dim = q_heads == 40 ? 64 : 128;
    s.block_size = 16;
    s.blocks = s.tokens / 16 + 1;
    s.num_positions = 100;
    s.padded_percent = 5;
    s.bad_percent = 1;
    auto c = MakeAppend<B16, B16>(random, s);
    c.k_cache = c.k;  // the rows that are stored
    c.k_cache.resize(static_cast<std::size_t>(s.blocks * c.k_cache_strides.block), 0x7FD5);
    CheckAll(c, 1);
  }
}

}  // namespace lariat
