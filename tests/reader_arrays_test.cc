// SPDX-License-Identifier: Apache-2.0
// The arrays that CacheConfig::reader_arrays asks for, on the device and on the host, against loops
// over the block tables: windows, padding, every device.
#include <algorithm>
#include <random>
#include <vector>

#include "support/case_cache.h"
#include "support/device_vector.h"

namespace lariat {
namespace {

using testing::CaseCache;

using Words = std::vector<std::int32_t>;

CacheConfig Config(bool windows) {
  CacheConfig config;
  const LayerSpec layer{.kv_heads = 1, .k_dim = 4, .v_dim = 4};
  config.layers = {layer};
  if (windows) {
    for (const auto& [kind, window] :
         {std::pair{LayerKind::kSliding, 6}, {LayerKind::kChunked, 10}, {LayerKind::kSliding, 1}}) {
      config.layers.push_back(layer);
      config.layers.back().kind = kind;
      config.layers.back().window = window;
    }
  }
  config.dtype = DType::kFP32;
  config.memory.num_blocks = 600;
  config.block_size = 4;
  config.max_sequences = 9;
  config.max_tokens_per_sequence = 90;
  config.max_tokens_per_step = 64;
  config.reader_arrays = true;
  return config;
}

class Reader {
 public:
  Reader(const CacheConfig& config, const Device& device)
      : config_(config), device_(device), cache_(*KVCache::Create(config, device)) {}

  KVCache& cache() { return cache_; }
  Words Read(const std::int32_t* from, std::int64_t count) {
    Words to(static_cast<std::size_t>(count));
    CaseCache::Must(device_.CopyToHost(to.data(), from, to.size() * 4, {}));
    CaseCache::Must(device_.Synchronize({}));
    return to;
  }

  // What one group's arrays have to hold of the step that was prepared last.
  void Check(const Step& step, int group) {
    const LayerSpec layer = LayerOf(group);
    const auto padded = static_cast<std::size_t>(step.padded_sequences());
    const std::int64_t size = config_.block_size;
    Words indptr = {0}, indices, start(padded), last(padded), cu(padded + 1), lengths(padded);
    Words batch(static_cast<std::size_t>(step.padded_tokens()), -1);
    std::int64_t most_rows = 0, most_tokens = 0;
    std::size_t b = 0;
    for (const StepRows& rows : step.rows()) {
      const auto table = *cache_.BlockTable(rows.sequence, group);
      const std::int64_t end = rows.start + rows.count;
      std::int64_t first = 0;
      if (layer.kind == LayerKind::kChunked) first = rows.start - rows.start % layer.window;
      if (layer.kind == LayerKind::kSliding) {
        first = std::max<std::int64_t>(0, rows.start + 1 - layer.window);
      }
      for (std::int64_t token = first; token < end; ++token) {
        if (token > first && token % size != 0) continue;
        const std::int32_t block = table[static_cast<std::size_t>(token / size)];
        if (block < 0) FAIL("a block that is attended to was given back");
        indices.push_back(block);
      }
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
      start[b] = static_cast<std::int32_t>(first - first % size);
      last[b] = static_cast<std::int32_t>(end % size == 0 ? size : end % size);
      // What FlashInfer takes for the length.
      const auto pages = indptr[b + 1] - indptr[b];
      CHECK(start[b] + (pages - 1) * size + last[b] == end);
      cu[b] = static_cast<std::int32_t>(rows.first_row);
      lengths[b] = static_cast<std::int32_t>(end);
      std::fill_n(batch.begin() + rows.first_row, rows.count, static_cast<std::int32_t>(b));
      most_rows = std::max(most_rows, rows.count);
      most_tokens = std::max(most_tokens, end);
      ++b;
    }
    indptr.resize(padded + 1, static_cast<std::int32_t>(indices.size()));
    std::fill(cu.begin() + static_cast<std::ptrdiff_t>(b), cu.end(),
              static_cast<std::int32_t>(step.num_tokens()));

    const StepView view = cache_.View(group);
    CHECK(Read(view.kv_indptr, std::ssize(indptr)) == indptr);
    CHECK(Read(view.kv_indices, std::ssize(indices)) == indices);
    CHECK(Read(view.kv_start, std::ssize(start)) == start);
    CHECK(Read(view.last_page_len, std::ssize(last)) == last);
    CHECK(Read(view.batch_indices, std::ssize(batch)) == batch);
    // What lies behind the lists names blocks, too.
    for (const std::int32_t block :
         Read(view.kv_indices, config_.max_sequences * view.block_table_stride)) {
      if (block < 0 || block >= config_.memory.num_blocks) FAIL("kv_indices has " << block);
    }
    const StepHostView host = cache_.HostView(group);
    const auto words = [](std::span<const std::int32_t> from) {
      return Words(from.begin(), from.end());
    };
    CHECK(words(host.cu_seqlens) == cu);
    CHECK(words(host.seqused_k) == lengths);
    CHECK(words(host.kv_indptr) == indptr);
    CHECK(words(host.kv_start) == start);
    CHECK(words(host.last_page_len) == last);
    CHECK(host.max_seqlen_q == most_rows);
    CHECK(host.max_seqlen_k == most_tokens);
  }

