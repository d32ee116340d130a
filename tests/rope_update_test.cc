// SPDX-License-Identifier: Apache-2.0
// RopeUpdate against the sequential loop of tests/reference, on every device that answers.
#include "lariat/ops.h"
#include "reference/rope_update_ref.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using reference::F64;
using reference::RopeUpdateCase;
using testing::AvailableDevices;
using testing::DeviceVector;
using testing::Random;

struct Outcome {
  long double worst = 0;  // largest error, as a fraction of its bound
  FaultRecord fault;
};

// Runs one case. `offset`: elements by which every array is moved off its 256-byte boundary.
template <class F, class Table>
Outcome RunCase(Device device, const RopeUpdateCase<F, Table>& c, std::size_t offset,
                std::vector<typename F::Bits>* out_bits = nullptr,
                DependentLaunch launch = DependentLaunch::kOff) {
  using Bits = typename F::Bits;
  const std::int64_t elements = 2 * c.batch * c.cache_len * c.heads * c.head_dim;
  DeviceVector<Bits> k_new(device, c.k_new, offset), v_new(device, c.v_new, offset);
  DeviceVector<Bits> cache_k(device, c.cache_k, offset), cache_v(device, c.cache_v, offset);
  DeviceVector<typename Table::Bits> cos(device, c.cos, offset), sin(device, c.sin, offset);
  DeviceVector<std::int32_t> positions(device, c.positions);
  const std::vector<Bits> poison(static_cast<std::size_t>(elements),
                                 static_cast<Bits>(F::kExponentMask | 0x55));
  DeviceVector<Bits> out(device, poison, offset);
  DeviceVector<FaultRecord> fault(device, {FaultRecord{}});

  RopeUpdateParams params;
  params.dtype = F::kDType;
  params.table_dtype = Table::kDType;
  params.style = c.style;
  params.batch = c.batch;
  params.new_tokens = c.new_tokens;
  params.cache_len = c.cache_len;
  params.heads = c.heads;
  params.head_dim = c.head_dim;
  params.rotary_dim = c.rotary_dim;
  params.k_new = k_new.data();
  params.v_new = v_new.data();
  params.cos = cos.data();
  params.sin = sin.data();
  params.cache_k = cache_k.data();
  params.cache_v = cache_v.data();
  params.positions = positions.data();
  params.out = out.data();
  params.fault = fault.data();
  params.dependent_launch = launch;
  const Status status = RopeUpdate(device, params, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());

  INFO(device.name() << ": " << DTypeName(F::kDType) << " table " << DTypeName(Table::kDType)
                     << " style " << static_cast<int>(c.style) << " B " << c.batch << " T "
                     << c.new_tokens << " L " << c.cache_len << " H " << c.heads << " D "
                     << c.head_dim << " rotary " << c.rotary_dim << " offset " << offset
                     << " launch " << static_cast<int>(launch));
  const std::vector<Bits> got = out.Read();
  Outcome outcome;
  outcome.worst = testing::CheckElements<F>("out", reference::RopeUpdate(c), got);
  outcome.fault = fault.Read()[0];
  CHECK(outcome.fault.lock == 0);
  CHECK((k_new.Read() == c.k_new));  // inputs stay
  CHECK((cache_v.Read() == c.cache_v));
  if (out_bits != nullptr) *out_bits = got;
  return outcome;
}

struct Shape {
  std::int64_t batch, new_tokens, cache_len;
  int heads, head_dim, rotary_dim;
};

