// SPDX-License-Identifier: Apache-2.0
// MlaExpand: checks, and its composition: one gather of latents and k_pe, then a product for the
// keys and one for the values. Each head is a matrix of their batches, so that a product writes its
// part of every key and k_pe, which the gather has put beside it, stays.
#include <cstdint>
#include <optional>

#include "backend/backend.h"
#include "backend/check.h"
#include "backend/mla_check.h"
#include "base/guarded.h"
#include "lariat/ops.h"

namespace lariat {
namespace {

using check::Rows;
using Params = MlaExpandParams;
using Size = std::optional<std::int64_t>;

constexpr int kMaxRank = 65536;
constexpr int kMaxHeads = 8192;
constexpr int kMaxDim = 8192;

// Outputs of kv_b_proj for one head, and elements of a key.
std::int64_t HeadOutputs(const Params& p) { return std::int64_t{p.nope_dim} + p.v_dim; }
std::int64_t KeyWidth(const Params& p) { return std::int64_t{p.nope_dim} + p.rope_dim; }

// What a call reads and writes, in elements.
Rows Weight(const Params& p) {
  return check::Weight("w_kv_b", p.w_kv_b, p.layout, p.rank, p.heads * HeadOutputs(p),
                       p.w_kv_b_stride);
}
Rows K(const Params& p) {
  return {"k", p.k, p.num_tokens, p.heads * KeyWidth(p), p.k_token_stride};
}
Rows V(const Params& p) {
  return {"v", p.v, p.num_tokens, std::int64_t{p.heads} * p.v_dim, p.v_token_stride};
}

// From the first element of the cache to the last one.
Size CacheExtent(const Params& p) {
  if (p.num_blocks == 0) return 0;
  return CheckedSum({CheckedProduct({p.num_blocks - 1, p.block_stride}),
                     CheckedProduct({p.block_size - 1, p.row_stride}),
                     std::int64_t{p.rank} + p.rope_dim});
}
Rows Cache(const Params& p) { return {"cache", p.cache, 1, *CacheExtent(p), 0}; }

// An array of int32.
Rows Indices(const char* field, const std::int32_t* data, std::int64_t count, DType dtype) {
  return {field, data, 1, count * 4 / static_cast<std::int64_t>(SizeOf(dtype)), 0};
}

// What AbsorbViews reads too.
Status CheckWeightShape(const Params& p) {
  return check::First({check::ProductType("dtype", p.dtype, "MlaExpand"),
                       check::Range("heads", p.heads, 1, kMaxHeads),
                       check::Range("rank", p.rank, 1, kMaxRank),
                       check::Range("nope_dim", p.nope_dim, 0, kMaxDim),
                       check::Range("v_dim", p.v_dim, 0, kMaxDim), check::Layout(p.layout)});
}

Status CheckShape(const Params& p) {
  return check::First({CheckWeightShape(p),
                       check::Range("num_tokens", p.num_tokens, 0, check::kMaxInt32),
                       check::Range("rope_dim", p.rope_dim, 0, kMaxDim),
                       check::Range("num_ranges", p.num_ranges, 0, check::kMaxInt32),
                       check::Range("block_table_stride", p.block_table_stride,
                                    p.num_ranges > 0 ? 1 : 0, INT64_MAX),
                       check::Range("num_blocks", p.num_blocks, 0, INT64_MAX),
                       check::Range("block_size", p.block_size, 1, check::kMaxInt32),
                       check::Range("block_stride", p.block_stride, 0, INT64_MAX),
                       check::Range("row_stride", p.row_stride, 0, INT64_MAX)});
}

Status CompleteWeight(Params& p) {
  return check::CompleteStride("w_kv_b_stride", Weight(p).columns, p.w_kv_b_stride);
}

Status Complete(Params& p) {
  if (p.row_stride == 0) p.row_stride = std::int64_t{p.rank} + p.rope_dim;
  const Size block = CheckedProduct({p.block_size, p.row_stride});
  if (p.block_stride == 0 && block) p.block_stride = *block;
  return check::First({CompleteWeight(p),
                       check::CompleteStride("k_token_stride", K(p).columns, p.k_token_stride),
                       check::CompleteStride("v_token_stride", V(p).columns, p.v_token_stride),
                       check::Fits("cache", block, SizeOf(p.dtype))});
}

Status CheckExtents(const Params& p) {
  const std::size_t element = SizeOf(p.dtype);
  return check::First(
      {check::RowsFit(Weight(p), element), check::RowsFit(K(p), element),
       check::RowsFit(V(p), element), check::Fits("cache", CacheExtent(p), element),
       check::Fits("block_table", CheckedProduct({p.num_ranges, p.block_table_stride}), 4)});
}

// The call with its strides, after all checks that need no memory.
Result<Params> Resolve(const Params& params) {
  Params p = params;
  if (Status s = CheckShape(p); !s.ok()) return s;
  if (Status s = Complete(p); !s.ok()) return s;
  if (Status s = CheckExtents(p); !s.ok()) return s;
  return p;
}

Status CheckPointers(const Params& p) {
  const std::size_t element = SizeOf(p.dtype);
  const std::int64_t ranges = p.num_ranges;
  const Rows cu_tokens = Indices("cu_tokens", p.cu_tokens, ranges > 0 ? ranges + 1 : 0, p.dtype);
  const Rows starts = Indices("starts", p.starts, ranges, p.dtype);
  const Rows table = Indices("block_table", p.block_table, ranges * p.block_table_stride, p.dtype);
  if (Status s = check::First(
          {check::RowsPointer(Weight(p), element), check::RowsPointer(cu_tokens, 4),
           check::OptionalRowsPointer(starts, 4), check::RowsPointer(table, 4),
           check::RowsPointer(Cache(p), element), check::RowsPointer(K(p), element),
           check::RowsPointer(V(p), element), check::FaultPointers(p.fault, p.fault_indirect)});
      !s.ok()) {
    return s;
  }
  return check::Apart({K(p), V(p)}, {Weight(p), Cache(p), cu_tokens, starts, table}, element);
}

// Those that products use and that are there; the others may come later.
Status CheckAlignment(const Params& p) {
  const std::size_t element = SizeOf(p.dtype);
  return check::First({check::OptionalRowsPointer(Weight(p), element),
                       check::OptionalRowsPointer(K(p), element),
                       check::OptionalRowsPointer(V(p), element)});
}

// From one head's matrices to the next one's, and from its W_UK to its W_UV, in elements.
std::int64_t HeadStride(const Params& p) {
  return HeadOutputs(p) * (p.layout == WeightLayout::kOutIn ? p.w_kv_b_stride : 1);
}
std::int64_t ValuesOffset(const Params& p) {
  return p.nope_dim * (p.layout == WeightLayout::kOutIn ? p.w_kv_b_stride : 1);
}

// The first head's W_UV. Where there is no matrix yet, an address aligned as it will be.
const void* ValuesWeight(const Params& p) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p.w_kv_b) +
                                       static_cast<std::size_t>(ValuesOffset(p)) * SizeOf(p.dtype));
}

