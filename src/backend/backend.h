// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/params.h"
#include "lariat/device.h"
#include "lariat/status.h"
#include "lariat/types.h"

namespace lariat {

// The whole cut between cache logic and hardware; a new backend is written from this file and
// lariat/ops.h alone. It knows bytes and addresses, never block ids or sequences.
//
// Every call with a Stream is ordered on it and does not block the host. Parameters have been
// validated and completed (no zero strides) by the caller; zero-sized work does not reach a
// backend. Threads: calls may come from several threads.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendKind kind() const = 0;
  virtual std::string name() const = 0;
  // False for null: addresses are not memory, so tables and contents need not be made.
  virtual bool has_memory() const = 0;
  // Threads that share a call.
  virtual int threads() const { return 1; }
  // What was chosen here, a line each (Device::Tuning).
  virtual std::vector<std::string> Tuning() const { return {}; }

  // Errors: kResourceExhausted.
  virtual Result<void*> Allocate(MemoryKind kind, std::size_t bytes) = 0;
  virtual void Free(MemoryKind kind, void* memory, std::size_t bytes) noexcept = 0;

  virtual Result<Stream> CreateStream() = 0;
  virtual void DestroyStream(Stream stream) noexcept = 0;
  virtual Status Synchronize(Stream stream) = 0;
  virtual Result<Event> CreateEvent() = 0;
  virtual void DestroyEvent(Event event) noexcept = 0;
  virtual Status Record(Event event, Stream stream) = 0;
  virtual Status Wait(Stream stream, Event event) = 0;
  virtual Result<bool> Query(Event event) = 0;

  // Any pair of device and host memory; `copies` do not overlap one another.
  virtual Status Copy(std::span<const BlockCopy> copies, Stream stream) = 0;
  virtual Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) = 0;

  virtual Status RopeUpdate(const RopeUpdateParams& params, Stream stream) = 0;
  virtual Status AppendRope(const AppendRopeParams& params, Stream stream) = 0;
  virtual Status BuildStepTables(const StepTablesParams& params, Stream stream) = 0;

  // A product whose algorithm is missing chooses it; kNotReady where the stream is being captured.
  virtual Status Gemm(const GemmParams& params, Stream stream) = 0;
  // Chooses the algorithms for 1 to params.rows rows. Pointers count for their alignment alone;
  // null ones count as aligned.
  virtual Status WarmupGemm(const GemmParams& params, Stream stream) = 0;
  // Bytes of a stream's workspace that products take, whatever their number.
  virtual std::int64_t GemmWorkspaceBytes() const = 0;
  // Memory of the stream (of the calling thread on the CPU) for a use, 256-byte aligned: the same
  // until more is asked for, and never freed before the backend. kNotReady: it would have to grow
  // while the stream is being captured.
  virtual Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream stream) = 0;

  // Whether MlaCompressFused takes these (shape, type, layout), and whether it is the faster path.
  virtual bool FusedFits(const MlaCompressParams& params) const = 0;
  virtual bool FusedIsFaster(const MlaCompressParams& params) const = 0;
  virtual Status MlaCompressFused(const MlaCompressParams& params, Stream stream) = 0;
  // From given rows.
  virtual Status MlaAppendRows(const MlaAppendParams& params, Stream stream) = 0;
  virtual Status MlaGather(const MlaGatherParams& params, Stream stream) = 0;
};

// Makes a backend; kAuto is resolved here.
Result<std::shared_ptr<Backend>> MakeBackend(BackendKind kind, int ordinal,
                                             const DeviceOptions& options = {});

}  // namespace lariat
