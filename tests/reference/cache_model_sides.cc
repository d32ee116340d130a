// SPDX-License-Identifier: Apache-2.0
// Groups with windows in the model: what of a prefix their rows read, which blocks of it there are.
#include <algorithm>

#include "reference/cache_model.h"

namespace lariat::reference {

namespace {

// Whether a row reads a token before it.
bool Reads(const ModelSide& side, std::int64_t row, std::int64_t token) {
  if (side.window == 0) return true;
  if (side.chunked) return row / side.window == token / side.window;
  return row - token < side.window;
}

}  // namespace

// The first token that a row reads, be it itself.
std::int64_t CacheModel::FirstRead(const ModelSide& side, std::int64_t row) const {
  std::int64_t first = row;
  while (first > 0 && Reads(side, row, first - 1)) --first;
  return first;
}

// The side's block of the text whose block of the first group this is; -1: there is none.
int CacheModel::Beside(int block, std::size_t side) const {
  const ModelBlock& owner = blocks_.at(block);
  const auto page = pages_.find({{owner.index_options, *owner.index_tokens}, side});
  return page == pages_.end() ? -1 : page->second;
}

// --- Hits -------------------------------------------------------------------------------------

// Whether all that the row at `length` reads is there, beside the first group's blocks; and what
// comes before it in its own block, which others may read once the block is full.
bool CacheModel::HasWindows(const std::vector<int>& path, std::int64_t length) const {
  const std::int64_t own = length - length % config_.block_size;
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const std::int64_t first = std::min(own, FirstRead(config_.sides[side], length));
    for (std::int64_t token = first; token < length; ++token) {
      const auto block = static_cast<std::size_t>(token / config_.block_size);
      if (Beside(path.at(block), side) == -1) return false;
    }
  }
  return true;
}

// Leaves whole blocks of a hit, as many as have what the windows at their end want.
void CacheModel::CutToWindows(ModelHit& hit) const {
  hit.source.reset();
  while (!HasWindows(hit.blocks, std::ssize(hit.blocks) * config_.block_size)) {
    hit.blocks.pop_back();
  }
  hit.tokens = std::ssize(hit.blocks) * config_.block_size;
}

// A hit that ends inside of a block is one with all of its tokens, or it is none.
void CacheModel::FitToWindows(ModelHit& hit) const {
  std::vector<int> path = hit.blocks;
  if (hit.source) path.push_back(*hit.source);
  if (!HasWindows(path, hit.tokens)) CutToWindows(hit);
}

// Whether the block that a hit is copied from, or one beside it, is idle.
bool CacheModel::IdleSource(int source) const {
  bool idle = Idle(source);
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const int beside = Beside(source, side);
    idle |= beside != -1 && Idle(beside);
  }
  return idle;
}

// Takes what the windows want of the hit's whole blocks into the tables.
void CacheModel::HoldWindows(ModelSequence& sequence, const ModelHit& hit) {
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const std::int64_t first = FirstRead(config_.sides[side], hit.tokens) / config_.block_size;
    std::vector<int>& table = sequence.sides[side];
    table.assign(hit.blocks.size(), -1);
    for (std::int64_t b = first; b < std::ssize(table); ++b) {
      const auto n = static_cast<std::size_t>(b);
      table[n] = Beside(hit.blocks[n], side);
      Hold(table[n]);
    }
  }
}

// --- What a sequence holds --------------------------------------------------------------------

// Blocks of all groups that hold a token which rows [start, end) read or are.
std::int64_t CacheModel::BlocksOfAll(std::int64_t start, std::int64_t end) const {
  std::int64_t blocks = BlocksFor(end);
  for (const ModelSide& side : config_.sides) {
    std::set<std::int64_t> held;
    for (std::int64_t token = FirstRead(side, start); token < end; ++token) {
      held.insert(token / config_.block_size);
    }
    blocks += std::ssize(held);
  }
  return blocks;
}

// The least length from which on no row reads what was given back.
std::int64_t CacheModel::MinLength(const ModelSequence& sequence) const {
  std::int64_t length = 0;
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const std::vector<int>& table = sequence.sides[side];
    const auto given_back = std::count(table.begin(), table.end(), -1) * config_.block_size;
    while (FirstRead(config_.sides[side], length) < given_back) ++length;
  }
  return length;
}

// Gives back what no row behind the settled ones reads: at once, whatever steps are live, the
// sides one after the other, each from its first block on.
void CacheModel::SlideOut(ModelSequence& sequence) {
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    std::vector<int>& table = sequence.sides[side];
    const std::int64_t first = FirstRead(config_.sides[side], sequence.settled);
    for (std::int64_t b = 0; b < std::ssize(table) && (b + 1) * config_.block_size <= first; ++b) {
      int& block = table[static_cast<std::size_t>(b)];
      if (block != -1) Drop(block);
      block = -1;
    }
  }
}

// --- The index --------------------------------------------------------------------------------

// The sequence's blocks beside its n-th one are cached with that one's text, or give way to those
// that are.
void CacheModel::AttachSides(SequenceId id, ModelSequence& sequence, std::size_t n,
                             const IndexKey& key) {
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    int& mine = sequence.sides[side][n];
    if (mine == -1) continue;
    const auto page = pages_.find({key, side});
    ModelBlock& state = blocks_.at(mine);
    if (page == pages_.end()) {
      if (state.index_tokens) continue;  // with another text, that a fork was given
      pages_[{key, side}] = mine;
      state.index_options = key.first;
      state.index_tokens = key.second;
      state.side = static_cast<int>(side);
    } else if (page->second != mine) {
      if (state.refs > 1 || state.pins > 0) continue;  // a fork goes on with it
      const int copy = mine;
      mine = page->second;
      Hold(mine);
      peak_high_ = std::max<std::int64_t>(peak_high_, std::ssize(blocks_) - std::ssize(lru_));
      Release(id, copy);
      ++merged_;
    }
  }
}

// The blocks of a pinned prefix, in the order in which they are let go of: those of its windows,
// deepest first, then those of the first group.
std::vector<int> CacheModel::PinnedPath(const IndexKey& kept) const {
  std::vector<int> path = Indexed(kept.second, kept.first);
  std::reverse(path.begin(), path.end());
  const std::int64_t blocks = std::ssize(path), length = blocks * config_.block_size;
  std::vector<int> all;
  for (std::int64_t b = blocks - 1; b >= 0; --b) {
    for (std::size_t side = 0; side < config_.sides.size(); ++side) {
      if ((b + 1) * config_.block_size <= FirstRead(config_.sides[side], length)) continue;
      const int page = Beside(path[static_cast<std::size_t>(blocks - 1 - b)], side);
      if (page != -1) all.push_back(page);
    }
  }
  all.insert(all.end(), path.begin(), path.end());
  return all;
}

// The blocks beside a text that leaves the index. Returns how many.
std::int64_t CacheModel::ForgetSides(const IndexKey& key) {
  std::int64_t count = 0;
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const auto page = pages_.find({key, side});
    if (page == pages_.end()) continue;
    const int block = page->second;
    pages_.erase(page);
    Forget(block);
    ++count;
  }
  return count;
}

}  // namespace lariat::reference
