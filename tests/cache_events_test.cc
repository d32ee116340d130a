// SPDX-License-Identifier: Apache-2.0
// Events of the index, worked out by hand.
#include <random>

#include "backend/deferred_backend.h"
#include "lariat/kv_event.h"
#include "support/case_cache.h"
#include "support/count_new.h"
#include "support/event_mirror.h"
#include "support/failing_copies.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::EventMirror;
constexpr auto Range = CaseCache::Range;

CacheConfig Config(int block_size, std::int64_t blocks, std::int64_t max_events = 64,
                   BackendKind backend = BackendKind::kNull) {
  CacheConfig config = CaseCache::Config(block_size, blocks, backend);
  config.max_events = max_events;
  return config;
}

// Drains all there is. Their tokens stand until the cache changes.
std::vector<KVEvent> All(KVCache& cache) {
  std::vector<KVEvent> events(64);
  events.resize(static_cast<std::size_t>(cache.DrainEvents(events)));
  return events;
}

// What ListBlocks tells is what the random calls compare with a model.
void CheckMirror(EventMirror& mirror, KVCache& cache) {
  mirror.Drain(cache);
  EventMirror now(cache.config().block_size);
  now.List(cache);
  CHECK(mirror.sound());
  CHECK(mirror.held() == now.held());
  CHECK(mirror.wrong() == "");
  CHECK(now.wrong() == "");
}

TEST_CASE("An event says what a router looks for", "[cache]") {
  CaseCache c(Config(4, 8));
  const OpenOptions options = {.salt = "tenant", .adapter = "lora"};
  const std::vector<TokenId> prompt = Range(10, 11);
  const SequenceId id = *c->Open(prompt, options);
  CHECK(All(c.cache()).empty());
  Step step = c.Prepared(id, 11);
  CHECK(All(c.cache()).empty());  // not before they are kept
  CaseCache::Must(c->Commit(step, {}, {}));

  const std::vector<KVEvent> events = All(c.cache());
  REQUIRE(events.size() == 2);
  const std::span<const TokenId> tokens = prompt;
  BlockHash parent = HashRoot(options);
  for (std::size_t i = 0; i < 2; ++i) {
    const KVEvent& event = events[i];
    CHECK(event.kind == KVEventKind::kStored);
    CHECK(event.tier == Tier::kDevice);
    CHECK(event.number == i + 1);
    CHECK(event.parent == parent);
    parent = HashBlock(parent, tokens.subspan(4 * i, 4));
    CHECK(event.hash == parent);
    CHECK(event.first_token == static_cast<std::int64_t>(4 * i));
    CHECK(std::vector<TokenId>(event.tokens.begin(), event.tokens.end()) ==
          std::vector<TokenId>(tokens.begin() + 4 * static_cast<std::ptrdiff_t>(i),
                               tokens.begin() + 4 * static_cast<std::ptrdiff_t>(i) + 4));
  }
  // The same names as BlockHashes gives.
  BlockHash names[3];
  REQUIRE(*c->BlockHashes(id, names) == 2);
  CHECK(names[1] == events[1].hash);
  // Other keys, other names, though the tokens are the same.
  c.Start(prompt);
  const std::vector<KVEvent> others = All(c.cache());
  REQUIRE(others.size() == 2);
  CHECK(others[0].parent == HashRoot({}));
  CHECK(others[0].number == 3);
  // Only what is asked for is taken.
  CaseCache::Must(c->Clear());
  KVEvent one[1];
  CHECK(c->DrainEvents({}) == 0);
  REQUIRE(c->DrainEvents(one) == 1);
  CHECK(one[0].kind == KVEventKind::kCleared);
  CHECK(one[0].number == 5);
  CHECK(c->DrainEvents(one) == 0);
}

