// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/rotate.h"
#include "backend/dispatch.h"

namespace lariat::cpu {
namespace {

constexpr int kChunk = 8;
constexpr int kLanes = 32;

// The sum of squares in the order of docs/numerics.md: chunks of 8, dealt out to 32 lanes, which
// are then added up in halves. A round is one chunk of each lane, whose sums do not depend on one
// another.
template <class In>
LARIAT_INLINE float SumOfSquares(const In* x, int count) {
  constexpr int kRound = kChunk * kLanes;
  float lanes[kLanes] = {};
  int first = 0;
  for (; first + kRound <= count; first += kRound) {
    float squares[kRound], sums[kLanes] = {};
    for (int i = 0; i < kRound; ++i) {
      const float value = Element<In>::Load(x[first + i]);
      squares[i] = value * value;
    }
    for (int i = 0; i < kChunk; ++i) {
      for (int l = 0; l < kLanes; ++l) sums[l] += squares[l * kChunk + i];
    }
    for (int l = 0; l < kLanes; ++l) lanes[l] += sums[l];
  }
  for (; first < count; first += kChunk) {
    const int end = std::min(first + kChunk, count);
    float sum = 0;
    for (int i = first; i < end; ++i) {
      const float value = Element<In>::Load(x[i]);
      sum += value * value;
    }
    lanes[first / kChunk % kLanes] += sum;
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// One token's share of a call.
template <class In, class Out>
class MlaAppender {
 public:
  explicit MlaAppender(const MlaAppendParams& params) : p_(params) {}

  LARIAT_INLINE void Run(std::int64_t first, std::int64_t last) const {
    for (std::int64_t t = first; t < last; ++t) Append(t);
  }

 private:
  LARIAT_INLINE void Append(std::int64_t t) const {
    const std::int64_t slot = p_.slots[t];
    if (slot < 0) return;  // not even its position is looked at
    if (slot >= p_.num_slots) return RecordFault(Record(), FaultKind::kSlot, t, slot);
    const std::int64_t position = p_.rotary_dim > 0 ? p_.positions[t] : 0;
    if (p_.rotary_dim > 0 && (position < 0 || position >= p_.num_positions)) {
      return RecordFault(Record(), FaultKind::kPosition, t, position);
    }
    Out* const row = static_cast<Out*>(p_.cache) + slot / p_.block_size * p_.block_stride +
                     slot % p_.block_size * p_.row_stride;
    StoreLatent(static_cast<const In*>(p_.c_kv) + t * p_.c_kv_stride, row);
    if (p_.rope_dim == 0) return;
    const bool second = p_.table_choice != nullptr && (p_.table_choice[t] & p_.table_mask) != 0;
    const std::int64_t table_row =
        (position + (second ? p_.num_positions : 0)) * (p_.rotary_dim / 2);
    StoreKey(static_cast<const In*>(p_.k_pe) + t * p_.k_pe_stride, row + p_.rank, table_row);
  }

  FaultRecord* Record() const {
    return p_.fault_indirect != nullptr ? *p_.fault_indirect : p_.fault;
  }

  LARIAT_INLINE void StoreLatent(const In* x, Out* to) const {
    const In* const weight = static_cast<const In*>(p_.norm_weight);
    if (weight == nullptr) return MoveElements(x, to, p_.rank);
    const float mean = SumOfSquares(x, p_.rank) / static_cast<float>(p_.rank);
    const float inverse = 1.0F / std::sqrt(mean + p_.eps);
    for (int i = 0; i < p_.rank; ++i) {
      to[i] = Element<Out>::Store(Element<In>::Load(x[i]) * inverse * Element<In>::Load(weight[i]));
    }
  }

  LARIAT_INLINE void StoreKey(const In* x, Out* to, std::int64_t table_row) const {
    if (p_.rotary_dim > 0) {
      RotateHead(x, to, p_.cos + table_row, p_.sin + table_row, p_.rotary_dim, p_.style);
    }
    MoveElements(x + p_.rotary_dim, to + p_.rotary_dim, p_.rope_dim - p_.rotary_dim);
  }

  const MlaAppendParams& p_;
};

}  // namespace

void MlaAppendRows(const MlaAppendParams& params, Crew& crew) {
  const std::int64_t token_bytes = (std::int64_t{params.rank} + params.rope_dim) *
                                   static_cast<std::int64_t>(SizeOf(params.in_dtype));
  WithAppendTypes(params.in_dtype, params.dtype, [&](auto in, auto out) {
    const MlaAppender<typename decltype(in)::type, typename decltype(out)::type> appender(params);
    crew.Share(params.num_tokens, GrainOf(token_bytes),
               [&](std::int64_t first, std::int64_t last) { RunWide(appender, first, last); });
  });
}

}  // namespace lariat::cpu
