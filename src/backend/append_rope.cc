// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "backend/append_check.h"
#include "backend/backend.h"
#include "backend/check.h"
#include "base/guarded.h"
#include "lariat/ops.h"

namespace lariat {
namespace {

using Size = std::optional<std::int64_t>;

constexpr int kMaxHeads = 8192;

std::string Name(DType dtype) { return std::string(DTypeName(dtype)); }

Status CheckSupported(const AppendRopeParams& p) {
  const auto plain = [](DType t) {
    return t == DType::kFP32 || t == DType::kFP16 || t == DType::kBF16;
  };
  if (!plain(p.in_dtype)) {
    return Unsupported("in_dtype = " + Name(p.in_dtype) + ": AppendRope takes fp32, fp16, bf16");
  }
  if (!plain(p.dtype) || (p.dtype != p.in_dtype && p.in_dtype != DType::kFP32)) {
    return Unsupported("dtype = " + Name(p.dtype) + ": with in_dtype " + Name(p.in_dtype) +
                       " AppendRope stores " + Name(p.in_dtype) +
                       (p.in_dtype == DType::kFP32 ? ", fp16 or bf16" : ""));
  }
  if (p.check_slots) return Unsupported("check_slots = true: not built, must be false");
  for (const auto& [name, scale] : {std::pair{"k_scale", p.k_scale}, {"v_scale", p.v_scale}}) {
    if (scale != 1.0F) {
      return Unsupported(std::string(name) + " = " + std::to_string(scale) +
                         ": scales are for fp8, must be 1");
    }
  }
  return {};
}

Status CheckSections(const AppendRopeParams& p) {
  if (p.position_sections != 1 && p.position_sections != 3) {
    return InvalidArgument("position_sections = " + std::to_string(p.position_sections) +
                           ": must be 1 or 3");
  }
  if (p.position_sections == 1) return {};
  std::int64_t sum = 0;
  for (const int pairs : p.section_pairs) {
    if (Status s = check::Range("section_pairs", pairs, 0, 256); !s.ok()) return s;
    sum += pairs;
  }
  if (sum != p.rotary_dim / 2) {
    return InvalidArgument("section_pairs: the sum is " + std::to_string(sum) +
                           "; must be rotary_dim / 2 = " + std::to_string(p.rotary_dim / 2));
  }
  return check::Range("section_stride", p.section_stride, 0, INT64_MAX);
}

Status CheckShape(const AppendRopeParams& p) {
  Status shape = check::First({
      check::Range("num_tokens", p.num_tokens, 0, check::kMaxInt32),
      check::Range("kv_heads", p.kv_heads, 1, kMaxHeads),
      check::Range("q_heads", p.q_heads, 0, kMaxHeads),
      check::EvenRange("k_dim", p.k_dim, 2, 512),
      check::EvenRange("v_dim", p.v_dim, 2, 512),
      check::EvenRange("rotary_dim", p.rotary_dim, 0, p.k_dim),
      check::Style(p.style, /*moves=*/true),
      check::Range("block_size", p.block_size, 1, check::kMaxInt32),
      check::Range("num_slots", p.num_slots, 0, INT64_MAX),
      check::Range("num_positions", p.num_positions, 0, INT64_MAX),
      check::Range("dependent_launch", static_cast<int>(p.dependent_launch), 0, 2),
  });
  if (!shape.ok()) return shape;
  if (Status s = CheckSections(p); !s.ok()) return s;
  if (p.num_slots % p.block_size != 0) {
    return InvalidArgument("num_slots = " + std::to_string(p.num_slots) +
                           ": must be a multiple of block_size = " + std::to_string(p.block_size));
  }
  const struct {
    const char* name;
    std::int64_t value;
  } strides[] = {{"k_token_stride", p.k_token_stride},
                 {"k_head_stride", p.k_head_stride},
                 {"v_token_stride", p.v_token_stride},
                 {"v_head_stride", p.v_head_stride},
                 {"q_token_stride", p.q_token_stride},
                 {"q_head_stride", p.q_head_stride},
                 {"k_block_stride", p.k_block_stride},
                 {"k_row_stride", p.k_row_stride},
                 {"k_cache_head_stride", p.k_cache_head_stride},
                 {"v_block_stride", p.v_block_stride},
                 {"v_row_stride", p.v_row_stride},
                 {"v_cache_head_stride", p.v_cache_head_stride}};
  for (const auto& stride : strides) {
    if (Status s = check::Range(stride.name, stride.value, 0, INT64_MAX); !s.ok()) return s;
  }
  return {};
}

// Strides of [count, heads, dim].
Status CompleteInput(const char* name, int heads, int dim, std::int64_t& token,
                     std::int64_t& head) {
  if (head == 0) head = dim;
  if (token != 0) return {};
  const Size whole = CheckedProduct({heads, head});
  if (!whole) return check::Fits(name, whole, 1);
  token = *whole;
  return {};
}

// Strides of a cache: a row holds its heads, a block its rows (or, with heads outermost, its
// heads).
Status CompleteCache(const char* name, int heads, int dim, int block_size, std::int64_t& block,
                     std::int64_t& row, std::int64_t& head) {
  if (head == 0) head = dim;
  const Size all_heads = CheckedProduct({heads, head});
  if (row == 0 && all_heads) row = *all_heads;
  const Size all_rows = CheckedProduct({block_size, row});
  if (!all_heads || !all_rows) return check::Fits(name, std::nullopt, 1);
  if (block == 0) block = std::max(*all_heads, *all_rows);
  return {};
}

Status Complete(AppendRopeParams& p) {
  if (p.section_stride == 0) p.section_stride = p.num_tokens;
  return check::First({
      CompleteInput("k", p.kv_heads, p.k_dim, p.k_token_stride, p.k_head_stride),
      CompleteInput("v", p.kv_heads, p.v_dim, p.v_token_stride, p.v_head_stride),
      CompleteInput("q", p.q_heads, p.k_dim, p.q_token_stride, p.q_head_stride),
      CompleteCache("k_cache", p.kv_heads, p.k_dim, p.block_size, p.k_block_stride, p.k_row_stride,
                    p.k_cache_head_stride),
      CompleteCache("v_cache", p.kv_heads, p.v_dim, p.block_size, p.v_block_stride, p.v_row_stride,
                    p.v_cache_head_stride),
  });
}

// One past the last element of [count, heads, dim] under strides.
Size InputExtent(std::int64_t count, int heads, int dim, std::int64_t token, std::int64_t head) {
  if (count == 0 || heads == 0) return 0;
  return CheckedSum({CheckedProduct({count - 1, token}), CheckedProduct({heads - 1, head}), dim});
}

Size CacheExtent(const AppendRopeParams& p, int dim, std::int64_t block, std::int64_t row,
                 std::int64_t head) {
  if (p.num_slots == 0) return 0;
  return CheckedSum({CheckedProduct({p.num_slots / p.block_size - 1, block}),
                     CheckedProduct({p.block_size - 1, row}),
                     CheckedProduct({p.kv_heads - 1, head}), dim});
}

Status CheckExtents(const AppendRopeParams& p, Size& q_extent) {
  const std::size_t in = SizeOf(p.in_dtype);
  const std::size_t out = SizeOf(p.dtype);
  const std::int64_t tokens = p.num_tokens;
  q_extent = InputExtent(tokens, p.q_heads, p.k_dim, p.q_token_stride, p.q_head_stride);
  return check::First({
      check::Fits("k", InputExtent(tokens, p.kv_heads, p.k_dim, p.k_token_stride, p.k_head_stride),
                  in),
      check::Fits("v", InputExtent(tokens, p.kv_heads, p.v_dim, p.v_token_stride, p.v_head_stride),
                  in),
      check::Fits("q", q_extent, in),
      check::Fits("k_cache",
                  CacheExtent(p, p.k_dim, p.k_block_stride, p.k_row_stride, p.k_cache_head_stride),
                  out),
      check::Fits("v_cache",
                  CacheExtent(p, p.v_dim, p.v_block_stride, p.v_row_stride, p.v_cache_head_stride),
                  out),
      check::Fits("cos", CheckedProduct({2, p.num_positions, p.rotary_dim / 2}), sizeof(float)),
      check::Fits("positions", CheckedProduct({p.position_sections, p.section_stride}), 4),
  });
}

// Whether a head row of q_out, `distance` elements from q, meets another head row of q: both may
// be columns of one strided buffer, so ranges of memory do not tell.
bool RowsMeet(const AppendRopeParams& p, std::int64_t distance, std::int64_t extent) {
  if (distance >= extent) return false;
  for (std::int64_t heads = 1 - p.q_heads; heads < p.q_heads; ++heads) {
    const std::int64_t rest = distance - heads * p.q_head_stride;
    const std::int64_t tokens = rest / p.q_token_stride;
    for (std::int64_t t = tokens - 1; t <= tokens + 1; ++t) {
      const std::int64_t left = rest - t * p.q_token_stride;
      if (std::abs(t) < p.num_tokens && std::abs(left) < p.k_dim) return true;
    }
  }
  return false;
}

Status CheckQOut(const AppendRopeParams& p, std::int64_t extent) {
  const auto element = static_cast<std::int64_t>(SizeOf(p.in_dtype));
  const auto q = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(p.q));
  const auto q_out = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(p.q_out));
  if (q == q_out && p.style == RopeStyle::kInterleavedToHalf) {
    return InvalidArgument(
        "q_out is q: with style kInterleavedToHalf it must be memory of its own");
  }
  if (q == q_out || !RowsMeet(p, std::abs(q_out - q) / element, extent)) return {};
  return InvalidArgument("q_out overlaps q: it must be q itself or memory of its own");
}

