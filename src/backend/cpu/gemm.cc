// SPDX-License-Identifier: Apache-2.0
// Matrix products by CBLAS, in fp32. 16-bit matrices are widened tile by tile, summed in fp32 and
// rounded once at the end, in scratch of a fixed size.
#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/dispatch.h"

namespace lariat::cpu {
namespace {

// Large enough that widening costs little beside the product.
constexpr std::int64_t kTileRows = 256;
constexpr std::int64_t kTileColumns = 512;
constexpr std::int64_t kTileInner = 512;

// [rows, inner] times [inner, columns], or its transpose. Sizes and strides are below 2^31; a CBLAS
// with 64-bit integers takes them as well.
void Multiply(WeightLayout layout, std::int64_t rows, std::int64_t columns, std::int64_t inner,
              const float* a, std::int64_t a_stride, const float* w, std::int64_t w_stride,
              bool add, float* c, std::int64_t c_stride) {
  const auto narrow = [](std::int64_t n) { return static_cast<int>(n); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans,
              layout == WeightLayout::kOutIn ? CblasTrans : CblasNoTrans, narrow(rows),
              narrow(columns), narrow(inner), 1.0F, a, narrow(a_stride), w, narrow(w_stride),
              add ? 1.0F : 0.0F, c, narrow(c_stride));
}

// [rows, columns] to contiguous fp32.
template <class T>
void Widen(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t stride, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < columns; ++i) {
      to[r * columns + i] = Element<T>::Load(from[r * stride + i]);
    }
  }
}

// One tile of each matrix, in fp32. Made once for each thread, so that a steady call allocates
// nothing.
struct Tiles {
  float a[kTileRows * kTileInner];
  float w[kTileInner * kTileColumns];
  float c[kTileRows * kTileColumns];
};

// Rows [row, row + rows) and columns [column, column + columns) of one product.
template <class T>
void MultiplyTile(const GemmParams& p, const T* w, T* c, std::int64_t row, std::int64_t rows,
                  std::int64_t column, std::int64_t columns, Tiles& tiles) {
  const bool out_in = p.layout == WeightLayout::kOutIn;
  for (std::int64_t first = 0; first < p.inner; first += kTileInner) {
    const std::int64_t inner = std::min(kTileInner, p.inner - first);
    const std::int64_t w_rows = out_in ? columns : inner;
    const std::int64_t w_columns = out_in ? inner : columns;
    const std::int64_t w_at = out_in ? column * p.w_stride + first : first * p.w_stride + column;
    Widen(static_cast<const T*>(p.a) + row * p.a_stride + first, rows, inner, p.a_stride, tiles.a);
    Widen(w + w_at, w_rows, w_columns, p.w_stride, tiles.w);
    Multiply(p.layout, rows, columns, inner, tiles.a, inner, tiles.w, w_columns, first > 0, tiles.c,
             columns);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    T* const out = c + (row + r) * p.c_stride + column;
    for (std::int64_t i = 0; i < columns; ++i) {
      out[i] = Element<T>::Store(tiles.c[r * columns + i]);
    }
  }
}

template <class T>
Status MultiplyNarrow(const GemmParams& p) {
  thread_local std::unique_ptr<Tiles> tiles;
  if (tiles == nullptr) tiles.reset(new (std::nothrow) Tiles);
  if (tiles == nullptr) {
    return ResourceExhausted("no room for " + std::to_string(sizeof(Tiles)) +
                             " bytes of host memory for a matrix product");
  }
  for (std::int64_t m = 0; m < p.batch; ++m) {
    const T* const w = static_cast<const T*>(p.w) + m * p.w_batch_stride;
    T* const c = static_cast<T*>(p.c) + m * p.c_batch_stride;
    for (std::int64_t column = 0; column < p.columns; column += kTileColumns) {
      const std::int64_t columns = std::min(kTileColumns, p.columns - column);
      for (std::int64_t row = 0; row < p.rows; row += kTileRows) {
        MultiplyTile(p, w, c, row, std::min(kTileRows, p.rows - row), column, columns, *tiles);
      }
    }
  }
  return {};
}

}  // namespace

Status Gemm(const GemmParams& p, Crew&) {
  if (p.dtype == DType::kBF16) return MultiplyNarrow<Bf16>(p);
  if (p.dtype == DType::kFP16) return MultiplyNarrow<Fp16>(p);
  for (std::int64_t m = 0; m < p.batch; ++m) {
    Multiply(p.layout, p.rows, p.columns, p.inner, static_cast<const float*>(p.a), p.a_stride,
             static_cast<const float*>(p.w) + m * p.w_batch_stride, p.w_stride, false,
             static_cast<float*>(p.c) + m * p.c_batch_stride, p.c_stride);
  }
  return {};
}

}  // namespace lariat::cpu
