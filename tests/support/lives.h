// SPDX-License-Identifier: Apache-2.0
// Short lives of sequences, for tests of what stays in the cache.
#pragma once
#include <vector>

#include "support/case_cache.h"

namespace lariat::testing {

using Tokens = std::vector<TokenId>;
using Ranges = std::vector<Retention>;

inline Tokens Range(TokenId first, std::int64_t count) { return CaseCache::Range(first, count); }

inline SequenceId Start(CaseCache& c, const Tokens& prompt, const Ranges& retention = {},
                        OpenOptions options = {}) {
  options.retention = retention;
  const auto id = c->Open(prompt, options);
  if (!id.ok()) FAIL(id.status().ToString());
  c.Feed(*id, std::ssize(prompt));
  return *id;
}

// A whole life: what is full of it is idle afterwards.
inline void Serve(CaseCache& c, const Tokens& prompt, const Ranges& retention = {},
                  const OpenOptions& options = {}) {
  CaseCache::Must(c->Close(Start(c, prompt, retention, options)));
}

}  // namespace lariat::testing
