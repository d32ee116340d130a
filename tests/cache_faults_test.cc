// SPDX-License-Identifier: Apache-2.0
// Device calls that fail, and faults that a step's operations record on the device.
#include <optional>

#include "support/case_cache.h"
#include "support/count_new.h"
#include "support/deferred_backend.h"
#include "support/fault_backend.h"
#include "support/row_world.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::FaultBackend;
using testing::RowWorld;
using testing::WorldOptions;

std::shared_ptr<FaultBackend> Faulty() {
  auto made = MakeBackend(BackendKind::kCpu, 0);
  if (!made.ok()) FAIL(made.status().ToString());
  return std::make_shared<FaultBackend>(*made);
}

// A life with prefix hits, two steps in flight, forks and their copies, drafts, a truncation, a
// cancelled sequence, a discarded step, changing streams. A call that fails is checked to have
// changed nothing, and is made again once.
class Life {
 public:
  explicit Life(std::shared_ptr<FaultBackend> backend, const WorldOptions& options = {.blocks = 20})
      : backend_(std::move(backend)),
        device_(backend_),
        world_(options, device_, [](Stream, const std::function<void()>& work) { work(); }) {}

  void Live() {
    const SequenceId a = Open(CaseCache::Range(0, 9)), b = Open(CaseCache::Range(40, 5));
    Do([&] {
      return world_.Run({{.sequence = a, .num_tokens = 9}, {.sequence = b, .num_tokens = 5}}, {});
    });
    Do([&] { return world_.Commit({}); });
    const SequenceId c = Open(CaseCache::Range(0, 12));
    SequenceId fork = SequenceId::kNone;
    Do([&] {
      auto child = world_.Fork(b);
      if (child.ok()) fork = *child;
      return child.status();
    });
    Do([&] {
      return world_.Run({{.sequence = c, .num_tokens = 12}, {.sequence = fork}, {.sequence = b}},
                        {}, {16, 4});
    });
    Do([&] { return world_.Run({{.sequence = a, .num_tokens = 5, .num_drafts = 3}}, {}); });
    Do([&] { return world_.Close(c); });
    Do([&] { return world_.cache().Poll().status(); });
    Do([&] { return world_.Commit({}); });
    Do([&] { return world_.Commit({}, {{a, 3}}); });
    Do([&] { return world_.Truncate(a, 7); });
    Do([&] { return world_.Run({{.sequence = a, .num_tokens = 6}, {.sequence = fork}}, {}); });
    Do([&] { return world_.DiscardLast({}); });
    Do([&] { return world_.Run({{.sequence = a, .num_tokens = 2}, {.sequence = b}}, {}); });
    Do([&] { return world_.Commit({}); });
    Do([&] { return world_.cache().Poll().status(); });
    std::vector<float> k(12), v(12);
    Do([&] { return world_.cache().ReadRows(a, 0, 0, 1, k.data(), v.data()); });
    const SequenceId d = Open(CaseCache::Range(0, 9));
    Do([&] { return world_.Run({{.sequence = d, .num_tokens = 9}}, {}); });
    Do([&] { return world_.Commit({}); });
    backend_->FailAt(0);
    if (!dead_) {
      world_.CheckRows();
      CHECK(world_.errors() == "");
    }
  }

 private:
  SequenceId Open(const std::vector<TokenId>& prompt) {
    SequenceId id = SequenceId::kNone;
    Do([&] {
      auto opened = world_.Open(prompt);
      if (opened.ok()) id = *opened;
      return opened.status();
    });
    return id;
  }

  // Run() plans, prepares and appends: where it fails in the appends, its step is there already.
  template <class F>
  void Do(F call) {
    if (dead_) return;
    const std::string before = world_.cache().Snapshot();
    const std::size_t live = world_.live().size();
    const Status first = call();
    if (first.ok()) return;
    CHECK(first.code() == Code::kDeviceError);
    CHECK_FALSE(first.message().empty());
    const bool prepared = world_.live().size() > live;
    if (!prepared) {
      const std::string after = world_.cache().Snapshot();
      if (after != before)
        FAIL(backend_->failed_call() + " changed\n" + before + "\ninto\n" + after);
    }
    const Status again = prepared ? world_.AppendAll({}) : call();
    if (again.ok()) return;
    // "The cache is unusable": then it stays so, and steps can still be thrown away.
    CHECK(again.code() == Code::kDeviceError);
    dead_ = true;
  }

