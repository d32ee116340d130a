// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench_shape.h"
#include "lariat/device.h"
#include "lariat/status.h"

namespace lariat::tools {

// One operation at one shape: its buffers, its launches, and a check of what it gives. A hot
// workload has one working set; a cold one rotates over sets of kColdBytes together, so that the
// next launch finds nothing of its own in a cache.
class Workload {
 public:
  static constexpr std::int64_t kColdBytes = 220'000'000;
  static constexpr std::int64_t kMaxSets = 4096;

  explicit Workload(bool hot) : hot_(hot) {}
  virtual ~Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  virtual std::string op() const = 0;
  virtual DType dtype() const = 0;
  // Reads a --shape text over the defaults. To be called first, with "" too.
  Status Configure(std::string_view text) {
    const Status read = ReadShape(text, fields());
    return read.ok() ? Complete() : read;
  }
  std::string shape() { return ShapeText(fields()); }
  // Of one launch: bytes that must move, and floating-point operations.
  virtual std::int64_t bytes() const = 0;
  virtual std::int64_t flops() const = 0;

  // Makes the buffers and fills them with random data.
  // Errors: kInvalidArgument (too small to be cold), kResourceExhausted, kDeviceError.
  virtual Status Prepare(Device& device, Stream stream) = 0;
  // Launches on set i % sets().
  virtual Status Launch(std::int64_t i, Stream stream) = 0;
  // Runs the first set and compares the result with a plain loop. To be called once, before any
  // other launch. Errors: kCorruptData, naming the first element that differs.
  virtual Status Check(Stream stream) = 0;

  bool hot() const { return hot_; }
  std::int64_t sets() const {
    return hot_ ? 1 : std::max<std::int64_t>(1, (kColdBytes + bytes() - 1) / bytes());
  }

 protected:
  virtual std::vector<ShapeField> fields() = 0;
  // Fills in what depends on other fields, and checks them together.
  virtual Status Complete() = 0;

 private:
  bool hot_;
};

std::unique_ptr<Workload> MakeAppendWorkload(bool hot);
std::unique_ptr<Workload> MakeRopeUpdateWorkload(bool hot);

}  // namespace lariat::tools
