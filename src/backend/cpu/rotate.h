// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "base/float16.h"
#include "lariat/ops.h"

namespace lariat::cpu {

// Where the elements of a pair stand: its first at i * step, its second at i * step + partner.
struct PairPlaces {
  int step;
  int partner;
};
inline PairPlaces PlacesOf(bool half, int pairs) {
  return half ? PairPlaces{1, pairs} : PairPlaces{2, 1};
}

// Turns pair i of one head. Compiled with -ffp-contract=off: each product and sum rounds on its
// own.
template <class In, class Out>
void RotatePair(const In* src, PairPlaces from, Out* dst, PairPlaces to, int i,
                typename Element<In>::Real c, typename Element<In>::Real s) {
  using Real = typename Element<In>::Real;
  const Real x = Element<In>::Load(src[i * from.step]);
  const Real y = Element<In>::Load(src[i * from.step + from.partner]);
  dst[i * to.step] = Element<Out>::Store(x * c - y * s);
  dst[i * to.step + to.partner] = Element<Out>::Store(x * s + y * c);
}

// Turns the pairs of one head: dst[0, rotary_dim) from src; the rest is not touched.
//   cos, sin: [rotary_dim / 2]
// dst may be src, but for kInterleavedToHalf.
template <class In, class Out, class Table>
void RotateHead(const In* src, Out* dst, const Table* cos, const Table* sin, int rotary_dim,
                RopeStyle style) {
  const int pairs = rotary_dim / 2;
  const PairPlaces from = PlacesOf(style == RopeStyle::kHalf, pairs);
  const PairPlaces to = PlacesOf(style != RopeStyle::kInterleaved, pairs);
  for (int i = 0; i < pairs; ++i) {
    RotatePair(src, from, dst, to, i, Element<Table>::Load(cos[i]), Element<Table>::Load(sin[i]));
  }
}

// Moves elements: bytes as they are where the type stays, else converted.
template <class In, class Out>
void MoveElements(const In* src, Out* dst, std::int64_t count) {
  if (count <= 0) return;
  if constexpr (std::is_same_v<In, Out>) {
    if (dst != src) std::memcpy(dst, src, static_cast<std::size_t>(count) * sizeof(In));
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
