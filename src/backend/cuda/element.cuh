// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/float16.h"

// Elements in registers: vector loads and stores, and the arithmetic of docs/numerics.md.

namespace lariat::cuda {

// N elements that travel together, in pieces of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

// Plain loads and stores, which were the fastest for data that streams.
// REQUIRES: the address is a multiple of the pack's alignment.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> Load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void Save(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

template <class T>
using RealOf = typename Element<T>::Real;

__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ double Widen(double x) { return x; }
__device__ __forceinline__ float Widen(Bf16 x) { return __uint_as_float(unsigned{x.bits} << 16); }
__device__ __forceinline__ float Widen(Fp16 x) { return __half2float(__ushort_as_half(x.bits)); }

// One rounding; NaN becomes canonical (the hardware's own NaNs have other bits).
template <class T>
__device__ __forceinline__ T Narrow(RealOf<T> x) {
  if constexpr (std::is_same_v<T, float>) {
    return x == x ? x : __uint_as_float(kFp32NaN);
  } else if constexpr (std::is_same_v<T, double>) {
    return x == x ? x : __longlong_as_double(static_cast<long long>(kFp64NaN));
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return {x == x ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : kBf16NaN};
  } else {
    return {x == x ? __half_as_ushort(__float2half_rn(x)) : kFp16NaN};
  }
}

__device__ __forceinline__ float Multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double Multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double Add(double a, double b) { return __dadd_rn(a, b); }

// Turns the pair (x, y) by the angle with cosine c and sine s. The intrinsics keep the compiler
// from fusing a product with the sum.
template <class Out, class Real>
__device__ __forceinline__ void Turn(Real x, Real y, Real c, Real s, Out& to_x, Out& to_y) {
  to_x = Narrow<Out>(Add(Multiply(x, c), -Multiply(y, s)));
  to_y = Narrow<Out>(Add(Multiply(x, s), Multiply(y, c)));
}

// P pairs in registers, as they lie in memory. Alternating: x y x y ..., 2 P elements from `x` on.
// Else P first elements at `x` and P second ones at `y`, kept one behind the other. One pair is
// moved as two elements, which need no alignment beyond their own.
template <int P, class T>
__device__ __forceinline__ Pack<T, 2 * P> LoadPairs(const T* x, const T* y, bool alternate) {
  Pack<T, 2 * P> both;
  if constexpr (P == 1) {
    both.v[0] = *x;
    both.v[1] = alternate ? x[1] : *y;
  } else if (alternate) {
    both = Load<2 * P>(x);
  } else {
    const Pack<T, P> first = Load<P>(x);
    const Pack<T, P> second = Load<P>(y);
#pragma unroll
    for (int i = 0; i < P; ++i) {
      both.v[i] = first.v[i];
      both.v[P + i] = second.v[i];
    }
  }
  return both;
}

template <int P, class T>
__device__ __forceinline__ void SavePairs(const Pack<T, 2 * P>& both, bool alternate, T* x, T* y) {
  if constexpr (P == 1) {
    *x = both.v[0];
    *(alternate ? x + 1 : y) = both.v[1];
  } else if (alternate) {
    Save<2 * P>(x, both);
  } else {
    Pack<T, P> first, second;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      first.v[i] = both.v[i];
      second.v[i] = both.v[P + i];
    }
    Save<P>(x, first);
    Save<P>(y, second);
  }
}

template <class Out, int P, class In, class Real>
__device__ __forceinline__ Pack<Out, 2 * P> TurnPairs(const Pack<In, 2 * P>& in,
                                                      const Pack<Real, P>& c,
                                                      const Pack<Real, P>& s, bool alternate) {
  Pack<Out, 2 * P> out;
  if (alternate) {
#pragma unroll
    for (int i = 0; i < P; ++i) {
      Turn(Widen(in.v[2 * i]), Widen(in.v[2 * i + 1]), c.v[i], s.v[i], out.v[2 * i],
           out.v[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < P; ++i) {
      Turn(Widen(in.v[i]), Widen(in.v[P + i]), c.v[i], s.v[i], out.v[i], out.v[P + i]);
    }
  }
  return out;
}

// Bytes where the type stays, else converted.
template <class Out, class In, int N>
__device__ __forceinline__ Pack<Out, N> Convert(const Pack<In, N>& in) {
  if constexpr (std::is_same_v<In, Out>) {
    return in;
  } else {
    Pack<Out, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = Narrow<Out>(Widen(in.v[i]));
    return out;
  }
}

}  // namespace lariat::cuda
