// SPDX-License-Identifier: Apache-2.0
// What attention kernels and tensor libraries look at.
#include "c_api/views.h"

#include <memory>
#include <string>

#include "c_api/call.h"
#include "c_api/convert.h"
#include "c_api/structs.h"
#include "lariat/dlpack.h"

using namespace lariat;         // NOLINT: the whole file is the C API's
using namespace lariat::c_api;  // NOLINT

namespace lariat::c_api {

Status CheckGroup(const KVCache& cache, std::int32_t group) {
  const int groups = cache.footprint().num_groups;
  if (group >= 0 && group < groups) return Status::Ok();
  return InvalidArgument(std::string("group is ")
                             .append(std::to_string(group))
                             .append("; allowed are 0 to ")
                             .append(std::to_string(groups - 1)));
}

namespace {

// A tensor over a plane of the pool, which it keeps.
struct PlaneTensor {
  DLManagedTensor managed = {};
  std::int64_t shape[4] = {};
  std::int64_t strides[4] = {};
  std::shared_ptr<KVCache> cache;
};

void Delete(DLManagedTensor* self) { delete static_cast<PlaneTensor*>(self->manager_ctx); }

DLDataType DataTypeOf(DType dtype) {
  const auto code = static_cast<std::uint8_t>(dtype == DType::kBF16 ? kDLBfloat : kDLFloat);
  return {code, static_cast<std::uint8_t>(8 * SizeOf(dtype)), 1};
}

Status MakeTensor(const Handle& handle, std::int32_t layer, std::int32_t which,
                  DLManagedTensor** tensor) {
  const KVCache& cache = *handle.cache;
  bool value = false;
  if (Status status = Choose("which", which, {false, true}, value); !status.ok()) return status;
  const auto view = cache.Layer(layer);
  if (!view.ok()) return view.status();
  const BackendKind kind = handle.cache->device().kind();
  if (kind == BackendKind::kNull) return Unsupported("tensors of the null backend");
  if (view->k == nullptr) return NotReady("the pool was given back by Release: call Reacquire first");
  if (value && view->v == nullptr) {
    return InvalidArgument(std::string("which is 1 (V), but layer ")
                               .append(std::to_string(layer))
                               .append(" stores latent rows, which are its K"));
  }
  auto made = std::make_unique<PlaneTensor>();
  const std::int64_t shape[] = {view->num_blocks, view->block_size, view->kv_heads,
                                value ? view->v_dim : view->k_dim};
  const std::int64_t strides[] = {value ? view->v_block_stride : view->k_block_stride,
                                  value ? view->v_row_stride : view->k_row_stride,
                                  value ? view->v_head_stride : view->k_head_stride, 1};
  std::copy_n(shape, 4, made->shape);
  std::copy_n(strides, 4, made->strides);
  made->cache = handle.cache;
  DLTensor& dl = made->managed.dl_tensor;
  dl.data = value ? view->v : view->k;
  dl.device = kind == BackendKind::kCuda
                  ? DLDevice{kDLCUDA, static_cast<std::int32_t>(cache.config().device_ordinal)}
                  : DLDevice{kDLCPU, 0};
  dl.ndim = 4;
  dl.dtype = DataTypeOf(view->dtype);
  dl.shape = made->shape;
  dl.strides = made->strides;
  made->managed.manager_ctx = made.get();
  made->managed.deleter = &Delete;
  *tensor = &made.release()->managed;
  return Status::Ok();
}

}  // namespace
}  // namespace lariat::c_api

lariat_code lariat_cache_view(lariat_cache* cache, std::int32_t group, lariat_step_view* view) {
  return Call(cache, [&](Handle& handle) -> Status {
    Status status = Check("view", view);
    if (status.ok()) status = CheckGroup(*handle.cache, group);
    if (!status.ok()) return status;
    const StepView from = handle.cache->View(group);
    lariat_step_view to = {};
    to.slots = from.slots;
    to.positions = from.positions;
    to.rope_choice = from.rope_choice;
    to.cu_seqlens = from.cu_seqlens;
    to.seqused_k = from.seqused_k;
    to.block_table = from.block_table;
    to.block_table_stride = from.block_table_stride;
    to.kv_indptr = from.kv_indptr;
    to.kv_indices = from.kv_indices;
    to.kv_start = from.kv_start;
    to.last_page_len = from.last_page_len;
    to.batch_indices = from.batch_indices;
    Fill(view, to);
    return Status::Ok();
  });
}

lariat_code lariat_cache_host_view(lariat_cache* cache, std::int32_t group,
                                   lariat_host_view* view) {
  return Call(cache, [&](Handle& handle) -> Status {
    Status status = Check("view", view);
    if (status.ok()) status = CheckGroup(*handle.cache, group);
    if (!status.ok()) return status;
    const StepHostView from = handle.cache->HostView(group);
    lariat_host_view to = {};
    to.num_sequences = static_cast<std::int32_t>(from.seqused_k.size());
    to.cu_seqlens = from.cu_seqlens.data();
    to.seqused_k = from.seqused_k.data();
    to.kv_indptr = from.kv_indptr.data();
    to.kv_start = from.kv_start.data();
    to.last_page_len = from.last_page_len.data();
    to.max_seqlen_q = from.max_seqlen_q;
    to.max_seqlen_k = from.max_seqlen_k;
    Fill(view, to);
    return Status::Ok();
  });
}

lariat_code lariat_cache_layer(lariat_cache* cache, std::int32_t layer, lariat_layer_view* view) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (Status status = Check("view", view); !status.ok()) return status;
    const auto from = handle.cache->Layer(layer);
    if (!from.ok()) return from.status();
    lariat_layer_view to = {};
    to.dtype = NumberOf(from->dtype);
    to.group = from->group;
    to.kind = NumberOf(from->kind);
    to.window = from->window;
    to.kv_heads = from->kv_heads;
    to.k_dim = from->k_dim;
    to.v_dim = from->v_dim;
    to.block_size = from->block_size;
    to.num_blocks = from->num_blocks;
    to.k = from->k;
    to.v = from->v;
    to.k_block_stride = from->k_block_stride;
    to.k_row_stride = from->k_row_stride;
    to.k_head_stride = from->k_head_stride;
    to.v_block_stride = from->v_block_stride;
    to.v_row_stride = from->v_row_stride;
    to.v_head_stride = from->v_head_stride;
    to.cos = from->cos;
    to.sin = from->sin;
    to.num_positions = from->num_positions;
    Fill(view, to);
    return Status::Ok();
  });
}

lariat_code lariat_cache_layer_tensor(lariat_cache* cache, std::int32_t layer, std::int32_t which,
                                      DLManagedTensor** tensor) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (tensor == nullptr) return NullResult("tensor");
    return MakeTensor(handle, layer, which, tensor);
  });
}
