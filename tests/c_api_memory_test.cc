// SPDX-License-Identifier: Apache-2.0
// Memory below the C API: none is taken in a steady step, and where there is none, calls answer so
// and change nothing; no exception gets out.
#include <cstring>
#include <vector>

#include "lariat/dlpack.h"
#include "lariat/lariat.h"
#include "support/catch.h"
#include "support/count_new.h"

namespace {

using lariat::testing::CountOfNew;
using lariat::testing::FailNewAfter;

constexpr int kLayers = 40;  // more than small vectors hold in place

struct Config {
  std::vector<lariat_layer> layers{kLayers,
                                   {sizeof(lariat_layer), LARIAT_LAYER_FULL, 1, 8, 8, 0, 0}};
  lariat_rope rope = {};
  lariat_cache_config config = {};

  Config() {
    rope.struct_size = sizeof(rope);
    rope.rotary_dim = 8;
    config.struct_size = sizeof(config);
    config.dtype = LARIAT_FP32;
    config.layers = layers.data();
    config.num_layers = kLayers;
    config.ropes = &rope;
    config.num_ropes = 1;
    config.backend = LARIAT_BACKEND_CPU;
    config.num_blocks = 64;
    config.max_tokens_per_sequence = 512;
    config.host_num_blocks = 64;
  }
};

// Repeats a call with memory for 0, 1, 2, ... allocations until it succeeds: each failure is
// LARIAT_RESOURCE_EXHAUSTED and says why. Returns how often it failed.
template <class F>
int FailsUntilThereIsMemory(const lariat_cache* cache, F&& call) {
  for (int allowed = 0;; ++allowed) {
    lariat_code code = LARIAT_OK;
    {
      const FailNewAfter failing(allowed);
      code = call();
    }
    if (code == LARIAT_OK) return allowed;
    REQUIRE(code == LARIAT_RESOURCE_EXHAUSTED);
    REQUIRE(std::strstr(lariat_last_error(cache), "memory") != nullptr);
    REQUIRE(allowed < 10000);
  }
}

lariat_step_item Item(std::uint64_t sequence, std::int64_t tokens) {
  return {sizeof(lariat_step_item), 0, sequence, tokens, 0, nullptr};
}

}  // namespace

TEST_CASE("C API: every call that runs out of memory says so", "[c_api]") {
  const Config with;
  lariat_cache* cache = nullptr;
  CHECK(FailsUntilThereIsMemory(nullptr, [&] {
          const lariat_code code = lariat_cache_create(&with.config, &cache);
          CHECK((cache != nullptr) == (code == LARIAT_OK));
          return code;
        }) > 10);
  lariat_footprint footprint = {};
  footprint.struct_size = sizeof(footprint);
  CHECK(FailsUntilThereIsMemory(
            nullptr, [&] { return lariat_config_footprint(&with.config, &footprint); }) > 0);

  const std::vector<std::int32_t> prompt(100, 3);
  std::uint64_t sequence = 0, fork = 0, step = 0, transfer = 0;
  int failures = FailsUntilThereIsMemory(
      cache, [&] { return lariat_sequence_open(cache, prompt.data(), 100, nullptr, &sequence); });
  CHECK(failures > 0);
  const lariat_step_item item = Item(sequence, 100);
  failures += FailsUntilThereIsMemory(
      cache, [&] { return lariat_step_plan(cache, &item, 1, nullptr, nullptr, &step); });
  failures +=
      FailsUntilThereIsMemory(cache, [&] { return lariat_step_prepare(cache, step, nullptr); });
  failures += FailsUntilThereIsMemory(
      cache, [&] { return lariat_step_commit(cache, step, nullptr, 0, nullptr); });
  failures += FailsUntilThereIsMemory(
      cache, [&] { return lariat_sequence_fork(cache, sequence, -1, &fork); });
  DLManagedTensor* tensor = nullptr;
  CHECK(FailsUntilThereIsMemory(
            cache, [&] { return lariat_cache_layer_tensor(cache, 0, LARIAT_K, &tensor); }) == 1);
  tensor->deleter(tensor);
  failures += FailsUntilThereIsMemory(
      cache, [&] { return lariat_sequence_suspend(cache, sequence, &transfer); });
  failures += FailsUntilThereIsMemory(
      cache, [&] { return lariat_sequence_resume(cache, sequence, &transfer); });
  failures += FailsUntilThereIsMemory(
      cache, [&] { return lariat_transfer_accept(cache, transfer, nullptr); });
  CHECK(failures > 10);
  lariat_stats stats = {};
  stats.struct_size = sizeof(stats);
  REQUIRE(lariat_cache_stats(cache, &stats) == LARIAT_OK);
  CHECK(stats.sequences == 2);
  CHECK(stats.tokens_committed == 100);

  // A text that cannot be made is no text less.
  const FailNewAfter failing(0);
  CHECK(lariat_sequence_close(cache, 999) == LARIAT_RESOURCE_EXHAUSTED);
  CHECK(std::strcmp(lariat_last_error(cache), "out of memory") == 0);
  lariat_cache_destroy(cache);
}

TEST_CASE("C API: a steady step takes no memory", "[c_api]") {
  const Config with;
  lariat_cache* cache = nullptr;
  REQUIRE(lariat_cache_create(&with.config, &cache) == LARIAT_OK);
  std::vector<std::uint64_t> sequences(4);
  std::vector<lariat_step_item> items;
  for (std::uint64_t& sequence : sequences) {
    REQUIRE(lariat_sequence_open(cache, nullptr, 0, nullptr, &sequence) == LARIAT_OK);
    items.push_back(Item(sequence, 1));
  }
  const std::vector<float> rows(4 * 8);
  lariat_append_inputs inputs = {};
  inputs.struct_size = sizeof(inputs);
  inputs.dtype = LARIAT_FP32;
  inputs.k = inputs.v = rows.data();
  const std::int32_t token = 5;
  std::vector<lariat_commit> commits;
  for (const std::uint64_t sequence : sequences) {
    commits.push_back({sizeof(lariat_commit), 1, sequence, 1, &token});
  }
  const auto run = [&] {
    std::uint64_t step = 0;
    bool ok = lariat_step_plan(cache, items.data(), 4, nullptr, nullptr, &step) == LARIAT_OK;
    lariat_rows planned = {};
    planned.struct_size = sizeof(planned);
    ok = ok && lariat_step_get_rows(cache, step, 3, &planned) == LARIAT_OK;
    ok = ok && lariat_step_prepare(cache, step, nullptr) == LARIAT_OK;
    for (int layer = 0; layer < kLayers; ++layer) {
      ok = ok && lariat_step_append(cache, step, layer, &inputs, nullptr) == LARIAT_OK;
    }
    return ok && lariat_step_commit(cache, step, commits.data(), 4, nullptr) == LARIAT_OK;
  };
  for (int i = 0; i < 17; ++i) REQUIRE(run());  // into the second block
  const std::int64_t before = CountOfNew();
  bool ok = true;
  for (int i = 0; i < 14; ++i) ok = ok && run();
  const std::int64_t taken = CountOfNew() - before;
  CHECK(ok);
  CHECK(taken == 0);
  lariat_cache_destroy(cache);
}
