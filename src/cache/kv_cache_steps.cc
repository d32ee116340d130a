// SPDX-License-Identifier: Apache-2.0
// The life of a step: what the block manager decides, put on a stream.
#include <algorithm>
#include <exception>

#include "backend/device_range.h"
#include "cache/kv_cache_impl.h"

namespace lariat {

using blocks::PlannedStep;
using blocks::StepPhase;

namespace {

bool IsLive(const StepRecord& record) {
  return record.plan.phase == StepPhase::kPlanned || record.plan.phase == StepPhase::kPrepared;
}

std::string Name(std::uint64_t step) { return "step " + std::to_string(step); }

}  // namespace

StepRecord* KVCache::Impl::Find(std::uint64_t id) {
  for (StepRecord& record : ring) {
    if (IsLive(record) && record.plan.id == id) return &record;
  }
  return nullptr;
}

// The ring is longer than the steps that may be live, so there is always one. It waits for the
// device only when the host is more than a whole ring ahead.
Result<StepRecord*> KVCache::Impl::AcquireRecord() {
  StepRecord* oldest = nullptr;
  StepRecord* newest = nullptr;  // of those that ended
  for (StepRecord& record : ring) {
    if (IsLive(record)) continue;
    if (oldest == nullptr || record.plan.id < oldest->plan.id) oldest = &record;
    if (record.plan.phase != StepPhase::kEnded) continue;
    if (newest == nullptr || record.plan.id > newest->plan.id) newest = &record;
  }
  if (oldest->event_pending) {
    Result<bool> passed = device.Query(oldest->event);
    if (!passed.ok()) return passed.status();
    if (!*passed) {
      if (Status waited = WaitFor(oldest->event); !waited.ok()) return waited;
    }
    Harvest(*oldest);
  }
  if (newest != nullptr) oldest->plan.TakeLists(newest->plan);
  return oldest;
}

Result<std::uint64_t> KVCache::Impl::Plan(std::span<const StepItem> items, const StepShape& shape,
                                          PlanFailure* failure) {
  if (Status s = CheckAcquired(); !s.ok()) return s;
  // Where memory was lacking before. Starts the copies that this decided on: the plan's fence is to
  // know them.
  if (DiscardAbandoned()) Publish();
  // Before a record is taken: there is one to take only then.
  if (Status ready = manager.CheckReady(); !ready.ok()) return ready;
  Result<StepRecord*> record = AcquireRecord();
  if (!record.ok()) return record.status();
  Status planned = manager.Plan(items, shape, (*record)->plan, failure);
  if (!planned.ok()) return planned;
  Publish();
  return (*record)->plan.id;
}

Status KVCache::Impl::CheckStream(Stream stream) const {
  if (manager.live_steps() == 0 || stream == last_stream) return {};
  return InvalidArgument("stream: live steps share one stream, and another one is in use");
}

Status KVCache::Impl::Prepare(std::uint64_t id, Stream stream) {
  StepRecord* record = Find(id);
  if (record == nullptr || record->plan.phase != StepPhase::kPlanned) {
    return InvalidArgument(Name(id) + " is prepared already");
  }
  if (Status s = CheckStream(stream); !s.ok()) return s;
  // Even on a stream of the same handle, which may be a new one.
  if (manager.live_steps() == 0 && last_event.handle != nullptr) {
    if (Status s = device.Wait(stream, last_event); !s.ok()) return s;
  }
  PlannedStep& plan = record->plan;
  // Blocks that copies to the host still read.
  if (plan.fence != 0 && tier != nullptr) {
    if (Status s = tier->WaitForBatch(stream, plan.fence); !s.ok()) return s;
  }
  const DeviceRange range("Prepare");
  const int slot = SlotOf(*record);
  if (FaultRecord* fault = arrays.fault_record(slot)) *fault = {};
  moves.clear();
  for (const blocks::CowCopy& copy : plan.copies) {
    moves.push_back({copy.source.block, copy.target.block});
  }
  plan.copied = plan.copied || !moves.empty();
  Status put = storage.Move(moves, stream);
  if (put.ok()) put = arrays.Upload(plan, manager, slot, stream);
  if (!put.ok()) {
    // If the plan is dropped, others may write to the copies' targets on another stream.
    if (!moves.empty()) (void)device.Synchronize(stream);
    return put;
  }
  manager.Prepare(plan);
  record->stream = stream;
  last_stream = stream;
  last_prepared = id;
  DiscardAbandoned();
  Publish();
  return {};
}

AppendRopeParams KVCache::Impl::AppendParams(int layer, const AppendInputs& inputs,
                                             std::int64_t tokens) const {
  const LayerSpec& spec = resolved.layers[static_cast<std::size_t>(layer)];
  const storage::LayerPlanes& planes = storage.layout().layers()[static_cast<std::size_t>(layer)];
  const auto element = static_cast<std::int64_t>(SizeOf(config.dtype));
  const StepView view = arrays.view(planes.group);
  AppendRopeParams params;
  params.in_dtype = inputs.dtype;
  params.dtype = config.dtype;
  params.num_tokens = tokens;
  params.kv_heads = spec.kv_heads;
  params.q_heads = inputs.q == nullptr ? 0 : inputs.q_heads;
  params.k_dim = spec.k_dim;
  params.v_dim = spec.v_dim;
  params.k = inputs.k;
  params.v = inputs.v;
  params.q = inputs.q;
  params.q_out = inputs.q;
  params.k_token_stride = inputs.k_token_stride;
  params.k_head_stride = inputs.k_head_stride;
  params.v_token_stride = inputs.v_token_stride;
  params.v_head_stride = inputs.v_head_stride;
  params.q_token_stride = inputs.q_token_stride;
  params.q_head_stride = inputs.q_head_stride;
  params.slots = view.slots;
  params.positions = view.positions;
  SetRope(layer, params);
  if (spec.rope >= 0) {
    const RopeSpec& rope = config.ropes[static_cast<std::size_t>(spec.rope)];
    if (!rope.mrope_sections.empty()) {
      params.position_sections = 3;
      params.section_stride = config.max_tokens_per_step;
      std::copy_n(rope.mrope_sections.begin(), 3, params.section_pairs);
      params.section_layout = rope.mrope_layout;
    }
  }
  params.k_cache = storage.base() + planes.k.offset;
  params.v_cache = storage.base() + planes.v.offset;
  params.num_slots = resolved.num_blocks * config.block_size;
  params.block_size = config.block_size;
  params.k_block_stride = planes.k.block_stride / element;
  params.v_block_stride = planes.v.block_stride / element;
  params.k_row_stride = planes.k.row_stride / element;
  params.v_row_stride = planes.v.row_stride / element;
  params.k_cache_head_stride = planes.k.head_stride / element;
  params.v_cache_head_stride = planes.v.head_stride / element;
  params.fault_indirect = arrays.fault_word();
  params.dependent_launch = inputs.dependent_launch;
  return params;
}

Status KVCache::Impl::CheckLayer(int layer) const {
  const auto layers = static_cast<int>(resolved.layers.size());
  if (layer >= 0 && layer < layers) return {};
  return InvalidArgument("layer " + std::to_string(layer) + ": allowed are 0 to " +
                         std::to_string(layers - 1));
}

Status KVCache::Impl::CheckGroup(int group) const {
  const int groups = resolved.footprint.num_groups;
  if (group >= 0 && group < groups) return {};
  return InvalidArgument("group " + std::to_string(group) + ": allowed are 0 to " +
                         std::to_string(groups - 1));
}

Status KVCache::Impl::CheckLayer(int layer, bool mla) const {
  if (Status s = CheckLayer(layer); !s.ok()) return s;
  if ((resolved.layers[static_cast<std::size_t>(layer)].kind == LayerKind::kMla) == mla) return {};
  const std::string name = "layer " + std::to_string(layer);
  if (mla) {
    return InvalidArgument(name +
                           " has keys and values: use Append or MlaCompress; MlaAppend and "
                           "MlaExpand are for MLA layers");
  }
  return InvalidArgument(name +
                         " is an MLA layer: use MlaAppend; Append and MlaCompress are for layers "
                         "with keys and values");
}

Result<const PlannedStep*> KVCache::Impl::PlanInUse(std::uint64_t id, int layer, bool mla) {
  const StepRecord* record = Find(id);
  if (manager.has_plan() || record == nullptr || record->plan.phase != StepPhase::kPrepared) {
    return NotReady(Name(id) + " is not prepared, or another plan is not");
  }
  if (id != last_prepared) {
    return NotReady(Name(id) + " is not the most recently prepared step: that is " +
                    std::to_string(last_prepared));
  }
  if (Status s = CheckLayer(layer, mla); !s.ok()) return s;
  return &record->plan;
}

Status KVCache::Impl::CheckQuery(const void* q, int q_heads) {
  if (q == nullptr || q_heads >= 1) return {};
  return InvalidArgument("q_heads " + std::to_string(q_heads) + ": allowed are 1 and more with q");
}

Status KVCache::Impl::Append(std::uint64_t id, int layer, const AppendInputs& inputs,
                             Stream stream) {
  const Result<const PlannedStep*> plan = PlanInUse(id, layer, /*mla=*/false);
  if (!plan.ok()) return plan.status();
  if (Status s = CheckQuery(inputs.q, inputs.q_heads); !s.ok()) return s;
  if (!device.backend().has_memory()) return {};
  const DeviceRange range("Append");
  return AppendRope(device, AppendParams(layer, inputs, (*plan)->padded_tokens), stream);
}

void KVCache::Impl::NoteEnd(StepRecord& record) {
  record.event_pending = true;
  last_event = record.event;
}

Status KVCache::Impl::Commit(std::uint64_t id, std::span<const StepCommit> commits, Stream stream) {
  StepRecord* record = Find(id);
  if (record == nullptr || record->plan.phase != StepPhase::kPrepared) {
    return NotReady(Name(id) + " is not prepared");
  }
  if (Status s = CheckStream(stream); !s.ok()) return s;
  // First, as a Commit cannot be taken back. Where it is refused the event stands for a later point
  // of the same stream, which is as good for whoever waits for it.
  if (Status s = device.Record(record->event, stream); !s.ok()) return s;
  if (Status s = manager.Commit(record->plan, commits); !s.ok()) return s;
  NoteEnd(*record);
  DiscardAbandoned();
  Publish();
  return {};
}

Status KVCache::Impl::Discard(std::uint64_t id, Stream stream) {
  StepRecord* record = Find(id);
  if (record == nullptr || record->plan.phase != StepPhase::kPrepared) {
    return NotReady(Name(id) + " is not prepared: drop it instead");
  }
  if (Status s = CheckStream(stream); !s.ok()) return s;
  if (Status s = manager.CheckDiscard(record->plan); !s.ok()) return s;
  if (Status s = device.Record(record->event, stream); !s.ok()) return s;
  manager.Discard(record->plan);
  NoteEnd(*record);
  DiscardAbandoned();
  Publish();
  return {};
}

void KVCache::Impl::Drop(std::uint64_t id) noexcept {
  StepRecord* record = Find(id);
  if (record == nullptr) return;
  if (record->plan.phase == StepPhase::kPlanned) {
    manager.Undo(record->plan);
  } else {
    record->plan.abandoned = true;
  }
  DiscardAbandoned();
  Publish();
}

bool KVCache::Impl::DiscardAbandoned() {
  bool any = false;
  const auto ready = [&](StepRecord& record) {
    try {
      return manager.CheckDiscard(record.plan).ok() &&
             device.Record(record.event, record.stream).ok();  // or the device is lost
    } catch (const std::exception&) {
      return false;  // out of memory: the next call tries again
    }
  };
  for (bool again = true; again;) {
    again = false;
    for (StepRecord& record : ring) {
      if (record.plan.phase != StepPhase::kPrepared || !record.plan.abandoned) continue;
      if (!ready(record)) continue;
      // What was decided before: the Discard may take places that those copies go to.
      StartWrites();
      manager.Discard(record.plan);
      NoteEnd(record);
      again = any = true;
    }
  }
  return any;
}

void KVCache::Impl::Harvest(StepRecord& record) {
  FaultRecord* fault = arrays.fault_record(SlotOf(record));
  if (fault == nullptr || fault->kind == FaultKind::kNone) {
    record.event_pending = false;
    return;
  }
  // Where memory is lacking, nothing has changed: the next call sees the fault again.
  faults.reserve(faults.size() + 1);
  std::vector<const PlannedStep*> later;
  for (const StepRecord& other : ring) {
    if (other.plan.id > record.plan.id && other.plan.phase != StepPhase::kUnused) {
      later.push_back(&other.plan);
    }
  }
  std::sort(later.begin(), later.end(),
            [](const PlannedStep* a, const PlannedStep* b) { return a->id < b->id; });
  manager.Quarantine(record.plan, later);
  faults.push_back({record.plan.id, fault->kind, fault->token, fault->value});
  *fault = {};
  record.event_pending = false;
}

Result<int> KVCache::Impl::HarvestPassed() {
  int pending = 0;
  for (StepRecord& record : ring) {
    if (!record.event_pending) continue;
    Result<bool> passed = device.Query(record.event);
    if (!passed.ok()) return passed.status();
    if (*passed) {
      Harvest(record);
    } else {
      ++pending;
    }
  }
  return pending;
}

Result<PollReport> KVCache::Impl::Poll() {
  if (manager.has_plan()) {
    return NotReady("a step is planned but not prepared: prepare or drop it first");
  }
  PollReport report;
  const Result<int> pending = HarvestPassed();
  if (!pending.ok()) return pending.status();
  report.pending_events = *pending;
  report.live_steps = manager.live_steps();
  if (tier != nullptr) {
    tier->Poll(report.finished_transfers);
    TellFailedBatches();
  }
  report.faults.swap(faults);
  Publish();
  return report;
}

// --- The handle -------------------------------------------------------------------------------

Step::Step(Step&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)), id_(std::exchange(other.id_, 0)) {}

