// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/rotate.h"

namespace lariat::cpu {
namespace {

// Moves one row at a time, as bytes.
class Gatherer {
 public:
  explicit Gatherer(const MlaGatherParams& params)
      : p_(params.expand),
        latent_(static_cast<std::byte*>(params.latent)),
        element_(SizeOf(params.expand.dtype)) {}

  void Gather(std::int64_t t) const {
    const std::byte* row = FindRow(t);
    if (latent_ != nullptr) Put(latent_ + Bytes(t * p_.rank), row, p_.rank);
    if (p_.rope_dim == 0) return;
    const std::byte* k_pe = row == nullptr ? nullptr : row + Bytes(p_.rank);
    const std::int64_t key = std::int64_t{p_.nope_dim} + p_.rope_dim;
    for (std::int64_t head = 0; head < p_.heads; ++head) {
      const std::int64_t at = t * p_.k_token_stride + head * key + p_.nope_dim;
      Put(static_cast<std::byte*>(p_.k) + Bytes(at), k_pe, p_.rope_dim);
    }
  }

 private:
  std::size_t Bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_;
  }

  void Put(std::byte* to, const std::byte* from, std::int64_t elements) const {
    if (from == nullptr) {
      std::memset(to, 0, Bytes(elements));
    } else {
      std::memcpy(to, from, Bytes(elements));
    }
  }

  // Null: output row t has no token, or one whose row cannot be read.
  const std::byte* FindRow(std::int64_t t) const {
    if (p_.num_ranges == 0) return nullptr;
    // The last of the ranges that begin at t or before: those that begin there and are empty come
    // first.
    const std::int32_t* const end = p_.cu_tokens + p_.num_ranges + 1;
    const std::int32_t* const after = std::upper_bound(p_.cu_tokens, end, t);
    if (after == p_.cu_tokens || after == end) return nullptr;
    const std::int64_t range = after - p_.cu_tokens - 1;
    const std::int64_t start = p_.starts == nullptr ? 0 : p_.starts[range];
    const std::int64_t token = start + t - p_.cu_tokens[range];
    if (token < 0 || token / p_.block_size >= p_.block_table_stride) {
      RecordFault(Record(), FaultKind::kPosition, t, token);
      return nullptr;
    }
    const std::int64_t block =
        p_.block_table[range * p_.block_table_stride + token / p_.block_size];
    if (block < 0 || block >= p_.num_blocks) {
      RecordFault(Record(), FaultKind::kSlot, t, block);
      return nullptr;
    }
    return static_cast<const std::byte*>(p_.cache) +
           Bytes(block * p_.block_stride + token % p_.block_size * p_.row_stride);
  }

  FaultRecord* Record() const {
    return p_.fault_indirect != nullptr ? *p_.fault_indirect : p_.fault;
  }

  const MlaExpandParams& p_;
  std::byte* const latent_;
  const std::size_t element_;
};

}  // namespace

void MlaGather(const MlaGatherParams& params, Crew& crew) {
  const Gatherer gatherer(params);
  const MlaExpandParams& p = params.expand;
  const std::int64_t token_bytes = (std::int64_t{p.rank} + std::int64_t{p.heads} * p.rope_dim) *
                                   static_cast<std::int64_t>(SizeOf(p.dtype));
  crew.Share(p.num_tokens, GrainOf(token_bytes), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) gatherer.Gather(t);
  });
}

}  // namespace lariat::cpu
