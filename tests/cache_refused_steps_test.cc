// SPDX-License-Identifier: Apache-2.0
// Plans and Commits of many sequences that are refused at the last one: what was done for those
// before it is taken back, so that all goes on as in a cache that was never asked.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/case_cache.h"
#include "support/catch.h"
#include "support/fault_backend.h"
#include "support/make_at_last.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::FaultBackend;
using testing::MakeAtLast;

// Sequences of 5 settled tokens in blocks of 4: a step of one row each goes on inside a block.
struct World {
  World(BackendKind kind, bool tier)
      : backend(std::make_shared<FaultBackend>(*MakeBackend(kind, 0))),
        c(Config(kind, tier), Device(backend)) {
    for (TokenId i = 0; i < 5; ++i) ids.push_back(c.Start(CaseCache::Range(100 * i, 5)));
    spare = c.Start(CaseCache::Range(900, 5));
    drafted = c.Start(CaseCache::Range(1000, 5));
  }
  static CacheConfig Config(BackendKind kind, bool tier) {
    CacheConfig config = CaseCache::Config(4, 70, kind);
    config.max_sequences = 9;
    config.max_steps_in_flight = 3;
    if (tier) config.host = {.num_blocks = 12, .write = WritePolicy::kThrough};
    return config;
  }
  // Of each of the five one row, of one of them a draft besides; and what else is given.
  std::vector<StepItem> Items(const std::vector<StepItem>& others = {}) const {
    std::vector<StepItem> items;
    for (const SequenceId id : ids) items.push_back({id, 1, 0, {}});
    items[2] = {ids[2], 2, 1, {}};
    items.insert(items.end(), others.begin(), others.end());
    return items;
  }
  std::vector<StepCommit> Commits(const std::vector<StepCommit>& others = {}) const {
    std::vector<StepCommit> commits;
    for (const SequenceId id : ids) commits.push_back({id, 1, std::span(fed).first(1)});
    commits[2] = {ids[2], 2, fed};
    commits.insert(commits.end(), others.begin(), others.end());
    return commits;
  }
  Step Prepared(std::span<const StepItem> items) {
    Result<Step> step = c->Plan(items);
    CaseCache::Must(step.status());
    CaseCache::Must(c->Prepare(*step, {}));
    return *std::move(step);
  }
  void Refused(const Status& status, Code code, const std::string& before) {
    INFO(status.ToString());
    CHECK(status.code() == code);
    CHECK(c->Snapshot() == before);
  }

  std::shared_ptr<FaultBackend> backend;
  CaseCache c;
  std::vector<SequenceId> ids;
  SequenceId spare, drafted;
  std::vector<TokenId> fed = {7, 8};
};

template <class F>
void ForEachKind(F f) {
  for (const BackendKind kind : {BackendKind::kNull, BackendKind::kCpu}) {
    for (const bool tier : {false, true}) {
      INFO((kind == BackendKind::kNull ? "null" : "cpu") << (tier ? ", host tier" : ""));
      World asked(kind, tier), other(kind, tier);
      f(asked, other, tier);
      CHECK(asked.c->Snapshot() == other.c->Snapshot());
      const std::int64_t committed = asked.c->GetStats().tokens_committed;
      CHECK(committed == other.c->GetStats().tokens_committed);
    }
  }
}

TEST_CASE("A Plan whose last item is refused changes nothing", "[cache]") {
  ForEachKind([](World& asked, World& other, bool tier) {
    SequenceId large = SequenceId::kNone, away = SequenceId::kNone;
    const auto live = [&](World& world) {
      large = world.c.Open(CaseCache::Range(2000, 250));
      away = world.c.Start(CaseCache::Range(3000, 5));
      if (tier) CaseCache::Must(world.c->Suspend(away).status());
      return world.Prepared(std::vector<StepItem>{
          {world.ids[0], 1, 0, {}}, {world.ids[3], 1, 0, {}}, {world.drafted, 3, 2, {}}});
    };
    Step of_other = live(other), of_asked = live(asked);
    const std::vector<std::int32_t> wrong = {-1}, right = {5};
    struct Last {
      StepItem item;
      Code code;
    };
    std::vector<Last> lasts = {{{SequenceId{987654}, 1, 0, {}}, Code::kInvalidArgument},
                               {{asked.ids[0], 1, 0, {}}, Code::kInvalidArgument},
                               {{asked.spare, 0, 0, {}}, Code::kInvalidArgument},
                               {{asked.spare, 2, 2, {}}, Code::kInvalidArgument},
                               {{asked.spare, 253, 0, {}}, Code::kInvalidArgument},
                               {{asked.spare, 1, 0, wrong}, Code::kInvalidArgument},
                               {{asked.drafted, 1, 0, {}}, Code::kNotReady},
                               {{large, 250, 0, {}}, Code::kResourceExhausted}};
    if (tier) lasts.push_back({{away, 1, 0, {}}, Code::kNotReady});
    const std::string before = asked.c->Snapshot();
    for (const Last& last : lasts) {
      asked.Refused(asked.c->Plan(asked.Items({last.item})).status(), last.code, before);
    }
    const StepShape small{2, 0};
    asked.Refused(asked.c->Plan(asked.Items(), small).status(), Code::kInvalidArgument, before);
    // Positions take memory. What is planned at last is dropped.
    const std::vector<StepItem> moved = asked.Items({{asked.spare, 1, 0, right}});
    CHECK(MakeAtLast(asked.c, [&] { return asked.c->Plan(moved).status(); }) > 0);
    CHECK(asked.c->Snapshot() == before);
    // The step before is still the latest one of its sequences.
    for (World* world : {&asked, &other}) {
      CaseCache::Must(world->c->Discard(world == &asked ? of_asked : of_other, {}));
      Step step = world->Prepared(world->Items());
      CaseCache::Must(world->c->Commit(step, world->Commits(), {}));
    }
  });
}

