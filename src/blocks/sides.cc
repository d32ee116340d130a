// SPDX-License-Identifier: Apache-2.0
// Groups besides the first one: which prefix their windows allow, what a sequence holds of them,
// and what it gives back.
#include <algorithm>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// --- Hits -------------------------------------------------------------------------------------

// How many leading blocks of a path can be used: so many that each side has what its window wants.
//   has(b, side): whether there is a block of that side beside the path's b-th one
template <class Has>
std::int64_t BlockManager::UsableBlocks(std::int64_t blocks, Has has) const {
  std::int64_t usable = blocks;
  for (bool again = sides_.any(); again;) {
    again = false;
    for (std::size_t side = 0; side < sides_.count(); ++side) {
      // A window that ends further back reaches further back: what it lacks, all up to there lack.
      const std::int64_t first =
          sides_.reach(side).First(usable * config_.block_size) / config_.block_size;
      for (std::int64_t b = usable - 1; b >= first; --b) {
        if (has(b, side)) continue;
        usable = b;
        again = true;
        break;
      }
    }
  }
  return usable;
}

// Whether so many blocks and the first `tokens` tokens of one more can be used. Of that one each
// side has its block, even where the window begins behind those tokens: it is copied, and whoever
// finds the copy, or goes back in it, takes all of its rows for what they should be.
template <class Has>
bool BlockManager::CanUse(std::int64_t blocks, std::int64_t tokens, Has has) const {
  const std::int64_t length = blocks * config_.block_size + tokens;
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    const std::int64_t first = sides_.reach(side).First(length);
    for (std::int64_t b = first / config_.block_size; b <= blocks; ++b) {
      if (!has(b, side)) return false;
    }
  }
  return true;
}

std::int64_t BlockManager::UsableBlocks(std::span<const BlockId> path) const {
  return UsableBlocks(std::ssize(path), [&](std::int64_t b, std::size_t side) {
    return sides_.page(path[static_cast<std::size_t>(b)], side) != kNoBlock;
  });
}

bool BlockManager::CanUse(std::span<const BlockId> path, const NearestChild& partial) const {
  const std::int64_t blocks = std::ssize(path);
  return CanUse(blocks, partial.tokens, [&](std::int64_t b, std::size_t side) {
    const BlockId owner = b < blocks ? path[static_cast<std::size_t>(b)] : partial.block;
    return sides_.page(owner, side) != kNoBlock;
  });
}

// The longest prefix of a prompt that a Fetch could make use of.
BlockManager::TierPath BlockManager::FindInTiers(std::span<const TokenId> prompt,
                                                 RootId root) const {
  TierPath found;
  const std::int64_t reusable = ReusableTokens(std::ssize(prompt));
  std::int32_t parent = root;
  std::int64_t blocks = 0, in_tail = 0;
  while (true) {
    const auto next = NextTokens(prompt, static_cast<std::size_t>(blocks), reusable);
    if (next.empty()) break;
    NearestChild nearest = index_.Nearest(parent, next);
    const NearestChild on_host = index_.NearestOnHost(parent, next);
    if (on_host.tokens > nearest.tokens) nearest = on_host;
    const bool whole = nearest.tokens == config_.block_size;
    if (nearest.node == kNoNode || (!whole && !config_.token_reuse)) break;
    found.nodes.push_back(nearest.node);
    if (!whole) {
      in_tail = nearest.tokens;
      break;
    }
    ++blocks;
    parent = nearest.node;
  }
  const auto has = [&](std::int64_t b, std::size_t side) {
    const NodeId node = found.nodes[static_cast<std::size_t>(b)];
    return BlockOf(node, static_cast<int>(side)) != kNoBlock || sides_.host(node, side) != kNoHost;
  };
  if (in_tail > 0 && !CanUse(blocks, in_tail, has)) in_tail = 0;
  if (in_tail == 0) {
    blocks = UsableBlocks(blocks, has);
    found.nodes.resize(static_cast<std::size_t>(blocks));
  }
  found.tokens = blocks * config_.block_size + in_tail;
  return found;
}

