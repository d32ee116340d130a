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
  static constexpr std::int32_t kNewest = 14;
  // What push_back and size touch, but where newest ones join the others; it stands first.
  static constexpr std::size_t kNewestBytes = (2 + kNewest) * sizeof(std::int32_t);
  static_assert(sizeof(TokenId) == sizeof(std::int32_t));

  // Room for so many tokens: nothing allocates below that.
  void reserve(std::size_t tokens) { older_.reserve(tokens); }
  std::size_t size() const { return size_; }

  void push_back(TokenId token) {
    if (newest_count_ == kNewest) Join();
    newest_[newest_count_++] = token;
    ++size_;
  }
  void append(std::span<const TokenId> tokens) {
    Join();
    older_.insert(older_.end(), tokens.begin(), tokens.end());
    Count();
  }
  void assign(std::span<const TokenId> tokens) {
    newest_count_ = 0;
    older_.assign(tokens.begin(), tokens.end());
    Count();
  }
  // REQUIRES: not more than size().
  void shorten(std::size_t tokens) {
    Join();
    older_.resize(tokens);
    Count();
  }
  // Has the memory fetched that a join writes to.
  void PrefetchEnd() const { __builtin_prefetch(older_.data() + older_.size(), 1); }
  // Valid until the next change.
  std::span<const TokenId> all() const {
    Join();
    return older_;
  }

 private:
  void Count() { size_ = static_cast<std::uint32_t>(older_.size()); }
  void Join() const {
    // One by one: a wider load of what was just stored would wait until that is out of the way.
    for (std::int32_t i = 0; i < newest_count_; ++i) older_.push_back(newest_[i]);
    newest_count_ = 0;
  }

  std::uint32_t size_ = 0;
  mutable std::int32_t newest_count_ = 0;
  TokenId newest_[kNewest] = {};
  mutable std::vector<TokenId> older_;
};

}  // namespace lariat::blocks
