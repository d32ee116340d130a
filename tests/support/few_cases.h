// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdlib>

namespace lariat::test {

// Whether loops over many cases of the same kind are to run a few of them only: a tool that watches
// every access of a kernel makes each launch a hundred times as long (tools/gpu_check.sh
// --sanitize). What all cases together must have done is not asked then.
inline bool FewCases() { return std::getenv("LARIAT_FEW_CASES") != nullptr; }

// Counts the cases of such a loop.
class CaseCounter {
 public:
  explicit CaseCounter(int every = 23) : every_(every) {}
  // Whether the next case is one to leave out.
  bool LeaveOut() { return FewCases() && next_++ % every_ != 0; }

 private:
  int every_, next_ = 0;
};

}  // namespace lariat::test
