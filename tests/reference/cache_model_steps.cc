// SPDX-License-Identifier: Apache-2.0
// The life of a step in the model.
#include <algorithm>
#include <sstream>

#include "reference/cache_model.h"

namespace lariat::reference {

namespace {

bool PositionsOk(const StepItem& item, std::int64_t limit) {
  if (item.positions.empty()) return true;
  if (std::ssize(item.positions) != item.num_tokens) return false;
  return std::all_of(item.positions.begin(), item.positions.end(),
                     [&](std::int32_t p) { return p >= 0 && p < limit; });
}

bool Fits(std::int64_t rows, std::int64_t items, const StepShape& shape,
          const ModelConfig& config) {
  return rows <= config.max_tokens_per_step &&
         (shape.max_tokens == 0 ||
          (shape.max_tokens >= rows && shape.max_tokens <= config.max_tokens_per_step)) &&
         (shape.max_sequences == 0 ||
          (shape.max_sequences >= items && shape.max_sequences <= config.max_sequences));
}

}  // namespace

std::set<Code> CacheModel::CheckItems(std::span<const StepItem> items,
                                      const StepShape& shape) const {
  std::set<Code> codes;
  std::set<SequenceId> seen;
  std::int64_t rows = 0;
  bool invalid = items.empty();
  if (std::ssize(steps_) >= config_.max_steps_in_flight) codes.insert(Code::kNotReady);
  for (const StepItem& item : items) {
    const auto found = sequences_.find(item.sequence);
    if (found != sequences_.end() && found->second.away()) codes.insert(Code::kNotReady);
    if (found == sequences_.end() || !seen.insert(item.sequence).second || item.num_tokens < 1 ||
        item.num_drafts < 0 || item.num_drafts >= item.num_tokens ||
        !PositionsOk(item, config_.max_tokens_per_sequence)) {
      invalid = true;
      continue;
    }
    const ModelSequence& sequence = found->second;
    std::int64_t start = Planned(sequence, item.sequence), count = item.num_tokens;
    if (!sequence.planned && !sequence.prompt.empty()) {
      start = Match(sequence.prompt, sequence.options).tokens;
      count = std::min(count, std::ssize(sequence.prompt) - start);
    }
    if (start + count > sequence.max_length) invalid = true;
    if (DraftsPending(item.sequence)) codes.insert(Code::kNotReady);
    rows += count;
  }
  if (!Fits(rows, std::ssize(items), shape, config_)) invalid = true;
  if (invalid) codes.insert(Code::kInvalidArgument);
  return codes;
}

// Tries it on a copy.
ModelPlan CacheModel::TryPlan(std::span<const StepItem> items, bool copy_idle) const {
  ModelPlan plan;
  plan.copy_idle = copy_idle;
  CacheModel trial = *this;
  trial.before_plan_.reset();
  trial.PlanStep(items, copy_idle);
  bool never = false;     // one item alone is longer than the pool
  std::set<int> claimed;  // idle blocks that the items' hits take
  for (const ModelEntry& entry : trial.plan_->entries) {
    plan.failure.needed += entry.need;
    plan.failure.sequences.push_back({entry.sequence, entry.need});
    never |= BlocksOfAll(entry.start, entry.start + entry.count) > config_.total_blocks;
    std::vector<int> held;
    for (const std::vector<int>& table : entry.named) {
      held.insert(held.end(), table.begin(), table.end());
    }
    if (entry.copied) {
      held.push_back(entry.copied->source);
      const std::vector<int>& beside = entry.copied->side_sources;
      held.insert(held.end(), beside.begin(), beside.end());
    }
    for (const int block : held) {
      if (Idle(block)) claimed.insert(block);
    }
  }
  plan.failure.in_transit = std::count_if(
      blocks_.begin(), blocks_.end(), [](const auto& block) { return block.second.in_transit; });
  plan.failure.available = std::ssize(free_) + std::ssize(lru_) - std::ssize(claimed);
  if (plan.failure.needed <= plan.failure.available) {
    plan.codes.insert(Code::kOk);
  } else {
    plan.codes.insert(never ? Code::kNeverFits : Code::kResourceExhausted);
  }
  return plan;
}

ModelPlan CacheModel::CheckPlan(std::span<const StepItem> items, const StepShape& shape) const {
  ModelPlan plan;
  plan.codes = CheckItems(items, shape);
  if (!plan.codes.empty()) return plan;
  plan = TryPlan(items, /*copy_idle=*/true);
  if (plan.codes.count(Code::kOk) > 0) return plan;
  // An idle block that a hit is copied from is in the way: such hits are given up, where that does
  // not make the step longer than a step may be.
  CacheModel trial = *this;
  trial.before_plan_.reset();
  trial.PlanStep(items, /*copy_idle=*/true);
  bool in_the_way = false;
  for (const ModelEntry& entry : trial.plan_->entries) {
    in_the_way |= entry.copied && entry.copied->was_idle;
  }
  if (!in_the_way) return plan;
  trial = *this;
  trial.PlanStep(items, /*copy_idle=*/false);
  std::int64_t rows = 0;
  for (const ModelEntry& entry : trial.plan_->entries) rows += entry.count;
  if (!Fits(rows, std::ssize(items), shape, config_)) return plan;
  return TryPlan(items, /*copy_idle=*/false);
}

// Whether a longer sequence, which took a copy of the block, gets it back if its step is discarded.
bool CacheModel::MayGoBack(const ModelStep& plan, int block, std::int64_t start) const {
  const auto may = [&](const ModelStep& step) {
    return std::any_of(step.entries.begin(), step.entries.end(), [&](const ModelEntry& entry) {
      return entry.copied && !entry.copied->of_hit && entry.copied->source == block &&
             entry.start > start;
    });
  };
  return may(plan) || std::any_of(steps_.begin(), steps_.end(), may);
}

// Closed sequences do not count: what their live steps read was read, in stream order, before a
// later step writes.
std::int64_t CacheModel::OpenHolders(int block) const {
  std::int64_t holders =
      std::count_if(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
        const std::vector<int>& table = entry.second.table;
        return std::find(table.begin(), table.end(), block) != table.end();
      });
  for (const ModelTransfer& transfer : transfers_) {
    holders += std::count_if(transfer.items.begin(), transfer.items.end(),
                             [&](const auto& item) { return item.block == block; });
  }
  return holders;
}

