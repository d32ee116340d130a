// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <set>

#include "support/backend_decorator.h"

namespace lariat::testing {

// Fails copies between the device and pinned memory on streams of CreateStream: the host tier's.
// A copy call that fails has put the first half of its copies on the stream, as a driver may.
class FailingCopies : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  // n counts from 1, from now on; 0: none.
  void FailAt(std::int64_t n) { left_ = n; }
  // All events recorded on such streams from now on are asked in vain.
  void FailEvents(bool fail) { fail_events_ = fail; }
  std::int64_t failed() const { return failed_; }

  Result<void*> Allocate(MemoryKind kind, std::size_t bytes) override {
    auto memory = inner().Allocate(kind, bytes);
    if (memory.ok() && kind == MemoryKind::kPinnedHost) {
      const auto first = reinterpret_cast<std::uintptr_t>(*memory);
      pinned_.insert({first, first + bytes});
    }
    return memory;
  }
  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    if (stream.handle == nullptr || copies.empty() || !Tier(copies[0]) || left_ == 0 ||
        --left_ > 0) {
      return inner().Copy(copies, stream);
    }
    ++failed_;
    const auto half = copies.first(copies.size() / 2);
    if (!half.empty()) {
      if (Status s = inner().Copy(half, stream); !s.ok()) return s;
    }
    return DeviceError("planned fault");
  }
  Status Record(Event event, Stream stream) override {
    doomed_.erase(event.handle);
    if (fail_events_ && stream.handle != nullptr) doomed_.insert(event.handle);
    return inner().Record(event, stream);
  }
  Result<bool> Query(Event event) override {
    if (doomed_.count(event.handle) == 0) return inner().Query(event);
    return DeviceError("planned fault");
  }

 private:
  bool Tier(const BlockCopy& copy) const {
    for (const void* side : {static_cast<const void*>(copy.dst), copy.src}) {
      const auto address = reinterpret_cast<std::uintptr_t>(side);
      for (const auto& [first, end] : pinned_) {
        if (address >= first && address < end) return true;
      }
    }
    return false;
  }

  std::int64_t left_ = 0, failed_ = 0;
  bool fail_events_ = false;
  std::set<void*> doomed_;
  std::set<std::pair<std::uintptr_t, std::uintptr_t>> pinned_;
};

}  // namespace lariat::testing
