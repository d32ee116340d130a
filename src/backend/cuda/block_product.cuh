// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.h"

// A block's product of a few rows in shared memory with a matrix that each of its threads holds a
// part of in registers. Threads lie side by side over the columns, and what are left of them one
// behind the other along the inner dimension; their sums meet in shared memory, in a fixed order.

namespace lariat::cuda {

inline constexpr int kProductThreads = 256;
inline constexpr int kHeld = 64;   // weights of one product that a thread holds at a time
inline constexpr int kChunk = 16;  // of these, between two looks at whether there are more

// How the threads of a block share a product: tiles of up to kProductThreads * V columns, each of
// `groups` threads side by side with V columns each, times `splits` threads along the inner
// dimension with `depth` of it each.
struct Share {
  std::int32_t inner = 0;
  std::int32_t columns = 0;
  std::int32_t groups = 0;
  std::int32_t splits = 0;
  std::int32_t depth = 0;  // a multiple of kChunk / V
  std::int32_t width = 0;  // columns of a tile
  Divider by_groups, by_width;

  std::int32_t padded_inner() const { return splits * depth; }
  // Floats of shared memory that sums of `rows` rows take.
  std::int32_t partial(std::int32_t rows) const { return splits > 1 ? splits * rows * width : 0; }
};

inline Share MakeShare(std::int32_t inner, std::int32_t columns, std::int32_t v) {
  const auto divide_up = [](std::int32_t n, std::int32_t by) { return (n + by - 1) / by; };
  const std::int32_t step = kChunk / v;
  Share s;
  s.inner = inner;
  s.columns = columns;
  s.groups = divide_up(std::min(columns, kProductThreads * v), v);
  s.depth = divide_up(divide_up(inner, kProductThreads / s.groups), step) * step;
  s.splits = divide_up(inner, s.depth);
  s.width = s.groups * v;
  s.by_groups = Divider(static_cast<std::uint32_t>(s.groups));
  s.by_width = Divider(static_cast<std::uint32_t>(s.width));
  return s;
}

__device__ __forceinline__ float ToReal(float value) { return value; }
__device__ __forceinline__ float ToReal(Bf16 value) {
  return __uint_as_float(std::uint32_t{value.bits} << 16);
}
__device__ __forceinline__ float ToReal(Fp16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

// V neighbouring elements in registers, as they lie in memory. LoadFrom reads them where i < count,
// without a branch, and stays where it is written.
// REQUIRES: the address is a multiple of V elements.
template <class T, int V>
struct Elements {
  static constexpr int kWords = Pack<T, V>::kWords;
  Pack<T, V> pack = {};
  __device__ __forceinline__ float Get(int i) const { return pack.Get(i); }
  __device__ __forceinline__ void LoadFrom(const T* from, int i, int count) {
    std::uint32_t* w = pack.w;
    if constexpr (kWords == 4) {
      asm volatile(
          "{ .reg .pred p; setp.lt.s32 p, %5, %6;"
          " @p ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
          : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
          : "l"(from), "r"(i), "r"(count));
    } else {
      static_assert(kWords == 2);
      asm volatile("{ .reg .pred p; setp.lt.s32 p, %3, %4; @p ld.global.v2.b32 {%0, %1}, [%2]; }"
                   : "+r"(w[0]), "+r"(w[1])
                   : "l"(from), "r"(i), "r"(count));
    }
  }
};
template <class T>
struct Elements<T, 1> {
  T value = {};
  __device__ __forceinline__ float Get(int) const { return ToReal(value); }
  __device__ __forceinline__ void LoadFrom(const T* from, int i, int count) {
    if constexpr (sizeof(T) == 2) {
      asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.b16 %0, [%1]; }"
                   : "+h"(value.bits)
                   : "l"(from), "r"(i), "r"(count));
    } else {
      asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.b32 %0, [%1]; }"
                   : "+f"(value)
                   : "l"(from), "r"(i), "r"(count));
    }
  }
};

// Where a column of a matrix starts, and the elements from row to row.
template <class T>
struct Column {
  const T* data;
  std::int64_t stride;
};

// V columns of a matrix as one thread of a product sees them, kHeld weights at a time.
template <class T, int V>
class Held {
 public:
  static constexpr int kDepth = kHeld / V;