// All claims precede all allocations; free blocks are taken before victims.
void CacheModel::PlanStep(std::span<const StepItem> items, bool copy_idle) {
  before_plan_ = std::make_shared<const CacheModel>(*this);
  ModelStep step;
  step.number = next_step_++;
  for (const StepItem& item : items) {
    ModelSequence& sequence = sequences_.at(item.sequence);
    ModelEntry entry;
    entry.sequence = item.sequence;
    entry.first_plan = !sequence.planned;
    entry.drafts = item.num_drafts;
    entry.count = item.num_tokens;
    if (entry.first_plan && !sequence.prompt.empty()) {
      ModelHit hit = Hit(sequence.prompt, sequence.options);
      const bool idle = hit.source && IdleSource(*hit.source);
      if (idle && !copy_idle && item.positions.empty()) CutToWindows(hit);
      entry.hit = hit.tokens;
      sequence.table = hit.blocks;
      sequence.passed = std::ssize(hit.blocks);
      for (const int block : sequence.table) Hold(block);
      HoldWindows(sequence, hit);
      if (hit.source) {
        entry.copied = ModelCopy{hit.blocks.size(), *hit.source, 0, true, idle, {}, {}};
        for (std::size_t side = 0; side < config_.sides.size(); ++side) {
          entry.copied->side_sources.push_back(Beside(*hit.source, side));
        }
        PinSources(*entry.copied, item.sequence, step);
      }
      sequence.base = entry.hit;
      entry.count = std::min(entry.count, std::ssize(sequence.prompt) - entry.hit);
    }
    sequence.planned = true;
    entry.start = Planned(sequence, item.sequence);
    entry.left = entry.count;
    step.entries.push_back(entry);
  }
  std::int64_t row = 0;
  for (ModelEntry& entry : step.entries) {
    ModelSequence& sequence = sequences_.at(entry.sequence);
    entry.first_row = row;
    row += entry.count;
    const auto take = [&] {
      const int block = next_placeholder_--;
      blocks_[block].refs = 1;
      blocks_[block].reserved_by = step.number;
      step.fresh.push_back(block);
      ++entry.need;
      return block;
    };
    const std::size_t first = entry.start / config_.block_size;
    if (!entry.copied && entry.start % config_.block_size != 0) {
      const int source = sequence.table[first];
      if (OpenHolders(source) > 1 || blocks_.at(source).index_tokens ||
          MayGoBack(step, source, entry.start)) {
        entry.copied = ModelCopy{first, source, 0, false, false, {}, {}};
        for (const std::vector<int>& side : sequence.sides) {
          entry.copied->side_sources.push_back(side[first]);
        }
        PinSources(*entry.copied, entry.sequence, step);
        for (const int block : entry.copied->sources()) --blocks_.at(block).refs;
      }
    }
    if (entry.copied) {
      sequence.table.resize(std::max(sequence.table.size(), first + 1));
      sequence.table[first] = entry.copied->copy = take();
      for (std::vector<int>& side : sequence.sides) {
        side.resize(sequence.table.size());
        entry.copied->side_copies.push_back(take());
        side[first] = entry.copied->side_copies.back();
      }
    }
    while (std::ssize(sequence.table) < BlocksFor(entry.start + entry.count)) {
      sequence.table.push_back(take());
      for (std::vector<int>& side : sequence.sides) side.push_back(take());
    }
    entry.named = {sequence.table};
    entry.named.insert(entry.named.end(), sequence.sides.begin(), sequence.sides.end());
  }
  free_taken_ = std::min(std::ssize(free_), std::ssize(step.fresh));
  step.victims = Victims(std::ssize(step.fresh) - free_taken_);
  for (const int block : step.victims) LeaveLru(block);
  plan_ = step;
  NotePeak();
}

