// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/cache_pair.h"
#include "support/catch.h"
#include "support/late_world.h"

namespace lariat::testing {

// What a run did, so that a run which does nothing is seen.
struct Done {
  std::int64_t offloaded = 0, onboarded = 0, fetches = 0, suspends = 0, resumes = 0, failed = 0,
               evicted = 0, host_evicted = 0, refused = 0, removed = 0;
};

// A backend's planned faults: the n-th call from now on, 0: none; and how many there were.
struct Faults {
  std::function<void(std::int64_t)> at;
  std::function<std::int64_t()> count;
};

// Random calls; those that the cache refuses for want of room, or as too early, are left out.
class RandomTier {
 public:
  // pass_time: lets a late device run something.
  RandomTier(RowWorld& world, const WorldOptions& options, unsigned seed,
             std::function<void()> pass_time, Faults faults = {})
      : world_(world),
        options_(options),
        random_(seed),
        pass_time_(std::move(pass_time)),
        faults_(std::move(faults)) {}

  void Calls(int count) {
    for (int i = 0; i < count; ++i) {
      if (faults_.at && Roll(3) == 0) faults_.at(1 + Roll(2));
      One();
      if (states_ != nullptr) states_->push_back(world_.cache().Snapshot());
      if (faults_.at && Roll(6) == 0) faults_.at(0);
      if (Roll(3) == 0) pass_time_();
      if (Roll(24) == 0) Check();
    }
    if (faults_.at) faults_.at(0);
    while (!world_.live().empty()) Ok(world_.Commit(stream_));
    Check();
    while (!world_.sequences().empty()) Ok(world_.Close(world_.sequences().begin()->first));
    while (!world_.transfers().empty()) Accept();
    for (const auto& prompt : pinned_) Went(world_.cache().Unpin(prompt), {Code::kInvalidArgument});
    const Stats stats = world_.cache().GetStats();
    CHECK(stats.free_blocks + stats.idle_blocks == stats.total_blocks);
    CHECK(stats.pinned_blocks == 0);
    CHECK(stats.host_held == 0);
    Ok(world_.cache().Clear());
    const Stats cleared = world_.cache().GetStats();
    CHECK(cleared.free_blocks == cleared.total_blocks);
    CHECK(cleared.host_used == 0);
    done_.offloaded = stats.offloaded_blocks;
    done_.onboarded = stats.onboarded_blocks;
    done_.evicted = stats.evicted_blocks;
    done_.host_evicted = stats.host_evicted;
    if (faults_.at) done_.failed = faults_.count();
  }
  const Done& done() const { return done_; }
  // From now on notes the cache's state after each call.
  void Note(std::vector<std::string>& states) { states_ = &states; }

 private:
  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  SequenceId Any() {
    return std::next(world_.sequences().begin(), Roll(std::ssize(world_.sequences())))->first;
  }
  static void Ok(const Status& status) {
    if (!status.ok()) FAIL(status.ToString());
  }
  // Whether it went well; one of these codes, or a fault that was planned, is no error of the test.
  bool Went(const Status& status, std::initializer_list<Code> codes) {
    if (status.ok()) return true;
    for (const Code code : codes) {
      if (status.code() == code) return false;
    }
    if (!faults_.at || status.code() != Code::kDeviceError) FAIL(status.ToString());
    return false;
  }

  void Check() {
    if (faults_.at) faults_.at(0);
    world_.CheckRows();
    REQUIRE(world_.errors() == "");
    for (const auto& [id, sequence] : world_.sequences()) {
      if (sequence.settled == 0) continue;
      REQUIRE(world_.cache().GetExtent(id)->min_length <= sequence.settled);
    }
    const Stats s = world_.cache().GetStats();
    REQUIRE(s.free_blocks + s.idle_blocks + s.held_blocks + s.reserved_blocks +
                s.in_transit_blocks ==
            s.total_blocks);
  }

  void One() {
    const std::int64_t dice = Roll(100);
    if (dice < 14 || world_.sequences().empty()) {
      const auto id = world_.Open(Prompt(), Roll(5) == 0 ? "other" : "", Keep());
      if (Went(id.status(), {Code::kResourceExhausted}) && Roll(2) == 0) {
        const bool at_once = faults_.at == nullptr && Roll(2) == 0;
        at_once ? FetchNow(*id) : Fetch(*id);
      }
    } else if (dice < 40) {
      Step();
    } else if (dice < 58) {
      Commit();
    } else if (dice < 61) {
      if (!world_.live().empty()) Went(world_.DiscardLast(stream_), {});
    } else if (dice < 70) {
      Ok(world_.Close(Any()));
    } else if (dice < 73) {
      Truncate(Any());
    } else if (dice < 77) {
      Fork(Any());
    } else if (dice < 80) {
      Fetch(Any());
    } else if (dice < 86) {
      if (Moved([&](SequenceId id) { return world_.Suspend(id); }, Any())) ++done_.suspends;
    } else if (dice < 92) {
      if (Moved([&](SequenceId id) { return world_.Resume(id); }, Any())) ++done_.resumes;
    } else if (dice < 97) {
      Accept();
    } else if (dice < 98) {
      Went(world_.cache().Poll().status(), {});
    } else {
      Forget();
    }
    DropCorrupt();
  }

