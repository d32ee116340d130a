// SPDX-License-Identifier: Apache-2.0
#include "bench_product.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "bench_data.h"

namespace lariat::tools {
namespace {

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

}  // namespace

Status ProductWorkload::Prepare(Device& device, Stream stream) {
  device_ = device;
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

// A few elements of a few rows of each matrix: all would take the host minutes. The sum of n terms
// is off by n e of their sizes, e = 2^-24, where it is made in fp32, and rounded once to the type.
// A ceiling's algorithm may also add up parts in the type itself: parts of random terms are about
// as large as the root of their squares' sum, r, and there are less than 64. Another element's sum
// differs by about r, so of 256 elements that are wrong many are told.
Status ProductWorkload::Check(Stream stream) {
  if (const Status s = Launch(0, stream); !s.ok()) return s;
  const Product& p = product_;
  const auto size = static_cast<std::int64_t>(SizeOf(dtype_));
  const auto get = [&](const DeviceBuffer& buffer, std::int64_t elements) {
    return Download(*device_, buffer, static_cast<std::size_t>(elements * size), stream);
  };
  const auto a = get(a_, p.rows * p.inner), c = get(c_, CElements());
  const auto w = get(w_, p.batch * p.columns * p.inner);
  for (const Status& status : {a.status(), c.status(), w.status()}) {
    if (!status.ok()) return status;
  }
  const std::int64_t rows = std::min(p.rows, kCheckedTokens),
                     columns = std::min<std::int64_t>(p.columns, 64);
  const auto spread = [](std::int64_t i, std::int64_t taken, std::int64_t of) {
    return taken == 1 ? 0 : i * (of - 1) / (taken - 1);
  };
  for (std::int64_t m = 0; m < p.batch; ++m) {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t row = spread(i / columns, rows, p.rows);
      const std::int64_t column = spread(i % columns, columns, p.columns);
      double sum = 0, terms = 0, squares = 0;
      for (std::int64_t k = 0; k < p.inner; ++k) {
        const std::int64_t at = p.out_in ? column * p.inner + k : k * p.columns + column;
        const double term = LoadElement(dtype_, a->data(), row * p.inner + k) *
                            LoadElement(dtype_, w->data(), m * p.columns * p.inner + at);
        sum += term;
        terms += std::abs(term);
        squares += term * term;
      }
      const double got = LoadElement(dtype_, c->data(), (m * p.rows + row) * p.columns + column);
      const double error = static_cast<double>(p.inner + 1) * 0x1p-24 * terms;
      const double parts = std::abs(sum) + error + 64 * std::sqrt(squares);
      if (std::abs(got - sum) <= error + RoundingUnit(dtype_) * parts) continue;
      return CorruptData("product: element " + std::to_string(column) + " of row " +
                         std::to_string(row) + " is " + std::to_string(got) +
                         ", by the plain loop " + std::to_string(sum));
    }
  }
  return Status::Ok();
}

std::unique_ptr<Workload> MakeCblasWorkload(const Product& product, std::int64_t sets) {
  return std::make_unique<CblasWorkload>(product, DType::kFP32, sets);
}

Result<std::unique_ptr<Workload>> FastestWay(Device& device, const Product& product, DType dtype,
                                             std::int64_t sets, Stream stream) {
  if (device.kind() == BackendKind::kCpu) return MakeCblasWorkload(product, sets);
  double least = 0;
  int fastest = -1;
  for (int candidate = 0;; ++candidate) {
    const std::unique_ptr<Workload> workload = MakeCublasWorkload(product, dtype, sets, candidate);
    if (workload == nullptr) break;
    const std::unique_ptr<Timer> timer = MakeCudaTimer(device);
    const Status prepared = workload->Prepare(device, stream);
    if (!prepared.ok()) continue;
    const Result<double> seconds = MedianSeconds(*timer, *workload, stream, 5);
    if (!seconds.ok() || (fastest >= 0 && *seconds >= least)) continue;
    least = *seconds;
    fastest = candidate;
  }
  if (fastest < 0) return Unsupported("cuBLASLt proposes no algorithm for a product");
  return MakeCublasWorkload(product, dtype, sets, fastest);
}

Result<ProductClock> ProductClock::Create(Device& device, const Workload& workload, Stream stream) {
  ProductClock clock;
  for (const Product& product : workload.products()) {
    Result<std::unique_ptr<Workload>> way =
        FastestWay(device, product, workload.dtype(), workload.sets(), stream);
    if (!way.ok()) return way.status();
    Run run = {*std::move(way),
               device.kind() == BackendKind::kCuda ? MakeCudaTimer(device) : MakeCpuTimer()};
    Status status = run.workload->Prepare(device, stream);
    if (status.ok()) status = run.workload->Check(stream);
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
