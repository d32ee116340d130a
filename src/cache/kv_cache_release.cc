// SPDX-License-Identifier: Apache-2.0
// The pool given back to the device and taken again.
#include "cache/kv_cache_impl.h"

namespace lariat {

Status KVCache::Impl::CheckAcquired() const {
  return released ? NotReady("the pool was given back by Release: call Reacquire first") : Status();
}

Status KVCache::Impl::Release() {
  if (released) return {};
  Stats now;
  manager.FillStats(now);
  if (now.sequences > 0 || manager.live_steps() > 0) {
    return NotReady(std::to_string(now.sequences) + " sequences are open and " +
                    std::to_string(manager.live_steps()) + " steps live: end them first");
  }
  if (manager.oldest_transfer() != TransferId::kNone) {
    return NotReady("a transfer is not accepted yet");
  }
  if (manager.has_plan()) return NotReady("a step is planned but not prepared");
  // Whatever still reads or writes the pool.
  for (const StepRecord& record : ring) {
    if (!record.event_pending) continue;
    if (Status s = WaitFor(record.event); !s.ok()) return s;
  }
  if (const Result<int> pending = HarvestPassed(); !pending.ok()) return pending.status();
  if (tier != nullptr) {
    if (Status s = tier->Synchronize(); !s.ok()) return s;
  }
  if (Status s = manager.Clear(); !s.ok()) return s;
  Publish();
  storage.Release();
  released = true;
  return {};
}

Status KVCache::Impl::Reacquire() {
  if (!released) return {};
  if (Status s = storage.Acquire(); !s.ok()) return s;
  if (Status s = device.Synchronize(Stream{}); !s.ok()) {
    storage.Release();
    return s;
  }
  released = false;
  return {};
}

Status KVCache::Release() {
  return Guarded([&] { return impl_->Release(); });
}
Status KVCache::Reacquire() {
  return Guarded([&] { return impl_->Reacquire(); });
}

}  // namespace lariat