// bad_percent: share of positions out of range. any_bits: NaNs, infinities and subnormals too.
template <class F, class Table = F>
RopeUpdateCase<F, Table> MakeCase(Random& random, const Shape& s, RopeStyle style,
                                  int bad_percent = 0, bool any_bits = false) {
  RopeUpdateCase<F, Table> c;
  c.batch = s.batch;
  c.new_tokens = s.new_tokens;
  c.cache_len = s.cache_len;
  c.heads = s.heads;
  c.head_dim = s.head_dim;
  c.rotary_dim = s.rotary_dim;
  c.style = style;
  const std::int64_t row = std::int64_t{s.heads} * s.head_dim;
  c.k_new = random.Numbers<F>(s.batch * s.new_tokens * row, any_bits);
  c.v_new = random.Numbers<F>(s.batch * s.new_tokens * row, true);
  c.cache_k = random.Numbers<F>(s.batch * s.cache_len * row, true);
  c.cache_v = random.Numbers<F>(s.batch * s.cache_len * row, true);
  c.cos = random.Numbers<Table>(s.cache_len * (s.rotary_dim / 2), any_bits);
  c.sin = random.Numbers<Table>(s.cache_len * (s.rotary_dim / 2), any_bits);
  for (std::int64_t i = 0; i < s.batch * s.new_tokens; ++i) {
    std::int64_t position = random.Between(0, std::max<std::int64_t>(s.cache_len, 1) - 1);
    if (random.Chance(bad_percent)) {
      position = random.OneOf<std::int64_t>({-1, s.cache_len, INT32_MIN, INT32_MAX, -7});
    }
    c.positions.push_back(static_cast<std::int32_t>(position));
  }
  return c;
}

Shape RandomShape(Random& random) {
  Shape s;
  s.batch = random.Between(1, 3);
  s.cache_len = random.Between(1, 40);
  s.new_tokens = random.Chance(20) ? random.Between(65, 150) : random.Between(0, 20);
  s.heads = static_cast<int>(random.Between(1, 4));
  s.head_dim = static_cast<int>(2 * random.Between(1, random.Chance(10) ? 256 : 24));
  if (random.Chance(50)) s.head_dim = (s.head_dim + 7) / 8 * 8;
  s.rotary_dim = s.head_dim;
  if (random.Chance(40)) s.rotary_dim = static_cast<int>(2 * random.Between(0, s.head_dim / 2));
  if (random.Chance(30)) s.rotary_dim = s.rotary_dim / 8 * 8;
  return s;
}

template <class F, class Table>
void RandomShapes(unsigned seed) {
  // The bound must be met, and must not be so wide that it says nothing.
  for (Device& device : AvailableDevices()) {
    Random random(seed);
    long double worst = 0;
    for (int i = 0; i < 40; ++i) {
      const Shape shape = RandomShape(random);
      const RopeStyle style = random.OneOf({RopeStyle::kInterleaved, RopeStyle::kHalf});
      const std::size_t offset =
          random.Chance(30) ? static_cast<std::size_t>(random.Between(1, 8)) : 0;
      const auto launch = random.OneOf(
          {DependentLaunch::kOff, DependentLaunch::kAfterWait, DependentLaunch::kIndexEarly});
      const auto c = MakeCase<F, Table>(random, shape, style, 5);
      worst = std::max(worst, RunCase(device, c, offset, nullptr, launch).worst);
    }
    CHECK(worst >= 0.05L);
    CHECK(worst <= 1.0L);
  }
}

}  // namespace

TEST_CASE("random shapes in every type match the sequential loop") {
  RandomShapes<F32, F32>(1);
  RandomShapes<F64, F64>(2);
  RandomShapes<F16, F16>(3);
  RandomShapes<F16, F32>(4);
  RandomShapes<B16, B16>(5);
  RandomShapes<B16, F32>(6);
}

TEST_CASE("NaN, infinity, -0 and subnormals: moved bits stay, turned NaNs are canonical") {
  for (Device& device : AvailableDevices()) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalf}) {
      for (const int dim : {8, 10}) {
        Random random(7);
        const Shape shape{2, 30, 20, 3, dim, dim == 8 ? 8 : 6};
        RunCase(device, MakeCase<F32, F32>(random, shape, style, 0, true), 0);
        RunCase(device, MakeCase<F64, F64>(random, shape, style, 0, true), 0);
        RunCase(device, MakeCase<F16, F16>(random, shape, style, 0, true), 0);
        RunCase(device, MakeCase<B16, F32>(random, shape, style, 0, true), 0);
      }
    }
  }
}