GemmParams KProduct(const Params& p, const void* latent) {
  GemmParams g;
  g.dtype = p.dtype;
  g.allow_tf32 = p.allow_tf32;
  g.rows = p.num_tokens;
  g.columns = p.nope_dim;
  g.inner = p.rank;
  g.a = latent;
  g.a_stride = p.rank;
  g.layout = p.layout;
  g.w = p.w_kv_b;
  g.w_stride = p.w_kv_b_stride;
  g.c = p.k;
  g.c_stride = p.k_token_stride;
  g.batch = p.heads;
  g.w_batch_stride = HeadStride(p);
  g.c_batch_stride = KeyWidth(p);
  return g;
}

GemmParams VProduct(const Params& p, const void* latent) {
  GemmParams g = KProduct(p, latent);
  g.columns = p.v_dim;
  g.w = ValuesWeight(p);
  g.c = p.v;
  g.c_stride = p.v_token_stride;
  g.c_batch_stride = p.v_dim;
  return g;
}

// Calls `run` with each product that has columns, until one fails.
template <class Run>
Status ForProducts(const Params& p, const void* latent, Run&& run) {
  if (p.nope_dim > 0) {
    if (Status s = run(KProduct(p, latent)); !s.ok()) return s;
  }
  return p.v_dim > 0 ? run(VProduct(p, latent)) : Status();
}

