// SPDX-License-Identifier: Apache-2.0
// cuBLASLt thinks in columns: C^T [columns, rows] = W' A^T, where each row-major matrix is the
// transpose of a column-major one of the same bytes.
#include "backend/cuda/products.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "backend/cuda/error.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/product_trial.h"

namespace lariat::cuda {
namespace {

constexpr int kCandidates = 16;
constexpr std::int64_t kFullAlignment = 16;  // bytes; more makes no difference

Status ToStatus(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return DeviceError(std::string(call) + ": " + cublasLtGetStatusName(status));
}

std::int64_t BucketOf(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

// The largest power of two that divides every address of a batch, up to kFullAlignment.
std::int64_t AlignmentOf(const void* pointer, std::int64_t batch_bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(pointer) |
                    static_cast<std::uintptr_t>(batch_bytes) |
                    static_cast<std::uintptr_t>(kFullAlignment);
  return std::int64_t{1} << std::countr_zero(bits);
}

struct Alignments {
  std::int64_t a, w, c;
};

Alignments AlignmentsOf(const GemmParams& p) {
  const auto size = static_cast<std::int64_t>(SizeOf(p.dtype));
  const bool many = p.batch > 1;
  return {AlignmentOf(p.a, 0), AlignmentOf(p.w, many ? p.w_batch_stride * size : 0),
          AlignmentOf(p.c, many ? p.c_batch_stride * size : 0)};
}

// One product in cuBLASLt's terms; lives on the stack, allocates nothing.
class Problem {
 public:
  Problem(const GemmParams& p, std::int64_t rows) {
    const cudaDataType type = p.dtype == DType::kBF16   ? CUDA_R_16BF
                              : p.dtype == DType::kFP16 ? CUDA_R_16F
                                                        : CUDA_R_32F;
    const bool tf32 = p.dtype == DType::kFP32 && p.allow_tf32;
    const cublasOperation_t transpose =
        p.layout == WeightLayout::kOutIn ? CUBLAS_OP_T : CUBLAS_OP_N;
    const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    const std::uint64_t w_rows = u(transpose == CUBLAS_OP_T ? p.inner : p.columns);
    const std::uint64_t w_columns = u(transpose == CUBLAS_OP_T ? p.columns : p.inner);
    Note(cublasLtMatmulDescInit(
        &operation_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Note(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                        sizeof(transpose)));
    Note(cublasLtMatrixLayoutInit(&w_, type, w_rows, w_columns, p.w_stride));
    Note(cublasLtMatrixLayoutInit(&a_, type, u(p.inner), u(rows), p.a_stride));
    Note(cublasLtMatrixLayoutInit(&c_, type, u(p.columns), u(rows), p.c_stride));
    if (p.batch > 1) {
      SetBatch(&w_, p.batch, p.w_batch_stride);
      SetBatch(&a_, p.batch, 0);
      SetBatch(&c_, p.batch, p.c_batch_stride);
    }
  }

  cublasStatus_t status() const { return status_; }
  cublasLtMatmulDesc_t operation() { return &operation_; }
  cublasLtMatrixLayout_t w() { return &w_; }
  cublasLtMatrixLayout_t a() { return &a_; }
  cublasLtMatrixLayout_t c() { return &c_; }

 private:
  void Note(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = status;
  }
  void SetBatch(cublasLtMatrixLayout_t layout, std::int32_t count, std::int64_t stride) {
    Note(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof(count)));
    Note(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &stride, sizeof(stride)));
  }

  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t w_, a_, c_;
};

// What an algorithm may do: any amount of the workspace, and sums over parts of `inner` only where
// they are added in fp32 and in a fixed order.
class Preference {
 public:
  explicit Preference(const GemmParams& p) {
    const std::uint64_t workspace = Products::kWorkspaceBytes;
    const std::uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const Alignments alignments = AlignmentsOf(p);
    status_ = cublasLtMatmulPreferenceInit(&preference_);
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(alignments.w));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(alignments.a));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(alignments.c));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(alignments.c));
  }
  cublasStatus_t status() const { return status_; }
  cublasLtMatmulPreference_t get() { return &preference_; }

 private:
  template <class T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    status_ = cublasLtMatmulPreferenceSetAttribute(&preference_, attribute, &value, sizeof(value));
  }

  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulPreferenceOpaque_t preference_;
};

}  // namespace

void Products::Close() noexcept {
  if (handle_ != nullptr) static_cast<void>(cublasLtDestroy(handle_));
  handle_ = nullptr;
}

Products::Key Products::KeyOf(const GemmParams& p) {
  const Alignments alignments = AlignmentsOf(p);
  const std::int64_t kind = static_cast<std::int64_t>(p.dtype) * 4 + (p.allow_tf32 ? 2 : 0) +
                            (p.layout == WeightLayout::kOutIn ? 1 : 0);
  return {kind,         BucketOf(p.rows), p.columns,   p.inner,          p.a_stride,
          p.w_stride,   p.c_stride,       p.batch,     p.w_batch_stride, p.c_batch_stride,
          alignments.a, alignments.w,     alignments.c};
}

