// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/float16.h"
#include "lariat/ops.h"

namespace lariat::cpu {

// Turns the pairs of one head: dst[0, rotary_dim) from src; the rest is not touched.
//   cos, sin: [rotary_dim / 2]
// dst may be src. Compiled with -ffp-contract=off: each product and sum rounds on its own.
template <class In, class Out, class Table>
void RotateHead(const In* src, Out* dst, const Table* cos, const Table* sin, int rotary_dim,
                RopeStyle style) {
  using Real = typename Element<In>::Real;
  const int pairs = rotary_dim / 2;
  const bool half = style == RopeStyle::kHalf;
  const int step = half ? 1 : 2;         // from one pair's first element to the next pair's
  const int partner = half ? pairs : 1;  // from a pair's first element to its second
  for (int i = 0; i < pairs; ++i) {
    const Real x = Element<In>::Load(src[i * step]);
    const Real y = Element<In>::Load(src[i * step + partner]);
    const Real c = Element<Table>::Load(cos[i]);
    const Real s = Element<Table>::Load(sin[i]);
    dst[i * step] = Element<Out>::Store(x * c - y * s);
    dst[i * step + partner] = Element<Out>::Store(x * s + y * c);
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

// Keeps the smallest token index; of one token's faults a slot comes before a position.
inline void RecordFault(FaultRecord* record, FaultKind kind, std::int64_t token,
                        std::int64_t value) {
  if (record == nullptr) return;
  const bool worse = record->kind == FaultKind::kNone || token < record->token ||
                     (token == record->token && kind < record->kind);
  if (!worse) return;
  record->kind = kind;
  record->token = token;
  record->value = value;
}

}  // namespace lariat::cpu
