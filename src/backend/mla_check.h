// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "backend/check.h"
#include "lariat/ops.h"

// Checks of what matrix products read and write, for the MLA operations.

namespace lariat::check {

// A matrix, or rows of tokens: `stride` elements from row to row.
struct Rows {
  std::string_view field;  // the pointer's name
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

// A linear layer's weight as it lies.
inline Rows Weight(std::string_view field, const void* data, WeightLayout layout,
                   std::int64_t inputs, std::int64_t outputs, std::int64_t stride) {
  const bool out_in = layout == WeightLayout::kOutIn;
  return {field, data, out_in ? outputs : inputs, out_in ? inputs : outputs, stride};
}

// The types that products take.
inline Status ProductType(std::string_view field, DType dtype, std::string_view operation) {
  if (dtype == DType::kFP32 || dtype == DType::kFP16 || dtype == DType::kBF16) return {};
  return Unsupported(std::string(field)
                         .append(" = ")
                         .append(DTypeName(dtype))
                         .append(": ")
                         .append(operation)
                         .append(" takes fp32, fp16, bf16"));
}

inline Status Layout(WeightLayout layout) {
  if (layout == WeightLayout::kOutIn || layout == WeightLayout::kInOut) return {};
  return InvalidArgument(std::string("layout = ")
                             .append(std::to_string(static_cast<int>(layout)))
                             .append(": must be kOutIn or kInOut"));
}

// A stride from row to row: 0 becomes `columns`, else rows may not overlap, and BLAS libraries
// count in 32 bits.
inline Status CompleteStride(std::string_view field, std::int64_t columns, std::int64_t& stride) {
  if (stride == 0) stride = columns;
  if (stride >= columns && stride <= kMaxInt32) return {};
  return InvalidArgument(std::string(field)
                             .append(" = ")
                             .append(std::to_string(stride))
                             .append(": must be 0, or ")
                             .append(std::to_string(columns))
                             .append("..2^31-1 (a row and what lies behind it)"));
}

// One past the last element; nothing where that does not fit.
inline std::optional<std::int64_t> Extent(const Rows& r) {
  if (r.rows == 0 || r.columns == 0) return 0;
  return CheckedSum({CheckedProduct({r.rows - 1, r.stride}), r.columns});
}

inline Status RowsFit(const Rows& r, std::size_t element) {
  return Fits(r.field, Extent(r), element);
}

// Rows that will be used: there, and aligned to their elements.
inline Status RowsPointer(const Rows& r, std::size_t element) {
  if (r.rows == 0 || r.columns == 0) return {};
  return Pointer(r.field, r.data, element);
}

// Where rows may be absent (null): aligned if they are there.
inline Status OptionalRowsPointer(const Rows& r, std::size_t element) {
  return r.data == nullptr ? Status() : RowsPointer(r, element);
}

// Whether two sets of rows share an element. Both may be columns of one buffer: with equal strides
// the rows themselves are looked at, else the ranges of memory from the first to the last element.
// REQUIRES: both fit (RowsFit) and are aligned to their elements.
inline bool Meet(const Rows& a, const Rows& b, std::size_t element) {
  if (a.data == nullptr || b.data == nullptr) return false;
  const auto size = static_cast<std::int64_t>(element);
  if (!Overlap(a.data, *Extent(a) * size, b.data, *Extent(b) * size)) return false;
  if (a.stride != b.stride) return true;
  const auto distance = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.data) -
                                                  reinterpret_cast<std::uintptr_t>(a.data)) /
                        size;
  // Row i of a and row j of b share elements where -b.columns < distance + (j - i) stride <
  // a.columns. Ranges that overlap leave the nearest rows on either side.
  const std::int64_t nearest = -distance / a.stride;
  for (std::int64_t apart = nearest - 1; apart <= nearest + 1; ++apart) {
    const std::int64_t left = distance + apart * a.stride;
    if (-b.columns < left && left < a.columns && -a.rows < apart && apart < b.rows) return true;
  }
  return false;
}

// Outputs share memory neither with inputs nor with one another. Absent ones (null) are left out.
inline Status Apart(std::initializer_list<Rows> outputs, std::initializer_list<Rows> inputs,
                    std::size_t element) {
  const auto overlap = [](const Rows& output, const Rows& other) {
    return InvalidArgument(std::string(output.field)
                               .append(" overlaps ")
                               .append(other.field)
                               .append(": it must be memory of its own"));
  };
  for (const Rows* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const Rows& input : inputs) {
      if (Meet(*output, input, element)) return overlap(*output, input);
    }
    for (const Rows* other = outputs.begin(); other != output; ++other) {
      if (Meet(*output, *other, element)) return overlap(*output, *other);
    }
  }
  return {};
}

}  // namespace lariat::check
