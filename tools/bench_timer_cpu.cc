// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "bench_data.h"
#include "bench_timer.h"

namespace lariat::tools {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class CpuTimer : public Timer {
 public:
  Result<double> CopyCeiling(Stream) override {
    constexpr std::int64_t kBytes = 256 << 20;
    std::mt19937_64 random(2);
    const std::vector<std::byte> from = RandomElements(DType::kFP32, kBytes / 4, random);
    std::vector<std::byte> to(from.size());
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const double begin = Now();
      std::memcpy(to.data(), from.data(), from.size());
      best = std::max(best, 2.0 * static_cast<double>(kBytes) / (Now() - begin));
    }
    // Reads the copy, or it need not have been made.
    return to.back() == from.back() ? best : 0.0;
  }

  Status Begin(Workload& workload, Stream stream) override {
    workload_ = &workload;
    stream_ = stream;
    next_ = 0;
    launches_ = 1;
    const Result<double> first = Sample();  // also the warm-up
    if (!first.ok()) return first.status();
    launches_ = static_cast<std::int64_t>(
        std::clamp(kSampleSeconds / std::max(*first, 1e-9), 1.0, 100000.0));
    return Status::Ok();
  }

  Result<double> Sample() override {
    const double begin = Now();
    for (std::int64_t i = 0; i < launches_; ++i) {
      const Status status = workload_->Launch(next_++, stream_);
      if (!status.ok()) return status;
    }
    return (Now() - begin) / static_cast<double>(launches_);
  }

  void End() override { workload_ = nullptr; }

 private:
  static constexpr double kSampleSeconds = 0.01;
  Workload* workload_ = nullptr;
  Stream stream_;
  std::int64_t next_ = 0;
  std::int64_t launches_ = 1;  // of one sample
};

}  // namespace

std::unique_ptr<Timer> MakeCpuTimer() { return std::make_unique<CpuTimer>(); }

#ifndef LARIAT_BENCH_CUDA
std::unique_ptr<Timer> MakeCudaTimer(Device&) { return nullptr; }
#endif

}  // namespace lariat::tools
