// SPDX-License-Identifier: Apache-2.0
#include "backend/deferred_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "backend/backend_decorator.h"

namespace lariat {
namespace {

// Whether [a, a + a_bytes) and [b, b + b_bytes) share a byte.
bool Overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* const x = static_cast<const std::byte*>(a);
  const auto* const y = static_cast<const std::byte*>(b);
  const std::less<> before;
  return before(x, y + b_bytes) && before(y, x + a_bytes);
}

// One Record of an event.
struct Mark {
  bool passed = false;
  void* stream = nullptr;
  int asked = 0;  // times by the host
};
using SharedMark = std::shared_ptr<Mark>;

// What a late stream still has to do: copies, or to pass a mark, or to wait for one.
struct Task {
  std::vector<BlockCopy> copies;
  SharedMark mark;
  bool waits = false;
};

class DeferredBackend final : public BackendDecorator {
 public:
  DeferredBackend(std::shared_ptr<Backend> inner, std::uint64_t seed)
      : BackendDecorator(std::move(inner)), random_(seed) {}

  std::string name() const override { return BackendDecorator::name() + ", deferred"; }

  Result<Stream> CreateStream() override {
    const std::lock_guard lock(mutex_);
    void* const handle = NewHandle();
    streams_[handle];
    return Stream{handle};
  }
  void DestroyStream(Stream stream) noexcept override {
    const std::lock_guard lock(mutex_);
    Drain(stream.handle);
    streams_.erase(stream.handle);
  }
  Status Synchronize(Stream stream) override {
    const std::lock_guard lock(mutex_);
    Drain(stream.handle);
    return failed_.ok() ? inner().Synchronize({}) : failed_;
  }

  Result<Event> CreateEvent() override {
    const std::lock_guard lock(mutex_);
    void* const handle = NewHandle();
    events_[handle] = nullptr;
    return Event{handle};
  }
  void DestroyEvent(Event event) noexcept override {
    const std::lock_guard lock(mutex_);
    events_.erase(event.handle);
  }
  Status Record(Event event, Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto mark = std::make_shared<Mark>(Mark{Idle(stream.handle), stream.handle});
    events_.at(event.handle) = mark;
    if (!mark->passed) streams_[stream.handle].push_back({{}, mark, false});
    return failed_;
  }
  Status Wait(Stream stream, Event event) override {
    const std::lock_guard lock(mutex_);
    const SharedMark mark = events_.at(event.handle);
    if (mark == nullptr || mark->passed) return failed_;
    if (const auto late = streams_.find(stream.handle); late != streams_.end()) {
      late->second.push_back({{}, mark, true});
    } else {
      Reach(*mark);
    }
    return failed_;
  }
  Result<bool> Query(Event event) override {
    const std::lock_guard lock(mutex_);
    const SharedMark mark = events_.at(event.handle);
    if (mark != nullptr && !mark->passed && ++mark->asked > static_cast<int>(random_() % 3)) {
      Reach(*mark);
    }
    if (!failed_.ok()) return failed_;
    return mark == nullptr || mark->passed;
  }

  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto late = streams_.find(stream.handle);
    if (late == streams_.end()) return inner().Copy(copies, stream);
    for (const BlockCopy& copy : copies) {
      if (has_memory() && copy.bytes > 0 && !StillRead(copy)) {
        if (Status s = inner().Fill(copy.dst, 0xFF, copy.bytes, {}); !s.ok()) return s;
      }
    }
    late->second.push_back({{copies.begin(), copies.end()}, nullptr, false});
    Stray();
    return failed_;
  }

  // All else runs at once, behind what its stream still has to do.
  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) override {
    return Behind(stream, [&] { return inner().Fill(dst, value, bytes, {}); });
  }
  Status RopeUpdate(const RopeUpdateParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().RopeUpdate(params, {}); });
  }
  Status AppendRope(const AppendRopeParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().AppendRope(params, {}); });
  }
  Status BuildStepTables(const StepTablesParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().BuildStepTables(params, {}); });
  }
  Status Gemm(const GemmParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().Gemm(params, {}); });
  }
  Status MlaCompressFused(const MlaCompressParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().MlaCompressFused(params, {}); });
  }
  Status MlaAppendRows(const MlaAppendParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().MlaAppendRows(params, {}); });
  }
  Status MlaGather(const MlaGatherParams& params, Stream stream) override {
    return Behind(stream, [&] { return inner().MlaGather(params, {}); });
  }

 private:
  // Counted, so that two runs go through streams in the same order.
  void* NewHandle() { return reinterpret_cast<void*>(++handles_); }

  bool Idle(void* stream) const {
    const auto late = streams_.find(stream);
    return late == streams_.end() || late->second.empty();
  }

  template <class Call>
  Status Behind(Stream stream, Call call) {
    {
      const std::lock_guard lock(mutex_);
      Drain(stream.handle);
      if (!failed_.ok()) return failed_;
    }
    return call();
  }

  // Whether a copy that has not run reads what this one will write.
  bool StillRead(const BlockCopy& copy) const {
    for (const auto& [handle, tasks] : streams_) {
      for (const Task& task : tasks) {
        for (const BlockCopy& other : task.copies) {
          if (Overlap(copy.dst, copy.bytes, other.src, other.bytes)) return true;
        }
      }
    }
    return false;
  }

  // Whether a stream can go on without another one's help.
  static bool Ready(const std::deque<Task>& tasks) {
    return !tasks.empty() && (!tasks.front().waits || tasks.front().mark->passed);
  }

  // One copy, or one mark, of the first task.
  void RunOne(std::deque<Task>& tasks) {
    Task& task = tasks.front();
    if (task.mark != nullptr) {
      if (!task.waits) task.mark->passed = true;
    } else if (!task.copies.empty()) {
      std::swap(task.copies[random_() % task.copies.size()], task.copies.back());
      if (Status s = inner().Copy({&task.copies.back(), 1}, {}); !s.ok()) failed_ = s;
      task.copies.pop_back();
    }
    if (task.copies.empty()) tasks.pop_front();
  }

  // Now and then something runs that nobody waits for.
  void Stray() {
    for (auto& [handle, tasks] : streams_) {
      if (random_() % 8 == 0 && Ready(tasks)) RunOne(tasks);
    }
  }

  void Reach(const Mark& mark) {
    while (!mark.passed) Advance(mark.stream);
  }
  void Drain(void* stream) {
    while (!Idle(stream)) Advance(stream);
  }
  // A stream that waits for another one takes that one along.
  void Advance(void* stream) {
    Stray();
    std::deque<Task>& tasks = streams_.at(stream);
    if (Ready(tasks)) {
      RunOne(tasks);
    } else if (!tasks.empty()) {
      const SharedMark mark = tasks.front().mark;
      Reach(*mark);
    }
  }

  std::mutex mutex_;  // guards all below
  std::mt19937_64 random_;
  std::map<void*, std::deque<Task>> streams_;
  std::map<void*, SharedMark> events_;  // the last Record; null: none yet
  std::uintptr_t handles_ = 0;
  Status failed_;  // of a copy that ran late
};

}  // namespace

std::shared_ptr<Backend> MakeDeferredBackend(std::shared_ptr<Backend> inner, std::uint64_t seed) {
  return std::make_shared<DeferredBackend>(std::move(inner), seed);
}

}  // namespace lariat
