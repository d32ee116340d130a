// SPDX-License-Identifier: Apache-2.0
// Batches down and transfers up on streams that run late.
#include "cache/tier_streams.h"

#include <array>
#include <cstring>
#include <random>

#include "support/catch.h"
#include "support/count_new.h"
#include "support/late_world.h"

namespace lariat {
namespace {

using blocks::TierCopy;
using cache::TierStreams;
using storage::BlockLayout;
using storage::BlockStorage;
using testing::DeferredBackend;

constexpr std::int32_t kBlocks = 300;
const Stream kSteps = {};

// One byte stands for a block: they hold as many equal ones as they have.
struct Late {
  Late()
      : backend(std::make_shared<DeferredBackend>(testing::Cpu())),
        device(backend),
        layout(std::vector<LayerSpec>{{.kv_heads = 1, .k_dim = 2, .v_dim = 2}}, DType::kBF16, 2,
               Layout::kBlockMajor, lariat::Order::kNHD, kBlocks),
        blocks(*BlockStorage::Create(device, layout, kBlocks, 1)),
        tier(*TierStreams::Create(device, layout, kBlocks)) {
    REQUIRE(device.Synchronize(kSteps).ok());
  }
  std::byte* Block(std::int32_t block) const {
    return blocks.base() + block * layout.bytes_per_block();
  }
  // A step that writes `value` to a block; its event.
  Event Write(std::int32_t block, int value) {
    REQUIRE(device.Fill(Block(block), static_cast<std::uint8_t>(value), Bytes(), kSteps).ok());
    const Event event = *device.CreateEvent();
    REQUIRE(device.Record(event, kSteps).ok());
    return event;
  }
  std::size_t Bytes() const { return static_cast<std::size_t>(layout.bytes_per_block()); }
  bool Holds(std::int32_t block, int value) const {
    const std::vector<std::byte> want(Bytes(), static_cast<std::byte>(value));
    return std::memcmp(Block(block), want.data(), Bytes()) == 0;
  }
  std::shared_ptr<DeferredBackend> backend;
  Device device;
  BlockLayout layout;
  BlockStorage blocks;
  std::unique_ptr<TierStreams> tier;
};

TEST_CASE("tier streams: a fence holds, with more batches on their way than there are events") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    Late late;
    // Batch i copies block i % 8, which is written again once its last batch has read it.
    for (std::int32_t i = 1; i <= 200; ++i) {
      if (i > 8) REQUIRE(late.tier->WaitForBatch(kSteps, static_cast<std::uint64_t>(i - 8)).ok());
      const Event written = late.Write(i % 8, i);
      const TierCopy copy{i % 8, i};
      REQUIRE(late.tier->StartBatch(late.blocks, {&copy, 1}, static_cast<std::uint64_t>(i), written)
                  .ok());
      if (seed % 3 == 0) late.backend->RunSome(static_cast<std::int64_t>(random() % 6), random);
    }
    // Places come up into other blocks, some before all batches were asked for.
    std::vector<blocks::Transfer> transfers;
    for (std::int32_t n = 0; n < 20; ++n) {
      blocks::Transfer& transfer = transfers.emplace_back();
      transfer.id = TransferId(static_cast<std::uint64_t>(n + 1));
      transfer.fence = static_cast<std::uint64_t>(10 * n + 10);
      for (std::int32_t i = 10 * n + 1; i <= 10 * n + 10; ++i)
        transfer.copies.push_back({50 + i, i});
      REQUIRE(late.tier->StartTransfer(late.blocks, transfer, Event{}).ok());
    }
    late.tier->WaitFor(TransferId{7}, *late.device.CreateStream());
    for (std::int32_t i = 1; i <= 70; ++i) CHECK(late.Holds(50 + i, i));
    CHECK_FALSE(late.tier->Forget(TransferId{7}));
    late.tier->WaitFor(TransferId{20}, *late.device.CreateStream());
    for (std::int32_t i = 1; i <= 200; ++i) CHECK(late.Holds(50 + i, i));
    REQUIRE(late.device.Synchronize(kSteps).ok());
    CHECK(late.backend->failures() == 0);
  }
}

TEST_CASE("tier streams: what was seen to pass is not waited for, and no call allocates") {
  Late late;
  std::vector<TierCopy> copies;
  for (std::int32_t i = 0; i < kBlocks; ++i) copies.push_back({i, kBlocks - 1 - i});
  REQUIRE(late.tier->StartBatch(late.blocks, copies, 1, Event{}).ok());
  REQUIRE(late.tier->WaitForBatch(kSteps, 1).ok());
  CHECK(late.backend->pending() > 1);
  std::mt19937_64 random(1);
  while (late.backend->RunSome(100, random)) {
  }
  REQUIRE(late.tier->WaitForBatch(kSteps, 1).ok());
  REQUIRE(late.tier->WaitForBatch(kSteps, 0).ok());
  REQUIRE(late.tier->WaitForBatch(kSteps, 7).ok());  // never started
  CHECK(late.backend->pending() == 0);

  Device cpu = *Device::Create(BackendKind::kCpu);
  BlockStorage blocks = *BlockStorage::Create(cpu, late.layout, kBlocks, 1);
  const auto tier = *TierStreams::Create(cpu, late.layout, kBlocks);
  blocks::Transfer up;
  up.copies = copies;
  std::uint64_t batch = 0;
  const auto round = [&] {
    ++batch;
    up.id = TransferId(batch);
    up.fence = batch;
    REQUIRE(tier->StartBatch(blocks, copies, batch, Event{}).ok());
    REQUIRE(tier->WaitForBatch(kSteps, batch).ok());
    REQUIRE(tier->StartTransfer(blocks, up, Event{}).ok());
    tier->WaitFor(up.id, kSteps);
    REQUIRE_FALSE(tier->Forget(up.id));
  };
  round();
  const std::int64_t before = testing::CountOfNew();
  for (int i = 0; i < 100; ++i) {
    ++batch;
    up.id = TransferId(batch);
    up.fence = batch;
    const bool ok = tier->StartBatch(blocks, copies, batch, Event{}).ok() &&
                    tier->WaitForBatch(kSteps, batch).ok() &&
                    tier->StartTransfer(blocks, up, Event{}).ok();
    tier->WaitFor(up.id, kSteps);
    if (!ok || tier->Forget(up.id)) FAIL();
  }
  CHECK(testing::CountOfNew() == before);
}

}  // namespace
}  // namespace lariat
