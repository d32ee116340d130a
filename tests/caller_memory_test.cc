// SPDX-License-Identifier: Apache-2.0
// A pool in the caller's memory: where it lies, what is written, what is not, and who frees it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "support/case_cache.h"
#include "support/device_vector.h"
#include "support/fault_backend.h"
#include "support/late_world.h"

namespace lariat {
namespace {

using testing::CaseCache;

constexpr std::int64_t kGuard = 4096;
constexpr std::uint8_t kPoison = 0xC5;

CacheConfig Config() {
  CacheConfig config;
  config.layers.assign(3, {.kv_heads = 2, .k_dim = 4, .v_dim = 6});
  config.dtype = DType::kFP32;
  config.memory.num_blocks = 8;
  config.block_size = 4;
  config.max_sequences = 3;
  config.max_tokens_per_sequence = 28;
  config.max_tokens_per_step = 28;
  return config;
}

// Memory of a device with guards on both sides of `bytes`.
struct Guarded {
  Guarded(Device on, std::int64_t size) : device(std::move(on)), bytes(size) {
    Result<DeviceBuffer> made =
        device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(bytes + 2 * kGuard));
    if (!made.ok()) FAIL(made.status().ToString());
    buffer = *std::move(made);
    CaseCache::Must(device.Fill(buffer.data(), kPoison, buffer.size(), {}));
    CaseCache::Must(device.Synchronize({}));
  }
  std::byte* data() { return static_cast<std::byte*>(buffer.data()) + kGuard; }
  std::vector<std::uint8_t> Read() {
    std::vector<std::uint8_t> all(buffer.size());
    CaseCache::Must(device.CopyToHost(all.data(), buffer.data(), all.size(), {}));
    CaseCache::Must(device.Synchronize({}));
    return all;
  }
  Device device;
  std::int64_t bytes;
  DeviceBuffer buffer;
};

TEST_CASE("A pool in memory of the caller's", "[memory]") {
  for (const Layout layout : {Layout::kBlockMajor, Layout::kLayerMajor}) {
    for (Device& device : testing::AvailableDevices()) {
      CacheConfig config = Config();
      config.layout = layout;
      const std::int64_t pool = KVCache::Footprint(config)->pool_bytes;
      // More than is needed: the rest is not touched.
      Guarded memory(device, pool + 512);
      config.memory.caller_memory = memory.data();
      config.memory.caller_bytes = pool + 512;
      {
        KVCache cache = *KVCache::Create(config, device);
        CHECK(cache.footprint().pool_bytes == pool);
        CHECK(cache.Layer(0)->k == memory.data());
        std::vector<std::uint8_t> all = memory.Read();
        CHECK(std::all_of(all.begin() + kGuard, all.begin() + kGuard + pool,
                          [](std::uint8_t byte) { return byte == 0; }));

        // All blocks are written to, through two sequences and a copy of a block.
        const std::vector<float> ones(28 * 2 * 6, 1.0F);
        testing::DeviceVector<float> rows(device, ones);
        const AppendInputs inputs{.dtype = DType::kFP32, .k = rows.data(), .v = rows.data()};
        SequenceId id = *cache.Open({});
        for (const std::int64_t count : {22, 4}) {
          const StepItem item{.sequence = id, .num_tokens = count};
          Step step = *cache.Plan(std::span(&item, 1));
          CaseCache::Must(cache.Prepare(step, {}));
          for (int layer = 0; layer < 3; ++layer) {
            CaseCache::Must(cache.Append(step, layer, inputs, {}));
          }
          CaseCache::Must(cache.Commit(step, {}, {}));
          if (count == 22) {
            id = *cache.Fork(id, 21);
          }
        }
        CHECK(cache.GetStats().copied_blocks == 1);
        std::vector<float> k(25 * 8);
        CaseCache::Must(cache.ReadRows(id, 2, 0, 25, k.data(), nullptr));
        CHECK(k == std::vector<float>(25 * 8, 1.0F));
      }
      // The cache is gone; the memory is not.
      const std::vector<std::uint8_t> all = memory.Read();
      const auto poisoned = [](std::uint8_t byte) { return byte == kPoison; };
      CHECK(std::all_of(all.begin(), all.begin() + kGuard, poisoned));
      CHECK(std::all_of(all.begin() + kGuard + pool, all.end(), poisoned));
      CHECK(std::none_of(all.begin() + kGuard, all.begin() + kGuard + pool, poisoned));
    }
  }
}

TEST_CASE("The caller's memory is neither allocated nor freed", "[memory]") {
  CacheConfig config = Config();
  const auto backend = std::make_shared<testing::FaultBackend>(testing::Cpu());
  const auto want = *KVCache::Footprint(config);
  Guarded memory(*Device::Create(BackendKind::kCpu), want.pool_bytes);
  config.memory.caller_memory = memory.data();
  config.memory.caller_bytes = want.pool_bytes;
  {
    const auto cache = KVCache::Create(config, Device(backend));
    REQUIRE(cache.ok());
    CHECK(static_cast<std::int64_t>(backend->bytes(MemoryKind::kDevice)) ==
          want.rope_table_bytes + want.step_array_bytes);
  }
  CHECK(backend->outstanding() == 0);
  CHECK(backend->wrong_frees() == 0);
}

TEST_CASE("Memory that will not do is refused, in words", "[memory]") {
  CacheConfig good = Config();
  const std::int64_t pool = KVCache::Footprint(good)->pool_bytes;
  Guarded memory(*Device::Create(BackendKind::kCpu), pool + 256);
  good.backend = BackendKind::kCpu;
  good.memory.caller_memory = memory.data();
  good.memory.caller_bytes = pool;
  const auto refused = [&](const char* text, const std::function<void(MemoryConfig&)>& change) {
    CacheConfig config = good;
    change(config.memory);
    for (const Status& status :
         {KVCache::Create(config).status(), KVCache::Footprint(config).status()}) {
      INFO(status.ToString());
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().find(text) != std::string::npos);
    }
  };
  REQUIRE(KVCache::Create(good).ok());
  const std::string most = std::to_string(pool) + " and more";
  refused(most.c_str(), [](MemoryConfig& m) { --m.caller_bytes; });
  refused("memory.caller_bytes 0", [](MemoryConfig& m) { m.caller_bytes = 0; });
  refused("memory.caller_bytes -1", [](MemoryConfig& m) { m.caller_bytes = -1; });
  refused(most.c_str(), [&](MemoryConfig& m) {
    m = {.bytes = pool, .caller_memory = m.caller_memory, .caller_bytes = pool - 1};
  });
  refused("multiple of 256", [&](MemoryConfig& m) { m.caller_memory = memory.data() + 128; });
  refused("memory.caller_bytes 5: allowed are 0 without",
          [](MemoryConfig& m) { m = {.num_blocks = 7, .caller_bytes = 5}; });
  const std::vector<std::uint8_t> all = memory.Read();
  CHECK(std::all_of(all.begin() + kGuard + pool, all.end(),
                    [](std::uint8_t byte) { return byte == kPoison; }));

  // By bytes: as many whole blocks as fit into `bytes`, which the memory has to hold.
  good.memory = {.bytes = pool + 1, .caller_memory = memory.data(), .caller_bytes = pool};
  CHECK(KVCache::Create(good)->footprint().num_blocks == 8);
  // Null looks at the address alone.
  good.backend = BackendKind::kNull;
  good.memory.caller_memory = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  CHECK(KVCache::Create(good)->Layer(0)->k == good.memory.caller_memory);
  good.memory.bytes = 0;
  good.memory.unlimited = true;
  CHECK(KVCache::Create(good).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace lariat