// Shortens a match to what can be used of it.
void BlockManager::FitMatch(Sequence& sequence) const {
  sequence.match_blocks = std::ssize(sequence.match_path);
  if (!sides_.any()) return;
  NearestChild& partial = sequence.match_partial;
  if (partial.block != kNoBlock && CanUse(sequence.match_path, partial)) return;
  partial = {};
  sequence.match_blocks = UsableBlocks(sequence.match_path);
}

// --- Plan -------------------------------------------------------------------------------------

// Whether the block that a hit is copied from, or one beside it, is idle.
bool BlockManager::IsIdleSource(BlockId source) const {
  const auto idle = [&](BlockId block) {
    return block != kNoBlock && pool_.state(block) == BlockState::kIdle;
  };
  bool any = idle(source);
  for (std::size_t side = 0; side < sides_.count(); ++side) any |= idle(sides_.page(source, side));
  return any;
}

// Claims what the windows want of the hit.
void BlockManager::ClaimSides(const Sequence& sequence, PlannedStep& step) {
  const std::int64_t hit = MatchTokens(sequence);
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    std::int64_t b = sides_.reach(side).First(hit) / config_.block_size;
    for (; b < sequence.match_blocks; ++b) {
      Claim(sides_.page(sequence.match_path[static_cast<std::size_t>(b)], side), step.undo);
    }
  }
}

// Puts what was claimed into the tables.
void BlockManager::TakeHitSides(Sequence& sequence, std::int64_t hit) const {
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    SideTable& of_side = sequence.sides[side];
    const std::int64_t first = sides_.reach(side).First(hit) / config_.block_size;
    of_side.slid = std::min(first, sequence.match_blocks);
    of_side.table.clear();
    of_side.table.resize(static_cast<std::size_t>(of_side.slid));
    for (std::int64_t b = of_side.slid; b < sequence.match_blocks; ++b) {
      of_side.table.push_back(sides_.page(sequence.table[static_cast<std::size_t>(b)], side));
    }
  }
}

// Of a copy-on-write of the step's `item`: the blocks beside its source.
//   source_of(side): kNoBlock where there is nothing to copy
template <class SourceOf>
void BlockManager::CopySides(PlannedStep& step, std::size_t item, int entry, SourceOf source_of) {
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    const BlockId source = source_of(side);
    step.side_copies.push_back(
        {static_cast<std::int32_t>(item), static_cast<std::int32_t>(side), source, kNoBlock});
    if (source == kNoBlock) continue;
    pool_.Pin(source);
    step.releases.push_back({source, entry});
    step.undo.push_back({UndoEntry::kPin, source});
  }
}

void BlockManager::CopyHitSides(PlannedStep& step, BlockId source, int entry) {
  CopySides(step, step.items.size() - 1, entry, [&](std::size_t side) {
    const BlockId page = sides_.page(source, side);
    if (page != kNoBlock) Claim(page, step.undo);
    return page;
  });
}

void BlockManager::CopyTailSides(PlannedStep& step, std::size_t item, std::size_t tail) {
  const Sequence& sequence = sequences_.at(step.items[item].sequence);
  CopySides(step, item, step.items[item].sequence,
            [&](std::size_t side) { return sequence.sides[side].table[tail]; });
}

// The side copies of an item.
std::span<SideCopy> BlockManager::SideCopiesOf(PlannedStep& step, std::size_t item) const {
  if (step.items[item].cow_source == kNoBlock) return {};
  const auto before = [](const SideCopy& copy, std::int32_t of) { return copy.item < of; };
  const auto first = std::lower_bound(step.side_copies.begin(), step.side_copies.end(),
                                      static_cast<std::int32_t>(item), before);
  return {first, sides_.count()};
}

// Takes the targets of an item's copies into the tables.
void BlockManager::TakeCopies(PlannedStep& step, std::size_t item, std::size_t tail) {
  Sequence& sequence = sequences_.at(step.items[item].sequence);
  for (SideCopy& copy : SideCopiesOf(step, item)) {
    copy.target = Take(step.undo, step.victims);
    BlockTable& table = sequence.sides[static_cast<std::size_t>(copy.side)].table;
    if (table.size() <= tail) table.resize(tail + 1);
    table[tail] = copy.target;
    if (copy.source == kNoBlock) continue;
    step.copies.push_back({{copy.source, pool_.generation(copy.source)},
                           {copy.target, pool_.generation(copy.target)}});
  }
}

