// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/copy.h"

#include <array>
#include <atomic>

namespace lariat::cuda {
namespace {

cudaError_t CopyEach(std::span<const BlockCopy> copies, cudaStream_t stream) {
  for (const BlockCopy& copy : copies) {
    const cudaError_t error =
        cudaMemcpyAsync(copy.dst, copy.src, copy.bytes, cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// cudaMemcpyBatchAsync came with 12.8 and changed with 13.0.
#if CUDART_VERSION >= 12080

// Below this the call's own cost is not won back.
constexpr std::size_t kFewCopies = 4;
// So much goes into one call, to keep its arrays on the stack.
constexpr std::size_t kMostCopies = 256;

cudaError_t Batch(std::array<void*, kMostCopies>& to, std::array<const void*, kMostCopies>& from,
                  std::array<std::size_t, kMostCopies>& bytes, std::size_t count,
                  cudaStream_t stream) {
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;  // the attributes hold from copy 0 on
#if CUDART_VERSION >= 13000
  return cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), count, &attributes, &first, 1,
                              stream);
#else
  std::size_t failed = 0;
  return cudaMemcpyBatchAsync(to.data(), const_cast<void**>(from.data()), bytes.data(), count,
                              &attributes, &first, 1, &failed, stream);
#endif
}

// The call refuses the default streams and streams under capture.
bool MayBatch(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return false;
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusNone;
}

std::atomic<bool> driver_batches{true};  // until it says otherwise

cudaError_t CopyBatched(std::span<const BlockCopy> copies, cudaStream_t stream) {
  std::array<void*, kMostCopies> to;
  std::array<const void*, kMostCopies> from;
  std::array<std::size_t, kMostCopies> bytes;
  while (!copies.empty()) {
    const std::size_t most = copies.size() < kMostCopies ? copies.size() : kMostCopies;
    std::size_t count = 0;
    for (const BlockCopy& copy : copies.first(most)) {
      if (copy.bytes == 0) continue;
      to[count] = copy.dst;
      from[count] = copy.src;
      bytes[count++] = copy.bytes;
    }
    if (count > 0) {
      const cudaError_t error = Batch(to, from, bytes, count, stream);
      if (error == cudaErrorCallRequiresNewerDriver || error == cudaErrorNotSupported) {
        static_cast<void>(cudaGetLastError());
        driver_batches = false;
        return CopyEach(copies, stream);
      }
      if (error != cudaSuccess) return error;
    }
    copies = copies.subspan(most);
  }
  return cudaSuccess;
}

#endif

}  // namespace

cudaError_t CopyRanges(std::span<const BlockCopy> copies, cudaStream_t stream) {
#if CUDART_VERSION >= 12080
  if (copies.size() >= kFewCopies && driver_batches && MayBatch(stream)) {
    return CopyBatched(copies, stream);
  }
#endif
  return CopyEach(copies, stream);
}

}  // namespace lariat::cuda
