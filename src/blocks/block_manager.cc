// SPDX-License-Identifier: Apache-2.0
// Sequences: opening, forking, shortening, ending.
#include "blocks/block_manager.h"

#include <algorithm>
#include <bit>
#include <string>

namespace lariat::blocks {

BlockManager::BlockManager(const ManagerConfig& config)
    : config_(config),
      block_shift_(std::has_single_bit(static_cast<unsigned>(config.block_size))
                       ? std::countr_zero(static_cast<unsigned>(config.block_size))
                       : -1),
      pool_(config.num_blocks, config.unlimited),
      idle_(config.eviction),
      events_(config.max_events, config.block_size),
      index_(config.block_size, events_.on() ? &events_ : nullptr),
      sides_(config.sides),
      sequences_(config.max_sequences, config.max_tokens_per_sequence,
                 (config.max_tokens_per_sequence + config.block_size - 1) / config.block_size,
                 config.sides.size()),
      host_(config.host_blocks),
      memo_(static_cast<std::size_t>(config.max_tokens_per_sequence),
            static_cast<std::size_t>(config.max_tokens_per_sequence / config.block_size)) {
  if (!config.unlimited) {
    const auto blocks = static_cast<std::size_t>(config.num_blocks);
    index_.Reserve(blocks, static_cast<std::size_t>(config.host_blocks));
    idle_.Grow(blocks);
    sides_.Grow(blocks, has_tier() ? static_cast<std::size_t>(index_.end()) : 0);
    pins_.resize(blocks);
    if (has_tier()) {
      next_victims_.reserve(static_cast<std::size_t>(config.clean_blocks));
      read_by_.resize(blocks);
      writes_.reserve(blocks);
    }
  }
  live_.reserve(static_cast<std::size_t>(config.max_steps_in_flight));
}

Status BlockManager::CheckIdle() const {
  if (plan_ == nullptr) return {};
  return NotReady("step " + std::to_string(plan_->id) +
                  " is planned but not prepared: prepare or drop it first");
}

Result<Sequence*> BlockManager::FindSound(SequenceId id) {
  Sequence* sequence = sequences_.Find(id);
  if (sequence == nullptr) return InvalidArgument(NameOf(id) + " is not open");
  if (sequence->corrupt) {
    return CorruptData(NameOf(id) +
                       " holds a block with a device fault, or lost one that was not copied: "
                       "close it");
  }
  return sequence;
}

Result<Sequence*> BlockManager::FindUsable(SequenceId id) {
  Sequence* const sequence = sequences_.Find(id);
  const bool here = sequence != nullptr && !sequence->suspended && !sequence->in_transit;
  if (here && !sequence->corrupt) return sequence;
  Result<Sequence*> found = FindSound(id);
  if (!found.ok()) return found;
  return CheckHere(*sequence);
}

// kNotReady for a sequence that is not on the device, or not all of it.
Status BlockManager::CheckHere(const Sequence& sequence) const {
  if (sequence.suspended) return NotReady(NameOf(sequence.id) + " is suspended: resume it first");
  if (!sequence.in_transit) return {};
  return NotReady(NameOf(sequence.id) + " is in transit: accept transfer " +
                  std::to_string(static_cast<std::uint64_t>(TransferOf(sequence))) + " first");
}

Result<const Sequence*> BlockManager::Get(SequenceId id) const {
  Result<Sequence*> found = const_cast<BlockManager*>(this)->FindSound(id);
  if (!found.ok()) return found.status();
  return static_cast<const Sequence*>(*found);
}

Result<const Sequence*> BlockManager::GetResident(SequenceId id) const {
  Result<Sequence*> found = const_cast<BlockManager*>(this)->FindUsable(id);
  if (!found.ok()) return found.status();
  return static_cast<const Sequence*>(*found);
}

Result<SequenceId> BlockManager::Open(std::span<const TokenId> prompt, const OpenOptions& options,
                                      std::uint32_t rope_choice) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const std::int64_t limit = config_.max_tokens_per_sequence;
  if (options.max_length < 0 || options.max_length > limit) {
    return InvalidArgument("max_length " + std::to_string(options.max_length) +
                           ": allowed are 0 (the cache's limit) to " + std::to_string(limit));
  }
  const std::int64_t max_length = options.max_length == 0 ? limit : options.max_length;
  if (static_cast<std::int64_t>(prompt.size()) > max_length) {
    return InvalidArgument("prompt of " + std::to_string(prompt.size()) +
                           " tokens is longer than max_length " + std::to_string(max_length));
  }
  if (sequences_.open_count() == sequences_.max_open()) {
    return ResourceExhausted("max_sequences " + std::to_string(sequences_.max_open()) +
                             " are open: close one first");
  }
  if (Status retention = CheckRetention(options.retention); !retention.ok()) return retention;
  std::vector<Retention> retention(options.retention.begin(), options.retention.end());
  const RootId root = index_.AcquireRoot(options, rope_choice);
  const std::size_t remembered = Remembered(prompt, root);
  Sequence* opened = nullptr;
  try {
    opened = &sequences_.Open(remembered);
  } catch (...) {
    index_.DropRoot(root);
    throw;
  }
  // Reserved when the entry was made: nothing below allocates.
  opened->root = root;
  opened->retains = !retention.empty();
  opened->retention = std::move(retention);
  opened->rope_choice = rope_choice;
  opened->keyed = !options.salt.empty() || !options.extra_keys.empty();
  opened->max_length = max_length;
  opened->prompt_length = static_cast<std::int64_t>(prompt.size());
  opened->ids.assign(prompt);
  opened->match_path.assign(memo_.path.begin(), memo_.path.begin() + std::ptrdiff_t(remembered));
  NoteGenerations(*opened);
  return opened->id;
}

