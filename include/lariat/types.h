// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lariat {

// Element types. kFP64 exists for RopeUpdate alone; kFP8E4M3 is named so that signatures stand,
// and is kUnsupported everywhere for now.
enum class DType : std::uint8_t { kFP32, kFP16, kBF16, kFP64, kFP8E4M3 };

// Bytes of one element.
constexpr std::size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFP64: return 8;
    case DType::kFP32: return 4;
    case DType::kFP16:
    case DType::kBF16: return 2;
    case DType::kFP8E4M3: return 1;
  }
  return 0;
}

// "fp32", "fp16", "bf16", "fp64", "fp8_e4m3".
std::string_view DTypeName(DType dtype);

// kAuto is CUDA where a device answers, else CPU; never null.
enum class BackendKind : std::uint8_t { kAuto, kCpu, kCuda, kNull };

// "auto", "cpu", "cuda", "null".
std::string_view BackendName(BackendKind kind);

// Which elements of a head form a RoPE pair: (2i, 2i+1), or (i, i + rotary_dim/2).
// kInterleavedToHalf reads pair i at (2i, 2i+1) and writes it at (i, i + rotary_dim/2), as Hugging
// Face's DeepSeek-V3 does; RopeUpdate refuses it.
enum class RopeStyle : std::uint8_t { kInterleaved, kHalf, kInterleavedToHalf };

// A token's identity for prefix reuse. Any value, negative ones too, is an ordinary id: the cache
// knows no vocabulary.
using TokenId = std::int32_t;

// Names an open sequence. Never reused within a cache; 0 names none.
enum class SequenceId : std::uint64_t { kNone = 0 };

// Names a copy of blocks between the tiers of a cache. They count up from 1; 0 names none.
enum class TransferId : std::uint64_t { kNone = 0 };

// A borrowed cudaStream_t; null is the default stream. The CPU and null backends run every call
// at once and ignore it.
struct Stream {
  void* handle = nullptr;
  friend bool operator==(const Stream&, const Stream&) = default;
};

// A borrowed cudaEvent_t, made and destroyed through Device.
struct Event {
  void* handle = nullptr;
};

// Where a buffer lives. Pinned and mapped host memory is plain memory on the CPU backend; mapped
// memory has one address on host and device.
enum class MemoryKind : std::uint8_t { kDevice, kPinnedHost, kMappedHost };

}  // namespace lariat
