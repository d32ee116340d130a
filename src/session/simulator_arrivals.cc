// SPDX-License-Identifier: Apache-2.0
#include "session/simulator_arrivals.h"

#include <algorithm>
#include <cassert>

namespace lariat::session {

Arrivals::Arrivals(const Trace& trace, Order order, bool follow_turns)
    : trace_(trace), order_(order), start_s_(trace.requests().front().arrival_s) {
  if (!follow_turns) return;
  turn_.assign(trace.requests().size(), kNone);
  sibling_.assign(trace.requests().size(), kNone);
  for (const TraceRequest& request : trace.requests()) {
    if (request.parent < 0) continue;
    assert(request.parent < request.index);
    std::int64_t& turn = turn_[static_cast<std::size_t>(request.parent)];
    sibling_[static_cast<std::size_t>(request.index)] = turn;
    turn = request.index;
  }
  SkipLaterTurns();
}

bool Arrivals::Before(const Arrival& a, const Arrival& b) {
  return a.time_s < b.time_s || (a.time_s == b.time_s && a.index < b.index);
}

double Arrivals::OwnTime(std::int64_t index) const {
  if (order_ == Order::kTrace) return 0;
  return trace_.requests()[static_cast<std::size_t>(index)].arrival_s - start_s_;
}

Arrivals::Arrival Arrivals::FirstTurn() const {
  return {.time_s = OwnTime(first_turn_), .index = first_turn_};
}

void Arrivals::SkipLaterTurns() {
  while (!turn_.empty() && first_turn_ < trace_.size() &&
         trace_.requests()[static_cast<std::size_t>(first_turn_)].parent >= 0) {
    ++first_turn_;
  }
}

bool Arrivals::ready() const { return first_turn_ < trace_.size() || !released_.empty(); }

Arrivals::Arrival Arrivals::next() const {
  assert(ready());
  if (first_turn_ == trace_.size()) return released_.top();
  const Arrival first = FirstTurn();
  return !released_.empty() && Before(released_.top(), first) ? released_.top() : first;
}

Arrivals::Arrival Arrivals::Take() {
  const Arrival taken = next();
  if (taken.index == first_turn_) {
    ++first_turn_;
    SkipLaterTurns();
  } else {
    released_.pop();
  }
  return taken;
}

void Arrivals::Ended(std::int64_t index, double time_s) {
  if (turn_.empty()) return;
  for (std::int64_t turn = turn_[static_cast<std::size_t>(index)]; turn != kNone;
       turn = sibling_[static_cast<std::size_t>(turn)]) {
    const double own = OwnTime(turn);
    released_.push(
        {.time_s = order_ == Order::kTrace ? own : std::max(own, time_s), .index = turn});
  }
}

}  // namespace lariat::session
