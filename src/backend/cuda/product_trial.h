// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/params.h"
#include "lariat/status.h"

namespace lariat::cuda {

// Runs ways to compute one product on matrices of its own, to see which give the same bits and
// which of those are the fastest. For set-up alone: allocates, and blocks the host.
class ProductTrial {
 public:
  // Puts the product on a stream; false: it cannot.
  using Launch = std::function<bool(const GemmParams& params, cudaStream_t stream)>;

  // Of the ways whose results begin and end with the same bits as those of way 0, the first of the
  // fastest (first_of_fastest.h). Way 0 runs in any case, so that its code is
  // loaded; it is the answer where there is no room for the matrices, or anything fails.
  //   params: rows, widths, strides and batch; pointers are not used
  static std::size_t Best(const GemmParams& params, const std::vector<Launch>& ways);

 private:
  explicit ProductTrial(const GemmParams& params) : params_(params) {}
  ~ProductTrial();
  bool Open();
  // The first and the last bytes of what a way gives; empty: it fails.
  std::vector<std::byte> Result(const Launch& way);
  // Of one launch among several in a graph, as a server makes them; infinite where it fails.
  double Seconds(const Launch& way);

  GemmParams params_;  // with the matrices of the trial
  std::size_t c_bytes_ = 0;
  void *a_ = nullptr, *w_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace lariat::cuda
