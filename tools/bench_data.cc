// SPDX-License-Identifier: Apache-2.0
#include "bench_data.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace lariat::tools {
namespace {

__extension__ using Half = _Float16;

// Per 8 bytes: which bits are random, and the exponent that the others spell.
struct Pattern {
  std::uint64_t random;
  std::uint64_t fixed;
};

Pattern PatternOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return {0x81FF81FF81FF81FF, 0x3E003E003E003E00};
    case DType::kFP16: return {0x8FFF8FFF8FFF8FFF, 0x3000300030003000};
    case DType::kFP32: return {0x81FFFFFF81FFFFFF, 0x3E0000003E000000};
    default: return {0x803FFFFFFFFFFFFF, 0x3FC0000000000000};
  }
}

template <class T>
T Read(const std::byte* data, std::int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void Write(std::byte* data, std::int64_t i, T value) {
  std::memcpy(data + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

template <class T>
void Rotate(double& x, double& y, double cos, double sin) {
  const T a = static_cast<T>(x), b = static_cast<T>(y);
  const T c = static_cast<T>(cos), s = static_cast<T>(sin);
  const T ac = a * c, bs = b * s, as = a * s, bc = b * c;
  x = static_cast<double>(ac - bs);
  y = static_cast<double>(as + bc);
}

}  // namespace

std::vector<std::byte> RandomElements(DType dtype, std::int64_t count, std::mt19937_64& random) {
  const auto bytes = static_cast<std::size_t>(count) * SizeOf(dtype);
  const Pattern pattern = PatternOf(dtype);
  std::vector<std::byte> data((bytes + 7) / 8 * 8);
  for (std::size_t at = 0; at < data.size(); at += 8) {
    const std::uint64_t word = (random() & pattern.random) | pattern.fixed;
    std::memcpy(data.data() + at, &word, 8);
  }
  data.resize(bytes);
  return data;
}

std::vector<std::int32_t> Permutation(std::int64_t count, std::mt19937_64& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

double LoadElement(DType dtype, const std::byte* data, std::int64_t i) {
  switch (dtype) {
    case DType::kFP32: return static_cast<double>(Read<float>(data, i));
    case DType::kFP16: return static_cast<double>(Read<Half>(data, i));
    case DType::kBF16: {
      const auto bits = static_cast<std::uint32_t>(Read<std::uint16_t>(data, i)) << 16;
      return static_cast<double>(std::bit_cast<float>(bits));
    }
    default: return Read<double>(data, i);
  }
}

// What is stored comes from fp32 but for kFP64, so the narrowing to float is exact.
void StoreElement(DType dtype, std::byte* data, std::int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kFP32: return Write(data, i, narrow);
    case DType::kFP16: return Write(data, i, static_cast<Half>(narrow));
    case DType::kBF16: {
      const auto bits = std::bit_cast<std::uint32_t>(narrow);
      const std::uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
      return Write(data, i, static_cast<std::uint16_t>(rounded >> 16));
    }
    default: return Write(data, i, value);
  }
}

void RotatePair(DType dtype, double& x, double& y, double cos, double sin) {
  if (dtype == DType::kFP64) {
    Rotate<double>(x, y, cos, sin);
  } else {
    Rotate<float>(x, y, cos, sin);
  }
}

Result<DeviceBuffer> Upload(Device& device, std::span<const std::byte> bytes, Stream stream) {
  Result<DeviceBuffer> buffer = device.Allocate(MemoryKind::kDevice, bytes.size());
  if (!buffer.ok()) return buffer;
  const Status copied = device.CopyToDevice(buffer->data(), bytes.data(), bytes.size(), stream);
  if (!copied.ok()) return copied;
  const Status done = device.Synchronize(stream);
  if (!done.ok()) return done;
  return buffer;
}

Result<std::vector<std::byte>> Download(Device& device, const DeviceBuffer& buffer,
                                        std::size_t bytes, Stream stream) {
  std::vector<std::byte> host(bytes);
  if (bytes == 0) return host;
  const Status copied = device.CopyToHost(host.data(), buffer.data(), bytes, stream);
  if (!copied.ok()) return copied;
  const Status done = device.Synchronize(stream);
  if (!done.ok()) return done;
  return host;
}

}  // namespace lariat::tools
