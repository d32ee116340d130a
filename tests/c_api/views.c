/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack views, and the calls of MLA. Values are small integers, so that every sum is exact. */
#include "c_api/check.h"
#include "lariat/dlpack.h"

void TestTensors(void) {
  lariat_cache* cache = MakeCache();
  static float k[12 * kHeads * kKeyDim], v[12 * kHeads * kValueDim];
  for (int i = 0; i < 12 * kHeads * kKeyDim; ++i) k[i] = (float)i;
  for (int i = 0; i < 12 * kHeads * kValueDim; ++i) v[i] = (float)-i;
  struct DLManagedTensor *keys = NULL, *values = NULL, *refused = NULL;
  OK(cache, lariat_cache_layer_tensor(cache, 0, LARIAT_K, &keys));
  OK(cache, lariat_cache_layer_tensor(cache, 1, LARIAT_V, &values));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "layer",
          lariat_cache_layer_tensor(cache, 2, LARIAT_K, &refused));
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "which is 2",
          lariat_cache_layer_tensor(cache, 0, 2, &refused));
  REFUSES(
      cache, LARIAT_INVALID_ARGUMENT, "group is 1",
      lariat_cache_view(cache, 1, &(lariat_step_view){.struct_size = sizeof(lariat_step_view)}));
  CHECK(refused == NULL);
  const DLTensor* dl = &keys->dl_tensor;
  CHECK(dl->device.device_type == kDLCPU && dl->device.device_id == 0 && dl->byte_offset == 0);
  CHECK(dl->dtype.code == kDLFloat && dl->dtype.bits == 32 && dl->dtype.lanes == 1);
  CHECK(dl->ndim == 4 && dl->shape[0] == kBlocks && dl->shape[1] == kBlock);
  CHECK(dl->shape[2] == kHeads && dl->shape[3] == kKeyDim && dl->strides[3] == 1);
  CHECK(values->dl_tensor.shape[3] == kValueDim);
  lariat_layer_view view = {.struct_size = sizeof view};
  OK(cache, lariat_cache_layer(cache, 1, &view));
  CHECK(values->dl_tensor.data == view.v && values->dl_tensor.strides[0] == view.v_block_stride);
  CHECK(values->dl_tensor.strides[1] == view.v_row_stride);
  CHECK(values->dl_tensor.strides[2] == view.v_head_stride);

  /* The tensors were made before the rows were: it is the pool itself. */
  uint64_t sequence = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
  RunStep(cache, sequence, 12, k, v);
  const int32_t* table = NULL;
  int64_t num_blocks = 0;
  OK(cache, lariat_sequence_block_table(cache, sequence, 0, &table, &num_blocks));
  int32_t blocks[3];
  memcpy(blocks, table, sizeof blocks);
  OK(cache, lariat_sequence_close(cache, sequence));
  REFUSES(cache, LARIAT_NOT_READY, "2 tensors", lariat_cache_release(cache));
  /* They outlive the cache. */
  lariat_cache_destroy(cache);
  for (int t = 0; t < 12; ++t) {
    const float* row = (const float*)dl->data + blocks[t / kBlock] * dl->strides[0] +
                       t % kBlock * dl->strides[1] + 1 * dl->strides[2];
    CHECK(memcmp(row, k + (t * kHeads + 1) * kKeyDim, kKeyDim * sizeof(float)) == 0);
  }
  const float* last = (const float*)values->dl_tensor.data +
                      blocks[2] * values->dl_tensor.strides[0] + 3 * values->dl_tensor.strides[1];
  CHECK(last[1] == v[11 * kHeads * kValueDim + 1]);
  keys->deleter(keys);
  values->deleter(values);

  lariat_cache_config config = BaseConfig();
  config.backend = LARIAT_BACKEND_NULL;
  config.dtype = LARIAT_BF16;
  OK(NULL, lariat_cache_create(&config, &cache));
  REFUSES(cache, LARIAT_UNSUPPORTED, "null backend",
          lariat_cache_layer_tensor(cache, 0, LARIAT_K, &refused));
  lariat_cache_destroy(cache);
  config.backend = LARIAT_BACKEND_CPU;
  OK(NULL, lariat_cache_create(&config, &cache));
  OK(cache, lariat_cache_layer_tensor(cache, 0, LARIAT_K, &keys));
  CHECK(keys->dl_tensor.dtype.code == kDLBfloat && keys->dl_tensor.dtype.bits == 16);
  REFUSES(cache, LARIAT_NOT_READY, "1 tensors", lariat_cache_release(cache));
  keys->deleter(keys);

  /* Without tensors the pool goes and comes back. */
  OK(cache, lariat_cache_release(cache));
  OK(cache, lariat_cache_layer(cache, 1, &view));
  CHECK(view.k == NULL && view.v == NULL);
  ANSWERS(cache, LARIAT_NOT_READY, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
  REFUSES(cache, LARIAT_NOT_READY, "Reacquire",
          lariat_cache_layer_tensor(cache, 0, LARIAT_K, &refused));
  REFUSES(cache, LARIAT_NOT_READY, "Reacquire",
          lariat_cache_layer_tensor(cache, 0, LARIAT_V, &refused));
  OK(cache, lariat_cache_release(cache));
  OK(cache, lariat_cache_reacquire(cache));
  OK(cache, lariat_cache_layer(cache, 1, &view));
  CHECK(view.k != NULL && view.v != NULL);
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &sequence));
  lariat_cache_destroy(cache);
}