TEST_CASE("K119: an evicted chain is told block by block, leaf first", "[cases]") {
  CaseCache c(Config(2, 4));
  EventMirror mirror(2);
  for (int time = 0; time < 2; ++time) {  // the second time: preempted, then resumed
    CaseCache::Must(c->Close(c.Start({1, 2, 3, 4, 5})));
    CheckMirror(mirror, c.cache());
  }
  CHECK(mirror.stored(Tier::kDevice) == 2);
  const SequenceId b = c.Start({9, 8, 7, 6, 5, 4, 3});
  const std::vector<KVEvent> events = All(c.cache());
  REQUIRE(events.size() == 5);
  const TokenId text[] = {1, 2, 3, 4};
  const BlockHash first = HashBlock(HashRoot({}), std::span(text).first(2));
  const BlockHash second = HashBlock(first, std::span(text).last(2));
  // Each with the name of the block before it, whatever became of that one.
  CHECK(events[0].kind == KVEventKind::kRemoved);
  CHECK(events[0].hash == second);
  CHECK(events[0].parent == first);
  CHECK(events[0].first_token == 2);
  CHECK(events[1].kind == KVEventKind::kRemoved);
  CHECK(events[1].hash == first);
  CHECK(events[1].parent == HashRoot({}));
  CHECK(events[1].first_token == 0);
  for (std::size_t i = 2; i < 5; ++i) {
    CHECK(events[i].kind == KVEventKind::kStored);
    CHECK(events[i].parent == (i == 2 ? HashRoot({}) : events[i - 1].hash));
  }
  CHECK(c->GetStats().events == 7);  // 5 stored, 2 removed
  CaseCache::Must(c->Close(b));
}

TEST_CASE("A plan tells nothing before Prepare, nor when it is dropped", "[cache]") {
  CaseCache c(Config(2, 4));
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));
  CHECK(All(c.cache()).size() == 4);
  const SequenceId b = c.Open(Range(50, 8));
  {
    auto step = c.Plan(b, 8);
    REQUIRE(step.ok());
    KVEvent one[1];
    CHECK(c->DrainEvents(one) == 0);  // legal over a plan
    std::int64_t cursor = 0;
    CHECK(*c->ListBlocks(cursor, one) == 1);
  }
  CHECK(All(c.cache()).empty());
  const Step step = c.Prepared(b, 8);
  CHECK(All(c.cache()).size() == 4);  // the victims
}

TEST_CASE("What is removed, expires or is over a quota is told", "[cache]") {
  CacheConfig config = Config(2, 32);
  config.eviction = EvictionPolicy::kPriority;
  CaseCache c(config);
  EventMirror mirror(2);
  const auto start = [&](const std::vector<TokenId>& prompt, std::string_view salt) {
    const SequenceId id = *c->Open(prompt, {.salt = salt});
    c.Feed(id, std::ssize(prompt));
    CaseCache::Must(c->Close(id));
  };
  start(Range(0, 8), "one");
  start(Range(0, 8), "two");
  start(Range(100, 6), "two");
  CheckMirror(mirror, c.cache());
  CHECK(mirror.held().size() == 11);
  CHECK(*c->Remove(Range(0, 4), {.salt = "one"}) == 3);
  CheckMirror(mirror, c.cache());
  CHECK(mirror.held().size() == 8);
  CaseCache::Must(c->SetQuota("two", 2));
  CheckMirror(mirror, c.cache());
  CHECK(mirror.held().size() == 3);
  CaseCache::Must(c->Expire(5));
  CHECK(*c->RemoveSalt("two") == 2);
  CheckMirror(mirror, c.cache());
  CHECK(mirror.held().size() == 1);
  CaseCache::Must(c->Clear());
  CheckMirror(mirror, c.cache());
  CHECK(mirror.held().empty());
}

TEST_CASE("A full log loses its oldest events, and numbers tell", "[cache]") {
  CaseCache c(Config(4, 8, 3));
  CaseCache::Must(c->Close(c.Start(Range(0, 20))));
  const Stats stats = c->GetStats();
  CHECK(stats.events == 5);
  CHECK(stats.lost_events == 2);
  const std::vector<KVEvent> events = All(c.cache());
  REQUIRE(events.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(events[i].number == i + 3);
    CHECK(events[i].tokens.front() == static_cast<TokenId>(4 * (i + 2)));
  }
  EventMirror mirror(4);
  CaseCache::Must(c->Close(c.Start(Range(100, 12))));
  mirror.Drain(c.cache());
  CHECK_FALSE(mirror.sound());
  CHECK(mirror.missed() == 5);  // the first ones, which another one drained, as well
  mirror.List(c.cache());
  CheckMirror(mirror, c.cache());
  // After a Clear nothing of what was lost matters.
  CaseCache::Must(c->Close(c.Start(Range(200, 17))));
  CaseCache::Must(c->Clear());
  EventMirror late(4);
  late.Drain(c.cache());
  CHECK(late.sound());
  CHECK(late.held().empty());
}

