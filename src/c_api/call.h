// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/lariat.h"

namespace lariat::c_api {

// What the last failed call said: a fixed place, so that telling it cannot fail.
class ErrorText {
 public:
  lariat_code Tell(const Status& status) noexcept {
    if (status.ok()) return LARIAT_OK;
    const std::string_view message = status.message();
    const std::size_t length = std::min(message.size(), text_.size() - 1);
    std::copy_n(message.data(), length, text_.data());
    text_[length] = '\0';
    return static_cast<lariat_code>(status.code());
  }
  const char* text() const { return text_.data(); }

 private:
  std::array<char, 1024> text_ = {};
};

// Of the calls that have no cache to tell it to.
ErrorText& ThreadError() noexcept;

// What stands behind a lariat_cache. The cache is shared with the tensors that were handed out.
struct Handle {
  std::shared_ptr<KVCache> cache;
  std::vector<Step> steps;  // live ones; they go before the cache
  PollReport report;        // of the last Poll
  ErrorText error;
  // Scratch of Plan and Commit, so that a steady step allocates nothing.
  std::vector<StepItem> items;
  std::vector<StepCommit> commits;
};

// Runs a call: nothing is thrown past it.
template <class F>
Status Guarded(F&& call) noexcept {
  try {
    return call();
  } catch (...) {
    return Status::OutOfMemory();  // the library throws nothing else
  }
}

template <class F>
lariat_code Call(F&& call) noexcept {
  return ThreadError().Tell(Guarded(call));
}

// Also hands the call what stands behind the cache.
template <class H, class F>
lariat_code Call(H* cache, F&& call) noexcept {
  if (cache == nullptr) return Call([] { return InvalidArgument("cache: null"); });
  Handle& handle = *cache;
  return handle.error.Tell(Guarded([&] { return call(handle); }));
}

inline Status NullResult(std::string_view name) {
  return InvalidArgument(std::string(name).append(": null"));
}

}  // namespace lariat::c_api

struct lariat_cache : lariat::c_api::Handle {};
