// SPDX-License-Identifier: Apache-2.0
// MlaAppend: checks, and its two steps: the down-projection as one product into scratch memory,
// then, as from given rows, one launch that norms, turns and stores.
#include <cmath>
#include <cstddef>

#include "backend/backend.h"
#include "backend/mla_check.h"
#include "base/guarded.h"
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
  if (Status s = check::ProductType("in_dtype", p.in_dtype, "MlaAppend"); !s.ok()) return s;
  if (p.dtype == p.in_dtype) return {};
  const bool wide = p.in_dtype == DType::kFP32;
  if (wide && (p.dtype == DType::kFP16 || p.dtype == DType::kBF16)) return {};
  return Unsupported("dtype = " + Name(p.dtype) + ": with in_dtype " + Name(p.in_dtype) +
                     " MlaAppend stores " + Name(p.in_dtype) + (wide ? ", fp16 or bf16" : ""));
}

Status CheckShape(const MlaAppendParams& p) {
  Status shape = check::First({
      check::Range("num_tokens", p.num_tokens, 0, check::kMaxInt32),
      check::Range("rank", p.rank, 1, kMaxWidth),
      check::Range("rope_dim", p.rope_dim, 0, kMaxWidth),
      check::Range("dependent_launch", static_cast<int>(p.dependent_launch), 0, 2),
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

Status CompleteProjection(MlaAppendParams& p) {
  if (Status s = check::Layout(p.layout); !s.ok()) return s;
  if (Status s = check::Range("model_dim", p.model_dim, 1, kMaxModelDim); !s.ok()) return s;
  const bool out_in = p.layout == WeightLayout::kOutIn;
  return check::First({
      check::CompleteStride("hidden_stride", p.model_dim, p.hidden_stride),
      check::CompleteStride("w_down_stride", out_in ? p.model_dim : WidthOf(p), p.w_down_stride),
  });
}

// What is read. The source of rows that a call does not have is empty: its widths are 0.
struct Inputs {
  check::Rows hidden, w_down, c_kv, k_pe;
};
Inputs InputsOf(const MlaAppendParams& p, bool from_hidden) {
  const std::int64_t given = from_hidden ? 0 : p.num_tokens;
  return {
      {"hidden", p.hidden, from_hidden ? p.num_tokens : 0, p.model_dim, p.hidden_stride},
      check::Weight("w_down", p.w_down, p.layout, from_hidden ? p.model_dim : 0, WidthOf(p),
                    p.w_down_stride),
      {"c_kv", p.c_kv, given, p.rank, p.c_kv_stride},
      {"k_pe", p.k_pe, given, p.rope_dim, p.k_pe_stride},
  };
}

Size CacheExtent(const MlaAppendParams& p) {
  if (p.num_slots == 0) return 0;
  return CheckedSum({CheckedProduct({p.num_slots / p.block_size - 1, p.block_stride}),
                     CheckedProduct({p.block_size - 1, p.row_stride}), WidthOf(p)});
}

Status CheckExtents(const MlaAppendParams& p, const Inputs& inputs) {
  const std::size_t in = SizeOf(p.in_dtype);
  return check::First({
      check::RowsFit(inputs.hidden, in),
      check::RowsFit(inputs.w_down, in),
      check::RowsFit(inputs.c_kv, in),
      check::RowsFit(inputs.k_pe, in),
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
  }
  return CheckExtents(p, InputsOf(p, from_hidden));
}

// Rows as rows of bytes, so that those of two types can be compared.
check::Rows InBytes(check::Rows r, DType dtype) {
  if (r.rows <= 1 || r.columns == 0) r.stride = r.columns;  // any number, so far
  r.columns *= static_cast<std::int64_t>(SizeOf(dtype));
  r.stride *= static_cast<std::int64_t>(SizeOf(dtype));
  return r;
}

// The cache is no input. Where its blocks lie apart, what is between them may be anybody's: such a
// cache is not looked at.
Status CheckApart(const MlaAppendParams& p, const Inputs& inputs) {
  if (p.block_stride != p.block_size * p.row_stride) return {};
  const DType in = p.in_dtype;
  return check::Apart(
      {InBytes({"cache", p.cache, p.num_slots, WidthOf(p), p.row_stride}, p.dtype)},
      {InBytes(inputs.hidden, in), InBytes(inputs.w_down, in), InBytes(inputs.c_kv, in),
       InBytes(inputs.k_pe, in), InBytes({"norm_weight", p.norm_weight, 1, p.rank, p.rank}, in)},
      1);
}

Status CheckSource(const MlaAppendParams& p, const Inputs& inputs) {
  if (p.hidden != nullptr && (p.c_kv != nullptr || p.k_pe != nullptr)) {
    return InvalidArgument("hidden and c_kv or k_pe are both set: rows are projected or given");
  }
  const std::size_t in = SizeOf(p.in_dtype);
  return check::First({
      check::RowsPointer(inputs.hidden, in),
      check::RowsPointer(inputs.w_down, in),
      check::RowsPointer(inputs.c_kv, in),
      check::RowsPointer(inputs.k_pe, in),
  });
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
  const Inputs inputs = InputsOf(p, p.hidden != nullptr);
  if (Status s = check::First({CheckSource(p, inputs), check::Pointer("slots", p.slots, 8)});
      !s.ok()) {
    return s;
  }
  if (p.norm_weight != nullptr) {
    if (Status s = check::Pointer("norm_weight", p.norm_weight, SizeOf(p.in_dtype)); !s.ok()) {
      return s;
    }
  }
  if (p.num_slots > 0) {
    if (Status s = check::Pointer("cache", p.cache, SizeOf(p.dtype)); !s.ok()) return s;
    if (Status s = CheckApart(p, inputs); !s.ok()) return s;
  }
  if (p.rotary_dim > 0) {
    if (Status s = CheckTables(p); !s.ok()) return s;
  }
  return check::FaultPointers(p.fault, p.fault_indirect);
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
  g.dependent_launch = p.dependent_launch;
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
  return Guarded([&]() -> Status {
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
  });
}

Status Warmup(Device& device, const MlaAppendParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    MlaAppendParams p = params;
    Backend& backend = device.backend();
    const bool from_hidden = ProjectsDown(p);
    if (Status s = CheckShapeAndComplete(p, from_hidden); !s.ok()) return s;
    if (!from_hidden || p.num_tokens == 0) return {};
    if (backend.has_memory()) {
      const Inputs inputs = InputsOf(p, from_hidden);
      const std::size_t in = SizeOf(p.in_dtype);
      if (Status s = check::First({check::OptionalRowsPointer(inputs.hidden, in),
                                   check::OptionalRowsPointer(inputs.w_down, in)});
          !s.ok()) {
        return s;
      }
    }
    const auto bytes = static_cast<std::size_t>(ScratchBytes(p));
    const Result<void*> scratch = backend.Scratch(ScratchUse::kLatent, bytes, stream);
    if (!scratch.ok()) return scratch.status();
    return backend.WarmupGemm(ProjectionOf(p), stream);
  });
}

Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaAppendParams& params) {
  return Guarded([&]() -> Result<std::int64_t> {
    MlaAppendParams p = params;
    const bool from_hidden = ProjectsDown(p);
    if (Status s = CheckShapeAndComplete(p, from_hidden); !s.ok()) return s;
    if (!from_hidden || p.num_tokens == 0 || !device.backend().has_memory()) return 0;
    return device.backend().GemmWorkspaceBytes() + ScratchBytes(p);
  });
}

}  // namespace lariat
