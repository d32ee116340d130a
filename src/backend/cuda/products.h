// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backend/params.h"
#include "lariat/status.h"

namespace lariat::cuda {

// Matrix products by cuBLASLt. The first algorithm that it proposes for a product's widths, types,
// strides, alignments and bucket of rows (the next power of two) decides the bits of the result;
// those whose sums depend on timing are left out. Warmup takes one of the fastest proposals that
// give the same bits, so the clock never decides what is computed. Threads: any.
class Products {
 public:
  // What each product may use, on its own stream; what cuBLAS advises for Hopper.
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

  Products() = default;
  ~Products() { Close(); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Lets go of the library's handle, on the current device; nothing may be asked for after it.
  void Close() noexcept;

  // A line for each choice so far, to print.
  std::vector<std::string> Describe() const;
  // Whether the algorithm for these rows is chosen.
  bool Knows(const GemmParams& params);
  // Chooses the algorithms for 1 to params.rows rows, on the current device: tries them out. Where
  // cuBLASLt has none, a plain kernel is the algorithm.
  //   workspace: kWorkspaceBytes that nobody uses at the time
  // Errors: kDeviceError.
  Status Warmup(const GemmParams& params, void* workspace);
  // Puts the product on the stream of the current device; chooses an algorithm where there is none.
  //   workspace: kWorkspaceBytes, this stream's
  Status Run(const GemmParams& params, void* workspace, cudaStream_t stream);

 private:
  using Key = std::array<std::int64_t, 13>;
  static Key KeyOf(const GemmParams& params);
  // Makes the handle where there is none.
  Status Open();
  struct Choice {
    bool plain = false;  // no algorithm of cuBLASLt's
    bool tried = false;  // the algorithm is one of the fastest of its kind
    cublasLtMatmulAlgo_t algorithm;
  };
  // What cuBLASLt proposes for the bucket, as far as it takes all of it; maybe nothing.
  Result<std::vector<cublasLtMatmulAlgo_t>> Propose(const GemmParams& params) const;
  cublasStatus_t Launch(const GemmParams& params, const cublasLtMatmulAlgo_t& algorithm,
                        void* workspace, cudaStream_t stream) const;
  // The chosen algorithm, or the first proposal. REQUIRES: the mutex is held.
  Result<Choice> Find(const GemmParams& params);

  mutable std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Choice> algorithms_;
};

}  // namespace lariat::cuda