CacheConfig WithWindow(int block_size, std::int64_t blocks) {
  CacheConfig config = Config(block_size, blocks, 4096);
  config.layers.push_back(config.layers[0]);
  config.layers[1].kind = LayerKind::kSliding;
  config.layers[1].window = 3;
  return config;
}

TEST_CASE("Blocks of windows are told as another group's", "[cache]") {
  CaseCache c(WithWindow(2, 12));
  EventMirror mirror(2);
  CaseCache::Must(c->Close(c.Start(Range(0, 8))));
  const std::vector<KVEvent> events = All(c.cache());
  REQUIRE(events.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {  // each behind the first group's
    CHECK(events[i].group == static_cast<int>(i % 2));
    CHECK(events[i].hash == events[i - i % 2].hash);
    CHECK(events[i].first_token == static_cast<std::int64_t>(i / 2 * 2));
  }
  mirror.List(c.cache());
  c.Start(Range(50, 6));  // needs 6 blocks of 12; 8 are cached
  CheckMirror(mirror, c.cache());
  // What the window left behind went first: a hit may end where it ended, but not before.
  CHECK(mirror.beside() > 3);
  const std::vector<TokenId> text = Range(0, 8);
  const auto holds = [&](std::size_t blocks, int group) {
    BlockHash hash = HashRoot({});
    for (std::size_t b = 0; b < blocks; ++b)
      hash = HashBlock(hash, std::span(text).subspan(2 * b, 2));
    return mirror.held().count({hash, Tier::kDevice, group}) > 0;
  };
  CHECK(holds(4, 0));
  CHECK(holds(4, 1));
  CHECK(c.Match(Range(0, 9)) == 8);
  CHECK(holds(2, 0));
  CHECK_FALSE(holds(2, 1));
  CHECK(c.Match(Range(0, 5)) == 0);
}

// What the list says is what the block manager's own tables say.
TEST_CASE("Events of windows in two tiers agree with the list", "[cache]") {
  for (const WritePolicy write : {WritePolicy::kBack, WritePolicy::kThrough}) {
    CacheConfig config = WithWindow(2, 24);
    config.host = {.num_blocks = 14, .write = write, .clean_blocks = 6};
    CaseCache c(config);
    EventMirror mirror(2);
    std::mt19937 random(7);
    const auto roll = [&](unsigned sides) { return static_cast<TokenId>(random() % sides); };
    std::int64_t transfers = 0;
    for (int i = 0; i < 400; ++i) {
      // Texts of few families, of which one is often longer than another.
      const std::vector<TokenId> prompt = Range(1000 * roll(4), 3 + roll(9));
      const SequenceId id = c.Open(prompt);
      if (const auto fetched = c->Fetch(id); fetched.ok() && *fetched != TransferId::kNone) {
        CHECK(c->Accept(*fetched).ok());
        ++transfers;
      }
      c.Feed(id, std::ssize(prompt));
      if (roll(3) == 0 && c->Suspend(id).ok()) {
        CheckMirror(mirror, c.cache());
        const auto back = c->Resume(id);
        if (back.ok() && *back != TransferId::kNone) CHECK(c->Accept(*back).ok());
        ++transfers;
      }
      CaseCache::Must(c->Close(id));
      if (roll(20) == 0) CHECK(c->Remove(std::span(prompt).first(2)).ok());
      if (roll(60) == 0) CaseCache::Must(c->Clear());
      CheckMirror(mirror, c.cache());
    }
    CHECK(transfers > 50);
    CHECK(mirror.stored(Tier::kHost) > 100);
    CHECK(mirror.removed(Tier::kHost) > 100);
    CHECK(mirror.beside() > 200);
  }
}

TEST_CASE("A device fault and a failed copy are told as removals", "[cache]") {
  SECTION("A fault") {
    CaseCache c(Config(4, 12, 64, BackendKind::kCpu));
    EventMirror mirror(4);
    const SequenceId a = c.Open(Range(0, 9));
    std::vector<float> input(64, 1.0F);
    Step step = c.Prepared(a, 4);
    const AppendInputs inputs = {.dtype = DType::kFP32, .k = input.data(), .v = input.data()};
    CaseCache::Must(c->Append(step, 0, inputs, {}));
    CaseCache::Must(c->Commit(step, {}, {}));
    step = c.Prepared(a, 5);
    const_cast<std::int64_t*>(c->View().slots)[3] = 4000;
    CaseCache::Must(c->Append(step, 0, inputs, {}));
    CaseCache::Must(c->Commit(step, {}, {}));
    CheckMirror(mirror, c.cache());
    CHECK(mirror.held().size() == 2);
    CHECK(c->Poll()->faults.size() == 1);
    CheckMirror(mirror, c.cache());
    CHECK(mirror.held().size() == 1);
  }
  SECTION("A copy to the host") {
    auto cpu = MakeBackend(BackendKind::kCpu, 0);
    REQUIRE(cpu.ok());
    const auto backend = std::make_shared<testing::FailingCopies>(MakeDeferredBackend(*cpu, 1));
    CacheConfig config = Config(4, 12, 64, BackendKind::kCpu);
    config.host = {.num_blocks = 12, .write = WritePolicy::kThrough};
    CaseCache c(config, Device(backend));
    EventMirror mirror(4);
    backend->FailAt(1);
    c.Start(Range(0, 9));
    CheckMirror(mirror, c.cache());
    CHECK(backend->failed() == 1);
    CHECK(mirror.stored(Tier::kHost) == 2);
    CHECK(mirror.removed(Tier::kHost) == 2);
    CHECK(mirror.held().size() == 2);
  }
}

TEST_CASE("A cache that grows tells its events", "[cache]") {
  CacheConfig config = Config(2, 0, 8192);
  config.memory = {.unlimited = true};
  config.max_sequences = 64;
  CaseCache c(config);
  EventMirror mirror(2);
  for (TokenId i = 0; i < 60; ++i) c.Start(Range(1000 * i, 200));
  CheckMirror(mirror, c.cache());
  CHECK(mirror.held().size() == 6000);
  CHECK(mirror.missed() == 0);
}

TEST_CASE("Without max_events there is nothing to drain or list", "[cache]") {
  CaseCache c(Config(4, 8, 0));
  c.Start(Range(0, 9));
  CaseCache::Must(c->Clear());
  CHECK(All(c.cache()).empty());
  CHECK(c->GetStats().events == 0);
  KVEvent one[1];
  std::int64_t cursor = 0;
  CHECK(c->ListBlocks(cursor, one).status().code() == Code::kUnsupported);
  CHECK(KVCache::Footprint(Config(4, 8, 0))->event_log_bytes == 0);
  // A log, and the names of 8 blocks.
  CHECK(KVCache::Footprint(Config(4, 8, 1))->event_log_bytes == 56 + 4 * 4 + 8 * 24);
  for (const std::int64_t wrong : {std::int64_t{-1}, (std::int64_t{1} << 24) + 1}) {
    const Status status = KVCache::Create(Config(4, 8, wrong)).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find("max_events " + std::to_string(wrong)) == 0);
  }
  CaseCache on(Config(4, 8, 4));
  cursor = -1;
  CHECK(on->ListBlocks(cursor, one).status().code() == Code::kInvalidArgument);
}

TEST_CASE("Steps with events allocate nothing", "[cache]") {
  CaseCache c(Config(2, 24, 32));
  const SequenceId grows = c.Start({7});
  std::vector<KVEvent> events(16);
  std::int64_t before = 0, drained = 0;
  TokenId next = 0;
  for (int i = 0; i < 120; ++i) {
    if (i == 60) before = testing::CountOfNew();
    const StepItem item{grows, 1, 0, {}};
    auto step = c->Plan(std::span(&item, 1));
    ++next;
    const StepCommit commit{grows, 1, std::span(&next, 1)};
    bool ok =
        step.ok() && c->Prepare(*step, {}).ok() && c->Commit(*step, std::span(&commit, 1), {}).ok();
    if (i % 20 == 19) ok = ok && c->Truncate(grows, 1).ok();
    if (!ok) std::abort();
    if (i % 8 == 0) drained += c->DrainEvents(events);
  }
  CHECK(testing::CountOfNew() == before);
  CHECK(drained > 60);
}

}  // namespace
}  // namespace lariat
