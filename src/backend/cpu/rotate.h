// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "backend/cpu/stream.h"
#include "backend/cpu/vector.h"
#include "base/float16.h"
#include "lariat/ops.h"

namespace lariat::cpu {

// Where the elements of a pair stand: its first at i * step, its second at i * step + partner.
struct PairPlaces {
  int step;
  int partner;
};
LARIAT_INLINE PairPlaces PlacesOf(bool half, int pairs) {
  return half ? PairPlaces{1, pairs} : PairPlaces{2, 1};
}

// Turns pair i of one head. Compiled with -ffp-contract=off: each product and sum rounds on its
// own.
template <class In, class Out>
LARIAT_INLINE void RotatePair(const In* src, PairPlaces from, Out* dst, PairPlaces to, int i,
                              typename Element<In>::Real c, typename Element<In>::Real s) {
  using Real = typename Element<In>::Real;
  const Real x = Element<In>::Load(src[i * from.step]);
  const Real y = Element<In>::Load(src[i * from.step + from.partner]);
  dst[i * to.step] = Element<Out>::Store(x * c - y * s);
  dst[i * to.step + to.partner] = Element<Out>::Store(x * s + y * c);
}

// Pairs that are loaded, turned and stored at once: a few vectors of the widest kind.
inline constexpr int kTile = 32;

// The same for pairs [0, kTile) of the addresses given, all loads before the first store. Elements
// are loaded and stored in rows and change places as numbers, which is what makes vectors of all
// loops; arrays of its own cannot overlap anything.
template <bool kHalfIn, bool kHalfOut, class In, class Out, class Table>
LARIAT_INLINE void RotateTile(const In* src, int src_partner, Out* dst, int dst_partner,
                              const Table* cos, const Table* sin, bool past_caches) {
  using Real = typename Element<In>::Real;
  Real in[2 * kTile], out[2 * kTile], c[kTile], s[kTile];
  for (int i = 0; i < kTile; ++i) in[i] = Element<In>::Load(src[i]);
  const In* const rest = src + (kHalfIn ? src_partner : kTile);
  for (int i = 0; i < kTile; ++i) in[kTile + i] = Element<In>::Load(rest[i]);
  for (int i = 0; i < kTile; ++i) c[i] = Element<Table>::Load(cos[i]);
  for (int i = 0; i < kTile; ++i) s[i] = Element<Table>::Load(sin[i]);
  for (int i = 0; i < kTile; ++i) {
    const Real x = in[kHalfIn ? i : 2 * i];
    const Real y = in[kHalfIn ? kTile + i : 2 * i + 1];
    out[kHalfOut ? i : 2 * i] = x * c[i] - y * s[i];
    out[kHalfOut ? kTile + i : 2 * i + 1] = x * s[i] + y * c[i];
  }
  Out stored[2 * kTile];
  for (int i = 0; i < 2 * kTile; ++i) stored[i] = Element<Out>::Store(out[i]);
  StoreBytes(dst, stored, sizeof(stored) / 2, past_caches);
  StoreBytes(dst + (kHalfOut ? dst_partner : kTile), stored + kTile, sizeof(stored) / 2,
             past_caches);
}

template <bool kHalfIn, bool kHalfOut, class In, class Out, class Table>
LARIAT_INLINE void RotatePairs(const In* src, Out* dst, const Table* cos, const Table* sin,
                               int pairs, bool past_caches) {
  int i = 0;
  for (; i + kTile <= pairs; i += kTile) {
    RotateTile<kHalfIn, kHalfOut>(src + (kHalfIn ? i : 2 * i), pairs, dst + (kHalfOut ? i : 2 * i),
                                  pairs, cos + i, sin + i, past_caches);
  }
  for (; i < pairs; ++i) {
    RotatePair(src, PlacesOf(kHalfIn, pairs), dst, PlacesOf(kHalfOut, pairs), i,
               Element<Table>::Load(cos[i]), Element<Table>::Load(sin[i]));
  }
}

// Turns the pairs of one head: dst[0, rotary_dim) from src; the rest is not touched.
//   cos, sin: [rotary_dim / 2]
// dst may be src, but for kInterleavedToHalf. past_caches: as StoreBytes, where there are kTile
// pairs at once.
template <class In, class Out, class Table>
LARIAT_INLINE void RotateHead(const In* src, Out* dst, const Table* cos, const Table* sin,
                              int rotary_dim, RopeStyle style, bool past_caches = false) {
  const int pairs = rotary_dim / 2;
  if (style == RopeStyle::kHalf) {
    RotatePairs<true, true>(src, dst, cos, sin, pairs, past_caches);
  } else if (style == RopeStyle::kInterleaved) {
    RotatePairs<false, false>(src, dst, cos, sin, pairs, past_caches);
  } else {
    RotatePairs<false, true>(src, dst, cos, sin, pairs, past_caches);
  }
}

// Moves elements: bytes as they are where the type stays, else converted.
template <class In, class Out>
LARIAT_INLINE void MoveElements(const In* src, Out* dst, std::int64_t count,
                                bool past_caches = false) {
  if (count <= 0) return;
  if constexpr (std::is_same_v<In, Out>) {
    if (dst != src) {
      StoreBytes(dst, src, static_cast<std::size_t>(count) * sizeof(In), past_caches);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      dst[i] = Element<Out>::Store(Element<In>::Load(src[i]));
  }
}

// Keeps the smallest token index; of one token's faults a slot comes before a position. So the
// threads of a crew may come in any order.
inline void RecordFault(FaultRecord* record, FaultKind kind, std::int64_t token,
                        std::int64_t value) {
  if (record == nullptr) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const bool worse = record->kind == FaultKind::kNone || token < record->token ||
                     (token == record->token && kind < record->kind);
  if (!worse) return;
  record->kind = kind;
  record->token = token;
  record->value = value;
}

}  // namespace lariat::cpu
