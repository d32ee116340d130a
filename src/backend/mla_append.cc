// SPDX-License-Identifier: Apache-2.0
// MlaAppend: checks, and its two steps: the down-projection as one product into scratch memory,
// then, as from given rows, one launch that norms, turns and stores.
#include <cmath>

#include "backend/backend.h"
#include "backend/check.h"
#include "lariat/ops.h"

namespace lariat {
namespace {

using Size = std::optional<std::int64_t>;

constexpr int kMaxModelDim = 1 << 20;
constexpr int kMaxWidth = 65536;

std::string Name(DType dtype) { return std::string(DTypeName(dtype)); }

std::int64_t WidthOf(const MlaAppendParams& p) { return std::int64_t{p.rank} + p.rope_dim; }

// Whether a Warmup or a query is about a call from hidden, whose address it need not know.
bool ProjectsDown(const MlaAppendParams& p) { return p.hidden != nullptr || p.model_dim != 0; }

Status CheckSupported(const MlaAppendParams& p) {
  const auto plain = [](DType t) {
    return t == DType::kFP32 || t == DType::kFP16 || t == DType::kBF16;
  };
  if (!plain(p.in_dtype)) {
    return Unsupported("in_dtype = " + Name(p.in_dtype) + ": MlaAppend takes fp32, fp16, bf16");
  }
  if (!plain(p.dtype) || (p.dtype != p.in_dtype && p.in_dtype != DType::kFP32)) {
    return Unsupported("dtype = " + Name(p.dtype) + ": with in_dtype " + Name(p.in_dtype) +
                       " MlaAppend stores " + Name(p.in_dtype) +
                       (p.in_dtype == DType::kFP32 ? ", fp16 or bf16" : ""));
  }
  return {};
}

Status CheckShape(const MlaAppendParams& p) {
  Status shape = check::First({
      check::Range("num_tokens", p.num_tokens, 0, check::kMaxInt32),
      check::Range("rank", p.rank, 1, kMaxWidth),
      check::Range("rope_dim", p.rope_dim, 0, kMaxWidth),
      check::EvenRange("rotary_dim", p.rotary_dim, 0, p.rope_dim),
      check::Style(p.style, /*moves=*/true),
      check::Range("block_size", p.block_size, 1, check::kMaxInt32),
      check::Range("num_slots", p.num_slots, 0, INT64_MAX),
      check::Range("num_positions", p.num_positions, 0, INT64_MAX),
      check::Range("c_kv_stride", p.c_kv_stride, 0, INT64_MAX),
      check::Range("k_pe_stride", p.k_pe_stride, 0, INT64_MAX),
      check::Range("block_stride", p.block_stride, 0, INT64_MAX),
      check::Range("row_stride", p.row_stride, 0, INT64_MAX),
  });
  if (!shape.ok()) return shape;
  if (p.num_slots % p.block_size != 0) {
    return InvalidArgument("num_slots = " + std::to_string(p.num_slots) +
                           ": must be a multiple of block_size = " + std::to_string(p.block_size));
  }
  if (!std::isfinite(p.eps) || p.eps < 0) {
    return InvalidArgument("eps = " + std::to_string(p.eps) + ": must be finite and at least 0");
  }
  return {};
}

// The rows of the cache and, where they are given, of the input.
Status CompleteRows(MlaAppendParams& p) {
  if (p.c_kv_stride == 0) p.c_kv_stride = p.rank;
  if (p.k_pe_stride == 0) p.k_pe_stride = p.rope_dim;
  if (p.row_stride == 0) p.row_stride = WidthOf(p);
  const Size block = CheckedProduct({p.block_size, p.row_stride});
  if (!block) return check::Fits("cache", block, 1);
  if (p.block_stride == 0) p.block_stride = *block;
  return {};
}

// A matrix of the product: its stride is made whole and fits what products take.
Status CompleteMatrix(const char* stride_name, std::int64_t columns, std::int64_t& stride) {
  if (stride == 0) stride = columns;
  return check::Range(stride_name, stride, columns, check::kMaxInt32);
}

Status CompleteProjection(MlaAppendParams& p) {
  if (p.layout != WeightLayout::kOutIn && p.layout != WeightLayout::kInOut) {
    return InvalidArgument("layout = " + std::to_string(static_cast<int>(p.layout)) +
                           ": must be kOutIn or kInOut");
  }
  if (Status s = check::Range("model_dim", p.model_dim, 1, kMaxModelDim); !s.ok()) return s;
  return check::First({
      CompleteMatrix("hidden_stride", p.model_dim, p.hidden_stride),
      CompleteMatrix("w_down_stride", p.layout == WeightLayout::kOutIn ? p.model_dim : WidthOf(p),
                     p.w_down_stride),
  });
}

// One past the last element of [count, width] under a stride.
Size Extent(std::int64_t count, std::int64_t width, std::int64_t stride) {
  if (count == 0) return 0;
  return CheckedSum({CheckedProduct({count - 1, stride}), width});
}

Size CacheExtent(const MlaAppendParams& p) {
  if (p.num_slots == 0) return 0;
  return CheckedSum({CheckedProduct({p.num_slots / p.block_size - 1, p.block_stride}),
                     CheckedProduct({p.block_size - 1, p.row_stride}), WidthOf(p)});
}

// The strides of a source of rows that is not there are 0.
Status CheckExtents(const MlaAppendParams& p) {
  const std::size_t in = SizeOf(p.in_dtype);
  return check::First({
      check::Fits("hidden", Extent(p.num_tokens, p.model_dim, p.hidden_stride), in),
      check::Fits("c_kv", Extent(p.num_tokens, p.rank, p.c_kv_stride), in),
      check::Fits("k_pe", Extent(p.num_tokens, p.rope_dim, p.k_pe_stride), in),
      check::Fits("cache", CacheExtent(p), SizeOf(p.dtype)),
      check::Fits("cos", CheckedProduct({2, p.num_positions, p.rotary_dim / 2}), sizeof(float)),
  });
}

Status CheckShapeAndComplete(MlaAppendParams& p, bool from_hidden) {
  if (Status s = CheckSupported(p); !s.ok()) return s;
  if (Status s = CheckShape(p); !s.ok()) return s;
  if (Status s = CompleteRows(p); !s.ok()) return s;
  if (from_hidden) {
    if (Status s = CompleteProjection(p); !s.ok()) return s;
    p.c_kv_stride = p.k_pe_stride = 0;
  } else {
    p.model_dim = 0;
    p.hidden_stride = 0;
  }
  return CheckExtents(p);
}

// The input's pointers.
Status CheckSource(const MlaAppendParams& p) {
  const std::size_t in = SizeOf(p.in_dtype);
  if (p.hidden != nullptr) {
    if (p.c_kv != nullptr || p.k_pe != nullptr) {
      return InvalidArgument("hidden and c_kv or k_pe are both set: rows are given or projected");
    }
    return check::First(
        {check::Pointer("hidden", p.hidden, in), check::Pointer("w_down", p.w_down, in)});
  }
  if (Status s = check::Pointer("c_kv", p.c_kv, in); !s.ok()) return s;
  return p.rope_dim > 0 ? check::Pointer("k_pe", p.k_pe, in) : Status();
}

Status CheckTables(const MlaAppendParams& p) {
  if (Status s = check::First({check::Pointer("positions", p.positions, 4),
                               check::Range("num_positions", p.num_positions, 1, INT64_MAX),
                               check::Pointer("cos", p.cos, 4), check::Pointer("sin", p.sin, 4)});
      !s.ok()) {
    return s;
  }
  if (p.table_choice == nullptr) return {};
  return check::First({check::Pointer("table_choice", p.table_choice, 4),
                       check::Range("num_positions", p.num_positions, 1, check::kMaxInt32)});
}

Status CheckPointers(const MlaAppendParams& p) {
  if (Status s = check::First({CheckSource(p), check::Pointer("slots", p.slots, 8)}); !s.ok()) {
    return s;
  }
  if (p.norm_weight != nullptr) {
    if (Status s = check::Pointer("norm_weight", p.norm_weight, SizeOf(p.in_dtype)); !s.ok()) {
      return s;
    }
  }
  if (p.num_slots > 0) {
    if (Status s = check::Pointer("cache", p.cache, SizeOf(p.dtype)); !s.ok()) return s;
  }
  if (p.rotary_dim > 0) {
    if (Status s = CheckTables(p); !s.ok()) return s;
  }
  if (p.fault != nullptr && p.fault_indirect != nullptr) {
    return InvalidArgument("fault and fault_indirect are both set: at most one may be");
  }
  if (p.fault != nullptr) return check::Pointer("fault", p.fault, alignof(FaultRecord));
  if (p.fault_indirect == nullptr) return {};
  return check::Pointer("fault_indirect", p.fault_indirect, alignof(FaultRecord*));
}

// [T, rank + rope_dim] of in_dtype, contiguous; c to be set.
GemmParams ProjectionOf(const MlaAppendParams& p) {
  GemmParams g;
  g.dtype = p.in_dtype;
  g.allow_tf32 = p.allow_tf32;
  g.rows = p.num_tokens;
  g.columns = WidthOf(p);
  g.inner = p.model_dim;
  g.a = p.hidden;
  g.a_stride = p.hidden_stride;
  g.layout = p.layout;
  g.w = p.w_down;
  g.w_stride = p.w_down_stride;
  g.c_stride = g.columns;
  return g;
}

// Cannot overflow: below 2^31 rows of less than 2^18 elements.
std::int64_t ScratchBytes(const MlaAppendParams& p) {
  return p.num_tokens * WidthOf(p) * static_cast<std::int64_t>(SizeOf(p.in_dtype));
}

// Projects into scratch memory and puts the result in the place of given rows.
Status ProjectDown(Backend& backend, MlaAppendParams& p, Stream stream) {
  const Result<void*> scratch =
      backend.Scratch(ScratchUse::kLatent, static_cast<std::size_t>(ScratchBytes(p)), stream);
  if (!scratch.ok()) return scratch.status();
  GemmParams g = ProjectionOf(p);
  g.c = *scratch;
  if (Status s = backend.Gemm(g, stream); !s.ok()) return s;
  p.hidden = nullptr;
  p.c_kv = *scratch;
  p.k_pe = static_cast<const std::byte*>(*scratch) +
           static_cast<std::size_t>(p.rank) * SizeOf(p.in_dtype);
  p.c_kv_stride = p.k_pe_stride = g.columns;
  return {};
}

}  // namespace

Status MlaAppend(Device& device, const MlaAppendParams& params, Stream stream) {
  MlaAppendParams p = params;
  Backend& backend = device.backend();
  if (Status s = CheckShapeAndComplete(p, p.hidden != nullptr); !s.ok()) return s;
  if (p.num_tokens == 0) return {};
  if (backend.has_memory()) {
    if (Status s = CheckPointers(p); !s.ok()) return s;
    if (p.hidden != nullptr) {
      if (Status s = ProjectDown(backend, p, stream); !s.ok()) return s;
    }
  }
  return backend.MlaAppendRows(p, stream);
}

Status Warmup(Device& device, const MlaAppendParams& params, Stream stream) {
  MlaAppendParams p = params;
  Backend& backend = device.backend();
  const bool from_hidden = ProjectsDown(p);
  if (Status s = CheckShapeAndComplete(p, from_hidden); !s.ok()) return s;
  if (!from_hidden || p.num_tokens == 0) return {};
  const auto bytes = static_cast<std::size_t>(ScratchBytes(p));
  const Result<void*> scratch = backend.Scratch(ScratchUse::kLatent, bytes, stream);
  if (!scratch.ok()) return scratch.status();
  return backend.WarmupGemm(ProjectionOf(p), stream);
}

Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaAppendParams& params) {
  MlaAppendParams p = params;
  const bool from_hidden = ProjectsDown(p);
  if (Status s = CheckShapeAndComplete(p, from_hidden); !s.ok()) return s;
  if (!from_hidden || p.num_tokens == 0 || !device.backend().has_memory()) return 0;
  return device.backend().GemmWorkspaceBytes() + ScratchBytes(p);
}

}  // namespace lariat
