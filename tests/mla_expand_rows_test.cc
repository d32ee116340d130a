// SPDX-License-Identifier: Apache-2.0
// What MlaExpand moves, and which rows: NaN around them, faults, far blocks.
#include "support/expand_runner.h"

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
using testing::PoisonNaN;
using testing::Random;
using testing::RunExpand;

template <class F>
double Value(typename F::Bits bits) {
  return static_cast<double>(F::Decode(bits));
}

}  // namespace

// K48, K49: pages of other sequences, a padding page 0 and the unused rows of a last page hold NaN.
TEST_CASE("expand: NaN in unused rows and pages reaches no result") {
  for (Device& device : AvailableDevices()) {
    Random random(11);
    ExpandShape s;
    s.counts = {13};
    s.padding = 3;
    auto c = MakeExpand<B16>(random, s);
    REQUIRE(c.block_table.size() == 4);
    const auto got = RunExpand(device, c);
    for (const auto* output : {&got.k, &got.v}) {
      CHECK(std::none_of(output->begin(), output->end(), B16::IsNaN));
    }
    // A NaN in one latent stays in that token's row.
    const std::int64_t row = c.block_table[1] * c.block_stride + 2 * c.row_stride;  // token 6
    c.cache[static_cast<std::size_t>(row + 5)] = PoisonNaN<B16>();
    DeviceVector<std::uint16_t> w(device, c.w), cache(device, c.cache), k(device, c.k),
        v(device, c.v);
    DeviceVector<std::int32_t> cu_tokens(device, c.cu_tokens), table(device, c.block_table);
    MlaExpandParams p = testing::ShapeOf(c, false);
    p.w_kv_b = w.data();
    p.cache = cache.data();
    p.cu_tokens = cu_tokens.data();
    p.block_table = table.data();
    p.k = k.data();
    p.v = v.data();
    REQUIRE(MlaExpand(device, p, Stream{}).ok());
    const auto values = v.Read();
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const auto first = values.begin() + t * c.v_stride;
      const auto last = first + c.heads * c.v_dim;
      CHECK(std::count_if(first, last, B16::IsNaN) == (t == 6 ? c.heads * c.v_dim : 0));
    }
  }
}

TEST_CASE("expand: NaN, infinity, -0 and subnormals of k_pe keep their bits") {
  for (Device& device : AvailableDevices()) {
    Random random(12);
    for (const int rope_dim : {7, 8, 64}) {
      ExpandShape s;
      s.rope_dim = rope_dim;
      s.nope_dim = s.v_dim = 0;
      auto c = MakeExpand<F16>(random, s);
      c.cache = random.Numbers<F16>(static_cast<std::int64_t>(c.cache.size()), true);
      RunExpand(device, c);
      auto wide = MakeExpand<F32>(random, s);
      wide.cache = random.Numbers<F32>(static_cast<std::int64_t>(wide.cache.size()), true);
      RunExpand(device, wide);
    }
  }
}

TEST_CASE("expand: the record holds the smallest faulty row, and such rows are zeros") {
  for (Device& device : AvailableDevices()) {
    Random random(13);
    for (const bool indirect : {false, true}) {
      ExpandOptions options;
      options.indirect_fault = indirect;
      ExpandShape s;
      s.counts = {9, 0, 12};
      auto good = MakeExpand<F32>(random, s);
      CHECK(RunExpand(device, good, options).fault.kind == FaultKind::kNone);
      const std::size_t second = static_cast<std::size_t>(2 * good.table_stride);
      auto c = good;
      for (const std::int64_t bad :
           {good.num_blocks, std::int64_t{-1}, std::int64_t{INT32_MIN}, std::int64_t{INT32_MAX}}) {
        c.block_table[second + 1] = static_cast<std::int32_t>(bad);  // its tokens 4 to 7
        const auto got = RunExpand(device, c, options);
        CHECK(got.fault.kind == FaultKind::kSlot);
        CHECK(got.fault.token == 13);
        CHECK(got.fault.value == bad);
        for (std::int64_t i = 13 * c.v_stride; i < 17 * c.v_stride; ++i) {
          CHECK(Value<F32>(got.v[static_cast<std::size_t>(i)]) == 0);
        }
      }
      c.block_table[1] = -7;  // of the first range
      CHECK(RunExpand(device, c, options).fault.token == 4);
      // Indices below 0, and past the table's row: 3 blocks of 4 rows.
      c.starts = {-2, 0, 5};
      FaultRecord fault = RunExpand(device, c, options).fault;
      CHECK(fault.kind == FaultKind::kPosition);
      CHECK(fault.token == 0);
      CHECK(fault.value == -2);
      c = good;
      REQUIRE(c.table_stride == 3);
      c.starts = {0, 0, 5};
      fault = RunExpand(device, c, options).fault;
      CHECK(fault.kind == FaultKind::kPosition);
      CHECK(fault.token == 9 + 7);
      CHECK(fault.value == 12);
      c.starts = {0, 0, INT32_MAX};
      CHECK(RunExpand(device, c, options).fault.value == INT32_MAX);
      // All rows at once.
      std::fill(c.block_table.begin(), c.block_table.end(), -1);
      CHECK(RunExpand(device, c, options).fault.token == 0);
      // A cache of no blocks.
      auto none = good;
      none.num_blocks = 0;
      none.cache.clear();
      CHECK(RunExpand(device, none, options).fault.token == 0);
    }
  }
}

