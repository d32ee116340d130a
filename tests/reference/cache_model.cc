// SPDX-License-Identifier: Apache-2.0
#include "reference/cache_model.h"

#include <algorithm>
#include <sstream>

namespace lariat::reference {

std::string OptionsKey(const OpenOptions& options) {
  std::ostringstream key;
  key << options.salt.size() << ':' << options.salt << options.adapter.size() << ':'
      << options.adapter;
  for (const std::uint64_t extra : options.extra_keys) key << ',' << extra;
  return key.str();
}

CacheModel::CacheModel(const ModelConfig& config) : config_(config) {
  for (int block = 0; block < config.total_blocks; ++block) free_.insert(block);
}

std::int64_t CacheModel::BlocksFor(std::int64_t tokens) const {
  return (tokens + config_.block_size - 1) / config_.block_size;
}

// --- The index --------------------------------------------------------------------------------

std::vector<int> CacheModel::Indexed(std::span<const TokenId> tokens,
                                     const std::string& options) const {
  std::vector<int> found;
  for (std::size_t end = config_.block_size; end <= tokens.size(); end += config_.block_size) {
    const auto entry = index_.find({options, {tokens.begin(), tokens.begin() + end}});
    if (entry == index_.end()) break;
    found.push_back(entry->second);
  }
  return found;
}

// At least one token of a prompt is always computed.
ModelHit CacheModel::Hit(std::span<const TokenId> prompt, const std::string& options) const {
  ModelHit hit;
  if (prompt.empty() || !config_.reuse) return hit;
  const std::vector<TokenId> wanted(prompt.begin(), prompt.end() - 1);
  hit.blocks = Indexed(wanted, options);
  const std::int64_t whole = std::ssize(hit.blocks) * config_.block_size;
  hit.tokens = whole;
  if (!config_.tokens) {
    FitToWindows(hit);
    return hit;
  }
  // All blocks that may come next, in order of their tokens. Of those that agree longest, the last
  // one before the prompt, or else the first one after.
  for (const auto& [key, block] : index_) {
    const std::vector<TokenId>& tokens = key.second;
    if (key.first != options || std::ssize(tokens) <= whole ||
        std::ssize(tokens) > whole + config_.block_size) {
      continue;
    }
    const auto ends = std::mismatch(tokens.begin(), tokens.end(), wanted.begin(), wanted.end());
    const std::int64_t same = ends.first - tokens.begin();
    if (same <= whole || same < hit.tokens) continue;
    if (same == hit.tokens && tokens >= wanted) continue;
    hit.tokens = same;
    hit.source = block;
  }
  FitToWindows(hit);
  return hit;
}

PrefixMatch CacheModel::Match(std::span<const TokenId> prompt, const std::string& options) const {
  const ModelHit hit = Hit(prompt, options);
  PrefixMatch match;
  match.tokens = hit.tokens;
  match.blocks = std::ssize(hit.blocks);
  match.idle_blocks =
      std::count_if(hit.blocks.begin(), hit.blocks.end(), [&](int block) { return Idle(block); });
  match.host_tokens = HostTokens(prompt, options);
  return match;
}

// --- Life of a block ------------------------------------------------------------------------

void CacheModel::LeaveLru(int block) {
  if (Idle(block)) ++changes_;
  lru_.remove(block);
}

void CacheModel::Hold(int block) {
  ++blocks_[block].refs;
  LeaveLru(block);
}

void CacheModel::Drop(int block) {
  --blocks_.at(block).refs;
  MaybeReturn(block);
}

void CacheModel::Unpin(int block) {
  --blocks_.at(block).pins;
  MaybeReturn(block);
}

void CacheModel::MaybeReturn(int block) {
  const ModelBlock& state = blocks_.at(block);
  if (state.refs > 0 || state.pins > 0) return;
  if (state.index_tokens) {
    lru_.push_back(block);
    blocks_.at(block).idle_since = now_;
    if (config_.priorities) ++changes_;
  } else {
    blocks_.erase(block);
    free_.insert(block);
  }
}

// The last live step that has the sequence.
ModelStep* CacheModel::LastStepOf(SequenceId id) {
  ModelStep* last = nullptr;
  for (ModelStep& step : steps_) {
    for (const ModelEntry& entry : step.entries) {
      if (entry.sequence == id) last = &step;
    }
  }
  return last;
}

// Takes a block from a sequence; at once, or when the last live step that has the sequence ends.
void CacheModel::Release(SequenceId id, int block) {
  if (ModelStep* last = LastStepOf(id)) {
    ++blocks_.at(block).pins;
    last->releases.push_back({block, id});
  }
  Drop(block);
}

void CacheModel::TrimTable(SequenceId id, ModelSequence& sequence, std::int64_t tokens) {
  while (std::ssize(sequence.table) > BlocksFor(tokens)) {  // deepest first
    for (std::vector<int>& side : sequence.sides) {
      const int block = side.back();
      side.pop_back();
      if (block != -1) Release(id, block);
    }
    const int block = sequence.table.back();
    sequence.table.pop_back();
    Release(id, block);
  }
}

// Puts the full blocks with known ids into the index, or merges them with the ones there.
void CacheModel::PublishBlocks(SequenceId id, ModelSequence& sequence) {
  if (!config_.reuse || !sequence.indexable) return;
  const std::int64_t full =
      std::min<std::int64_t>(sequence.settled, std::ssize(sequence.ids)) / config_.block_size;
  for (std::int64_t i = 0; i < full; ++i) {
    IndexKey key{sequence.options,
                 {sequence.ids.begin(), sequence.ids.begin() + (i + 1) * config_.block_size}};
    int& mine = sequence.table[i];
    const auto [entry, added] = index_.try_emplace(key, mine);
    if (added) {
      blocks_.at(mine).index_options = key.first;
      blocks_.at(mine).index_tokens = key.second;
      IsCached(key);
      AttachSides(id, sequence, static_cast<std::size_t>(i), key);
    } else if (entry->second == mine) {
      if (i >= sequence.passed) AttachSides(id, sequence, static_cast<std::size_t>(i), key);
    } else {
      // Others that share it would hold blocks of the index without all of those above.
      if (blocks_.at(mine).refs > 1 || blocks_.at(mine).pins > 0) return;
      Hold(entry->second);
      const int copy = mine;
      mine = entry->second;
      peak_high_ = std::max<std::int64_t>(peak_high_, std::ssize(blocks_) - std::ssize(lru_));
      AttachSides(id, sequence, static_cast<std::size_t>(i), key);
      Release(id, copy);
      ++merged_;
    }
    sequence.passed = std::max(sequence.passed, i + 1);
  }
}

// The last block of a sequence that has ended, where nobody else needs it, stays for what it holds.
void CacheModel::PublishTail(SequenceId id, ModelSequence& sequence) {
  if (!config_.reuse || !config_.tokens || !sequence.indexable) return;
  if (sequence.table.empty()) return;  // it is in host memory
  const std::int64_t end = std::min<std::int64_t>(sequence.settled, std::ssize(sequence.ids));
  if (end % config_.block_size == 0) return;
  ModelBlock& block = blocks_.at(sequence.table.at(end / config_.block_size));
  if (block.refs > 1 || block.pins > 0 || block.index_tokens) return;
  const std::vector<TokenId> tokens(sequence.ids.begin(), sequence.ids.begin() + end);
  const std::vector<int> above = Indexed(tokens, sequence.options);
  if (!std::equal(above.begin(), above.end(), sequence.table.begin(),
                  sequence.table.begin() + end / config_.block_size)) {
    return;
  }
  for (const auto& [key, other] : index_) {
    if (key.first == sequence.options && std::ssize(key.second) >= end &&
        std::equal(tokens.begin(), tokens.end(), key.second.begin())) {
      return;
    }
  }
  index_[{sequence.options, tokens}] = sequence.table.at(end / config_.block_size);
  block.index_tokens = tokens;
  block.index_options = sequence.options;
  const int tail = sequence.table.at(end / config_.block_size);
  IsCached({sequence.options, tokens});
  AttachSides(id, sequence, static_cast<std::size_t>(end / config_.block_size),
              {sequence.options, tokens});
  Retain(sequence, tail, end - end % config_.block_size, end);
}

// --- Sequences ------------------------------------------------------------------------------

void CacheModel::Open(SequenceId id, std::span<const TokenId> prompt, const std::string& options,
                      std::int64_t max_length, std::span<const Retention> retention) {
  ModelSequence sequence;
  sequence.retention.assign(retention.begin(), retention.end());
  sequence.options = options;
  sequence.prompt.assign(prompt.begin(), prompt.end());
  sequence.ids = sequence.prompt;
  sequence.sides.resize(config_.sides.size());
  sequence.max_length = max_length == 0 ? config_.max_tokens_per_sequence : max_length;
  sequences_[id] = sequence;
}

bool CacheModel::InLiveStep(SequenceId id) const {
  for (const ModelStep& step : steps_) {
    for (const ModelEntry& entry : step.entries) {
      if (entry.sequence == id) return true;
    }
  }
  return false;
}

// Drafts that Truncate dropped are decided.
bool CacheModel::DraftsPending(SequenceId id) const {
  for (const ModelStep& step : steps_) {
    for (const ModelEntry& entry : step.entries) {
      if (entry.sequence == id && entry.left > entry.count - entry.drafts) return true;
    }
  }
  return false;
}

std::int64_t CacheModel::Planned(const ModelSequence& sequence, SequenceId id) const {
  std::int64_t length = sequence.base;
  for (const ModelStep& step : steps_) {
    for (const ModelEntry& entry : step.entries) {
      if (entry.sequence != id || entry.left == 0) continue;
      length = entry.start + std::min(entry.left, entry.count - entry.drafts);
    }
  }
  return length;
}

std::int64_t CacheModel::Length(const ModelSequence& sequence, SequenceId id) const {
  std::int64_t length = sequence.base;
  for (const ModelStep& step : steps_) {
    for (const ModelEntry& entry : step.entries) {
      if (entry.sequence == id && entry.left > 0) length = entry.start + entry.left;
    }
  }
  return length;
}

void CacheModel::Close(SequenceId id) {
  closed_[id] = sequences_.at(id);
  sequences_.erase(id);
  EndOfClosed(id);
  EnforceQuotas();
  KeepClean();
}

// What follows is another text: the ids behind `length` are forgotten, the prompt's too.
void CacheModel::ForgetIds(ModelSequence& sequence, std::int64_t length) {
  const std::size_t end = static_cast<std::size_t>(length);
  if (sequence.ids.size() > end) sequence.ids.resize(end);
  if (sequence.prompt.size() > end) sequence.prompt.resize(end);
  if (sequence.truth.size() > end) sequence.truth.resize(end);
}

void CacheModel::Truncate(SequenceId id, std::int64_t length) {
  ModelSequence& sequence = sequences_.at(id);
  if (length >= Length(sequence, id)) return;
  for (ModelStep& step : steps_) {
    for (ModelEntry& entry : step.entries) {
      if (entry.sequence != id) continue;
      entry.left = std::clamp<std::int64_t>(length - entry.start, 0, entry.left);
    }
  }
  sequence.base = std::min(sequence.base, length);
  sequence.settled = std::min(sequence.settled, length);
  sequence.retained = std::min(sequence.retained, length / config_.block_size);
  sequence.passed = std::min(sequence.passed, length / config_.block_size);
  if (length == 0) sequence.indexable = true;
  ForgetIds(sequence, length);
  TrimTable(id, sequence, length);
  EnforceQuotas();
  KeepClean();
}

void CacheModel::Fork(SequenceId parent, SequenceId child, std::int64_t length) {
  ModelSequence copy = sequences_.at(parent);
  for (const int block : copy.table) Hold(block);
  for (const std::vector<int>& side : copy.sides) {
    for (const int block : side) {
      if (block != -1) Hold(block);
    }
  }
  if (length < 0) length = copy.settled;
  sequences_[child] = copy;
  Truncate(child, length);
  ForgetIds(sequences_.at(child), length);
}

void CacheModel::SetTokens(SequenceId id, std::span<const TokenId> tokens) {
  ModelSequence& sequence = sequences_.at(id);
  sequence.ids.insert(sequence.ids.end(), tokens.begin(), tokens.end());
  Publish(id, sequence);
  EnforceQuotas();
  NotePeak();
  KeepClean();
}

void CacheModel::Clear() {
  Remove({}, [](const std::string&) { return true; });
}

}  // namespace lariat::reference
