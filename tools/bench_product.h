// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "bench_timer.h"
#include "bench_workload.h"
#include "lariat/device.h"

namespace lariat::tools {

// One matrix product alone, by the vendor's library: what the operations that hold products are
// compared with.
class ProductWorkload : public Workload {
 public:
  // sets: copies of the matrices to rotate over
  ProductWorkload(const Product& product, DType dtype, std::int64_t sets)
      : Workload(sets == 1), product_(product), dtype_(dtype), sets_(sets) {}

  std::string op() const override { return "product"; }
  DType dtype() const override { return dtype_; }
  std::int64_t bytes() const override {
    return (product_.rows * product_.inner + product_.batch * product_.columns * product_.inner +
            CElements()) *
           static_cast<std::int64_t>(SizeOf(dtype_));
  }
  std::int64_t flops() const override {
    return 2 * product_.batch * product_.rows * product_.columns * product_.inner;
  }
  std::int64_t sets() const override { return sets_; }
  Status Prepare(Device& device, Stream stream) override;
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override { return {}; }
  Status Complete() override { return Status::Ok(); }
  double set_size() const override { return static_cast<double>(bytes()); }

  const Product& product() const { return product_; }
  void* a(std::int64_t set) const { return At(a_, set * product_.rows * product_.inner); }
  void* w(std::int64_t set) const {
    return At(w_, set * product_.batch * product_.columns * product_.inner);
  }
  void* c(std::int64_t set) const { return At(c_, set * CElements()); }

 private:
  std::int64_t CElements() const { return product_.batch * product_.rows * product_.columns; }
  void* At(const DeviceBuffer& buffer, std::int64_t element) const {
    return static_cast<std::byte*>(buffer.data()) +
           element * static_cast<std::int64_t>(SizeOf(dtype_));
  }

  Product product_;
  DType dtype_;
  std::int64_t sets_;
  std::optional<Device> device_;
  DeviceBuffer a_, w_, c_;
};

// By CBLAS, in fp32.
std::unique_ptr<Workload> MakeCblasWorkload(const Product& product, std::int64_t sets);
// By one of the algorithms that cuBLASLt proposes; null where there are not that many, and in a
// build without CUDA.
std::unique_ptr<Workload> MakeCublasWorkload(const Product& product, DType dtype, std::int64_t sets,
                                             int candidate);

// The workload of the fastest way, not prepared. Errors: kUnsupported: there is none.
Result<std::unique_ptr<Workload>> FastestWay(Device& device, const Product& product, DType dtype,
                                             std::int64_t sets, Stream stream);

// The products of one workload, each by its fastest way: CBLAS on the CPU, else the best of
// cuBLASLt's algorithms. They are sampled by turns with the workload, since a device that
// multiplies for long runs at another clock.
class ProductClock {
 public:
  // Finds the fastest ways.
  //   workload: configured; its products, type and sets are used
  static Result<ProductClock> Create(Device& device, const Workload& workload, Stream stream);

  // Seconds of all products together, one sample.
  Result<double> Sample();

 private:
  struct Run {
    std::unique_ptr<Workload> workload;
    std::unique_ptr<Timer> timer;
  };
  std::vector<Run> runs_;
};

}  // namespace lariat::tools
