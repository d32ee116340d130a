// SPDX-License-Identifier: Apache-2.0
// The cache as a whole: versions, errors, creation, counters, reports.
#include <sstream>
#include <utility>

#include "c_api/call.h"
#include "c_api/convert.h"
#include "c_api/structs.h"

using namespace lariat;         // NOLINT: the whole file is the C API's
using namespace lariat::c_api;  // NOLINT

namespace lariat::c_api {

ErrorText& ThreadError() noexcept {
  static thread_local ErrorText error;
  return error;
}

lariat_footprint ToC(const MemoryFootprint& from) {
  lariat_footprint to = {};
  to.num_groups = from.num_groups;
  to.bytes_per_token = from.bytes_per_token;
  to.bytes_per_block = from.bytes_per_block;
  to.num_blocks = from.num_blocks;
  to.pool_bytes = from.pool_bytes;
  to.rope_table_bytes = from.rope_table_bytes;
  to.step_array_bytes = from.step_array_bytes;
  to.pinned_host_bytes = from.pinned_host_bytes;
  to.num_host_blocks = from.num_host_blocks;
  to.host_tier_bytes = from.host_tier_bytes;
  to.padding_bytes = from.padding_bytes;
  to.event_log_bytes = from.event_log_bytes;
  return to;
}

lariat_stats ToC(const Stats& from) {
  lariat_stats to = {};
  to.total_blocks = from.total_blocks;
  to.free_blocks = from.free_blocks;
  to.idle_blocks = from.idle_blocks;
  to.held_blocks = from.held_blocks;
  to.reserved_blocks = from.reserved_blocks;
  to.in_transit_blocks = from.in_transit_blocks;
  to.peak_used_blocks = from.peak_used_blocks;
  to.indexed_blocks = from.indexed_blocks;
  to.pinned_blocks = from.pinned_blocks;
  to.evicted_blocks = from.evicted_blocks;
  to.quota_evicted_blocks = from.quota_evicted_blocks;
  to.expired_blocks = from.expired_blocks;
  to.merged_blocks = from.merged_blocks;
  to.copied_blocks = from.copied_blocks;
  to.hit_tokens = from.hit_tokens;
  to.tokens_committed = from.tokens_committed;
  to.sequences = from.sequences;
  to.live_steps = from.live_steps;
  to.host_blocks = from.host_blocks;
  to.host_used = from.host_used;
  to.host_held = from.host_held;
  to.offloaded_blocks = from.offloaded_blocks;
  to.onboarded_blocks = from.onboarded_blocks;
  to.host_evicted = from.host_evicted;
  to.events = from.events;
  to.lost_events = from.lost_events;
  return to;
}

namespace {

Status Create(const lariat_cache_config* config, lariat_cache** cache) {
  if (cache == nullptr) return NullResult("cache");
  CacheConfig converted;
  if (Status status = Convert(config, converted); !status.ok()) return status;
  Result<KVCache> created = KVCache::Create(converted);
  if (!created.ok()) return created.status();
  auto handle = std::make_unique<lariat_cache>();
  handle->cache = std::make_shared<KVCache>(std::move(*created));
  const CacheConfig& resolved = handle->cache->config();
  handle->steps.reserve(static_cast<std::size_t>(resolved.max_steps_in_flight) + 1);
  handle->items.reserve(static_cast<std::size_t>(resolved.max_sequences));
  handle->commits.reserve(static_cast<std::size_t>(resolved.max_sequences));
  *cache = handle.release();
  return Status::Ok();
}

// The entry of a report's list.
template <class T>
Result<const T*> Entry(std::string_view name, const std::vector<T>& entries, std::int32_t index) {
  if (index >= 0 && static_cast<std::size_t>(index) < entries.size()) {
    return &entries[static_cast<std::size_t>(index)];
  }
  return InvalidArgument(std::string(name)
                             .append(": index is ")
                             .append(std::to_string(index))
                             .append("; the last poll reported ")
                             .append(std::to_string(entries.size())));
}

}  // namespace
}  // namespace lariat::c_api

std::uint32_t lariat_abi_version() { return LARIAT_ABI_VERSION; }

const char* lariat_version() { return LARIAT_VERSION; }

// The names are literals, so a zero ends them.
const char* lariat_code_name(lariat_code code) { return CodeName(static_cast<Code>(code)).data(); }

const char* lariat_last_error(const lariat_cache* cache) {
  return cache == nullptr ? ThreadError().text() : cache->error.text();
}

lariat_code lariat_cache_create(const lariat_cache_config* config, lariat_cache** cache) {
  return Call([&] { return Create(config, cache); });
}

