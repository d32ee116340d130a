// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "blocks/block_manager.h"
#include "cache/resolved_config.h"
#include "cache/rope_tables.h"
#include "cache/step_arrays.h"
#include "lariat/kv_cache.h"
#include "storage/block_storage.h"

namespace lariat {

// One place in the ring of steps: what is planned, and the device side of it.
struct StepRecord {
  blocks::PlannedStep plan;
  Event event;
  Stream stream;
  bool event_pending = false;  // recorded, and not seen to have passed
};

// Composes ids (blocks), bytes (storage) and the device; holds no policy of its own.
// Files: kv_cache.cc (creation, forwarding), kv_cache_steps.cc (the life of a step).
struct KVCache::Impl {
  Impl(const CacheConfig& config, Device device, cache::ResolvedConfig resolved,
       storage::BlockStorage storage, cache::StepArrays arrays, std::vector<cache::RopeTable> ropes,
       const blocks::ManagerConfig& manager);
  ~Impl();
  Status CreateEvents();
  // Makes the host wait for an event, whatever became of the stream that it was recorded on.
  Status WaitFor(Event event);
  // A stream behind all device work so far, to read rows on.
  Result<Stream> ReadingStream();

  // The record of a step's id, or null once it has ended.
  StepRecord* Find(std::uint64_t id);
  int SlotOf(const StepRecord& record) const { return static_cast<int>(&record - ring.data()); }
  // The least recent record that is not live, its device work done.
  Result<StepRecord*> AcquireRecord();

  Result<std::uint64_t> Plan(std::span<const StepItem> items, const StepShape& shape,
                             PlanFailure* failure);
  Status Prepare(std::uint64_t id, Stream stream);
  Status Append(std::uint64_t id, int layer, const AppendInputs& inputs, Stream stream);
  Status Commit(std::uint64_t id, std::span<const StepCommit> commits, Stream stream);
  Status Discard(std::uint64_t id, Stream stream);
  // // The step has ended and its event is recorded.
  void NoteEnd(StepRecord& record);
  // The handle of a step was dropped.
  void Drop(std::uint64_t id) noexcept;
  // Discards dropped steps, latest first, as far as that is legal.
  void DiscardAbandoned();
  Result<PollReport> Poll();
  // Reads the fault record of a step whose event has passed.
  void Harvest(StepRecord& record);
  Status CheckStream(Stream stream) const;
  Status ReadRows(SequenceId sequence, int layer, std::int64_t first, std::int64_t count, void* k,
                  void* v);
  AppendRopeParams AppendParams(int layer, const AppendInputs& inputs, std::int64_t tokens) const;

  // Publishes the counters; called at the end of every call that changes them.
  void Publish();
  Stats ReadStats() const;

  const CacheConfig config;
  Device device;
  const cache::ResolvedConfig resolved;
  storage::BlockStorage storage;
  cache::StepArrays arrays;
  std::vector<cache::RopeTable> ropes;
  blocks::BlockManager manager;

  std::vector<StepRecord> ring;
  std::uint64_t last_prepared = 0;  // id
  Stream last_stream;  // of the last step that was prepared; may be gone once all ended
  std::optional<Stream> side_stream;      // the cache's own, for waiting and reading
  Event last_event;                       // of the last step that ended; null: none yet
  std::vector<storage::BlockMove> moves;  // scratch
  std::vector<StepFault> faults;          // harvested, not reported yet

  mutable std::mutex stats_mutex;
  Stats stats;
};

}  // namespace lariat
