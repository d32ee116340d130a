// SPDX-License-Identifier: Apache-2.0
#include "blocks/sequence.h"

#include <algorithm>
#include <cassert>

namespace lariat::blocks {

std::string NameOf(SequenceId id) {
  return "sequence " + std::to_string(static_cast<std::uint64_t>(id));
}

SequenceTable::SequenceTable(int max_open, std::int64_t ids_capacity, std::int64_t table_capacity,
                             std::size_t sides)
    : max_open_(max_open),
      ids_capacity_(ids_capacity),
      table_capacity_(static_cast<std::size_t>(table_capacity)),
      sides_(sides),
      tables_((1 + sides_) * table_capacity_, static_cast<std::size_t>(max_open)) {
  free_rows_.reserve(static_cast<std::size_t>(max_open));
  for (int row = max_open - 1; row >= 0; --row) free_rows_.push_back(row);
}

void SequenceTable::AddEntry() {
  const std::size_t index = entries_.size();
  if (chunks_.empty() || chunks_.back().size() == chunks_.back().capacity()) {
    const std::size_t first = static_cast<std::size_t>(max_open_);
    HugePageVector<Sequence> chunk;
    chunk.reserve(chunks_.empty() ? first : kEntriesAtOnce);
    chunks_.push_back(std::move(chunk));
  }
  Sequence fresh;
  fresh.ids.reserve(static_cast<std::size_t>(ids_capacity_));
  fresh.sides.resize(sides_);
  const auto grow = [&](auto& list) {
    if (list.capacity() == index) list.reserve(2 * index + kEntriesAtOnce);
  };
  grow(entries_);
  free_entries_.reserve(entries_.capacity());
  grow(lives_);
  std::span<BlockId> tables = tables_.Take();
  // Nothing below allocates.
  const auto next = [&] {
    const auto table = tables.first(table_capacity_);
    tables = tables.subspan(table_capacity_);
    return BlockTable(table);
  };
  fresh.table = next();
  for (SideTable& side : fresh.sides) side.table = next();
  entries_.push_back(&chunks_.back().emplace_back(std::move(fresh)));
  lives_.push_back(0);
  free_entries_.push_back(static_cast<int>(index));
}

Sequence& SequenceTable::Open(std::size_t matched) {
  assert(open_count_ < max_open_);
  if (free_entries_.empty()) AddEntry();
  const int index = free_entries_.back();
  Sequence& sequence = *entries_[index];
  sequence.match_path.reserve(matched);
  sequence.match_generations.reserve(matched);
  free_entries_.pop_back();
  const std::uint64_t life = ++lives_[index];
  sequence.id = static_cast<SequenceId>(life << 32 | static_cast<std::uint64_t>(index + 1));
  sequence.open = true;
  sequence.row = free_rows_.back();
  free_rows_.pop_back();
  ++open_count_;
  return sequence;
}

void SequenceTable::Retire(Sequence& sequence) {
  assert(sequence.open);
  sequence.open = false;
  free_rows_.push_back(sequence.row);
  sequence.row = -1;
  --open_count_;
}

void SequenceTable::Recycle(Sequence& sequence) {
  assert(!sequence.open && sequence.id != SequenceId::kNone);
  const int index = IndexOf(sequence.id);
  // The vectors keep their memory for the next sequence.
  Sequence fresh;
  std::swap(fresh.ids, sequence.ids);
  std::swap(fresh.table, sequence.table);
  std::swap(fresh.places, sequence.places);
  std::swap(fresh.match_path, sequence.match_path);
  std::swap(fresh.match_generations, sequence.match_generations);
  std::swap(fresh.sides, sequence.sides);
  fresh.ids.assign({});
  fresh.table.clear();
  fresh.places.clear();
  fresh.match_path.clear();
  fresh.match_generations.clear();
  for (SideTable& side : fresh.sides) {
    side.table.clear();
    side.places.clear();
    side.slid = 0;
  }
  sequence = std::move(fresh);
  free_entries_.push_back(index);
}

}  // namespace lariat::blocks
