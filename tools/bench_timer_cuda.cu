// SPDX-License-Identifier: Apache-2.0
// Times launches as a server makes them: as nodes of a replayed CUDA graph. A first replay keeps
// the device busy while the timed ones are put into the queue, so the host's part is not measured.
// What cannot be captured is timed between two events around calls, the host's part included.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "bench_timer.h"

namespace lariat::tools {
namespace {

constexpr double kCallsSeconds = 0.06;                      // a sample of calls
constexpr std::size_t kBusyBytes = std::size_t{256} << 20;  // whose filling takes some 60 us

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  return DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

class CudaTimer : public Timer {
 public:
  CudaTimer() = default;
  ~CudaTimer() override {
    End();
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (busy_ != nullptr) cudaFree(busy_);
  }

  Status Begin(Workload& workload, Stream stream) override;
  Result<double> Sample() override;
  void End() override;
  Result<double> Once(Stream stream, const std::function<Status()>& call) override;

 private:
  // Seconds between two calls' places on the stream.
  template <class Work>
  Result<double> Seconds(const Work& work);
  // Of each of so many calls, one behind the other.
  Result<double> SecondsPerCall(std::int64_t calls);
  Status Events() {
    if (begin_ != nullptr) return Status::Ok();
    const cudaError_t begin = cudaEventCreate(&begin_);
    if (begin != cudaSuccess) return ToStatus(begin, "cudaEventCreate");
    return ToStatus(cudaEventCreate(&end_), "cudaEventCreate");
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* busy_ = nullptr;  // [kBusyBytes], what keeps the device busy before Once
  cudaGraphExec_t graph_ = nullptr;
  Workload* called_ = nullptr;  // that is timed as calls
  std::int64_t nodes_ = 0;      // launches in the graph; calls of a sample
  std::int64_t replays_ = 1;    // of one sample
};

template <class Work>
Result<double> CudaTimer::Seconds(const Work& work) {
  cudaEventRecord(begin_, stream_);
  work();
  cudaEventRecord(end_, stream_);
  const cudaError_t error = cudaEventSynchronize(end_);
  if (error != cudaSuccess) return ToStatus(error, "timed work");
  float milliseconds = 0;
  cudaEventElapsedTime(&milliseconds, begin_, end_);
  return static_cast<double>(milliseconds) / 1e3;
}

Result<double> CudaTimer::SecondsPerCall(std::int64_t calls) {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  if (error != cudaSuccess) return ToStatus(error, "the calls before");
  Status launched;
  const Result<double> seconds = Seconds([&] {
    for (std::int64_t i = 0; i < calls && launched.ok(); ++i) {
      Status next = called_->Launch(i, Stream{stream_});
      std::swap(launched, next);
    }
  });
  if (!launched.ok()) return launched;
  if (!seconds.ok()) return seconds;
  return *seconds / static_cast<double>(calls);
}

// 400 nodes where a launch is short, so many that a replay takes about 2 ms where it is long, and
// each working set at least once.
Status CudaTimer::Begin(Workload& workload, Stream stream) {
  stream_ = static_cast<cudaStream_t>(stream.handle);
  const Status events = Events();
  if (!events.ok()) return events;
  if (!workload.capturable()) {
    called_ = &workload;
    const Result<double> warm_up = SecondsPerCall(1);
    if (!warm_up.ok()) return warm_up.status();
    const Result<double> once = SecondsPerCall(1);
    if (!once.ok()) return once.status();
    nodes_ = static_cast<std::int64_t>(std::clamp(kCallsSeconds / *once, 1.0, 1000.0));
    return Status::Ok();
  }
  const double guess = 1e-6 + static_cast<double>(workload.bytes()) / 4e12;
  nodes_ =
      std::max(workload.sets(), static_cast<std::int64_t>(std::clamp(2e-3 / guess, 5.0, 400.0)));
  replays_ = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(2e-3 / (guess * static_cast<double>(nodes_))));

  cudaGraph_t graph = nullptr;
  const cudaError_t began = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (began != cudaSuccess) return ToStatus(began, "cudaStreamBeginCapture");
  Status launched;
  for (std::int64_t i = 0; i < nodes_ && launched.ok(); ++i) {
    Status next = workload.Launch(i, stream);
    std::swap(launched, next);
  }
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  if (!launched.ok()) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    return launched;
  }
  if (ended != cudaSuccess) return ToStatus(ended, "cudaStreamEndCapture");
  const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  if (made != cudaSuccess) return ToStatus(made, "cudaGraphInstantiate");
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(graph_, stream_);
  return ToStatus(cudaStreamSynchronize(stream_), "the first replays");
}

Result<double> CudaTimer::Sample() {
  if (called_ != nullptr) return SecondsPerCall(nodes_);
  cudaGraphLaunch(graph_, stream_);
  const Result<double> seconds = Seconds([&] {
    for (std::int64_t i = 0; i < replays_; ++i) cudaGraphLaunch(graph_, stream_);
  });
  if (!seconds.ok()) return seconds;
  return *seconds / static_cast<double>(nodes_ * replays_);
}

void CudaTimer::End() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  graph_ = nullptr;
  called_ = nullptr;
}

Result<double> CudaTimer::Once(Stream stream, const std::function<Status()>& call) {
  stream_ = static_cast<cudaStream_t>(stream.handle);
  if (Status status = Events(); !status.ok()) return status;
  if (busy_ == nullptr) {
    const cudaError_t made = cudaMalloc(&busy_, kBusyBytes);
    if (made != cudaSuccess) return ToStatus(made, "cudaMalloc");
  }
  cudaMemsetAsync(busy_, 0, kBusyBytes, stream_);
  Status called;
  const Result<double> seconds = Seconds([&] {
    Status status = call();
    std::swap(called, status);
  });
  return called.ok() ? seconds : Result<double>(called);
}

}  // namespace

std::unique_ptr<Timer> MakeCudaTimer(Device& device) {
  return device.kind() == BackendKind::kCuda ? std::make_unique<CudaTimer>() : nullptr;
}

}  // namespace lariat::tools
