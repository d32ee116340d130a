// SPDX-License-Identifier: Apache-2.0
// MlaCompress: checks, the choice of the path, and its composition from matrix products.
#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "backend/backend.h"
#include "backend/check.h"
#include "backend/mla_check.h"
#include "base/guarded.h"
#include "lariat/ops.h"

namespace lariat {
namespace {

using check::Rows;
using Params = MlaCompressParams;

constexpr int kMaxModelDim = 1 << 20;
constexpr int kMaxRank = 65536;
constexpr int kMaxHeads = 8192;
constexpr int kMaxDim = 8192;
// Rows of a latent in scratch are padded to so many elements, so that each starts aligned.
constexpr std::int64_t kScratchMultiple = 8;

std::int64_t KWidth(const Params& p) { return std::int64_t{p.heads} * p.k_dim; }
std::int64_t VWidth(const Params& p) { return std::int64_t{p.heads} * p.v_dim; }

// What a call reads and writes.
Rows Hidden(const Params& p) {
  return {"hidden", p.hidden, p.num_tokens, p.model_dim, p.hidden_stride};
}
Rows Down(const Params& p) {
  return check::Weight("w_down", p.w_down, p.layout, p.model_dim, p.rank, p.w_down_stride);
}
Rows UpK(const Params& p) {
  return check::Weight("w_up_k", p.w_up_k, p.layout, p.rank, KWidth(p), p.w_up_k_stride);
}
Rows UpV(const Params& p) {
  return check::Weight("w_up_v", p.w_up_v, p.layout, p.rank, VWidth(p), p.w_up_v_stride);
}
Rows K(const Params& p) { return {"k", p.k, p.num_tokens, KWidth(p), p.k_token_stride}; }
Rows V(const Params& p) { return {"v", p.v, p.num_tokens, VWidth(p), p.v_token_stride}; }
Rows Latent(const Params& p) { return {"latent", p.latent, p.num_tokens, p.rank, p.latent_stride}; }

Status CheckUpShape(const Params& p) {
  return check::First({check::ProductType("dtype", p.dtype, "MlaCompress"),
                       check::Range("rank", p.rank, 1, kMaxRank),
                       check::Range("heads", p.heads, 1, kMaxHeads),
                       check::Range("k_dim", p.k_dim, 1, kMaxDim),
                       check::Range("v_dim", p.v_dim, 0, kMaxDim), check::Layout(p.layout)});
}

Status CheckShape(const Params& p) {
  if (Status s = CheckUpShape(p); !s.ok()) return s;
  if (p.path != MlaPath::kAuto && p.path != MlaPath::kFused && p.path != MlaPath::kGemm) {
    return InvalidArgument("path = " + std::to_string(static_cast<int>(p.path)) +
                           ": must be kAuto, kFused or kGemm");
  }
  return check::First(
      {check::Range("num_tokens", p.num_tokens, 0, check::kMaxInt32),
       check::Range("model_dim", p.model_dim, 1, kMaxModelDim),
       check::Range("dependent_launch", static_cast<int>(p.dependent_launch), 0, 2)});
}

Status CompleteUp(Params& p) {
  return check::First({check::CompleteStride("w_up_k_stride", UpK(p).columns, p.w_up_k_stride),
                       check::CompleteStride("w_up_v_stride", UpV(p).columns, p.w_up_v_stride)});
}

Status Complete(Params& p) {
  return check::First({check::CompleteStride("hidden_stride", p.model_dim, p.hidden_stride),
                       check::CompleteStride("w_down_stride", Down(p).columns, p.w_down_stride),
                       CompleteUp(p),
                       check::CompleteStride("k_token_stride", KWidth(p), p.k_token_stride),
                       check::CompleteStride("v_token_stride", VWidth(p), p.v_token_stride),
                       check::CompleteStride("latent_stride", p.rank, p.latent_stride)});
}

Status CheckExtents(const Params& p) {
  const std::size_t element = SizeOf(p.dtype);
  return check::First({check::RowsFit(Hidden(p), element), check::RowsFit(Down(p), element),
                       check::RowsFit(UpK(p), element), check::RowsFit(UpV(p), element),
                       check::RowsFit(K(p), element), check::RowsFit(V(p), element),
                       check::RowsFit(Latent(p), element)});
}

Status CheckPointers(const Params& p) {
  const std::size_t element = SizeOf(p.dtype);
  if (Status s = check::First(
          {check::RowsPointer(Hidden(p), element), check::RowsPointer(Down(p), element),
           check::RowsPointer(UpK(p), element), check::RowsPointer(UpV(p), element),
           check::RowsPointer(K(p), element), check::RowsPointer(V(p), element),
           check::OptionalRowsPointer(Latent(p), element)});
      !s.ok()) {
    return s;
  }
  return check::Apart({K(p), V(p), Latent(p)}, {Hidden(p), Down(p), UpK(p), UpV(p)}, element);
}

// Those that are there; the others may come later.
Status CheckAlignment(const Params& p) {
  const std::size_t element = SizeOf(p.dtype);
  for (const Rows& rows : {Hidden(p), Down(p), UpK(p), UpV(p), K(p), V(p), Latent(p)}) {
    if (Status s = check::OptionalRowsPointer(rows, element); !s.ok()) return s;
  }
  return {};
}

MlaPath FasterPath(const Backend& backend, const Params& p) {
  return backend.FusedFits(p) && backend.FusedIsFaster(p) ? MlaPath::kFused : MlaPath::kGemm;
}

// The call with its strides, and with the path that it takes.
Result<Params> Resolve(const Device& device, const Params& params) {
  Params p = params;
  if (Status s = CheckShape(p); !s.ok()) return s;
  if (Status s = Complete(p); !s.ok()) return s;
  if (Status s = CheckExtents(p); !s.ok()) return s;
  if (p.path == MlaPath::kAuto) p.path = FasterPath(device.backend(), p);
  if (p.path == MlaPath::kFused && !device.backend().FusedFits(p)) {
    return Unsupported("path = kFused: " + device.name() +
                       " does not take this shape or layout, or has no such path; must be kAuto "
                       "or kGemm");
  }
  return p;
}

// Elements from row to row of a latent in scratch.
std::int64_t ScratchStride(const Params& p) {
  return (p.rank + kScratchMultiple - 1) / kScratchMultiple * kScratchMultiple;
}

std::int64_t ScratchBytes(const Params& p) {
  if (p.latent != nullptr) return 0;
  return p.num_tokens * ScratchStride(p) * static_cast<std::int64_t>(SizeOf(p.dtype));
}

// Gives a latent that the caller does not want a place.
Status PlaceLatent(Backend& backend, Params& p, Stream stream) {
  if (p.latent != nullptr) return {};
  Result<void*> scratch =
      backend.Scratch(ScratchUse::kLatent, static_cast<std::size_t>(ScratchBytes(p)), stream);
  if (!scratch.ok()) return scratch.status();
  p.latent = *scratch;
  p.latent_stride = ScratchStride(p);
  return {};
}

GemmParams DownProduct(const Params& p) {
  GemmParams g;
  g.dtype = p.dtype;
  g.allow_tf32 = p.allow_tf32;
  g.rows = p.num_tokens;
  g.columns = p.rank;
  g.inner = p.model_dim;
  g.a = p.hidden;
  g.a_stride = p.hidden_stride;
  g.layout = p.layout;
  g.w = p.w_down;
  g.w_stride = p.w_down_stride;
  g.c = p.latent;
  g.c_stride = p.latent_stride;
  g.dependent_launch = p.dependent_launch;
  return g;
}

GemmParams KProduct(const Params& p) {
  GemmParams g = DownProduct(p);
  g.dependent_launch = DependentLaunch::kOff;  // not the call's first kernel
  g.columns = KWidth(p);
  g.inner = p.rank;
  g.a = p.latent;
  g.a_stride = p.latent_stride;
  g.w = p.w_up_k;
  g.w_stride = p.w_up_k_stride;
  g.c = p.k;
  g.c_stride = p.k_token_stride;
  return g;
}

GemmParams VProduct(const Params& p) {
  GemmParams g = KProduct(p);
  g.columns = VWidth(p);
  g.w = p.w_up_v;
  g.w_stride = p.w_up_v_stride;
  g.c = p.v;
  g.c_stride = p.v_token_stride;
  return g;
}

// k and v as one matrix. REQUIRES: Beside(p) is kYes or kUnknown.
GemmParams BothProduct(const Params& p) {
  GemmParams g = KProduct(p);
  g.columns += VWidth(p);
  return g;
}

enum class Answer { kNo, kUnknown, kYes };

// Whether `second` lies `elements` behind `first`. Unknown where one of them is not there yet.
Answer LiesBehind(const void* first, const void* second, std::int64_t elements, DType dtype) {
  if (first == nullptr || second == nullptr) return Answer::kUnknown;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(first) +
                             static_cast<std::uintptr_t>(elements) * SizeOf(dtype);
  return reinterpret_cast<std::uintptr_t>(second) == end ? Answer::kYes : Answer::kNo;
}

// Whether both up-projections are one matrix, and so are both outputs.
Answer Beside(const Params& p) {
  const std::int64_t both = KWidth(p) + VWidth(p);
  if (p.v_dim == 0) return Answer::kNo;
  if (p.w_up_k_stride != p.w_up_v_stride || p.k_token_stride != p.v_token_stride) {
    return Answer::kNo;
  }
  const bool in_out = p.layout == WeightLayout::kInOut;
  if (p.k_token_stride < both || (in_out && p.w_up_k_stride < both)) return Answer::kNo;
  const std::int64_t w_distance = in_out ? KWidth(p) : KWidth(p) * p.w_up_k_stride;
  return std::min(LiesBehind(p.w_up_k, p.w_up_v, w_distance, p.dtype),
                  LiesBehind(p.k, p.v, KWidth(p), p.dtype));
}

Status RunProducts(Backend& backend, Params p, Stream stream) {
  if (Status s = PlaceLatent(backend, p, stream); !s.ok()) return s;
  if (Status s = backend.Gemm(DownProduct(p), stream); !s.ok()) return s;
  if (Beside(p) == Answer::kYes) return backend.Gemm(BothProduct(p), stream);
  if (Status s = backend.Gemm(KProduct(p), stream); !s.ok() || p.v_dim == 0) return s;
  return backend.Gemm(VProduct(p), stream);
}

Status WarmupProducts(Backend& backend, Params p, Stream stream) {
  if (Status s = PlaceLatent(backend, p, stream); !s.ok()) return s;
  if (Status s = backend.WarmupGemm(DownProduct(p), stream); !s.ok()) return s;
  const Answer beside = Beside(p);
  if (beside != Answer::kNo) {
    if (Status s = backend.WarmupGemm(BothProduct(p), stream); !s.ok()) return s;
  }
  if (beside == Answer::kYes) return {};
  if (Status s = backend.WarmupGemm(KProduct(p), stream); !s.ok() || p.v_dim == 0) return s;
  return backend.WarmupGemm(VProduct(p), stream);
}

// Copies rows to rows of another stride, in few calls of bounded length.
Status CopyRows(Backend& backend, const Rows& from, void* to, std::int64_t to_stride, DType dtype,
                Stream stream) {
  if (from.rows == 0 || from.columns == 0) return {};
  const std::size_t element = SizeOf(dtype);
  const bool whole = from.stride == from.columns && to_stride == from.columns;
  const std::int64_t rows = whole ? 1 : from.rows;
  const auto elements = static_cast<std::size_t>(whole ? from.rows * from.columns : from.columns);
  const auto at = [&](const void* data, std::int64_t row, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) +
           static_cast<std::size_t>(row * stride) * element;
  };
  std::array<BlockCopy, 256> copies;
  std::size_t count = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    copies[count++] = {reinterpret_cast<void*>(at(to, r, to_stride)),
                       reinterpret_cast<const void*>(at(from.data, r, from.stride)),
                       elements * element};
    if (count < copies.size() && r + 1 < rows) continue;
    if (Status s = backend.Copy(std::span(copies).first(count), stream); !s.ok()) return s;
    count = 0;
  }
  return {};
}

}  // namespace

