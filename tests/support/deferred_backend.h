// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "support/backend_decorator.h"

namespace lariat::testing {

// The CPU backend as late as a GPU may be: every call is queued on its stream and runs only in
// Synchronize, or when the test runs some work. Copies read their source when they run, so a
// staging buffer that is overwritten too early, or memory freed too early, shows.
class DeferredBackend : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  // Queues the test's own work, for example a reader.
  void Enqueue(Stream stream, std::function<void()> work) {
    queues_[stream.handle].push_back({std::move(work), nullptr, 0});
  }
  // Runs up to `tasks` tasks, of streams drawn at random; false when nothing is left.
  bool RunSome(std::int64_t tasks, std::mt19937_64& random) {
    for (; tasks > 0; --tasks) {
      std::vector<void*> ready;
      for (const auto& [handle, queue] : queues_) {
        if (!queue.empty() && Ready(queue.front())) ready.push_back(handle);
      }
      if (ready.empty()) return false;
      RunOne(ready[random() % ready.size()]);
    }
    return true;
  }
  // Runs what one stream, or all streams but one, can do while nothing else gets on.
  void RunOnly(Stream stream) {
    auto& queue = queues_[stream.handle];
    while (!queue.empty() && Ready(queue.front())) RunOne(stream.handle);
  }
  void RunAllBut(Stream stream) {
    while (RunOther(stream.handle)) {
    }
  }
  std::size_t pending() const {
    std::size_t sum = 0;
    for (const auto& [handle, queue] : queues_) sum += queue.size();
    return sum;
  }
  int failures() const { return failures_; }  // queued calls that did not answer ok

  Result<Stream> CreateStream() override { return Stream{&handles_.emplace_back()}; }
  void DestroyStream(Stream stream) noexcept override {
    if (!queues_[stream.handle].empty()) ++failures_;
    queues_.erase(stream.handle);
  }
  Status Synchronize(Stream stream) override {
    while (!queues_[stream.handle].empty()) {
      if (Ready(queues_[stream.handle].front())) {
        RunOne(stream.handle);
      } else if (!RunOther(stream.handle)) {
        return DeviceError("a stream waits for ever");
      }
    }
    return Status::Ok();
  }
  Result<Event> CreateEvent() override {
    events_.emplace_back();
    return Event{&events_.back()};
  }
  void DestroyEvent(Event) noexcept override {}  // its state stays: queued work may still use it
  Status Record(Event event, Stream stream) override {
    EventState* const state = static_cast<EventState*>(event.handle);
    const std::uint64_t ticket = ++state->recorded;
    Enqueue(stream, [state, ticket] { state->passed = std::max(state->passed, ticket); });
    return Status::Ok();
  }
  Status Wait(Stream stream, Event event) override {
    const EventState* const state = static_cast<EventState*>(event.handle);
    queues_[stream.handle].push_back({[] {}, state, state->recorded});
    return Status::Ok();
  }
  Result<bool> Query(Event event) override {
    const EventState* const state = static_cast<EventState*>(event.handle);
    return state->passed >= state->recorded;
  }
  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    return Defer(stream, [this, list = std::vector<BlockCopy>(copies.begin(), copies.end())] {
      return inner().Copy(list, Stream{});
    });
  }
  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) override {
    return Defer(stream,
                 [this, dst, value, bytes] { return inner().Fill(dst, value, bytes, Stream{}); });
  }
  Status RopeUpdate(const RopeUpdateParams& params, Stream stream) override {
    return Defer(stream, [this, params] { return inner().RopeUpdate(params, Stream{}); });
  }
  Status AppendRope(const AppendRopeParams& params, Stream stream) override {
    return Defer(stream, [this, params] { return inner().AppendRope(params, Stream{}); });
  }
  Status BuildStepTables(const StepTablesParams& params, Stream stream) override {
    return Defer(stream, [this, params] { return inner().BuildStepTables(params, Stream{}); });
  }
  Status Gemm(const GemmParams& params, Stream stream) override {
    return Defer(stream, [this, params] { return inner().Gemm(params, Stream{}); });
  }
  Status MlaAppendRows(const MlaAppendParams& params, Stream stream) override {
    return Defer(stream, [this, params] { return inner().MlaAppendRows(params, Stream{}); });
  }
  Status MlaGather(const MlaGatherParams& params, Stream stream) override {
    return Defer(stream, [this, params] { return inner().MlaGather(params, Stream{}); });
  }

 private:
  struct EventState {
    std::uint64_t recorded = 0, passed = 0;
  };
  struct Task {
    std::function<void()> work;
    const EventState* waits_for = nullptr;
    std::uint64_t ticket = 0;
  };

  static bool Ready(const Task& task) {
    return task.waits_for == nullptr || task.waits_for->passed >= task.ticket;
  }
  Status Defer(Stream stream, std::function<Status()> call) {
    Enqueue(stream, [this, call = std::move(call)] {
      if (!call().ok()) ++failures_;
    });
    return Status::Ok();
  }
  void RunOne(void* handle) {
    const Task task = std::move(queues_[handle].front());
    queues_[handle].pop_front();
    task.work();
  }
  bool RunOther(void* handle) {
    for (auto& [other, queue] : queues_) {
      if (other == handle || queue.empty() || !Ready(queue.front())) continue;
      RunOne(other);
      return true;
    }
    return false;
  }

  std::map<void*, std::deque<Task>> queues_;
  std::deque<EventState> events_;
  std::deque<char> handles_;
  int failures_ = 0;
};

}  // namespace lariat::testing
