// SPDX-License-Identifier: Apache-2.0
// What the caller wants kept or gone: pinned prefixes, and the removal of a prefix or a salt.
#include <algorithm>
#include <string>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// The node with these tokens, on the device or not.
NodeId BlockManager::FindAny(std::int32_t parent, std::span<const TokenId> tokens) const {
  const NodeId node = index_.Find(parent, tokens);
  return node == kNoNode ? index_.FindOnHost(parent, tokens) : node;
}

// The node that holds the last of the prompt's whole blocks, or its root (<= -2); kNoNode: not all
// of them are cached.
//   on_host: those in the host tier alone count
std::int32_t BlockManager::FindPath(std::span<const TokenId> prompt, const OpenOptions& options,
                                    std::uint32_t rope_choice, bool on_host) const {
  const auto size = static_cast<std::size_t>(config_.block_size);
  const RootId root = index_.FindRoot(options, rope_choice);
  std::int32_t at = root == 0 ? kNoNode : root;
  for (std::size_t end = size; at != kNoNode && end <= prompt.size(); end += size) {
    const auto tokens = prompt.subspan(end - size, size);
    at = on_host ? FindAny(at, tokens) : index_.Find(at, tokens);
  }
  return at;
}

Status BlockManager::Pin(std::span<const TokenId> prompt, const OpenOptions& options,
                         std::uint32_t rope_choice) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const std::int32_t last = FindPath(prompt, options, rope_choice, /*on_host=*/false);
  if (last == kNoNode) return InvalidArgument("prompt: not all of its whole blocks are cached");
  std::int64_t more = 0;
  for (std::int32_t n = last; n >= 0; n = index_.parent(n)) {
    more += pins_[index_.block(n)].through == 0 ? 1 : 0;
  }
  const std::int64_t beside = SidesToPin(last);
  if (beside < 0) {
    return InvalidArgument("prompt: not all blocks of the windows at its end are cached");
  }
  more += beside;
  if (more > config_.max_pinned_blocks - pinned_) {
    return ResourceExhausted(
        std::to_string(more) + " blocks more than the " + std::to_string(pinned_) +
        " pinned ones: allowed are max_pinned_blocks " + std::to_string(config_.max_pinned_blocks));
  }
  for (std::int32_t n = last; n >= 0; n = index_.parent(n)) {
    const BlockId block = index_.block(n);
    if (++pins_[block].through > 1) continue;
    HoldCached(block);
    ++pinned_;
  }
  if (last >= 0) ++pins_[index_.block(last)].ends;
  PinSides(last);
  pool_.NotePeak();
  KeepClean();
  return {};
}

Status BlockManager::Unpin(std::span<const TokenId> prompt, const OpenOptions& options,
                           std::uint32_t rope_choice) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const std::int32_t last = FindPath(prompt, options, rope_choice, /*on_host=*/false);
  // Pins of longer prefixes hold these blocks too, but are not what is taken back here.
  if (last == kNoNode || (last >= 0 && pins_[index_.block(last)].ends == 0)) {
    return InvalidArgument("prompt: its whole blocks are not pinned");
  }
  if (last >= 0) --pins_[index_.block(last)].ends;
  UnpinSides(last, 1);
  DropPinsThrough(last, 1);
  EnforceQuotas();
  KeepClean();
  return {};
}

// Takes `count` pins, which ended at `last` or below it, off the blocks from there up, deepest
// first.
//   last: a node on the device, or a root
void BlockManager::DropPinsThrough(std::int32_t last, std::int32_t count) {
  if (count == 0) return;
  for (std::int32_t n = last; n >= 0; n = index_.parent(n)) {
    const BlockId block = index_.block(n);
    pins_[block].through -= count;
    if (pins_[block].through > 0) continue;
    --pinned_;
    DropReference(block);
  }
}

// Takes a node and all below it out of the index, with the pins that end there, which blocks above
// lose as well; frees blocks and places that nobody holds.
std::int64_t BlockManager::Forget(NodeId top) {
  const std::int32_t above = index_.parent(top);
  const BlockId first = index_.block(top);
  const std::int32_t pins = first == kNoBlock ? 0 : pins_[first].through;
  std::int64_t count = 0;
  for (NodeId at = top;; ++count) {
    const NodeId leaf = index_.LeafBelow(at);
    const BlockId block = index_.block(leaf);
    at = index_.parent(leaf);
    if (has_tier()) DropPlaces(leaf);
    if (block != kNoBlock) {
      UnpinSides(leaf, pins_[block].ends);
      count += DropSides(block);
    }
    index_.Erase(leaf);
    if (block != kNoBlock) DropCached(block);
    if (leaf == top) break;
  }
  DropPinsThrough(above, pins);
  return count + 1;
}

// A block that is not cached any more.
void BlockManager::DropCached(BlockId block) {
  const bool idle = pool_.state(block) == BlockState::kIdle;
  if (idle) idle_.Remove(block);
  idle_.Leave(block);
  idle ? pool_.FreeIdle(block) : DropPins(block);
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
  // Needs memory: first.
  const std::int32_t last = FindPath(prompt, options, rope_choice, /*on_host=*/true);
  KeepOut([&](const Sequence& s) {
    return s.root == root && s.known() >= std::ssize(prompt) &&
           std::equal(prompt.begin(), prompt.end(), s.ids.all().begin());
  });
  if (last == kNoNode) return std::int64_t{0};
  const auto rest = prompt.last(prompt.size() % static_cast<std::size_t>(config_.block_size));
  std::int64_t count = 0;
  index_.AddRootReference(root);
  if (rest.empty()) count = last < 0 ? ForgetRoot(root) : Forget(last);
  while (!rest.empty()) {
    NearestChild child = index_.Nearest(last, rest);
    if (child.tokens < std::ssize(rest)) child = index_.NearestOnHost(last, rest);
    if (child.tokens < std::ssize(rest)) break;
    count += Forget(child.node);
  }
  index_.DropRoot(root);
  EnforceQuotas();  // blocks above may have lost their pins
  KeepClean();
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
  KeepClean();
  return count;
}

std::int64_t BlockManager::ForgetRoot(RootId root) {
  std::int64_t count = 0;
  index_.AddRootReference(root);
  for (NodeId top; (top = index_.AnyChild(root)) != kNoNode;) count += Forget(top);
  index_.DropRoot(root);
  return count;
}

}  // namespace lariat::blocks
