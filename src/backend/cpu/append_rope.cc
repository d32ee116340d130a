// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/rotate.h"
#include "backend/cpu/stream.h"
#include "backend/dispatch.h"
#include "backend/sections.h"

namespace lariat::cpu {
namespace {

// One token's share of a call.
template <class In, class Out>
class Appender {
 public:
  explicit Appender(const AppendRopeParams& params)
      : p_(params),
        row_bytes_{RowBytes(params.k_dim, params.k_cache_head_stride),
                   RowBytes(params.v_dim, params.v_cache_head_stride)},
        ahead_(StoredBytes() >= kAheadBytes),
        past_caches_(StoredBytes() >= kPastBytes && WholeLines()) {}

  LARIAT_INLINE void Run(std::int64_t first, std::int64_t last) const {
    for (std::int64_t t = first; t < last; ++t) {
      const bool ahead = ahead_ && t + 1 < last;
      if (ahead && !past_caches_) FetchRows(p_.slots[t + 1]);
      Append(t, ahead);
    }
    if (past_caches_) OrderStores();
  }

 private:
  // ahead: asks for what the next token has.
  LARIAT_INLINE void Append(std::int64_t t, bool ahead) const {
    const std::int64_t slot = p_.slots[t];
    const bool turns = p_.rotary_dim > 0;
    // A token that stores nothing and has no q needs no position, so it is not looked at.
    const bool needs_position = turns && (slot >= 0 || p_.q_heads > 0);
    Rows rows;
    std::int64_t bad_position = 0;
    const bool position_ok = !needs_position || FindRows(t, rows, bad_position);
    if (slot >= p_.num_slots) {
      RecordFault(Record(), FaultKind::kSlot, t, slot);
    } else if (!position_ok) {
      RecordFault(Record(), FaultKind::kPosition, t, bad_position);
    }
    const int rotary_dim = position_ok ? p_.rotary_dim : 0;
    if (slot >= 0 && slot < p_.num_slots && position_ok) Store(t, slot, rows);
    for (std::int64_t head = 0; head < p_.q_heads; ++head) {
      const std::int64_t at = t * p_.q_token_stride + head * p_.q_head_stride;
      const In* const q = static_cast<const In*>(p_.q) + at;
      if (ahead) FetchLines(q + p_.q_token_stride, std::int64_t{p_.k_dim} * sizeof(In), false);
      Turn(q, static_cast<In*>(p_.q_out) + at, rows, rotary_dim, false);
    }
  }

  // Bytes of the cache's rows from which they do not stay in a core's own caches.
  static constexpr std::int64_t kAheadBytes = std::int64_t{1} << 20;

  // Of rows whose heads lie side by side.
  std::int64_t StoredBytes() const { return p_.num_tokens * (row_bytes_[0] + row_bytes_[1]); }

  // Whether rows are stored as they come, in whole lines: half a line past the caches costs more
  // than a whole one through them.
  bool WholeLines() const {
    const auto whole = [](std::int64_t elements) {
      return elements * std::int64_t{sizeof(Out)} % kLine == 0;
    };
    return kStoresPast && std::is_same_v<In, Out> && row_bytes_[0] > 0 && whole(p_.k_dim) &&
           whole(p_.v_dim) && p_.rotary_dim % (2 * kTile) == 0 && p_.position_sections == 1 &&
           whole(p_.k_block_stride) && whole(p_.k_row_stride) && whole(p_.v_block_stride) &&
           whole(p_.v_row_stride) && whole(p_.v_cache_head_stride) &&
           (reinterpret_cast<std::uintptr_t>(p_.k_cache) |
            reinterpret_cast<std::uintptr_t>(p_.v_cache)) %
                   kLine ==
               0;
  }

  // Of a row whose heads lie side by side; 0: they do not.
  std::int64_t RowBytes(int dim, std::int64_t head_stride) const {
    return head_stride == dim ? std::int64_t{p_.kv_heads} * dim * std::int64_t{sizeof(Out)} : 0;
  }

  // Asks for the lines that the next token is stored to: blocks lie anywhere, so the processor does
  // not guess them, and a store to a line that it does not have waits for it.
  LARIAT_INLINE void FetchRows(std::int64_t slot) const {
    if (slot < 0 || slot >= p_.num_slots) return;
    const std::int64_t block = slot / p_.block_size, row = slot % p_.block_size;
    const auto* k = reinterpret_cast<const char*>(
        static_cast<const Out*>(p_.k_cache) + block * p_.k_block_stride + row * p_.k_row_stride);
    const auto* v = reinterpret_cast<const char*>(
        static_cast<const Out*>(p_.v_cache) + block * p_.v_block_stride + row * p_.v_row_stride);
    FetchLines(k, row_bytes_[0], true);
    FetchLines(v, row_bytes_[1], true);
  }

