// SPDX-License-Identifier: Apache-2.0
// Ceilings as kernels. One 16-byte load or store per thread is the fastest copy and the fastest
// write there are; a read gains from several loads under way.
#include <cuda_runtime.h>

#include <string>

#include "bench_ceiling.h"

namespace lariat::tools {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kLoads = 4;                                    // of a thread of a read
constexpr std::int64_t kReadBytes = kThreads * kLoads * 16;  // of a block

__device__ __forceinline__ void AfterPredecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__global__ void CopyKernel(const uint4* from, uint4* to, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

// What it reads the kernel before it may have written, so the load stays behind the wait.
__global__ void DependentCopyKernel(const uint4* from, uint4* to, std::int64_t count) {
  AfterPredecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  uint4 data;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "l"(from + i)
               : "memory");
  to[i] = data;
}

// A warp writes one word of the 2048 bytes that it reads.
__global__ void ReadKernel(const uint4* from, std::uint32_t* sums, std::int64_t count) {
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kThreads * kLoads + threadIdx.x;
  uint4 data[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const std::int64_t at = first + i * kThreads;
    data[i] = at < count ? from[at] : make_uint4(0, 0, 0, 0);
  }
  std::uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sum ^= data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
  sum = __reduce_xor_sync(0xFFFFFFFFU, sum);
  if (threadIdx.x % kWarp == 0) {
    sums[static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp] = sum;
  }
}

__global__ void WriteKernel(uint4* to, std::int64_t count, std::uint32_t word) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = make_uint4(word, word, word, word);
}

__global__ void NothingKernel() { AfterPredecessor(); }

std::uint32_t BlocksFor(std::int64_t count) {
  return static_cast<std::uint32_t>((count + kThreads - 1) / kThreads);
}

template <class... Parameters, class... Arguments>
Status Launch(void (*kernel)(Parameters...), std::uint32_t blocks, bool dependent, Stream stream,
              const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &early;
  config.numAttrs = dependent ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error == cudaSuccess) return Status::Ok();
  return DeviceError(std::string("a ceiling's launch: ") + cudaGetErrorString(error));
}

class CudaCalls final : public CeilingCalls {
 public:
  Status Copy(void* to, const void* from, std::int64_t bytes, bool dependent,
              Stream stream) override {
    return Launch(dependent ? DependentCopyKernel : CopyKernel, BlocksFor(bytes / 16), dependent,
                  stream, static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16);
  }
  Status Read(const void* from, std::int64_t bytes, std::uint32_t* sums, Stream stream) override {
    return Launch(ReadKernel, ReadBlocks(bytes), false, stream, static_cast<const uint4*>(from),
                  sums, bytes / 16);
  }
  std::int64_t ReadSums(std::int64_t bytes) const override {
    return std::int64_t{ReadBlocks(bytes)} * (kThreads / kWarp);
  }
  Status Write(void* to, std::int64_t bytes, std::uint32_t word, Stream stream) override {
    return Launch(WriteKernel, BlocksFor(bytes / 16), false, stream, static_cast<uint4*>(to),
                  bytes / 16, word);
  }
  Status Nothing(bool dependent, Stream stream) override {
    return Launch(NothingKernel, 1, dependent, stream);
  }

 private:
  static std::uint32_t ReadBlocks(std::int64_t bytes) {
    return static_cast<std::uint32_t>((bytes + kReadBytes - 1) / kReadBytes);
  }
};

}  // namespace

std::unique_ptr<CeilingCalls> MakeCudaCeilingCalls() { return std::make_unique<CudaCalls>(); }

}  // namespace lariat::tools
