// SPDX-License-Identifier: Apache-2.0
// Whether FlashMLA's dense decode reads latent rows in place: blocks of 64 tokens, rows of 576.
// Built by build.sh against sources that the reader of this file brings.
#include "sm90/decode/dense/instantiations/bf16.cu"
#include "smxx/decode/combine/combine.cu"
#include "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu"
#include "world.h"

namespace readers {
namespace {

template <class T>
T* Allocate(std::int64_t count) {
  void* memory = nullptr;
  Must(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)));
  return static_cast<T*>(memory);
}

// Their binding's work for one query row a sequence.
void Decode(const Call& call, bool wrong) {
  const LayerView& layer = call.layer;
  const int b = call.sequences, heads = call.shape.q_heads, v_dim = call.shape.v_dim;
  int multiprocessors = 0;
  Must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  const int parts = std::max(multiprocessors / ((heads + 63) / 64), 1);
  int* const lengths = const_cast<int*>(call.step.seqused_k);
  auto* const schedule = Allocate<DecodingSchedMeta>(parts);
  int* const splits = Allocate<int>(b + 1);
  GetDecodeSchedMetaParams plan = {b,       1,       64,       5,      -1,    -1,         nullptr,
                                   nullptr, lengths, schedule, splits, parts, call.stream};
  smxx::decode::run_get_decoding_sched_meta_kernel(plan);

  DenseAttnDecodeParams p = {};
  p.b = b;
  p.s_q = 1;
  p.q_seq_per_hk = p.q_head_per_hk = p.h_q = heads;
  p.h_k = 1;
  p.d = call.shape.k_dim;
  p.d_v = v_dim;
  p.num_blocks = static_cast<int>(layer.num_blocks);
  p.is_causal = false;
  p.scale_softmax = call.scale;
  p.scale_softmax_log2 = call.scale * 1.44269504F;
  p.q_ptr = call.q;
  p.k_ptr = layer.k;
  p.o_ptr = call.out;
  p.softmax_lse_ptr = Allocate<float>(std::int64_t{b} * heads);
  p.q_batch_stride = std::int64_t{heads} * p.d;
  p.q_row_stride = p.d;
  p.q_head_stride = p.d;
  p.k_batch_stride = wrong ? layer.k_block_stride / 3 : layer.k_block_stride;
  p.k_row_stride = layer.k_row_stride;
  p.k_head_stride = layer.k_head_stride;
  p.o_batch_stride = p.o_head_stride = std::int64_t{heads} * v_dim;
  p.o_row_stride = v_dim;
  p.block_table = const_cast<int*>(call.step.block_table);
  p.block_table_batch_stride = call.step.block_table_stride;
  p.page_block_size = layer.block_size;
  p.seqlens_k_ptr = lengths;
  p.tile_scheduler_metadata_ptr = schedule;
  p.num_sm_parts = parts;
  p.num_splits_ptr = splits;
  p.total_num_splits = b + parts;
  p.softmax_lseaccum_ptr = Allocate<float>(std::int64_t{p.total_num_splits} * heads);
  p.oaccum_ptr = Allocate<float>(std::int64_t{p.total_num_splits} * heads * v_dim);
  p.stream = call.stream;
  sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(p);

  CombineParams c = {};
  c.b = b;
  c.s_q = 1;
  c.h_q = heads;
  c.d_v = v_dim;
  c.lse = p.softmax_lse_ptr;
  c.out = p.o_ptr;
  c.lse_accum = p.softmax_lseaccum_ptr;
  c.o_accum = p.oaccum_ptr;
  c.stride_lse_b = c.stride_lse_s_q = c.stride_lse_accum_split = c.stride_lse_accum_s_q = heads;
  c.stride_o_b = c.stride_o_s_q = c.stride_o_accum_split = c.stride_o_accum_s_q = heads * v_dim;
  c.stride_o_h_q = c.stride_o_accum_h_q = v_dim;
  c.tile_scheduler_metadata_ptr = schedule;
  c.num_splits_ptr = splits;
  c.num_sm_parts = parts;
  c.stream = call.stream;
  smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(c);
  Must(cudaStreamSynchronize(call.stream));
  for (void* memory :
       {static_cast<void*>(schedule), static_cast<void*>(splits),
        static_cast<void*>(p.softmax_lse_ptr), static_cast<void*>(p.softmax_lseaccum_ptr),
        static_cast<void*>(p.oaccum_ptr)}) {
    cudaFree(memory);
  }
}

bool Run() {
  bool ok = true;
  const auto decode = [](const Call& call) { Decode(call, false); };
  for (const bool padded : {false, true}) {
    for (const Layout layout : kLayouts) {
      for (const Order order : kOrders) {
        const Shape shape{.layout = layout,
                          .order = order,
                          .block_size = 64,
                          .kv_heads = 1,
                          .q_heads = 64,
                          .k_dim = 576,
                          .v_dim = 512,
                          .mla = true};
        World world(shape);
        ok &= Report("FlashMLA", shape, padded ? "padded" : "one row each",
                     world.Decode(decode, padded));
        if (padded) continue;
        ok &= ReportControl("FlashMLA",
                            world.Decode([](const Call& call) { Decode(call, true); }, false));
      }
    }
  }
  return ok;
}

}  // namespace
}  // namespace readers

int main() { return readers::Run() ? 0 : 1; }
