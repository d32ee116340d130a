// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/copy.h"
#include "backend/cuda/error.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/products.h"
#include "backend/device_range.h"
#include "backend/scratch_pool.h"
#include "base/guarded.h"

namespace lariat::cuda {
namespace {

// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = ordinal;
    if (before_ == ordinal) return;
    changed_ = true;
    error_ = cudaSetDevice(ordinal);
  }
  ~CurrentDevice() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  cudaError_t error() const { return error_; }
  // What `call` returns, unless the device could not be made current.
  template <class Call>
  cudaError_t Run(Call&& call) const {
    return error_ == cudaSuccess ? call() : error_;
  }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(int ordinal, const cudaDeviceProp& properties)
      : ordinal_(ordinal), name_(properties.name), dependent_launch_(properties.major >= 9) {}
  ~CudaBackend() override {
    const CurrentDevice current(ordinal_);
    products_.Close();
  }
  BackendKind kind() const override { return BackendKind::kCuda; }
  std::string name() const override { return name_; }
  bool has_memory() const override { return true; }
  std::vector<std::string> Tuning() const override { return products_.Describe(); }

  Result<void*> Allocate(MemoryKind kind, std::size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = CurrentDevice(ordinal_).Run([&] {
      switch (kind) {
        case MemoryKind::kPinnedHost: return cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
        case MemoryKind::kMappedHost:
          // Unified addressing: the host's address is the device's.
          return cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
        default: return cudaMalloc(&memory, bytes);
      }
    });
    if (error == cudaSuccess) return memory;
    if (error != cudaErrorMemoryAllocation) return ToStatus(error, "allocation");
    static_cast<void>(cudaGetLastError());
    const char* where = kind == MemoryKind::kDevice ? "device" : "pinned host";
    return ResourceExhausted("no room for an allocation of " + std::to_string(bytes) +
                             " bytes of " + where + " memory");
  }

  void Free(MemoryKind kind, void* memory, std::size_t) noexcept override {
    static_cast<void>(CurrentDevice(ordinal_).Run(
        [&] { return kind == MemoryKind::kDevice ? cudaFree(memory) : cudaFreeHost(memory); }));
  }

  Result<Stream> CreateStream() override {
    cudaStream_t stream = nullptr;
    const Status made = Call("cudaStreamCreateWithFlags", [&] {
      return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    });
    if (!made.ok()) return made;
    return Stream{stream};
  }
  void DestroyStream(Stream stream) noexcept override {
    if (stream.handle == nullptr) return;
    static_cast<void>(
        CurrentDevice(ordinal_).Run([&] { return cudaStreamDestroy(Handle(stream)); }));
  }
  Status Synchronize(Stream stream) override {
    return Call("cudaStreamSynchronize", [&] { return cudaStreamSynchronize(Handle(stream)); });
  }

