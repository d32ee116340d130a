// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/types.h"

namespace lariat::blocks {

// The ids of a sequence's tokens. The newest ones stand in the object itself and join the others a
// few at a time: a step of decoding so touches no memory but the sequence's own, where those of ten
// thousand sequences would be as many pages. Threads: externally synchronised, reading too.
class TokenList {
 public:
  // Room for so many tokens: nothing allocates below that.
  void reserve(std::size_t tokens) { older_.reserve(tokens); }
  std::size_t size() const { return older_.size() + static_cast<std::size_t>(newest_count_); }

  void push_back(TokenId token) {
    if (newest_count_ == kNewest) Join();
    newest_[newest_count_++] = token;
  }
  void append(std::span<const TokenId> tokens) {
    Join();
    older_.insert(older_.end(), tokens.begin(), tokens.end());
  }
  void assign(std::span<const TokenId> tokens) {
    newest_count_ = 0;
    older_.assign(tokens.begin(), tokens.end());
  }
  // REQUIRES: not more than size().
  void shorten(std::size_t tokens) {
    Join();
    older_.resize(tokens);
  }
  // Valid until the next change.
  std::span<const TokenId> all() const {
    Join();
    return older_;
  }

 private:
  static constexpr std::int32_t kNewest = 5;  // as many as fill a cache line of Sequence
  void Join() const {
    older_.insert(older_.end(), newest_, newest_ + newest_count_);
    newest_count_ = 0;
  }

  mutable std::int32_t newest_count_ = 0;
  TokenId newest_[kNewest] = {};
  mutable std::vector<TokenId> older_;
};

}  // namespace lariat::blocks