// A step that copies from blocks holds them until it ends.
void CacheModel::PinSources(const ModelCopy& copy, SequenceId id, ModelStep& step) {
  for (const int block : copy.sources()) {
    LeaveLru(block);
    ++blocks_.at(block).pins;
    step.releases.push_back({block, id});
  }
}

void CacheModel::DropPlan() {
  const std::int64_t peak = peak_high_;
  const CacheModel before = *before_plan_;
  *this = before;
  peak_high_ = peak;
}

std::string CacheModel::Bind(const std::map<int, int>& real) {
  ModelStep& step = *plan_;
  std::set<int> taken;
  for (const auto& [placeholder, block] : real) {
    const bool victim =
        std::find(step.victims.begin(), step.victims.end(), block) != step.victims.end();
    if (!victim && free_.count(block) == 0) {
      std::ostringstream wrong;
      wrong << "block " << block << " was neither free nor next to be evicted; those were:";
      for (const int next : step.victims) wrong << ' ' << next;
      wrong << ", then:";
      for (const int later : lru_) wrong << ' ' << later;
      return wrong.str();
    }
    if (!taken.insert(block).second) return "block " + std::to_string(block) + " taken twice";
  }
  for (const int block : step.victims) {
    if (taken.count(block) == 0) return "victim " + std::to_string(block) + " was not used";
    Evict(block);
    ++evicted_;
  }
  const auto bind = [&](int& block) {
    if (block < -1) block = real.at(block);
  };
  for (const auto& [placeholder, block] : real) {
    free_.erase(block);
    blocks_[block] = blocks_.at(placeholder);
    blocks_.erase(placeholder);
  }
  for (ModelEntry& entry : step.entries) {
    for (std::vector<int>& table : entry.named) {
      for (int& block : table) bind(block);
    }
    ModelSequence& sequence = sequences_.at(entry.sequence);
    for (int& block : sequence.table) bind(block);
    for (std::vector<int>& side : sequence.sides) {
      for (int& block : side) bind(block);
    }
    if (entry.copied) {
      bind(entry.copied->copy);
      for (int& block : entry.copied->side_copies) bind(block);
      copied_ += std::ssize(entry.copied->sources());
    }
    hit_tokens_ += entry.hit;
    if (entry.first_plan) CountHits(entry);
  }
  free_taken_ = 0;
  steps_.push_back(step);
  plan_.reset();
  before_plan_.reset();
  NotePeak();
  KeepClean();
  return "";
}

// What a discarded step lets go of waits for the steps before it that have the sequence too.
void CacheModel::EndReleases(const ModelStep& step, bool discarded) {
  for (const auto& release : step.releases) {
    ModelStep* const earlier = discarded ? LastStepOf(release.second) : nullptr;
    if (earlier != nullptr) {
      earlier->releases.push_back(release);
    } else {
      Unpin(release.first);
    }
  }
}

void CacheModel::EndOfClosed(SequenceId id) {
  const auto closed = closed_.find(id);
  if (closed == closed_.end() || InLiveStep(id)) return;
  PublishTail(id, closed->second);
  TrimTable(id, closed->second, 0);
  const std::vector<int>& places = closed->second.places;
  for (auto place = places.rbegin(); place != places.rend(); ++place) UnholdPlace(*place);
  closed_.erase(closed);
}

std::int64_t CacheModel::KeptPastPrompt(const ModelEntry& entry, std::int64_t kept) const {
  const ModelSequence& sequence = sequences_.at(entry.sequence);
  const std::int64_t end = entry.start + std::min(kept, entry.left);
  const std::int64_t from = std::max<std::int64_t>(entry.start, std::ssize(sequence.prompt));
  return std::max<std::int64_t>(end - from, 0);
}