  Result<Event> CreateEvent() override {
    cudaEvent_t event = nullptr;
    const Status made = Call("cudaEventCreateWithFlags", [&] {
      return cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    });
    if (!made.ok()) return made;
    return Event{event};
  }
  void DestroyEvent(Event event) noexcept override {
    if (event.handle == nullptr) return;
    static_cast<void>(CurrentDevice(ordinal_).Run([&] { return cudaEventDestroy(Handle(event)); }));
  }
  Status Record(Event event, Stream stream) override {
    return Call("cudaEventRecord", [&] { return cudaEventRecord(Handle(event), Handle(stream)); });
  }
  Status Wait(Stream stream, Event event) override {
    return Call("cudaStreamWaitEvent",
                [&] { return cudaStreamWaitEvent(Handle(stream), Handle(event), 0); });
  }
  Result<bool> Query(Event event) override {
    const cudaError_t error =
        CurrentDevice(ordinal_).Run([&] { return cudaEventQuery(Handle(event)); });
    if (error == cudaSuccess) return true;
    if (error != cudaErrorNotReady) return ToStatus(error, "cudaEventQuery");
    static_cast<void>(cudaGetLastError());
    return false;
  }

  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    const DeviceRange range("copy");
    return Call("copy", [&] { return CopyRanges(copies, Handle(stream)); });
  }
  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) override {
    return Call("cudaMemsetAsync",
                [&] { return cudaMemsetAsync(dst, value, bytes, Handle(stream)); });
  }

  Status RopeUpdate(const RopeUpdateParams& params, Stream stream) override {
    const DeviceRange range("rope_update");
    return Call("RopeUpdate", [&] { return cuda::RopeUpdate(ForDevice(params), Handle(stream)); });
  }
  Status AppendRope(const AppendRopeParams& params, Stream stream) override {
    const DeviceRange range("append_rope");
    return Call("AppendRope", [&] { return cuda::AppendRope(ForDevice(params), Handle(stream)); });
  }
  Status BuildStepTables(const StepTablesParams& params, Stream stream) override {
    const DeviceRange range("step_tables");
    return Call("BuildStepTables", [&] { return cuda::BuildStepTables(params, Handle(stream)); });
  }

  Status Gemm(const GemmParams& params, Stream stream) override {
    if (IsSkinny(params)) {
      const DeviceRange range("gemm");
      return Call("product", [&] { return cuda::SkinnyProduct(params, Handle(stream)); });
    }
    const Result<void*> workspace = Workspace(kProducts, Products::kWorkspaceBytes, stream);
    if (!workspace.ok()) return workspace.status();
    // An algorithm's first use may load its code, which a capture does not allow.
    if (!products_.Knows(params)) {
      if (Status s = CheckNotCaptured(stream); !s.ok()) return s;
    }
    const CurrentDevice current(ordinal_);
    if (Status s = ToStatus(current.error(), "cudaSetDevice"); !s.ok()) return s;
    const DeviceRange range("gemm");
    return Guarded([&] { return products_.Run(params, *workspace, Handle(stream)); });
  }
  Status WarmupGemm(const GemmParams& params, Stream stream) override {
    if (Status s = CheckNotCaptured(stream); !s.ok()) return s;
    const Result<void*> workspace = Workspace(kProducts, Products::kWorkspaceBytes, stream);
    if (!workspace.ok()) return workspace.status();
    const CurrentDevice current(ordinal_);
    if (Status s = ToStatus(current.error(), "cudaSetDevice"); !s.ok()) return s;
    // The trial's stream is another one: what is under way may use the workspace.
    if (Status s = ToStatus(cudaStreamSynchronize(Handle(stream)), "cudaStreamSynchronize");
        !s.ok()) {
      return s;
    }
    return Guarded([&] { return products_.Warmup(params, *workspace); });
  }
  std::int64_t GemmWorkspaceBytes() const override { return Products::kWorkspaceBytes; }
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream stream) override {
    return Workspace(static_cast<int>(use), bytes, stream);
  }

  bool FusedFits(const MlaCompressParams& params) const override { return cuda::FusedFits(params); }
  bool FusedIsFaster(const MlaCompressParams& params) const override {
    return cuda::FusedIsFaster(params);
  }
  Status MlaCompressFused(const MlaCompressParams& params, Stream stream) override {
    const DeviceRange range("mla_compress");
    return Call("MlaCompress", [&] { return cuda::MlaCompressFused(params, Handle(stream)); });
  }
  Status MlaAppendRows(const MlaAppendParams& params, Stream stream) override {
    const DeviceRange range("mla_append");
    return Call("MlaAppend", [&] { return cuda::MlaAppendRows(params, Handle(stream)); });
  }
  Status MlaGather(const MlaGatherParams& params, Stream stream) override {
    const DeviceRange range("mla_gather");
    return Call("MlaExpand", [&] { return cuda::MlaGather(params, Handle(stream)); });
  }

 private:
  static cudaEvent_t Handle(Event event) { return static_cast<cudaEvent_t>(event.handle); }
  static cudaStream_t Handle(Stream stream) { return cuda::Handle(stream); }

  template <class Run>
  Status Call(std::string_view what, Run&& run) const {
    return ToStatus(CurrentDevice(ordinal_).Run(run), what);
  }

  // Without what the device does not have.
  template <class Params>
  Params ForDevice(Params params) const {
    if (!dependent_launch_) params.dependent_launch = DependentLaunch::kOff;
    return params;
  }

  bool IsSkinny(const GemmParams& params) const {
    return dependent_launch_ && CurrentDevice(ordinal_).error() == cudaSuccess &&
           cuda::SkinnyIsFaster(params);
  }

  // A ScratchUse, or the products' own.
  static constexpr int kProducts = -1;

  Result<void*> Workspace(int use, std::size_t bytes, Stream stream) {
    // The default streams of threads share one handle: each is named by an address of its thread's.
    thread_local const char thread = 0;
    const void* const name =
        Handle(stream) == cudaStreamPerThread ? static_cast<const void*>(&thread) : stream.handle;
    const auto owner = reinterpret_cast<std::uintptr_t>(name);
    if (void* found = scratch_.Find(owner, use, bytes)) return found;
    if (Status s = CheckNotCaptured(stream); !s.ok()) return s;
    return scratch_.Get(owner, use, bytes);
  }
  Status CheckNotCaptured(Stream stream) const {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const Status asked = Call("cudaStreamIsCapturing",
                              [&] { return cudaStreamIsCapturing(Handle(stream), &capture); });
    if (!asked.ok() || capture == cudaStreamCaptureStatusNone) return asked;
    return NotReady(
        "the stream is being captured, and what the call needs is not there: call Warmup first");
  }

  const int ordinal_;
  const std::string name_;
  const bool dependent_launch_;
  Products products_;
  ScratchPool scratch_{*this};
};

}  // namespace

Result<std::shared_ptr<Backend>> MakeCudaBackend(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return DeviceError(
        std::string("backend = cuda: no device answers") +
        (error == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(error) + ")"));
  }
  if (ordinal < 0 || ordinal >= count) {
    return InvalidArgument("ordinal = " + std::to_string(ordinal) + ": must be 0.." +
                           std::to_string(count - 1) + ", the CUDA devices here");
  }
  cudaDeviceProp properties;
  if (Status s = ToStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
      !s.ok()) {
    return s;
  }
  if (properties.major < 8) {
    return Unsupported("ordinal = " + std::to_string(ordinal) + ": " + properties.name + " is sm_" +
                       std::to_string(properties.major) + std::to_string(properties.minor) +
                       ", the kernels need sm_80 or later");
  }
  return std::shared_ptr<Backend>(std::make_shared<CudaBackend>(ordinal, properties));
}

}  // namespace lariat::cuda
