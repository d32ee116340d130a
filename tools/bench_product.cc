// SPDX-License-Identifier: Apache-2.0
#include "bench_product.h"

#include <cblas.h>

#include <algorithm>
#include <random>

#include "bench_data.h"

namespace lariat::tools {
namespace {

constexpr int kSamples = 5;

// The product in fp32 by CBLAS, on host memory.
class CblasWorkload final : public ProductWorkload {
 public:
  using ProductWorkload::ProductWorkload;

  Status Launch(std::int64_t i, Stream) override {
    const std::int64_t set = i % sets();
    const auto n = [](std::int64_t value) { return static_cast<blasint>(value); };
    const Product& p = product();
    for (std::int64_t m = 0; m < p.batch; ++m) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, p.out_in ? CblasTrans : CblasNoTrans, n(p.rows),
                  n(p.columns), n(p.inner), 1.0F, static_cast<const float*>(a(set)), n(p.inner),
                  static_cast<const float*>(w(set)) + m * p.columns * p.inner,
                  n(p.out_in ? p.inner : p.columns), 0.0F,
                  static_cast<float*>(c(set)) + m * p.rows * p.columns, n(p.columns));
    }
    return Status::Ok();
  }
};

Result<double> MedianSeconds(Device& device, Timer& timer, Workload& workload, Stream stream) {
  Status status = workload.Prepare(device, stream);
  if (status.ok()) status = timer.Begin(workload, stream);
  std::vector<double> samples;
  for (int i = 0; i < kSamples && status.ok(); ++i) {
    const Result<double> sample = timer.Sample();
    if (sample.ok()) samples.push_back(*sample);
    Status next = sample.status();
    std::swap(status, next);
  }
  timer.End();
  if (!status.ok()) return status;
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

}  // namespace

Status ProductWorkload::Prepare(Device& device, Stream stream) {
  std::mt19937_64 random(3);
  const Status a = UploadTo(
      device, RandomElements(dtype_, sets_ * product_.rows * product_.inner, random), stream, a_);
  if (!a.ok()) return a;
  const Status w = UploadTo(
      device,
      RandomElements(dtype_, sets_ * product_.batch * product_.columns * product_.inner, random),
      stream, w_);
  if (!w.ok()) return w;
  Result<DeviceBuffer> c = device.Allocate(
      MemoryKind::kDevice, static_cast<std::size_t>(sets_ * CElements()) * SizeOf(dtype_));
  if (c.ok()) c_ = *std::move(c);
  return c.status();
}

std::unique_ptr<Workload> MakeCblasWorkload(const Product& product, std::int64_t sets) {
  return std::make_unique<CblasWorkload>(product, DType::kFP32, sets);
}

namespace {

// The workload of the fastest way, not prepared.
Result<std::unique_ptr<Workload>> FastestWay(Device& device, const Product& product, DType dtype,
                                             std::int64_t sets, Stream stream) {
  if (device.kind() == BackendKind::kCpu) return MakeCblasWorkload(product, sets);
  double least = 0;
  int fastest = -1;
  for (int candidate = 0;; ++candidate) {
    const std::unique_ptr<Workload> workload = MakeCublasWorkload(product, dtype, sets, candidate);
    if (workload == nullptr) break;
    const std::unique_ptr<Timer> timer = MakeCudaTimer(device);
    const Result<double> seconds = MedianSeconds(device, *timer, *workload, stream);
    if (!seconds.ok() || (fastest >= 0 && *seconds >= least)) continue;
    least = *seconds;
    fastest = candidate;
  }
  if (fastest < 0) return Unsupported("cuBLASLt proposes no algorithm for a product");
  return MakeCublasWorkload(product, dtype, sets, fastest);
}

}  // namespace

Result<ProductClock> ProductClock::Create(Device& device, const Workload& workload, Stream stream) {
  ProductClock clock;
  for (const Product& product : workload.products()) {
    Result<std::unique_ptr<Workload>> way =
        FastestWay(device, product, workload.dtype(), workload.sets(), stream);
    if (!way.ok()) return way.status();
    Run run = {*std::move(way),
               device.kind() == BackendKind::kCuda ? MakeCudaTimer(device) : MakeCpuTimer()};
    Status status = run.workload->Prepare(device, stream);
    if (status.ok()) status = run.timer->Begin(*run.workload, stream);
    if (!status.ok()) return status;
    clock.runs_.push_back(std::move(run));
  }
  return clock;
}

Result<double> ProductClock::Sample() {
  double seconds = 0;
  for (Run& run : runs_) {
    const Result<double> sample = run.timer->Sample();
    if (!sample.ok()) return sample;
    seconds += *sample;
  }
  return seconds;
}

#ifndef LARIAT_BENCH_CUDA
std::unique_ptr<Workload> MakeCublasWorkload(const Product&, DType, std::int64_t, int) {
  return nullptr;
}
#endif

}  // namespace lariat::tools