 private:
  LayerSpec LayerOf(int group) {
    for (int layer = 0;; ++layer) {
      if (cache_.Layer(layer)->group == group) {
        return config_.layers[static_cast<std::size_t>(layer)];
      }
    }
  }

  CacheConfig config_;
  Device device_;
  KVCache cache_;
};

// Sequences come, grow by rows of several steps in flight, and go.
void RandomSteps(const Device& device, bool windows, unsigned seed, int steps) {
  Reader reader(Config(windows), device);
  KVCache& cache = reader.cache();
  const int groups = cache.footprint().num_groups;
  CHECK(groups == (windows ? 4 : 1));
  std::mt19937 random(seed);
  const auto roll = [&](std::int64_t sides) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(sides));
  };
  const StepView first = cache.View(groups - 1);
  std::vector<std::pair<SequenceId, std::int64_t>> open;  // with their length
  std::vector<Step> live;
  int checked = 0;
  for (int i = 0; i < steps; ++i) {
    INFO("step " << i << " on " << device.name());
    if (open.size() < 9 && roll(2) == 0) open.push_back({*cache.Open({}), 0});
    std::vector<StepItem> items;
    std::int64_t tokens = 0;
    for (auto& [id, length] : open) {
      const std::int64_t count = roll(3) == 0 ? 1 + roll(13) : 1;
      if (roll(4) == 0 || length + count > 90 || tokens + count > 60) continue;
      items.push_back({.sequence = id, .num_tokens = count});
      length += count;
      tokens += count;
    }
    if (items.empty()) continue;
    StepShape shape;
    if (roll(2) == 0) {
      shape = {tokens + roll(65 - tokens),
               static_cast<int>(std::ssize(items) + roll(10 - std::ssize(items)))};
    }
    if (live.size() == 2) {
      CaseCache::Must(cache.Commit(live[0], {}, {}));
      live.erase(live.begin());
    }
    Step step = *cache.Plan(items, shape);
    CaseCache::Must(cache.Prepare(step, {}));
    for (int group = 0; group < groups; ++group) reader.Check(step, group);
    ++checked;
    live.push_back(std::move(step));
    if (roll(6) == 0) {
      for (Step& ended : live) CaseCache::Must(cache.Commit(ended, {}, {}));
      live.clear();
      const auto at = open.begin() + roll(std::ssize(open));
      CaseCache::Must(cache.Close(at->first));
      open.erase(at);
    }
  }
  CHECK(checked > steps / 2);
  const StepView last = cache.View(groups - 1);
  CHECK(first.kv_indptr == last.kv_indptr);
  CHECK(first.kv_indices == last.kv_indices);
  CHECK(first.kv_start == last.kv_start);
  CHECK(first.last_page_len == last.last_page_len);
  CHECK(first.batch_indices == last.batch_indices);
}

TEST_CASE("Lists of blocks are those of the block tables, in random steps", "[readers]") {
  for (const Device& device : testing::AvailableDevices()) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      RandomSteps(device, false, seed, 150);
      RandomSteps(device, true, seed, 150);
    }
  }
}