  // Rows [first, first + kDepth) of a split's part. Rows past the matrix become zero, and all of
  // them where the thread has no column.
  __device__ __forceinline__ void LoadFrom(const Column<T>& column, const Share& s,
                                           std::int32_t split, std::int32_t first, bool there) {
    const std::int32_t row = split * s.depth + first;
    const std::int32_t rows = there ? min(s.depth - first, s.inner - row) : 0;
    const T* from = column.data + row * column.stride;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (i % kStep == 0 && i > 0 && first + i >= s.depth) break;
      w_[i] = {};
      w_[i].LoadFrom(from, i, rows);
      from += column.stride;
    }
  }

  // Adds the held rows' product with `depth` columns of kRows rows, which lie `width` apart.
  template <int kRows>
  __device__ __forceinline__ void AddTo(float (&sums)[kRows][V], const float* rows,
                                        std::int32_t width, std::int32_t depth) const {
#pragma unroll
    for (int first = 0; first < kDepth; first += kStep) {
      if (first >= depth) break;
#pragma unroll
      for (int i = first; i < first + kStep; i += 4) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 four = *reinterpret_cast<const float4*>(rows + r * width + i);
          const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int c = 0; c < V; ++c) sums[r][c] = fmaf(x[n], w_[i + n].Get(c), sums[r][c]);
          }
        }
      }
    }
  }

 private:
  static constexpr int kStep = kChunk / V;
  static_assert(kStep % 4 == 0);
  Elements<T, V> w_[kDepth];
};

// A thread's place in a tile of a product.
struct Place {
  std::int32_t split;   // none beyond Share::splits
  std::int32_t column;  // of the tile

  __device__ __forceinline__ Place(const Share& s, int v) {
    split = static_cast<std::int32_t>(s.by_groups.Divide(threadIdx.x));
    column = (static_cast<std::int32_t>(threadIdx.x) - split * s.groups) * v;
  }
};

// Loads the first weights of a product. weights(column): a Column.
template <class T, int V, class Weights>
__device__ __forceinline__ void StartLoads(const Share& s, Held<T, V>& held,
                                           const Weights& weights) {
  const Place place(s, V);
  const bool there = place.split < s.splits && place.column < s.columns;
  held.LoadFrom(weights(there ? place.column : 0), s, place.split, 0, there);
}

// The sums of all splits for one result. Four that take turns, so that they do not wait for one
// another.
__device__ __forceinline__ float SumOfSplits(const float* partial, std::int32_t splits,
                                             std::int32_t stride) {
  float four[4] = {};
  std::int32_t split = 0;
#pragma unroll 4
  for (; split + 4 <= splits; split += 4) {
#pragma unroll
    for (int n = 0; n < 4; ++n) four[n] += partial[(split + n) * stride];
  }
#pragma unroll
  for (int n = 0; n < 3; ++n) {
    if (split + n < splits) four[n] += partial[(split + n) * stride];
  }
  return (four[0] + four[1]) + (four[2] + four[3]);
}

// Multiplies kRows rows in shared memory, `width` floats apart, by a matrix; hands every result to
// sink(row, column, sum). `held` has the first weights where `fresh` (StartLoads), and keeps them
// for the next call where there are no others. Where there are several tiles, splits is 1.
// REQUIRES: V divides s.columns; the rows are zero from s.inner to s.padded_inner(); all threads of
//   the block call it; `partial` has room for s.partial(kRows) and nobody still reads it.
template <int kRows, class T, int V, class Weights, class Sink>
__device__ __forceinline__ void Multiply(const Share& s, Held<T, V>& held, bool& fresh,
                                         const float* rows, std::int32_t width, float* partial,
                                         const Weights& weights, const Sink& sink) {
  const Place place(s, V);
  const bool works = place.split < s.splits;
  const bool alone = s.depth <= Held<T, V>::kDepth && s.columns <= s.width;
#pragma unroll 1
  for (std::int32_t tile = 0; tile < s.columns; tile += s.width) {
    const std::int32_t column = tile + place.column;
    const bool there = works && column < s.columns;
    float sums[kRows][V] = {};
#pragma unroll 1
    for (std::int32_t first = 0; first < s.depth; first += Held<T, V>::kDepth) {
      if (!fresh) held.LoadFrom(weights(there ? column : 0), s, place.split, first, there);
      fresh = alone;
      if (!works) continue;
      held.template AddTo<kRows>(sums, rows + place.split * s.depth + first, width,
                                 s.depth - first);
    }
    if (s.splits == 1) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < V; ++c) {
          if (there) sink(r, column + c, sums[r][c]);
        }
      }
      continue;
    }
    if (works) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float* const to = partial + (place.split * kRows + r) * s.width + place.column;
        if constexpr (V == 4) {
          // As words: four floats would be stored one by one.
          *reinterpret_cast<uint4*>(to) =
              make_uint4(__float_as_uint(sums[r][0]), __float_as_uint(sums[r][1]),
                         __float_as_uint(sums[r][2]), __float_as_uint(sums[r][3]));
        } else {
          static_assert(V == 1);
          *to = sums[r][0];
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (auto at = static_cast<std::int32_t>(threadIdx.x); at < kRows * s.width;
         at += kProductThreads) {
      const float sum = SumOfSplits(partial + at, s.splits, kRows * s.width);
      const auto r = static_cast<std::int32_t>(s.by_width.Divide(static_cast<std::uint32_t>(at)));
      const std::int32_t to = tile + at - r * s.width;
      if (to < s.columns) sink(r, to, sum);
    }
  }
}

}  // namespace lariat::cuda