  std::shared_ptr<FaultBackend> backend_;
  Device device_;
  RowWorld world_;
  bool dead_ = false;
};

TEST_CASE("Create gives back what it took when the device fails", "[cache]") {
  std::int64_t failures = 0;
  for (std::int64_t n = 1;; ++n) {
    const auto backend = Faulty();
    backend->FailAt(n);
    const auto made = KVCache::Create(RowWorld::Config({}), Device(backend));
    if (backend->failed() == 0) break;
    ++failures;
    CAPTURE(n, backend->failed_call());
    REQUIRE_FALSE(made.ok());
    const bool memory = backend->failed_call() == "Allocate";
    CHECK(made.status().code() == (memory ? Code::kResourceExhausted : Code::kDeviceError));
    CHECK(backend->outstanding() == 0);
    CHECK(backend->wrong_frees() == 0);
  }
  CHECK(failures > 3);
}

TEST_CASE("A device call that fails once changes nothing", "[cache]") {
  const bool mla = GENERATE(false, true);
  WorldOptions options{.blocks = 20};
  if (mla) options = testing::MlaWorld(options);
  std::int64_t calls = 0;
  {
    const auto backend = Faulty();
    {
      Life life(backend, options);
      backend->FailAt(0);
      life.Live();
      calls = backend->calls();
    }
    CHECK(backend->outstanding() == 0);
  }
  REQUIRE(calls > 30);
  for (std::int64_t n = 1; n <= calls; ++n) {
    const auto backend = Faulty();
    CAPTURE(n);
    {
      Life life(backend, options);
      backend->FailAt(n);
      life.Live();
    }
    CHECK(backend->outstanding() == 0);
    CHECK(backend->wrong_frees() == 0);
  }
}

TEST_CASE("Prepare may be called again after a device error", "[cache]") {
  for (std::int64_t n = 1;; ++n) {
    CAPTURE(n);
    const auto backend = Faulty();
    RowWorld world({.blocks = 20}, Device(backend),
                   [](Stream, const std::function<void()>& work) { work(); });
    const SequenceId a = *world.Open(CaseCache::Range(0, 6));
    CaseCache::Must(world.Run({{.sequence = a, .num_tokens = 6}}, {}));
    CaseCache::Must(world.Commit({}));
    const SequenceId b = *world.Fork(a);
    Step step = *world.cache().Plan(std::vector<StepItem>{{b, 2, 0, {}}});
    const std::string planned = world.cache().Snapshot();
    backend->FailAt(n);
    const Status status = world.cache().Prepare(step, {});
    if (status.ok()) {
      REQUIRE(n > 1);
      break;
    }
    CHECK(status.code() == Code::kDeviceError);
    CHECK(world.cache().Snapshot() == planned);
    CHECK(step.valid());
    // Prepares the same step, appends and reads back.
    CaseCache::Must(world.Prepare(std::move(step), {{.sequence = b, .num_tokens = 2}}, {}));
    CaseCache::Must(world.AppendAll({}));
    CaseCache::Must(world.Commit({}));
    world.CheckRows();
    CHECK(world.errors() == "");
  }
}

TEST_CASE("A device that fails for good leaks nothing", "[cache]") {
  for (std::int64_t n = 1; n < 60; n += 3) {
    const auto backend = Faulty();
    CAPTURE(n);
    {
      Life life(backend);
      backend->FailAt(n, /*and_after=*/true);
      life.Live();
      backend->FailAt(1, true);  // the destructor's calls too
    }
    CHECK(backend->outstanding() == 0);
    CHECK(backend->wrong_frees() == 0);
  }
}

