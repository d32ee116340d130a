// SPDX-License-Identifier: Apache-2.0
// What the caller wants kept or gone: pinned prefixes, and the removal of a prefix or a salt.
#include <algorithm>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// The cached block that holds the last of the prompt's whole blocks, or its root (<= -2); kNoBlock:
// not all of them are cached.
std::int32_t BlockManager::FindPath(std::span<const TokenId> prompt, const OpenOptions& options,
                                    std::uint32_t rope_choice) const {
  const auto size = static_cast<std::size_t>(config_.block_size);
  const RootId root = index_.FindRoot(options, rope_choice);
  std::int32_t at = root == 0 ? kNoBlock : root;
  for (std::size_t end = size; at != kNoBlock && end <= prompt.size(); end += size) {
    at = index_.Find(at, prompt.subspan(end - size, size));
  }
  return at;
}

Status BlockManager::Pin(std::span<const TokenId> prompt, const OpenOptions& options,
                         std::uint32_t rope_choice) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const std::int32_t last = FindPath(prompt, options, rope_choice);
  if (last == kNoBlock) return InvalidArgument("prompt: not all of its whole blocks are cached");
  std::int64_t more = 0;
  for (std::int32_t b = last; b >= 0; b = index_.parent(b)) more += pins_[b].through == 0 ? 1 : 0;
  if (more > config_.max_pinned_blocks - pinned_) {
    return ResourceExhausted(
        std::to_string(more) + " blocks more than the " + std::to_string(pinned_) +
        " pinned ones: allowed are max_pinned_blocks " + std::to_string(config_.max_pinned_blocks));
  }
  for (std::int32_t b = last; b >= 0; b = index_.parent(b)) {
    if (++pins_[b].through > 1) continue;
    if (pool_.state(b) == BlockState::kIdle) idle_.Remove(b);
    pool_.Claim(b);
    ++pinned_;
  }
  if (last >= 0) ++pins_[last].ends;
  pool_.NotePeak();
  return {};
}

Status BlockManager::Unpin(std::span<const TokenId> prompt, const OpenOptions& options,
                           std::uint32_t rope_choice) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const std::int32_t last = FindPath(prompt, options, rope_choice);
  // Pins of longer prefixes hold these blocks too, but are not what is taken back here.
  if (last == kNoBlock || (last >= 0 && pins_[last].ends == 0)) {
    return InvalidArgument("prompt: its whole blocks are not pinned");
  }
  if (last >= 0) --pins_[last].ends;
  DropPinsThrough(last, 1);
  EnforceQuotas();
  return {};
}

// Takes `count` pins, which ended at `last` or below it, off the blocks from there up, deepest
// first.
//   last: a block or a root
void BlockManager::DropPinsThrough(std::int32_t last, std::int32_t count) {
  if (count == 0) return;
  for (std::int32_t b = last; b >= 0; b = index_.parent(b)) {
    pins_[b].through -= count;
    if (pins_[b].through > 0) continue;
    --pinned_;
    DropReference(b);
  }
}

// Takes a block and all below it out of the index, with the pins that end there, which blocks above
// lose as well; frees those that nobody holds.
std::int64_t BlockManager::Forget(BlockId top) {
  const std::int32_t above = index_.parent(top);
  const std::int32_t pins = pins_[top].through;
  std::int64_t count = 0;
  for (BlockId at = top;; ++count) {
    const BlockId leaf = index_.LeafBelow(at);
    at = index_.parent(leaf);
    const bool idle = pool_.state(leaf) == BlockState::kIdle;
    if (idle) idle_.Remove(leaf);
    EraseCached(leaf);
    idle ? pool_.FreeIdle(leaf) : DropPins(leaf);
    if (leaf == top) break;
  }
  DropPinsThrough(above, pins);
  return count + 1;
}

// The pins of a block that is not cached any more.
void BlockManager::DropPins(BlockId block) {
  if (pins_[block].through == 0) return;
  pins_[block] = {};
  --pinned_;
  DropReference(block);
}

Result<std::int64_t> BlockManager::Remove(std::span<const TokenId> prompt,
                                          const OpenOptions& options, std::uint32_t rope_choice) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const RootId root = index_.FindRoot(options, rope_choice);
  if (root == 0) return std::int64_t{0};
  const std::int32_t last = FindPath(prompt, options, rope_choice);  // needs memory: first
  KeepOut([&](const Sequence& s) {
    return s.root == root && s.known() >= std::ssize(prompt) &&
           std::equal(prompt.begin(), prompt.end(), s.ids.begin());
  });
  if (last == kNoBlock) return std::int64_t{0};
  const auto rest = prompt.last(prompt.size() % static_cast<std::size_t>(config_.block_size));
  std::int64_t count = 0;
  if (rest.empty()) {
    count = last < 0 ? ForgetRoot(root) : Forget(last);
  } else {
    index_.AddRootReference(root);
    while (true) {
      const NearestChild child = index_.Nearest(last, rest);
      if (child.tokens < std::ssize(rest)) break;
      count += Forget(child.block);
    }
    index_.DropRoot(root);
  }
  EnforceQuotas();  // blocks above may have lost their pins
  return count;
}

Result<std::int64_t> BlockManager::RemoveSalt(std::string_view salt) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  KeepOut([&](const Sequence& s) { return index_.salt(s.root) == salt; });
  std::int64_t count = 0;
  for (RootId root = index_.FirstRoot(); root != 0;) {
    const RootId next = index_.NextRoot(root);  // the root may go
    if (index_.salt(root) == salt) count += ForgetRoot(root);
    root = next;
  }
  return count;
}

std::int64_t BlockManager::ForgetRoot(RootId root) {
  std::int64_t count = 0;
  index_.AddRootReference(root);
  for (BlockId top; (top = index_.AnyChild(root)) != kNoBlock;) count += Forget(top);
  index_.DropRoot(root);
  return count;
}

}  // namespace lariat::blocks