TEST_CASE("A Commit whose last entry is refused changes nothing", "[cache]") {
  ForEachKind([](World& asked, World& other, bool) {
    // So many drafts that what is rejected finds no room in the lists that there are.
    const auto first = [](World& world) {
      return world.Prepared(world.Items({{world.spare, 200, 199, {}}}));
    };
    // A later step has rows of some, so that not all end with the first.
    const auto second = [](World& world) {
      return world.Prepared(
          std::vector<StepItem>{{world.ids[1], 1, 0, {}}, {world.ids[4], 1, 0, {}}});
    };
    Step of_asked = first(asked), of_other = first(other);
    Step later_of_asked = second(asked), later_of_other = second(other);
    const std::string before = asked.c->Snapshot();
    const std::vector<StepCommit> lasts = {{asked.spare, 0, {}},
                                           {asked.spare, 201, {}},
                                           {asked.spare, 1, asked.fed},
                                           {asked.ids[0], 1, {}},
                                           {SequenceId{987654}, 1, {}}};
    const auto commit = [&](std::span<const StepCommit> commits) {
      return asked.c->Commit(of_asked, commits, {});
    };
    for (const StepCommit& last : lasts) {
      std::vector<StepCommit> commits = asked.Commits({last});
      asked.Refused(commit(commits), Code::kInvalidArgument, before);
      std::swap(commits[0], commits[3]);
      asked.Refused(commit(commits), Code::kInvalidArgument, before);
      commits.erase(commits.begin());
      asked.Refused(commit(commits), Code::kInvalidArgument, before);
    }
    asked.backend->FailAt(1);
    asked.Refused(commit(asked.Commits()), Code::kDeviceError, before);
    CHECK(asked.backend->failed_call() == "Record");
    asked.backend->FailAt(0);
    const std::vector<StepCommit> all = asked.Commits({{asked.spare, 1, {}}});
    // Memory for what the two live steps release, and for nothing that earlier calls left behind.
    CHECK(MakeAtLast(asked.c, [&] { return asked.c->Commit(of_asked, all, {}); }) == 2);
    CaseCache::Must(other.c->Commit(of_other, all, {}));
    CHECK(asked.c->Snapshot() == other.c->Snapshot());
    CaseCache::Must(asked.c->Commit(later_of_asked, {}, {}));
    CaseCache::Must(other.c->Commit(later_of_other, {}, {}));
  });
}

TEST_CASE("What was closed or shortened meanwhile keeps nothing of a Commit in full", "[cache]") {
  for (const bool closes : {true, false}) {
    World world(BackendKind::kNull, false);
    const std::int64_t held = world.c->GetStats().held_blocks;
    const SequenceId id = world.ids[1];
    Step step = world.Prepared(
        std::vector<StepItem>{{world.ids[0], 1, 0, {}}, {id, 2, 0, {}}, {world.ids[3], 1, 0, {}}});
    CaseCache::Must(closes ? world.c->Close(id) : world.c->Truncate(id, 6));
    // All rows with all ids, as of the others.
    const auto one = std::span<const TokenId>(world.fed).first(1);
    const std::vector<StepCommit> commits = {
        {world.ids[0], 1, one}, {id, 2, world.fed}, {world.ids[3], 1, one}};
    CaseCache::Must(world.c->Commit(step, commits, {}));
    CHECK(world.c->GetExtent(world.ids[0])->settled == 6);
    CHECK(world.c->GetStats().held_blocks == held - (closes ? 2 : 0));
    if (closes) continue;
    CHECK(world.c->GetExtent(id)->settled == 6);
    CHECK(world.c->GetExtent(id)->known == 6);
  }
}

TEST_CASE("A dropped step goes when the sequence that it waits for is closed", "[cache]") {
  World world(BackendKind::kNull, false);
  const std::vector<StepItem> item = {{world.ids[0], 1, 0, {}}};
  Step first = world.Prepared(item), second = world.Prepared(item);
  first = Step();  // has to wait: the second has later rows
  CHECK(world.c->GetStats().live_steps == 2);
  CaseCache::Must(world.c->Close(world.ids[0]));
  CHECK(world.c->GetStats().live_steps == 1);
  const std::string before = world.c->Snapshot();
  world.Refused(world.c->Plan(std::vector<StepItem>{{SequenceId{987654}, 1, 0, {}}}).status(),
                Code::kInvalidArgument, before);
  CaseCache::Must(world.c->Commit(second, {}, {}));
}

}  // namespace
}  // namespace lariat