void lariat_cache_destroy(lariat_cache* cache) { delete cache; }

lariat_code lariat_config_footprint(const lariat_cache_config* config,
                                    lariat_footprint* footprint) {
  return Call([&]() -> Status {
    CacheConfig converted;
    Status status = Check("footprint", footprint);
    if (status.ok()) status = Convert(config, converted);
    if (!status.ok()) return status;
    const auto result = KVCache::Footprint(converted);
    if (result.ok()) Fill(footprint, ToC(*result));
    return result.status();
  });
}

lariat_code lariat_cache_footprint(lariat_cache* cache, lariat_footprint* footprint) {
  return Call(cache, [&](Handle& handle) -> Status {
    Status status = Check("footprint", footprint);
    if (status.ok()) Fill(footprint, ToC(handle.cache->footprint()));
    return status;
  });
}

// May run beside other calls, so it does not touch the cache's text.
lariat_code lariat_cache_stats(const lariat_cache* cache, lariat_stats* stats) {
  return Call([&]() -> Status {
    if (cache == nullptr) return InvalidArgument("cache: null");
    Status status = Check("stats", stats);
    if (status.ok()) Fill(stats, ToC(cache->cache->GetStats()));
    return status;
  });
}

lariat_code lariat_cache_blocks_for(lariat_cache* cache, std::int64_t settled, std::int64_t end,
                                    std::int64_t step_tokens, std::int64_t* blocks) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (blocks == nullptr) return NullResult("blocks");
    const std::int64_t most = handle.cache->config().max_tokens_per_sequence;
    if (settled < 0 || settled > end || end > most || step_tokens < 0) {
      std::ostringstream text;
      text << "settled, end and step_tokens are " << settled << ", " << end << " and "
           << step_tokens << "; allowed are 0 <= settled <= end <= max_tokens_per_sequence ("
           << most << ") and 0 <= step_tokens";
      return InvalidArgument(text.str());
    }
    *blocks = handle.cache->BlocksFor(settled, end, step_tokens);
    return Status::Ok();
  });
}

lariat_code lariat_cache_clear(lariat_cache* cache) {
  return Call(cache, [](Handle& handle) { return handle.cache->Clear(); });
}

lariat_code lariat_cache_release(lariat_cache* cache) {
  return Call(cache, [](Handle& handle) {
    const auto tensors = handle.cache.use_count() - 1;
    if (tensors == 0) return handle.cache->Release();
    return NotReady(std::to_string(tensors) +
                    " tensors of the cache's pool are left: call their deleters first");
  });
}

lariat_code lariat_cache_reacquire(lariat_cache* cache) {
  return Call(cache, [](Handle& handle) { return handle.cache->Reacquire(); });
}

lariat_code lariat_cache_poll(lariat_cache* cache, lariat_poll_report* report) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (Status status = Check("report", report); !status.ok()) return status;
    Result<PollReport> polled = handle.cache->Poll();
    if (!polled.ok()) return polled.status();
    handle.report = std::move(*polled);
    lariat_poll_report to = {};
    to.live_steps = handle.report.live_steps;
    to.pending_events = handle.report.pending_events;
    to.num_faults = static_cast<std::int32_t>(handle.report.faults.size());
    to.num_finished_transfers = static_cast<std::int32_t>(handle.report.finished_transfers.size());
    Fill(report, to);
    return Status::Ok();
  });
}

lariat_code lariat_cache_fault(lariat_cache* cache, std::int32_t index, lariat_fault* fault) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (Status status = Check("fault", fault); !status.ok()) return status;
    const auto entry = Entry("faults", handle.report.faults, index);
    if (!entry.ok()) return entry.status();
    lariat_fault to = {};
    to.kind = static_cast<std::int32_t>((*entry)->kind);
    to.step = (*entry)->step;
    to.token = (*entry)->token;
    to.value = (*entry)->value;
    Fill(fault, to);
    return Status::Ok();
  });
}

lariat_code lariat_cache_finished_transfer(lariat_cache* cache, std::int32_t index,
                                           lariat_transfer_report* report) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (Status status = Check("report", report); !status.ok()) return status;
    const auto entry = Entry("finished_transfers", handle.report.finished_transfers, index);
    if (!entry.ok()) return entry.status();
    lariat_transfer_report to = {};
    to.failed = (*entry)->failed ? 1 : 0;
    to.transfer = static_cast<std::uint64_t>((*entry)->id);
    Fill(report, to);
    return Status::Ok();
  });
}
