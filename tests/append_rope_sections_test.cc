// SPDX-License-Identifier: Apache-2.0
// AppendRope with three positions a token, two tables, and an order of elements that changes.
#include "support/append_runner.h"

namespace lariat::testing {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;

// Three numbers >= 0 with the sum `pairs`; dealt out in turns, the last two must find their places.
std::vector<int> RandomSections(Random& random, int pairs, bool alternating) {
  const int most = alternating ? (pairs - 1) / 3 : pairs / 2;
  const int second = static_cast<int>(random.Between(0, std::max(0, most)));
  const int third = static_cast<int>(random.Between(0, std::max(0, most)));
  return {pairs - second - third, second, third};
}

AppendShape RandomShape(Random& random) {
  AppendShape s;
  s.tokens = random.Between(1, 40);
  s.kv_heads = static_cast<int>(random.Between(1, 5));
  s.q_heads = static_cast<int>(random.OneOf<int>({0, 0, 1, 7}));
  s.k_dim = static_cast<int>(2 * random.Between(1, 40));
  s.v_dim = static_cast<int>(2 * random.Between(1, 40));
  s.rotary_dim = static_cast<int>(2 * random.Between(1, s.k_dim / 2));
  s.block_size = static_cast<int>(random.OneOf<int>({1, 3, 16}));
  s.blocks = (s.tokens + s.block_size - 1) / s.block_size + random.Between(0, 3);
  s.num_positions = random.Between(1, 50);
  s.stride_pad = random.OneOf<std::int64_t>({0, 0, 3});
  s.padded_percent = 15;
  s.bad_percent = random.OneOf<int>({0, 0, 8});
  s.two_tables = random.Chance(50);
  if (random.Chance(60)) {
    s.alternating_sections = random.Chance(50);
    s.sections = RandomSections(random, s.rotary_dim / 2, s.alternating_sections);
  }
  s.style = random.OneOf<RopeStyle>(
      {RopeStyle::kHalf, RopeStyle::kInterleaved, RopeStyle::kInterleavedToHalf});
  return s;
}

// On every device against the reference, and the devices against each other.
template <class In, class Out>
void RunRandom(unsigned seed, int cases, long double& worst) {
  Random random(seed);
  for (int n = 0; n < cases; ++n) {
    const AppendShape shape = RandomShape(random);
    const auto c = MakeAppend<In, Out>(random, shape);
    AppendOptions options;
    options.offset = static_cast<std::size_t>(random.Between(0, 3));
    options.indirect_fault = random.Chance(50);
    options.q_in_place = shape.style != RopeStyle::kInterleavedToHalf && random.Chance(50);
    std::vector<AppendOutcome<In, Out>> outcomes;
    for (const Device& device : AvailableDevices()) {
      outcomes.push_back(RunAppend(device, c, options));
      worst = std::max(worst, outcomes.back().worst);
    }
    CHECK((outcomes.front().k_cache == outcomes.back().k_cache));
    CHECK((outcomes.front().v_cache == outcomes.back().v_cache));
    CHECK((outcomes.front().q_out == outcomes.back().q_out));
  }
}

TEST_CASE("AppendRope turns by sections and by either table", "[append_rope]") {
  long double worst = 0;
  RunRandom<F32, F32>(1, 60, worst);
  RunRandom<B16, B16>(2, 60, worst);
  RunRandom<F16, F16>(3, 60, worst);
  RunRandom<F32, B16>(4, 40, worst);
  RunRandom<F32, F16>(5, 40, worst);
  CHECK(worst <= 1);
  CHECK(worst >= 0.05);  // else the bound would be too wide to find anything
}

TEST_CASE("The fast form takes two tables too", "[append_rope]") {
  long double worst = 0;
  Random random(6);
  for (const RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
    AppendShape s;
    s.tokens = 33;
    s.kv_heads = 8;
    s.q_heads = 4;
    s.k_dim = s.v_dim = 128;
    s.rotary_dim = 96;
    s.block_size = 16;
    s.blocks = 4;
    s.num_positions = 64;
    s.style = style;
    s.two_tables = true;
    const auto c = MakeAppend<B16, B16>(random, s);
    for (const Device& device : AvailableDevices()) {
      worst = std::max(worst, RunAppend(device, c, {}).worst);
    }
  }
  CHECK(worst <= 1);
}

TEST_CASE("Sections that do not fit are refused", "[append_rope]") {
  Device device = *Device::Create(BackendKind::kCpu);
  AppendRopeParams p;
  p.num_tokens = 1;
  p.kv_heads = 1;
  p.k_dim = p.v_dim = p.rotary_dim = 8;
  p.num_positions = 1;
  const auto message = [&] { return AppendRope(device, p, Stream{}).ToString(); };
  p.position_sections = 2;
  CHECK(message() == "InvalidArgument: position_sections = 2: must be 1 or 3");
  p.position_sections = 3;
  p.section_pairs[0] = 3;
  CHECK(message() == "InvalidArgument: section_pairs: the sum is 3; must be rotary_dim / 2 = 4");
  p.section_pairs[1] = -1;
  CHECK(AppendRope(device, p, Stream{}).code() == Code::kInvalidArgument);
}

TEST_CASE("A q that changes its order needs room of its own", "[append_rope]") {
  Random random(7);
  AppendShape s;
  s.q_heads = 1;
  s.style = RopeStyle::kInterleavedToHalf;
  const auto c = MakeAppend<F32, F32>(random, s);
  Device device = *Device::Create(BackendKind::kCpu);
  DeviceVector<std::uint32_t> rows(device, c.q);
  DeviceVector<std::int64_t> slots(device, c.slots);
  DeviceVector<std::int32_t> positions(device, c.positions);
  AppendRopeParams p = ShapeOf(c, true);
  p.k = p.v = p.q = rows.data();
  p.q_out = rows.data();
  p.k_cache = p.v_cache = rows.data();
  p.cos = p.sin = reinterpret_cast<const float*>(rows.data());
  p.slots = slots.data();
  p.positions = positions.data();
  const Status status = AppendRope(device, p, Stream{});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("kInterleavedToHalf") != std::string::npos);
}

TEST_CASE("RopeUpdate does not change the order of elements", "[rope_update]") {
  Device device = *Device::Create(BackendKind::kCpu);
  RopeUpdateParams p;
  p.style = RopeStyle::kInterleavedToHalf;
  p.batch = p.new_tokens = p.cache_len = 1;
  p.heads = 1;
  p.head_dim = p.rotary_dim = 4;
  CHECK(RopeUpdate(device, p, Stream{}).code() == Code::kUnsupported);
}

}  // namespace
}  // namespace lariat::testing
