// SPDX-License-Identifier: Apache-2.0
#include "blocks/host_pool.h"

#include <cassert>

namespace lariat::blocks {

HostPool::HostPool(std::int64_t places) : places_(static_cast<std::size_t>(places)) {
  free_.reserve(places_.size());
  for (std::int64_t host = places - 1; host >= 0; --host) {
    free_.push_back(static_cast<HostId>(host));
  }
}

HostId HostPool::TakeFree() {
  if (free_.empty()) return kNoHost;
  const HostId host = free_.back();
  free_.pop_back();
  places_[host].used = true;
  places_[host].holds = 1;
  ++held_;
  return host;
}

void HostPool::UndoTakeFree(HostId host) {
  assert(places_[host].holds == 1 && places_[host].node == kNoNode);
  --held_;
  Free(host);
}

void HostPool::Free(HostId host) {
  places_[host] = {};
  free_.push_back(host);
}

HostId HostPool::Hold(HostId host, List list) {
  Place& place = places_[host];
  assert(place.used);
  if (place.holds++ > 0) return kNoHost;
  ++held_;
  return Remove(host, list);
}

void HostPool::UndoHold(HostId host, List list, HostId previous) {
  if (--places_[host].holds > 0) return;
  --held_;
  InsertAfter(host, list, previous);
}

void HostPool::Unhold(HostId host, List list) {
  Place& place = places_[host];
  assert(place.holds > 0);
  if (--place.holds > 0) return;
  --held_;
  if (place.node == kNoNode) return Free(host);
  InsertAfter(host, list, lists_[list].newest);
}

void HostPool::DropNode(HostId host, List list) {
  Place& place = places_[host];
  place.node = kNoNode;
  if (place.holds > 0) return;
  Remove(host, list);
  Free(host);
}

void HostPool::Move(HostId host, List from, List to) {
  if (places_[host].holds > 0) return;
  Remove(host, from);
  InsertAfter(host, to, lists_[to].newest);
}

HostId HostPool::Remove(HostId host, List list) {
  Place& place = places_[host];
  Ends& ends = lists_[list];
  const HostId previous = place.previous;
  (previous == kNoHost ? ends.oldest : places_[previous].next) = place.next;
  (place.next == kNoHost ? ends.newest : places_[place.next].previous) = previous;
  place.previous = place.next = kNoHost;
  --ends.size;
  return previous;
}

void HostPool::InsertAfter(HostId host, List list, HostId previous) {
  Ends& ends = lists_[list];
  const HostId next = previous == kNoHost ? ends.oldest : places_[previous].next;
  places_[host].previous = previous;
  places_[host].next = next;
  (previous == kNoHost ? ends.oldest : places_[previous].next) = host;
  (next == kNoHost ? ends.newest : places_[next].previous) = host;
  ++ends.size;
}

}  // namespace lariat::blocks
