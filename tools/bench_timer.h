// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>

#include "bench_workload.h"
#include "lariat/device.h"
#include "lariat/status.h"

namespace lariat::tools {

// Takes samples of what a launch costs on one device.
class Timer {
 public:
  virtual ~Timer() = default;

  // Gets ready to time a workload that is prepared and checked.
  virtual Status Begin(Workload& workload, Stream stream) = 0;
  // Seconds per launch, over one sample.
  virtual Result<double> Sample() = 0;
  // Lets go of the workload.
  virtual void End() = 0;

  // Seconds of what one call puts on an idle stream, on the device's clock: it is in the queue
  // before the device comes to it, so the host's part does not count. On the CPU, of the call.
  virtual Result<double> Once(Stream stream, const std::function<Status()>& call) = 0;
};

// Calls one after another: by the CPU time of the calling thread where it works alone, so that what
// else runs on the machine does not count; else on the host's clock.
std::unique_ptr<Timer> MakeCpuTimer(int threads);
// Replays of a CUDA graph of launches, or calls where those cannot be captured, on the device's
// clock. Null in a build without CUDA.
std::unique_ptr<Timer> MakeCudaTimer(Device& device);
inline std::unique_ptr<Timer> MakeTimer(Device& device) {
  return device.kind() == BackendKind::kCuda ? MakeCudaTimer(device)
                                             : MakeCpuTimer(device.cpu_threads());
}

// The median of so many samples of a workload that is prepared.
Result<double> MedianSeconds(Timer& timer, Workload& workload, Stream stream, int samples);

}  // namespace lariat::tools
