// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lariat/kv_cache.h"
#include "reference/cache_model.h"
#include "support/catch.h"

namespace lariat::testing {

// The parts, printed one after the other.
template <class... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Two caches that get one call list, and the model that says what they should answer. Checks after
// every call: the code is one the model allows, both caches' snapshots are equal, a failed call
// changed nothing, counters, extents and tables equal the model's.
class CachePair {
 public:
  CachePair(const CacheConfig& config, const reference::ModelConfig& model)
      : model_(model), caches_{Make(config), Make(config)} {
    snapshot_ = caches_[0].Snapshot();
    REQUIRE(snapshot_ == caches_[1].Snapshot());
  }

  reference::CacheModel& model() { return model_; }
  const reference::CacheModel& model() const { return model_; }
  KVCache& cache(int which = 0) { return caches_[which]; }
  // After a call that changes what a snapshot shows, and nothing else.
  void TakeSnapshot() { snapshot_ = caches_[0].Snapshot(); }
  const std::string& snapshot() const { return snapshot_; }
  bool planning() const { return model_.plan().has_value(); }

  struct StepPair {
    Step steps[2];
  };
  std::vector<StepPair>& live() { return live_; }
  StepPair& plan() { return plan_; }
  void TakePlan() {
    live_.push_back(std::move(plan_));
    plan_ = {};
  }
  void ErasePlan() { plan_ = {}; }
  void EraseLive(std::size_t index) {
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Calls `call(cache, which)` on both; it returns a Status.
  template <class F>
  Code Call(const std::string& what, const std::set<Code>& allowed, F call) {
    log_.push_back(what);
    if (log_.size() > 60) log_.pop_front();
    const Status first = Attempt([&] { return call(caches_[0], 0); }, caches_[0]);
    const Status second = Attempt([&] { return call(caches_[1], 1); }, caches_[1]);
    log_.back().append(" -> ").append(first.ToString());
    if (first.code() != second.code()) Fail(Text("the caches disagree: ", second.ToString()));
    if (allowed.count(first.code()) == 0) {
      std::string names;
      for (const Code code : allowed) names += Text(" ", CodeName(code));
      Fail(Text("allowed is:", names));
    }
    const std::string now = caches_[0].Snapshot();
    if (now != caches_[1].Snapshot()) Fail("the caches' snapshots differ");
    if (!first.ok()) {
      if (now != snapshot_)
        Fail(Text("a failed call changed the cache:\n", snapshot_, "\n->\n", now));
      if (first.message().empty()) Fail("an error without a message");
    }
    snapshot_ = now;
    return first.code();
  }

  // Match of a prompt, which cannot fail.
  void MatchBoth(std::span<const TokenId> prompt, PrefixMatch (&got)[2]) {
    for (int i = 0; i < 2; ++i) got[i] = caches_[i].Match(prompt);
    if (caches_[0].Snapshot() != snapshot_ || caches_[1].Snapshot() != snapshot_) {
      Fail("Match of a prompt changed a cache");
    }
  }

  // How a call is made, where not just so: may make it several times, until it does not fail.
  using Attempts = std::function<Status(const std::function<Status()>& call, const KVCache& cache)>;
  void SetAttempts(Attempts attempts) { attempts_ = std::move(attempts); }

  // After the model was told of the call.
  void CheckState() {
    const Stats stats = caches_[0].GetStats();
    if (const std::string wrong = model_.CompareStats(stats); !wrong.empty()) Fail(wrong);
    if (planning()) return;  // tables and extents of a plan may be asked for or not
    for (const auto& [id, sequence] : model_.sequences()) {
      const auto extent = caches_[0].GetExtent(id);
      if (!extent.ok()) Fail(Text("GetExtent: ", extent.status().ToString()));
      Same("settled", id, extent->settled, sequence.settled);
      Same("planned", id, extent->planned, model_.Planned(sequence, id));
      Same("known", id, extent->known, std::ssize(sequence.ids));
      Same("min_length", id, extent->min_length, model_.MinLength(sequence));
      if (TableOf(id) != sequence.table) Fail(Text("table of ", Name(id), " differs"));
      for (std::size_t side = 0; side < sequence.sides.size(); ++side) {
        if (TableOf(id, static_cast<int>(side) + 1) == sequence.sides[side]) continue;
        Fail(Text("table ", side + 1, " of ", Name(id), " differs"));
      }
    }
  }

  std::vector<int> TableOf(SequenceId id, int group = 0) const {
    const auto table = caches_[0].BlockTable(id, group);
    if (!table.ok()) return {-2};
    return {table->begin(), table->end()};
  }

  [[noreturn]] void Fail(const std::string& why) {
    std::string text = why + "\nlast calls:\n";
    for (const std::string& call : log_) text += Text("  ", call, "\n");
    text += "state:\n" + caches_[0].Snapshot();
    FAIL(text);
    std::abort();  // FAIL does not return
  }

  static std::string Name(SequenceId id) { return Text("s", static_cast<std::uint64_t>(id)); }

 private:
  static KVCache Make(const CacheConfig& config) {
    auto made = KVCache::Create(config);
    if (!made.ok()) FAIL(made.status().ToString());
    return *std::move(made);
  }

  Status Attempt(const std::function<Status()>& call, const KVCache& cache) const {
    return attempts_ ? attempts_(call, cache) : call();
  }
  void Same(const char* field, SequenceId id, std::int64_t got, std::int64_t want) {
    if (got != want) {
      Fail(Text(field, " of ", Name(id), " is ", got, ", should be ", want));
    }
  }

  reference::CacheModel model_;
  KVCache caches_[2];
  std::vector<StepPair> live_;  // prepared, not ended; in plan order
  StepPair plan_;
  Attempts attempts_;
  std::string snapshot_;
  std::deque<std::string> log_;
};

}  // namespace lariat::testing
