/* SPDX-License-Identifier: Apache-2.0 */
/* What attention kernels and their planners read, and a pool in memory of the caller's. */
#include <stdlib.h>

#include "c_api/check.h"

void TestReaders(void) {
  lariat_cache_config config = BaseConfig();
  lariat_footprint footprint = {.struct_size = sizeof footprint};
  OK(NULL, lariat_config_footprint(&config, &footprint));
  const size_t bytes = (size_t)footprint.pool_bytes;
  char* const memory = aligned_alloc(256, (bytes + 511) / 256 * 256);
  memset(memory, 7, bytes + 1);
  config.reader_arrays = 1;
  config.order = LARIAT_ORDER_HND;
  config.layout = LARIAT_LAYOUT_LAYER_MAJOR;
  config.caller_memory = memory;
  config.caller_bytes = footprint.pool_bytes - 1;
  lariat_cache* cache = NULL;
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "memory.caller_bytes",
          lariat_cache_create(&config, &cache));
  ++config.caller_bytes;
  config.cpu_threads = -1;
  REFUSES(NULL, LARIAT_INVALID_ARGUMENT, "cpu_threads", lariat_cache_create(&config, &cache));
  config.cpu_threads = 2;
  OK(NULL, lariat_cache_create(&config, &cache));
  lariat_layer_view layer = {.struct_size = sizeof layer};
  OK(cache, lariat_cache_layer(cache, 0, &layer));
  CHECK(layer.k == memory && memory[0] == 0 && memory[bytes - 1] == 0 && memory[bytes] == 7);
  CHECK(layer.k_row_stride == kKeyDim && layer.k_head_stride == kBlock * kKeyDim);
  CHECK(layer.k_block_stride == kHeads * kBlock * kKeyDim);

  lariat_host_view host = {.struct_size = sizeof host};
  OK(cache, lariat_cache_host_view(cache, 0, &host));
  CHECK(host.num_sequences == 0 && host.cu_seqlens == NULL);
  REFUSES(cache, LARIAT_INVALID_ARGUMENT, "group is 1", lariat_cache_host_view(cache, 1, &host));
  uint64_t first = 0, second = 0, step = 0;
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &first));
  OK(cache, lariat_sequence_open(cache, NULL, 0, NULL, &second));
  const lariat_step_item items[] = {{sizeof *items, 0, first, 6, 0, NULL},
                                    {sizeof *items, 0, second, 4, 0, NULL}};
  const lariat_step_shape shape = {sizeof shape, 3, 12};
  OK(cache, lariat_step_plan(cache, items, 2, &shape, NULL, &step));
  OK(cache, lariat_step_prepare(cache, step, NULL));
  OK(cache, lariat_cache_host_view(cache, 0, &host));
  lariat_step_view view = {.struct_size = sizeof view};
  OK(cache, lariat_cache_view(cache, 0, &view));
  const int32_t indptr[] = {0, 2, 3, 3}, last[] = {2, 4, 0}, cu[] = {0, 6, 10, 10};
  CHECK(host.num_sequences == 3 && host.max_seqlen_q == 6 && host.max_seqlen_k == 6);
  CHECK(memcmp(host.kv_indptr, indptr, sizeof indptr) == 0);
  CHECK(memcmp(view.kv_indptr, indptr, sizeof indptr) == 0);
  CHECK(memcmp(host.last_page_len, last, sizeof last) == 0);
  CHECK(memcmp(view.last_page_len, last, sizeof last) == 0);
  CHECK(memcmp(host.cu_seqlens, cu, sizeof cu) == 0);
  CHECK(host.seqused_k[1] == 4 && host.kv_start[1] == 0 && view.kv_start[1] == 0);
  CHECK(view.batch_indices[5] == 0 && view.batch_indices[6] == 1 && view.batch_indices[11] == -1);
  const int32_t* table = NULL;
  int64_t num_blocks = 0;
  OK(cache, lariat_sequence_block_table(cache, second, 0, &table, &num_blocks));
  CHECK(num_blocks == 1 && view.kv_indices[2] == table[0]);
  OK(cache, lariat_step_commit(cache, step, NULL, 0, NULL));

  /* Callers of the first version know less of both structs. */
  lariat_step_view old = {.struct_size = 64};
  OK(cache, lariat_cache_view(cache, 0, &old));
  CHECK(old.slots == view.slots && old.kv_indptr == NULL);
  lariat_cache_destroy(cache);
  config = BaseConfig();
  config.struct_size = 152;
  config.reader_arrays = 1; /* not looked at */
  OK(NULL, lariat_cache_create(&config, &cache));
  OK(cache, lariat_cache_view(cache, 0, &view));
  CHECK(view.kv_indptr == NULL);
  lariat_cache_destroy(cache);
  CHECK(memory[bytes] == 7);
  free(memory);
}
