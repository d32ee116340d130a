// SPDX-License-Identifier: Apache-2.0
#include "blocks/event_log.h"

#include <algorithm>

namespace lariat::blocks {

EventLog::EventLog(std::int64_t max_events, int block_size)
    : block_size_(static_cast<std::size_t>(block_size)),
      ring_(static_cast<std::size_t>(max_events)),
      tokens_(ring_.size() * block_size_) {}

std::int64_t EventLog::Bytes(std::int64_t max_events, std::int64_t block_size, std::int64_t nodes) {
  if (max_events == 0) return 0;
  const std::int64_t event = static_cast<std::int64_t>(sizeof(Record)) +
                             block_size * static_cast<std::int64_t>(sizeof(TokenId));
  return max_events * event + nodes * static_cast<std::int64_t>(sizeof(BlockName));
}

void EventLog::Name(std::int32_t node, const BlockName& parent, std::span<const TokenId> tokens) {
  names_[static_cast<std::size_t>(node)] = {HashBlock(parent.hash, tokens),
                                            parent.end + std::ssize(tokens)};
}

// Returns the place of a new change.
std::size_t EventLog::Push(KVEventKind kind, Tier tier) {
  if (count_ == ring_.size()) {
    first_ = Wrap(first_ + 1);
    --count_;
    ++lost_;
  }
  const std::size_t place = Wrap(first_ + count_++);
  ++number_;
  ring_[place] = {};
  ring_[place].kind = kind;
  ring_[place].tier = tier;
  return place;
}

std::size_t EventLog::Push(KVEventKind kind, Tier tier, std::int32_t group, std::int32_t node,
                           const BlockName& parent) {
  const std::size_t place = Push(kind, tier);
  ring_[place].group = group;
  ring_[place].first_token = parent.end;
  ring_[place].hash = name(node).hash;
  ring_[place].parent = parent.hash;
  return place;
}

void EventLog::Stored(std::int32_t node, const BlockName& parent, std::span<const TokenId> tokens,
                      Tier tier, std::int32_t group) {
  if (quiet_) return;
  const std::size_t place = Push(KVEventKind::kStored, tier, group, node, parent);
  ring_[place].num_tokens = static_cast<std::int32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(place * block_size_));
}

void EventLog::Removed(std::int32_t node, const BlockName& parent, Tier tier, std::int32_t group) {
  if (!quiet_) Push(KVEventKind::kRemoved, tier, group, node, parent);
}

std::int64_t EventLog::Drain(std::span<KVEvent> events) {
  const std::size_t taken = std::min(events.size(), count_);
  for (std::size_t i = 0; i < taken; ++i) {
    const Record& record = ring_[first_];
    events[i] = {.kind = record.kind,
                 .tier = record.tier,
                 .group = record.group,
                 .number = number_ - count_ + 1,
                 .hash = record.hash,
                 .parent = record.parent,
                 .first_token = record.first_token,
                 .tokens = {tokens_.data() + first_ * block_size_,
                            static_cast<std::size_t>(record.num_tokens)}};
    first_ = Wrap(first_ + 1);
    --count_;
  }
  return static_cast<std::int64_t>(taken);
}

}  // namespace lariat::blocks
