// SPDX-License-Identifier: Apache-2.0
// Whether FlashInfer's paged decode and paged prefill read the cache in place. Built by build.sh
// against headers that the reader of this file brings.
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "world.h"

namespace readers {
namespace {

using Element = __nv_bfloat16;
using Index = std::int32_t;
using Variant = flashinfer::DefaultAttention</*custom_mask=*/false, /*sliding_window=*/false,
                                             /*logits_soft_cap=*/false, /*alibi=*/false>;
using PagedKV = flashinfer::paged_kv_t<Element, Index>;
constexpr std::uint32_t kDim = 128;
constexpr std::uint32_t kGroup = 4;  // q heads of a kv head
constexpr auto kNoRope = flashinfer::PosEncodingMode::kNone;

// The kernels' buffers.
struct Workspace {
  static constexpr std::size_t kFloats = std::size_t{256} << 20, kInts = std::size_t{16} << 20;
  Workspace() {
    Must(cudaMalloc(&floats, kFloats));
    Must(cudaMalloc(&ints, kInts));
    Must(cudaMallocHost(&staging, kInts));
  }
  ~Workspace() {
    cudaFree(floats);
    cudaFree(ints);
    cudaFreeHost(staging);
  }
  template <class T>
  T* Float(std::int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(floats) + offset);
  }
  template <class T>
  T* Int(std::int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(ints) + offset);
  }
  void* floats = nullptr;
  void* ints = nullptr;
  void* staging = nullptr;
};

Index* Mutable(const Index* array) { return const_cast<Index*>(array); }

// The cache as it is: pointers, strides and lists.
// wrong: rows and heads swapped
PagedKV View(const Call& call, bool wrong) {
  const LayerView& layer = call.layer;
  const bool nhd = (call.shape.order == Order::kNHD) != wrong;
  const std::int64_t k[] = {layer.k_block_stride, nhd ? layer.k_row_stride : layer.k_head_stride,
                            nhd ? layer.k_head_stride : layer.k_row_stride};
  const std::int64_t v[] = {layer.v_block_stride, nhd ? layer.v_row_stride : layer.v_head_stride,
                            nhd ? layer.v_head_stride : layer.v_row_stride};
  return {
      static_cast<std::uint32_t>(layer.kv_heads),
      static_cast<std::uint32_t>(layer.block_size),
      kDim,
      static_cast<std::uint32_t>(call.sequences),
      call.shape.order == Order::kNHD ? flashinfer::QKVLayout::kNHD : flashinfer::QKVLayout::kHND,
      static_cast<Element*>(layer.k),
      static_cast<Element*>(layer.v),
      k,
      v,
      Mutable(call.step.kv_indices),
      Mutable(call.step.kv_indptr),
      Mutable(call.step.last_page_len)};
}

void Decode(const Call& call, const Workspace& space, bool graph, bool wrong) {
  using Params = flashinfer::BatchDecodeParams<Element, Element, Element, Index>;
  const int heads = call.shape.q_heads;
  flashinfer::DecodePlanInfo plan;
  const auto estimate =
      flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<kGroup, kDim, kNoRope,
                                                                      Variant, Params>;
  Must(flashinfer::DecodePlan<kDim, kNoRope, Variant, Params>(
      space.floats, Workspace::kFloats, space.ints, space.staging, Workspace::kInts, plan,
      Mutable(call.host.kv_indptr.data()), static_cast<std::uint32_t>(call.sequences),
      static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(call.layer.block_size), graph,
      call.stream, estimate));
  Params params(static_cast<Element*>(call.q), nullptr, View(call, wrong),
                static_cast<Element*>(call.out), nullptr, nullptr,
                static_cast<std::uint32_t>(heads), heads * static_cast<Index>(kDim),
                static_cast<Index>(kDim), -1, 0.0F, call.scale, 1.0F, 10000.0F);
  params.request_indices = space.Int<Index>(plan.request_indices_offset);
  params.kv_tile_indices = space.Int<Index>(plan.kv_tile_indices_offset);
  params.o_indptr = space.Int<Index>(plan.o_indptr_offset);
  params.kv_chunk_size_ptr = space.Int<Index>(plan.kv_chunk_size_ptr_offset);
  params.padded_batch_size = static_cast<std::uint32_t>(plan.padded_batch_size);
  Element* partial = nullptr;
  float* sums = nullptr;
  if (plan.split_kv) {
    partial = space.Float<Element>(plan.v_offset);
    sums = space.Float<float>(plan.s_offset);
    if (graph) params.block_valid_mask = space.Int<bool>(plan.block_valid_mask_offset);
  }
  Must(flashinfer::BatchDecodeWithPagedKVCacheDispatched<kDim, kNoRope, Variant>(
      params, partial, sums, false, call.stream));
}

