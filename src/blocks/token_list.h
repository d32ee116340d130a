// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/types.h"

namespace lariat::blocks {

// The ids of a sequence's tokens. The newest ones stand in the object itself and join the others
// many at a time: a step of decoding so touches no memory but the sequence's own, where those of
// ten thousand sequences would be as many pages. Threads: externally synchronised, reading too.
class TokenList {
 public:
  // The object begins with so many bytes of counts; the newest ids follow.
  static constexpr std::size_t kCountBytes = 8;

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
  // Valid until the next change.
  std::span<const TokenId> all() const {
    Join();
    return older_;
  }
  // The ids from the `first` one on, which are looked at more cheaply than all. Valid until the
  // next change.
  std::span<const TokenId> from(std::size_t first) const {
    const std::size_t joined = size_ - newest_count_;
    if (first < joined) return all().subspan(first);
    return std::span(newest_, newest_count_).subspan(first - joined);
  }
  // Has fetched what push_back writes to.
  void Prefetch() const { __builtin_prefetch(newest_ + newest_count_, 1); }

 private:
  static constexpr std::uint32_t kNewest = 64;
  void Count() { size_ = static_cast<std::uint32_t>(older_.size()); }
  void Join() const {
    older_.insert(older_.end(), newest_, newest_ + newest_count_);
    newest_count_ = 0;
  }

  std::uint32_t size_ = 0;
  mutable std::uint32_t newest_count_ = 0;
  TokenId newest_[kNewest] = {};
  mutable std::vector<TokenId> older_;
};

}  // namespace lariat::blocks
