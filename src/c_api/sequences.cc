// SPDX-License-Identifier: Apache-2.0
// Open sequences, and their transfers between the tiers.
#include "c_api/call.h"
#include "c_api/structs.h"
#include "c_api/views.h"

using namespace lariat;         // NOLINT: the whole file is the C API's
using namespace lariat::c_api;  // NOLINT

namespace lariat::c_api {
namespace {

// One of Fetch, Suspend and Resume.
lariat_code Transfer(lariat_cache* cache, std::uint64_t sequence, std::uint64_t* transfer,
                     Result<TransferId> (KVCache::*start)(SequenceId)) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (transfer == nullptr) return NullResult("transfer");
    const auto started = ((*handle.cache).*start)(SequenceId{sequence});
    if (started.ok()) *transfer = static_cast<std::uint64_t>(*started);
    return started.status();
  });
}

}  // namespace
}  // namespace lariat::c_api

lariat_code lariat_sequence_close(lariat_cache* cache, std::uint64_t sequence) {
  return Call(cache, [&](Handle& handle) { return handle.cache->Close(SequenceId{sequence}); });
}

lariat_code lariat_sequence_truncate(lariat_cache* cache, std::uint64_t sequence,
                                     std::int64_t length) {
  return Call(cache,
              [&](Handle& handle) { return handle.cache->Truncate(SequenceId{sequence}, length); });
}

lariat_code lariat_sequence_fork(lariat_cache* cache, std::uint64_t sequence, std::int64_t length,
                                 std::uint64_t* fork) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (fork == nullptr) return NullResult("fork");
    const auto forked = handle.cache->Fork(SequenceId{sequence}, length);
    if (forked.ok()) *fork = static_cast<std::uint64_t>(*forked);
    return forked.status();
  });
}

lariat_code lariat_sequence_set_tokens(lariat_cache* cache, std::uint64_t sequence,
                                       const std::int32_t* tokens, std::int64_t num_tokens) {
  return Call(cache, [&](Handle& handle) -> Status {
    const auto ids = Span("tokens", tokens, num_tokens);
    return ids.ok() ? handle.cache->SetTokens(SequenceId{sequence}, *ids) : ids.status();
  });
}

lariat_code lariat_sequence_extent(lariat_cache* cache, std::uint64_t sequence,
                                   lariat_extent* extent) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (Status status = Check("extent", extent); !status.ok()) return status;
    const auto found = handle.cache->GetExtent(SequenceId{sequence});
    if (!found.ok()) return found.status();
    lariat_extent to = {};
    to.settled = found->settled;
    to.planned = found->planned;
    to.known = found->known;
    to.min_length = found->min_length;
    Fill(extent, to);
    return Status::Ok();
  });
}

lariat_code lariat_sequence_block_table(lariat_cache* cache, std::uint64_t sequence,
                                        std::int32_t group, const std::int32_t** blocks,
                                        std::int64_t* num_blocks) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (blocks == nullptr) return NullResult("blocks");
    if (num_blocks == nullptr) return NullResult("num_blocks");
    if (Status status = CheckGroup(*handle.cache, group); !status.ok()) return status;
    const auto table = handle.cache->BlockTable(SequenceId{sequence}, group);
    if (!table.ok()) return table.status();
    *blocks = table->data();
    *num_blocks = static_cast<std::int64_t>(table->size());
    return Status::Ok();
  });
}

lariat_code lariat_sequence_first_row(lariat_cache* cache, std::uint64_t sequence,
                                      std::int32_t layer, std::int64_t* first) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (first == nullptr) return NullResult("first");
    const auto found = handle.cache->FirstRow(SequenceId{sequence}, layer);
    if (found.ok()) *first = *found;
    return found.status();
  });
}

lariat_code lariat_sequence_read_rows(lariat_cache* cache, std::uint64_t sequence,
                                      std::int32_t layer, std::int64_t first, std::int64_t count,
                                      void* k, void* v) {
  return Call(cache, [&](Handle& handle) {
    return handle.cache->ReadRows(SequenceId{sequence}, layer, first, count, k, v);
  });
}

lariat_code lariat_sequence_fetch(lariat_cache* cache, std::uint64_t sequence,
                                  std::uint64_t* transfer) {
  return Transfer(cache, sequence, transfer, &KVCache::Fetch);
}

lariat_code lariat_sequence_suspend(lariat_cache* cache, std::uint64_t sequence,
                                    std::uint64_t* transfer) {
  return Transfer(cache, sequence, transfer, &KVCache::Suspend);
}

lariat_code lariat_sequence_resume(lariat_cache* cache, std::uint64_t sequence,
                                   std::uint64_t* transfer) {
  return Transfer(cache, sequence, transfer, &KVCache::Resume);
}

lariat_code lariat_transfer_accept(lariat_cache* cache, std::uint64_t transfer,
                                   lariat_transfer_report* report) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (report != nullptr) {
      if (Status status = Check("report", report); !status.ok()) return status;
    }
    const auto accepted = handle.cache->Accept(TransferId{transfer});
    if (!accepted.ok() || report == nullptr) return accepted.status();
    lariat_transfer_report to = {};
    to.failed = accepted->failed ? 1 : 0;
    to.transfer = static_cast<std::uint64_t>(accepted->id);
    Fill(report, to);
    return Status::Ok();
  });
}
