// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "lariat/device.h"
#include "support/catch.h"

namespace lariat::testing {

// Every device with memory that answers here: the CPU always, CUDA where there is one.
inline std::vector<Device> AvailableDevices() {
  std::vector<Device> devices;
  for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kCuda}) {
    Result<Device> device = Device::Create(kind);
    if (device.ok()) devices.push_back(*std::move(device));
  }
  REQUIRE(devices.front().kind() == BackendKind::kCpu);
  return devices;
}

// An array on a device, `offset` elements past a 256-byte boundary. What lies before and behind the
// elements is poisoned and looked at when they are read back.
template <class T>
class DeviceVector {
 public:
  DeviceVector(Device device, const std::vector<T>& values, std::size_t offset = 0)
      : device_(std::move(device)), front_(kGuard / sizeof(T) + offset), count_(values.size()) {
    std::vector<T> all(front_ + count_ + kGuard / sizeof(T));
    std::fill(reinterpret_cast<std::uint8_t*>(all.data()),
              reinterpret_cast<std::uint8_t*>(all.data() + all.size()), kPoison);
    std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(front_));
    Result<DeviceBuffer> buffer = device_.Allocate(MemoryKind::kDevice, all.size() * sizeof(T));
    REQUIRE(buffer.ok());
    buffer_ = *std::move(buffer);
    const Stream stream;
    REQUIRE(device_.CopyToDevice(buffer_.data(), all.data(), buffer_.size(), stream).ok());
    REQUIRE(device_.Synchronize(stream).ok());
  }

  T* data() const { return static_cast<T*>(buffer_.data()) + front_; }
  std::size_t size() const { return count_; }

  // Waits for the default stream.
  std::vector<T> Read() {
    std::vector<T> all(buffer_.size() / sizeof(T));
    const Stream stream;
    REQUIRE(device_.CopyToHost(all.data(), buffer_.data(), buffer_.size(), stream).ok());
    REQUIRE(device_.Synchronize(stream).ok());
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(all.data());
    const auto poisoned = [](std::uint8_t byte) { return byte == kPoison; };
    REQUIRE(std::all_of(bytes, bytes + front_ * sizeof(T), poisoned));
    REQUIRE(std::all_of(bytes + (front_ + count_) * sizeof(T), bytes + buffer_.size(), poisoned));
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(front_);
    return {first, first + static_cast<std::ptrdiff_t>(count_)};
  }

 private:
  static constexpr std::size_t kGuard = 256;  // bytes
  static constexpr std::uint8_t kPoison = 0xFD;
  Device device_;
  std::size_t front_;
  std::size_t count_;
  DeviceBuffer buffer_;
};

}  // namespace lariat::testing
