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

// A matrix product of an operation, [rows, inner] x [inner, columns], `batch` times with weights of
// their own.
struct Product {
  std::int64_t rows = 0, columns = 0, inner = 0, batch = 1;
  bool out_in = false;  // the weights lie as [columns, inner]
};

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
  // Errors: kInvalidArgument, kUnsupported: a key or value. kResourceExhausted: it takes more
  // memory
  //   than the machine has.
  Status Configure(std::string_view text);
  std::string shape() { return ShapeText(fields()); }
  // Bytes that Prepare takes, about: what the host makes, and what the device holds.
  double memory() const;
  // What to answer where there is no room for that.
  Status NoRoom() const;
  // Of one launch: bytes that must move, and floating-point operations.
  virtual std::int64_t bytes() const = 0;
  virtual std::int64_t flops() const = 0;
  // Whether the launches are dependent ones.
  virtual bool pdl() const { return false; }
  // The products that it holds. Where there are some, the ceiling is what they take alone, by the
  // best of the algorithms that the machine's library proposes.
  virtual std::vector<Product> products() const { return {}; }

  // Whether the launches may be captured in a CUDA graph. Those that may not are timed as calls.
  virtual bool capturable() const { return true; }
  // Whether the row is a ceiling itself.
  virtual bool is_ceiling() const { return false; }
  // A workload on the same buffers, to be launched in its stead, whose bytes per second are the
  // ceiling; null: that is the copy of memory. To be called once prepared; does not outlive it.
  virtual std::unique_ptr<Workload> MakeCeiling() { return nullptr; }

  // Makes the buffers and fills them with random data.
  // Errors: kInvalidArgument (too small to be cold), kResourceExhausted, kDeviceError.
  virtual Status Prepare(Device& device, Stream stream) = 0;
  // Launches on set i % sets().
  virtual Status Launch(std::int64_t i, Stream stream) = 0;
  // Runs the first set and compares the result with a plain loop. To be called once, before any
  // other launch. Errors: kCorruptData, naming the first element that differs.
  virtual Status Check(Stream stream) = 0;

  bool hot() const { return hot_; }
  virtual std::int64_t sets() const {
    return hot_ ? 1 : std::max<std::int64_t>(1, (kColdBytes + bytes() - 1) / bytes());
  }

 protected:
  virtual std::vector<ShapeField> fields() = 0;
  // Fills in what depends on other fields, and checks them together.
  virtual Status Complete() = 0;
  // Bytes of one set's buffers and of what the sets share, about. A double: a shape may be absurd.
  virtual double set_size() const = 0;
  virtual double shared_size() const { return 0; }

 private:
  bool hot_;
};

std::unique_ptr<Workload> MakeCeilingWorkload(bool hot);
std::unique_ptr<Workload> MakeAppendWorkload(bool hot);
std::unique_ptr<Workload> MakeRopeUpdateWorkload(bool hot);
std::unique_ptr<Workload> MakeMlaCompressWorkload(bool hot);
std::unique_ptr<Workload> MakeMlaAppendWorkload(bool hot);
std::unique_ptr<Workload> MakeMlaExpandWorkload(bool hot);
std::unique_ptr<Workload> MakeSwapWorkload(bool hot);

}  // namespace lariat::tools