  std::vector<TokenId> Prompt() {
    return Tokens(static_cast<TokenId>(100 * Roll(5)), Roll(options_.max_tokens_per_sequence / 2));
  }
  std::vector<Retention> Keep() {
    std::vector<Retention> keep;
    if (options_.eviction != EvictionPolicy::kPriority || Roll(2) == 0) return keep;
    keep.push_back({.first_token = Roll(12),
                    .last_token = 12 + Roll(12),
                    .priority = static_cast<int>(Roll(101)),
                    .ttl_ms = Roll(3) * 4});
    return keep;
  }

  // What of the cached texts is taken from outside, or kept.
  void Forget() {
    KVCache& cache = world_.cache();
    const std::int64_t dice = Roll(14);
    const std::string_view salt = Roll(2) == 0 ? "other" : "";
    if (dice < 4) {
      const auto removed = cache.Remove(Prompt(), {.salt = salt});
      if (Went(removed.status(), {})) done_.removed += *removed;
    } else if (dice < 5) {
      const auto removed = cache.RemoveSalt(salt);
      if (Went(removed.status(), {})) done_.removed += *removed;
    } else if (dice < 6) {
      Ok(cache.Clear());
    } else if (dice < 8) {
      quotas_ = true;
      Ok(cache.SetQuota(salt, Roll(3) == 0 ? -1 : Roll(options_.blocks / 2)));
    } else if (dice < 10) {
      Ok(cache.Expire(now_ms_ += Roll(8)));
    } else if (dice < 12) {
      std::vector<TokenId> prompt = Prompt();
      if (Went(cache.Pin(prompt), {Code::kInvalidArgument, Code::kResourceExhausted})) {
        pinned_.push_back(std::move(prompt));
      }
    } else if (!pinned_.empty()) {
      Went(cache.Unpin(pinned_.back()), {Code::kInvalidArgument});
      pinned_.pop_back();
    } else if (!world_.sequences().empty()) {
      Went(world_.TellAll(Any()), {Code::kNotReady});
    }
  }

  // Whether a length is one that windows do not allow, which must have been refused.
  bool Refused(SequenceId id, std::int64_t length, const Status& status,
               std::initializer_list<Code> codes) {
    if (length <= 0 || length >= world_.cache().GetExtent(id)->min_length) return false;
    ++done_.refused;
    if (status.ok()) FAIL("length " << length << " is below min_length");
    if (status.code() != Code::kInvalidArgument) Went(status, codes);
    return true;
  }
  void Truncate(SequenceId id) {
    const std::int64_t length = std::ssize(world_.sequences().at(id).rows);
    if (length <= 1) return;
    const std::int64_t to =
        Roll(5) == 0 ? 0 : length - 1 - Roll(Roll(2) == 0 ? length - 1 : 2) % length;
    const Status status = world_.Truncate(id, to);
    if (!Refused(id, to, status, {Code::kNotReady})) Went(status, {Code::kNotReady});
  }
  void Fork(SequenceId id) {
    const std::int64_t settled = world_.sequences().at(id).settled;
    if (settled == 0) return;
    const std::int64_t to =
        Roll(2) == 0 ? -1 : settled - Roll(Roll(2) == 0 ? settled : 2) % settled;
    const auto child = world_.Fork(id, to);
    if (Refused(id, to, child.status(), {Code::kNotReady, Code::kResourceExhausted})) return;
    Went(child.status(), {Code::kNotReady, Code::kResourceExhausted});
  }

  void Fetch(SequenceId id) {
    if (Moved([&](SequenceId of) { return world_.Fetch(of); }, id)) ++done_.fetches;
  }
  // What a Fetch promised is found once it is accepted, unless a quota took it away again.
  void FetchNow(SequenceId id) {
    const auto match = world_.cache().Match(id);
    const auto transfer = world_.Fetch(id);
    if (!Went(transfer.status(),
              {Code::kNotReady, Code::kInvalidArgument, Code::kResourceExhausted})) {
      return;
    }
    REQUIRE(match.ok());
    CHECK((*transfer != TransferId::kNone) == (match->host_tokens > match->tokens));
    if (*transfer == TransferId::kNone) return;
    ++done_.fetches;
    REQUIRE(world_.Accept(*transfer).ok());
    if (!quotas_) CHECK(world_.cache().Match(id)->tokens == match->host_tokens);
  }
  // Whether a transfer began, or ended at once. A refused one changes nothing.
  template <class Move>
  bool Moved(Move move, SequenceId id) {
    const bool look = !faults_.at && Roll(4) == 0;
    const std::string before = look ? world_.cache().Snapshot() : "";
    const Result<TransferId> transfer = move(id);
    if (!Went(transfer.status(),
              {Code::kNotReady, Code::kInvalidArgument, Code::kResourceExhausted})) {
      if (look) REQUIRE(world_.cache().Snapshot() == before);
      return false;
    }
    return *transfer != TransferId::kNone;
  }

