// SPDX-License-Identifier: Apache-2.0
// Blocks that go to pages of pinned memory and come back.
#include "storage/host_storage.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "support/catch.h"
#include "support/count_new.h"
#include "support/device_vector.h"

namespace lariat {
namespace {

using blocks::TierCopy;
using storage::BlockLayout;
using storage::BlockStorage;
using storage::HostStorage;

constexpr std::int64_t kBlocks = 600;  // more than one lot
constexpr std::int64_t kPages = 700;

BlockLayout MakeLayout(Layout layout) {
  const std::vector<LayerSpec> layers = {{.kv_heads = 2, .k_dim = 4, .v_dim = 6},
                                         {.kv_heads = 1, .k_dim = 8, .v_dim = 2},
                                         {.kv_heads = 1, .k_dim = 5}};
  return {layers, DType::kBF16, 3, layout, lariat::Order::kNHD, kBlocks};
}

// Distinct numbers in a random order.
std::vector<std::int32_t> Order(std::int64_t count, std::mt19937_64& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

TEST_CASE("host storage: what went down comes up, in both layouts, into other blocks") {
  for (Device& device : testing::AvailableDevices()) {
    for (const Layout layout : {Layout::kBlockMajor, Layout::kLayerMajor}) {
      const BlockLayout planes = MakeLayout(layout);
      auto blocks = BlockStorage::Create(device, planes, kBlocks, 1);
      REQUIRE(blocks.ok());
      auto host = HostStorage::Create(device, planes, kPages);
      REQUIRE(host.ok());
      const Stream stream = *device.CreateStream();
      const auto bytes = static_cast<std::size_t>(planes.bytes_per_block());
      std::mt19937_64 random(3);
      std::vector<std::uint8_t> pool(bytes * kBlocks);
      for (std::uint8_t& byte : pool) byte = static_cast<std::uint8_t>(random());
      REQUIRE(device.Synchronize(Stream{}).ok());  // the pool is zeroed there
      REQUIRE(device.CopyToDevice(blocks->base(), pool.data(), pool.size(), stream).ok());

      const auto from = Order(kBlocks, random), pages = Order(kPages, random);
      const auto to = Order(kBlocks, random);
      std::vector<TierCopy> down, up;
      for (std::size_t i = 0; i < kBlocks; ++i) {
        down.push_back({from[i], pages[i]});
        up.push_back({to[i], pages[i]});
      }
      const std::int64_t before = testing::CountOfNew();
      REQUIRE(host->Down(*blocks, down, stream).ok());
      REQUIRE(host->Up(*blocks, up, stream).ok());
      CHECK(testing::CountOfNew() == before);
      std::vector<std::uint8_t> now(pool.size());
      REQUIRE(device.CopyToHost(now.data(), blocks->base(), now.size(), stream).ok());
      REQUIRE(device.Synchronize(stream).ok());

      // Where byte i of a block lies.
      std::vector<std::size_t> offsets, strides;
      for (const storage::LayerPlanes& layer : planes.layers()) {
        for (const storage::Plane* plane : {&layer.k, &layer.v}) {
          for (std::int64_t i = 0; i < plane->row_bytes * planes.block_size(); ++i) {
            offsets.push_back(static_cast<std::size_t>(plane->offset + i));
            strides.push_back(static_cast<std::size_t>(plane->block_stride));
          }
        }
      }
      REQUIRE(offsets.size() == bytes);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < kBlocks; ++i) {
        const auto source = static_cast<std::size_t>(from[i]);
        const auto target = static_cast<std::size_t>(to[i]);
        for (std::size_t b = 0; b < bytes; ++b) {
          wrong += now[offsets[b] + target * strides[b]] != pool[offsets[b] + source * strides[b]];
        }
      }
      CHECK(wrong == 0);
      device.DestroyStream(stream);
    }
  }
}

TEST_CASE("host storage: without memory pages are addresses, and too many are refused") {
  Device null = *Device::Create(BackendKind::kNull);
  const BlockLayout planes = MakeLayout(Layout::kBlockMajor);
  auto blocks = BlockStorage::Create(null, planes, kBlocks, 1);
  auto host = HostStorage::Create(null, planes, std::int64_t{1} << 40);
  REQUIRE(host.ok());
  const std::vector<TierCopy> moves = {{1, 2}, {3, 4}};
  CHECK(host->Down(*blocks, moves, Stream{}).ok());
  CHECK(host->Up(*blocks, moves, Stream{}).ok());
  const auto refused = HostStorage::Create(null, planes, std::int64_t{1} << 55);
  CHECK(refused.status().code() == Code::kResourceExhausted);
}

}  // namespace
}  // namespace lariat