// What Undo does to the tables of an item's sequence.
void BlockManager::UndoSides(PlannedStep& step, std::size_t index) {
  const PlannedItem& item = step.items[index];
  Sequence& sequence = sequences_.at(item.sequence);
  for (SideTable& side : sequence.sides) {
    side.table.resize(static_cast<std::size_t>(item.first_plan ? 0 : item.first_new_block));
    if (item.first_plan) side.slid = 0;
  }
  if (!item.first_plan) RestoreSources(step, index, /*claim=*/false);
}

// The tables get the sources of an item's copies back.
void BlockManager::RestoreSources(PlannedStep& step, std::size_t item, bool claim) {
  Sequence& sequence = sequences_.at(step.items[item].sequence);
  const auto tail = static_cast<std::size_t>(step.rows[item].start / config_.block_size);
  for (const SideCopy& copy : SideCopiesOf(step, item)) {
    if (claim) {
      pool_.Claim(copy.source);
      ReleaseWith(step, copy.target, -1);
    }
    sequence.sides[static_cast<std::size_t>(copy.side)].table[tail] = copy.source;
  }
}

// --- What a sequence holds --------------------------------------------------------------------

std::int64_t BlockManager::BlocksOfAll(std::int64_t settled, std::int64_t end,
                                       std::int64_t step_tokens) const {
  std::int64_t blocks = BlocksFor(end);
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    const Reach& reach = sides_.reach(side);
    const std::int64_t all = BlocksFor(end) - reach.First(settled) / config_.block_size;
    if (reach.window == 0 || step_tokens == 0 || step_tokens >= end - settled) {
      blocks += all;
      continue;
    }
    // A window and a step's rows, wherever in a block they begin.
    const std::int64_t tokens = reach.window - 1 + step_tokens;
    blocks += std::min(all, (tokens + 2 * config_.block_size - 2) / config_.block_size);
  }
  return blocks;
}

std::int64_t BlockManager::MinLength(const Sequence& sequence) const {
  std::int64_t least = 0;
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    const std::int64_t first = sequence.sides[side].slid * config_.block_size;
    least = std::max(least, sides_.reach(side).Shortest(first));
  }
  return least;
}

std::int64_t BlockManager::FirstRow(const Sequence& sequence, int group) const {
  return group == 0 ? 0
                    : sequence.sides[static_cast<std::size_t>(group - 1)].slid * config_.block_size;
}

Status BlockManager::CheckLength(const Sequence& sequence, std::int64_t length) const {
  const std::int64_t least = MinLength(sequence);
  if (length == 0 || length >= least) return {};
  return InvalidArgument("length " + std::to_string(length) + " of " + NameOf(sequence.id) +
                         ": a window before it is given back; allowed are 0, and " +
                         std::to_string(least) + " (Extent::min_length) and more");
}

// Gives back what no later row reads. Rows of live steps read no more than that either, and who
// takes a block now writes it behind them on their stream: so none of this waits for a step's end.
void BlockManager::SlideOut(Sequence& sequence) {
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    SideTable& of_side = sequence.sides[side];
    const std::int64_t first = std::min<std::int64_t>(
        sides_.reach(side).First(sequence.settled) / config_.block_size, std::ssize(of_side.table));
    for (; of_side.slid < first; ++of_side.slid) {
      BlockId& block = of_side.table[static_cast<std::size_t>(of_side.slid)];
      DropReference(block);
      block = kNoBlock;
    }
  }
}

// --- The index --------------------------------------------------------------------------------

