// SPDX-License-Identifier: Apache-2.0
// Looking at the whole state.
#include "base/text.h"
#include "blocks/block_manager.h"
#include "lariat/block_hash.h"

namespace lariat::blocks {

void BlockManager::PrintNode(NodeId node, TextBuilder& out) const {
  out << " parent " << index_.parent(node) << " tokens";
  for (const TokenId token : index_.tokens(node)) out << ' ' << token;
  if (has_tier()) {
    out << " node " << node << " host " << index_.host(node) << " hits " << index_.hits(node);
  }
}

void BlockManager::PrintTier(TextBuilder& out) const {
  out << "host free";
  for (const HostId h : host_.FreeList()) out << ' ' << h;
  out << "\nhost alone";
  for (HostId h = host_.oldest(HostPool::kAlone); h != kNoHost; h = host_.next(h)) out << ' ' << h;
  out << "\nhost and device";
  for (HostId h = host_.oldest(HostPool::kOnDevice); h != kNoHost; h = host_.next(h)) {
    out << ' ' << h;
  }
  out << "\nknown to be clean " << clean_ - (idle_.changes() - looked_at_) << '\n';
  for (HostId h = 0; h < static_cast<HostId>(host_.total()); ++h) {
    if (!host_.used(h)) continue;
    const NodeId node = host_.node(h);
    out << "place " << h << " holds " << host_.holds(h) << " node " << node;
    if (host_.side(h) >= 0) out << " side " << host_.side(h);
    if (node != kNoNode && index_.block(node) == kNoBlock) PrintNode(node, out);
    out << '\n';
  }
  for (const Transfer& transfer : transfers_) {
    out << "transfer " << static_cast<std::uint64_t>(transfer.id) << " of "
        << static_cast<std::uint64_t>(transfer.sequence) << (transfer.resumes ? " resumes" : "");
    for (const Transfer::Item& item : transfer.items) {
      out << ' ' << item.block << ':' << item.host << (item.copied ? "+" : "");
    }
    out << '\n';
  }
  out << "next transfer " << next_transfer_ << '\n';
}

std::string BlockManager::Snapshot() const {
  TextBuilder out;
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
    if (index_.contains(b)) PrintNode(index_.node(b), out);
    if (sides_.owner(b) != kNoBlock) out << " beside " << sides_.owner(b);
    out << idle_.Describe(b);
    out << '\n';
  }
  if (has_tier()) PrintTier(out);
  for (const auto& entry : sequences_.entries()) {
    const Sequence& s = *entry;
    if (s.id == SequenceId::kNone) continue;
    out << "sequence " << static_cast<std::uint64_t>(s.id) << (s.open ? " open" : " closed")
        << (s.started ? " started" : "") << (s.indexable ? "" : " unindexable")
        << (s.corrupt ? " corrupt" : "") << " row " << s.row << " root " << s.root << " max "
        << s.max_length << " prompt " << s.prompt_length << " settled " << s.settled << " planned "
        << s.planned << " reach " << s.reach << " indexed " << s.indexed << " live "
        << PreparedSteps(s) << " table";
    for (const BlockId b : s.table) out << ' ' << b;
    for (const SideTable& side : s.sides) {
      out << " side";
      for (const BlockId b : side.table) out << ' ' << b;
    }
    if (s.in_transit) out << " transit " << static_cast<std::uint64_t>(TransferOf(s));
    if (s.suspended) {
      out << " places";
      ForEachPlace(s, [&](HostId h) { out << ' ' << h; });
    }
    out << " ids";
    for (const TokenId token : s.ids.all()) out << ' ' << token;
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
  if (events_.on()) {
    out << "events " << events_.last_number() << " waiting " << events_.waiting() << " lost "
        << events_.lost() << '\n';
  }
  out << "plan " << (plan_ == nullptr ? 0 : plan_->id) << " next " << next_step_ << '\n';
  return out.Take();
}

Result<std::int64_t> BlockManager::BlockHashes(SequenceId id, std::span<BlockHash> hashes) const {
  const Result<const Sequence*> found = Get(id);
  if (!found.ok()) return found.status();
  const Sequence& sequence = **found;
  const std::int64_t count = std::min<std::int64_t>(sequence.indexed, std::ssize(hashes));
  const auto size = static_cast<std::size_t>(config_.block_size);
  BlockHash hash = HashRoot(index_.OptionsOf(sequence.root), sequence.rope_choice);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    hash = HashBlock(hash, sequence.ids.all().subspan(i * size, size));
    hashes[i] = hash;
  }
  return count;
}

// cursor: counts nodes, of each its groups, of each of these its tiers
Result<std::int64_t> BlockManager::ListBlocks(std::int64_t& cursor,
                                              std::span<KVEvent> events) const {
  if (!events_.on()) {
    return Unsupported("max_events 0: the cache names no blocks; allowed are 1 and more");
  }
  if (cursor < 0) {
    return InvalidArgument("cursor " + std::to_string(cursor) +
                           ": allowed are 0 and what a call has set it to");
  }
  const std::int64_t end = 2 * GroupCount() * index_.end();
  std::size_t count = 0;
  for (; cursor < end && count < events.size(); ++cursor) {
    const auto node = static_cast<NodeId>(cursor / 2 / GroupCount());
    const auto group = static_cast<std::int32_t>(cursor / 2 % GroupCount());
    const Tier tier = cursor % 2 == 0 ? Tier::kDevice : Tier::kHost;
    if (!index_.used(node)) continue;
    const bool cached = tier == Tier::kDevice ? BlockOf(node, group - 1) != kNoBlock
                                              : HostOf(node, group - 1) != kNoHost;
    if (cached) events[count++] = index_.Describe(node, tier, group);
  }
  return static_cast<std::int64_t>(count);
}

}  // namespace lariat::blocks