Status BlockManager::Close(SequenceId id) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  Sequence* sequence = sequences_.Find(id);
  if (sequence == nullptr) return InvalidArgument(NameOf(id) + " is not open");
  sequences_.Retire(*sequence);
  if (sequence->live_steps == 0) {
    DropSequence(*sequence);
  } else {
    sequence->pinned = true;
    ForEachHeld(*sequence, [&](BlockId block) { pool_.Pin(block); });
  }
  EnforceQuotas();
  KeepClean();
  return {};
}

Status BlockManager::Truncate(SequenceId id, std::int64_t length) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  Result<Sequence*> found = FindUsable(id);
  if (!found.ok()) return found.status();
  if (length < 0) {
    return InvalidArgument("length " + std::to_string(length) + ": allowed are 0 and more");
  }
  Sequence& sequence = **found;
  if (length >= sequence.reach) return {};
  if (Status in_window = CheckLength(sequence, length); !in_window.ok()) return in_window;
  if (sequence.live_steps > 0) {
    ReserveReleases((std::ssize(sequence.table) - BlocksFor(length)) * GroupCount());
  }
  sequence.reach = length;
  sequence.planned = std::min<std::int64_t>(sequence.planned, length);
  sequence.settled = std::min<std::int64_t>(sequence.settled, length);
  sequence.prompt_length = std::min<std::int64_t>(sequence.prompt_length, length);
  if (sequence.known() > length) sequence.ids.shorten(static_cast<std::size_t>(length));
  sequence.indexed = std::min<std::int64_t>(sequence.indexed, length / config_.block_size);
  sequence.retained = std::min<std::int64_t>(sequence.retained, length / config_.block_size);
  if (length == 0) sequence.indexable = true;  // nothing of what kept it out is left
  for (PlannedStep* step : live_) {
    for (std::size_t i = 0; i < step->rows.size(); ++i) {
      if (step->rows[i].sequence != id) continue;
      step->items[i].limit =
          static_cast<std::int32_t>(std::min<std::int64_t>(step->items[i].limit, length));
    }
  }
  ShrinkTable(sequence, BlocksFor(length));
  EnforceQuotas();
  KeepClean();
  return {};
}

