// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/null/null_backend.h"
#ifdef LARIAT_WITH_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace lariat {
namespace {

constexpr int kMaxThreads = 1024;

Result<std::shared_ptr<Backend>> MakeCuda(int ordinal) {
#ifdef LARIAT_WITH_CUDA
  return cuda::MakeCudaBackend(ordinal);
#else
  static_cast<void>(ordinal);
  return Unsupported("backend = cuda: this build has no CUDA backend, use cpu or null");
#endif
}

Status CheckOrdinalZero(BackendKind kind, int ordinal) {
  if (ordinal == 0) return {};
  return InvalidArgument("ordinal = " + std::to_string(ordinal) + ": the " +
                         std::string(BackendName(kind)) + " backend has device 0 only");
}

}  // namespace

Result<std::shared_ptr<Backend>> MakeBackend(BackendKind kind, int ordinal,
                                             const DeviceOptions& options) {
  if (options.cpu_threads < 1 || options.cpu_threads > kMaxThreads) {
    return InvalidArgument("cpu_threads = " + std::to_string(options.cpu_threads) +
                           ": must be in 1.." + std::to_string(kMaxThreads));
  }
  switch (kind) {
    case BackendKind::kAuto: {
      Result<std::shared_ptr<Backend>> backend = MakeCuda(ordinal);
      // A CUDA device answers, but the call is wrong: say so instead of another device's results.
      const bool none = !backend.ok() && backend.status().code() != Code::kInvalidArgument;
      return none ? MakeBackend(BackendKind::kCpu, ordinal, options) : backend;
    }
    case BackendKind::kCuda: return MakeCuda(ordinal);
    case BackendKind::kCpu:
      if (Status checked = CheckOrdinalZero(kind, ordinal); !checked.ok()) return checked;
      return cpu::MakeCpuBackend(options.cpu_threads);
    case BackendKind::kNull:
      if (Status checked = CheckOrdinalZero(kind, ordinal); !checked.ok()) return checked;
      return null::MakeNullBackend();
  }
  return InvalidArgument("kind = " + std::to_string(static_cast<int>(kind)) +
                         ": must be kAuto, kCpu, kCuda or kNull");
}

}  // namespace lariat