std::vector<std::string> Products::Describe() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [key, choice] : algorithms_) {
    const auto number = [](std::int64_t n) { return std::to_string(n); };
    std::string line = "product of ";
    line.append(number(key[1])).append(" rows, ").append(number(key[2])).append(" columns by ");
    line.append(number(key[3])).append(", ").append(DTypeName(static_cast<DType>(key[0] / 4)));
    if (key[7] > 1) line.append(", ").append(number(key[7])).append(" matrices");
    if (choice.plain) {
      lines.push_back(line.append(": a plain kernel"));
      continue;
    }
    line.append(": cuBLASLt");
    for (const auto& [name, attribute] :
         {std::pair{" algorithm ", CUBLASLT_ALGO_CONFIG_ID},
          {", tile ", CUBLASLT_ALGO_CONFIG_TILE_ID},
          {", stages ", CUBLASLT_ALGO_CONFIG_STAGES_ID},
          {", split-K ", CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
          {", reduction ", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME}}) {
      std::uint32_t value = 0;
      std::size_t written = 0;
      if (cublasLtMatmulAlgoConfigGetAttribute(&choice.algorithm, attribute, &value, sizeof(value),
                                               &written) == CUBLAS_STATUS_SUCCESS) {
        line.append(name).append(std::to_string(value));
      }
    }
    lines.push_back(
        line.append(choice.tried ? ", of the fastest of its bits" : ", the first proposed"));
  }
  return lines;
}

Status Products::Open() {
  if (handle_ != nullptr) return {};
  return ToStatus(cublasLtCreate(&handle_), "cublasLtCreate");
}

bool Products::Knows(const GemmParams& params) {
  const std::lock_guard lock(mutex_);
  return algorithms_.contains(KeyOf(params));
}

// Proposals are for the bucket's most rows; each must take the fewest too.
Result<std::vector<cublasLtMatmulAlgo_t>> Products::Propose(const GemmParams& p) const {
  const std::int64_t most = BucketOf(p.rows);
  Problem large(p, most);
  Problem small(p, most / 2 + 1);
  Preference preference(p);
  for (const cublasStatus_t made : {large.status(), small.status(), preference.status()}) {
    if (Status s = ToStatus(made, "cublasLt descriptors"); !s.ok()) return s;
  }
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found;
  int count = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(
      handle_, large.operation(), large.w(), large.a(), large.c(), large.c(), preference.get(),
      kCandidates, found.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> proposals;
  for (int i = 0; asked == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& candidate = found[static_cast<std::size_t>(i)];
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    cublasLtMatmulHeuristicResult_t checked = {};
    const cublasStatus_t fits =
        cublasLtMatmulAlgoCheck(handle_, small.operation(), small.w(), small.a(), small.c(),
                                small.c(), &candidate.algo, &checked);
    if (fits == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kWorkspaceBytes) {
      proposals.push_back(candidate.algo);
    }
  }
  if (asked == CUBLAS_STATUS_SUCCESS || asked == CUBLAS_STATUS_NOT_SUPPORTED) return proposals;
  return ToStatus(asked, "cublasLtMatmulAlgoGetHeuristic");
}

Result<Products::Choice> Products::Find(const GemmParams& params) {
  const Key key = KeyOf(params);
  if (const auto known = algorithms_.find(key); known != algorithms_.end()) {
    return known->second;
  }
  if (Status s = Open(); !s.ok()) return s;
  const Result<std::vector<cublasLtMatmulAlgo_t>> proposals = Propose(params);
  if (!proposals.ok()) return proposals.status();
  Choice choice = {.plain = proposals->empty(), .tried = proposals->empty(), .algorithm = {}};
  if (!choice.plain) choice.algorithm = proposals->front();
  algorithms_[key] = choice;
  return choice;
}

Status Products::Warmup(const GemmParams& params, void* workspace) {
  const std::lock_guard lock(mutex_);
  if (Status s = Open(); !s.ok()) return s;
  GemmParams bucket = params;
  for (bucket.rows = 1;; bucket.rows *= 2) {
    const Key key = KeyOf(bucket);
    const bool skinny = SkinnyIsFaster(bucket);  // then nothing of cuBLASLt's is ever used
    const Result<Choice> known = skinny ? Choice{} : Find(bucket);
    if (!known.ok()) return known.status();
    if (!skinny && !known->tried) {
      const Result<std::vector<cublasLtMatmulAlgo_t>> proposals = Propose(bucket);
      if (!proposals.ok()) return proposals.status();
      std::vector<ProductTrial::Launch> ways;
      for (const cublasLtMatmulAlgo_t& proposal : *proposals) {
        ways.emplace_back([&, this](const GemmParams& p, cudaStream_t stream) {
          return Launch(p, proposal, workspace, stream) == CUBLAS_STATUS_SUCCESS;
        });
      }
      const std::size_t best = ProductTrial::Best(bucket, ways);
      algorithms_[key] = {.plain = false, .tried = true, .algorithm = (*proposals)[best]};
    }
    if (bucket.rows >= params.rows) return {};
  }
}

cublasStatus_t Products::Launch(const GemmParams& p, const cublasLtMatmulAlgo_t& algorithm,
                                void* workspace, cudaStream_t stream) const {
  Problem problem(p, p.rows);
  if (problem.status() != CUBLAS_STATUS_SUCCESS) return problem.status();
  const float one = 1, zero = 0;
  return cublasLtMatmul(handle_, problem.operation(), &one, p.w, problem.w(), p.a, problem.a(),
                        &zero, p.c, problem.c(), p.c, problem.c(), &algorithm, workspace,
                        kWorkspaceBytes, stream);
}

Status Products::Run(const GemmParams& p, void* workspace, cudaStream_t stream) {
  Choice choice;
  {
    const std::lock_guard lock(mutex_);
    const Result<Choice> found = Find(p);
    if (!found.ok()) return found.status();
    choice = *found;
  }
  if (choice.plain) return ToStatus(PlainProduct(p, stream), "product");
  return ToStatus(Launch(p, choice.algorithm, workspace, stream), "cublasLtMatmul");
}

}  // namespace lariat::cuda