Result<SequenceId> BlockManager::Fork(SequenceId id, std::int64_t length) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  Result<Sequence*> found = FindUsable(id);
  if (!found.ok()) return found.status();
  Sequence& parent = **found;
  if (length < -1 || length > parent.settled) {
    return InvalidArgument("length " + std::to_string(length) + ": allowed are -1 (all) to " +
                           std::to_string(parent.settled) + ", the settled tokens of " +
                           NameOf(id));
  }
  if (parent.live_steps > 0) return NotReady(NameOf(id) + " is in a live step: end the step first");
  if (sequences_.open_count() == sequences_.max_open()) {
    return ResourceExhausted("max_sequences " + std::to_string(sequences_.max_open()) +
                             " are open: close one first");
  }
  if (length == -1) length = parent.settled;
  if (Status in_window = CheckLength(parent, length); !in_window.ok()) return in_window;
  std::vector<Retention> retention = parent.retention;
  Sequence& child = sequences_.Open();  // the last thing that can fail
  index_.AddRootReference(parent.root);
  child.root = parent.root;
  child.retains = parent.retains;
  child.retention = std::move(retention);
  child.retained = std::min<std::int64_t>(parent.retained, length / config_.block_size);
  child.rope_choice = parent.rope_choice;
  child.keyed = parent.keyed;
  child.max_length = parent.max_length;
  child.started = true;
  child.indexable = parent.indexable || length == 0;
  child.prompt_length = std::min<std::int64_t>(parent.prompt_length, length);
  child.settled = child.planned = child.reach = length;
  child.indexed = std::min<std::int64_t>(parent.indexed, length / config_.block_size);
  child.ids.assign(
      parent.ids.all().first(static_cast<std::size_t>(std::min(parent.known(), length))));
  const auto blocks = static_cast<std::size_t>(BlocksFor(length));
  child.table.assign(std::span(parent.table).first(blocks));
  for (std::size_t side = 0; side < sides_.count(); ++side) {
    const SideTable& from = parent.sides[side];
    child.sides[side].table.assign(std::span(from.table).first(blocks));
    child.sides[side].slid = std::min(from.slid, BlocksFor(length));
  }
  ForEachHeld(child, [&](BlockId block) { pool_.Claim(block); });
  parent.owns_tail = false;
  return child.id;
}

Status BlockManager::SetTokens(SequenceId id, std::span<const TokenId> tokens) {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  Result<Sequence*> found = FindUsable(id);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  const std::int64_t missing = std::max<std::int64_t>(0, sequence.settled - sequence.known());
  if (static_cast<std::int64_t>(tokens.size()) > missing) {
    return InvalidArgument("tokens: " + std::to_string(tokens.size()) + " ids for " + NameOf(id) +
                           ", whose settled rows lack " + std::to_string(missing));
  }
  if (sequence.live_steps > 0) {
    ReserveReleases(
        BlocksToIndex(sequence, sequence.settled, sequence.known() + std::ssize(tokens)) *
        GroupCount());
  }
  sequence.ids.append(tokens);
  IndexFullBlocks(sequence);
  EnforceQuotas();
  KeepClean();
  return {};
}

Status BlockManager::Clear() {
  if (Status idle = CheckIdle(); !idle.ok()) return idle;
  const EventLog::Clearing clearing(events_);
  for (HostId host = 0; host < config_.host_blocks; ++host) {
    if (host_.node(host) != kNoNode) DropPlaces(host_.node(host));
  }
  index_.Clear();
  sides_.Clear();
  for (BlockId idle; (idle = idle_.Victim()) != kNoBlock;) {
    idle_.Remove(idle);
    pool_.FreeIdle(idle);
  }
  for (BlockId b = 0; b < static_cast<BlockId>(pins_.size()); ++b) {
    idle_.Leave(b);
    DropPins(b);
  }
  // What sequences hold was computed with the old weights.
  KeepOut([](const Sequence&) { return true; });
  return {};
}

void BlockManager::FillStats(Stats& stats) const {
  stats.total_blocks = pool_.total();
  stats.free_blocks = pool_.count(BlockState::kFree);
  stats.idle_blocks = pool_.count(BlockState::kIdle);
  stats.held_blocks = pool_.count(BlockState::kHeld);
  stats.reserved_blocks = pool_.count(BlockState::kReserved);
  stats.peak_used_blocks = pool_.peak_used();
  stats.indexed_blocks = index_.size() + sides_.size();
  stats.pinned_blocks = pinned_;
  stats.evicted_blocks = evicted_;
  stats.quota_evicted_blocks = quota_evicted_;
  stats.expired_blocks = expired_;
  stats.merged_blocks = merged_;
  stats.copied_blocks = copied_;
  stats.hit_tokens = hit_tokens_;
  stats.tokens_committed = tokens_committed_;
  stats.sequences = sequences_.open_count();
  stats.live_steps = live_steps();
  stats.events = static_cast<std::int64_t>(events_.last_number());
  stats.lost_events = events_.lost();
  stats.in_transit_blocks = pool_.count(BlockState::kInTransit);
  if (!has_tier()) return;
  stats.host_blocks = host_.total();
  stats.host_used = host_.total() - host_.free();
  stats.host_held = host_.held();
  stats.offloaded_blocks = offloaded_;
  stats.onboarded_blocks = onboarded_;
  stats.host_evicted = host_evicted_;
}

}  // namespace lariat::blocks