enum { kTokens = 5, kRank = 4, kRope = 2, kWidth = kRank + kRope, kModel = 3, kNope = 2, kUp = 3 };

static uint64_t Begin(lariat_cache* cache, uint64_t* sequence) {
  uint64_t step = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, sequence));
  const lariat_step_item item = {sizeof item, 0, *sequence, kTokens, 0, NULL};
  OK(cache, lariat_step_plan(cache, &item, 1, NULL, NULL, &step));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  return step;
}

void TestLatents(void) {
  const lariat_layer layer = {sizeof layer, LARIAT_LAYER_MLA, 1, kWidth, 0, -1, 0};
  lariat_cache_config config = BaseConfig();
  config.layers = &layer;
  config.num_layers = 1;
  lariat_cache* cache = NULL;
  OK(NULL, lariat_cache_create(&config, &cache));
  uint64_t sequence = 0;
  const uint64_t step = Begin(cache, &sequence);

  /* From hidden states, without a norm: rows are hidden times the down-projection. */
  float hidden[kTokens * kModel], w_down[kWidth * kModel], want[kTokens * kWidth];
  for (int i = 0; i < kTokens * kModel; ++i) hidden[i] = (float)(i % 7 - 3);
  for (int i = 0; i < kWidth * kModel; ++i) w_down[i] = (float)(i % 5 - 2);
  for (int t = 0; t < kTokens; ++t) {
    for (int o = 0; o < kWidth; ++o) {
      want[t * kWidth + o] = 0;
      for (int m = 0; m < kModel; ++m) {
        want[t * kWidth + o] += hidden[t * kModel + m] * w_down[o * kModel + m];
      }
    }
  }
  lariat_mla_append_inputs inputs = {.struct_size = sizeof inputs};
  inputs.dtype = LARIAT_FP32;
  inputs.kv_lora_rank = kRank;
  inputs.model_dim = kModel;
  inputs.hidden = hidden;
  inputs.w_down = w_down;
  OK(cache, lariat_warmup_mla_append(cache, 0, &inputs, NULL));
  OK(cache, lariat_step_mla_append(cache, step, 0, &inputs, NULL));
  float read[kTokens * kWidth];

  /* Expanded: per head 2 rows of W_UK and 3 of W_UV. */
  float w_kv_b[2 * (kNope + kUp) * kRank], k[kTokens * 2 * (kNope + kRope)];
  float v[kTokens * 2 * kUp];
  for (int i = 0; i < 2 * (kNope + kUp) * kRank; ++i) w_kv_b[i] = (float)(i % 3 - 1);
  const int32_t cu_tokens[2] = {0, kTokens};
  lariat_mla_expand_inputs expand = {.struct_size = sizeof expand};
  expand.kv_lora_rank = kRank;
  expand.heads = 2;
  expand.nope_dim = kNope;
  expand.v_dim = kUp;
  expand.w_kv_b = w_kv_b;
  expand.num_tokens = kTokens;
  expand.cu_tokens = cu_tokens;
  expand.k = k;
  expand.v = v;
  OK(cache, lariat_warmup_mla_expand(cache, 0, &expand, NULL));
  OK(cache, lariat_step_mla_expand(cache, step, 0, &expand, NULL));
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int o = 0; o < kNope + kUp; ++o) {
        float sum = 0;
        for (int r = 0; r < kRank; ++r) {
          sum += want[t * kWidth + r] * w_kv_b[(h * (kNope + kUp) + o) * kRank + r];
        }
        const float got =
            o < kNope ? k[(t * 2 + h) * (kNope + kRope) + o] : v[(t * 2 + h) * kUp + o - kNope];
        CHECK(got == sum);
      }
      CHECK(memcmp(&k[(t * 2 + h) * (kNope + kRope) + kNope], &want[t * kWidth + kRank],
                   kRope * sizeof(float)) == 0);
    }
  }
  OK(cache, lariat_step_commit(cache, step, NULL, 0, NULL));
  OK(cache, lariat_sequence_read_rows(cache, sequence, 0, 0, kTokens, read, NULL));
  CHECK(memcmp(read, want, sizeof want) == 0);

  /* From given rows, one apart from the other. */
  const uint64_t next = Begin(cache, &sequence);
  inputs.hidden = inputs.w_down = NULL;
  inputs.model_dim = 0;
  inputs.c_kv = want;
  inputs.c_kv_stride = kWidth;
  inputs.k_pe = want + kRank;
  inputs.k_pe_stride = kWidth;
  OK(cache, lariat_step_mla_append(cache, next, 0, &inputs, NULL));
  inputs.layout = 2;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "layout is 2",
          lariat_step_mla_append(cache, next, 0, &inputs, NULL));
  expand.reserved = 1;
  REFUSES(cache, LARIAT_UNSUPPORTED, "inputs.reserved",
          lariat_step_mla_expand(cache, next, 0, &expand, NULL));
  OK(cache, lariat_step_commit(cache, next, NULL, 0, NULL));
  memset(read, 0, sizeof read);
  OK(cache, lariat_sequence_read_rows(cache, sequence, 0, 0, kTokens, read, NULL));
  CHECK(memcmp(read, want, sizeof want) == 0);

  struct DLManagedTensor* latents = NULL;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "latent",
          lariat_cache_layer_tensor(cache, 0, LARIAT_V, &latents));
  OK(cache, lariat_cache_layer_tensor(cache, 0, LARIAT_K, &latents));
  CHECK(latents->dl_tensor.shape[2] == 1 && latents->dl_tensor.shape[3] == kWidth);
  latents->deleter(latents);
  lariat_cache_destroy(cache);
}

