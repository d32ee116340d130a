// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "backend/cuda/launch.h"
#include "lariat/ops.h"

// Programmatic dependent launch: a kernel that starts while the one before it in the stream is
// still at work, and waits inside. Each kernel that is launched so calls WaitForPredecessor in
// every block, whatever the launch was; without the launch's attribute it does not wait.
//
// What a predecessor may have written is loaded by plain ld.global (asm volatile): the compiler
// moves ld.global.nc, which __ldg and const __restrict__ become, across the wait.

namespace lariat::cuda {

// Returns when all kernels before this one have ended and what they wrote can be seen.
__device__ __forceinline__ void WaitForPredecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start once all blocks have come here (or ended).
__device__ __forceinline__ void LetSuccessorStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A load that the compiler moves neither behind a branch nor across a wait.
__device__ __forceinline__ std::int64_t LoadInOrder(const std::int64_t* from) {
  std::int64_t value;
  asm volatile("ld.global.b64 %0, [%1];" : "=l"(value) : "l"(from));
  return value;
}
template <class T>
__device__ __forceinline__ T LoadInOrder(const T* from) {
  static_assert(sizeof(T) == 4);
  T value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
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

// Launch, as a dependent one where `dependent` says so. Blocks are in clusters of `cluster` along
// x.
template <class... Parameters, class... Arguments>
cudaError_t LaunchClusters(DependentLaunch dependent, unsigned cluster,
                           void (*kernel)(Parameters...), dim3 grid, dim3 block,
                           std::size_t shared_bytes, cudaStream_t stream,
                           const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  if (dependent != DependentLaunch::kOff && KernelsWait(reinterpret_cast<const void*>(kernel))) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
template <class... Parameters, class... Arguments>
cudaError_t LaunchDependent(DependentLaunch dependent, void (*kernel)(Parameters...), dim3 grid,
                            dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                            const Arguments&... arguments) {
  return LaunchClusters(dependent, 1, kernel, grid, block, shared_bytes, stream, arguments...);
}
template <class... Parameters, class... Arguments>
cudaError_t LaunchDependent(DependentLaunch dependent, void (*kernel)(Parameters...), dim3 grid,
                            dim3 block, cudaStream_t stream, const Arguments&... arguments) {
  return LaunchDependent(dependent, kernel, grid, block, std::size_t{0}, stream, arguments...);
}

}  // namespace lariat::cuda
