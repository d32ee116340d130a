// SPDX-License-Identifier: Apache-2.0
// The host tier: what the block manager decides to copy, put on the tier's streams.
#include <utility>

#include "backend/device_range.h"
#include "cache/kv_cache_impl.h"

namespace lariat {

Status KVCache::Impl::CheckTier() const {
  return tier != nullptr ? Status() : Unsupported("host: the cache has no host tier");
}

// A copy that does not start leaves its block without one, which is no error of the call that
// wanted it.
void KVCache::Impl::StartWrites() {
  if (tier == nullptr || manager.pending_writes().empty()) return;
  const DeviceRange range("WriteBack");
  const Status started = Guarded([&] {
    return tier->StartBatch(storage, manager.pending_writes(), manager.next_batch(), last_event);
  });
  if (started.ok()) {
    manager.WritesStarted();
  } else {
    manager.WritesFailed();
  }
}

void KVCache::Impl::TellFailedBatches() {
  for (const std::uint64_t batch : tier->TakeFailed()) manager.BatchFailed(batch);
}

Result<TransferId> KVCache::Impl::Suspend(SequenceId sequence) {
  if (Status s = CheckTier(); !s.ok()) return s;
  const DeviceRange range("Suspend");
  tier->ExpectSuspend();
  if (Status s = manager.BeginSuspend(sequence); !s.ok()) return s;
  const std::uint64_t batch = manager.next_batch();
  if (!manager.pending_writes().empty()) {
    const Status started = Guarded(
        [&] { return tier->StartBatch(storage, manager.pending_writes(), batch, last_event); });
    if (!started.ok()) {
      manager.UndoSuspend();
      Publish();
      return started;
    }
  }
  const TransferId id = manager.FinishSuspend();
  if (id != TransferId::kNone) tier->NoteSuspend(id, batch);
  Publish();
  return id;
}

// What Fetch and Resume share: the copies of a transfer that was decided on.
Result<TransferId> KVCache::Impl::StartTransfer(const Result<TransferId>& decided) {
  if (!decided.ok()) return decided;
  if (*decided != TransferId::kNone) {
    const blocks::Transfer* const transfer = manager.FindTransfer(*decided);
    const Status started =
        Guarded([&] { return tier->StartTransfer(storage, *transfer, last_event); });
    if (!started.ok()) {
      manager.UndoTransfer(*decided);
      Publish();
      return started;
    }
    manager.TransferStarted(*decided);
  }
  Publish();
  return decided;
}

Result<TransferId> KVCache::Impl::Fetch(SequenceId sequence) {
  if (Status s = CheckTier(); !s.ok()) return s;
  const DeviceRange range("Fetch");
  return StartTransfer(manager.Fetch(sequence));
}

Result<TransferId> KVCache::Impl::Resume(SequenceId sequence) {
  if (Status s = CheckTier(); !s.ok()) return s;
  const DeviceRange range("Resume");
  return StartTransfer(manager.Resume(sequence));
}

Result<TransferReport> KVCache::Impl::Accept(TransferId id) {
  if (Status s = CheckTier(); !s.ok()) return s;
  if (Status s = manager.CheckAccept(id); !s.ok()) return s;
  tier->WaitFor(id, *side_stream);
  // Steps that they were behind have passed: what those wrote wrongly is known before it is cached.
  if (const Result<int> pending = HarvestPassed(); !pending.ok()) return pending.status();
  TellFailedBatches();
  TransferReport report{id, false};
  for (TransferId oldest = manager.oldest_transfer(); oldest != TransferId::kNone && oldest <= id;
       oldest = manager.oldest_transfer()) {
    const bool failed = tier->Forget(oldest);
    if (oldest == id) report.failed = failed;
    manager.Accept(oldest, failed);
    StartWrites();  // a later transfer may push out what was just decided to be written
  }
  if (tier->Forget(id)) report.failed = true;  // a Suspend
  Publish();
  return report;
}

// --- The public calls -------------------------------------------------------------------------

Result<TransferId> KVCache::Fetch(SequenceId sequence) {
  return Guarded([&] { return impl_->Fetch(sequence); });
}

Result<TransferId> KVCache::Suspend(SequenceId sequence) {
  return Guarded([&] { return impl_->Suspend(sequence); });
}

Result<TransferId> KVCache::Resume(SequenceId sequence) {
  return Guarded([&] { return impl_->Resume(sequence); });
}

Result<TransferReport> KVCache::Accept(TransferId transfer) {
  return Guarded([&] { return impl_->Accept(transfer); });
}

}  // namespace lariat
