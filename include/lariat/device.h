// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat {

class Backend;  // the internal interface (src/backend/backend.h)
class DeviceBuffer;

// One range of a copy of many.
struct BlockCopy {
  void* dst = nullptr;
  const void* src = nullptr;
  std::size_t bytes = 0;
};

struct DeviceOptions {
  // Threads that share the tokens of one call on the CPU, the calling one among them: 1..1024. The
  // others are made with the device and sleep between calls. Matrix products bring the threads of
  // the CBLAS library, whose number is its own affair (OPENBLAS_NUM_THREADS).
  int cpu_threads = 1;
};

// A device: memory, streams, events and copies, on CUDA, on the CPU, or on nothing at all (null:
// addresses without memory, every call succeeds at once).
//
// A Device is a handle; copies name the same device. Owns nothing but what keeps the device usable.
// Threads: calls may come from any thread; one stream or buffer is for one thread at a time.
class Device {
 public:
  // kind: kAuto takes CUDA where a device answers, else the CPU.
  // ordinal: CUDA device number; 0 elsewhere.
  // Errors: kUnsupported (CUDA not built in, or a device older than sm_80), kInvalidArgument (no
  //   such ordinal, cpu_threads out of range), kResourceExhausted (a thread), kDeviceError.
  static Result<Device> Create(BackendKind kind, int ordinal = 0,
                               const DeviceOptions& options = {});
  // A cpu or null device whose copies on streams of its own CreateStream are late: each completes
  // only when something waits for it (Query passes an event by the third time it is asked), in an
  // order drawn by the seed, and what it writes is poisoned with 0xFF bytes till then. All else
  // runs at once. For tests and simulations of a cache with a host tier, whose copies are such.
  // Errors: kUnsupported (kCuda is late of itself), as Create's; kAuto is the CPU.
  static Result<Device> CreateDeferred(BackendKind kind, std::uint64_t seed);
  explicit Device(std::shared_ptr<Backend> backend);

  BackendKind kind() const;
  // A name to print, "NVIDIA H200" or "cpu".
  std::string name() const;
  // DeviceOptions::cpu_threads on the CPU, else 1.
  int cpu_threads() const;
  // How it goes about its work as far as that was chosen here, a line each, to print: the algorithm
  // of each matrix product that was met or warmed up so far; threads and instructions of the CPU.
  std::vector<std::string> Tuning() const;

  // The new buffer's bytes are unspecified; its address is a multiple of 256. Of bytes 0: no
  // memory, data() is null. The CPU takes memory for large buffers only where they are written, and
  // gives it back where a large Fill writes zeros. Errors: kResourceExhausted, naming the bytes
  // asked for.
  Result<DeviceBuffer> Allocate(MemoryKind kind, std::size_t bytes);

  // Streams made here do not synchronise with the default stream. Destroy them after their work.
  Result<Stream> CreateStream();
  void DestroyStream(Stream stream) noexcept;
  Status Synchronize(Stream stream);  // blocks the host until the stream's work is done

  // Points in the work of a stream.
  Result<Event> CreateEvent();
  void DestroyEvent(Event event) noexcept;
  Status Record(Event event, Stream stream);
  Status Wait(Stream stream, Event event);  // the stream waits; the host does not
  Result<bool> Query(Event event);          // whether the event has passed; never blocks

  // Ordered on the stream; asynchronous where the host side is pinned. The memory on both sides
  // must live until the stream has passed the call. bytes 0 is a no-op.
  Status CopyToDevice(void* dst, const void* src, std::size_t bytes, Stream stream);
  Status CopyToHost(void* dst, const void* src, std::size_t bytes, Stream stream);
  // Many copies between device and pinned or mapped host memory, in any order: in one call of the
  // driver, 256 at a time, where it has such a call and the stream is not captured. Ranges do not
  // overlap one another.
  Status Copy(std::span<const BlockCopy> copies, Stream stream);
  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream);

  Backend& backend() const { return *backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

// Owns one allocation; frees it on destruction, without waiting for work that still uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::shared_ptr<Backend> backend, MemoryKind kind, void* data, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }  // bytes

 private:
  std::shared_ptr<Backend> backend_;
  MemoryKind kind_ = MemoryKind::kDevice;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lariat
