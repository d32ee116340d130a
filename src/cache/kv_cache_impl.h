// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/guarded.h"
#include "blocks/block_manager.h"
#include "cache/resolved_config.h"
#include "cache/rope_tables.h"
#include "cache/step_arrays.h"
#include "cache/tier_streams.h"
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

inline Status NotOfThisCache() { return InvalidArgument("step: not a step of this cache"); }

// Composes ids (blocks), bytes (storage) and the device; holds no policy of its own.
// Files: kv_cache.cc (creation, forwarding), kv_cache_steps.cc (the life of a step),
// kv_cache_tier.cc (the host tier), kv_cache_read.cc (ReadRows), kv_cache_mla.cc (calls of MLA).
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
  // The step has ended and its event is recorded.
  void NoteEnd(StepRecord& record);
  // The handle of a step was dropped.
  void Drop(std::uint64_t id) noexcept;
  // Discards dropped steps, latest first, as far as that is legal.
  // Returns whether there were any.
  bool DiscardAbandoned();
  Result<PollReport> Poll();
  // Reads the fault records of steps that ended and have passed; returns how many have not.
  Result<int> HarvestPassed();
  // Reads the fault record of a step whose event has passed.
  void Harvest(StepRecord& record);
  Status CheckStream(Stream stream) const;
  Status CheckLayer(int layer) const;
  Status CheckGroup(int group) const;
  int GroupOf(int layer) const {
    return storage.layout().layers()[static_cast<std::size_t>(layer)].group;
  }
  Result<LayerView> Layer(int layer) const;
  // Also that it is an MLA layer, or that it is none; else the answer says which calls it takes.
  Status CheckLayer(int layer, bool mla) const;
  static Status CheckQuery(const void* q, int q_heads);
  // The plan of a step that a layer of this kind is called with.
  // Errors: kNotReady (it is not the most recently prepared step), CheckLayer's.
  Result<const blocks::PlannedStep*> PlanInUse(std::uint64_t id, int layer, bool mla);
  Status ReadRows(SequenceId sequence, int layer, std::int64_t first, std::int64_t count, void* k,
                  void* v);
  AppendRopeParams AppendParams(int layer, const AppendInputs& inputs, std::int64_t tokens) const;
  // Which table a layer's rows turn by, and how; nothing is set for a layer without RoPE.
  template <class Params>
  void SetRope(int layer, Params& params) const {
    const int index = resolved.layers[static_cast<std::size_t>(layer)].rope;
    if (index < 0) return;
    const RopeSpec& rope = config.ropes[static_cast<std::size_t>(index)];
    const cache::RopeTable& table = ropes[static_cast<std::size_t>(index)];
    params.style = rope.style;
    params.rotary_dim = rope.rotary_dim;
    params.cos = static_cast<const float*>(table.cos.data());
    params.sin = static_cast<const float*>(table.sin.data());
    params.num_positions = config.max_tokens_per_sequence;
    if ((resolved.two_tables & 1U << index) != 0) {
      params.table_choice = arrays.view().rope_choice;
      params.table_mask = 1U << index;
    }
  }

  Status CheckTier() const;  // kUnsupported without one
  // Starts the copies to the host that calls decided on.
  void StartWrites();
  void TellFailedBatches();
  Result<TransferId> Fetch(SequenceId sequence);
  Result<TransferId> Suspend(SequenceId sequence);
  Result<TransferId> Resume(SequenceId sequence);
  Result<TransferId> StartTransfer(const Result<TransferId>& decided);
  Result<TransferReport> Accept(TransferId id);

  // A call with a step appends or reads its rows; without one it warms up for the largest.
  Status MlaAppend(std::uint64_t id, int layer, const MlaAppendInputs& inputs, Stream stream);
  Status MlaExpand(std::uint64_t id, int layer, const MlaExpandInputs& inputs, Stream stream);
  Status MlaCompress(std::uint64_t id, int layer, const MlaCompressInputs& inputs, Stream stream);
  Status Warmup(int layer, const MlaAppendInputs& inputs, Stream stream);
  Status Warmup(int layer, const MlaExpandInputs& inputs, Stream stream);
  Status Warmup(int layer, const MlaCompressInputs& inputs, Stream stream);
  Status CheckRank(int layer, int kv_lora_rank) const;
  Status CheckCompress(const MlaCompressInputs& inputs) const;
  MlaAppendParams AppendParams(int layer, const MlaAppendInputs& inputs, std::int64_t tokens) const;
  MlaExpandParams ExpandParams(int layer, const MlaExpandInputs& inputs, int sequences) const;
  // k and v of the result: rows [tokens][heads * k_dim | heads * v_dim] in the stream's workspace.
  Result<MlaCompressParams> CompressParams(int layer, const MlaCompressInputs& inputs,
                                           std::int64_t tokens, Stream stream);

  Status Release();
  Status Reacquire();
  // kNotReady between the two.
  Status CheckAcquired() const;

  // Called at the end of every call that may have changed something: starts what is to be copied to
  // the host now, and publishes the counters.
  void Publish();
  Stats ReadStats() const;

  const CacheConfig config;
  Device device;
  const cache::ResolvedConfig resolved;
  storage::BlockStorage storage;
  cache::StepArrays arrays;
  std::vector<cache::RopeTable> ropes;
  std::unique_ptr<cache::TierStreams> tier;  // null: no host tier
  blocks::BlockManager manager;

  bool released = false;  // the pool is not there
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
