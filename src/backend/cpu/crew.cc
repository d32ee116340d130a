// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/crew.h"

#include <algorithm>
#include <new>
#include <string>
#include <system_error>

namespace lariat::cpu {
namespace {

// Ranges per thread: more than one, so that a thread that is held up leaves work to the others.
constexpr std::int64_t kRangesPerThread = 4;

}  // namespace

Result<std::unique_ptr<Crew>> Crew::Create(int threads) {
  std::unique_ptr<Crew> crew(new Crew);
  try {
    crew->others_.reserve(static_cast<std::size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) crew->others_.emplace_back([c = crew.get()] { c->Serve(); });
  } catch (const std::system_error&) {  // the ones that there are end with the crew
    return ResourceExhausted("cpu_threads = " + std::to_string(threads) +
                             ": no room for so many threads");
  }
  return crew;
}

Crew::~Crew() {
  stop_ = true;
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Crew::TakeRanges() {
  for (;;) {
    const std::int64_t first = next_.fetch_add(range_, std::memory_order_relaxed);
    if (first >= count_) return;
    call_.run(call_.work, first, std::min(first + range_, count_));
  }
}

void Crew::Serve() {
  for (std::uint32_t seen = 0;;) {
    calls_.wait(seen, std::memory_order_acquire);
    seen = calls_.load(std::memory_order_acquire);
    if (stop_) return;
    TakeRanges();
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

void Crew::ShareAll(std::int64_t count, std::int64_t grain, const Call& call) {
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock.owns_lock()) return call.run(call.work, 0, count);
  call_ = call;
  count_ = count;
  range_ = std::max(grain, count / (kRangesPerThread * threads()) + 1);
  next_.store(0, std::memory_order_relaxed);
  working_.store(static_cast<std::uint32_t>(others_.size()), std::memory_order_relaxed);
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  TakeRanges();
  for (std::uint32_t left = working_.load(std::memory_order_acquire); left != 0;
       left = working_.load(std::memory_order_acquire)) {
    working_.wait(left, std::memory_order_acquire);
  }
}

}  // namespace lariat::cpu
