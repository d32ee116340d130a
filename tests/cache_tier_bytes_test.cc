// SPDX-License-Identifier: Apache-2.0
// Transfers, one at a time: what is reported, what is waited for, and copies that fail.
#include <memory>

#include "backend/deferred_backend.h"
#include "support/count_new.h"
#include "support/failing_copies.h"
#include "support/fault_backend.h"
#include "support/late_world.h"

namespace lariat {
namespace {

using testing::Cpu;
using testing::FailingCopies;
using testing::FaultBackend;
using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

WorldOptions Options(WritePolicy write = WritePolicy::kBack) {
  WorldOptions options;
  options.blocks = 12;
  options.host.num_blocks = 20;
  options.host.write = write;
  return options;
}

// A world whose copies are late, and fail when they are told to.
struct FailingWorld {
  explicit FailingWorld(const WorldOptions& options)
      : backend(std::make_shared<FailingCopies>(MakeDeferredBackend(Cpu(), 1))),
        world(options, Device(backend), [](Stream, const auto& work) { work(); }) {}

  // A sequence with all of its prompt computed.
  SequenceId Computed(const std::vector<TokenId>& prompt) {
    const SequenceId id = *world.Open(prompt);
    REQUIRE(world.Run({{.sequence = id, .num_tokens = std::ssize(prompt)}}, {}).ok());
    REQUIRE(world.Commit({}).ok());
    return id;
  }
  // Evicts everything that is idle.
  void Flood() {
    const SequenceId id = Computed(Tokens(5000, 48));
    REQUIRE(world.Close(id).ok());
    REQUIRE(world.cache().Remove(Tokens(5000, 4)).ok());
  }
  void Check() {
    world.CheckRows();
    REQUIRE(world.errors() == "");
  }
  KVCache& cache() { return world.cache(); }
  std::shared_ptr<FailingCopies> backend;
  RowWorld world;
};

TEST_CASE("Tier: what was evicted comes back by a Fetch, and is a hit then", "[tier]") {
  FailingWorld w(Options(WritePolicy::kThrough));
  const auto prompt = Tokens(0, 20);
  REQUIRE(w.world.Close(w.Computed(prompt)).ok());
  w.Flood();
  const PrefixMatch match = w.cache().Match(prompt);
  CHECK(match.tokens == 0);
  CHECK(match.host_tokens == 16);  // one token is computed
  const SequenceId id = *w.world.Open(prompt);
  const TransferId transfer = *w.world.Fetch(id);
  REQUIRE(transfer != TransferId::kNone);
  CHECK(w.cache().GetStats().in_transit_blocks == 4);
  CHECK(w.world.Run({{.sequence = id, .num_tokens = 20}}, {}).code() == Code::kNotReady);
  CHECK_FALSE(w.world.Accept(transfer)->failed);
  CHECK(w.cache().Match(prompt).tokens == 16);
  CHECK(w.cache().GetStats().onboarded_blocks == 4);
  REQUIRE(w.world.Run({{.sequence = id, .num_tokens = 20}}, {}).ok());
  REQUIRE(w.world.Commit({}).ok());
  CHECK(w.cache().GetStats().hit_tokens == 16);
  w.Check();
}

TEST_CASE("Tier: a Suspend gives the blocks back at once, a Resume the same rows", "[tier]") {
  FailingWorld w(Options());
  const SequenceId id = w.Computed(Tokens(0, 22));
  REQUIRE(*w.world.Suspend(id) != TransferId::kNone);
  CHECK(w.cache().GetStats().held_blocks == 0);
  CHECK(w.cache().BlockTable(id)->empty());
  CHECK(w.cache().GetExtent(id)->settled == 22);
  w.Flood();  // takes its blocks while they may still be read
  const TransferId transfer = *w.world.Resume(id);
  REQUIRE(transfer != TransferId::kNone);
  CHECK_FALSE(w.world.Accept(transfer)->failed);
  CHECK(w.cache().GetStats().held_blocks == 6);
  w.Check();
  REQUIRE(w.world.Run({{.sequence = id, .num_tokens = 3}}, {}).ok());
  REQUIRE(w.world.Commit({}).ok());
  w.Check();
}

TEST_CASE("Tier: Poll reports what is done, each once and in order, and changes nothing",
          "[tier]") {
  LateWorld late(Options());
  RowWorld& world = late.world;
  std::vector<SequenceId> ids;
  for (TokenId first : {0, 100}) {
    ids.push_back(*world.Open(Tokens(first, 8)));
    REQUIRE(world.Run({{.sequence = ids.back(), .num_tokens = 8}}, {}).ok());
    REQUIRE(world.Commit({}).ok());
  }
  std::vector<TransferId> suspends;
  for (const SequenceId id : ids) suspends.push_back(*world.Suspend(id));
  auto report = world.cache().Poll();
  REQUIRE(report.ok());
  CHECK(report->finished_transfers.empty());  // nothing has run
  late.Finish();
  std::mt19937_64 random(1);
  while (late.backend->RunSome(100, random)) {
  }
  const std::string before = world.cache().Snapshot();
  report = world.cache().Poll();
  REQUIRE(report->finished_transfers.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(report->finished_transfers[i].id == suspends[i]);
    CHECK_FALSE(report->finished_transfers[i].failed);
  }
  CHECK(world.cache().Poll()->finished_transfers.empty());
  CHECK(world.cache().Snapshot() == before);
  // Both are evicted from the device, so that there is something to bring.
  const SequenceId flood = *world.Open(Tokens(5000, 48));
  REQUIRE(world.Run({{.sequence = flood, .num_tokens = 48}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  REQUIRE(world.Close(flood).ok());
  const TransferId up[2] = {*world.Resume(ids[0]), *world.Resume(ids[1])};
  CHECK(world.cache().Poll()->finished_transfers.empty());
  while (late.backend->RunSome(100, random)) {
  }
  report = world.cache().Poll();
  REQUIRE(report->finished_transfers.size() == 2);
  CHECK(report->finished_transfers[0].id == up[0]);
  CHECK(report->finished_transfers[1].id == up[1]);
  CHECK(world.cache().GetStats().in_transit_blocks == 4);
  CHECK_FALSE(world.Accept(up[1])->failed);  // takes over the first, too
  CHECK(world.cache().GetStats().in_transit_blocks == 0);
  CHECK_FALSE(world.cache().Accept(up[0])->failed);
  CHECK_FALSE(world.cache().Accept(suspends[0])->failed);
  CHECK(world.cache().Accept(TransferId{99}).status().code() == Code::kInvalidArgument);
  world.CheckRows();
  late.Finish();
  REQUIRE(world.errors() == "");
}

TEST_CASE("Tier: accepting a Suspend accepts what was started before it", "[tier]") {
  FailingWorld w(Options());
  const SequenceId first = w.Computed(Tokens(0, 20));
  REQUIRE(w.world.Suspend(first).ok());
  w.Flood();
  const SequenceId second = w.Computed(Tokens(100, 10));
  REQUIRE(*w.world.Resume(first) != TransferId::kNone);
  const TransferId suspended = *w.world.Suspend(second);
  REQUIRE(suspended != TransferId::kNone);
  CHECK_FALSE(w.world.Accept(suspended)->failed);
  CHECK(w.world.transfers().empty());
  CHECK(w.cache().GetStats().in_transit_blocks == 0);
  w.Check();
  CHECK(w.cache().Poll()->finished_transfers.size() <= 1);  // the first Suspend
}

TEST_CASE("Tier: a copy that does not start fails its call and changes nothing", "[tier]") {
  FailingWorld w(Options());
  const SequenceId id = w.Computed(Tokens(0, 22));
  std::string before = w.cache().Snapshot();
  w.backend->FailAt(1);
  CHECK(w.world.Suspend(id).status().code() == Code::kDeviceError);
  CHECK(w.cache().Snapshot() == before);
  w.Check();
  REQUIRE(w.world.Suspend(id).ok());
  w.Flood();

  before = w.cache().Snapshot();
  w.backend->FailAt(1);
  CHECK(w.world.Resume(id).status().code() == Code::kDeviceError);
  CHECK(w.cache().Snapshot() == before);
  const TransferId transfer = *w.world.Resume(id);
  CHECK_FALSE(w.world.Accept(transfer)->failed);
  w.Check();
  REQUIRE(w.world.Close(id).ok());
  w.Flood();

  const SequenceId again = *w.world.Open(Tokens(0, 22));
  before = w.cache().Snapshot();
  w.backend->FailAt(1);
  CHECK(w.world.Fetch(again).status().code() == Code::kDeviceError);
  CHECK(w.cache().Snapshot() == before);
  CHECK(w.backend->failed() == 3);
  const TransferId fetched = *w.world.Fetch(again);
  REQUIRE(fetched != TransferId::kNone);
  CHECK_FALSE(w.world.Accept(fetched)->failed);
  REQUIRE(w.world.Run({{.sequence = again, .num_tokens = 22}}, {}).ok());
  REQUIRE(w.world.Commit({}).ok());
  CHECK(w.cache().GetStats().hit_tokens == 20);
  w.Check();
}

TEST_CASE("Tier: a write that does not start, or whose event fails, is a miss", "[tier]") {
  for (const bool late : {false, true}) {
    CAPTURE(late);
    FailingWorld w(Options(WritePolicy::kThrough));
    if (late) {
      w.backend->FailEvents(true);
    } else {
      w.backend->FailAt(1);
    }
    REQUIRE(w.world.Close(w.Computed(Tokens(0, 20))).ok());
    w.backend->FailEvents(false);
    if (late) {
      CHECK(w.cache().GetStats().host_used == 5);
      REQUIRE(w.cache().Poll().ok());
    }
    CHECK(w.cache().GetStats().host_used == 0);
    CHECK(w.cache().Match(Tokens(0, 20)).tokens == 16);  // it is on the device
    w.Flood();
    CHECK(w.cache().Match(Tokens(0, 20)).host_tokens == 0);
  }
}

TEST_CASE("Tier: a transfer that fails brings nothing", "[tier]") {
  FailingWorld w(Options(WritePolicy::kThrough));
  REQUIRE(w.world.Close(w.Computed(Tokens(0, 20))).ok());
  const SequenceId resumed = w.Computed(Tokens(100, 10));
  REQUIRE(w.world.Suspend(resumed).ok());
  w.Flood();
  const SequenceId fetched = *w.world.Open(Tokens(0, 20));
  w.backend->FailEvents(true);
  const TransferId first = *w.world.Fetch(fetched), second = *w.world.Resume(resumed);
  w.backend->FailEvents(false);
  const auto report = w.cache().Poll();
  REQUIRE(report->finished_transfers.size() == 3);  // the Suspend first
  CHECK(report->finished_transfers[1].failed);
  CHECK(report->finished_transfers[2].failed);
  CHECK(w.world.Accept(first)->failed);
  CHECK(w.world.Accept(second)->failed);
  CHECK(w.cache().GetStats().in_transit_blocks == 0);
  CHECK(w.cache().Match(Tokens(0, 20)).host_tokens == 0);
  CHECK(w.cache().GetExtent(resumed).status().code() == Code::kCorruptData);
  REQUIRE(w.world.Close(resumed).ok());
  REQUIRE(w.world.Run({{.sequence = fetched, .num_tokens = 20}}, {}).ok());
  REQUIRE(w.world.Commit({}).ok());
  w.Check();
  REQUIRE(w.world.Close(fetched).ok());
  CHECK(w.cache().GetStats().host_held == 0);
}

TEST_CASE("Tier: Footprint tells what is taken, and everything is given back", "[tier]") {
  const auto backend = std::make_shared<FaultBackend>(Cpu());
  {
    CacheConfig config = RowWorld::Config(Options());
    auto cache = KVCache::Create(config, Device(backend));
    REQUIRE(cache.ok());
    const MemoryFootprint footprint = cache->footprint();
    CHECK(footprint.num_host_blocks == 20);
    CHECK(footprint.host_tier_bytes == 20 * footprint.bytes_per_block);
    const auto pinned =
        backend->bytes(MemoryKind::kPinnedHost) + backend->bytes(MemoryKind::kMappedHost);
    CHECK(static_cast<std::int64_t>(pinned) == footprint.pinned_host_bytes);
    config.host.num_blocks = 0;
    config.host.bytes = 3 * footprint.bytes_per_block + 1;
    CHECK(KVCache::Footprint(config)->num_host_blocks == 3);
    CHECK(KVCache::Supports(config, Feature::kTransfers).ok());
  }
  CHECK(backend->outstanding() == 0);
  CHECK(backend->wrong_frees() == 0);
  // Whatever fails in Create.
  for (std::int64_t n = 1;; ++n) {
    backend->FailAt(n);
    const auto made = KVCache::Create(RowWorld::Config(Options()), Device(backend));
    if (made.ok()) break;
    CHECK(backend->outstanding() == 0);
  }
}

TEST_CASE("Tier: a steady step that writes through allocates nothing", "[tier]") {
  for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kNull}) {
    WorldOptions options = Options(WritePolicy::kThrough);
    options.blocks = options.host.num_blocks = 300;
    options.max_tokens_per_sequence = 400;
    auto cache = KVCache::Create(RowWorld::Config(options), *Device::Create(kind));
    REQUIRE(cache.ok());
    const SequenceId ids[2] = {*cache->Open({}), *cache->Open({})};
    const StepItem items[2] = {{ids[0], 1, 0, {}}, {ids[1], 1, 0, {}}};
    TokenId token = 0;
    bool ok = true;
    const auto step = [&] {
      const TokenId tokens[2] = {++token, -token};
      auto planned = cache->Plan(items);
      ok = ok && planned.ok() && cache->Prepare(*planned, {}).ok();
      const StepCommit commits[2] = {{ids[0], 1, {&tokens[0], 1}}, {ids[1], 1, {&tokens[1], 1}}};
      ok = ok && cache->Commit(*planned, commits, {}).ok();
    };
    for (int i = 0; i < 40; ++i) step();
    const std::int64_t before = testing::CountOfNew();
    for (int i = 0; i < 200; ++i) step();
    CHECK(testing::CountOfNew() == before);
    CHECK(ok);
    CHECK(cache->GetStats().offloaded_blocks == 2 * 240 / 4);
  }
}

TEST_CASE("Tier: configurations that are refused", "[tier]") {
  const CacheConfig good = RowWorld::Config(Options());
  const auto refused = [&](auto change, Code code, const std::string& field) {
    CacheConfig config = good;
    change(config);
    const Status status = KVCache::Footprint(config).status();
    CHECK(status.code() == code);
    CHECK(status.message().rfind(field, 0) == 0);
  };
  using C = CacheConfig;
  const Code invalid = Code::kInvalidArgument, unsupported = Code::kUnsupported;
  refused([](C& c) { c.host.num_blocks = -1; }, invalid, "host.num_blocks -1");
  refused([](C& c) { c.host.bytes = -1; }, invalid, "host.bytes -1");
  refused([](C& c) { c.host.bytes = 1 << 20; }, invalid, "host");
  refused([](C& c) { c.host = {.num_blocks = 0, .bytes = 1}; }, invalid, "host.bytes 1");
  refused([](C& c) { c.host.num_blocks = std::int64_t{1} << 31; }, invalid, "host.num_blocks");
  refused([](C& c) { c.host.write = static_cast<WritePolicy>(7); }, invalid, "host.write 7");
  refused([](C& c) { c.host.write_after_hits = 0; }, invalid, "host.write_after_hits 0");
  refused([](C& c) { c.host.clean_blocks = -1; }, invalid, "host.clean_blocks -1");
  refused(
      [](C& c) {
        c.backend = BackendKind::kNull;
        c.memory = {.unlimited = true};
      },
      unsupported, "host");
  CacheConfig none = good;
  none.host = {};
  CHECK(KVCache::Supports(none, Feature::kTransfers).code() == unsupported);
  CHECK(KVCache::Footprint(none)->host_tier_bytes == 0);
}

}  // namespace
}  // namespace lariat
