// SPDX-License-Identifier: Apache-2.0
#include "lariat/device.h"

#include <utility>

#include "backend/backend.h"
#include "backend/deferred_backend.h"

namespace lariat {

Result<Device> Device::Create(BackendKind kind, int ordinal, const DeviceOptions& options) {
  Result<std::shared_ptr<Backend>> backend = MakeBackend(kind, ordinal, options);
  if (!backend.ok()) return backend.status();
  return Device(*std::move(backend));
}

Result<Device> Device::CreateDeferred(BackendKind kind, std::uint64_t seed) {
  if (kind == BackendKind::kCuda) {
    return Unsupported("kind = cuda: only cpu and null have a deferred mode");
  }
  Result<std::shared_ptr<Backend>> backend =
      MakeBackend(kind == BackendKind::kAuto ? BackendKind::kCpu : kind, 0, {});
  if (!backend.ok()) return backend.status();
  return Device(MakeDeferredBackend(*std::move(backend), seed));
}

Device::Device(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}

BackendKind Device::kind() const { return backend_->kind(); }
std::string Device::name() const { return backend_->name(); }
int Device::cpu_threads() const { return backend_->threads(); }
std::vector<std::string> Device::Tuning() const { return backend_->Tuning(); }

Result<DeviceBuffer> Device::Allocate(MemoryKind kind, std::size_t bytes) {
  if (bytes == 0) return DeviceBuffer(backend_, kind, nullptr, 0);
  Result<void*> memory = backend_->Allocate(kind, bytes);
  if (!memory.ok()) return memory.status();
  return DeviceBuffer(backend_, kind, *memory, bytes);
}

Result<Stream> Device::CreateStream() { return backend_->CreateStream(); }
void Device::DestroyStream(Stream stream) noexcept { backend_->DestroyStream(stream); }
Status Device::Synchronize(Stream stream) { return backend_->Synchronize(stream); }

Result<Event> Device::CreateEvent() { return backend_->CreateEvent(); }
void Device::DestroyEvent(Event event) noexcept { backend_->DestroyEvent(event); }
Status Device::Record(Event event, Stream stream) { return backend_->Record(event, stream); }
Status Device::Wait(Stream stream, Event event) { return backend_->Wait(stream, event); }
Result<bool> Device::Query(Event event) { return backend_->Query(event); }

namespace {

Status CopyOne(Backend& backend, void* dst, const void* src, std::size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  if (dst == nullptr) return InvalidArgument("dst = null: must point to the bytes to write");
  if (src == nullptr) return InvalidArgument("src = null: must point to the bytes to copy");
  const BlockCopy copy{dst, src, bytes};
  return backend.Copy({&copy, 1}, stream);
}

}  // namespace

Status Device::CopyToDevice(void* dst, const void* src, std::size_t bytes, Stream stream) {
  return CopyOne(*backend_, dst, src, bytes, stream);
}

Status Device::CopyToHost(void* dst, const void* src, std::size_t bytes, Stream stream) {
  return CopyOne(*backend_, dst, src, bytes, stream);
}

Status Device::Copy(std::span<const BlockCopy> copies, Stream stream) {
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const BlockCopy& copy = copies[i];
    if (copy.bytes == 0 || (copy.dst != nullptr && copy.src != nullptr)) continue;
    return InvalidArgument("copies[" + std::to_string(i) + "]." +
                           (copy.dst == nullptr ? "dst" : "src") + " = null: must point to memory");
  }
  return copies.empty() ? Status() : backend_->Copy(copies, stream);
}

Status Device::Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  if (dst == nullptr) return InvalidArgument("dst = null: must point to the bytes to fill");
  return backend_->Fill(dst, value, bytes, stream);
}

DeviceBuffer::DeviceBuffer(std::shared_ptr<Backend> backend, MemoryKind kind, void* data,
                           std::size_t bytes)
    : backend_(std::move(backend)), kind_(kind), data_(data), bytes_(bytes) {}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : backend_(std::move(other.backend_)),
      kind_(other.kind_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  DeviceBuffer taken(std::move(other));  // frees what this one held, at the end
  std::swap(backend_, taken.backend_);
  std::swap(kind_, taken.kind_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) backend_->Free(kind_, data_, bytes_);
}

}  // namespace lariat
