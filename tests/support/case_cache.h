// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lariat/kv_cache.h"
#include "support/catch.h"

namespace lariat::testing {

// A small cache and one-line calls that must succeed, for cases worked out by hand.
class CaseCache {
 public:
  static CacheConfig Config(int block_size, std::int64_t blocks,
                            BackendKind backend = BackendKind::kNull) {
    CacheConfig config;
    LayerSpec& layer = config.layers.emplace_back();
    layer.kv_heads = 1;
    layer.k_dim = layer.v_dim = 2;
    config.dtype = DType::kFP32;
    config.backend = backend;
    config.memory.num_blocks = blocks;
    config.block_size = block_size;
    config.max_sequences = 40;
    config.max_tokens_per_sequence = 256;
    config.max_tokens_per_step = 256;
    return config;
  }
  explicit CaseCache(const CacheConfig& config) : cache_(Made(KVCache::Create(config))) {}
  CaseCache(const CacheConfig& config, const Device& device)
      : cache_(Made(KVCache::Create(config, device))) {}
  CaseCache(int block_size, std::int64_t blocks) : CaseCache(Config(block_size, blocks)) {}

  KVCache* operator->() { return &cache_; }
  KVCache& cache() { return cache_; }

  SequenceId Open(const std::vector<TokenId>& prompt) {
    auto id = cache_.Open(prompt);
    if (!id.ok()) FAIL(id.status().ToString());
    return *id;
  }
  Result<Step> Plan(SequenceId id, std::int64_t count, std::int64_t drafts = 0,
                    PlanFailure* failure = nullptr) {
    const StepItem item{id, count, drafts, {}};
    return cache_.Plan(std::span(&item, 1), {}, failure);
  }
  Step Prepared(SequenceId id, std::int64_t count, std::int64_t drafts = 0) {
    auto step = Plan(id, count, drafts);
    if (!step.ok()) FAIL(step.status().ToString());
    Must(cache_.Prepare(*step, {}));
    return *std::move(step);
  }
  // Plans, prepares and commits `count` rows; ids of those past the prompt are given.
  // Returns the hit.
  std::int64_t Feed(SequenceId id, std::int64_t count, const std::vector<TokenId>& tokens = {}) {
    Step step = Prepared(id, count);
    const StepRows rows = step.rows()[0];
    const StepCommit commit{id, rows.count, tokens};
    Must(cache_.Commit(step, std::span(&commit, 1), {}));
    return rows.hit;
  }
  // Open and feed a whole prompt.
  SequenceId Start(const std::vector<TokenId>& prompt) {
    const SequenceId id = Open(prompt);
    Feed(id, std::ssize(prompt));
    return id;
  }
  std::vector<int> Table(SequenceId id) {
    const auto table = cache_.BlockTable(id);
    if (!table.ok()) FAIL(table.status().ToString());
    return {table->begin(), table->end()};
  }
  std::int64_t Settled(SequenceId id) { return cache_.GetExtent(id)->settled; }
  std::int64_t Match(const std::vector<TokenId>& prompt) { return cache_.Match(prompt).tokens; }
  std::int64_t Available() {
    const Stats stats = cache_.GetStats();
    return stats.free_blocks + stats.idle_blocks;
  }
  static void Must(const Status& status) {
    if (!status.ok()) FAIL(status.ToString());
  }
  // first, first + 1, ...
  static std::vector<TokenId> Range(TokenId first, std::int64_t count) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  static std::vector<TokenId> Join(std::vector<TokenId> head, const std::vector<TokenId>& tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  }

 private:
  static KVCache Made(Result<KVCache> made) {
    if (!made.ok()) FAIL(made.status().ToString());
    return *std::move(made);
  }
  KVCache cache_;
};

}  // namespace lariat::testing
