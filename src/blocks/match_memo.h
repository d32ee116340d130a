// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blocks/block_pool.h"
#include "blocks/prefix_index.h"
#include "lariat/types.h"

namespace lariat::blocks {

// The path that Match last found for a prompt, and the tokens that it stands for. Whoever opens a
// sequence with them need not look for them again. Allocates nothing once made.
class MatchMemo {
 public:
  MatchMemo(std::size_t max_tokens, std::size_t max_blocks) {
    tokens_.reserve(max_tokens);
    path.reserve(max_blocks);
  }

  // Room for the path that a Match looks for; then that is what Remember keeps.
  std::vector<BlockId> path;

  // Says what was found: `path`, whose blocks hold these tokens.
  //   generation: of its last block
  void Remember(RootId root, std::span<const TokenId> tokens, std::uint32_t generation) {
    if (tokens.size() > tokens_.capacity()) return Forget();
    root_ = root;
    generation_ = generation;
    tokens_.assign(tokens.begin(), tokens.end());
  }
  void Forget() { root_ = 0; }

  // Whether the whole path is what these tokens would find; that its last block still stands has to
  // be seen.
  bool Fits(RootId root, std::span<const TokenId> tokens) const {
    return root == root_ && tokens_.size() <= tokens.size() &&
           std::equal(tokens_.begin(), tokens_.end(), tokens.begin());
  }
  std::uint32_t generation() const { return generation_; }

 private:
  RootId root_ = 0;  // 0: nothing is remembered
  std::uint32_t generation_ = 0;
  std::vector<TokenId> tokens_;
};

}  // namespace lariat::blocks