TEST_CASE("the last of colliding tokens wins, whole rows") {
  for (Device& device : AvailableDevices()) {
    Random random(8);
    // Around the sizes where an implementation may change its way of looking for the last one.
    for (const std::int64_t tokens : {2, 31, 32, 33, 63, 64, 65, 100, 300, 1200}) {
      for (const std::int64_t rows : {1, 2, 9}) {
        const Shape shape{2, tokens, rows, 1, 8, 8};
        RunCase(device, MakeCase<F32, F32>(random, shape, RopeStyle::kInterleaved), 0);
      }
    }
    auto c = MakeCase<F32, F32>(random, {1, 3, 4, 2, 8, 8}, RopeStyle::kHalf);
    c.positions = {2, 2, 2};
    RunCase(device, c, 0);
  }
}

TEST_CASE("many rows and many tokens") {
  for (Device& device : AvailableDevices()) {
    Random random(9);
    RunCase(device, MakeCase<B16, F32>(random, {1, 3000, 3000, 1, 8, 8}, RopeStyle::kHalf), 0);
    RunCase(device, MakeCase<F32, F32>(random, {70, 1, 3, 1, 4, 4}, RopeStyle::kInterleaved), 0);
    RunCase(device, MakeCase<F32, F32>(random, {2, 5, 300, 4, 64, 64}, RopeStyle::kInterleaved), 0);
  }
}

TEST_CASE("positions out of range are skipped and the smallest token is recorded") {
  for (Device& device : AvailableDevices()) {
    for (const std::int64_t tokens : {40, 500}) {
      Random random(10);
      auto c = MakeCase<F32, F32>(random, {3, tokens, 12, 2, 8, 4}, RopeStyle::kHalf);
      CHECK(RunCase(device, c, 0).fault.kind == FaultKind::kNone);
      c.positions[static_cast<std::size_t>(2 * tokens + 3)] = -5;
      c.positions[static_cast<std::size_t>(tokens + 33)] = 12;
      c.positions[static_cast<std::size_t>(tokens + 34)] = -1;
      const FaultRecord fault = RunCase(device, c, 0).fault;
      CHECK(fault.kind == FaultKind::kPosition);
      CHECK(fault.token == tokens + 33);
      CHECK(fault.value == 12);
      // Nothing but bad positions: a copy.
      for (auto& position : c.positions) position = INT32_MIN;
      CHECK(RunCase(device, c, 0).fault.token == 0);
    }
  }
}

TEST_CASE("no tokens: a copy; no batch or no rows: nothing") {
  for (Device& device : AvailableDevices()) {
    Random random(11);
    RunCase(device, MakeCase<F32, F32>(random, {2, 0, 5, 2, 8, 8}, RopeStyle::kHalf), 0);
    RunCase(device, MakeCase<F16, F16>(random, {2, 0, 5, 1, 6, 6}, RopeStyle::kHalf), 1);
    RunCase(device, MakeCase<F32, F32>(random, {0, 3, 5, 2, 8, 8}, RopeStyle::kHalf), 0);
    RunCase(device, MakeCase<F32, F32>(random, {2, 3, 0, 2, 8, 8}, RopeStyle::kHalf), 0);
    // With no tokens only the caches are needed.
    DeviceVector<float> cache(device, {1, 2, 3, 4}), out(device, std::vector<float>(8, 9));
    RopeUpdateParams params;
    params.batch = 1;
    params.cache_len = 2;
    params.heads = 1;
    params.head_dim = params.rotary_dim = 2;
    params.cache_k = params.cache_v = cache.data();
    params.out = out.data();
    REQUIRE(RopeUpdate(device, params, Stream{}).ok());
    CHECK(out.Read() == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4});
    // A call of no work, then one with work: nothing sticks.
    params.batch = 0;
    REQUIRE(RopeUpdate(device, params, Stream{}).ok());
  }
}

TEST_CASE("CUDA gives the CPU's bits, whatever the vector width") {
  std::vector<Device> devices = AvailableDevices();
  if (devices.size() < 2) LARIAT_SKIP("no CUDA device");
  Random random(12);
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalf}) {
    const auto c = MakeCase<B16, F32>(random, {2, 50, 40, 3, 64, 48}, style, 3, true);
    std::vector<std::uint16_t> cpu, wide, narrow;
    RunCase(devices[0], c, 0, &cpu);
    RunCase(devices[1], c, 0, &wide);
    RunCase(devices[1], c, 1, &narrow);
    CHECK((cpu == wide));
    CHECK((cpu == narrow));
  }
}

