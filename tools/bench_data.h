// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "lariat/device.h"
#include "lariat/status.h"
#include "lariat/types.h"

// Random inputs of the benchmarks, and elements as plain numbers for their checks.

namespace lariat::tools {

// `count` elements of random sign and mantissa, magnitudes 1/8 to 2: no zero, no subnormal, no NaN.
std::vector<std::byte> RandomElements(DType dtype, std::int64_t count, std::mt19937_64& random);

// A random order of 0 .. count - 1.
std::vector<std::int32_t> Permutation(std::int64_t count, std::mt19937_64& random);

// Element i of an array, exactly.
double LoadElement(DType dtype, const std::byte* data, std::int64_t i);
// Rounds once, to nearest even.
void StoreElement(DType dtype, std::byte* data, std::int64_t i, double value);

// Half the distance from 1 to the next number: what one rounding may change, relatively.
constexpr double RoundingUnit(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kFP16 ? 0x1p-11 : 0x1p-24;
}

// Tokens that the plain loop of a large product goes through.
inline constexpr std::int64_t kCheckedTokens = 4;

// Turns the pair (x, y) as docs/numerics.md says: in fp32, fp64 for kFP64, each product and the sum
// rounded; written anew here, to check the operations against.
void RotatePair(DType dtype, double& x, double& y, double cos, double sin);

// A device buffer with a copy of `bytes`, made on the stream and waited for.
Result<DeviceBuffer> Upload(Device& device, std::span<const std::byte> bytes, Stream stream);
template <class T>
Result<DeviceBuffer> Upload(Device& device, const std::vector<T>& values, Stream stream) {
  return Upload(device, std::as_bytes(std::span(values)), stream);
}

// The same into `to`; an empty array leaves it empty.
template <class T>
Status UploadTo(Device& device, const std::vector<T>& values, Stream stream, DeviceBuffer& to) {
  if (values.empty()) return Status::Ok();
  Result<DeviceBuffer> made = Upload(device, values, stream);
  if (made.ok()) to = *std::move(made);
  return made.status();
}

// The first `bytes` bytes of a buffer, once the stream's work is done.
Result<std::vector<std::byte>> Download(Device& device, const DeviceBuffer& buffer,
                                        std::size_t bytes, Stream stream);

}  // namespace lariat::tools
