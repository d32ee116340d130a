// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "blocks/planned_step.h"
#include "blocks/prefix_index.h"
#include "blocks/transfer.h"

namespace lariat::blocks {

// The places of the host tier, and which of them may be used for something else. A place is
//   free, or
//   cached: it holds the copy of a node that nobody needs. Those whose node is in the host tier
//     alone, and those whose node is on the device too, are a list each, least recent first; or
//   held: by suspended sequences, transfers, or whoever chose it for something new.
// Leaf first comes for free, as in LruEvictor: nodes leave the device leaf first, and whoever holds
// the place of a node holds the places of all above it and lets go of them deepest first. Cost:
// O(1) per call. No allocation once made. Threads: externally synchronised.
class HostPool {
 public:
  enum List : std::uint8_t { kAlone, kOnDevice };

  explicit HostPool(std::int64_t places);

  std::int64_t total() const { return static_cast<std::int64_t>(places_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t cached(List list) const { return lists_[list].size; }
  std::int64_t held() const { return held_; }

  // A free place, held once; kNoHost: there is none.
  HostId TakeFree();
  // The exact inverse.
  void UndoTakeFree(HostId host);

  // One hold more. Returns the place before it in its list, for Unhold.
  HostId Hold(HostId host, List list);
  // Takes the last Hold of a place that was cached back. Exact inverses, in reverse order.
  void UndoHold(HostId host, List list, HostId previous);
  // One hold less. A place that nobody holds any more is the newest of `list`, or free without a
  // node.
  void Unhold(HostId host, List list);

  // Says whose copy the place holds, and of which side: -1 for the first group. REQUIRES: it is
  // held.
  void SetNode(HostId host, NodeId node, int side = -1) {
    places_[host].node = node;
    places_[host].side = side;
  }
  // The node has no copy any more: a place that nobody holds becomes free.
  void DropNode(HostId host, List list);
  // The node of a place has lost or got its block.
  void Move(HostId host, List from, List to);

  HostId oldest(List list) const { return lists_[list].oldest; }
  HostId next(HostId host) const { return places_[host].next; }
  NodeId node(HostId host) const { return places_[host].node; }
  int side(HostId host) const { return places_[host].side; }
  bool used(HostId host) const { return places_[host].used; }
  std::int32_t holds(HostId host) const { return places_[host].holds; }

  // What is known of the copy; forgotten when the place is free.
  std::uint64_t& batch(HostId host) { return places_[host].batch; }  // that wrote it
  BlockStamp& source(HostId host) { return places_[host].source; }   // that it was copied from
  BlockId& incoming(HostId host) { return places_[host].incoming; }  // a transfer's, or kNoBlock
  bool bad(HostId host) const { return places_[host].bad; }
  void SetBad(HostId host) { places_[host].bad = true; }

  // Free places, the next one to take first.
  std::vector<HostId> FreeList() const { return {free_.rbegin(), free_.rend()}; }

 private:
  struct Place {
    NodeId node = kNoNode;
    std::int32_t side = -1;
    std::int32_t holds = 0;
    HostId previous = kNoHost;  // in its list
    HostId next = kNoHost;
    std::uint64_t batch = 0;
    BlockStamp source;
    BlockId incoming = kNoBlock;
    bool used = false;
    bool bad = false;  // its copy failed, or is one of rows with a device fault
  };
  struct Ends {
    HostId oldest = kNoHost;
    HostId newest = kNoHost;
    std::int64_t size = 0;
  };
  void Free(HostId host);
  HostId Remove(HostId host, List list);
  void InsertAfter(HostId host, List list, HostId previous);

  std::vector<Place> places_;
  std::vector<HostId> free_;  // the next one to take last
  Ends lists_[2];
  std::int64_t held_ = 0;
};

}  // namespace lariat::blocks
