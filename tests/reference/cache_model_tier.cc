// SPDX-License-Identifier: Apache-2.0
// The host tier in the model.
#include <algorithm>

#include "reference/cache_model.h"

namespace lariat::reference {

namespace {

bool BeginsWith(const std::vector<TokenId>& tokens, const std::vector<TokenId>& begin) {
  return tokens.size() >= begin.size() && std::equal(begin.begin(), begin.end(), tokens.begin());
}

}  // namespace

// --- Places and copies ------------------------------------------------------------------------

IndexKey CacheModel::KeyOf(const ModelSequence& sequence, std::size_t blocks) const {
  return {sequence.options,
          {sequence.ids.begin(),
           sequence.ids.begin() + static_cast<std::ptrdiff_t>(blocks * config_.block_size)}};
}

bool CacheModel::OnDevice(const ModelPlace& place) const {
  return place.key && index_.count(*place.key) > 0;
}

// The place that was cached longest ago, of texts that are on the device too, or of the others.
std::optional<int> CacheModel::FirstCached(bool on_device) const {
  const auto first = std::find_if(host_lru_.begin(), host_lru_.end(), [&](int place) {
    return OnDevice(places_.at(place)) == on_device;
  });
  return first == host_lru_.end() ? std::nullopt : std::optional<int>(*first);
}

void CacheModel::ToNewest(int place) {
  if (places_.at(place).holds > 0) return;
  host_lru_.remove(place);
  host_lru_.push_back(place);
}

void CacheModel::HoldPlace(int place) {
  ++places_.at(place).holds;
  host_lru_.remove(place);
}

void CacheModel::UnholdPlace(int place) {
  ModelPlace& state = places_.at(place);
  if (--state.holds > 0) return;
  if (state.key) {
    host_lru_.push_back(place);
  } else {
    places_.erase(place);
  }
}

// The text has no copy any more.
void CacheModel::DropCopy(const IndexKey& key) {
  const int place = copies_.at(key);
  copies_.erase(key);
  if (index_.count(key) == 0) hits_.erase(key);
  ModelPlace& state = places_.at(place);
  state.key.reset();
  if (state.holds > 0) return;
  host_lru_.remove(place);
  places_.erase(place);
}

// A text that is on the device no more is forgotten, with all that follow it.
void CacheModel::ForgetCopies(const IndexKey& top) {
  const bool whole = std::ssize(top.second) % config_.block_size == 0;
  std::vector<IndexKey> gone;
  for (const auto& [key, place] : copies_) {
    const bool below = whole && key.first == top.first && BeginsWith(key.second, top.second);
    if (below || key == top) gone.push_back(key);
  }
  for (const IndexKey& key : gone) DropCopy(key);
}

// --- Writes -----------------------------------------------------------------------------------

bool CacheModel::Write(const IndexKey& key) {
  if (copies_.count(key) > 0) return true;
  if (std::ssize(places_) == config_.host_blocks) {
    const std::optional<int> oldest = FirstCached(/*on_device=*/false);
    if (!oldest) return false;
    ++host_evicted_;
    ForgetCopies(*places_.at(*oldest).key);
  }
  places_[next_place_].key = key;
  copies_[key] = next_place_;
  host_lru_.push_back(next_place_);
  ++next_place_;
  ++offloaded_;
  return true;
}

// A text has got a block.
void CacheModel::IsCached(const IndexKey& key) {
  if (const auto copy = copies_.find(key); copy != copies_.end()) return ToNewest(copy->second);
  if (config_.host_blocks > 0 && config_.write == WritePolicy::kThrough) Write(key);
}

void CacheModel::CountHits(const ModelEntry& entry) {
  if (config_.host_blocks == 0 || config_.write != WritePolicy::kAfterHits) return;
  const ModelSequence& sequence = sequences_.at(entry.sequence);
  for (std::int64_t b = 1; b <= entry.hit / config_.block_size; ++b) {
    const IndexKey key = KeyOf(sequence, static_cast<std::size_t>(b));
    if (++hits_[key] >= config_.write_after_hits) Write(key);
  }
}

void CacheModel::KeepClean() {
  if (config_.host_blocks == 0 || config_.write != WritePolicy::kBack) return;
  const std::int64_t known = clean_ - (changes_ - looked_at_);
  if (known >= std::min((config_.clean_blocks + 1) / 2, std::ssize(lru_))) return;
  if (std::ssize(places_) == config_.host_blocks && !FirstCached(/*on_device=*/false)) return;
  clean_ = 0;
  looked_at_ = changes_;
  for (const int victim : Victims(std::min(config_.clean_blocks, std::ssize(lru_)))) {
    const ModelBlock& block = blocks_.at(victim);
    if (!Write({block.index_options, *block.index_tokens})) break;
    ++clean_;
  }
}

// A block goes, and with it what it held, if that has no copy.
void CacheModel::Evict(int block) {
  const IndexKey key{blocks_.at(block).index_options, *blocks_.at(block).index_tokens};
  const int side = blocks_.at(block).side;
  blocks_.erase(block);
  if (side != -1) {
    pages_.erase({key, static_cast<std::size_t>(side)});
    return;
  }
  index_.erase(key);
  if (const auto copy = copies_.find(key); copy != copies_.end()) return ToNewest(copy->second);
  hits_.erase(key);
  ForgetCopies(key);
}

// --- Matches ----------------------------------------------------------------------------------

// The texts of the longest match that are in the host tier alone, shortest first.
std::vector<IndexKey> CacheModel::HostPath(const ModelSequence& sequence) const {
  std::vector<IndexKey> path;
  const std::vector<TokenId>& prompt = sequence.prompt;
  if (prompt.empty() || !config_.reuse) return path;
  const ModelHit hit = Hit(prompt, sequence.options);
  const std::vector<TokenId> wanted(prompt.begin(), prompt.end() - 1);
  const std::int64_t size = config_.block_size;
  std::int64_t whole = std::ssize(hit.blocks) * size, best = hit.tokens;
  while (whole + size <= std::ssize(wanted)) {
    const IndexKey key{sequence.options, {wanted.begin(), wanted.begin() + whole + size}};
    if (copies_.count(key) == 0 || index_.count(key) > 0) break;
    path.push_back(key);
    whole += size;
    best = whole;
  }
  if (!config_.tokens) return path;
  std::optional<IndexKey> partial;
  for (const auto& [key, place] : copies_) {
    const std::vector<TokenId>& tokens = key.second;
    if (key.first != sequence.options || index_.count(key) > 0 || std::ssize(tokens) <= whole ||
        std::ssize(tokens) > whole + size) {
      continue;
    }
    const auto ends = std::mismatch(tokens.begin(), tokens.end(), wanted.begin(), wanted.end());
    const std::int64_t same = ends.first - tokens.begin();
    if (same <= whole || same < best || (same == best && (!partial || tokens >= wanted))) continue;
    best = same;
    partial = key;
  }
  if (partial) path.push_back(*partial);
  return path;
}

std::int64_t CacheModel::HostTokens(std::span<const TokenId> prompt,
                                    const std::string& options) const {
  ModelSequence sequence;
  sequence.options = options;
  sequence.prompt.assign(prompt.begin(), prompt.end());
  const std::vector<IndexKey> path = HostPath(sequence);
  if (path.empty()) return Hit(prompt, options).tokens;
  const std::vector<TokenId>& last = path.back().second;
  return std::mismatch(last.begin(), last.end(), prompt.begin(), prompt.end() - 1).first -
         last.begin();
}

// --- Suspend ----------------------------------------------------------------------------------

CacheModel::Move CacheModel::Suspend(SequenceId id) {
  Move move;
  const CacheModel before = *this;
  ModelSequence& sequence = sequences_.at(id);
  std::vector<std::optional<IndexKey>> keys(sequence.table.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {  // the blocks that are cached, from the first on
    if (!sequence.indexable) break;
    if (std::ssize(sequence.ids) < static_cast<std::int64_t>(i + 1) * config_.block_size) break;
    const IndexKey key = KeyOf(sequence, i + 1);
    const auto entry = index_.find(key);
    if (entry == index_.end() || entry->second != sequence.table[i]) break;
    keys[i] = key;
  }
  std::vector<std::optional<int>> places(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto copy = keys[i] ? copies_.find(*keys[i]) : copies_.end();
    if (copy == copies_.end()) {
      ++move.copies;
      continue;
    }
    places[i] = copy->second;
    HoldPlace(copy->second);
  }
  if (move.copies > config_.host_blocks - std::ssize(places_) + std::ssize(host_lru_)) {
    *this = before;
    move.code = Code::kResourceExhausted;
    return move;
  }
  for (std::int64_t more = move.copies - (config_.host_blocks - std::ssize(places_)); more > 0;
       --more) {
    const std::optional<int> alone = FirstCached(/*on_device=*/false);
    const IndexKey key = *places_.at(alone ? *alone : *FirstCached(/*on_device=*/true)).key;
    alone ? ForgetCopies(key) : DropCopy(key);
    if (!alone) clean_ = 0;
    ++host_evicted_;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!places[i]) {
      places[i] = next_place_++;
      places_[*places[i]] = {keys[i], 1, {}};
      if (keys[i]) copies_[*keys[i]] = *places[i];
    }
    sequence.places.push_back(*places[i]);
  }
  offloaded_ += move.copies;
  TrimTable(id, sequence, 0);
  sequence.suspended = true;
  if (move.copies > 0) ++next_transfer_;
  EnforceQuotas();
  KeepClean();
  return move;
}

// --- Fetch and Resume -------------------------------------------------------------------------

// The blocks of a transfer as far as they are known: of those that it copies to, none is.
ModelTransfer CacheModel::Decide(SequenceId id, bool resumes) const {
  const ModelSequence& sequence = sequences_.at(id);
  ModelTransfer transfer{TransferId{next_transfer_}, id, resumes, {}};
  const auto add = [&](int place) {
    const ModelPlace& state = places_.at(place);
    if (OnDevice(state)) {
      transfer.items.push_back({index_.at(*state.key), place, false});
    } else {
      transfer.items.push_back({state.incoming.value_or(0), place, !state.incoming});
    }
  };
  if (resumes) {
    for (const int place : sequence.places) add(place);
    return transfer;
  }
  const std::vector<IndexKey> path = HostPath(sequence);
  if (path.empty()) return transfer;
  for (const int block : Hit(sequence.prompt, sequence.options).blocks) {
    transfer.items.push_back({block, {}, false});
  }
  for (const IndexKey& key : path) add(copies_.at(key));
  return transfer;
}

CacheModel::Move CacheModel::CheckMove(SequenceId id, bool resumes) const {
  Move move;
  std::set<int> claimed;
  for (const ModelTransfer::Item& item : Decide(id, resumes).items) {
    move.copies += item.copied ? 1 : 0;
    move.waits |= item.place && !OnDevice(places_.at(*item.place));
    if (!item.copied && Idle(item.block)) claimed.insert(item.block);
  }
  const std::int64_t available = std::ssize(free_) + std::ssize(lru_) - std::ssize(claimed);
  if (move.copies > available) move.code = Code::kResourceExhausted;
  return move;
}

// Starts the transfer. Returns what is wrong with the blocks that the cache took, or "".
std::string CacheModel::Begin(ModelTransfer transfer) {
  ModelSequence& sequence = sequences_.at(transfer.sequence);
  std::int64_t from_idle = 0;
  for (const ModelTransfer::Item& item : transfer.items) {
    if (item.copied) {
      from_idle += free_.count(item.block) == 0 ? 1 : 0;
      continue;
    }
    ++blocks_.at(item.block).pins;
    LeaveLru(item.block);
  }
  const std::vector<int> victims = Victims(from_idle);
  std::set<int> taken;
  for (const ModelTransfer::Item& item : transfer.items) {
    if (!transfer.resumes && item.place) HoldPlace(*item.place);
    if (!item.copied) continue;
    const bool victim = std::find(victims.begin(), victims.end(), item.block) != victims.end();
    if (!victim && free_.count(item.block) == 0) return "a block neither free nor a victim";
    if (!taken.insert(item.block).second) return "a block taken twice";
  }
  if (from_idle > 0 && !std::includes(taken.begin(), taken.end(), free_.begin(), free_.end())) {
    return "a victim while blocks are free";
  }
  for (const int victim : victims) {
    LeaveLru(victim);
    Evict(victim);
    ++evicted_;
  }
  for (const ModelTransfer::Item& item : transfer.items) {
    if (!item.copied) continue;
    free_.erase(item.block);
    blocks_[item.block].pins = 1;
    blocks_[item.block].in_transit = true;
    places_.at(*item.place).incoming = item.block;
  }
  NotePeak();
  if (transfer.resumes) {
    sequence.places.clear();
    sequence.suspended = false;
  }
  const bool waits = std::any_of(transfer.items.begin(), transfer.items.end(), [&](const auto& i) {
    return i.place && !OnDevice(places_.at(*i.place));
  });
  if (waits) {
    sequence.transit = transfer.id;
    ++next_transfer_;
    transfers_.push_back(transfer);
  } else {
    Land(transfer);
  }
  EnforceQuotas();
  KeepClean();
  return "";
}

void CacheModel::Accept(TransferId id) {
  while (!transfers_.empty() && transfers_.front().id <= id) {
    const ModelTransfer transfer = transfers_.front();
    transfers_.pop_front();
    Land(transfer);
    EnforceQuotas();
    KeepClean();
  }
}

void CacheModel::Land(ModelTransfer transfer) {
  for (ModelTransfer::Item& item : transfer.items) {
    if (!item.copied) continue;
    ++onboarded_;
    blocks_.at(item.block).in_transit = false;
    places_.at(*item.place).incoming.reset();
  }
  for (ModelTransfer::Item& item : transfer.items) Attach(item);
  const auto open = sequences_.find(transfer.sequence);
  if (open != sequences_.end()) open->second.transit = TransferId::kNone;
  if (transfer.resumes && open != sequences_.end()) {
    for (const ModelTransfer::Item& item : transfer.items) {
      Hold(item.block);
      open->second.table.push_back(item.block);
    }
    open->second.retained = 0;  // blocks that were away have lost what they were given
    RetainBlocks(open->second);
  }
  std::reverse(transfer.items.begin(), transfer.items.end());
  for (const ModelTransfer::Item& item : transfer.items) {
    Unpin(item.block);
    if (item.place) UnholdPlace(*item.place);
  }
}

// The block gets the text whose copy it is; where another block got it meanwhile, that one counts.
void CacheModel::Attach(ModelTransfer::Item& item) {
  if (!item.place || !places_.at(*item.place).key) return;
  const IndexKey key = *places_.at(*item.place).key;
  if (const auto entry = index_.find(key); entry != index_.end()) {
    const int brought = item.block, cached = entry->second;
    if (cached == brought) return;
    const auto take = [&](ModelTransfer::Item& one) {
      ++blocks_.at(cached).pins;
      LeaveLru(cached);
      Unpin(brought);
      one.block = cached;
    };
    take(item);
    // Others that wait for the same copy hold what is below it too.
    for (ModelTransfer& other : transfers_) {
      for (ModelTransfer::Item& one : other.items) {
        if (one.block == brought) take(one);
      }
    }
    return;
  }
  index_[key] = item.block;
  blocks_.at(item.block).index_options = key.first;
  blocks_.at(item.block).index_tokens = key.second;
}

}  // namespace lariat::reference
