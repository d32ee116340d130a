// SPDX-License-Identifier: Apache-2.0
// Creation, and the calls that go straight to the block manager.
#include "lariat/kv_cache.h"

#include <utility>

#include "cache/kv_cache_impl.h"

namespace lariat {

namespace {

blocks::ManagerConfig ManagerConfigOf(const CacheConfig& config,
                                      const cache::ResolvedConfig& resolved, bool has_memory) {
  blocks::ManagerConfig manager;
  manager.num_blocks = resolved.num_blocks;
  manager.unlimited = config.memory.unlimited;
  manager.block_size = config.block_size;
  manager.reuse = config.reuse != Reuse::kNone;
  manager.token_reuse = config.reuse == Reuse::kToken;
  manager.eviction = config.eviction;
  manager.max_pinned_blocks = config.max_pinned_blocks;
  manager.max_steps_in_flight = config.max_steps_in_flight;
  manager.max_sequences = config.max_sequences;
  manager.max_tokens_per_sequence = config.max_tokens_per_sequence;
  manager.max_tokens_per_step = config.max_tokens_per_step;
  manager.max_events = config.max_events;
  manager.position_sections = resolved.position_sections;
  manager.track_writes = has_memory;  // without memory nothing can be corrupt
  manager.host_blocks = resolved.footprint.num_host_blocks;
  manager.write = config.host.write;
  manager.write_after_hits = config.host.write_after_hits;
  manager.clean_blocks = resolved.clean_blocks;
  for (std::size_t g = 1; g < resolved.groups.size(); ++g) {
    manager.sides.push_back({resolved.groups[g].kind, resolved.groups[g].window});
  }
  return manager;
}

}  // namespace

KVCache::Impl::Impl(const CacheConfig& config_in, Device device_in,
                    cache::ResolvedConfig resolved_in, storage::BlockStorage storage_in,
                    cache::StepArrays arrays_in, std::vector<cache::RopeTable> ropes_in,
                    const blocks::ManagerConfig& manager_in)
    : config(config_in),
      device(std::move(device_in)),
      resolved(std::move(resolved_in)),
      storage(std::move(storage_in)),
      arrays(std::move(arrays_in)),
      ropes(std::move(ropes_in)),
      manager(manager_in),
      ring(static_cast<std::size_t>(cache::StepRing(config_in))) {
  const auto sequences = static_cast<std::size_t>(config.max_sequences);
  const std::size_t groups = resolved.groups.size();
  moves.reserve(sequences * groups);
  for (StepRecord& record : ring) {
    // What a step of decoding takes, so that it allocates nothing.
    record.plan.rows.reserve(sequences);
    record.plan.items.reserve(sequences);
    record.plan.others.reserve(sequences);
    record.plan.undo.reserve(4 * sequences * groups);
    record.plan.victims.reserve(sequences * groups);
    record.plan.copies.reserve(sequences * groups);
    record.plan.releases.reserve(4 * sequences * groups);
    record.plan.written.reserve(2 * sequences * groups);
    record.plan.side_copies.reserve(sequences * (groups - 1));
    record.plan.side_tails.reserve(sequences * (groups - 1));
  }
  Publish();
}

KVCache::Impl::~Impl() {
  // The streams of steps that ended belong to callers and may be gone.
  if (manager.live_steps() > 0) (void)device.Synchronize(last_stream);
  for (StepRecord& record : ring) {
    if (record.event_pending) (void)WaitFor(record.event);
    if (record.event.handle != nullptr) device.DestroyEvent(record.event);
  }
  tier.reset();  // waits for its copies, which may be behind the steps
  if (side_stream) device.DestroyStream(*side_stream);
}

Status KVCache::Impl::CreateEvents() {
  for (StepRecord& record : ring) {
    Result<Event> event = device.CreateEvent();
    if (!event.ok()) return event.status();
    record.event = *event;
  }
  Result<Stream> stream = device.CreateStream();
  if (!stream.ok()) return stream.status();
  side_stream = *stream;
  return {};
}

Status KVCache::Impl::WaitFor(Event event) {
  if (Status s = device.Wait(*side_stream, event); !s.ok()) return s;
  return device.Synchronize(*side_stream);
}

void KVCache::Impl::Publish() {
  StartWrites();
  Stats now;
  manager.FillStats(now);
  const std::lock_guard<std::mutex> lock(stats_mutex);
  stats = now;
}

Stats KVCache::Impl::ReadStats() const {
  const std::lock_guard<std::mutex> lock(stats_mutex);
  return stats;
}

// --- Creation ---------------------------------------------------------------------------------

Result<KVCache> KVCache::Create(const CacheConfig& config) {
  return Guarded([&]() -> Result<KVCache> {
    // Wrong arguments are told before a device is touched.
    if (auto resolved = cache::Resolve(config, config.backend); !resolved.ok()) {
      return resolved.status();
    }
    Result<Device> device = Device::Create(config.backend, config.device_ordinal,
                                           {.cpu_threads = config.cpu_threads});
    if (!device.ok()) return device.status();
    return Create(config, *std::move(device));
  });
}

Result<KVCache> KVCache::Create(const CacheConfig& config, Device device) {
  return Guarded([&]() -> Result<KVCache> {
    Result<cache::ResolvedConfig> resolved = cache::Resolve(config, device.kind());
    if (!resolved.ok()) return resolved.status();
    Result<storage::BlockStorage> storage = storage::BlockStorage::Create(
        device, resolved->MakeLayout(config), resolved->num_blocks,
        static_cast<std::size_t>(config.max_sequences) * resolved->groups.size(),
        config.memory.caller_memory);
    if (!storage.ok()) return storage.status();
    Result<cache::StepArrays> arrays = cache::StepArrays::Create(device, config, *resolved);
    if (!arrays.ok()) return arrays.status();
    Result<std::vector<cache::RopeTable>> ropes =
        cache::MakeRopeTables(device, config.ropes, config.max_tokens_per_sequence);
    if (!ropes.ok()) return ropes.status();
    std::unique_ptr<cache::TierStreams> tier;
    if (const std::int64_t places = resolved->footprint.num_host_blocks; places > 0) {
      auto made = cache::TierStreams::Create(device, resolved->MakeLayout(config), places);
      if (!made.ok()) return made.status();
      tier = *std::move(made);
    }
    const blocks::ManagerConfig manager =
        ManagerConfigOf(config, *resolved, device.backend().has_memory());
    auto impl = std::make_unique<Impl>(config, device, *std::move(resolved), *std::move(storage),
                                       *std::move(arrays), *std::move(ropes), manager);
    impl->tier = std::move(tier);
    if (Status events = impl->CreateEvents(); !events.ok()) return events;
    // The pool is zero before anyone may look at it.
    if (Status zeroed = device.Synchronize(Stream{}); !zeroed.ok()) return zeroed;
    return KVCache(std::move(impl));
  });
}

Result<MemoryFootprint> KVCache::Footprint(const CacheConfig& config) {
  return Guarded([&]() -> Result<MemoryFootprint> {
    Result<cache::ResolvedConfig> resolved = cache::Resolve(config, config.backend);
    if (!resolved.ok()) return resolved.status();
    return resolved->footprint;
  });
}

Status KVCache::Supports(const CacheConfig& config, Feature feature) {
  return Guarded([&]() -> Status {
    if (auto resolved = cache::Resolve(config, config.backend); !resolved.ok()) {
      return resolved.status();
    }
    switch (feature) {
      case Feature::kTransfers:
        if (config.host.num_blocks > 0 || config.host.bytes > 0) return {};
        return Unsupported("transfers: host asks for no host tier");
      case Feature::kReleaseReacquire: return {};
      case Feature::kTokenReuse: return {};
      case Feature::kCheckSlots: return Unsupported("check_slots is not built");
    }
    return InvalidArgument("feature " + std::to_string(static_cast<int>(feature)) + " is unknown");
  });
}

KVCache::KVCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;
KVCache::~KVCache() = default;

const CacheConfig& KVCache::config() const { return impl_->config; }
Device& KVCache::device() { return impl_->device; }
MemoryFootprint KVCache::footprint() const { return impl_->resolved.footprint; }

// --- Sequences --------------------------------------------------------------------------------

PrefixMatch KVCache::Match(std::span<const TokenId> prompt, const OpenOptions& options) const {
  try {
    return impl_->manager.Match(
        prompt, options, cache::TablesFor(impl_->config, impl_->resolved, options.max_length));
  } catch (const std::exception&) {
    return {};  // out of memory: nothing is promised
  }
}

Result<PrefixMatch> KVCache::Match(SequenceId sequence) {
  return Guarded([&] { return impl_->manager.Match(sequence); });
}

Result<SequenceId> KVCache::Open(std::span<const TokenId> prompt, const OpenOptions& options) {
  return Guarded([&]() -> Result<SequenceId> {
    if (Status s = impl_->CheckAcquired(); !s.ok()) return s;
    Result<SequenceId> opened = impl_->manager.Open(
        prompt, options, cache::TablesFor(impl_->config, impl_->resolved, options.max_length));
    impl_->Publish();
    return opened;
  });
}

Status KVCache::Close(SequenceId sequence) {
  return Guarded([&]() -> Status {
    Status closed = impl_->manager.Close(sequence);
    if (closed.ok()) impl_->DiscardAbandoned();  // a step that waited for rows of its
    impl_->Publish();
    return closed;
  });
}

Status KVCache::Truncate(SequenceId sequence, std::int64_t length) {
  return Guarded([&]() -> Status {
    Status truncated = impl_->manager.Truncate(sequence, length);
    impl_->Publish();
    return truncated;
  });
}

Result<SequenceId> KVCache::Fork(SequenceId sequence, std::int64_t length) {
  return Guarded([&]() -> Result<SequenceId> {
    Result<SequenceId> forked = impl_->manager.Fork(sequence, length);
    impl_->Publish();
    return forked;
  });
}

Status KVCache::SetTokens(SequenceId sequence, std::span<const TokenId> tokens) {
  return Guarded([&]() -> Status {
    Status set = impl_->manager.SetTokens(sequence, tokens);
    impl_->Publish();
    return set;
  });
}

Result<Extent> KVCache::GetExtent(SequenceId sequence) const {
  return Guarded([&]() -> Result<Extent> {
    const auto found = impl_->manager.Get(sequence);
    if (!found.ok()) return found.status();
    return Extent{(*found)->settled, (*found)->planned, (*found)->known(),
                  impl_->manager.MinLength(**found)};
  });
}

Result<std::span<const std::int32_t>> KVCache::BlockTable(SequenceId sequence, int group) const {
  return Guarded([&]() -> Result<std::span<const std::int32_t>> {
    const auto found = impl_->manager.Get(sequence);
    if (!found.ok()) return found.status();
    if (Status s = impl_->CheckGroup(group); !s.ok()) return s;
    if (group == 0) return std::span<const std::int32_t>((*found)->table);
    const auto side = static_cast<std::size_t>(group - 1);
    return std::span<const std::int32_t>((*found)->sides[side].table);
  });
}

Result<std::int64_t> KVCache::FirstRow(SequenceId sequence, int layer) const {
  return Guarded([&]() -> Result<std::int64_t> {
    const auto found = impl_->manager.Get(sequence);
    if (!found.ok()) return found.status();
    if (Status s = impl_->CheckLayer(layer); !s.ok()) return s;
    return impl_->manager.FirstRow(**found, impl_->GroupOf(layer));
  });
}

std::int64_t KVCache::BlocksFor(std::int64_t settled, std::int64_t end,
                                std::int64_t step_tokens) const {
  return impl_->manager.BlocksOfAll(settled, end, step_tokens);
}

Result<std::int64_t> KVCache::BlockHashes(SequenceId sequence, std::span<BlockHash> hashes) const {
  return Guarded([&] { return impl_->manager.BlockHashes(sequence, hashes); });
}

std::int64_t KVCache::DrainEvents(std::span<KVEvent> events) {
  return impl_->manager.DrainEvents(events);
}

Result<std::int64_t> KVCache::ListBlocks(std::int64_t& cursor, std::span<KVEvent> events) const {
  return Guarded([&] { return impl_->manager.ListBlocks(cursor, events); });
}

Status KVCache::Clear() {
  return Guarded([&]() -> Status {
    Status cleared = impl_->manager.Clear();
    impl_->Publish();
    return cleared;
  });
}

Status KVCache::Pin(std::span<const TokenId> prompt, const OpenOptions& options) {
  return Guarded([&]() -> Status {
    Status pinned = impl_->manager.Pin(
        prompt, options, cache::TablesFor(impl_->config, impl_->resolved, options.max_length));
    impl_->Publish();
    return pinned;
  });
}

Status KVCache::Unpin(std::span<const TokenId> prompt, const OpenOptions& options) {
  return Guarded([&]() -> Status {
    Status unpinned = impl_->manager.Unpin(
        prompt, options, cache::TablesFor(impl_->config, impl_->resolved, options.max_length));
    impl_->Publish();
    return unpinned;
  });
}

Result<std::int64_t> KVCache::Remove(std::span<const TokenId> prompt, const OpenOptions& options) {
  return Guarded([&]() -> Result<std::int64_t> {
    Result<std::int64_t> removed = impl_->manager.Remove(
        prompt, options, cache::TablesFor(impl_->config, impl_->resolved, options.max_length));
    impl_->Publish();
    return removed;
  });
}

Result<std::int64_t> KVCache::RemoveSalt(std::string_view salt) {
  return Guarded([&]() -> Result<std::int64_t> {
    Result<std::int64_t> removed = impl_->manager.RemoveSalt(salt);
    impl_->Publish();
    return removed;
  });
}

Status KVCache::Expire(std::int64_t now_ms) {
  return Guarded([&]() -> Status {
    Status expired = impl_->manager.Expire(now_ms);
    impl_->Publish();
    return expired;
  });
}

Status KVCache::SetQuota(std::string_view salt, std::int64_t max_idle_blocks) {
  return Guarded([&]() -> Status {
    Status set = impl_->manager.SetQuota(salt, max_idle_blocks);
    impl_->Publish();
    return set;
  });
}

// --- Steps ------------------------------------------------------------------------------------

Result<Step> KVCache::Plan(std::span<const StepItem> items, const StepShape& shape,
                           PlanFailure* failure) {
  return Guarded([&]() -> Result<Step> {
    Result<std::uint64_t> id = impl_->Plan(items, shape, failure);
    if (!id.ok()) return id.status();
    Step step;
    step.impl_ = impl_.get();
    step.id_ = *id;
    return step;
  });
}

Status KVCache::Prepare(Step& step, Stream stream) {
  return Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->Prepare(step.id_, stream) : NotOfThisCache();
  });
}

Status KVCache::Append(const Step& step, int layer, const AppendInputs& inputs, Stream stream) {
  return Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->Append(step.id_, layer, inputs, stream)
                                     : NotOfThisCache();
  });
}

Status KVCache::Commit(Step& step, std::span<const StepCommit> commits, Stream stream) {
  Status committed = Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->Commit(step.id_, commits, stream) : NotOfThisCache();
  });
  if (committed.ok()) step.impl_ = nullptr;
  return committed;
}

Status KVCache::Discard(Step& step, Stream stream) {
  Status discarded = Guarded([&] {
    return step.impl_ == impl_.get() ? impl_->Discard(step.id_, stream) : NotOfThisCache();
  });
  if (discarded.ok()) step.impl_ = nullptr;
  return discarded;
}

Result<PollReport> KVCache::Poll() {
  return Guarded([&] { return impl_->Poll(); });
}

}  // namespace lariat
