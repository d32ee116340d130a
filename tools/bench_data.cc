// SPDX-License-Identifier: Apache-2.0
#include "bench_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

namespace lariat::tools {
namespace {

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

// fp16 by its own arithmetic: not every compiler has a type for it.
double FromHalf(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const std::uint32_t magnitude = bits & 0x7FFF;
  // Infinities and NaNs keep their fraction; of the others fp32's exponent is 112 too small.
  const std::uint32_t wide = exponent == 31 ? magnitude << 13 | 0x7F800000 : magnitude << 13;
  const double value =
      static_cast<double>(std::bit_cast<float>(wide)) * (exponent == 31 ? 1 : 0x1p112);
  return bits >> 15 != 0 ? -value : value;
}

std::uint16_t ToHalf(float value) {
  const float magnitude = std::abs(value);
  std::uint32_t half = 0;
  if (std::isnan(value)) {
    half = 0x7E00;
  } else if (magnitude >= 65520) {  // rounds past the largest number
    half = 0x7C00;
  } else if (magnitude < 0x1p-14F) {  // the sum's last place is that of fp16's least numbers
    half = std::bit_cast<std::uint32_t>(magnitude + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  } else {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude) - (112U << 23);
    half = (bits + 0xFFF + (bits >> 13 & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(half | (std::signbit(value) ? 0x8000U : 0U));
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
    case DType::kFP16: return FromHalf(Read<std::uint16_t>(data, i));
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
    case DType::kFP16: return Write(data, i, ToHalf(narrow));
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
