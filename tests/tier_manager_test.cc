// SPDX-License-Identifier: Apache-2.0
// The block manager alone, told of copies that failed and of rows with a device fault.
#include "blocks/block_manager.h"
#include "support/case_cache.h"
#include "support/catch.h"

namespace lariat {
namespace {

using blocks::BlockManager;
using blocks::PlannedStep;
using testing::CaseCache;

struct Manager {
  explicit Manager(std::int64_t blocks, std::int64_t places = 40,
                   WritePolicy write = WritePolicy::kThrough)
      : m(Config(blocks, places, write)) {}
  static blocks::ManagerConfig Config(std::int64_t blocks, std::int64_t places, WritePolicy write) {
    blocks::ManagerConfig config;
    config.num_blocks = blocks;
    config.block_size = 1;
    config.max_sequences = 10;
    config.max_tokens_per_sequence = config.max_tokens_per_step = 64;
    config.host_blocks = places;
    config.write = write;
    config.clean_blocks = 4;
    return config;
  }
  SequenceId Open(const std::vector<TokenId>& prompt) { return *m.Open(prompt, {}, 0); }
  void Feed(SequenceId id, std::int64_t count, PlannedStep& step) {
    const StepItem item{id, count, 0, {}};
    REQUIRE(m.Plan(std::span(&item, 1), {}, step, nullptr).ok());
    m.Prepare(step);
    m.WritesStarted();
    REQUIRE(m.Commit(step, {}).ok());
    m.WritesStarted();
  }
  SequenceId Start(const std::vector<TokenId>& prompt, PlannedStep& step) {
    const SequenceId id = Open(prompt);
    Feed(id, std::ssize(prompt), step);
    return id;
  }
  SequenceId Start(const std::vector<TokenId>& prompt) {
    PlannedStep step;
    return Start(prompt, step);
  }
  void Close(SequenceId id) {
    REQUIRE(m.Close(id).ok());
    m.WritesStarted();
  }
  void Suspend(SequenceId id) {
    REQUIRE(m.BeginSuspend(id).ok());
    m.FinishSuspend();
    m.WritesStarted();
  }
  // Evicts all that is idle.
  void Flood() {
    const Stats now = stats();
    const SequenceId id = Start(CaseCache::Range(9000, now.free_blocks + now.idle_blocks));
    Close(id);
    REQUIRE(m.Remove(CaseCache::Range(9000, 1), {}, 0).ok());
  }
  TransferId Started(const Result<TransferId>& transfer) {
    REQUIRE(transfer.ok());
    REQUIRE(*transfer != TransferId::kNone);
    m.TransferStarted(*transfer);
    m.WritesStarted();
    return *transfer;
  }
  PrefixMatch Match(const std::vector<TokenId>& prompt) { return m.Match(prompt, {}, 0); }
  Stats stats() const {
    Stats stats;
    m.FillStats(stats);
    return stats;
  }
  BlockManager m;
};

const std::vector<TokenId> kPrompt = CaseCache::Range(0, 7);

TEST_CASE("Tier manager: fences name the last batch that matters", "[tier]") {
  Manager t(6);
  const std::uint64_t batch = t.m.next_batch();
  t.Close(t.Start(CaseCache::Range(0, 6)));
  CHECK(t.m.next_batch() == batch + 1);
  PlannedStep step;
  const SequenceId b = t.Start(CaseCache::Range(100, 2), step);
  CHECK(step.fence == batch);  // its blocks are being read
  CHECK(t.m.next_batch() == batch + 2);
  t.Feed(b, 1, step);
  CHECK(step.fence == batch);
  t.Close(b);
  const SequenceId c = t.Open(CaseCache::Range(0, 6));
  const TransferId transfer = t.Started(t.m.Fetch(c));
  const blocks::Transfer* found = t.m.FindTransfer(transfer);
  REQUIRE(found != nullptr);
  CHECK(found->copies.size() == 2);
  CHECK(found->fence == batch + 1);  // a block that is taken is being read
  CHECK(t.m.FindTransfer(TransferId{77}) == nullptr);
}

TEST_CASE("Tier manager: a fence covers a tail that is written in place", "[tier]") {
  blocks::ManagerConfig config = Manager::Config(8, 8, WritePolicy::kAfterHits);
  config.block_size = 4;
  BlockManager m(config);
  const auto prompt = CaseCache::Range(0, 6);
  const SequenceId a = *m.Open(prompt, {}, 0);
  PlannedStep step;
  const auto feed = [&](SequenceId id, std::int64_t count) {
    const StepItem item{id, count, 0, {}};
    REQUIRE(m.Plan(std::span(&item, 1), {}, step, nullptr).ok());
    m.Prepare(step);
    REQUIRE(m.Commit(step, {}).ok());
  };
  feed(a, 6);
  const SequenceId b = *m.Fork(a, 6);
  REQUIRE(m.BeginSuspend(a).ok());
  CHECK(m.pending_writes().size() == 2);
  const std::uint64_t batch = m.next_batch();
  CHECK(m.FinishSuspend() != TransferId::kNone);
  feed(b, 1);
  CHECK(step.fence == batch);
}

TEST_CASE("Tier manager: what failed to start is undone, but for what it may have overwritten",
          "[tier]") {
  Manager t(8, 8, WritePolicy::kAfterHits);
  const SequenceId a = t.Start(CaseCache::Range(0, 6));
  std::string before = t.m.Snapshot();
  REQUIRE(t.m.BeginSuspend(a).ok());
  CHECK(t.m.pending_writes().size() == 6);
  t.m.UndoSuspend();
  CHECK(t.m.Snapshot() == before);
  t.Suspend(a);
  const SequenceId b = t.Start(CaseCache::Range(100, 4));  // two free blocks, two victims
  t.Close(b);
  // Two of these copies go to idle blocks: what those held is not cached there any more.
  CHECK(t.Match(CaseCache::Range(100, 5)).tokens == 4);
  CHECK(t.stats().free_blocks == 0);
  const std::int64_t indexed = t.stats().indexed_blocks;
  const Result<TransferId> resumed = t.m.Resume(a);
  REQUIRE(resumed.ok());
  t.m.UndoTransfer(*resumed);
  CHECK(t.stats().free_blocks == 2);
  CHECK(t.stats().indexed_blocks == indexed - 2);
  CHECK(t.Match(CaseCache::Range(100, 5)).tokens == 2);
  before = t.m.Snapshot();
  const Result<TransferId> again = t.m.Resume(a);  // now there is room that was free
  REQUIRE(again.ok());
  CHECK(*again == *resumed);
  t.m.UndoTransfer(*again);
  CHECK(t.m.Snapshot() == before);
}

TEST_CASE("Tier manager: writes that do not start, or fail, are misses", "[tier]") {
  Manager t(8, 40, WritePolicy::kBack);
  const SequenceId a = t.Start(kPrompt);
  REQUIRE(t.m.Close(a).ok());
  CHECK(t.m.pending_writes().size() == 4);
  t.m.WritesFailed();
  CHECK(t.stats().host_used == 0);
  CHECK(t.stats().offloaded_blocks == 0);
  t.Flood();
  CHECK(t.Match(kPrompt).host_tokens == 0);

  Manager u(8);
  const std::uint64_t batch = u.m.next_batch();
  const SequenceId b = u.Start(kPrompt);
  u.Suspend(b);
  const SequenceId other = u.Start(CaseCache::Range(100, 3));
  u.Flood();
  CHECK(u.Match(kPrompt).host_tokens == 6);
  u.m.BatchFailed(batch);
  CHECK(u.Match(kPrompt).host_tokens == 0);
  CHECK(u.m.Resume(b).status().code() == Code::kCorruptData);
  CHECK(u.m.Get(other).ok());
  u.Close(b);
  u.Close(other);
  CHECK(u.stats().host_held == 0);
}

TEST_CASE("K146: the end of an earlier copy to a place says nothing of the next one", "[tier]") {
  for (const bool second : {false, true}) {
    CAPTURE(second);
    Manager t(4, 1);
    const std::uint64_t first = t.m.next_batch();
    t.Close(t.Start({1}));
    t.Close(t.Start(CaseCache::Range(100, 4)));  // evicts it, and its first block gets the place
    REQUIRE(t.m.next_batch() == first + 2);
    PlannedStep step;
    const SequenceId flood = t.Open({});
    t.Feed(flood, 4, step);
    t.Close(flood);
    const auto prompt = CaseCache::Range(100, 2);
    CHECK(t.Match(prompt).host_tokens == 1);
    t.m.BatchFailed(second ? first + 1 : first);
    CHECK(t.Match(prompt).host_tokens == (second ? 0 : 1));
    if (second) continue;
    const SequenceId a = t.Open(prompt);
    const TransferId transfer = t.Started(t.m.Fetch(a));
    CHECK(t.m.FindTransfer(transfer)->fence == first + 1);  // it waits for the one that counts
  }
  // A Suspend takes a place over that holds the copy of a block on the device.
  Manager t(4, 1);
  const std::uint64_t first = t.m.next_batch();
  t.Close(t.Start({1}));
  const SequenceId a = t.Start({100});
  t.Suspend(a);
  REQUIRE(t.m.next_batch() == first + 2);
  t.m.BatchFailed(first);
  CHECK(t.m.Get(a).ok());
  CHECK(t.stats().host_held == 1);
}

TEST_CASE("Tier manager: a transfer that failed is a miss to all that wait for it", "[tier]") {
  Manager t(16);
  const SequenceId s = t.Start(kPrompt);
  t.Suspend(s);
  t.Flood();
  const SequenceId a = t.Open(kPrompt), b = t.Open(kPrompt);
  const TransferId first = t.Started(t.m.Fetch(a));
  const TransferId second = t.Started(t.m.Fetch(b));
  const TransferId third = t.Started(t.m.Resume(s));  // brings the last block itself
  CHECK(t.m.FindTransfer(second)->copies.empty());
  CHECK(t.m.FindTransfer(third)->copies.size() == 1);
  t.m.Accept(first, /*failed=*/true);
  t.m.Accept(second, /*failed=*/false);
  CHECK(t.stats().onboarded_blocks == 0);
  CHECK(t.Match(kPrompt).host_tokens == 0);
  t.m.Accept(third, /*failed=*/false);
  CHECK(t.m.Get(s).status().code() == Code::kCorruptData);
  CHECK(t.stats().in_transit_blocks == 0);
  CHECK(t.stats().free_blocks == 16);
  PlannedStep step;
  t.Feed(a, 7, step);
  CHECK(step.hit_tokens == 0);
  t.Close(s);
  t.Close(a);
  t.Close(b);
  CHECK(t.stats().host_held == 0);
}

TEST_CASE("Tier manager: a fault reaches copies, and who holds them", "[tier]") {
  Manager t(16);
  PlannedStep faulty;
  t.Close(t.Start(CaseCache::Range(0, 2)));
  const SequenceId a = t.Open(kPrompt);
  t.Feed(a, 7, faulty);  // 2 and what is behind it
  CHECK(faulty.hit_tokens == 2);
  const SequenceId b = t.Start(CaseCache::Join(CaseCache::Range(0, 2), {70}));
  t.Suspend(a);
  t.Suspend(b);
  t.Flood();  // the blocks are others' now: the copies are left
  CHECK(t.Match(CaseCache::Range(0, 8)).host_tokens == 7);
  const SequenceId c = t.Open(CaseCache::Range(0, 8));
  const TransferId transfer = t.Started(t.m.Fetch(c));
  t.m.Quarantine(faulty, {});
  CHECK(t.Match(CaseCache::Range(0, 8)).host_tokens == 2);
  CHECK(t.m.Get(a).status().code() == Code::kCorruptData);
  CHECK(t.m.Get(b).ok());
  t.m.Accept(transfer, /*failed=*/false);
  CHECK(t.Match(CaseCache::Range(0, 8)).tokens == 2);
  CHECK(t.m.Resume(a).status().code() == Code::kCorruptData);
  REQUIRE(t.m.Resume(b).ok());
}

TEST_CASE("Tier manager: a fault reaches a sequence that is coming back", "[tier]") {
  Manager t(16);
  PlannedStep faulty;
  const SequenceId a = t.Start(kPrompt, faulty);
  t.Suspend(a);
  t.Flood();
  const TransferId transfer = t.Started(t.m.Resume(a));
  t.m.Quarantine(faulty, {});
  t.m.Accept(transfer, /*failed=*/false);
  CHECK(t.m.Get(a).status().code() == Code::kCorruptData);
  CHECK(t.stats().free_blocks == 16);
  CHECK(t.stats().host_used == 0);
}

}  // namespace
}  // namespace lariat
