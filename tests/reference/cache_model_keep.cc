// SPDX-License-Identifier: Apache-2.0
// What stays in the model's cache and what goes: eviction, retention, quotas, pins and removal.
#include <algorithm>

#include "reference/cache_model.h"

namespace lariat::reference {

// --- Eviction ---------------------------------------------------------------------------------

bool CacheModel::HasIndexedChild(int block, const std::set<int>& gone) const {
  const ModelBlock& parent = blocks_.at(block);
  if (parent.side != -1) return false;
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const int beside = Beside(block, side);
    if (beside != -1 && gone.count(beside) == 0) return true;
  }
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

// Of the blocks with none below, one after the other, the one of the lowest priority, and of those
// the one that is idle for longest.
std::vector<int> CacheModel::Victims(std::int64_t count,
                                     const std::function<bool(int)>& such) const {
  std::vector<int> victims;
  std::set<int> gone;
  while (std::ssize(victims) < count) {
    int victim = -1;
    for (const int block : lru_) {
      if (gone.count(block) > 0 || !such(block) || HasIndexedChild(block, gone)) continue;
      if (victim == -1 || blocks_.at(block).priority < blocks_.at(victim).priority) victim = block;
    }
    if (victim == -1) break;
    victims.push_back(victim);
    gone.insert(victim);
  }
  return victims;
}

// --- Retention --------------------------------------------------------------------------------

void CacheModel::Publish(SequenceId id, ModelSequence& sequence) {
  PublishBlocks(id, sequence);
  RetainBlocks(sequence);
}

// Gives the sequence's cached blocks what it asks for, each once.
void CacheModel::RetainBlocks(ModelSequence& sequence) {
  if (!config_.reuse || !sequence.indexable) return;
  const std::int64_t size = config_.block_size;
  const std::int64_t known = std::min<std::int64_t>(sequence.settled, std::ssize(sequence.ids));
  while ((sequence.retained + 1) * size <= known) {
    const std::int64_t n = sequence.retained;
    const auto entry = index_.find(
        {sequence.options, {sequence.ids.begin(), sequence.ids.begin() + (n + 1) * size}});
    if (entry == index_.end() || entry->second != sequence.table[n]) break;
    Retain(sequence, entry->second, n * size, (n + 1) * size);
    ++sequence.retained;
  }
}

// Looks at each of the block's tokens.
void CacheModel::Retain(const ModelSequence& sequence, int block, std::int64_t first,
                        std::int64_t last) {
  int priority = -1;
  std::int64_t ttl = 0;
  for (std::int64_t token = first; token < last; ++token) {
    for (const Retention& range : sequence.retention) {
      if (token < range.first_token) continue;
      if (range.last_token != -1 && token >= range.last_token) continue;
      const bool longer = ttl != 0 && (range.ttl_ms == 0 || range.ttl_ms > ttl);
      if (range.priority > priority || (range.priority == priority && longer)) {
        priority = range.priority;
        ttl = range.ttl_ms;
      }
    }
  }
  if (priority == -1) return;
  blocks_.at(block).priority = priority;
  blocks_.at(block).ttl = ttl;
  for (std::size_t side = 0; side < config_.sides.size(); ++side) {
    const int mine = sequence.sides[side][static_cast<std::size_t>(first / config_.block_size)];
    if (mine == -1 || Beside(block, side) != mine) continue;
    blocks_.at(mine).priority = priority;
    blocks_.at(mine).ttl = ttl;
  }
}

void CacheModel::Expire(std::int64_t now) {
  now_ = now;
  for (const int idle : lru_) {
    ModelBlock& block = blocks_.at(idle);
    if (block.ttl == 0 || now - block.idle_since < block.ttl) continue;
    block.priority = kDefaultPriority;
    block.ttl = 0;
    ++expired_;
    ++changes_;
  }
  KeepClean();
}

// --- Quotas -----------------------------------------------------------------------------------

void CacheModel::SetQuota(const std::string& salt, std::int64_t limit) {
  quotas_.erase(salt);
  if (limit >= 0) quotas_[salt] = limit;
  EnforceQuotas();
  KeepClean();
}

void CacheModel::EnforceQuotas() {
  for (const auto& [salt, limit] : quotas_) {
    const std::string begin = std::to_string(salt.size()) + ":" + salt;
    const auto of_salt = [&](int block) {
      return blocks_.at(block).index_options.rfind(begin, 0) == 0;
    };
    const std::int64_t idle = std::count_if(lru_.begin(), lru_.end(), of_salt);
    for (const int victim : Victims(idle - limit, of_salt)) {
      LeaveLru(victim);
      Evict(victim);
      free_.insert(victim);
      ++quota_evicted_;
    }
  }
}

// --- What the caller wants kept or gone -------------------------------------------------------

std::vector<TokenId> CacheModel::WholeBlocks(std::span<const TokenId> tokens) const {
  const std::size_t size = tokens.size() - tokens.size() % config_.block_size;
  return {tokens.begin(), tokens.begin() + size};
}

// Whether a pinned prefix has the block.
bool CacheModel::Keeps(int block) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const IndexKey& kept) {
    const std::vector<int> path = PinnedPath(kept);
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
  if (!HasWindows(path, std::ssize(path) * config_.block_size)) return Code::kInvalidArgument;
  std::vector<int> more;
  for (const int block : PinnedPath({options, WholeBlocks(prompt)})) {
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
  EnforceQuotas();
  KeepClean();
  return Code::kOk;
}

void CacheModel::Unkeep(const IndexKey& kept) {
  const std::vector<int> path = PinnedPath(kept);
  kept_.erase(kept_.find(kept));
  for (const int block : path) {
    if (!Keeps(block)) Unpin(block);
  }
}

// A block that is not cached any more.
void CacheModel::Forget(int block) {
  ModelBlock& state = blocks_.at(block);
  state.index_tokens.reset();
  state.side = -1;
  state.priority = kDefaultPriority;
  state.ttl = 0;
  if (!Idle(block)) return;
  lru_.remove(block);
  blocks_.erase(block);
  free_.insert(block);
}

std::int64_t CacheModel::Remove(std::span<const TokenId> prompt,
                                const std::function<bool(const std::string&)>& such) {
  const auto begins = [&](const std::vector<TokenId>& tokens) {
    return tokens.size() >= prompt.size() &&
           std::equal(prompt.begin(), prompt.end(), tokens.begin());
  };
  const std::list<int> idle = lru_;
  const std::int64_t changes = changes_;
  while (true) {  // a pin goes with any of its blocks; the longest first
    const IndexKey* longest = nullptr;
    for (const IndexKey& key : kept_) {
      if (!such(key.first) || !begins(key.second)) continue;
      if (longest == nullptr || key.second.size() > longest->second.size()) longest = &key;
    }
    if (longest == nullptr) break;
    Unkeep(IndexKey(*longest));
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
    removed += 1 + ForgetSides(gone);
    entry = index_.erase(entry);
    hits_.erase(gone);
    Forget(block);
  }
  // What was pinned till now does not become idle before it goes.
  const auto differ = [](const std::list<int>& these, const std::list<int>& others) {
    return std::count_if(these.begin(), these.end(), [&](int block) {
      return std::find(others.begin(), others.end(), block) == others.end();
    });
  };
  changes_ = changes + differ(idle, lru_) + (config_.priorities ? differ(lru_, idle) : 0);
  for (auto* const all : {&sequences_, &closed_}) {
    for (auto& [id, sequence] : *all) {
      if ((!sequence.table.empty() || (sequence.away() && sequence.base > 0)) &&
          such(sequence.options) && begins(sequence.ids)) {
        sequence.indexable = false;
      }
    }
  }
  EnforceQuotas();
  KeepClean();
  return removed;
}

}  // namespace lariat::reference
