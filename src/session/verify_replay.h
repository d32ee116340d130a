// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/status.h"
#include "session/verify_inputs.h"

namespace lariat::session {

// What the cache is told of a recorded layer: all rows are kept, a window is the reader's.
LayerSpec StoredSpecOf(const RecordedLayer& layer);

// How a pass cuts the tokens into steps.
enum class ReplayChunks : std::uint8_t {
  kAll,       // one step
  kOne,       // a token a step
  kOdd,       // 1, 3, 5, ... tokens, every sequence out of step with the others
  kRecorded,  // the first call's tokens, then one a step, as the model ran
};

// One pass through a cache of its own.
class Replay {
 public:
  // Errors: those of KVCache::Create.
  static Result<Replay> Create(ReplayInputs& inputs, int block_size, Reuse reuse);

  // Every sequence on its own, from its first token.
  Status Run(ReplayChunks chunks);
  // For every sequence one that computes the first `shared` tokens, and one that finds their whole
  // blocks cached and computes the rest; the latter are the pass's sequences.
  // Errors: kCorruptData also when the hit is not that.
  Status RunShared(std::int64_t shared);

  // What the last `kept` rows of sequence b hold in one of the cache's layers, widened. MLA: k is
  // their latents and v their k_pe.
  Status ReadBack(std::size_t layer, std::int64_t b, std::vector<double>& k,
                  std::vector<double>& v);
  // Of an MLA layer with attention to compare.
  const ExpandedRows& Expanded(std::size_t layer, std::int64_t b) const {
    return expanded_[layer][static_cast<std::size_t>(b)];
  }

  std::int64_t steps() const { return steps_; }
  std::int64_t hit_tokens() const { return cache_.GetStats().hit_tokens; }

 private:
  Replay(ReplayInputs& inputs, KVCache cache);
  Result<std::vector<SequenceId>> OpenAll(std::int64_t tokens);
  // One step with counts[b] tokens of each sequence, 0: none.
  //   hit: tokens that each must find cached
  Status RunStep(std::span<const SequenceId> sequences, std::span<const std::int64_t> counts,
                 std::int64_t hit);
  Status Store(Step& step, std::span<const std::int64_t> batch, std::int64_t hit);

  ReplayInputs* inputs_;
  KVCache cache_;
  std::vector<SequenceId> sequences_;
  std::vector<std::vector<ExpandedRows>> expanded_;  // [cache layer][B]
  std::int64_t steps_ = 0;
};

}  // namespace lariat::session
