// SPDX-License-Identifier: Apache-2.0
// Release and Reacquire: what becomes of memory, of what is cached, of work that is still under
// way.
#include <memory>
#include <vector>

#include "support/case_cache.h"
#include "support/device_vector.h"
#include "support/fault_backend.h"
#include "support/late_world.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::FaultBackend;
using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

TEST_CASE("Release gives the pool's memory back, and Reacquire takes it again", "[release]") {
  CacheConfig config = CaseCache::Config(4, 64, BackendKind::kCpu);
  const auto backend = std::make_shared<FaultBackend>(testing::Cpu());
  {
    CaseCache c(config, Device(backend));
    const std::size_t pool = static_cast<std::size_t>(c->footprint().pool_bytes);
    const std::size_t with = backend->bytes(MemoryKind::kDevice);
    const SequenceId id = c.Start(CaseCache::Range(0, 9));
    CaseCache::Must(c->Close(id));
    CHECK(c.Match(CaseCache::Range(0, 9)) == 8);
    CaseCache::Must(c->Release());
    CHECK(backend->bytes(MemoryKind::kDevice) == with - pool);
    CHECK(c->Layer(0)->k == nullptr);
    CHECK(c.Match(CaseCache::Range(0, 9)) == 0);
    CHECK(c.Available() == 64);
    const std::string released = c->Snapshot();
    CHECK(c->Open({}).status().code() == Code::kNotReady);
    CHECK(c->Plan({}).status().code() == Code::kNotReady);
    CaseCache::Must(c->Release());
    CHECK(c->Snapshot() == released);

    // No room: the answer is a Status, and asking again later is all there is to do.
    backend->FailAt(1);
    CHECK(c->Reacquire().code() == Code::kResourceExhausted);
    backend->FailAt(0);
    CHECK(c->Open({}).status().code() == Code::kNotReady);
    CaseCache::Must(c->Reacquire());
    CaseCache::Must(c->Reacquire());
    CHECK(backend->bytes(MemoryKind::kDevice) == with);
    const auto* pool_bytes = static_cast<const char*>(c->Layer(0)->k);
    CHECK(std::count(pool_bytes, pool_bytes + pool, 0) == static_cast<std::ptrdiff_t>(pool));
    CaseCache::Must(c->Close(c.Start(CaseCache::Range(0, 9))));
    CHECK(c.Match(CaseCache::Range(0, 9)) == 8);
  }
  CHECK(backend->outstanding() == 0);
  CHECK(backend->wrong_frees() == 0);
}

TEST_CASE("Release is refused while anything is open, and changes nothing", "[release]") {
  CaseCache c(4, 16);
  const auto refused = [&] {
    const std::string before = c->Snapshot();
    const Status status = c->Release();
    CHECK(status.code() == Code::kNotReady);
    CHECK(c->Snapshot() == before);
  };
  const SequenceId id = c.Open(CaseCache::Range(0, 6));
  refused();
  {
    auto planned = c.Plan(id, 6);
    REQUIRE(planned.ok());
    refused();
  }
  Step step = c.Prepared(id, 6);
  refused();
  CaseCache::Must(c->Close(id));  // the step lives on
  refused();
  CaseCache::Must(c->Commit(step, {}, {}));
  CaseCache::Must(c->Release());
  CaseCache::Must(c->Reacquire());
  CHECK(KVCache::Supports(c->config(), Feature::kReleaseReacquire).ok());
}

TEST_CASE("Release waits for steps and copies that run late", "[release]") {
  for (const bool host : {false, true}) {
    CAPTURE(host);
    WorldOptions options;
    if (host) options.host = {.num_blocks = 20, .write = WritePolicy::kThrough};
    LateWorld late(options);
    RowWorld& world = late.world;
    for (int round = 0; round < 3; ++round) {
      const SequenceId a = *world.Open(Tokens(0, 13)), b = *world.Open(Tokens(0, 9));
      REQUIRE(world.Run({{.sequence = a, .num_tokens = 13}}, {}).ok());
      REQUIRE(world.Run({{.sequence = b, .num_tokens = 9}}, {}).ok());
      CHECK(world.live().back().rows[0].hit == 0);  // of the rounds before
      REQUIRE(world.Commit({}).ok());
      REQUIRE(world.Commit({}).ok());
      REQUIRE(world.Close(a).ok());
      REQUIRE(world.Close(b).ok());
      CHECK(late.backend->pending() > 0);
      CaseCache::Must(world.cache().Release());
      CHECK(late.backend->pending() == 0);
      CHECK(world.cache().GetStats().host_used == 0);
      CaseCache::Must(world.cache().Reacquire());
    }
    late.Finish();
    CHECK(world.errors() == "");
    CHECK(world.readers_run() == 6);
  }
}

TEST_CASE("A transfer under way holds Release off until it is accepted", "[release]") {
  WorldOptions options;
  options.host = {.num_blocks = 20, .write = WritePolicy::kThrough};
  RowWorld world(options, *Device::CreateDeferred(BackendKind::kCpu, 1),
                 [](Stream, const std::function<void()>& work) { work(); });
  KVCache& cache = world.cache();
  const SequenceId a = *world.Open(Tokens(0, 13));
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 13}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  REQUIRE(world.Suspend(a).ok());
  // Others take its blocks, so that there is something to bring back.
  const SequenceId b = *world.Open(Tokens(500, 44)), c = *world.Open(Tokens(900, 44));
  REQUIRE(world.Run({{.sequence = b, .num_tokens = 44}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  REQUIRE(world.Run({{.sequence = c, .num_tokens = 44}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  REQUIRE(world.Close(b).ok());
  REQUIRE(world.Close(c).ok());
  CHECK(cache.Release().code() == Code::kNotReady);  // a is suspended
  const auto transfer = world.Resume(a);
  REQUIRE(transfer.ok());
  if (*transfer == TransferId::kNone) FAIL("nothing to bring back");
  CaseCache::Must(cache.Close(a));
  CHECK(cache.Release().code() == Code::kNotReady);
  REQUIRE(cache.Accept(*transfer).ok());
  CaseCache::Must(cache.Release());
  CaseCache::Must(cache.Reacquire());
  CHECK(cache.GetStats().free_blocks == cache.GetStats().total_blocks);
}

TEST_CASE("Between the two the caller's memory is the caller's", "[release]") {
  for (Device& device : testing::AvailableDevices()) {
    CacheConfig config = CaseCache::Config(4, 8);
    const std::int64_t bytes = KVCache::Footprint(config)->pool_bytes;
    DeviceBuffer memory = *device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(bytes));
    config.memory.caller_memory = memory.data();
    config.memory.caller_bytes = bytes;
    CaseCache c(config, device);
    CaseCache::Must(c->Release());
    CaseCache::Must(device.Fill(memory.data(), 0xFF, memory.size(), {}));
    CaseCache::Must(c->Reacquire());
    CHECK(c->Layer(0)->k == memory.data());
    std::vector<char> now(memory.size(), 'x');
    CaseCache::Must(device.CopyToHost(now.data(), memory.data(), now.size(), {}));
    CaseCache::Must(device.Synchronize({}));
    CHECK(std::count(now.begin(), now.end(), 0) == std::ssize(now));
  }
}

}  // namespace
}  // namespace lariat