// Of the latents between gather and products; 0: there are no products.
std::int64_t ScratchBytes(const Params& p) {
  if (HeadOutputs(p) == 0) return 0;
  return p.num_tokens * p.rank * static_cast<std::int64_t>(SizeOf(p.dtype));
}

Result<void*> LatentScratch(Backend& backend, const Params& p, Stream stream) {
  const auto bytes = static_cast<std::size_t>(ScratchBytes(p));
  return bytes > 0 ? backend.Scratch(ScratchUse::kLatent, bytes, stream) : nullptr;
}

}  // namespace

Status MlaExpand(Device& device, const MlaExpandParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    const Result<Params> call = Resolve(params);
    if (!call.ok()) return call.status();
    if (params.num_tokens == 0) return {};
    Backend& backend = device.backend();
    if (backend.has_memory()) {
      if (Status s = CheckPointers(*call); !s.ok()) return s;
    }
    const Result<void*> latent = LatentScratch(backend, *call, stream);
    if (!latent.ok()) return latent.status();
    if (Status s = backend.MlaGather({*call, *latent}, stream); !s.ok()) return s;
    return ForProducts(*call, *latent,
                       [&](const GemmParams& g) { return backend.Gemm(g, stream); });
  });
}

Status Warmup(Device& device, const MlaExpandParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    const Result<Params> call = Resolve(params);
    if (!call.ok()) return call.status();
    Backend& backend = device.backend();
    if (backend.has_memory()) {
      if (Status s = CheckAlignment(*call); !s.ok()) return s;
    }
    if (params.num_tokens == 0) return {};
    if (const Result<void*> latent = LatentScratch(backend, *call, stream); !latent.ok()) {
      return latent.status();
    }
    // No latent is given: its memory is aligned.
    return ForProducts(*call, nullptr,
                       [&](const GemmParams& g) { return backend.WarmupGemm(g, stream); });
  });
}

Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaExpandParams& params) {
  return Guarded([&]() -> Result<std::int64_t> {
    const Result<Params> call = Resolve(params);
    if (!call.ok()) return call.status();
    const Backend& backend = device.backend();
    const std::int64_t scratch = ScratchBytes(*call);
    if (scratch == 0 || !backend.has_memory()) return std::int64_t{0};
    return backend.GemmWorkspaceBytes() + scratch;
  });
}

Result<AbsorbedProjections> AbsorbViews(const MlaExpandParams& params) {
  return Guarded([&]() -> Result<AbsorbedProjections> {
    Params p = params;
    if (Status s = CheckWeightShape(p); !s.ok()) return s;
    if (Status s = CompleteWeight(p); !s.ok()) return s;
    if (Status s = check::First({check::RowsFit(Weight(p), SizeOf(p.dtype)),
                                 check::RowsPointer(Weight(p), SizeOf(p.dtype))});
        !s.ok()) {
      return s;
    }
    const bool out_in = p.layout == WeightLayout::kOutIn;
    HeadMatrices w_uk;
    w_uk.data = p.w_kv_b;
    w_uk.heads = p.heads;
    w_uk.rows = p.nope_dim;
    w_uk.columns = p.rank;
    w_uk.head_stride = HeadStride(p);
    w_uk.row_stride = out_in ? p.w_kv_b_stride : 1;
    w_uk.column_stride = out_in ? 1 : p.w_kv_b_stride;
    HeadMatrices w_uv = w_uk;
    w_uv.data = ValuesWeight(p);
    w_uv.rows = p.v_dim;
    return AbsorbedProjections{w_uk, w_uv};
  });
}

}  // namespace lariat
