// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lariat/status.h"

namespace lariat::cpu {

// The threads of a backend: the one that calls, and others that sleep between calls. Threads: calls
// may come from several; while one has the crew, the others work alone and do not wait for it.
class Crew {
 public:
  // threads: >= 1, the calling one among them. Errors: kResourceExhausted.
  static Result<std::unique_ptr<Crew>> Create(int threads);
  ~Crew();

  int threads() const { return static_cast<int>(others_.size()) + 1; }

  // Calls work(first, last) for ranges that make up [0, count), from all threads at once; returns
  // when all are done. Ranges have `grain` items or more, but for the last one; where there is but
  // one, the calling thread works alone.
  template <class Work>
  void Share(std::int64_t count, std::int64_t grain, const Work& work) {
    if (others_.empty() || count <= grain) {
      if (count > 0) work(std::int64_t{0}, count);
      return;
    }
    const Call call = {[](const void* w, std::int64_t first, std::int64_t last) {
                         (*static_cast<const Work*>(w))(first, last);
                       },
                       &work};
    ShareAll(count, grain, call);
  }

 private:
  struct Call {
    void (*run)(const void* work, std::int64_t first, std::int64_t last) = nullptr;
    const void* work = nullptr;
  };
  Crew() = default;
  void ShareAll(std::int64_t count, std::int64_t grain, const Call& call);
  void TakeRanges();
  void Serve();

  std::mutex busy_;  // held by the call that has the crew
  // Of that call: written before `calls_` goes up, read by the others after it.
  Call call_;
  std::int64_t count_ = 0;
  std::int64_t range_ = 0;  // items of a range
  std::atomic<std::int64_t> next_ = 0;
  std::atomic<std::uint32_t> working_ = 0;  // others that are not done yet
  std::atomic<std::uint32_t> calls_ = 0;    // so far
  bool stop_ = false;                       // as call_
  std::vector<std::thread> others_;
};

// Items of a range that is worth a thread's waking, where an item is so many bytes read and as many
// written.
inline std::int64_t GrainOf(std::int64_t item_bytes) {
  constexpr std::int64_t kRangeBytes = std::int64_t{128} << 10;
  return item_bytes <= 0 ? kRangeBytes : (kRangeBytes + item_bytes - 1) / item_bytes;
}

}  // namespace lariat::cpu
