// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace lariat::cuda {

// n / divisor by one multiplication, for 0 <= n < 2^31 and 1 <= divisor < 2^31.
//
// With s = ceil(log2 d) and m = ceil(2^(31+s) / d) < 2^32, n m / 2^(31+s) is above n / d by less
// than n d / (d 2^(31+s)) <= 2^-s <= 1 / d, too little to reach the next whole number.
struct Divider {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 0;
  std::uint32_t shift = 0;

  Divider() = default;
  explicit Divider(std::uint32_t d) : divisor(d) {
    shift = 31 + static_cast<std::uint32_t>(std::bit_width(d - 1));
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + d - 1) / d);
  }
  __device__ __forceinline__ std::uint32_t Divide(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> shift);
  }
};

// Whether every address and every byte stride is a multiple of 16.
inline bool AllMultiplesOf16(std::initializer_list<const void*> pointers,
                             std::initializer_list<std::int64_t> strides) {
  std::uint64_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  for (const std::int64_t stride : strides) bits |= static_cast<std::uint64_t>(stride);
  return bits % 16 == 0;
}

// Whether a block may have so much shared memory on the current device.
inline bool SharedMemoryFits(std::int64_t bytes) {
  int device = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
             cudaSuccess &&
         bytes <= most;
}

// Launches, and returns this launch's error alone.
template <class... Parameters, class... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace lariat::cuda