TEST_CASE("Lists of blocks by hand", "[readers]") {
  CacheConfig config = Config(true);
  config.memory.num_blocks = 60;
  Reader reader(config, *Device::Create(BackendKind::kCpu));
  KVCache& cache = reader.cache();
  const SequenceId a = *cache.Open({}), b = *cache.Open({});
  const StepItem fill[] = {{.sequence = a, .num_tokens = 21}, {.sequence = b, .num_tokens = 4}};
  Step step = *cache.Plan(fill);
  CaseCache::Must(cache.Prepare(step, {}));
  CaseCache::Must(cache.Commit(step, {}, {}));
  const StepItem next[] = {{.sequence = b, .num_tokens = 1}, {.sequence = a, .num_tokens = 3}};
  step = *cache.Plan(next, {8, 4});
  CaseCache::Must(cache.Prepare(step, {}));
  const auto group = [&](LayerKind kind, int window) {
    for (int layer = 0;; ++layer) {
      const LayerView view = *cache.Layer(layer);
      if (view.kind == kind && view.window == window) return view.group;
    }
  };
  // b has 5 tokens: 2 blocks. a has 24, of which rows 21 to 23 are new.
  const struct {
    int group;
    Words indptr, start;
  } cases[] = {
      {group(LayerKind::kFull, 0), {0, 2, 8, 8, 8}, {0, 0, 0, 0}},
      {group(LayerKind::kSliding, 6), {0, 2, 4, 4, 4}, {0, 16, 0, 0}},   // from token 16 on
      {group(LayerKind::kChunked, 10), {0, 2, 3, 3, 3}, {0, 20, 0, 0}},  // from token 20 on
      {group(LayerKind::kSliding, 1), {0, 1, 2, 2, 2}, {4, 20, 0, 0}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.group);
    const StepView view = cache.View(c.group);
    CHECK(Words(view.kv_indptr, view.kv_indptr + 5) == c.indptr);
    CHECK(Words(view.kv_start, view.kv_start + 4) == c.start);
    CHECK(Words(view.last_page_len, view.last_page_len + 4) == Words{1, 4, 0, 0});
    CHECK(Words(view.batch_indices, view.batch_indices + 8) == Words{0, 1, 1, 1, -1, -1, -1, -1});
  }
  CaseCache::Must(cache.Commit(step, {}, {}));
}

TEST_CASE("Nobody pays for lists of blocks unasked", "[readers]") {
  CacheConfig config = Config(true);
  const auto with = *KVCache::Footprint(config);
  {
    Reader reader(config, *Device::Create(BackendKind::kCpu));
    CHECK(reader.cache().View().kv_indptr != nullptr);
    CHECK(reader.cache().HostView().cu_seqlens.empty());  // no step yet
    CHECK(reader.cache().View(4).kv_indptr == nullptr);
    CHECK(reader.cache().HostView(4).kv_indptr.empty());
    CHECK(reader.cache().HostView(-1).kv_indptr.empty());
  }
  {
    Reader null(config, *Device::Create(BackendKind::kNull));
    const StepItem item{.sequence = *null.cache().Open({}), .num_tokens = 1};
    Step step = *null.cache().Plan(std::span(&item, 1));
    CaseCache::Must(null.cache().Prepare(step, {}));
    CHECK(null.cache().View().kv_indptr == nullptr);
    CHECK(null.cache().HostView().cu_seqlens.empty());
  }
  config.reader_arrays = false;
  const auto without = *KVCache::Footprint(config);
  CHECK(with.step_array_bytes > without.step_array_bytes);
  CHECK(with.pinned_host_bytes > without.pinned_host_bytes);
  Reader reader(config, *Device::Create(BackendKind::kCpu));
  const StepItem item{.sequence = *reader.cache().Open({}), .num_tokens = 1};
  Step step = *reader.cache().Plan(std::span(&item, 1));
  CaseCache::Must(reader.cache().Prepare(step, {}));
  const StepView view = reader.cache().View();
  CHECK(view.kv_indptr == nullptr);
  CHECK(view.kv_indices == nullptr);
  CHECK(view.kv_start == nullptr);
  CHECK(view.last_page_len == nullptr);
  CHECK(view.batch_indices == nullptr);
  CHECK(reader.cache().HostView().kv_indptr.empty());
}

}  // namespace
}  // namespace lariat
