// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/block_hash.h"
#include "lariat/kv_event.h"
#include "lariat/types.h"

namespace lariat::blocks {

// The name of a node of the index, or of a root, and how many tokens end with it.
struct BlockName {
  BlockHash hash;
  std::int64_t end = 0;
};

// The last changes of the index that nobody has asked for, in a ring. Of a full ring the oldest
// change goes, and counts as lost. All memory is taken by the constructor and Reserve.
// Cost: O(block_size) per change. Threads: externally synchronised.
class EventLog {
 public:
  // max_events: 0: there is no log, and nobody may call anything but Drain and the counters
  EventLog(std::int64_t max_events, int block_size);

  bool on() const { return !ring_.empty(); }
  // Makes room for the names of nodes below `nodes`.
  void Reserve(std::size_t nodes) {
    if (nodes > names_.size()) names_.resize(nodes);
  }

  // The node gets the name that its tokens and what they follow make. Until it gets another one it
  // keeps it.
  void Name(std::int32_t node, const BlockName& parent, std::span<const TokenId> tokens);
  const BlockName& name(std::int32_t node) const { return names_[static_cast<std::size_t>(node)]; }

  // group: of layers, as KVEvent::group
  void Stored(std::int32_t node, const BlockName& parent, std::span<const TokenId> tokens,
              Tier tier, std::int32_t group);
  void Removed(std::int32_t node, const BlockName& parent, Tier tier, std::int32_t group);

  // Everything goes: one event, whatever else is said while this lives.
  class Clearing {
   public:
    explicit Clearing(EventLog& log) : log_(log) {
      if (log_.on()) log_.Push(KVEventKind::kCleared, Tier::kDevice);
      log_.quiet_ = true;
    }
    ~Clearing() { log_.quiet_ = false; }
    Clearing(const Clearing&) = delete;
    Clearing& operator=(const Clearing&) = delete;

   private:
    EventLog& log_;
  };

  // Moves the oldest changes to `events`, as many as there is room for. Returns how many.
  std::int64_t Drain(std::span<KVEvent> events);

  std::uint64_t last_number() const { return number_; }
  std::int64_t waiting() const { return static_cast<std::int64_t>(count_); }
  std::int64_t lost() const { return lost_; }

  // Host memory of a log, and of the names of so many nodes.
  static std::int64_t Bytes(std::int64_t max_events, std::int64_t block_size, std::int64_t nodes);

 private:
  struct Record {
    KVEventKind kind = KVEventKind::kStored;
    Tier tier = Tier::kDevice;
    std::int32_t group = 0;
    std::int32_t num_tokens = 0;
    std::int64_t first_token = 0;
    BlockHash hash;
    BlockHash parent;
  };
  std::size_t Wrap(std::size_t place) const {
    return place < ring_.size() ? place : place - ring_.size();
  }
  std::size_t Push(KVEventKind kind, Tier tier);
  std::size_t Push(KVEventKind kind, Tier tier, std::int32_t group, std::int32_t node,
                   const BlockName& parent);

  const std::size_t block_size_;
  std::vector<Record> ring_;
  std::vector<TokenId> tokens_;  // [ring, block_size]
  std::size_t first_ = 0, count_ = 0;
  std::uint64_t number_ = 0;  // of the newest change
  std::int64_t lost_ = 0;
  bool quiet_ = false;
  std::vector<BlockName> names_;  // by node
};

}  // namespace lariat::blocks
