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

// --- Index and LRU --------------------------------------------------------------------------

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
  if (!config_.tokens) return hit;
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

bool CacheModel::HasIndexedChild(int block, const std::set<int>& gone) const {
  const ModelBlock& parent = blocks_.at(block);
  for (const auto& [key, child] : index_) {
    if (child == block || gone.count(child) > 0 || key.first != parent.index_options) continue;
    const std::vector<TokenId>& prefix = *parent.index_tokens;
    if (std::ssize(prefix) % config_.block_size != 0) return false;
    if (key.second.size() > prefix.size() &&
        std::equal(prefix.begin(), prefix.end(), key.second.begin())) {
      return true;
    }
  }
  return false;
}

std::vector<int> CacheModel::Victims(std::int64_t count) const {
  std::vector<int> victims;
  std::set<int> gone;
  while (std::ssize(victims) < count) {
    const auto leaf = std::find_if(lru_.begin(), lru_.end(), [&](int block) {
      return gone.count(block) == 0 && !HasIndexedChild(block, gone);
    });
    if (leaf == lru_.end()) break;
    victims.push_back(*leaf);
    gone.insert(*leaf);
  }
  return victims;
}

// --- Life of a block ------------------------------------------------------------------------

void CacheModel::LeaveLru(int block) {
  if (Idle(block)) ++removed_;
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
    const int block = sequence.table.back();
    sequence.table.pop_back();
    Release(id, block);
  }
}

// Puts the full blocks with known ids into the index, or merges them with the ones there.
void CacheModel::Publish(SequenceId id, ModelSequence& sequence) {
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
    } else if (entry->second != mine) {
      // Others that share it would hold blocks of the index without all of those above.
      if (blocks_.at(mine).refs > 1 || blocks_.at(mine).pins > 0) return;
      Hold(entry->second);
      const int copy = mine;
      mine = entry->second;
      peak_high_ = std::max<std::int64_t>(peak_high_, std::ssize(blocks_) - std::ssize(lru_));
      Release(id, copy);
      ++merged_;
    }
  }
}

// The last block of a sequence that has ended, where nobody else needs it, stays for what it holds.
void CacheModel::PublishTail(const ModelSequence& sequence) {
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
  IsCached({sequence.options, tokens});
}

// --- Sequences ------------------------------------------------------------------------------

void CacheModel::Open(SequenceId id, std::span<const TokenId> prompt, const std::string& options,
                      std::int64_t max_length) {
  ModelSequence sequence;
  sequence.options = options;
  sequence.prompt.assign(prompt.begin(), prompt.end());
  sequence.ids = sequence.prompt;
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
  ForgetIds(sequence, length);
  TrimTable(id, sequence, length);
  KeepClean();
}

void CacheModel::Fork(SequenceId parent, SequenceId child, std::int64_t length) {
  ModelSequence copy = sequences_.at(parent);
  for (const int block : copy.table) Hold(block);
  if (length < 0) length = copy.settled;
  sequences_[child] = copy;
  Truncate(child, length);
  ForgetIds(sequences_.at(child), length);
}

void CacheModel::SetTokens(SequenceId id, std::span<const TokenId> tokens) {
  ModelSequence& sequence = sequences_.at(id);
  sequence.ids.insert(sequence.ids.end(), tokens.begin(), tokens.end());
  Publish(id, sequence);
  NotePeak();
  KeepClean();
}

void CacheModel::Clear() {
  Remove({}, [](const std::string&) { return true; });
}

// --- What the caller wants kept or gone -------------------------------------------------------

std::vector<TokenId> CacheModel::WholeBlocks(std::span<const TokenId> tokens) const {
  const std::size_t size = tokens.size() - tokens.size() % config_.block_size;
  return {tokens.begin(), tokens.begin() + size};
}

// Whether a pinned prefix has the block.
bool CacheModel::Keeps(int block) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const IndexKey& kept) {
    const std::vector<int> path = Indexed(kept.second, kept.first);
    return std::find(path.begin(), path.end(), block) != path.end();
  });
}

std::int64_t CacheModel::kept() const {
  return std::count_if(blocks_.begin(), blocks_.end(),
                       [&](const auto& entry) { return Keeps(entry.first); });
}

Code CacheModel::Pin(std::span<const TokenId> prompt, const std::string& options) {
  const std::vector<int> path = Indexed(prompt, options);
  if (std::ssize(path) < std::ssize(prompt) / config_.block_size) return Code::kInvalidArgument;
  std::vector<int> more;
  for (const int block : path) {
    if (!Keeps(block)) more.push_back(block);
  }
  if (kept() + std::ssize(more) > config_.max_pinned) return Code::kResourceExhausted;
  for (const int block : more) {
    ++blocks_.at(block).pins;
    LeaveLru(block);
  }
  kept_.insert({options, WholeBlocks(prompt)});
  NotePeak();
  KeepClean();
  return Code::kOk;
}

Code CacheModel::Unpin(std::span<const TokenId> prompt, const std::string& options) {
  const auto kept = kept_.find({options, WholeBlocks(prompt)});
  if (kept == kept_.end()) return Code::kInvalidArgument;
  Unkeep(*kept);
  KeepClean();
  return Code::kOk;
}

void CacheModel::Unkeep(const IndexKey& kept) {
  std::vector<int> path = Indexed(kept.second, kept.first);
  kept_.erase(kept_.find(kept));
  std::reverse(path.begin(), path.end());
  for (const int block : path) {
    if (!Keeps(block)) Unpin(block);
  }
}

std::int64_t CacheModel::Remove(std::span<const TokenId> prompt,
                                const std::function<bool(const std::string&)>& such) {
  const auto begins = [&](const std::vector<TokenId>& tokens) {
    return tokens.size() >= prompt.size() &&
           std::equal(prompt.begin(), prompt.end(), tokens.begin());
  };
  const std::list<int> idle = lru_;  // what was pinned till now does not become idle first
  while (true) {                     // a pin goes with any of its blocks
    const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const IndexKey& key) {
      return such(key.first) && begins(key.second);
    });
    if (kept == kept_.end()) break;
    Unkeep(*kept);
  }
  std::int64_t removed = 0;
  for (auto copy = copies_.begin(); copy != copies_.end();) {
    const IndexKey key = copy->first;
    ++copy;
    if (!such(key.first) || !begins(key.second)) continue;
    if (index_.count(key) == 0) ++removed;
    DropCopy(key);
  }
  for (auto entry = index_.begin(); entry != index_.end();) {
    if (!such(entry->first.first) || !begins(entry->first.second)) {
      ++entry;
      continue;
    }
    const int block = entry->second;
    const IndexKey gone = entry->first;
    entry = index_.erase(entry);
    ++removed;
    ModelBlock& state = blocks_.at(block);
    state.index_tokens.reset();
    hits_.erase(gone);
    if (Idle(block)) {
      removed_ += std::count(idle.begin(), idle.end(), block);
      lru_.remove(block);
      blocks_.erase(block);
      free_.insert(block);
    }
  }
  for (auto* const all : {&sequences_, &closed_}) {
    for (auto& [id, sequence] : *all) {
      if ((!sequence.table.empty() || (sequence.away() && sequence.base > 0)) &&
          such(sequence.options) && begins(sequence.ids)) {
        sequence.indexable = false;
      }
    }
  }
  KeepClean();
  return removed;
}

}  // namespace lariat::reference
