// SPDX-License-Identifier: Apache-2.0
// Matrix products by CBLAS, in fp32. 16-bit matrices are widened tile by tile, summed in fp32 and
// rounded once at the end, in scratch of a fixed size.
#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/vector.h"
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

// Rows [first, last) of a matrix to contiguous fp32.
template <class T>
struct Widener {
  const T* from;
  std::int64_t columns, stride;
  float* to;
  LARIAT_INLINE void Run(std::int64_t first, std::int64_t last) const {
    for (std::int64_t r = first; r < last; ++r) {
      for (std::int64_t i = 0; i < columns; ++i) {
        to[r * columns + i] = Element<T>::Load(from[r * stride + i]);
      }
    }
  }
};

// The way back, rounded.
template <class T>
struct Narrower {
  const float* from;
  std::int64_t columns;
  T* to;
  std::int64_t stride;
  LARIAT_INLINE void Run(std::int64_t first, std::int64_t last) const {
    for (std::int64_t r = first; r < last; ++r) {
      for (std::int64_t i = 0; i < columns; ++i) {
        to[r * stride + i] = Element<T>::Store(from[r * columns + i]);
      }
    }
  }
};

template <class Body>
void ShareRows(Crew& crew, std::int64_t rows, const Body& body) {
  crew.Share(rows, GrainOf(body.columns * std::int64_t{sizeof(float)}),
             [&](std::int64_t first, std::int64_t last) { RunWide(body, first, last); });
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
                  std::int64_t column, std::int64_t columns, Tiles& tiles, Crew& crew) {
  const bool out_in = p.layout == WeightLayout::kOutIn;
  for (std::int64_t first = 0; first < p.inner; first += kTileInner) {
    const std::int64_t inner = std::min(kTileInner, p.inner - first);
    const std::int64_t w_rows = out_in ? columns : inner;
    const std::int64_t w_columns = out_in ? inner : columns;
    const std::int64_t w_at = out_in ? column * p.w_stride + first : first * p.w_stride + column;
    const T* const a = static_cast<const T*>(p.a) + row * p.a_stride + first;
    ShareRows(crew, rows, Widener<T>{a, inner, p.a_stride, tiles.a});
    ShareRows(crew, w_rows, Widener<T>{w + w_at, w_columns, p.w_stride, tiles.w});
    Multiply(p.layout, rows, columns, inner, tiles.a, inner, tiles.w, w_columns, first > 0, tiles.c,
             columns);
  }
  ShareRows(crew, rows, Narrower<T>{tiles.c, columns, c + row * p.c_stride + column, p.c_stride});
}

template <class T>
Status MultiplyNarrow(const GemmParams& p, Crew& crew) {
  thread_local std::unique_ptr<Tiles> tiles;
  if (tiles == nullptr) tiles.reset(new (std::nothrow) Tiles);
  if (tiles == nullptr) {
    return ResourceExhausted("no room for " + std::to_string(sizeof(Tiles)) +
                             " bytes of host memory for a matrix product");
  }
  for (std::int64_t m = 0; m < p.batch; ++m) {
    const T* const w = static_cast<const T*>(p.w) + m * p.w_batch_stride;
    T* const c = static_cast<T*>(p.c) + m * p.c_batch_stride;
    // As few tiles as there must be, of about the same width.
    const std::int64_t tile_count = (p.columns + kTileColumns - 1) / kTileColumns;
    const std::int64_t width = (p.columns + tile_count - 1) / tile_count;
    for (std::int64_t column = 0; column < p.columns; column += width) {
      const std::int64_t columns = std::min(width, p.columns - column);
      for (std::int64_t row = 0; row < p.rows; row += kTileRows) {
        MultiplyTile(p, w, c, row, std::min(kTileRows, p.rows - row), column, columns, *tiles,
                     crew);
      }
    }
  }
  return {};
}

}  // namespace

Status Gemm(const GemmParams& p, Crew& crew) {
  if (p.dtype == DType::kBF16) return MultiplyNarrow<Bf16>(p, crew);
  if (p.dtype == DType::kFP16) return MultiplyNarrow<Fp16>(p, crew);
  for (std::int64_t m = 0; m < p.batch; ++m) {
    Multiply(p.layout, p.rows, p.columns, p.inner, static_cast<const float*>(p.a), p.a_stride,
             static_cast<const float*>(p.w) + m * p.w_batch_stride, p.w_stride, false,
             static_cast<float*>(p.c) + m * p.c_batch_stride, p.c_stride);
  }
  return {};
}

}  // namespace lariat::cpu
