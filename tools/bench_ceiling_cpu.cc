// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "bench_ceiling.h"

namespace lariat::tools {
namespace {

// The calling thread and others that wait between calls; each takes an equal part.
class Crew {
 public:
  explicit Crew(int threads) : count_(threads), begin_(threads), end_(threads) {
    for (int i = 1; i < threads; ++i) {
      others_.emplace_back([this, i](const std::stop_token& stop) {
        for (;;) {
          begin_.arrive_and_wait();
          if (stop.stop_requested()) return;
          (*work_)(i);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~Crew() {
    for (std::jthread& other : others_) other.request_stop();
    begin_.arrive_and_wait();
  }

  int count() const { return count_; }
  void Run(const std::function<void(int)>& work) {
    work_ = &work;
    begin_.arrive_and_wait();
    work(0);
    end_.arrive_and_wait();
  }

 private:
  int count_;
  std::barrier<> begin_, end_;
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::jthread> others_;  // last: they end before what they use
};

// Bytes [first, last) of part i of so many, whole pages but for the last one.
struct Part {
  Part(std::int64_t bytes, int i, int count)
      : first(bytes / 4096 * i / count * 4096),
        last(i + 1 == count ? bytes : bytes / 4096 * (i + 1) / count * 4096) {}
  std::size_t size() const { return static_cast<std::size_t>(last - first); }
  std::int64_t first, last;
};

// What is smaller one thread copies, as it wakes no other in time.
constexpr std::int64_t kShared = std::int64_t{128} << 10;

class CpuCalls final : public CeilingCalls {
 public:
  explicit CpuCalls(int threads) : crew_(threads) {}

  Status Copy(void* to, const void* from, std::int64_t bytes, bool, Stream) override {
    if (bytes == 0) return Status::Ok();  // of no memory at all
    if (bytes < kShared) {
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
      return Status::Ok();
    }
    crew_.Run([&](int i) {
      const Part part(bytes, i, crew_.count());
      std::memcpy(static_cast<std::byte*>(to) + part.first,
                  static_cast<const std::byte*>(from) + part.first, part.size());
    });
    return Status::Ok();
  }

  Status Read(const void* from, std::int64_t bytes, std::uint32_t* sums, Stream) override {
    crew_.Run([&](int i) {
      const Part part(bytes, i, crew_.count());
      const auto* const words = static_cast<const std::uint32_t*>(from);
      std::uint32_t sum[64] = {};  // more than one register of the widest
      for (std::int64_t at = part.first / 4; at < part.last / 4; at += 64) {
        for (int lane = 0; lane < 64; ++lane) sum[lane] ^= words[at + lane];
      }
      sums[i] = 0;
      for (const std::uint32_t word : sum) sums[i] ^= word;
    });
    return Status::Ok();
  }
  std::int64_t ReadSums(std::int64_t) const override { return crew_.count(); }

  Status Write(void* to, std::int64_t bytes, std::uint32_t word, Stream) override {
    crew_.Run([&](int i) {
      const Part part(bytes, i, crew_.count());
      std::fill_n(static_cast<std::uint32_t*>(to) + part.first / 4, part.size() / 4, word);
    });
    return Status::Ok();
  }

  Status Nothing(bool, Stream) override {
    crew_.Run([](int) {});
    return Status::Ok();
  }

 private:
  Crew crew_;
};

}  // namespace

std::unique_ptr<CeilingCalls> MakeCpuCeilingCalls(int threads) {
  return std::make_unique<CpuCalls>(threads);
}

}  // namespace lariat::tools
