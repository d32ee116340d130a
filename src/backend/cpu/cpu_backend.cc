// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/vector.h"
#include "backend/scratch_pool.h"

namespace lariat::cpu {
namespace {

constexpr std::size_t kAlignment = 256;
// From here on a buffer is a mapping of its own, whose pages appear when they are written.
constexpr std::size_t kMappingBytes = std::size_t{4} << 20;

// The mappings handed out, so that a large fill with zeros can give pages back instead of
// touching them: a pool of many GiB then costs what is used of it.
class Mappings {
 public:
  void* Map(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    const std::lock_guard lock(mutex_);
    sizes_[static_cast<std::byte*>(memory)] = bytes;
    return memory;
  }

  void Unmap(void* memory, std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      sizes_.erase(static_cast<std::byte*>(memory));
    }
    munmap(memory, bytes);
  }

  // Whether [first, first + bytes) lies in one mapping.
  bool Holds(const std::byte* first, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto next = sizes_.upper_bound(const_cast<std::byte*>(first));
    if (next == sizes_.begin()) return false;
    const auto& [start, size] = *std::prev(next);
    const auto offset = static_cast<std::size_t>(first - start);
    return offset < size && bytes <= size - offset;
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> sizes_;  // guarded by mutex_
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::unique_ptr<Crew> crew) : crew_(std::move(crew)) {}
  BackendKind kind() const override { return BackendKind::kCpu; }
  std::string name() const override { return "cpu"; }
  bool has_memory() const override { return true; }
  int threads() const override { return crew_->threads(); }
  std::vector<std::string> Tuning() const override {
    return {std::string("rows by ")
                .append(std::to_string(threads()))
                .append(threads() == 1 ? " thread, "
                                       : " threads where a call moves 128 KiB or more for each, ") +
            std::string(WidthName(WidestVectors())).append(" vectors; products by CBLAS in fp32")};
  }

  Result<void*> Allocate(MemoryKind, std::size_t bytes) override {
    void* memory = nullptr;
    if (bytes >= kMappingBytes) {
      memory = mappings_.Map(bytes);
    } else {
      memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    }
    if (memory == nullptr) {
      return ResourceExhausted("no room for an allocation of " + std::to_string(bytes) +
                               " bytes of host memory");
    }
    return memory;
  }

  void Free(MemoryKind, void* memory, std::size_t bytes) noexcept override {
    if (bytes >= kMappingBytes) {
      mappings_.Unmap(memory, bytes);
    } else {
      std::free(memory);
    }
  }

  Result<Stream> CreateStream() override { return Stream{}; }
  void DestroyStream(Stream) noexcept override {}
  Status Synchronize(Stream) override { return {}; }
  Result<Event> CreateEvent() override { return Event{}; }
  void DestroyEvent(Event) noexcept override {}
  Status Record(Event, Stream) override { return {}; }
  Status Wait(Stream, Event) override { return {}; }
  Result<bool> Query(Event) override { return true; }

  Status Copy(std::span<const BlockCopy> copies, Stream) override {
    for (const BlockCopy& copy : copies) {
      if (copy.bytes > 0) std::memcpy(copy.dst, copy.src, copy.bytes);
    }
    return {};
  }

  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream) override {
    auto* first = static_cast<std::byte*>(dst);
    if (value == 0 && bytes >= kMappingBytes && mappings_.Holds(first, bytes)) {
      const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
      const std::size_t head = (page - reinterpret_cast<std::uintptr_t>(first) % page) % page;
      const std::size_t pages = (bytes - head) / page * page;
      // Private anonymous pages that are given back read as zeros.
      if (madvise(first + head, pages, MADV_DONTNEED) == 0) {
        std::memset(first, 0, head);
        std::memset(first + head + pages, 0, bytes - head - pages);
        return {};
      }
    }
    std::memset(dst, value, bytes);
    return {};
  }

  Status RopeUpdate(const RopeUpdateParams& params, Stream) override {
    cpu::RopeUpdate(params, *crew_);
    return {};
  }
  Status AppendRope(const AppendRopeParams& params, Stream) override {
    cpu::AppendRope(params, *crew_);
    return {};
  }
  Status BuildStepTables(const StepTablesParams& params, Stream) override {
    cpu::BuildStepTables(params);
    return {};
  }

  Status Gemm(const GemmParams& params, Stream) override { return cpu::Gemm(params, *crew_); }
  Status WarmupGemm(const GemmParams&, Stream) override { return {}; }
  std::int64_t GemmWorkspaceBytes() const override { return 0; }
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream) override {
    thread_local const char owner = 0;  // its address names the thread
    return scratch_.Get(reinterpret_cast<std::uintptr_t>(&owner), static_cast<int>(use), bytes);
  }
  bool FusedFits(const MlaCompressParams&) const override { return false; }
  bool FusedIsFaster(const MlaCompressParams&) const override { return false; }
  Status MlaCompressFused(const MlaCompressParams&, Stream) override {
    return Unsupported("path = kFused: the cpu backend has kGemm only");
  }
  Status MlaAppendRows(const MlaAppendParams& params, Stream) override {
    cpu::MlaAppendRows(params, *crew_);
    return {};
  }
  Status MlaGather(const MlaGatherParams& params, Stream) override {
    cpu::MlaGather(params, *crew_);
    return {};
  }

 private:
  std::unique_ptr<Crew> crew_;
  Mappings mappings_;
  ScratchPool scratch_{*this};  // after what its buffers come from
};

}  // namespace

Result<std::shared_ptr<Backend>> MakeCpuBackend(int threads) {
  Result<std::unique_ptr<Crew>> crew = Crew::Create(threads);
  if (!crew.ok()) return crew.status();
  return std::shared_ptr<Backend>(std::make_shared<CpuBackend>(*std::move(crew)));
}

}  // namespace lariat::cpu
