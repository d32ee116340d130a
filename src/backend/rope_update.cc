// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "backend/check.h"
#include "base/guarded.h"
#include "lariat/ops.h"

namespace lariat {
namespace {

struct Sizes {              // elements
  std::int64_t fresh = 0;   // k_new, v_new
  std::int64_t cache = 0;   // cache_k, cache_v, half of out
  std::int64_t table = 0;   // cos, sin
  std::int64_t tokens = 0;  // positions
};

Status CheckTypes(const RopeUpdateParams& p) {
  const bool known = p.dtype == DType::kFP32 || p.dtype == DType::kFP64 ||
                     p.dtype == DType::kFP16 || p.dtype == DType::kBF16;
  if (!known) {
    return Unsupported("dtype = " + std::string(DTypeName(p.dtype)) +
                       ": RopeUpdate takes fp32, fp64, fp16, bf16");
  }
  const bool wide = p.table_dtype == DType::kFP32 && p.dtype != DType::kFP64;
  if (p.table_dtype != p.dtype && !wide) {
    return Unsupported("table_dtype = " + std::string(DTypeName(p.table_dtype)) + ": with dtype " +
                       std::string(DTypeName(p.dtype)) + " it must be that" +
                       (p.dtype == DType::kFP64 ? "" : " or fp32"));
  }
  return {};
}

Status CheckSizes(const RopeUpdateParams& p, Sizes& sizes) {
  if (Status s = check::First({
          check::Range("batch", p.batch, 0, check::kMaxInt32),
          check::Range("new_tokens", p.new_tokens, 0, check::kMaxInt32),
          check::Range("cache_len", p.cache_len, 0, check::kMaxInt32),
          check::Range("heads", p.heads, 1, 8192),
          check::EvenRange("head_dim", p.head_dim, 2, 512),
          check::EvenRange("rotary_dim", p.rotary_dim, 0, p.head_dim),
          check::Style(p.style, /*moves=*/false),
          check::Range("dependent_launch", static_cast<int>(p.dependent_launch), 0, 2),
      });
      !s.ok()) {
    return s;
  }
  const std::size_t element = SizeOf(p.dtype);
  const auto fresh = CheckedProduct({p.batch, p.new_tokens, p.heads, p.head_dim});
  const auto cache = CheckedProduct({p.batch, p.cache_len, p.heads, p.head_dim});
  const auto out = cache ? CheckedProduct({2, *cache}) : std::nullopt;
  if (Status s =
          check::First({check::Fits("k_new", fresh, element), check::Fits("out", out, element)});
      !s.ok()) {
    return s;
  }
  sizes = {*fresh, *cache, p.cache_len * (p.rotary_dim / 2), p.batch * p.new_tokens};
  return {};
}

Status CheckPointers(const RopeUpdateParams& p, const Sizes& sizes) {
  const std::size_t element = SizeOf(p.dtype);
  const std::size_t table = SizeOf(p.table_dtype);
  const auto bytes = [](std::int64_t count, std::size_t size) {
    return count * static_cast<std::int64_t>(size);
  };
  const struct {
    const char* name;
    const void* pointer;
    std::size_t alignment;
    std::int64_t bytes;
  } inputs[] = {
      {"k_new", p.k_new, element, bytes(sizes.fresh, element)},
      {"v_new", p.v_new, element, bytes(sizes.fresh, element)},
      {"cos", p.cos, table, sizes.tokens > 0 ? bytes(sizes.table, table) : 0},
      {"sin", p.sin, table, sizes.tokens > 0 ? bytes(sizes.table, table) : 0},
      {"cache_k", p.cache_k, element, bytes(sizes.cache, element)},
      {"cache_v", p.cache_v, element, bytes(sizes.cache, element)},
      {"positions", p.positions, 4, bytes(sizes.tokens, 4)},
  };
  if (Status s = check::Pointer("out", p.out, element); !s.ok()) return s;
  const std::int64_t out_bytes = 2 * bytes(sizes.cache, element);
  for (const auto& input : inputs) {
    if (input.bytes == 0) continue;  // not read
    if (Status s = check::Pointer(input.name, input.pointer, input.alignment); !s.ok()) return s;
    if (check::Overlap(p.out, out_bytes, input.pointer, input.bytes)) {
      return InvalidArgument(std::string("out overlaps ") + input.name +
                             ": it must be memory of its own");
    }
  }
  if (p.fault == nullptr) return {};
  return check::Pointer("fault", p.fault, alignof(FaultRecord));
}

}  // namespace

Status RopeUpdate(Device& device, const RopeUpdateParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    Sizes sizes;
    if (Status s = CheckTypes(params); !s.ok()) return s;
    if (Status s = CheckSizes(params, sizes); !s.ok()) return s;
    if (sizes.cache == 0) return {};
    if (device.backend().has_memory()) {
      if (Status s = CheckPointers(params, sizes); !s.ok()) return s;
    }
    return device.backend().RopeUpdate(params, stream);
  });
}

}  // namespace lariat
