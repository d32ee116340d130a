// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/kv_event.h"

namespace lariat::testing {

// What a router does with a cache's events: a set of what is cached where. It looks at each event,
// and says what is wrong with it.
class EventMirror {
 public:
  using Held = std::set<std::tuple<BlockHash, Tier, int>>;  // name, tier, group

  //   room: events that one call is asked for
  explicit EventMirror(std::int64_t block_size, std::size_t room = 7)
      : block_size_(block_size), buffer_(room) {}

  // Takes over what the cache tells. Events may be missing: then `missed` counts them, and the set
  // is not what it should be until List.
  void Drain(KVCache& cache) {
    while (true) {
      const std::int64_t count = cache.DrainEvents(buffer_);
      for (const KVEvent& event : std::span(buffer_).first(static_cast<std::size_t>(count))) {
        Apply(event);
      }
      if (count < std::ssize(buffer_)) return;
    }
  }
  // Begins anew with what is cached now.
  void List(const KVCache& cache) {
    held_.clear();
    below_.clear();
    std::int64_t cursor = 0;
    while (true) {
      const Result<std::int64_t> count = cache.ListBlocks(cursor, buffer_);
      if (!count.ok()) return Wrong(count.status().ToString());
      for (const KVEvent& event : std::span(buffer_).first(static_cast<std::size_t>(*count))) {
        CheckName(event);
        if (event.kind != KVEventKind::kStored) Wrong("a listed block is not stored");
        if (!held_.insert({event.hash, event.tier, event.group}).second)
          Wrong("a block is listed twice");
        CountBelow(event, 1);
        last_ = event.number;
      }
      if (*count < std::ssize(buffer_)) break;
    }
    sound_ = true;
  }

  const Held& held() const { return held_; }
  bool Holds(const BlockHash& hash, Tier tier = Tier::kDevice) const {
    return held_.count({hash, tier, 0}) > 0;
  }
  bool sound() const { return sound_; }  // no event was missed since the last List
  std::int64_t missed() const { return missed_; }
  std::int64_t cleared() const { return cleared_; }
  std::int64_t stored(Tier tier) const { return stored_[static_cast<int>(tier)]; }
  std::int64_t removed(Tier tier) const { return removed_[static_cast<int>(tier)]; }
  std::int64_t beside() const { return beside_; }  // events of groups but the first one
  std::uint64_t last() const { return last_; }
  const std::string& wrong() const { return wrong_; }

 private:
  void Wrong(const std::string& what) {
    std::ostringstream text;
    text << "after event " << last_ << ": " << what << '\n';
    wrong_ += text.str();
  }
  void CheckName(const KVEvent& event) {
    const std::int64_t count = std::ssize(event.tokens);
    if (count < 1 || count > block_size_) Wrong("a block of no size");
    if (event.first_token < 0 || event.first_token % block_size_ != 0) Wrong("first_token");
    if (HashBlock(event.parent, event.tokens) != event.hash) Wrong("a name of other tokens");
  }
  void CountBelow(const KVEvent& event, std::int64_t by) {
    if (event.tier == Tier::kDevice) below_[event.group == 0 ? event.parent : event.hash] += by;
  }
  void Apply(const KVEvent& event) {
    if (event.number <= last_) Wrong("the numbers do not go up");
    if (event.number != last_ + 1) {
      missed_ += static_cast<std::int64_t>(event.number - last_ - 1);
      sound_ = false;
    }
    last_ = event.number;
    const auto tier = static_cast<int>(event.tier);
    beside_ += event.group > 0 ? 1 : 0;
    if (event.kind == KVEventKind::kCleared) {
      held_.clear();
      below_.clear();
      sound_ = true;  // whatever was missed
      ++cleared_;
    } else if (event.kind == KVEventKind::kRemoved) {
      if (!event.tokens.empty()) Wrong("a removed block with tokens");
      if (held_.erase({event.hash, event.tier, event.group}) == 0 && sound_)
        Wrong("removed without being held");
      if (sound_) CountBelow(event, -1);
      const bool last = event.tier == Tier::kHost || event.group > 0 || below_[event.hash] == 0;
      if (sound_ && !last) Wrong("removed before what is below it, or beside it");
      ++removed_[tier];
    } else {
      CheckName(event);
      // The way to a block leads over those before it.
      const bool above = event.group > 0
                             ? Holds(event.hash) || event.tier == Tier::kHost
                             : event.first_token == 0 || Holds(event.parent) ||
                                   (event.tier == Tier::kHost && Holds(event.parent, Tier::kHost));
      if (!above && sound_) Wrong("stored below what is not cached");
      if (!held_.insert({event.hash, event.tier, event.group}).second && sound_)
        Wrong("stored twice");
      CountBelow(event, 1);
      ++stored_[tier];
    }
  }

  const std::int64_t block_size_;
  std::vector<KVEvent> buffer_;
  Held held_;
  // Blocks on the device that follow the first group's one of this name, or are beside it.
  std::map<BlockHash, std::int64_t> below_;
  bool sound_ = true;
  std::uint64_t last_ = 0;
  std::int64_t missed_ = 0, cleared_ = 0, beside_ = 0;
  std::int64_t stored_[2] = {}, removed_[2] = {};
  std::string wrong_;
};

}  // namespace lariat::testing
