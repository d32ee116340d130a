// SPDX-License-Identifier: Apache-2.0
// Looking at the whole state, and taking the effects of a device fault out of it.
#include <algorithm>
#include <sstream>

#include "blocks/block_manager.h"
#include "lariat/block_hash.h"

namespace lariat::blocks {

namespace {

enum class Mark : std::uint8_t { kUnknown, kClean, kDirty };

// Marks every indexed block below a dirty one dirty.
void MarkBelow(const PrefixIndex& index, std::vector<Mark>& marks) {
  std::vector<BlockId> path;
  for (BlockId b = 0; b < static_cast<BlockId>(marks.size()); ++b) {
    if (!index.contains(b)) continue;
    path.clear();
    std::int32_t at = b;
    while (at >= 0 && marks[at] == Mark::kUnknown) {
      path.push_back(at);
      at = index.contains(at) ? index.parent(at) : -2;
    }
    const Mark mark = at >= 0 ? marks[at] : Mark::kClean;
    for (const BlockId above : path) marks[above] = mark;
  }
}

}  // namespace

void BlockManager::Quarantine(const PlannedStep& step, std::span<const PlannedStep* const> later) {
  std::vector<Mark> marks(static_cast<std::size_t>(pool_.total()), Mark::kUnknown);
  for (const BlockStamp& written : step.written) {
    // A block that was taken again since holds something else now.
    if (pool_.generation(written.block) == written.generation) {
      marks[written.block] = Mark::kDirty;
    }
  }
  for (const PlannedStep* after : later) {
    for (const CowCopy& copy : after->copies) {
      const bool dirty = marks[copy.source.block] == Mark::kDirty &&
                         pool_.generation(copy.source.block) == copy.source.generation;
      if (dirty && pool_.generation(copy.target.block) == copy.target.generation) {
        marks[copy.target.block] = Mark::kDirty;
      }
    }
  }
  MarkBelow(index_, marks);
  for (BlockId b = 0; b < static_cast<BlockId>(marks.size()); ++b) {
    if (marks[b] == Mark::kDirty && index_.contains(b)) Forget(b);
  }
  EnforceQuotas();
  for (const auto& sequence : sequences_.entries()) {
    const bool dirty = std::any_of(sequence->table.begin(), sequence->table.end(),
                                   [&](BlockId b) { return marks[b] == Mark::kDirty; });
    if (!dirty) continue;
    sequence->corrupt = true;
    sequence->indexable = false;
  }
}

std::string BlockManager::Snapshot() const {
  std::ostringstream out;
  out << "free";
  for (const BlockId b : pool_.FreeList()) out << ' ' << b;
  out << "\nfresh " << pool_.next_fresh() << " of " << pool_.total() << "\nidle";
  std::vector<BlockId> idle;
  idle_.ByAge(idle);
  for (const BlockId b : idle) out << ' ' << b;
  out << "\nclock " << idle_.now() << '\n';
  for (const auto& [salt, lane] : idle_.quotas()) {
    const IdleBlocks::Quota& quota = idle_.quota(lane);
    out << "quota " << salt << " lane " << lane << " limit " << quota.limit << " idle "
        << quota.idle << '\n';
  }
  for (BlockId b = 0; b < static_cast<BlockId>(pool_.next_fresh()); ++b) {
    out << "block " << b << " state " << static_cast<int>(pool_.state(b)) << " references "
        << pool_.references(b) << " generation " << pool_.generation(b);
    if (pins_[b].through > 0) out << " pins " << pins_[b].through << " ends " << pins_[b].ends;
    if (index_.contains(b)) {
      out << " parent " << index_.parent(b) << " tokens";
      for (const TokenId token : index_.tokens(b)) out << ' ' << token;
    }
    out << idle_.Describe(b);
    out << '\n';
  }
  for (const auto& entry : sequences_.entries()) {
    const Sequence& s = *entry;
    if (s.id == SequenceId::kNone) continue;
    out << "sequence " << static_cast<std::uint64_t>(s.id) << (s.open ? " open" : " closed")
        << (s.started ? " started" : "") << (s.indexable ? "" : " unindexable")
        << (s.corrupt ? " corrupt" : "") << " row " << s.row << " root " << s.root << " max "
        << s.max_length << " prompt " << s.prompt_length << " settled " << s.settled << " planned "
        << s.planned << " reach " << s.reach << " indexed " << s.indexed << " live " << s.live_steps
        << " table";
    for (const BlockId b : s.table) out << ' ' << b;
    out << " ids";
    for (const TokenId token : s.ids) out << ' ' << token;
    if (s.lane >= 0) out << " lane " << s.lane;
    for (const Retention& range : s.retention) {
      out << " retains " << range.first_token << ".." << range.last_token << ':' << range.priority
          << '/' << range.ttl_ms;
    }
    if (!s.retention.empty()) out << " given " << s.retained;
    out << '\n';
  }
  for (const PlannedStep* step : live_) {
    out << "live " << step->id << " rows";
    for (std::size_t i = 0; i < step->rows.size(); ++i) {
      out << ' ' << static_cast<std::uint64_t>(step->rows[i].sequence) << ':' << step->rows[i].start
          << '+' << step->rows[i].count << '<' << step->items[i].limit;
    }
    out << " releases";
    for (const StepRelease& release : step->releases) out << ' ' << release.block;
    out << '\n';
  }
  out << "plan " << (plan_ == nullptr ? 0 : plan_->id) << " next " << next_step_ << '\n';
  return out.str();
}

Result<std::int64_t> BlockManager::BlockHashes(SequenceId id, std::span<BlockHash> hashes) const {
  const Result<const Sequence*> found = Get(id);
  if (!found.ok()) return found.status();
  const Sequence& sequence = **found;
  const std::int64_t count = std::min(sequence.indexed, std::ssize(hashes));
  const auto size = static_cast<std::size_t>(config_.block_size);
  BlockHash hash = HashRoot(index_.OptionsOf(sequence.root), sequence.rope_choice);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    hash = HashBlock(hash, std::span(sequence.ids).subspan(i * size, size));
    hashes[i] = hash;
  }
  return count;
}

}  // namespace lariat::blocks