TEST_CASE("expand: faults that nobody records are skipped all the same") {
  for (Device& device : AvailableDevices()) {
    Random random(14);
    const auto c = MakeExpand<F32>(random, ExpandShape{});
    DeviceVector<std::uint32_t> w(device, c.w), k(device, c.k), v(device, c.v);
    DeviceVector<std::int32_t> cu_tokens(device, c.cu_tokens);
    DeviceVector<std::int32_t> table(device, std::vector<std::int32_t>(c.block_table.size(), -1));
    DeviceVector<FaultRecord*> no_record(device, {nullptr});
    MlaExpandParams p = testing::ShapeOf(c, true);
    p.num_blocks = 0;
    p.w_kv_b = w.data();
    p.cu_tokens = cu_tokens.data();
    p.block_table = table.data();
    p.k = k.data();
    p.v = v.data();
    REQUIRE(MlaExpand(device, p, Stream{}).ok());
    CHECK((k.Read() == std::vector<std::uint32_t>(c.k.size(), 0)));
    p.fault_indirect = no_record.data();
    REQUIRE(MlaExpand(device, p, Stream{}).ok());
  }
}

// K62: block ids near 2^20, in a pool past 2^32 elements of which a few rows are touched.
TEST_CASE("expand: block ids near 2^20 give the rows of small ones") {
  constexpr std::int64_t kBlocks = (std::int64_t{1} << 20) + 2;
  for (Device& device : AvailableDevices()) {
    Random random(15);
    ExpandShape s = DeepSeek({40, 20});
    s.heads = 2;
    s.block_size = 16;
    s.nope_dim = s.v_dim = 16;
    auto c = MakeExpand<B16>(random, s);
    const auto near = RunExpand(device, c);
    Result<DeviceBuffer> pool = device.Allocate(
        MemoryKind::kDevice, static_cast<std::size_t>(kBlocks * c.block_stride) * 2);
    if (!pool.ok()) LARIAT_SKIP("too little memory for a pool past 2^32 elements");
    auto* base = static_cast<std::uint16_t*>(pool->data());
    std::vector<std::int32_t> far_table = c.block_table;
    for (std::int32_t& block : far_table) {
      if (block < 0) continue;
      const std::int64_t far = kBlocks - 1 - block;
      const auto from = c.cache.begin() + block * c.block_stride;
      const std::vector<std::uint16_t> rows(from, from + c.block_stride);
      REQUIRE(
          device.CopyToDevice(base + far * c.block_stride, rows.data(), rows.size() * 2, {}).ok());
      REQUIRE(device.Synchronize({}).ok());
      block = static_cast<std::int32_t>(far);
    }
    DeviceVector<std::uint16_t> w(device, c.w), k(device, c.k), v(device, c.v);
    DeviceVector<std::int32_t> cu_tokens(device, c.cu_tokens), table(device, far_table);
    MlaExpandParams p = testing::ShapeOf(c, true);
    p.w_kv_b = w.data();
    p.cache = base;
    p.num_blocks = kBlocks;
    p.cu_tokens = cu_tokens.data();
    p.block_table = table.data();
    p.k = k.data();
    p.v = v.data();
    REQUIRE(MlaExpand(device, p, Stream{}).ok());
    CHECK((k.Read() == near.k));
    CHECK((v.Read() == near.v));
  }
}

TEST_CASE("expand: CUDA moves the CPU's bits of k_pe, whatever the unit") {
  std::vector<Device> devices = AvailableDevices();
  if (devices.size() < 2) LARIAT_SKIP("no CUDA device");
  Random random(17);
  ExpandShape s = DeepSeek({100, 0, 60});
  s.heads = 128;
  s.nope_dim = s.v_dim = 0;
  s.with_starts = true;
  const auto c = MakeExpand<B16>(random, s);
  ExpandOptions narrow;
  narrow.offset = 1;
  const auto cpu = RunExpand(devices[0], c);
  CHECK((cpu.k == RunExpand(devices[1], c).k));
  CHECK((cpu.k == RunExpand(devices[1], c, narrow).k));
}

}  // namespace lariat
