// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace lariat::testing {

// How often operator new was called in this program; links its replacement in.
std::int64_t CountOfNew();

// While it lives, operator new of this thread succeeds `count` times more and fails from then on.
class FailNewAfter {
 public:
  explicit FailNewAfter(std::int64_t count);
  ~FailNewAfter();
  FailNewAfter(const FailNewAfter&) = delete;
  FailNewAfter& operator=(const FailNewAfter&) = delete;
};

}  // namespace lariat::testing
