// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/checked.h"
#include "lariat/ops.h"
#include "lariat/status.h"
#include "lariat/types.h"

// Checks of an operation's fields. Each answers kInvalidArgument with the field's name, its value
// and what is allowed; First finds the first of several that failed.

namespace lariat::check {

inline constexpr std::int64_t kMaxInt32 = 0x7FFFFFFF;

inline Status First(std::initializer_list<Status> checks) {
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

inline Status Range(std::string_view field, std::int64_t value, std::int64_t low,
                    std::int64_t high) {
  if (value >= low && value <= high) return {};
  return InvalidArgument(std::string(field) + " = " + std::to_string(value) + ": must be " +
                         std::to_string(low) + ".." + std::to_string(high));
}

inline Status EvenRange(std::string_view field, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (value >= low && value <= high && value % 2 == 0) return {};
  return InvalidArgument(std::string(field) + " = " + std::to_string(value) +
                         ": must be even and " + std::to_string(low) + ".." + std::to_string(high));
}

// A pointer that will be used: there, and aligned to its elements.
inline Status Pointer(std::string_view field, const void* pointer, std::size_t alignment) {
  if (pointer == nullptr) {
    return InvalidArgument(std::string(field) + " = null: must point to memory of the device");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address % alignment == 0) return {};
  return InvalidArgument(std::string(field) + " = " + std::to_string(address) +
                         ": must be a multiple of the element size " + std::to_string(alignment));
}

// Where faults go: to one place at most.
inline Status FaultPointers(const FaultRecord* fault, FaultRecord* const* indirect) {
  if (fault != nullptr && indirect != nullptr) {
    return InvalidArgument("fault and fault_indirect are both set: at most one may be");
  }
  if (fault != nullptr) return Pointer("fault", fault, alignof(FaultRecord));
  if (indirect == nullptr) return {};
  return Pointer("fault_indirect", indirect, alignof(FaultRecord*));
}

// `moves`: whether the operation has the style that also moves elements.
inline Status Style(RopeStyle style, bool moves) {
  if (style == RopeStyle::kInterleaved || style == RopeStyle::kHalf) return {};
  if (style == RopeStyle::kInterleavedToHalf && moves) return {};
  const std::string text = "style = " + std::to_string(static_cast<int>(style));
  if (style == RopeStyle::kInterleavedToHalf) {
    return Unsupported(text + ": only AppendRope has kInterleavedToHalf");
  }
  return InvalidArgument(text + ": must be kInterleaved or kHalf" +
                         (moves ? ", or kInterleavedToHalf" : ""));
}

// A size in bytes that fits int64.
inline Status Fits(std::string_view field, std::optional<std::int64_t> elements,
                   std::size_t element_size) {
  if (elements && CheckedProduct({*elements, static_cast<std::int64_t>(element_size)})) return {};
  return InvalidArgument(std::string(field) + ": its size in bytes must be below 2^63");
}

// Whether [a, a + a_bytes) and [b, b + b_bytes) share a byte.
inline bool Overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  if (a_bytes == 0 || b_bytes == 0) return false;
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second ? second - first < static_cast<std::uint64_t>(a_bytes)
                        : first - second < static_cast<std::uint64_t>(b_bytes);
}

}  // namespace lariat::check
