// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/huge_pages.h"
#include "blocks/block_pool.h"
#include "blocks/block_table.h"
#include "blocks/length.h"
#include "blocks/prefix_index.h"
#include "blocks/token_list.h"
#include "blocks/transfer.h"
#include "lariat/types.h"

namespace lariat::blocks {

// How messages call a sequence: "sequence 4294967297".
std::string NameOf(SequenceId id);

// A sequence's blocks of one of the cache's other groups.
struct SideTable {
  BlockTable table;            // as long as Sequence::table
  std::int64_t slid = 0;       // leading entries that are given back: kNoBlock
  std::vector<HostId> places;  // suspended: from entry `slid` on
};

// What the cache knows of one sequence.
//
//   0 ............ settled ............ planned ......... max_length
//   | kept rows    | rows of live steps | not planned yet
//
// `ids` may be longer than planned (a prompt not computed yet) or shorter (ids that come later).
//
// What a step of decoding touches stands first, in one cache line, and where its id goes in
// another.
struct alignas(128) Sequence {
  SequenceId id = SequenceId::kNone;  // kNone: this entry is free
  std::uint64_t last_step = 0;        // the latest of the live steps
  std::uint64_t stamp = 0;            // of the last call that came across it
  Length settled = 0;
  Length planned = 0;  // settled plus certain rows of live steps
  Length reach = 0;    // planned plus undecided drafts; the table covers this many tokens
  Length max_length = 0;
  Length prompt_length = 0;
  Length indexed = 0;           // leading blocks of the table that are a path of the index
  Length first_dirty = 0;       // table entries from here on differ from the resident row
  std::int16_t live_steps = 0;  // that name it, the plan among them
  bool open : 1 = false;        // false with an id: closed, but a live step still names it
  bool started : 1 = false;     // its first plan was made: the prefix hit is decided
  bool keyed : 1 = false;       // has a salt or extra keys
  bool indexable : 1 = true;    // false: its blocks must not enter the index any more
  bool corrupt : 1 = false;     // holds a block with a device fault
  bool retains : 1 = false;     // has retention to give
  bool pinned : 1 = false;      // closed: the table's references wait for a step's end
  bool suspended : 1 = false;   // `places` has its tokens; no table
  bool in_transit : 1 = false;  // waits for a transfer to be accepted
  // The last block of the table is this sequence's alone and not in the index: true where that is
  // known. Whatever may change it, or the table's end, takes it back.
  bool owns_tail : 1 = false;

  TokenList ids;

  BlockTable table;
  int row = -1;  // of the resident block tables; -1 once closed
  RootId root = 0;
  std::uint32_t rope_choice = 0;  // tables that its keys turn by
  std::int32_t stamp_item = -1;   // scratch of the call that stamped it

  std::vector<Retention> retention;
  Length retained = 0;  // leading blocks that were given `retention`

  // Scratch of Match before the first plan: the path found so far, with the blocks' generations.
  std::int64_t match_blocks = 0;  // of the path, that can be used
  std::vector<BlockId> match_path;
  std::vector<std::uint32_t> match_generations;
  // The block behind that path whose first tokens agree, and how many: of the last look alone.
  NearestChild match_partial;

  std::vector<HostId> places;  // suspended: of the host tier, one for each block that it had
  std::vector<SideTable> sides;

  std::span<const TokenId> prompt() const {
    return ids.all().first(static_cast<std::size_t>(prompt_length));
  }
  // Neither corrupt nor away.
  bool usable() const { return !corrupt && !suspended && !in_transit; }
  std::int64_t known() const { return static_cast<std::int64_t>(ids.size()); }
};
static_assert(offsetof(Sequence, ids) + TokenList::kCountBytes == 64 && sizeof(Sequence) <= 640);

// Hands out sequence entries and the rows of the resident block tables, lowest first when new and
// last in first out when returned. Entries do not move.
class SequenceTable {
 public:
  // max_open: sequences open at once; ids_capacity, table_capacity: reserved for each on first use,
  // so that nothing is allocated while a sequence grows (untouched memory stays virtual).
  // sides: groups besides the first one
  SequenceTable(int max_open, std::int64_t ids_capacity, std::int64_t table_capacity,
                std::size_t sides);

  int open_count() const { return open_count_; }
  int max_open() const { return max_open_; }

  // A fresh, open entry with room for so many matched blocks. REQUIRES: open_count() < max_open().
  Sequence& Open(std::size_t matched = 0);
  // The open sequence with this id, or null.
  Sequence* Find(SequenceId id) {
    const auto index = static_cast<std::uint64_t>(static_cast<std::int64_t>(IndexOf(id)));
    if (index >= entries_.size()) return nullptr;
    Sequence& sequence = *entries_[index];
    return sequence.open && sequence.id == id ? &sequence : nullptr;
  }
  const Sequence* Find(SequenceId id) const { return const_cast<SequenceTable*>(this)->Find(id); }
  // Has what a step of decoding touches of a sequence fetched: it will be asked for soon.
  void Prefetch(int index) const { __builtin_prefetch(entries_[index], 1); }
  // Any id will do.
  void Prefetch(SequenceId id) const {
    const auto index = static_cast<std::uint64_t>(static_cast<std::int64_t>(IndexOf(id)));
    if (index < entries_.size()) Prefetch(static_cast<int>(index));
  }
  // The same of where its table is, and of that one's end.
  void PrefetchTable(int index) const { __builtin_prefetch(&entries_[index]->table); }
  void PrefetchTableEnd(int index) const {
    const BlockTable& table = entries_[index]->table;
    __builtin_prefetch(table.data() + table.size(), 1);
  }
  Sequence& at(int index) { return *entries_[index]; }
  const Sequence& at(int index) const { return *entries_[index]; }
  static int IndexOf(SequenceId id) {
    return static_cast<int>(static_cast<std::uint64_t>(id) & 0xFFFFFFFFU) - 1;
  }
  // Ends the handle: the id finds nothing any more, the row is free, the entry stays until Recycle.
  void Retire(Sequence& sequence);
  void Recycle(Sequence& sequence);

  // Every entry in use, closed ones too, in order of the entries.
  const std::vector<Sequence*>& entries() const { return entries_; }

 private:
  const int max_open_;
  const std::int64_t ids_capacity_;
  const std::size_t table_capacity_;
  const std::size_t sides_;
  int open_count_ = 0;
  // Entries side by side. The first chunk has room for all that are open at once; later ones, never
  // full, for those that are closed but still named by a live step.
  static constexpr std::size_t kEntriesAtOnce = 64;
  void AddEntry();
  std::vector<HugePageVector<Sequence>> chunks_;
  BlockTableMemory tables_;
  std::vector<Sequence*> entries_;
  std::vector<std::uint32_t> lives_;  // by entry: times it was opened
  std::vector<int> free_entries_;
  std::vector<int> free_rows_;
};

}  // namespace lariat::blocks
