// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <array>
#include <cstddef>

#include "bench_product.h"

namespace lariat::tools {
namespace {

constexpr int kCandidates = 8;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// Column-major, as cuBLASLt thinks: C^T = W' A^T.
class CublasWorkload final : public ProductWorkload {
 public:
  using ProductWorkload::ProductWorkload;
  ~CublasWorkload() override {
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
    for (cublasLtMatrixLayout_t layout : {w_layout_, a_layout_, c_layout_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  // Whether cuBLASLt proposes that many.
  bool Choose(int candidate) {
    const Product& p = product();
    const cudaDataType type = dtype() == DType::kBF16   ? CUDA_R_16BF
                              : dtype() == DType::kFP16 ? CUDA_R_16F
                                                        : CUDA_R_32F;
    const cublasOperation_t transpose = p.out_in ? CUBLAS_OP_T : CUBLAS_OP_N;
    const std::int64_t w_rows = p.out_in ? p.inner : p.columns;
    const std::int64_t w_columns = p.out_in ? p.columns : p.inner;
    cublasLtCreate(&handle_);
    cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                   sizeof(transpose));
    MakeLayout(w_layout_, type, w_rows, w_columns, p.inner * p.columns);
    MakeLayout(a_layout_, type, p.inner, p.rows, 0);
    MakeLayout(c_layout_, type, p.columns, p.rows, p.rows * p.columns);
    cublasLtMatmulPreferenceCreate(&preference_);
    const std::size_t workspace = kWorkspaceBytes;
    cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof(workspace));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found;
    int count = 0;
    const cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(handle_, operation_, w_layout_, a_layout_, c_layout_,
                                       c_layout_, preference_, kCandidates, found.data(), &count);
    if (asked != CUBLAS_STATUS_SUCCESS || candidate >= count) return false;
    algorithm_ = found[static_cast<std::size_t>(candidate)].algo;
    return true;
  }

  Status Prepare(Device& device, Stream stream) override {
    Result<DeviceBuffer> workspace = device.Allocate(MemoryKind::kDevice, kWorkspaceBytes);
    if (!workspace.ok()) return workspace.status();
    workspace_ = *std::move(workspace);
    const Status made = ProductWorkload::Prepare(device, stream);
    if (!made.ok()) return made;
    const Status first = Launch(0, stream);  // loads the code, which a capture does not allow
    return first.ok() ? device.Synchronize(stream) : first;
  }

  Status Launch(std::int64_t i, Stream stream) override {
    const std::int64_t set = i % sets();
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, operation_, &one, w(set), w_layout_, a(set), a_layout_, &zero,
                       c(set), c_layout_, c(set), c_layout_, &algorithm_, workspace_.data(),
                       kWorkspaceBytes, static_cast<cudaStream_t>(stream.handle));
    if (status == CUBLAS_STATUS_SUCCESS) return Status::Ok();
    return DeviceError(std::string("cublasLtMatmul: ") + cublasLtGetStatusName(status));
  }

 private:
  void MakeLayout(cublasLtMatrixLayout_t& layout, cudaDataType type, std::int64_t rows,
                  std::int64_t columns, std::int64_t batch_stride) {
    cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                               static_cast<std::uint64_t>(columns), rows);
    const auto count = static_cast<std::int32_t>(product().batch);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                     sizeof(count));
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                     &batch_stride, sizeof(batch_stride));
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_layout_ = nullptr, a_layout_ = nullptr, c_layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
  DeviceBuffer workspace_;
};

}  // namespace

std::unique_ptr<Workload> MakeCublasWorkload(const Product& product, DType dtype, std::int64_t sets,
                                             int candidate) {
  auto workload = std::make_unique<CublasWorkload>(product, dtype, sets);
  if (!workload->Choose(candidate)) return nullptr;
  return workload;
}

}  // namespace lariat::tools
