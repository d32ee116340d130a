// SPDX-License-Identifier: Apache-2.0
// Device and its buffers, on every backend.
#include "lariat/device.h"

#include <cstring>
#include <map>
#include <numeric>

#include "backend/backend.h"
#include "support/catch.h"
#include "support/device_vector.h"

namespace lariat {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<Device> AllDevices() {
  std::vector<Device> devices = testing::AvailableDevices();
  Result<Device> null = Device::Create(BackendKind::kNull);
  REQUIRE(null.ok());
  devices.push_back(*null);
  return devices;
}

std::vector<std::uint8_t> Ramp(std::size_t bytes) {
  std::vector<std::uint8_t> ramp(bytes);
  for (std::size_t i = 0; i < bytes; ++i) ramp[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  return ramp;
}

}  // namespace

TEST_CASE("device: kinds, names and ordinals") {
  Result<Device> cpu = Device::Create(BackendKind::kCpu);
  REQUIRE(cpu.ok());
  CHECK(cpu->kind() == BackendKind::kCpu);
  CHECK(cpu->name() == "cpu");
  Result<Device> null = Device::Create(BackendKind::kNull);
  REQUIRE(null.ok());
  CHECK(null->kind() == BackendKind::kNull);
  CHECK_FALSE(null->backend().has_memory());
  // Auto is CUDA where it answers, else the CPU, and never null.
  Result<Device> cuda = Device::Create(BackendKind::kCuda);
  Result<Device> automatic = Device::Create(BackendKind::kAuto);
  REQUIRE(automatic.ok());
  CHECK(automatic->kind() == (cuda.ok() ? BackendKind::kCuda : BackendKind::kCpu));
  if (!cuda.ok()) {
    INFO(cuda.status().ToString());
    const Code code = cuda.status().code();
    CHECK((code == Code::kUnsupported || code == Code::kDeviceError));
    CHECK(cuda.status().message().find("cuda") != std::string::npos);
  } else {
    const Status status = Device::Create(BackendKind::kCuda, 99).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().rfind("ordinal = 99", 0) == 0);
  }
  for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kNull}) {
    for (const int ordinal : {1, -1}) {
      const Status status = Device::Create(kind, ordinal).status();
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().rfind("ordinal = " + std::to_string(ordinal), 0) == 0);
    }
  }
  CHECK(Device::Create(static_cast<BackendKind>(77)).status().code() == Code::kInvalidArgument);
}

TEST_CASE("device: buffers are aligned, distinct, and freed once") {
  for (Device& device : AllDevices()) {
    for (const MemoryKind kind :
         {MemoryKind::kDevice, MemoryKind::kPinnedHost, MemoryKind::kMappedHost}) {
      std::vector<DeviceBuffer> held;
      std::map<std::uintptr_t, std::size_t> ranges;
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{255}, std::size_t{256},
                                      std::size_t{257}, 5 * kMiB, 5 * kMiB + 1, std::size_t{3}}) {
        Result<DeviceBuffer> buffer = device.Allocate(kind, bytes);
        REQUIRE(buffer.ok());
        CHECK(buffer->size() == bytes);
        const auto address = reinterpret_cast<std::uintptr_t>(buffer->data());
        CHECK(address % 256 == 0);
        ranges[address] = bytes;
        held.push_back(*std::move(buffer));
      }
      CHECK(ranges.size() == held.size());
      std::uintptr_t end = 0;
      for (const auto& [address, bytes] : ranges) {
        CHECK(address >= end);
        end = address + bytes;
      }
      // Moving leaves nothing behind; assigning frees what was there.
      DeviceBuffer moved = std::move(held[0]);
      CHECK(held[0].data() == nullptr);
      CHECK(held[0].size() == 0);
      CHECK(moved.size() == 1);
      moved = std::move(held[1]);
      CHECK(moved.size() == 255);
      DeviceBuffer& self = moved;
      moved = std::move(self);
      CHECK(moved.size() == 255);
    }
    Result<DeviceBuffer> empty = device.Allocate(MemoryKind::kDevice, 0);
    REQUIRE(empty.ok());
    CHECK(empty->data() == nullptr);
    CHECK(empty->size() == 0);
  }
}

TEST_CASE("device: an allocation that does not fit names its bytes") {
  const std::size_t bytes = std::size_t{1} << 62;
  for (Device& device : AllDevices()) {
    const Status status = device.Allocate(MemoryKind::kDevice, bytes).status();
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(status.message().find(std::to_string(bytes)) != std::string::npos);
    CHECK(device.Allocate(MemoryKind::kDevice, 64).ok());  // the failure does not stick
  }
}