Status MlaCompress(Device& device, const MlaCompressParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    const Result<Params> call = Resolve(device, params);
    if (!call.ok()) return call.status();
    if (params.num_tokens == 0) return {};
    if (device.backend().has_memory()) {
      if (Status s = CheckPointers(*call); !s.ok()) return s;
    }
    if (call->path == MlaPath::kFused) return device.backend().MlaCompressFused(*call, stream);
    return RunProducts(device.backend(), *call, stream);
  });
}

MlaPath MlaCompressPathOf(const Device& device, const MlaCompressParams& params) {
  if (!CheckShape(params).ok()) return MlaPath::kGemm;
  return FasterPath(device.backend(), params);
}

Status PackUpProjections(Device& device, MlaCompressParams& params, void* packed, Stream stream) {
  Params p = params;
  if (Status s = CheckUpShape(p); !s.ok()) return s;
  if (Status s = CompleteUp(p); !s.ok()) return s;
  const bool in_out = p.layout == WeightLayout::kInOut;
  const std::size_t element = SizeOf(p.dtype);
  const std::int64_t width = in_out ? KWidth(p) + VWidth(p) : p.rank;
  const Rows to = check::Weight("packed", packed, p.layout, p.rank, KWidth(p) + VWidth(p), width);
  if (Status s = check::First({check::RowsFit(UpK(p), element), check::RowsFit(UpV(p), element),
                               check::RowsFit(to, element)});
      !s.ok()) {
    return s;
  }
  if (device.backend().has_memory()) {
    if (Status s = check::First(
            {check::RowsPointer(UpK(p), element), check::RowsPointer(UpV(p), element),
             check::RowsPointer(to, element), check::Apart({to}, {UpK(p), UpV(p)}, element)});
        !s.ok()) {
      return s;
    }
  }
  const std::int64_t v_first = in_out ? KWidth(p) : KWidth(p) * p.rank;
  void* const v = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(packed) +
                                          static_cast<std::size_t>(v_first) * element);
  if (Status s = CopyRows(device.backend(), UpK(p), packed, width, p.dtype, stream); !s.ok()) {
    return s;
  }
  if (Status s = CopyRows(device.backend(), UpV(p), v, width, p.dtype, stream); !s.ok()) return s;
  params.w_up_k = packed;
  params.w_up_v = v;
  params.w_up_k_stride = params.w_up_v_stride = width;
  return {};
}

Status Warmup(Device& device, const MlaCompressParams& params, Stream stream) {
  return Guarded([&]() -> Status {
    const Result<Params> call = Resolve(device, params);
    if (!call.ok()) return call.status();
    if (device.backend().has_memory()) {
      if (Status s = CheckAlignment(*call); !s.ok()) return s;
    }
    if (params.num_tokens == 0 || call->path == MlaPath::kFused) return {};
    return WarmupProducts(device.backend(), *call, stream);
  });
}

Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaCompressParams& params) {
  return Guarded([&]() -> Result<std::int64_t> {
    const Result<Params> call = Resolve(device, params);
    if (!call.ok()) return call.status();
    const Backend& backend = device.backend();
    if (params.num_tokens == 0 || call->path == MlaPath::kFused || !backend.has_memory()) {
      return std::int64_t{0};
    }
    return backend.GemmWorkspaceBytes() + ScratchBytes(*call);
  });
}

}  // namespace lariat