Status CheckPointers(const AppendRopeParams& p, std::int64_t q_extent) {
  const std::size_t in = SizeOf(p.in_dtype);
  const std::size_t out = SizeOf(p.dtype);
  if (Status s = check::First({check::Pointer("k", p.k, in), check::Pointer("v", p.v, in),
                               check::Pointer("slots", p.slots, 8)});
      !s.ok()) {
    return s;
  }
  if (p.num_slots > 0) {
    if (Status s = check::First(
            {check::Pointer("k_cache", p.k_cache, out), check::Pointer("v_cache", p.v_cache, out)});
        !s.ok()) {
      return s;
    }
  }
  if (p.rotary_dim > 0) {
    if (Status s = check::First({check::Pointer("positions", p.positions, 4),
                                 check::Range("num_positions", p.num_positions, 1, INT64_MAX),
                                 check::Pointer("cos", p.cos, 4), check::Pointer("sin", p.sin, 4)});
        !s.ok()) {
      return s;
    }
    if (p.table_choice != nullptr) {
      if (Status s =
              check::First({check::Pointer("table_choice", p.table_choice, 4),
                            check::Range("num_positions", p.num_positions, 1, check::kMaxInt32)});
          !s.ok()) {
        return s;
      }
    }
  }
  if (p.q_heads > 0) {
    if (Status s = check::First({check::Pointer("q", p.q, in), check::Pointer("q_out", p.q_out, in),
                                 CheckQOut(p, q_extent)});
        !s.ok()) {
      return s;
    }
  }
  return check::FaultPointers(p.fault, p.fault_indirect);
}

}  // namespace

Status CheckAppendRope(const Backend& backend, AppendRopeParams& params) {
  Size q_extent;
  if (Status s = CheckSupported(params); !s.ok()) return s;
  if (Status s = CheckShape(params); !s.ok()) return s;
  if (Status s = Complete(params); !s.ok()) return s;
  if (Status s = CheckExtents(params, q_extent); !s.ok()) return s;
  if (params.num_tokens == 0 || !backend.has_memory()) return {};
  return CheckPointers(params, *q_extent);
}

Status AppendRope(Device& device, const AppendRopeParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    AppendRopeParams complete = params;
    if (Status s = CheckAppendRope(device.backend(), complete); !s.ok()) return s;
    if (params.num_tokens == 0) return {};
    return device.backend().AppendRope(complete, stream);
  });
}

}  // namespace lariat
