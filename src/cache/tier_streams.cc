// SPDX-License-Identifier: Apache-2.0
#include "cache/tier_streams.h"

#include <algorithm>
#include <utility>

namespace lariat::cache {

Result<std::unique_ptr<TierStreams>> TierStreams::Create(Device device,
                                                         const storage::BlockLayout& layout,
                                                         std::int64_t num_places) {
  Result<storage::HostStorage> host = storage::HostStorage::Create(device, layout, num_places);
  if (!host.ok()) return host.status();
  std::unique_ptr<TierStreams> tier(new TierStreams(std::move(device), *std::move(host)));
  if (Status s = tier->MakeStreams(); !s.ok()) return s;
  return tier;
}

Status TierStreams::MakeStreams() {
  ups_.reserve(16);
  free_events_.reserve(32);
  for (Stream* stream : {&down_, &up_}) {
    Result<Stream> made = device_.CreateStream();
    if (!made.ok()) return made.status();
    *stream = *made;
    ++streams_;
  }
  for (Batches& batches : ring_) {
    Result<Event> made = device_.CreateEvent();
    if (!made.ok()) return made.status();
    batches.event = *made;
    ++events_;
  }
  return {};
}

TierStreams::~TierStreams() {
  const Stream streams[] = {down_, up_};
  for (int i = 0; i < streams_; ++i) {
    (void)device_.Synchronize(streams[i]);
    device_.DestroyStream(streams[i]);
  }
  for (std::size_t i = 0; i < events_; ++i) device_.DestroyEvent(ring_[i].event);
  for (const Up& up : ups_) device_.DestroyEvent(up.event);
  for (const Event& event : free_events_) device_.DestroyEvent(event);
}

Status TierStreams::Synchronize() {
  if (Status s = device_.Synchronize(down_); !s.ok()) return s;
  return device_.Synchronize(up_);
}

// --- Down -------------------------------------------------------------------------------------

Status TierStreams::StartBatch(const storage::BlockStorage& blocks,
                               std::span<const blocks::TierCopy> copies, std::uint64_t batch,
                               Event after) {
  if (after.handle != nullptr) {
    if (Status s = device_.Wait(down_, after); !s.ok()) return s;
  }
  if (Status s = host_.Down(blocks, copies, down_); !s.ok()) return s;
  if (count_ == ring_.size()) Reap();
  const bool full = count_ == ring_.size();
  Batches& batches = at(full ? count_ - 1 : count_);
  if (Status s = device_.Record(batches.event, down_); !s.ok()) return s;
  batches.last = batch;
  if (full) return {};
  batches.first = batch;
  ++count_;
  return {};
}

Status TierStreams::WaitForBatch(Stream stream, std::uint64_t batch) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (at(i).first > batch) return {};  // it was seen to pass
    if (at(i).last < batch) continue;
    const Result<bool> passed = device_.Query(at(i).event);
    if (!passed.ok() || !*passed) return device_.Wait(stream, at(i).event);
    for (; i > 0; --i) DropOldest();  // the stream has passed those before it, too
    DropOldest();
    return {};
  }
  return {};
}

void TierStreams::DropOldest() {
  head_ = (head_ + 1) % ring_.size();
  --count_;
}

void TierStreams::Reap() {
  while (count_ > 0) {
    const Result<bool> passed = device_.Query(at(0).event);
    if (!passed.ok() || !*passed) return;
    DropOldest();
  }
}

// --- Up ---------------------------------------------------------------------------------------