void CacheModel::Commit(std::size_t index, const std::map<SequenceId, Keep>& keeps) {
  const ModelStep step = steps_[index];
  const std::int64_t used = std::ssize(blocks_) - std::ssize(lru_), merged = merged_;
  steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(index));
  for (const ModelEntry& entry : step.entries) {
    const auto open = sequences_.find(entry.sequence);
    if (open != sequences_.end()) {
      ModelSequence& sequence = open->second;
      const auto keep = keeps.find(entry.sequence);
      const std::int64_t rows =
          keep == keeps.end() ? entry.left : std::min(keep->second.kept, entry.left);
      if (rows > 0) sequence.base = entry.start + rows;
      sequence.settled = sequence.base;
      committed_ += rows;
      for (std::int64_t n = std::ssize(sequence.truth); n < sequence.settled; ++n) {
        if (n < std::ssize(sequence.prompt)) {
          sequence.truth.push_back(sequence.prompt[n]);
        } else if (keep != keeps.end()) {
          const std::int64_t from =
              std::max<std::int64_t>(entry.start, std::ssize(sequence.prompt));
          sequence.truth.push_back(keep->second.truth.at(n - from));
        }
      }
      if (keep != keeps.end()) {
        sequence.ids.insert(sequence.ids.end(), keep->second.truth.begin(),
                            keep->second.truth.begin() + keep->second.given);
      }
      for (const int block : sequence.table) {
        if (blocks_.at(block).reserved_by == step.number) blocks_.at(block).reserved_by = 0;
      }
      for (const std::vector<int>& side : sequence.sides) {
        for (const int block : side) {
          if (block != -1 && blocks_.at(block).reserved_by == step.number) {
            blocks_.at(block).reserved_by = 0;
          }
        }
      }
      TrimTable(entry.sequence, sequence, Length(sequence, entry.sequence));
      Publish(entry.sequence, sequence);
      SlideOut(sequence);
    }
  }
  EndReleases(step, /*discarded=*/false);
  for (const ModelEntry& entry : step.entries) EndOfClosed(entry.sequence);
  EnforceQuotas();
  // In which order blocks are claimed and given back inside the call is not said.
  peak_high_ = std::max(peak_high_, used + merged_ - merged);
  NotePeak();
  KeepClean();
}

void CacheModel::Discard(std::size_t index) {
  const ModelStep step = steps_[index];
  steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(index));
  for (const ModelEntry& entry : step.entries) {  // the source stands where the copy stood
    const auto open = sequences_.find(entry.sequence);
    if (open == sequences_.end() || !entry.copied || entry.copied->of_hit) continue;
    std::vector<int>& table = open->second.table;
    const ModelCopy& copy = *entry.copied;
    if (copy.index >= table.size() || table[copy.index] != copy.copy) continue;
    Hold(copy.source);
    table[copy.index] = copy.source;
    Drop(copy.copy);
    for (std::size_t side = 0; side < config_.sides.size(); ++side) {
      Hold(copy.side_sources[side]);
      open->second.sides[side][copy.index] = copy.side_sources[side];
      Drop(copy.side_copies[side]);
    }
  }
  EndReleases(step, /*discarded=*/true);
  for (const ModelEntry& entry : step.entries) {
    const auto open = sequences_.find(entry.sequence);
    if (open == sequences_.end()) continue;
    ModelSequence& sequence = open->second;
    if (entry.first_plan) {
      sequence.planned = false;
      sequence.base = 0;
      sequence.passed = 0;
      sequence.indexable = true;
    }
    // What the step took is needed by nobody else.
    const std::int64_t length = Length(sequence, entry.sequence);
    while (std::ssize(sequence.table) > BlocksFor(length)) {
      for (std::vector<int>& side : sequence.sides) {
        if (side.back() != -1) Drop(side.back());
        side.pop_back();
      }
      Drop(sequence.table.back());
      sequence.table.pop_back();
    }
  }
  for (const ModelEntry& entry : step.entries) EndOfClosed(entry.sequence);
  EnforceQuotas();
  KeepClean();
}

bool CacheModel::SharesLater(std::size_t step, bool open_only) const {
  for (std::size_t later = step + 1; later < steps_.size(); ++later) {
    for (const ModelEntry& mine : steps_[step].entries) {
      for (const ModelEntry& other : steps_[later].entries) {
        if (mine.sequence != other.sequence) continue;
        if (!open_only || sequences_.count(mine.sequence) > 0) return true;
      }
    }
  }
  return false;
}

}  // namespace lariat::reference