TEST_CASE("A prepared step that is dropped is discarded, when its turn comes", "[cache]") {
  CaseCache c(CaseCache::Config(4, 8, BackendKind::kCpu));
  const SequenceId a = c.Start(CaseCache::Range(0, 6)), b = c.Start(CaseCache::Range(50, 3));
  const std::int64_t free = c->GetStats().free_blocks;
  {
    Step first = c.Prepared(a, 4);
    Step second = c.Prepared(a, 2);
    first = Step();  // has later rows of a: waits for the second
    CHECK(c.Settled(a) == 6);
    CHECK(c.Plan(b, 1).status().code() == Code::kNotReady);  // two steps are in flight still
    CaseCache::Must(c->Discard(second, {}));
  }
  CHECK(c->GetStats().live_steps == 0);
  CHECK(c->GetStats().free_blocks == free);
  CHECK(c.Settled(a) == 6);
  { Step dropped = c.Prepared(b, 3); }
  CHECK(c->GetStats().live_steps == 0);
  CHECK(c->GetStats().free_blocks == free);
  c.Feed(a, 1, {6});
  CHECK(c.Settled(a) == 7);
}

// --- Faults that the device records ---------------------------------------------------------

struct Poked {
  explicit Poked(const std::shared_ptr<Backend>& backend) {
    CacheConfig config = CaseCache::Config(4, 12);
    config.layers[0].rope = 0;
    RopeSpec& rope = config.ropes.emplace_back();
    rope.rotary_dim = 2;
    auto made = KVCache::Create(config, Device(backend));
    if (!made.ok()) FAIL(made.status().ToString());
    cache = std::make_unique<KVCache>(*std::move(made));
  }
  Step Planned(const std::vector<StepItem>& items) {
    auto step = cache->Plan(items, {32, 4});
    if (!step.ok()) FAIL(step.status().ToString());
    CaseCache::Must(cache->Prepare(*step, {}));
    return *std::move(step);
  }
  void Append(const Step& step) {
    CaseCache::Must(
        cache->Append(step, 0, {.dtype = DType::kFP32, .k = input.data(), .v = input.data()}, {}));
  }
  std::unique_ptr<KVCache> cache;
  std::vector<float> input = std::vector<float>(64, 1.0F);
};

