// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

#include "bench_timer.h"

namespace lariat::tools {
namespace {

double WallTime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class CpuTimer : public Timer {
 public:
  explicit CpuTimer(int threads) : alone_(threads == 1) {}

  Status Begin(Workload& workload, Stream stream) override {
    workload_ = &workload;
    stream_ = stream;
    next_ = 0;
    launches_ = 1;
    now_ = alone_ && !workload.multiplies() ? &ThreadTime : &WallTime;
    const Result<double> first = Sample();  // also the warm-up
    if (!first.ok()) return first.status();
    launches_ = static_cast<std::int64_t>(
        std::clamp(kSampleSeconds / std::max(*first, 1e-9), 1.0, 100000.0));
    return Status::Ok();
  }

  Result<double> Sample() override {
    const double begin = now_();
    for (std::int64_t i = 0; i < launches_; ++i) {
      const Status status = workload_->Launch(next_++, stream_);
      if (!status.ok()) return status;
    }
    return (now_() - begin) / static_cast<double>(launches_);
  }

  void End() override { workload_ = nullptr; }

  Result<double> Once(Stream, const std::function<Status()>& call) override {
    const double begin = WallTime();
    const Status status = call();
    if (!status.ok()) return status;
    return WallTime() - begin;
  }

 private:
  static constexpr double kSampleSeconds = 0.01;
  bool alone_;
  double (*now_)() = &WallTime;
  Workload* workload_ = nullptr;
  Stream stream_;
  std::int64_t next_ = 0;
  std::int64_t launches_ = 1;  // of one sample
};

}  // namespace

Result<double> MedianSeconds(Timer& timer, Workload& workload, Stream stream, int count) {
  Status status = timer.Begin(workload, stream);
  std::vector<double> samples;
  while (status.ok() && std::ssize(samples) < count) {
    const Result<double> sample = timer.Sample();
    if (sample.ok()) samples.push_back(*sample);
    Status next = sample.status();
    std::swap(status, next);
  }
  timer.End();
  if (!status.ok()) return status;
  const auto middle = samples.begin() + count / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

std::unique_ptr<Timer> MakeCpuTimer(int threads) { return std::make_unique<CpuTimer>(threads); }

#ifndef LARIAT_BENCH_CUDA
std::unique_ptr<Timer> MakeCudaTimer(Device&) { return nullptr; }
#endif

}  // namespace lariat::tools