TEST_CASE("wrong arguments are refused by name, and nothing is written") {
  for (Device& device : AvailableDevices()) {
    const std::vector<float> before(64, 3);
    DeviceVector<float> in(device, std::vector<float>(64, 1)), out(device, before);
    DeviceVector<std::int32_t> positions(device, {0, 1});
    RopeUpdateParams good;
    good.batch = 1;
    good.new_tokens = 2;
    good.cache_len = 4;
    good.heads = 2;
    good.head_dim = good.rotary_dim = 4;
    good.k_new = good.v_new = good.cos = good.sin = good.cache_k = good.cache_v = in.data();
    good.positions = positions.data();
    good.out = out.data();
    REQUIRE(RopeUpdate(device, good, Stream{}).ok());
    const std::vector<float> written = out.Read();

    const auto refused = [&](Code code, const std::string& field, auto change) {
      RopeUpdateParams bad = good;
      change(bad);
      const Status status = RopeUpdate(device, bad, Stream{});
      INFO(field << ": " << status.ToString());
      CHECK(status.code() == code);
      CHECK(status.message().rfind(field, 0) == 0);
      CHECK(out.Read() == written);
    };
    const Code invalid = Code::kInvalidArgument;
    refused(Code::kUnsupported, "dtype", [](auto& p) { p.dtype = DType::kFP8E4M3; });
    refused(Code::kUnsupported, "table_dtype", [](auto& p) { p.table_dtype = DType::kFP16; });
    refused(Code::kUnsupported, "table_dtype", [](auto& p) { p.dtype = DType::kFP64; });
    refused(invalid, "style", [](auto& p) { p.style = static_cast<RopeStyle>(7); });
    refused(invalid, "dependent_launch = 3",
            [](auto& p) { p.dependent_launch = static_cast<DependentLaunch>(3); });
    refused(invalid, "batch = -1", [](auto& p) { p.batch = -1; });
    refused(invalid, "new_tokens", [](auto& p) { p.new_tokens = -1; });
    refused(invalid, "cache_len", [](auto& p) { p.cache_len = std::int64_t{1} << 31; });
    refused(invalid, "heads = 0", [](auto& p) { p.heads = 0; });
    refused(invalid, "head_dim = 3", [](auto& p) { p.head_dim = 3; });
    refused(invalid, "head_dim = 0", [](auto& p) { p.head_dim = 0; });
    refused(invalid, "head_dim = 514", [](auto& p) { p.head_dim = 514; });
    refused(invalid, "rotary_dim = 6", [](auto& p) { p.rotary_dim = 6; });
    refused(invalid, "rotary_dim = 3", [](auto& p) { p.rotary_dim = 3; });
    refused(invalid, "rotary_dim = -2", [](auto& p) { p.rotary_dim = -2; });
    refused(invalid, "out", [](auto& p) {
      p.batch = p.cache_len = 0x7FFFFFFF;
      p.heads = 8192;
    });
    refused(invalid, "k_new = null", [](auto& p) { p.k_new = nullptr; });
    refused(invalid, "v_new", [](auto& p) { p.v_new = nullptr; });
    refused(invalid, "cos", [](auto& p) { p.cos = nullptr; });
    refused(invalid, "sin", [](auto& p) { p.sin = nullptr; });
    refused(invalid, "cache_k", [](auto& p) { p.cache_k = nullptr; });
    refused(invalid, "cache_v", [](auto& p) { p.cache_v = nullptr; });
    refused(invalid, "positions", [](auto& p) { p.positions = nullptr; });
    refused(invalid, "out = null", [](auto& p) { p.out = nullptr; });
    refused(invalid, "cos", [&](auto& p) { p.cos = reinterpret_cast<char*>(in.data()) + 2; });
    refused(invalid, "out overlaps cache_k", [&](auto& p) { p.out = in.data() + 31; });
    refused(invalid, "out overlaps k_new", [&](auto& p) { p.k_new = out.data() + 63; });
    refused(invalid, "fault", [&](auto& p) {
      p.fault = reinterpret_cast<FaultRecord*>(reinterpret_cast<char*>(in.data()) + 4);
    });
  }
}

}  // namespace lariat
