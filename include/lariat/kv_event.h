// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>

#include "lariat/block_hash.h"
#include "lariat/types.h"

// What enters a cache's index and what leaves it, for a router that sends a prompt to the server
// that has most of it, or for whoever mirrors the index elsewhere: docs/events.md.

namespace lariat {

enum class KVEventKind : std::uint8_t {
  kStored,   // a block may be hit in this tier from now on
  kRemoved,  // it is not cached in this tier any more
  kCleared,  // nothing is cached any more, in any tier
};

// Where a block is. A text may be cached in both tiers, each with events of its own.
enum class Tier : std::uint8_t { kDevice, kHost };

// One change of the index. Who begins with nothing and applies each event to a set of (hash, tier,
// group) holds what the index holds.
struct KVEvent {
  KVEventKind kind = KVEventKind::kStored;
  Tier tier = Tier::kDevice;  // not of kCleared
  // Of layers, whose block it is (LayerView::group). 0 holds all tokens of a text; of the others,
  // those of windows, there may be a block beside it or none.
  int group = 0;
  // Counts up from 1 by 1 within a cache. A number that is left out was lost: the log was full.
  std::uint64_t number = 0;
  // The block's name and that of the block before it, or HashRoot (first_token 0): salt, adapter
  // and extra keys are in both. Not of kCleared.
  BlockHash hash;
  BlockHash parent;
  // Index in the sequence of the block's first token. Not of kCleared.
  std::int64_t first_token = 0;
  // kStored: block_size of them, or fewer of the last block of a text that ended (Reuse::kToken).
  // They are the cache's: valid until the next call that changes it. Else empty.
  std::span<const TokenId> tokens = {};
};

}  // namespace lariat
