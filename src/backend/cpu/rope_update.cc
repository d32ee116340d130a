// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/rotate.h"
#include "backend/dispatch.h"

namespace lariat::cpu {
namespace {

constexpr std::int64_t kRun = 1024;

// Of rows [first, first + kRun) of one batch entry, the last t that names each, or -1.
using Winners = std::array<std::int64_t, kRun>;

void FindWinners(const RopeUpdateParams& p, std::int64_t b, std::int64_t first, Winners& winners) {
  winners.fill(-1);
  for (std::int64_t t = 0; t < p.new_tokens; ++t) {
    const std::int64_t token = b * p.new_tokens + t;
    const std::int64_t position = p.positions[token];
    if (position < 0 || position >= p.cache_len) {
      RecordFault(p.fault, FaultKind::kPosition, token, position);
    } else if (position >= first && position < first + kRun) {
      winners[static_cast<std::size_t>(position - first)] = t;
    }
  }
}

// Rows [first, first + kRun) of one batch entry.
template <class T, class Table>
LARIAT_INLINE void CopyRun(const RopeUpdateParams& p, std::int64_t b, std::int64_t first) {
  const std::int64_t row = std::int64_t{p.heads} * p.head_dim;
  const auto* k_new = static_cast<const T*>(p.k_new);
  const auto* v_new = static_cast<const T*>(p.v_new);
  const auto* cache_k = static_cast<const T*>(p.cache_k);
  const auto* cache_v = static_cast<const T*>(p.cache_v);
  const auto* cos = static_cast<const Table*>(p.cos);
  const auto* sin = static_cast<const Table*>(p.sin);
  T* out_k = static_cast<T*>(p.out);
  T* out_v = out_k + p.batch * p.cache_len * row;
  const std::int64_t pairs = p.rotary_dim / 2;

  Winners winners;
  FindWinners(p, b, first, winners);
  for (std::int64_t l = first; l < std::min(first + kRun, p.cache_len); ++l) {
    const std::int64_t to = (b * p.cache_len + l) * row;
    const std::int64_t t = winners[static_cast<std::size_t>(l - first)];
    if (t < 0) {
      MoveElements(cache_k + to, out_k + to, row);
      MoveElements(cache_v + to, out_v + to, row);
      continue;
    }
    const std::int64_t from = (b * p.new_tokens + t) * row;
    MoveElements(v_new + from, out_v + to, row);
    for (std::int64_t head = 0; head < row; head += p.head_dim) {
      const T* src = k_new + from + head;
      T* dst = out_k + to + head;
      RotateHead(src, dst, cos + l * pairs, sin + l * pairs, p.rotary_dim, p.style);
      MoveElements(src + p.rotary_dim, dst + p.rotary_dim, p.head_dim - p.rotary_dim);
    }
  }
}

// Runs [first, last) of all entries.
template <class T, class Table>
struct Copier {
  const RopeUpdateParams& p;
  std::int64_t runs;  // of one entry
  LARIAT_INLINE void Run(std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = first; i < last; ++i) CopyRun<T, Table>(p, i / runs, i % runs * kRun);
  }
};

template <class T, class Table>
void Run(const RopeUpdateParams& p, Crew& crew) {
  const std::int64_t runs = (p.cache_len + kRun - 1) / kRun;
  const std::int64_t run_bytes =
      std::min(kRun, p.cache_len) * p.heads * p.head_dim * 2 * static_cast<std::int64_t>(sizeof(T));
  crew.Share(p.batch * runs, GrainOf(run_bytes), [&](std::int64_t first, std::int64_t last) {
    RunWide(Copier<T, Table>{p, runs}, first, last);
  });
}

}  // namespace

void RopeUpdate(const RopeUpdateParams& params, Crew& crew) {
  WithType(params.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (params.table_dtype == params.dtype) {
      Run<T, T>(params, crew);
    } else {
      Run<T, float>(params, crew);
    }
  });
}

}  // namespace lariat::cpu
