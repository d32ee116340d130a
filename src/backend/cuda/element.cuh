// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/float16.h"

// Elements in registers: vector loads and stores, and the arithmetic of docs/numerics.md.

namespace lariat::cuda {

template <class T>
using RealOf = typename Element<T>::Real;

// N elements as they lie in memory, in whole words: 16-bit elements stay packed until they are
// used, so that nothing waits for a load before it must.
template <class T, int N>
struct Pack {
  static constexpr int kWords = static_cast<int>(N * sizeof(T) / 4);
  std::uint32_t w[kWords];

  __device__ __forceinline__ RealOf<T> Get(int i) const {
    if constexpr (std::is_same_v<T, double>) {
      return __hiloint2double(static_cast<int>(w[2 * i + 1]), static_cast<int>(w[2 * i]));
    } else if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(w[i]);
    } else if constexpr (std::is_same_v<T, Bf16>) {
      return __uint_as_float(i % 2 == 0 ? w[i / 2] << 16 : w[i / 2] & 0xFFFF0000U);
    } else {
      __half2 pair;
      std::memcpy(&pair, &w[i / 2], sizeof(pair));
      return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
    }
  }

  // Rounds two values into the elements i and i + 1. REQUIRES: i is even. A NaN gets the hardware's
  // bits: see MakeNaNsCanonical.
  __device__ __forceinline__ void Set2(int i, RealOf<T> a, RealOf<T> b) {
    if constexpr (std::is_same_v<T, double>) {
      w[2 * i] = static_cast<std::uint32_t>(__double2loint(a));
      w[2 * i + 1] = static_cast<std::uint32_t>(__double2hiint(a));
      w[2 * i + 2] = static_cast<std::uint32_t>(__double2loint(b));
      w[2 * i + 3] = static_cast<std::uint32_t>(__double2hiint(b));
    } else if constexpr (std::is_same_v<T, float>) {
      w[i] = __float_as_uint(a);
      w[i + 1] = __float_as_uint(b);
    } else if constexpr (std::is_same_v<T, Bf16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
      std::memcpy(&w[i / 2], &pair, sizeof(pair));
    } else {
      const __half2 pair = __floats2half2_rn(a, b);
      std::memcpy(&w[i / 2], &pair, sizeof(pair));
    }
  }

  __device__ __forceinline__ void SetNaN(int i) {
    if constexpr (std::is_same_v<T, double>) {
      w[2 * i] = 0;
      w[2 * i + 1] = static_cast<std::uint32_t>(kFp64NaN >> 32);
    } else if constexpr (std::is_same_v<T, float>) {
      w[i] = kFp32NaN;
    } else {
      const std::uint32_t nan = std::is_same_v<T, Bf16> ? kBf16NaN : kFp16NaN;
      const int shift = i % 2 * 16;
      w[i / 2] = (w[i / 2] & ~(0xFFFFU << shift)) | (nan << shift);
    }
  }
};

// Bits of `values` that are NaN become the canonical ones; the whole costs one branch that is
// hardly ever taken.
template <class T, int N>
__device__ __forceinline__ void MakeNaNsCanonical(Pack<T, N>& pack, const RealOf<T> (&values)[N]) {
  bool any = false;
#pragma unroll
  for (int i = 0; i < N; ++i) any |= values[i] != values[i];
  if (__builtin_expect(!any, 1)) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (values[i] != values[i]) pack.SetNaN(i);
  }
}

// One rounding of each value; of one alone (fp32, fp64) its bytes.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> Rounded(const RealOf<T> (&values)[N]) {
  Pack<T, N> pack;
  if constexpr (N == 1) {
    std::memcpy(pack.w, values, sizeof(T));
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) pack.Set2(i, values[i], values[i + 1]);
  }
  MakeNaNsCanonical(pack, values);
  return pack;
}

