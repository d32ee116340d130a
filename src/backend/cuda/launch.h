// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <atomic>
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

// --- Dependent launches: a kernel whose blocks come to life while the one before it on the stream
// still ends. It calls WaitForPredecessors in every thread before it touches memory. Data that a
// predecessor may have written is then read by plain ld.global: ptxas moves ld.global.nc (__ldg,
// const __restrict__) across the wait.

// Lets such a kernel after this one start as soon as all blocks of this one have.
__device__ __forceinline__ void StartDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void WaitForPredecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Whether the kernels' code for the current device has that wait in it: what was built for an older
// architecture runs on newer devices too, without. The same for all kernels; asked once a device.
inline bool KernelsWait(const void* kernel) {
  enum : std::uint8_t { kUnknown, kNo, kYes };
  static std::array<std::atomic<std::uint8_t>, 64> known = {};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const auto at = static_cast<std::size_t>(device);
  if (at < known.size() && known[at] != kUnknown) return known[at] == kYes;
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // the launch will say it
    return false;
  }
  const bool waits = attributes.ptxVersion >= 90;
  if (at < known.size()) known[at] = waits ? kYes : kNo;
  return waits;
}

// Launch for a kernel that waits for its predecessors.
template <class... Parameters, class... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                            cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = KernelsWait(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace lariat::cuda
