// SPDX-License-Identifier: Apache-2.0
// Matrix products by CBLAS, in fp32. 16-bit matrices are widened, a band of rows at a time, and
// rounded once at the end.
#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/dispatch.h"

namespace lariat::cpu {
namespace {

constexpr std::int64_t kBandRows = 256;

void Multiply(const GemmParams& p, std::int64_t rows, const float* a, std::int64_t a_stride,
              const float* w, std::int64_t w_stride, float* c, std::int64_t c_stride) {
  const auto narrow = [](std::int64_t n) { return static_cast<blasint>(n); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans,
              p.layout == WeightLayout::kOutIn ? CblasTrans : CblasNoTrans, narrow(rows),
              narrow(p.columns), narrow(p.inner), 1.0F, a, narrow(a_stride), w, narrow(w_stride),
              0.0F, c, narrow(c_stride));
}

// [rows, columns] of T to contiguous fp32.
template <class T>
void Widen(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t stride, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < columns; ++i) {
      to[r * columns + i] = Element<T>::Load(from[r * stride + i]);
    }
  }
}

template <class T>
void MultiplyWide(const GemmParams& p) {
  // Grown once, then kept: a steady call allocates nothing.
  thread_local std::vector<float> a, w, c;
  const std::int64_t w_rows = p.layout == WeightLayout::kOutIn ? p.columns : p.inner;
  const std::int64_t w_columns = p.layout == WeightLayout::kOutIn ? p.inner : p.columns;
  const std::int64_t band = std::min(p.rows, kBandRows);
  const auto grow = [](std::vector<float>& v, std::int64_t n) {
    if (v.size() < static_cast<std::size_t>(n)) v.resize(static_cast<std::size_t>(n));
  };
  grow(a, band * p.inner);
  grow(w, w_rows * w_columns);
  grow(c, band * p.columns);
  for (std::int64_t m = 0; m < p.batch; ++m) {
    Widen(static_cast<const T*>(p.w) + m * p.w_batch_stride, w_rows, w_columns, p.w_stride,
          w.data());
    for (std::int64_t first = 0; first < p.rows; first += band) {
      const std::int64_t rows = std::min(band, p.rows - first);
      Widen(static_cast<const T*>(p.a) + first * p.a_stride, rows, p.inner, p.a_stride, a.data());
      Multiply(p, rows, a.data(), p.inner, w.data(), w_columns, c.data(), p.columns);
      T* const out = static_cast<T*>(p.c) + m * p.c_batch_stride + first * p.c_stride;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < p.columns; ++i) {
          out[r * p.c_stride + i] = Element<T>::Store(c[r * p.columns + i]);
        }
      }
    }
  }
}

}  // namespace

void Gemm(const GemmParams& p) {
  if (p.dtype == DType::kBF16) return MultiplyWide<Bf16>(p);
  if (p.dtype == DType::kFP16) return MultiplyWide<Fp16>(p);
  for (std::int64_t m = 0; m < p.batch; ++m) {
    Multiply(p, p.rows, static_cast<const float*>(p.a), p.a_stride,
             static_cast<const float*>(p.w) + m * p.w_batch_stride, p.w_stride,
             static_cast<float*>(p.c) + m * p.c_batch_stride, p.c_stride);
  }
}

}  // namespace lariat::cpu