// Plain loads, which were the fastest for data that streams; the compiler may not move them behind
// a branch, where they would start late.
// REQUIRES: the address is a multiple of the pack's size, or of 16 where that is less.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> Load(const T* from) {
  constexpr int kBytes = static_cast<int>(N * sizeof(T));
  Pack<T, N> pack;
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      std::uint32_t* w = pack.w + 4 * i;
      asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "l"(reinterpret_cast<const uint4*>(from) + i));
    }
  } else {
    static_assert(kBytes == 8);
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(pack.w[0]), "=r"(pack.w[1]) : "l"(from));
  }
  return pack;
}

template <int N, class T>
__device__ __forceinline__ void Save(T* to, const Pack<T, N>& pack) {
  constexpr int kBytes = static_cast<int>(N * sizeof(T));
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(pack.w[4 * i], pack.w[4 * i + 1], pack.w[4 * i + 2], pack.w[4 * i + 3]);
    }
  } else {
    static_assert(kBytes == 8);
    *reinterpret_cast<uint2*>(to) = make_uint2(pack.w[0], pack.w[1]);
  }
}

// P pairs in registers, as they lie in memory. Alternating: x y x y ..., 2 P elements from `x` on.
// Else P first elements at `x` and P second ones at `y`, kept one behind the other. One pair is
// moved as two elements, which need no alignment beyond their own.
template <int P, class T>
__device__ __forceinline__ Pack<T, 2 * P> LoadPairs(const T* x, const T* y, bool alternate) {
  Pack<T, 2 * P> both;
  if constexpr (P == 1) {
    const T pair[2] = {*x, alternate ? x[1] : *y};
    std::memcpy(both.w, pair, sizeof(pair));
  } else if (alternate) {
    both = Load<2 * P>(x);
  } else {
    const Pack<T, P> first = Load<P>(x);
    const Pack<T, P> second = Load<P>(y);
#pragma unroll
    for (int i = 0; i < Pack<T, P>::kWords; ++i) {
      both.w[i] = first.w[i];
      both.w[Pack<T, P>::kWords + i] = second.w[i];
    }
  }
  return both;
}

template <int P, class T>
__device__ __forceinline__ void SavePairs(const Pack<T, 2 * P>& both, bool alternate, T* x, T* y) {
  if constexpr (P == 1) {
    T pair[2];
    std::memcpy(pair, both.w, sizeof(pair));
    *x = pair[0];
    *(alternate ? x + 1 : y) = pair[1];
  } else if (alternate) {
    Save<2 * P>(x, both);
  } else {
    Pack<T, P> first, second;
#pragma unroll
    for (int i = 0; i < Pack<T, P>::kWords; ++i) {
      first.w[i] = both.w[i];
      second.w[i] = both.w[Pack<T, P>::kWords + i];
    }
    Save<P>(x, first);
    Save<P>(y, second);
  }
}

__device__ __forceinline__ float Multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double Multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double Add(double a, double b) { return __dadd_rn(a, b); }

// cos or sin of P pairs.
template <class Real, int P>
struct Table {
  Real v[P];
};

// Turns P pairs. The intrinsics keep the compiler from fusing a product with the sum.
template <class Out, int P, class In, class Real>
__device__ __forceinline__ Pack<Out, 2 * P> TurnPairs(const Pack<In, 2 * P>& in,
                                                      const Table<Real, P>& c,
                                                      const Table<Real, P>& s, bool alternate) {
  Real out[2 * P];
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int a = P == 1 || alternate ? 2 * i : i;
    const int b = P == 1 || alternate ? 2 * i + 1 : P + i;
    const Real x = in.Get(a);
    const Real y = in.Get(b);
    out[a] = Add(Multiply(x, c.v[i]), -Multiply(y, s.v[i]));
    out[b] = Add(Multiply(x, s.v[i]), Multiply(y, c.v[i]));
  }
  return Rounded<Out>(out);
}

// Bytes where the type stays, else converted.
template <class Out, class In, int N>
__device__ __forceinline__ Pack<Out, N> Convert(const Pack<In, N>& in) {
  if constexpr (std::is_same_v<In, Out>) {
    return in;
  } else {
    RealOf<In> values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = in.Get(i);
    return Rounded<Out>(values);
  }
}

}  // namespace lariat::cuda
