// SPDX-License-Identifier: Apache-2.0
// Who replays the events of random calls holds what the naive model (tests/reference/cache_model.h)
// says is cached, after every call.
#include <map>

#include "support/event_mirror.h"
#include "support/random_calls.h"

namespace lariat {
namespace {

using reference::IndexKey;
using testing::EventMirror;
using testing::RandomCalls;
using testing::Setting;

// Calls over all seeds of one case.
constexpr std::int64_t kCalls = 24000;
constexpr std::int64_t kCallsPerRun = 500;

// The names of the model's texts.
class Names {
 public:
  explicit Names(std::int64_t block_size) : block_size_(static_cast<std::size_t>(block_size)) {
    static const std::uint64_t kExtra[] = {7, 9};  // what RandomCalls opens sequences with
    for (int i = 0; i < 8; ++i) {
      OpenOptions options;
      if ((i & 1) != 0) options.salt = "tenant";
      if ((i & 2) != 0) options.adapter = "tenant";
      if ((i & 4) != 0) options.extra_keys = kExtra;
      roots_[reference::OptionsKey(options)] = HashRoot(options);
    }
  }
  const BlockHash& Of(const IndexKey& key) {
    if (const auto found = names_.find(key); found != names_.end()) return found->second;
    BlockHash hash = roots_.at(key.first);
    std::span<const TokenId> left = key.second;
    while (!left.empty()) {
      const std::size_t count = std::min(left.size(), block_size_);
      hash = HashBlock(hash, left.first(count));
      left = left.subspan(count);
    }
    return names_[key] = hash;
  }