TEST_CASE("A slot or position gone bad on the device is reported once and cleaned up", "[cache]") {
  const bool slot = GENERATE(true, false);
  auto backend = MakeBackend(BackendKind::kCpu, 0);
  Poked p(*backend);
  KVCache& cache = *p.cache;
  const std::vector<TokenId> shared = CaseCache::Range(0, 9), other = CaseCache::Range(70, 9);
  const SequenceId a = *cache.Open(shared), b = *cache.Open(other);
  // a's first block is fine and committed; its second is written by the step that goes wrong.
  Step step = p.Planned({{a, 4, 0, {}}, {b, 9, 0, {}}});
  p.Append(step);
  CaseCache::Must(cache.Commit(step, {}, {}));
  step = p.Planned({{b, 1, 0, {}}, {a, 5, 0, {}}});
  const std::uint64_t id = step.id();
  const StepView view = cache.View();
  if (slot) {
    const_cast<std::int64_t*>(view.slots)[3] = 12 * 4 + 5;
    const_cast<std::int64_t*>(view.slots)[4] = std::int64_t{1} << 40;
  } else {
    const_cast<std::int32_t*>(view.positions)[3] = -7;
  }
  p.Append(step);
  const TokenId fed[] = {79};
  const StepCommit commits[] = {{b, 1, fed}, {a, 5, {}}};
  CaseCache::Must(cache.Commit(step, commits, {}));
  // Memory that runs out while the fault is looked at does not lose it.
  std::optional<Result<PollReport>> report;
  for (int allowed = 0; !report || !report->ok(); ++allowed) {
    {
      const testing::FailNewAfter failing(allowed);
      report = cache.Poll();
    }
    REQUIRE((report->ok() || report->status().code() == Code::kResourceExhausted));
    REQUIRE(allowed < 100);
  }
  REQUIRE((*report)->faults.size() == 1);
  const StepFault fault = (*report)->faults[0];
  CHECK(fault.step == id);
  CHECK(fault.kind == (slot ? FaultKind::kSlot : FaultKind::kPosition));
  CHECK(fault.token == 3);  // the smallest
  CHECK(fault.value == (slot ? 53 : -7));
  const auto later = cache.Poll();
  REQUIRE(later.ok());
  CHECK(later->faults.empty());
  // The step's blocks are out of the index: a's second, b's third and all below.
  CHECK(cache.Match(shared).tokens == 4);
  CHECK(cache.Match(other).tokens <= 8);
  // Both sequences hold one.
  for (const SequenceId bad : {a, b}) {
    const std::string before = cache.Snapshot();
    float row[4];
    const StepItem item{bad, 1, 0, {}};
    const TokenId token[] = {1};
    CHECK(cache.Plan(std::span(&item, 1)).status().code() == Code::kCorruptData);
    CHECK(cache.Truncate(bad, 2).code() == Code::kCorruptData);
    CHECK(cache.Fork(bad).status().code() == Code::kCorruptData);
    CHECK(cache.SetTokens(bad, token).code() == Code::kCorruptData);
    CHECK(cache.GetExtent(bad).status().code() == Code::kCorruptData);
    CHECK(cache.BlockTable(bad).status().code() == Code::kCorruptData);
    CHECK(cache.ReadRows(bad, 0, 0, 1, row, row).code() == Code::kCorruptData);
    CHECK(cache.Snapshot() == before);
    CHECK(cache.Close(bad).ok());
  }
  const Stats stats = cache.GetStats();
  CHECK(stats.free_blocks + stats.idle_blocks == 12);
  CHECK(stats.idle_blocks == stats.indexed_blocks);
  // Life goes on.
  const SequenceId again = *cache.Open(shared);
  step = p.Planned({{again, 9, 0, {}}});
  CHECK(step.rows()[0].hit == 4);
  p.Append(step);
  CaseCache::Must(cache.Commit(step, {}, {}));
  CHECK(cache.Poll()->faults.empty());
  CHECK(cache.Match(shared).tokens == 8);
}

TEST_CASE("A fault reaches whoever hit a bad block before it was known", "[cache]") {
  auto made = MakeBackend(BackendKind::kCpu, 0);
  const auto late = std::make_shared<testing::DeferredBackend>(*made);
  Poked p(late);
  KVCache& cache = *p.cache;
  const std::vector<TokenId> shared = CaseCache::Range(0, 9);
  const SequenceId a = *cache.Open(shared), clean = *cache.Open(CaseCache::Range(100, 3));
  Step step = p.Planned({{a, 9, 0, {}}});
  // Behind the tables, before the append: the device's own data goes bad.
  std::int64_t* const slots = const_cast<std::int64_t*>(cache.View().slots);
  late->Enqueue({}, [slots] { slots[0] = 4000; });
  p.Append(step);
  CaseCache::Must(cache.Commit(step, {}, {}));
  const SequenceId b = *cache.Open(shared);
  step = p.Planned({{b, 9, 0, {}}, {clean, 3, 0, {}}});
  CHECK(step.rows()[0].hit == 8);
  p.Append(step);
  CaseCache::Must(cache.Commit(step, {}, {}));
  CHECK(cache.Poll()->faults.empty());  // nothing has run
  REQUIRE(late->Synchronize({}).ok());
  const auto report = cache.Poll();
  REQUIRE(report.ok());
  REQUIRE(report->faults.size() == 1);
  CHECK(report->faults[0].token == 0);
  CHECK(report->faults[0].value == 4000);
  CHECK(cache.Match(shared).tokens == 0);
  const StepItem item{b, 1, 0, {}};
  CHECK(cache.Plan(std::span(&item, 1)).status().code() == Code::kCorruptData);
  CHECK(cache.GetExtent(clean).ok());
  CaseCache::Must(cache.Close(a));
  CaseCache::Must(cache.Close(b));
  CaseCache::Must(cache.Close(clean));
  CHECK(cache.GetStats().free_blocks == 12);
}

}  // namespace
}  // namespace lariat
