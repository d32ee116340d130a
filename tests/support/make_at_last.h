// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "support/case_cache.h"
#include "support/count_new.h"

namespace lariat::testing {

// Makes the call with 0, 1, ... allocations allowed until it goes through. Returns how often it
// failed.
template <class F>
int MakeAtLast(CaseCache& c, F call) {
  const std::string before = c->Snapshot();
  for (int allowed = 0;; ++allowed) {
    Status status;
    {
      const testing::FailNewAfter failing(allowed);
      status = call();
    }
    if (status.ok()) return allowed;
    REQUIRE(status.code() == Code::kResourceExhausted);
    REQUIRE(c->Snapshot() == before);
    REQUIRE(allowed < 100);
  }
}

}  // namespace lariat::testing
