// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench_timer.h"
#include "bench_workload.h"
#include "lariat/device.h"
#include "lariat/status.h"

// What the machine can do at best, as rows of the benchmark.

namespace lariat::tools {

// The plainest calls there are, on one device.
class CeilingCalls {
 public:
  virtual ~CeilingCalls() = default;
  // dependent: may start before the launch before it has ended, and
  // waits for that inside.
  virtual Status Copy(void* to, const void* from, std::int64_t bytes, bool dependent, Stream) = 0;
  // Of these bytes is a multiple of 4096. Leaves the xor of all 4-byte words, spread over the words
  // of `sums`, ReadSums(bytes) of them.
  virtual Status Read(const void* from, std::int64_t bytes, std::uint32_t* sums, Stream) = 0;
  virtual std::int64_t ReadSums(std::int64_t bytes) const = 0;
  // Writes `word` everywhere.
  virtual Status Write(void* to, std::int64_t bytes, std::uint32_t word, Stream) = 0;
  // A launch that does nothing.
  virtual Status Nothing(bool dependent, Stream) = 0;
};

// By as many threads as the device has.
std::unique_ptr<CeilingCalls> MakeCpuCeilingCalls(int threads);
// Null in a build without CUDA.
std::unique_ptr<CeilingCalls> MakeCudaCeilingCalls();

// A workload that does plain copies in the place of another one, of as many bytes, to be timed by
// turns with it: what the machine's memory gives at that moment. copies: of launch i
class CopiesWorkload : public Workload {
 public:
  using Copies = std::function<std::array<BlockCopy, 3>(std::int64_t i)>;
  CopiesWorkload(const Workload& of, int threads, Copies copies)
      : Workload(of.hot()),
        of_(of),
        calls_(MakeCpuCeilingCalls(threads)),
        copies_(std::move(copies)) {}
  std::string op() const override { return of_.op(); }
  DType dtype() const override { return of_.dtype(); }
  std::int64_t bytes() const override { return of_.bytes(); }
  std::int64_t flops() const override { return 0; }
  std::int64_t sets() const override { return of_.sets(); }
  Status Prepare(Device&, Stream) override { return Status::Ok(); }
  Status Check(Stream) override { return Status::Ok(); }
  Status Launch(std::int64_t i, Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override { return {}; }
  Status Complete() override { return Status::Ok(); }
  double set_size() const override { return 0; }

 private:
  const Workload& of_;
  std::unique_ptr<CeilingCalls> calls_;
  Copies copies_;
};

// The shape of the copy that rows which move bytes are compared with: far beyond every cache.
std::string CopyCeilingShape(BackendKind backend);
// Its bytes read and written per second. Errors: kResourceExhausted, kDeviceError, kCorruptData.
Result<double> MeasureCopyCeiling(Device& device, Stream stream);

}  // namespace lariat::tools