Step& Step::operator=(Step&& other) noexcept {
  if (this != &other) {
    Step old(std::move(*this));
    impl_ = std::exchange(other.impl_, nullptr);
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

Step::~Step() {
  if (impl_ != nullptr) static_cast<KVCache::Impl*>(impl_)->Drop(id_);
}

std::int64_t Step::num_tokens() const {
  if (impl_ == nullptr) return 0;
  const StepRecord* record = static_cast<KVCache::Impl*>(impl_)->Find(id_);
  return record == nullptr ? 0 : record->plan.num_tokens;
}

std::int64_t Step::padded_tokens() const {
  if (impl_ == nullptr) return 0;
  const StepRecord* record = static_cast<KVCache::Impl*>(impl_)->Find(id_);
  return record == nullptr ? 0 : record->plan.padded_tokens;
}

int Step::padded_sequences() const {
  if (impl_ == nullptr) return 0;
  const StepRecord* record = static_cast<KVCache::Impl*>(impl_)->Find(id_);
  return record == nullptr ? 0 : record->plan.padded_sequences;
}

std::span<const StepRows> Step::rows() const {
  if (impl_ == nullptr) return {};
  const StepRecord* record = static_cast<KVCache::Impl*>(impl_)->Find(id_);
  return record == nullptr ? std::span<const StepRows>() : record->plan.rows;
}

}  // namespace lariat