void Prefill(const Call& call, const Workspace& space) {
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, Index>;
  const int heads = call.shape.q_heads;
  flashinfer::PrefillPlanInfo plan;
  Must(flashinfer::PrefillPlan<Index>(
      space.floats, Workspace::kFloats, space.ints, space.staging, Workspace::kInts, plan,
      Mutable(call.host.cu_seqlens.data()), Mutable(call.host.kv_indptr.data()),
      static_cast<std::uint32_t>(call.rows), static_cast<std::uint32_t>(call.sequences),
      static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(call.layer.kv_heads), kDim,
      kDim, static_cast<std::uint32_t>(call.layer.block_size), /*enable_cuda_graph=*/false,
      sizeof(Element), /*window_left=*/-1, /*fixed_split_size=*/-1, /*disable_split_kv=*/false,
      /*num_colocated_ctas=*/0, /*uniform_q_len=*/0, /*fixed_uniform_q_len=*/false, call.stream));
  Params params(static_cast<Element*>(call.q), View(call, false), nullptr,
                Mutable(call.step.cu_seqlens), nullptr, nullptr, static_cast<Element*>(call.out),
                nullptr, nullptr, static_cast<std::uint32_t>(heads),
                heads * static_cast<Index>(kDim), static_cast<Index>(kDim), -1, 0.0F, call.scale,
                1.0F, 10000.0F);
  params.request_indices = space.Int<Index>(plan.request_indices_offset);
  params.qo_tile_indices = space.Int<Index>(plan.qo_tile_indices_offset);
  params.kv_tile_indices = space.Int<Index>(plan.kv_tile_indices_offset);
  params.o_indptr = space.Int<Index>(plan.o_indptr_offset);
  params.kv_chunk_size_ptr = space.Int<Index>(plan.kv_chunk_size_ptr_offset);
  params.padded_batch_size = static_cast<std::uint32_t>(plan.padded_batch_size);
  params.max_total_num_rows = static_cast<std::uint32_t>(plan.total_num_rows);
  Element* partial = nullptr;
  float* sums = nullptr;
  if (plan.split_kv) {
    params.merge_indptr = space.Int<Index>(plan.merge_indptr_offset);
    partial = space.Float<Element>(plan.v_offset);
    sums = space.Float<float>(plan.s_offset);
  }
  const auto run = [&]<std::uint32_t kTile>() {
    Must(flashinfer::BatchPrefillWithPagedKVCacheDispatched<
         /*SAME_KV_STRIDES=*/true, kTile, kDim, kDim, kNoRope, /*USE_FP16_QK_REDUCTION=*/false,
         flashinfer::MaskMode::kCausal, /*USE_TOKEN_HEAD_SF=*/false, Variant, Params>(
        params, partial, sums, false, call.stream));
  };
  switch (plan.cta_tile_q) {
    case 16: return run.operator()<16>();
    case 64: return run.operator()<64>();
    case 128: return run.operator()<128>();
    default: Must(lariat::Unsupported("cta_tile_q " + std::to_string(plan.cta_tile_q)));
  }
}

bool Run() {
  bool ok = true;
  const Workspace space;
  for (const Layout layout : kLayouts) {
    for (const Order order : kOrders) {
      for (const int block_size : {16, 1, 64}) {
        const Shape shape{.layout = layout, .order = order, .block_size = block_size};
        World world(shape);
        ok &= Report("FlashInfer prefill", shape, "chunks",
                     world.Chunks([&](const Call& call) { Prefill(call, space); }));
        ok &= Report("FlashInfer decode", shape, "one row each",
                     world.Decode([&](const Call& c) { Decode(c, space, false, false); }, false));
        ok &= Report("FlashInfer decode", shape, "padded, planned for a graph",
                     world.Decode([&](const Call& c) { Decode(c, space, true, false); }, true));
        if (block_size != 16) continue;
        ok &= ReportControl(
            "FlashInfer decode",
            world.Decode([&](const Call& c) { Decode(c, space, false, true); }, false));
      }
    }
  }
  return ok;
}

}  // namespace
}  // namespace readers

int main() { return readers::Run() ? 0 : 1; }