Result<Event> TierStreams::TakeEvent() {
  if (free_events_.empty()) return device_.CreateEvent();
  const Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

Status TierStreams::StartTransfer(const storage::BlockStorage& blocks,
                                  const blocks::Transfer& transfer, Event after) {
  // Room first: what follows is not to be lost for want of memory.
  free_events_.reserve(
      std::max(free_events_.capacity(), free_events_.size() + 2 * (ups_.size() + 1)));
  ups_.push_back({transfer.id, transfer.fence, Event{}});
  const Result<Event> event = TakeEvent();
  if (!event.ok()) {
    ups_.pop_back();
    return event.status();
  }
  ups_.back().event = *event;
  Status put = PutUp(blocks, transfer, after, *event);
  if (put.ok()) return put;
  // Nothing may write to the blocks once they are given back.
  (void)device_.Synchronize(up_);
  free_events_.push_back(*event);
  ups_.pop_back();
  return put;
}

Status TierStreams::PutUp(const storage::BlockStorage& blocks, const blocks::Transfer& transfer,
                          Event after, Event done) {
  if (after.handle != nullptr) {
    if (Status s = device_.Wait(up_, after); !s.ok()) return s;
  }
  if (Status s = WaitForBatch(up_, transfer.fence); !s.ok()) return s;
  if (Status s = host_.Up(blocks, transfer.copies, up_); !s.ok()) return s;
  return device_.Record(done, up_);
}

// --- What is done -----------------------------------------------------------------------------

bool TierStreams::WaitOnHost(Event event, Stream waiting) {
  const Result<bool> passed = device_.Query(event);
  if (!passed.ok() || *passed) return passed.ok();
  return device_.Wait(waiting, event).ok() && device_.Synchronize(waiting).ok();
}

// What a failed batch wrote is not valid, and a transfer that may have read it brought nothing.
void TierStreams::Fail(const Batches& batches) {
  (void)device_.Synchronize(down_);
  for (std::uint64_t batch = batches.first; batch <= batches.last; ++batch) {
    failed_.push_back(batch);
  }
  for (Up& up : ups_) up.failed = up.failed || up.fence >= batches.first;
  for (Suspended& one : suspended_) {
    one.failed = one.failed || (one.batch >= batches.first && one.batch <= batches.last);
  }
}

void TierStreams::ReapAndTell() {
  while (count_ > 0) {
    const Result<bool> passed = device_.Query(at(0).event);
    if (passed.ok() && !*passed) return;
    if (!passed.ok()) Fail(at(0));
    DropOldest();
  }
}

void TierStreams::WaitFor(TransferId id, Stream waiting) {
  for (Up& up : ups_) {
    if (up.id > id || WaitOnHost(up.event, waiting)) continue;
    (void)device_.Synchronize(up_);  // it writes no more
    up.failed = true;
  }
  for (const Suspended& one : suspended_) {
    for (std::size_t i = 0; one.id == id && i < count_; ++i) {
      if (at(i).last < one.batch) continue;
      (void)WaitOnHost(at(i).event, waiting);
      break;
    }
  }
  ReapAndTell();  // those that it was behind have passed
}

bool TierStreams::Forget(TransferId id) {
  for (auto up = ups_.begin(); up != ups_.end(); ++up) {
    if (up->id != id) continue;
    const bool failed = up->failed;
    free_events_.push_back(up->event);
    ups_.erase(up);
    return failed;
  }
  for (auto one = suspended_.begin(); one != suspended_.end(); ++one) {
    if (one->id != id) continue;
    const bool failed = one->failed;
    suspended_.erase(one);
    return failed;
  }
  return false;
}

void TierStreams::Poll(std::vector<TransferReport>& finished) {
  finished.reserve(finished.size() + ups_.size() + suspended_.size());
  ReapAndTell();
  const std::uint64_t running = count_ > 0 ? at(0).first : ~std::uint64_t{0};
  for (const Suspended& one : suspended_) {
    if (one.batch < running) finished.push_back({one.id, one.failed});
  }
  std::erase_if(suspended_, [&](const Suspended& one) { return one.batch < running; });
  for (Up& up : ups_) {
    if (up.reported) continue;
    const Result<bool> passed = device_.Query(up.event);
    if (passed.ok() && !*passed) break;  // nor have those behind it
    up.failed = up.failed || !passed.ok();
    up.reported = true;
    finished.push_back({up.id, up.failed});
  }
  std::sort(finished.begin(), finished.end(),
            [](const TransferReport& a, const TransferReport& b) { return a.id < b.id; });
}

}  // namespace lariat::cache