void TestCompress(void) {
  lariat_cache* cache = MakeCache();
  uint64_t sequence = 0;
  const uint64_t step = Begin(cache, &sequence);
  float hidden[kTokens * kModel], w_down[kModel * kRank], latent[kTokens * kRank];
  float w_up_k[kRank * kHeads * kKeyDim], w_up_v[kRank * kHeads * kValueDim];
  for (int i = 0; i < kTokens * kModel; ++i) hidden[i] = (float)(i % 7 - 3);
  for (int i = 0; i < kModel * kRank; ++i) w_down[i] = (float)(i % 5 - 2);
  for (int i = 0; i < kRank * kHeads * kKeyDim; ++i) w_up_k[i] = (float)(i % 3 - 1);
  for (int i = 0; i < kRank * kHeads * kValueDim; ++i) w_up_v[i] = (float)(i % 11 - 5);
  lariat_mla_compress_inputs inputs = {.struct_size = sizeof inputs};
  inputs.dtype = LARIAT_FP32;
  inputs.model_dim = kModel;
  inputs.rank = kRank;
  inputs.layout = LARIAT_IN_OUT;
  inputs.hidden = hidden;
  inputs.w_down = w_down;
  inputs.w_up_k = w_up_k;
  inputs.w_up_v = w_up_v;
  inputs.latent = latent;
  OK(cache, lariat_warmup_mla_compress(cache, 0, &inputs, NULL));
  OK(cache, lariat_step_mla_compress(cache, step, 0, &inputs, NULL));
  inputs.path = 3;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "path is 3",
          lariat_step_mla_compress(cache, step, 0, &inputs, NULL));
  inputs.path = LARIAT_MLA_PATH_AUTO;
  inputs.reserved = 1;
  REFUSES(cache, LARIAT_UNSUPPORTED, "inputs.reserved is 1",
          lariat_step_mla_compress(cache, step, 0, &inputs, NULL));
  inputs.reserved = 0;
  inputs.dependent_launch = 4;
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "dependent_launch is 4",
          lariat_step_mla_compress(cache, step, 0, &inputs, NULL));
  /* As compiled before there was that field. */
  inputs.struct_size = offsetof(lariat_mla_compress_inputs, dependent_launch);
  OK(cache, lariat_step_mla_compress(cache, step, 0, &inputs, NULL));
  OK(cache, lariat_step_commit(cache, step, NULL, 0, NULL));
  float k[kTokens * kHeads * kKeyDim], v[kTokens * kHeads * kValueDim];
  OK(cache, lariat_sequence_read_rows(cache, sequence, 0, 0, kTokens, k, v));
  for (int t = 0; t < kTokens; ++t) {
    for (int o = 0; o < kHeads * (kKeyDim + kValueDim); ++o) {
      float sum = 0;
      for (int r = 0; r < kRank; ++r) {
        float down = 0;
        for (int m = 0; m < kModel; ++m) down += hidden[t * kModel + m] * w_down[m * kRank + r];
        CHECK(latent[t * kRank + r] == down);
        sum +=
            down * (o < kHeads * kKeyDim ? w_up_k[r * kHeads * kKeyDim + o]
                                         : w_up_v[r * kHeads * kValueDim + o - kHeads * kKeyDim]);
      }
      CHECK(sum == (o < kHeads * kKeyDim ? k[t * kHeads * kKeyDim + o]
                                         : v[t * kHeads * kValueDim + o - kHeads * kKeyDim]));
    }
  }
  lariat_cache_destroy(cache);
}