 private:
  const std::size_t block_size_;
  std::map<std::string, BlockHash> roots_;
  std::map<IndexKey, BlockHash> names_;
};

EventMirror::Held Truth(const reference::CacheModel& model, Names& names) {
  EventMirror::Held held;
  for (const auto& [key, block] : model.index()) held.insert({names.Of(key), Tier::kDevice, 0});
  for (const auto& [key, place] : model.copies()) held.insert({names.Of(key), Tier::kHost, 0});
  for (const auto& [key, block] : model.pages()) {
    held.insert({names.Of(key.first), Tier::kDevice, static_cast<int>(key.second) + 1});
  }
  return held;
}

struct Totals {
  std::int64_t stored[2] = {}, removed[2] = {};
  std::int64_t cleared = 0, missed = 0, listed = 0, beside = 0;
};

// One run: two caches that get the same calls, and a mirror of each.
void Run(const Setting& setting, unsigned seed, Totals& totals) {
  RandomCalls calls(setting, seed);
  EventMirror first(setting.block_size), second(setting.block_size, 3);
  Names names(setting.block_size);
  for (std::int64_t i = 0; i < kCallsPerRun; ++i) {
    calls.One();
    testing::CachePair& pair = calls.pair();
    first.Drain(pair.cache(0));
    second.Drain(pair.cache(1));
    pair.TakeSnapshot();
    if (first.held() != second.held() || first.last() != second.last()) pair.Fail("two ranks");
    const Stats stats = pair.cache().GetStats();
    if (stats.lost_events != first.missed()) pair.Fail("lost events that numbers do not tell of");
    if (stats.events != static_cast<std::int64_t>(first.last())) pair.Fail("another last event");
    if (pair.planning()) continue;  // the model's victims went with the plan
    const EventMirror::Held truth = Truth(pair.model(), names);
    if (first.sound() && first.held() != truth) {
      pair.Fail(testing::Text("the mirror differs: it holds ", first.held().size(), ", not ",
                              truth.size()));
    }
    if (!first.sound()) {
      first.List(pair.cache(0));
      second.List(pair.cache(1));
      if (first.held() != truth || second.held() != truth) pair.Fail("the list differs");
      ++totals.listed;
    }
    if (!first.wrong().empty()) pair.Fail(first.wrong());
  }
  for (int tier = 0; tier < 2; ++tier) {
    totals.stored[tier] += first.stored(static_cast<Tier>(tier));
    totals.removed[tier] += first.removed(static_cast<Tier>(tier));
  }
  totals.cleared += first.cleared();
  totals.missed += first.missed();
  totals.beside += first.beside();
}

Totals Run(std::vector<Setting> settings, std::int64_t max_events) {
  Totals totals;
  for (std::int64_t run = 0; run < kCalls / kCallsPerRun; ++run) {
    Setting& setting = settings[static_cast<std::size_t>(run) % settings.size()];
    setting.max_events = max_events;
    INFO("run " << run << ": block size " << setting.block_size << ", " << setting.blocks
                << " blocks, " << setting.host.num_blocks << " in host memory");
    Run(setting, static_cast<unsigned>(run) + 1, totals);
  }
  return totals;
}

std::vector<Setting> OnDevice() {
  std::vector<Setting> settings;
  for (const std::int64_t block_size : {1, 4, 16}) {
    for (const std::int64_t blocks : {5, 17, 64}) {
      for (const Reuse reuse : {Reuse::kBlock, Reuse::kToken}) {
        Setting setting{block_size, blocks, 1 + static_cast<int>(settings.size() % 3), reuse};
        if (settings.size() % 4 == 3) setting.eviction = EvictionPolicy::kPriority;
        settings.push_back(setting);
      }
    }
  }
  return settings;
}

std::vector<Setting> InTwoTiers() {
  std::vector<Setting> settings;
  for (const std::int64_t block_size : {1, 4}) {
    for (const std::int64_t places : {3, 12, 40}) {
      for (const WritePolicy write :
           {WritePolicy::kBack, WritePolicy::kThrough, WritePolicy::kAfterHits}) {
        HostTier host{.num_blocks = places, .write = write};
        host.write_after_hits = 1;
        host.clean_blocks = std::min<std::int64_t>(places, 4);
        const Reuse reuse = settings.size() % 2 == 0 ? Reuse::kBlock : Reuse::kToken;
        settings.push_back({block_size, 11, 2, reuse, host});
      }
    }
  }
  return settings;
}

std::vector<Setting> WithWindows() {
  std::vector<Setting> settings;
  for (const std::int64_t size : {3, 4}) {
    for (const auto& sides : std::vector<std::vector<reference::ModelSide>>{
             {{false, size}}, {{true, 3 * size - 1}}, {{false, size + 1}, {false, 2 * size}}}) {
      Setting setting{size, 26, 2};
      setting.reuse = settings.size() % 2 == 0 ? Reuse::kBlock : Reuse::kToken;
      setting.sides = sides;
      settings.push_back(setting);
    }
  }
  return settings;
}

void CheckTotals(const Totals& totals) {
  CHECK(totals.missed == 0);
  CHECK(totals.listed == 0);
  CHECK(totals.stored[0] > 1000);
  CHECK(totals.removed[0] > 500);
  CHECK(totals.cleared > 10);
}

TEST_CASE("Events tell what is cached on the device", "[cache]") {
  CheckTotals(Run(OnDevice(), 4096));
}

TEST_CASE("Events tell what is cached in two tiers", "[cache]") {
  const Totals totals = Run(InTwoTiers(), 4096);
  CheckTotals(totals);
  CHECK(totals.stored[1] > 500);
  CHECK(totals.removed[1] > 300);
}

TEST_CASE("Events tell what is cached of each group of a model with windows", "[cache]") {
  const Totals totals = Run(WithWindows(), 4096);
  CheckTotals(totals);
  CHECK(totals.beside > 1000);
}

TEST_CASE("Events that are lost are counted, and a list makes up for them", "[cache]") {
  for (const std::int64_t max_events : {1, 3}) {
    const Totals totals = Run(max_events == 1 ? OnDevice() : InTwoTiers(), max_events);
    CHECK(totals.missed > 500);
    CHECK(totals.listed > 100);
  }
}

}  // namespace
}  // namespace lariat
