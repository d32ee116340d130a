// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "backend/params.h"
#include "lariat/status.h"

namespace lariat::cuda {

// Matrix products by cuBLASLt. The algorithm of a product depends on its widths, types, strides and
// alignments and on the bucket of its rows (the next power of two), so the same product gives the
// same bits; those whose sums depend on timing are left out. Threads: any.
class Products {
 public:
  // What each product may use, on its own stream; what cuBLAS advises for Hopper.
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

  Products() = default;
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether the algorithm for these rows is chosen.
  bool Knows(const GemmParams& params);
  // Chooses the algorithms for 1 to params.rows rows, on the current device.
  // Errors: kUnsupported (cuBLASLt has none), kDeviceError.
  Status Warmup(const GemmParams& params);
  // Puts the product on the stream of the current device; chooses an algorithm where there is none.
  //   workspace: kWorkspaceBytes, this stream's
  Status Run(const GemmParams& params, void* workspace, cudaStream_t stream);

 private:
  using Key = std::array<std::int64_t, 13>;
  static Key KeyOf(const GemmParams& params);
  // Makes the handle where there is none.
  Status Open();
  Result<cublasLtMatmulAlgo_t> Choose(const GemmParams& params);
  // The chosen algorithm, or one that is chosen now. REQUIRES: the mutex is held.
  Result<cublasLtMatmulAlgo_t> Find(const GemmParams& params);

  std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace lariat::cuda
