// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <queue>
#include <vector>

#include "lariat/trace.h"

namespace lariat::session {

// Says which request of a trace comes next, and when. Times count from the first arrival.
// Where turns are followed, a request with a parent comes when that one has ended, at its own time
// or then, whichever is later.
class Arrivals {
 public:
  enum class Order : std::uint8_t {
    kTime,   // by arrival, those of equal arrival by index
    kTrace,  // by index, whatever the times
  };
  struct Arrival {
    double time_s = 0;  // kTrace: 0
    std::int64_t index = 0;
  };

  Arrivals(const Trace& trace, Order order, bool follow_turns);

  // False: all have come that can before another request ends.
  bool ready() const;
  // REQUIRES: ready().
  Arrival next() const;
  Arrival Take();

  // Request `index` has ended; the turns that follow it may come.
  void Ended(std::int64_t index, double time_s);

 private:
  static constexpr std::int64_t kNone = -1;
  struct Later {
    bool operator()(const Arrival& a, const Arrival& b) const { return Before(b, a); }
  };

  static bool Before(const Arrival& a, const Arrival& b);
  Arrival FirstTurn() const;
  void SkipLaterTurns();
  double OwnTime(std::int64_t index) const;

  const Trace& trace_;
  const Order order_;
  const double start_s_;
  std::int64_t first_turn_ = 0;  // the next request that waits for none; size(): no more
  std::priority_queue<Arrival, std::vector<Arrival>, Later> released_;  // turns that may come
  // The turns of a request, as lists through the trace; empty where turns are not followed.
  std::vector<std::int64_t> turn_;     // by request: one of its turns, or kNone
  std::vector<std::int64_t> sibling_;  // by request: another turn of its parent, or kNone
};

}  // namespace lariat::session