  void Accept() {
    if (world_.transfers().empty()) return;
    const auto any = std::next(world_.transfers().begin(), Roll(std::ssize(world_.transfers())));
    const auto report = world_.Accept(any->first);
    if (Went(report.status(), {}) && !faults_.at) REQUIRE_FALSE(report->failed);
  }

  // Sequences whose copy was lost.
  void DropCorrupt() {
    if (!faults_.at) return;
    std::vector<SequenceId> corrupt;
    for (const auto& [id, sequence] : world_.sequences()) {
      if (world_.cache().GetExtent(id).status().code() == Code::kCorruptData) corrupt.push_back(id);
    }
    for (const SequenceId id : corrupt) Ok(world_.Close(id));
  }

  void Step() {
    std::vector<WorldItem> items;
    for (std::int64_t i = 1 + Roll(3); i > 0; --i) {
      WorldItem item{.sequence = Any(), .num_tokens = 1 + Roll(14)};
      for (const WorldItem& other : items) {
        if (other.sequence == item.sequence) return;
      }
      const WorldSequence& sequence = world_.sequences().at(item.sequence);
      if (std::ssize(sequence.rows) >= std::ssize(sequence.prompt) && Roll(3) == 0) {
        item.num_drafts = Roll(item.num_tokens);
      }
      if (std::ssize(sequence.rows) + item.num_tokens > options_.max_tokens_per_sequence) return;
      if (Roll(2) == 0) {  // sequences that go on alike
        item.tokens = Tokens(static_cast<TokenId>(1000 + std::ssize(sequence.rows)), 14);
      }
      items.push_back(item);
    }
    if (Roll(8) == 0) return PlanAndDrop(items);
    const std::size_t live = world_.live().size();
    const Status run = world_.Run(items, stream_);
    if (Went(run, {Code::kResourceExhausted, Code::kNeverFits, Code::kNotReady})) return;
    if (world_.live().size() == live) return;
    faults_.at(0);  // it failed in the appends: they are made again
    Ok(world_.AppendAll(stream_));
  }

  // Nothing is left of a plan that was dropped, or found no room.
  void PlanAndDrop(const std::vector<WorldItem>& items) {
    const std::string before = world_.cache().Snapshot();
    {
      lariat::Step step;
      Went(world_.Plan(items, {}, step),
           {Code::kResourceExhausted, Code::kNeverFits, Code::kNotReady});
    }
    // But for the number of the next step.
    REQUIRE(WithoutPlan(world_.cache().Snapshot()) == WithoutPlan(before));
  }
  static std::string WithoutPlan(const std::string& snapshot) {
    return snapshot.substr(0, snapshot.rfind("plan "));
  }

  void Commit() {
    if (world_.live().empty()) return;
    std::map<SequenceId, std::int64_t> kept;
    for (const StepRows& rows : world_.live().front().rows) {
      const std::int64_t drafts = world_.live().front().drafts.at(rows.sequence);
      if (drafts > 0) kept[rows.sequence] = rows.count - Roll(drafts + 1);
    }
    Went(world_.Commit(stream_, kept, Roll(4) == 0 ? Roll(4) : 100), {});
  }

  RowWorld& world_;
  const WorldOptions options_;
  std::mt19937_64 random_;
  std::function<void()> pass_time_;
  const Faults faults_;
  std::vector<std::string>* states_ = nullptr;
  std::vector<std::vector<TokenId>> pinned_;
  std::int64_t now_ms_ = 0;
  bool quotas_ = false;
  Stream stream_ = {};
  Done done_;
};

inline void Add(Done& sum, const Done& one) {
  sum.offloaded += one.offloaded;
  sum.onboarded += one.onboarded;
  sum.fetches += one.fetches;
  sum.suspends += one.suspends;
  sum.resumes += one.resumes;
  sum.failed += one.failed;
  sum.evicted += one.evicted;
  sum.host_evicted += one.host_evicted;
  sum.refused += one.refused;
  sum.removed += one.removed;
}

inline std::string Text(const Done& sum) {
  return testing::Text("offloaded ", sum.offloaded, ", onboarded ", sum.onboarded, ", fetches ",
                       sum.fetches, ", suspends ", sum.suspends, ", resumes ", sum.resumes,
                       ", evicted ", sum.evicted, ", evicted from the host ", sum.host_evicted,
                       ", refused ", sum.refused, ", removed ", sum.removed, ", failed copies ",
                       sum.failed);
}

}  // namespace lariat::testing