TEST_CASE("device: the null backend gives out more than any machine has, and never twice") {
  Result<Device> device = Device::Create(BackendKind::kNull);
  REQUIRE(device.ok());
  std::uintptr_t end = 0;
  for (int i = 0; i < 20; ++i) {
    Result<DeviceBuffer> buffer =
        device->Allocate(MemoryKind::kDevice, std::size_t{1} << 50);  // freed at once
    REQUIRE(buffer.ok());
    const auto address = reinterpret_cast<std::uintptr_t>(buffer->data());
    CHECK(address >= end);
    end = address + (std::uintptr_t{1} << 50);
  }
}

TEST_CASE("device: bytes travel both ways and within") {
  for (Device& device : testing::AvailableDevices()) {
    Result<Stream> stream = device.CreateStream();
    REQUIRE(stream.ok());
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{777}, 6 * kMiB + 3}) {
      const std::vector<std::uint8_t> sent = Ramp(bytes);
      Result<DeviceBuffer> a = device.Allocate(MemoryKind::kDevice, bytes);
      Result<DeviceBuffer> b = device.Allocate(MemoryKind::kDevice, bytes);
      REQUIRE(a.ok());
      REQUIRE(b.ok());
      std::vector<std::uint8_t> got(bytes, 1);
      REQUIRE(device.CopyToDevice(a->data(), sent.data(), bytes, *stream).ok());
      const BlockCopy copy{b->data(), a->data(), bytes};
      REQUIRE(device.backend().Copy({&copy, 1}, *stream).ok());
      REQUIRE(device.CopyToHost(got.data(), b->data(), bytes, *stream).ok());
      REQUIRE(device.Synchronize(*stream).ok());
      CHECK((got == sent));
    }
    device.DestroyStream(*stream);
  }
}

TEST_CASE("device: many ranges in one call") {
  for (Device& device : testing::AvailableDevices()) {
    Result<Stream> made = device.CreateStream();
    REQUIRE(made.ok());
    for (const Stream stream : {*made, Stream{}}) {
      for (const std::size_t count : {1, 2, 5, 300, 1000}) {
        constexpr std::size_t kBlock = 512;
        const std::vector<std::uint8_t> sent = Ramp(count * kBlock);
        testing::DeviceVector<std::uint8_t> from(device, sent);
        testing::DeviceVector<std::uint8_t> to(device, std::vector<std::uint8_t>(count * kBlock));
        std::vector<std::uint8_t> host(count * kBlock), expected(count * kBlock);
        std::vector<BlockCopy> inside, down;
        for (std::size_t i = 0; i < count; ++i) {  // reversed, each of its own length
          const std::size_t bytes = 1 + i * 37 % kBlock;
          const std::size_t target = (count - 1 - i) * kBlock;
          inside.push_back({to.data() + target, from.data() + i * kBlock, bytes});
          down.push_back({host.data() + target, to.data() + target, bytes});
          std::memcpy(expected.data() + target, sent.data() + i * kBlock, bytes);
        }
        REQUIRE(device.backend().Copy(inside, stream).ok());
        REQUIRE(device.backend().Copy(down, stream).ok());
        REQUIRE(device.Synchronize(stream).ok());
        CHECK((host == expected));
        REQUIRE(device.Synchronize(stream).ok());
        CHECK((to.Read() == expected));
      }
    }
    REQUIRE(device.backend().Copy({}, *made).ok());
    device.DestroyStream(*made);
  }
}

TEST_CASE("device: fills, also large ones with zeros that begin anywhere") {
  for (Device& device : testing::AvailableDevices()) {
    const std::size_t bytes = 9 * kMiB + 100;
    Result<DeviceBuffer> buffer = device.Allocate(MemoryKind::kDevice, bytes);
    REQUIRE(buffer.ok());
    auto* data = static_cast<std::uint8_t*>(buffer->data());
    for (const std::size_t first : {0, 1, 4096, 4097}) {
      for (const std::size_t cut : {0, 1, 4096, 5000}) {
        REQUIRE(device.Fill(data, 0xAB, bytes, Stream{}).ok());
        REQUIRE(device.Fill(data + first, 0, bytes - first - cut, Stream{}).ok());
        std::vector<std::uint8_t> got(bytes);
        REQUIRE(device.CopyToHost(got.data(), data, bytes, Stream{}).ok());
        REQUIRE(device.Synchronize(Stream{}).ok());
        std::vector<std::uint8_t> expected(bytes, 0);
        std::fill_n(expected.begin(), first, std::uint8_t{0xAB});
        std::fill_n(expected.rbegin(), cut, std::uint8_t{0xAB});
        CHECK((got == expected));  // too much to print
      }
    }
  }
}