// The sequence's blocks beside its n-th one, which `owner` holds the text of in the index, are
// cached beside that one; where there are such ones already, the sequence takes those.
void BlockManager::AttachSides(Sequence& sequence, std::size_t n, BlockId owner) {
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    BlockId& mine = sequence.sides[side].table[n];
    if (mine == kNoBlock) continue;
    const BlockId cached = sides_.page(owner, side);
    if (cached == mine) continue;
    if (cached == kNoBlock) {
      if (sides_.owner(mine) != kNoBlock) continue;  // beside another text, that a fork was given
      AttachSide(owner, side, mine);
      continue;
    }
    // A fork that shares it goes on with it: only the blocks of one owner alone may change.
    if (pool_.references(mine) > 1) continue;
    HoldCached(cached);
    pool_.NotePeak();  // a live step may still name the copy
    const BlockId copy = mine;
    mine = cached;
    sequence.first_dirty =
        std::min<std::int64_t>(sequence.first_dirty, static_cast<std::int64_t>(n));
    ++merged_;
    Release(sequence, copy);
  }
}

// A block of a side, which somebody holds, is cached beside `owner` from now on.
void BlockManager::AttachSide(BlockId owner, std::size_t side, BlockId page) {
  sides_.Attach(owner, side, page);
  index_.NoteSide(index_.node(owner), side, Tier::kDevice, /*stored=*/true);
  idle_.Enter(page, idle_.lane(owner));
  if (!has_tier()) return;
  const NodeId node = index_.node(owner);
  if (const HostId host = sides_.host(node, side); host != kNoHost) {
    host_.Move(host, HostPool::kAlone, HostPool::kOnDevice);
  } else if (config_.write == WritePolicy::kThrough) {
    Write(node, static_cast<int>(side));
  }
}

// The blocks beside one that leaves the index leave it with it. Returns how many.
std::int64_t BlockManager::DropSides(BlockId owner) {
  std::int64_t count = 0;
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    const BlockId page = sides_.page(owner, side);
    if (page == kNoBlock) continue;
    index_.NoteSide(index_.node(owner), side, Tier::kDevice, /*stored=*/false);
    sides_.Detach(page);
    DropCached(page);
    ++count;
  }
  return count;
}

bool BlockManager::HasSides(BlockId owner) const {
  bool any = false;
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    any |= sides_.page(owner, side) != kNoBlock;
  }
  return any;
}

// Calls f for each block that the windows want of the prefix of `blocks` blocks that ends with
// `last`, kNoBlock where there is none.
template <class F>
void BlockManager::ForEachInWindow(std::int32_t last, std::int64_t blocks, F f) const {
  std::int64_t first = blocks;
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    first =
        std::min(first, sides_.reach(side).First(blocks * config_.block_size) / config_.block_size);
  }
  for (std::int64_t b = blocks - 1; b >= first; --b, last = index_.parent(last)) {
    for (std::size_t side = 0; side < sides_.count(); ++side) {
      const std::int64_t begin = sides_.reach(side).First(blocks * config_.block_size);
      if (b >= begin / config_.block_size) f(sides_.page(index_.block(last), side));
    }
  }
}

std::int64_t BlockManager::Depth(std::int32_t node) const {
  std::int64_t blocks = 0;
  for (; node >= 0; node = index_.parent(node)) ++blocks;
  return blocks;
}

// How many blocks of its windows a pin of this prefix would hold that no pin holds now; -1: one is
// not cached.
std::int64_t BlockManager::SidesToPin(std::int32_t last) const {
  std::int64_t more = 0;
  if (!sides_.any()) return more;
  bool all = true;
  ForEachInWindow(last, Depth(last), [&](BlockId page) {
    if (page == kNoBlock) {
      all = false;
    } else if (pins_[page].through == 0) {
      ++more;
    }
  });
  return all ? more : -1;
}

void BlockManager::PinSides(std::int32_t last) {
  if (!sides_.any()) return;
  ForEachInWindow(last, Depth(last), [&](BlockId page) {
    if (++pins_[page].through > 1) return;
    HoldCached(page);
    ++pinned_;
  });
}

// Takes `count` pins that ended at `last` off the blocks of its windows.
void BlockManager::UnpinSides(std::int32_t last, std::int32_t count) {
  if (!sides_.any() || count == 0) return;
  ForEachInWindow(last, Depth(last), [&](BlockId page) {
    if (page == kNoBlock || pins_[page].through == 0) return;
    pins_[page].through -= count;
    if (pins_[page].through > 0) return;
    --pinned_;
    DropReference(page);
  });
}

}  // namespace lariat::blocks
