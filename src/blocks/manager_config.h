// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "blocks/sequence.h"
#include "blocks/side_pages.h"
#include "blocks/transfer.h"
#include "lariat/cache_config.h"

namespace lariat::blocks {

// The caller's pins of a block. All of them together are one reference.
struct BlockPins {
  std::int32_t through = 0;  // of prefixes that it is part of
  std::int32_t ends = 0;     // of prefixes whose last block it is: what Unpin takes back
};

// A Suspend that has begun: the places that it has chosen.
struct Suspending {
  struct Place {
    HostId host = kNoHost;
    HostId previous = kNoHost;  // the one before it in the list of cached ones
    bool taken = false;         // it was free
  };
  Sequence* sequence = nullptr;
  std::vector<Place> chosen;
};

struct ManagerConfig {
  std::int64_t num_blocks = 0;
  bool unlimited = false;
  int block_size = 16;
  bool reuse = true;
  bool token_reuse = false;  // hits may end inside a block; with `reuse`
  EvictionPolicy eviction = EvictionPolicy::kLru;
  std::int64_t max_pinned_blocks = 0;
  int max_steps_in_flight = 2;
  int max_sequences = 256;
  std::int64_t max_tokens_per_sequence = 0;
  std::int64_t max_tokens_per_step = 0;
  std::int64_t max_events = 0;   // 0: no event log
  int position_sections = 1;     // positions that a row has, 1 or 3
  bool track_writes = true;      // remember which blocks a step wrote, for Quarantine
  std::vector<Reach> sides;      // groups besides the first one, which keeps all tokens
  std::int64_t host_blocks = 0;  // places in the host tier; 0: there is none
  WritePolicy write = WritePolicy::kBack;
  int write_after_hits = 2;       // kAfterHits
  std::int64_t clean_blocks = 0;  // kBack: next victims that have a copy; 1 to host_blocks
};

}  // namespace lariat::blocks