TEST_CASE("device: null pointers with bytes are refused, without bytes they are no-ops") {
  for (Device& device : AllDevices()) {
    int word = 0;
    CHECK(device.CopyToDevice(nullptr, &word, 4, Stream{}).code() == Code::kInvalidArgument);
    CHECK(device.CopyToHost(&word, nullptr, 4, Stream{}).code() == Code::kInvalidArgument);
    CHECK(device.Fill(nullptr, 0, 4, Stream{}).code() == Code::kInvalidArgument);
    CHECK(device.CopyToDevice(nullptr, nullptr, 0, Stream{}).ok());
    CHECK(device.Fill(nullptr, 0, 0, Stream{}).ok());
  }
}

TEST_CASE("device: events pass in order of their streams") {
  for (Device& device : AllDevices()) {
    Result<Stream> first = device.CreateStream();
    Result<Stream> second = device.CreateStream();
    Result<Event> event = device.CreateEvent();
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    REQUIRE(event.ok());
    REQUIRE(device.Record(*event, *first).ok());
    REQUIRE(device.Wait(*second, *event).ok());
    REQUIRE(device.Synchronize(*second).ok());
    Result<bool> passed = device.Query(*event);
    REQUIRE(passed.ok());
    CHECK(*passed);
    device.DestroyEvent(*event);
    device.DestroyStream(*first);
    device.DestroyStream(*second);
  }
}

TEST_CASE("device: a stream on CUDA really waits, and a query does not block") {
  Result<Device> device = Device::Create(BackendKind::kCuda);
  if (!device.ok()) LARIAT_SKIP("no CUDA device");
  Result<Stream> slow = device->CreateStream();
  Result<Stream> fast = device->CreateStream();
  Result<Event> event = device->CreateEvent();
  const std::size_t bytes = 256 * kMiB;
  Result<DeviceBuffer> memory = device->Allocate(MemoryKind::kDevice, bytes);
  Result<DeviceBuffer> host = device->Allocate(MemoryKind::kPinnedHost, bytes);
  REQUIRE(memory.ok());
  REQUIRE(host.ok());
  std::memset(host->data(), 0x11, bytes);
  REQUIRE(device->Fill(memory->data(), 0x22, bytes, *slow).ok());
  REQUIRE(device->Synchronize(*slow).ok());
  // About five milliseconds of PCIe, then the event; the last byte is read behind it.
  REQUIRE(device->CopyToDevice(memory->data(), host->data(), bytes, *slow).ok());
  REQUIRE(device->Record(*event, *slow).ok());
  Result<bool> passed = device->Query(*event);
  REQUIRE(passed.ok());
  CHECK_FALSE(*passed);
  REQUIRE(device->Wait(*fast, *event).ok());
  std::uint8_t last = 0;
  REQUIRE(device->CopyToHost(&last, static_cast<char*>(memory->data()) + bytes - 1, 1, *fast).ok());
  REQUIRE(device->Synchronize(*fast).ok());
  CHECK(last == 0x11);
  passed = device->Query(*event);
  REQUIRE(passed.ok());
  CHECK(*passed);
  device->DestroyEvent(*event);
  device->DestroyStream(*slow);
  device->DestroyStream(*fast);
}

TEST_CASE("device: many ranges in one copy, and null ones are refused") {
  for (Device& device : testing::AvailableDevices()) {
    const Stream stream = *device.CreateStream();
    const std::vector<std::uint8_t> ramp = Ramp(100 * 300);
    const DeviceBuffer middle = *device.Allocate(MemoryKind::kDevice, ramp.size());
    const DeviceBuffer from = *device.Allocate(MemoryKind::kPinnedHost, ramp.size());
    const DeviceBuffer to = *device.Allocate(MemoryKind::kPinnedHost, ramp.size());
    std::memcpy(from.data(), ramp.data(), ramp.size());
    std::memset(to.data(), 0xFD, ramp.size());
    const auto at = [](const DeviceBuffer& buffer, std::size_t i) {
      return static_cast<std::byte*>(buffer.data()) + i * 100;
    };
    std::vector<BlockCopy> down, up;
    for (std::size_t i = 0; i < 300; ++i) {
      up.push_back({at(middle, 299 - i), at(from, i), 100});
      down.push_back({at(to, i), at(middle, 299 - i), 100});
    }
    up.push_back({nullptr, nullptr, 0});
    REQUIRE(device.Copy(up, stream).ok());
    REQUIRE(device.Copy(down, stream).ok());
    REQUIRE(device.Copy({}, stream).ok());
    REQUIRE(device.Synchronize(stream).ok());
    CHECK(std::memcmp(to.data(), ramp.data(), ramp.size()) == 0);
    up[3].src = nullptr;
    Status status = device.Copy(up, stream);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().rfind("copies[3].src = null", 0) == 0);
    down[0].dst = nullptr;
    status = device.Copy(down, stream);
    CHECK(status.message().rfind("copies[0].dst = null", 0) == 0);
    device.DestroyStream(stream);
  }
}

}  // namespace lariat
