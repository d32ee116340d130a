/* SPDX-License-Identifier: Apache-2.0 */
/* consumer.cc through the C API. */
#include <stdio.h>

#include "lariat/lariat.h"

static int Fail(const lariat_cache* cache) {
  printf("%s\n", lariat_last_error(cache));
  return 1;
}

int main(void) {
  const lariat_layer layer = {sizeof layer, LARIAT_LAYER_FULL, 8, 128, 128, -1, 0};
  lariat_cache_config config = {.struct_size = sizeof config};
  config.layers = &layer;
  config.num_layers = 1;
  config.backend = LARIAT_BACKEND_NULL;
  config.num_blocks = 1000;
  config.max_tokens_per_sequence = 4096;
  lariat_cache* cache = NULL;
  if (lariat_cache_create(&config, &cache) != LARIAT_OK) return Fail(NULL);

  int32_t prompt[100];
  for (int i = 0; i < 100; ++i) prompt[i] = 7;
  for (int32_t last = 1; last <= 2; ++last) {
    uint64_t sequence = 0, step = 0;
    prompt[99] = last;
    if (lariat_sequence_open(cache, prompt, 100, NULL, &sequence) != LARIAT_OK) return Fail(cache);
    const lariat_step_item item = {sizeof item, 0, sequence, 100, 0, NULL};
    lariat_rows rows = {.struct_size = sizeof rows};
    if (lariat_step_plan(cache, &item, 1, NULL, NULL, &step) != LARIAT_OK) return Fail(cache);
    if (lariat_step_get_rows(cache, step, 0, &rows) != LARIAT_OK) return Fail(cache);
    printf("hit %d of 100\n", (int)rows.hit);
    if (lariat_step_prepare(cache, step, NULL) != LARIAT_OK) return Fail(cache);
    if (lariat_step_commit(cache, step, NULL, 0, NULL) != LARIAT_OK) return Fail(cache);
  }
  lariat_cache_destroy(cache);
  return 0;
}
