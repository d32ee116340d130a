// SPDX-License-Identifier: Apache-2.0
// What sequences put into the index.
#include <algorithm>

#include "blocks/block_manager.h"

namespace lariat::blocks {

void BlockManager::IndexFullBlocks(Sequence& sequence) {
  if (BlocksToIndex(sequence, sequence.settled, sequence.known()) > 0) IndexNewBlocks(sequence);
  if (sequence.retains) RetainNewBlocks(sequence);
}

// Puts the sequence's full blocks with known ids into the index, one below the other. A block whose
// equal is indexed already gives way to that one.
// REQUIRES: there are some.
void BlockManager::IndexNewBlocks(Sequence& sequence) {
  const std::int64_t full = BlockAt(std::min<std::int64_t>(sequence.settled, sequence.known()));
  const auto first = static_cast<std::size_t>(sequence.indexed);
  const auto size = static_cast<std::size_t>(config_.block_size);
  const std::span<const TokenId> ids = sequence.ids.from(first * size);
  std::int32_t parent = first == 0 ? sequence.root : index_.node(sequence.table[first - 1]);
  const auto note = [&](std::size_t n) {
    if (n < PrefixIndex::kAhead) return;
    index_.NoteBelow(index_.node(sequence.table[n - PrefixIndex::kAhead]), parent);
  };
  for (; sequence.indexed < full; ++sequence.indexed) {
    const auto n = static_cast<std::size_t>(sequence.indexed);
    const auto tokens = ids.subspan((n - first) * size, size);
    const BlockId block = sequence.table[n];
    const NodeId node = index_.Find(parent, tokens);
    if (node == kNoNode) {
      if (index_.contains(block)) {
        // A fork was given other ids for rows that it shares: only the first ones count.
        sequence.indexable = false;
        return;
      }
      parent = Index(parent, tokens, block);
      note(n);
      AttachSides(sequence, n, block);
      continue;
    }
    parent = node;
    const BlockId equal = index_.block(node);
    if (equal == block) {
      AttachSides(sequence, n, block);
      continue;
    }
    if (index_.contains(block)) {
      sequence.indexable = false;  // as above
      return;
    }
    // Whoever shares the copy, a fork, shares what follows it too, but would not hold the equal
    // one above that. So this waits until the others have let go.
    if (pool_.references(block) > 1) return;
    HoldCached(equal);
    pool_.NotePeak();  // a live step may still name the copy
    sequence.table[n] = equal;
    sequence.first_dirty = std::min<std::int64_t>(sequence.first_dirty, sequence.indexed);
    ++merged_;
    AttachSides(sequence, n, equal);
    Release(sequence, block);
  }
}

// Makes a block the one that holds this text. It may be in the host tier already.
NodeId BlockManager::Index(std::int32_t parent, std::span<const TokenId> tokens, BlockId block) {
  NodeId node = has_tier() ? index_.FindOnHost(parent, tokens) : kNoNode;
  if (node == kNoNode) {
    node = index_.Insert(parent, tokens, block);
    if (has_tier()) NoteIndexed(node);
  } else {
    index_.GiveBlock(node, block);
    host_.Move(index_.host(node), HostPool::kAlone, HostPool::kOnDevice);
  }
  NoteCached(node);
  return node;
}

// Lets the last block of a sequence that ends be found by the tokens that it holds, though it is
// not full. Nobody writes to it any more, and whoever finds it takes a copy.
void BlockManager::IndexTail(Sequence& sequence) {
  if (!config_.token_reuse || !sequence.indexable) return;
  const std::int64_t end = std::min<std::int64_t>(sequence.settled, sequence.known());
  const std::int64_t tail = end / config_.block_size, count = end % config_.block_size;
  if (count == 0 || sequence.indexed != tail) return;
  if (sequence.table.empty()) return;  // suspended, or not back yet
  const BlockId block = sequence.table[static_cast<std::size_t>(tail)];
  if (pool_.references(block) > 1 || index_.contains(block)) return;
  const std::int32_t parent =
      tail == 0 ? sequence.root : index_.node(sequence.table[static_cast<std::size_t>(tail - 1)]);
  const std::span<const TokenId> tokens = sequence.ids.all().subspan(
      static_cast<std::size_t>(end - count), static_cast<std::size_t>(count));
  if (index_.Nearest(parent, tokens).tokens == count) return;  // another one serves as well
  Index(parent, tokens, block);
  AttachSides(sequence, static_cast<std::size_t>(tail), block);
  RetainBlock(sequence, block, end - count, end);
}

}  // namespace lariat::blocks
