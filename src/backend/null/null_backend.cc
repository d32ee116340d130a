// SPDX-License-Identifier: Apache-2.0
#include "backend/null/null_backend.h"

#include <atomic>
#include <cstdint>

namespace lariat::null {
namespace {

constexpr std::uint64_t kAlignment = 256;
// User space ends far below on every machine: touching such an address faults at once.
constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 58;
constexpr std::uint64_t kEndAddress = std::uint64_t{1} << 62;

class NullBackend final : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::kNull; }
  std::string name() const override { return "null"; }
  bool has_memory() const override { return false; }

  Result<void*> Allocate(MemoryKind, std::size_t bytes) override {
    std::uint64_t address = next_.load(std::memory_order_relaxed);
    std::uint64_t after = 0;
    do {
      if (bytes > kEndAddress - address - kAlignment) {
        return ResourceExhausted("no addresses left for an allocation of " + std::to_string(bytes) +
                                 " bytes");
      }
      // One more than asked for, so that buffers of 0 bytes differ too.
      after = address + (std::uint64_t{bytes} / kAlignment + 1) * kAlignment;
    } while (!next_.compare_exchange_weak(address, after, std::memory_order_relaxed));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  }
  void Free(MemoryKind, void*, std::size_t) noexcept override {}  // addresses are not used again

  Result<Stream> CreateStream() override { return Stream{}; }
  void DestroyStream(Stream) noexcept override {}
  Status Synchronize(Stream) override { return {}; }
  Result<Event> CreateEvent() override { return Event{}; }
  void DestroyEvent(Event) noexcept override {}
  Status Record(Event, Stream) override { return {}; }
  Status Wait(Stream, Event) override { return {}; }
  Result<bool> Query(Event) override { return true; }

  Status Copy(std::span<const BlockCopy>, Stream) override { return {}; }
  Status Fill(void*, std::uint8_t, std::size_t, Stream) override { return {}; }
  Status RopeUpdate(const RopeUpdateParams&, Stream) override { return {}; }
  Status AppendRope(const AppendRopeParams&, Stream) override { return {}; }
  Status BuildStepTables(const StepTablesParams&, Stream) override { return {}; }
  Status Gemm(const GemmParams&, Stream) override { return {}; }
  Status WarmupGemm(const GemmParams&, Stream) override { return {}; }
  std::int64_t GemmWorkspaceBytes() const override { return 0; }
  Result<void*> Scratch(ScratchUse, std::size_t, Stream) override { return nullptr; }
  bool FusedFits(const MlaCompressParams&) const override { return true; }
  bool FusedIsFaster(const MlaCompressParams&) const override { return true; }
  Status MlaCompressFused(const MlaCompressParams&, Stream) override { return {}; }
  Status MlaAppendRows(const MlaAppendParams&, Stream) override { return {}; }
  Status MlaGather(const MlaGatherParams&, Stream) override { return {}; }

 private:
  std::atomic<std::uint64_t> next_{kFirstAddress};
};

}  // namespace

std::shared_ptr<Backend> MakeNullBackend() { return std::make_shared<NullBackend>(); }

}  // namespace lariat::null