  // Where a token's rows of cos and sin begin, one for each section.
  struct Rows {
    std::int64_t at[3] = {0, 0, 0};
  };

  // False: a position is out of range.
  bool FindRows(std::int64_t t, Rows& rows, std::int64_t& bad) const {
    const bool second = p_.table_choice != nullptr && (p_.table_choice[t] & p_.table_mask) != 0;
    for (int section = 0; section < p_.position_sections; ++section) {
      const std::int64_t position = p_.positions[section * p_.section_stride + t];
      if (position < 0 || position >= p_.num_positions) {
        bad = position;
        return false;
      }
      rows.at[section] = (position + (second ? p_.num_positions : 0)) * (p_.rotary_dim / 2);
    }
    return true;
  }

  FaultRecord* Record() const {
    return p_.fault_indirect != nullptr ? *p_.fault_indirect : p_.fault;
  }

  LARIAT_INLINE void Store(std::int64_t t, std::int64_t slot, const Rows& rows) const {
    const std::int64_t block = slot / p_.block_size;
    const std::int64_t row = slot % p_.block_size;
    const auto* k = static_cast<const In*>(p_.k) + t * p_.k_token_stride;
    const auto* v = static_cast<const In*>(p_.v) + t * p_.v_token_stride;
    auto* k_row = static_cast<Out*>(p_.k_cache) + block * p_.k_block_stride + row * p_.k_row_stride;
    auto* v_row = static_cast<Out*>(p_.v_cache) + block * p_.v_block_stride + row * p_.v_row_stride;
    for (std::int64_t head = 0; head < p_.kv_heads; ++head) {
      Turn(k + head * p_.k_head_stride, k_row + head * p_.k_cache_head_stride, rows, p_.rotary_dim,
           past_caches_);
    }
    if (p_.v_head_stride == p_.v_dim && p_.v_cache_head_stride == p_.v_dim) {  // in a row
      return MoveElements(v, v_row, std::int64_t{p_.kv_heads} * p_.v_dim, past_caches_);
    }
    for (std::int64_t head = 0; head < p_.kv_heads; ++head) {
      MoveElements(v + head * p_.v_head_stride, v_row + head * p_.v_cache_head_stride, p_.v_dim,
                   past_caches_);
    }
  }

  template <class To>
  LARIAT_INLINE void Turn(const In* src, To* dst, const Rows& rows, int rotary_dim,
                          bool past_caches) const {
    if (rotary_dim > 0 && p_.position_sections == 1) {
      RotateHead(src, dst, p_.cos + rows.at[0], p_.sin + rows.at[0], rotary_dim, p_.style,
                 past_caches);
    } else if (rotary_dim > 0) {
      const int pairs = rotary_dim / 2;
      const PairPlaces from = PlacesOf(p_.style == RopeStyle::kHalf, pairs);
      const PairPlaces to = PlacesOf(p_.style != RopeStyle::kInterleaved, pairs);
      for (int i = 0; i < pairs; ++i) {
        const std::int64_t at = rows.at[SectionOf(p_.section_pairs, p_.section_layout, i)] + i;
        RotatePair(src, from, dst, to, i, p_.cos[at], p_.sin[at]);
      }
    }
    MoveElements(src + rotary_dim, dst + rotary_dim, p_.k_dim - rotary_dim, past_caches);
  }

  const AppendRopeParams& p_;
  const std::int64_t row_bytes_[2];  // of K and V in the cache
  const bool ahead_, past_caches_;
};

}  // namespace

void AppendRope(const AppendRopeParams& params, Crew& crew) {
  const std::int64_t token_bytes = (std::int64_t{params.kv_heads} * (params.k_dim + params.v_dim) +
                                    std::int64_t{params.q_heads} * params.k_dim) *
                                   static_cast<std::int64_t>(SizeOf(params.in_dtype));
  WithAppendTypes(params.in_dtype, params.dtype, [&](auto in, auto out) {
    const Appender<typename decltype(in)::type, typename decltype(out)::type> appender(params);
    crew.Share(params.num_tokens, GrainOf(token_bytes),
               [&](std::int64_t first, std::int64_t last) { RunWide(appender, first, last); });
  });
}

}  // namespace lariat::cpu
