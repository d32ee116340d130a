// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "blocks/transfer.h"
#include "lariat/device.h"
#include "lariat/kv_cache.h"
#include "storage/host_storage.h"

namespace lariat::cache {

// The copies between the device's blocks and the host tier. They have two streams of their own, so
// that both directions run at once and nothing of a step queues behind either. Numbers of batches
// and ids of transfers are the block manager's, which also says what has to be behind what.
// Owns streams, events and pinned memory. Threads: externally synchronised.
class TierStreams {
 public:
  static Result<std::unique_ptr<TierStreams>> Create(Device device,
                                                     const storage::BlockLayout& layout,
                                                     std::int64_t num_places);
  ~TierStreams();        // waits for the copies
  Status Synchronize();  // blocks the host until all copies that were started are done
  TierStreams(const TierStreams&) = delete;
  TierStreams& operator=(const TierStreams&) = delete;

  // Starts the copies down behind `after` (null: nothing). Batches that start are numbered upwards.
  // Where it fails, some of the copies may be on their way.
  Status StartBatch(const storage::BlockStorage& blocks, std::span<const blocks::TierCopy> copies,
                    std::uint64_t batch, Event after);
  // Puts the stream behind the batch and all before it; nothing where they were seen to pass.
  Status WaitForBatch(Stream stream, std::uint64_t batch);
  // A Suspend whose copies are this batch, for Poll; first makes room for one more.
  void ExpectSuspend() { suspended_.reserve(suspended_.size() + 1); }
  void NoteSuspend(TransferId id, std::uint64_t batch) { suspended_.push_back({id, batch}); }

  // Starts a transfer's copies up behind its fence and `after`. Where it fails, none is on its way
  // any more, but what some wrote stays.
  Status StartTransfer(const storage::BlockStorage& blocks, const blocks::Transfer& transfer,
                       Event after);
  // Blocks the host, on a stream without work, until the copies of a transfer or a Suspend, and of
  // all transfers before it, are done.
  void WaitFor(TransferId id, Stream waiting);
  // Returns whether it failed, and forgets it; of one that is not known: no.
  bool Forget(TransferId id);

  // Looks at events without blocking; adds what is done to `finished`, each once, in order of ids.
  void Poll(std::vector<TransferReport>& finished);
  // Takes the batches that Poll or WaitFor found to have failed.
  std::vector<std::uint64_t> TakeFailed() { return std::exchange(failed_, {}); }

 private:
  // Batches that one event stands for.
  struct Batches {
    std::uint64_t first = 0, last = 0;
    Event event;
  };
  struct Up {
    TransferId id = TransferId::kNone;
    std::uint64_t fence = 0;
    Event event;
    bool failed = false;
    bool reported = false;
  };
  struct Suspended {
    TransferId id = TransferId::kNone;
    std::uint64_t batch = 0;
    bool failed = false;
  };

  TierStreams(Device device, storage::HostStorage host)
      : device_(std::move(device)), host_(std::move(host)) {}
  Status MakeStreams();
  Result<Event> TakeEvent();
  Status PutUp(const storage::BlockStorage& blocks, const blocks::Transfer& transfer, Event after,
               Event done);
  Batches& at(std::size_t i) { return ring_[(head_ + i) % ring_.size()]; }
  void DropOldest();
  // Drops batches that have passed; those that failed as well, where that can be told.
  void Reap();
  void ReapAndTell();
  void Fail(const Batches& batches);
  bool WaitOnHost(Event event, Stream waiting);

  Device device_;
  storage::HostStorage host_;
  Stream down_, up_;
  int streams_ = 0;         // of the two, made
  std::size_t events_ = 0;  // of the ring, made
  // Batches on their way, oldest first, in a ring of events. When all are taken, the newest one
  // also stands for what is started next: who waits for it may wait for more than it must.
  std::array<Batches, 64> ring_;
  std::size_t head_ = 0, count_ = 0;
  std::vector<Up> ups_;  // in the order of their start, which is that of their ids
  std::vector<Suspended> suspended_;
  std::vector<Event> free_events_;
  std::vector<std::uint64_t> failed_;
};

}  // namespace lariat::cache
