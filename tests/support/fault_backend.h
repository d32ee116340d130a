// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>

#include "support/backend_decorator.h"

namespace lariat::testing {

// Fails the n-th call that can fail (once, or it and all that follow), and keeps account of what
// was taken and given back. A call that fails does nothing.
class FaultBackend : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  // n counts from 1, from now on; 0: none.
  void FailAt(std::int64_t n, bool and_after = false) {
    calls_ = 0;
    fail_at_ = n;
    and_after_ = and_after;
    failed_ = 0;
  }
  std::int64_t calls() const { return calls_; }
  std::int64_t failed() const { return failed_; }
  const std::string& failed_call() const { return failed_call_; }
  // Memory, streams and events that are still out.
  std::size_t outstanding() const { return memory_.size() + streams_.size() + events_.size(); }
  std::size_t bytes(MemoryKind kind) const {
    std::size_t sum = 0;
    for (const auto& [memory, block] : memory_) sum += block.first == kind ? block.second : 0;
    return sum;
  }
  // Frees of something that was not out, or with another kind or size than it was taken with.
  int wrong_frees() const { return wrong_frees_; }

  Result<void*> Allocate(MemoryKind kind, std::size_t bytes) override {
    if (Fails("Allocate")) return ResourceExhausted("planned fault");
    auto memory = inner().Allocate(kind, bytes);
    if (memory.ok()) memory_[*memory] = {kind, bytes};
    return memory;
  }
  void Free(MemoryKind kind, void* memory, std::size_t bytes) noexcept override {
    const auto found = memory_.find(memory);
    if (found == memory_.end() || found->second != std::pair(kind, bytes)) ++wrong_frees_;
    if (found != memory_.end()) memory_.erase(found);
    inner().Free(kind, memory, bytes);
  }
  Result<Stream> CreateStream() override {
    if (Fails("CreateStream")) return DeviceError("planned fault");
    auto stream = inner().CreateStream();
    if (stream.ok()) streams_.insert(stream->handle);
    return stream;
  }
  void DestroyStream(Stream stream) noexcept override {
    Remove(streams_, stream.handle);
    inner().DestroyStream(stream);
  }
  // Events get handles of their own: the CPU's are all null, which would say nothing.
  Result<Event> CreateEvent() override {
    if (Fails("CreateEvent")) return DeviceError("planned fault");
    auto event = inner().CreateEvent();
    if (!event.ok()) return event;
    auto own = std::make_unique<Event>(*event);
    void* const handle = own.get();
    events_[handle] = std::move(own);
    return Event{handle};
  }
  void DestroyEvent(Event event) noexcept override {
    if (events_.count(event.handle) == 0) {
      ++wrong_frees_;
      return;
    }
    inner().DestroyEvent(*events_.at(event.handle));
    events_.erase(event.handle);
  }
  Status Synchronize(Stream stream) override {
    if (Fails("Synchronize")) return DeviceError("planned fault");
    return inner().Synchronize(stream);
  }
  Status Record(Event event, Stream stream) override {
    if (Fails("Record")) return DeviceError("planned fault");
    return inner().Record(*events_.at(event.handle), stream);
  }
  Status Wait(Stream stream, Event event) override {
    if (Fails("Wait")) return DeviceError("planned fault");
    return inner().Wait(stream, *events_.at(event.handle));
  }
  Result<bool> Query(Event event) override {
    if (Fails("Query")) return DeviceError("planned fault");
    return inner().Query(*events_.at(event.handle));
  }
  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    if (Fails("Copy")) return DeviceError("planned fault");
    return inner().Copy(copies, stream);
  }
  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) override {
    if (Fails("Fill")) return DeviceError("planned fault");
    return inner().Fill(dst, value, bytes, stream);
  }
  Status AppendRope(const AppendRopeParams& params, Stream stream) override {
    if (Fails("AppendRope")) return DeviceError("planned fault");
    return inner().AppendRope(params, stream);
  }
  Status BuildStepTables(const StepTablesParams& params, Stream stream) override {
    if (Fails("BuildStepTables")) return DeviceError("planned fault");
    return inner().BuildStepTables(params, stream);
  }
  Status Gemm(const GemmParams& params, Stream stream) override {
    if (Fails("Gemm")) return DeviceError("planned fault");
    return inner().Gemm(params, stream);
  }
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream stream) override {
    if (Fails("Scratch")) return ResourceExhausted("planned fault");
    return inner().Scratch(use, bytes, stream);
  }
  Status MlaAppendRows(const MlaAppendParams& params, Stream stream) override {
    if (Fails("MlaAppendRows")) return DeviceError("planned fault");
    return inner().MlaAppendRows(params, stream);
  }
  Status MlaGather(const MlaGatherParams& params, Stream stream) override {
    if (Fails("MlaGather")) return DeviceError("planned fault");
    return inner().MlaGather(params, stream);
  }

 private:
  bool Fails(const char* call) {
    ++calls_;
    if (fail_at_ == 0 || calls_ < fail_at_ || (calls_ > fail_at_ && !and_after_)) return false;
    ++failed_;
    failed_call_ = call;
    return true;
  }
  // Handles may repeat (the CPU's are all alike), so each is counted.
  void Remove(std::multiset<void*>& from, void* handle) {
    const auto found = from.find(handle);
    if (found == from.end()) {
      ++wrong_frees_;
    } else {
      from.erase(found);
    }
  }

  std::int64_t calls_ = 0, fail_at_ = 0, failed_ = 0;
  bool and_after_ = false;
  std::string failed_call_;
  std::map<void*, std::pair<MemoryKind, std::size_t>> memory_;
  std::multiset<void*> streams_;
  std::map<void*, std::unique_ptr<Event>> events_;
  int wrong_frees_ = 0;
};

}  // namespace lariat::testing
