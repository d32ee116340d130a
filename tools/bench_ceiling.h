// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

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
  // bytes: a multiple of 4096. dependent: may start before the launch before it has ended, and
  // waits for that inside.
  virtual Status Copy(void* to, const void* from, std::int64_t bytes, bool dependent, Stream) = 0;
  // Leaves the xor of all 4-byte words, spread over the words of `sums`, ReadSums(bytes) of them.
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

// The shape of the copy that rows which move bytes are compared with: far beyond every cache.
std::string CopyCeilingShape(BackendKind backend);
// Its bytes read and written per second. Errors: kResourceExhausted, kDeviceError, kCorruptData.
Result<double> MeasureCopyCeiling(Device& device, Stream stream);

}  // namespace lariat::tools
