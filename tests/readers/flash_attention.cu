// SPDX-License-Identifier: Apache-2.0
// Whether FlashAttention 3's paged forward reads the cache in place: by TMA, which wants blocks of
// a multiple of 128 tokens, and by copies of rows, which take any. Built by build.sh against
// sources that the reader of this file brings.
#include "flash_fwd_launch_template.h"
// The kernel that plans a ragged batch; a source file of theirs.
#include "flash_prepare_scheduler.cu"
#include "world.h"

namespace readers {
namespace {

constexpr int kDim = 128;

// Their binding's work for a ragged, paged, causal call without splits.
template <bool kTma>
void Forward(const Call& call, bool wrong) {
  const LayerView& layer = call.layer;
  Flash_fwd_params p = {};
  p.is_bf16 = true;
  p.q_ptr = call.q;
  p.o_ptr = call.out;
  p.q_row_stride = p.o_row_stride = call.shape.q_heads * kDim;
  p.q_head_stride = p.o_head_stride = kDim;
  // The pool as a tensor [blocks, block_size, kv_heads, dim] with its strides.
  p.k_ptr = layer.k;
  p.v_ptr = layer.v;
  p.k_batch_stride = layer.k_block_stride;
  p.v_batch_stride = layer.v_block_stride;
  p.k_row_stride = wrong ? layer.k_head_stride : layer.k_row_stride;
  p.v_row_stride = wrong ? layer.v_head_stride : layer.v_row_stride;
  p.k_head_stride = wrong ? layer.k_row_stride : layer.k_head_stride;
  p.v_head_stride = wrong ? layer.v_row_stride : layer.v_head_stride;
  p.v_dim_stride = 1;
  p.page_table = const_cast<int*>(call.step.block_table);
  p.page_table_batch_stride = call.step.block_table_stride;
  p.page_size = layer.block_size;
  p.num_pages = static_cast<int>(layer.num_blocks);
  p.pagedkv_tma = kTma;
  p.cu_seqlens_q = const_cast<int*>(call.step.cu_seqlens);
  p.seqused_k = const_cast<int*>(call.step.seqused_k);
  p.b = p.b_k = call.sequences;
  p.h = call.shape.q_heads;
  p.h_k = layer.kv_heads;
  p.d = p.dv = p.d_rounded = p.dv_rounded = kDim;
  p.total_q = static_cast<int>(call.rows);
  p.seqlen_q = call.host.max_seqlen_q;
  p.seqlen_k = static_cast<int>(call.step.block_table_stride) * layer.block_size;
  p.seqlen_q_rounded = (p.seqlen_q + 127) / 128 * 128;
  p.seqlen_k_rounded = (p.seqlen_k + 127) / 128 * 128;
  p.scale_softmax = call.scale;
  p.is_causal = true;
  p.window_size_left = p.seqlen_k - 1;
  p.window_size_right = 0;
  p.p_dropout = p.rp_dropout = 1.0F;
  p.num_splits = 1;
  p.pack_gqa = !kTma;
  p.arch = 90;
  Must(cudaDeviceGetAttribute(&p.num_sm, cudaDevAttrMultiProcessorCount, 0));
  // What the planning kernel writes: four words a sequence, and a counter.
  const int rounded = (p.b + 3) / 4 * 4;
  int* plan = nullptr;
  float* sums = nullptr;
  Must(cudaMalloc(&plan, static_cast<std::size_t>(4 * rounded + 1) * sizeof(int)));
  Must(cudaMalloc(&sums, static_cast<std::size_t>(p.h) * static_cast<std::size_t>(p.total_q) * 4));
  p.softmax_lse_ptr = sums;
  p.varlen_sort_batches = p.head_swizzle = p.prepare_varlen_pdl = true;
  p.num_splits_dynamic_ptr = plan;
  p.num_m_blocks_ptr = plan + rounded;
  p.varlen_batch_idx_ptr = plan + 2 * rounded;
  p.num_nheads_in_l2_ptr = plan + 3 * rounded;
  p.tile_count_semaphore_offset = 4 * rounded;
  p.tile_count_semaphore = plan + p.tile_count_semaphore_offset;
  run_flash_fwd<90, kDim, kDim, /*ClusterM=*/1, cutlass::bfloat16_t, cutlass::bfloat16_t,
                /*Is_causal=*/true, /*Is_local=*/false, /*Has_softcap=*/false, /*Varlen=*/true,
                /*PagedKVNonTMA=*/!kTma, /*AppendKV=*/false, /*HasQv=*/false, /*PackGQA=*/!kTma,
                /*Split=*/false, /*V_colmajor=*/false>(p, call.stream);
  Must(cudaStreamSynchronize(call.stream));
  cudaFree(plan);
  cudaFree(sums);
}

template <bool kTma>
bool Check(const Shape& shape) {
  const char* name = kTma ? "FlashAttention 3 (TMA)" : "FlashAttention 3 (row copies)";
  World world(shape);
  const auto forward = [](const Call& call) { Forward<kTma>(call, false); };
  bool ok = Report(name, shape, "chunks", world.Chunks(forward));
  ok &= Report(name, shape, "one row each", world.Decode(forward, false));
  ok &= Report(name, shape, "padded", world.Decode(forward, true));
  if (shape.block_size % 128 != 0 && shape.block_size != 16) return ok;
  return ReportControl(name, world.Chunks([](const Call& call) { Forward<kTma>(call, true); })) &&
         ok;
}

bool Run() {
  bool ok = true;
  for (const Layout layout : kLayouts) {
    for (const Order order : kOrders) {
      for (const int block_size : {16, 64}) {
        ok &= Check<false>({.layout = layout, .order = order, .block_size = block_size});
      }
      ok &= Check<true>({.layout = layout, .order = order, .block_size = 128});
    }
  }
  return ok;
}

}  // namespace
}  // namespace readers

int main() { return readers::Run() ? 0 : 1; }
