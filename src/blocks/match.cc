// SPDX-License-Identifier: Apache-2.0
// Matches: which cached prefix a prompt has.
#include <algorithm>

#include "blocks/block_manager.h"

namespace lariat::blocks {

// At least one token of a prompt is always computed.
std::int64_t BlockManager::ReusableTokens(std::int64_t prompt_length) const {
  if (!config_.reuse || prompt_length == 0) return 0;
  const std::int64_t most = prompt_length - 1;
  return config_.token_reuse ? most : most - most % config_.block_size;
}

// What a block that follows the first `blocks` ones is looked up by; empty: nothing follows.
std::span<const TokenId> BlockManager::NextTokens(std::span<const TokenId> ids, std::size_t blocks,
                                                  std::int64_t reusable) const {
  const auto first = static_cast<std::int64_t>(blocks) * config_.block_size;
  const std::int64_t count = std::min<std::int64_t>(config_.block_size, reusable - first);
  return ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

// Whether the path that ends with this block is what it was when the block was seen there. Blocks
// are erased deepest first, so if the last one stands, all before it do.
bool BlockManager::Stands(BlockId last, std::uint32_t generation) const {
  return index_.contains(last) && pool_.generation(last) == generation;
}

PrefixMatch BlockManager::Match(std::span<const TokenId> prompt, const OpenOptions& options,
                                std::uint32_t rope_choice) const {
  const RootId root = index_.FindRoot(options, rope_choice);
  if (root == 0) return {};
  const auto tokens = prompt.first(static_cast<std::size_t>(ReusableTokens(std::ssize(prompt))));
  std::vector<BlockId>& path = memo_.path;
  memo_.Forget();
  path.clear();
  std::int32_t last = root;
  NearestChild partial = index_.Follow(last, tokens, path);
  if (!config_.token_reuse) partial = {};
  PrefixMatch match;
  match.blocks = std::ssize(path);
  if (sides_.any() && (partial.block == kNoBlock || !CanUse(path, partial))) {
    // What can be used is known once the whole path is.
    partial = {};
    match.blocks = UsableBlocks(path);
  }
  match.tokens = match.blocks * config_.block_size + partial.tokens;
  match.idle_blocks = std::count_if(path.begin(), path.begin() + match.blocks,
                                    [&](BlockId block) { return pool_.references(block) == 0; });
  match.host_tokens = match.tokens;
  if (has_tier()) {
    match.host_tokens = sides_.any()
                            ? std::max(match.tokens, FindInTiers(prompt, root).tokens)
                            : HostTokens(last, tokens, path.size(), partial.tokens, nullptr);
  }
  // A block that a plan is to evict stays in the index until that is prepared, with the generation
  // that it has for whoever takes it: nothing of it may be kept.
  if (!path.empty() && plan_ == nullptr) {
    memo_.Remember(root, tokens.first(path.size() * static_cast<std::size_t>(config_.block_size)),
                   pool_.generation(path.back()));
  }
  return match;
}

// How many blocks are known to begin the match of a prompt, from the Match before.
std::size_t BlockManager::Remembered(std::span<const TokenId> prompt, RootId root) const {
  const auto tokens = prompt.first(static_cast<std::size_t>(ReusableTokens(std::ssize(prompt))));
  if (!memo_.Fits(root, tokens) || !Stands(memo_.path.back(), memo_.generation())) return 0;
  return memo_.path.size();
}

// Brings match_path up to date: drops what was erased since, then goes on from there.
void BlockManager::ExtendMatch(Sequence& sequence) {
  std::vector<BlockId>& path = sequence.match_path;
  std::vector<std::uint32_t>& generations = sequence.match_generations;
  while (!path.empty() && !Stands(path.back(), generations.back())) {
    path.pop_back();
    generations.pop_back();
  }
  const auto reusable = static_cast<std::size_t>(ReusableTokens(sequence.prompt_length));
  const auto size = static_cast<std::size_t>(config_.block_size);
  path.reserve(reusable / size);
  generations.reserve(reusable / size);
  std::int32_t last = path.empty() ? sequence.root : index_.node(path.back());
  const auto rest = sequence.ids.all().first(reusable).subspan(path.size() * size);
  const NearestChild partial = index_.Follow(last, rest, path);
  sequence.match_partial = config_.token_reuse ? partial : NearestChild{};
  NoteGenerations(sequence);
  FitMatch(sequence);
}

// Of the blocks that joined match_path.
void BlockManager::NoteGenerations(Sequence& sequence) const {
  std::vector<std::uint32_t>& generations = sequence.match_generations;
  for (std::size_t n = generations.size(); n < sequence.match_path.size(); ++n) {
    generations.push_back(pool_.generation(sequence.match_path[n]));
  }
}

Result<PrefixMatch> BlockManager::Match(SequenceId id) {
  Result<Sequence*> found = FindUsable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.started) {
    return InvalidArgument(NameOf(id) + " was planned already: its prefix hit is decided");
  }
  ExtendMatch(sequence);
  const auto path = std::span<const BlockId>(sequence.match_path)
                        .first(static_cast<std::size_t>(sequence.match_blocks));
  // Whoever holds a block holds all before it, so the idle ones are the end of the path.
  const auto first_idle = std::partition_point(path.begin(), path.end(),
                                               [&](BlockId b) { return pool_.references(b) > 0; });
  PrefixMatch match;
  match.blocks = std::ssize(path);
  match.tokens = match.blocks * config_.block_size + sequence.match_partial.tokens;
  match.idle_blocks = path.end() - first_idle;
  match.host_tokens = has_tier() ? HostTokens(sequence, nullptr) : match.tokens;
  if (plan_ != nullptr) {  // as above
    sequence.match_blocks = 0;
    sequence.match_path.clear();
    sequence.match_generations.clear();
  }
  return match;
}

}  // namespace lariat::blocks
