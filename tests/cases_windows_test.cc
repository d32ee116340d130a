// SPDX-License-Identifier: Apache-2.0
// Faults that users of other caches reported, where layers have windows.
#include <algorithm>

#include "support/window_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::WindowCache;
using testing::WindowConfig;

TEST_CASE("K131: rows that left a window are not gone back to", "[cases]") {
  // Behind 8 tokens a row reads those from 5 on, behind 7 from 4 on. least: what is allowed of 10.
  struct Case {
    int block_size;
    std::int64_t length, to;
    bool fine;
    std::int64_t least;
  };
  const Case cases[] = {
      {1, 10, 8, false, 10},  // nothing is held behind the window
      {2, 10, 8, false, 9},   // 6 and 7 are held
      {4, 10, 8, true, 7},    // from 4 on
      {4, 10, 7, true, 7},   {4, 10, 6, false, 7}, {8, 10, 8, true, 0},  {8, 10, 1, true, 0},
      {1, 10, 10, true, 10}, {1, 3, 1, true, 0},   {1, 10, 0, true, 10},
  };
  for (const Case& k : cases) {
    CAPTURE(k.block_size, k.length, k.to);
    WindowCache c(k.block_size, 40, {{4}});
    const SequenceId id = c.Start(CaseCache::Range(0, k.length));
    CHECK(c.MinLength(id) == k.least);
    const std::string before = c->Snapshot();
    const Status status = c->Truncate(id, k.to);
    CHECK(status.ok() == k.fine);
    if (!status.ok()) {
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().find("Extent::min_length") != std::string::npos);
      CHECK(c->Snapshot() == before);
      continue;
    }
    CHECK(c.Settled(id) == k.to);
    CHECK(*c->FirstRow(id, 1) <= std::max<std::int64_t>(0, k.to - 3));
    c.Feed(id, 2, {90, 91});
    CHECK(c.Settled(id) == k.to + 2);
  }
}

TEST_CASE("K113 with windows: blocks of all groups are counted once", "[cases]") {
  WindowCache c(4, 16, {{4}});
  const auto root = CaseCache::Range(0, 8);
  const SequenceId a = c.Start(CaseCache::Join(root, CaseCache::Range(10, 5)));
  const SequenceId b = c.Start(CaseCache::Join(root, CaseCache::Range(20, 5)));
  const auto check = [&] {
    const Stats stats = c->GetStats();
    CHECK(stats.free_blocks + stats.idle_blocks + stats.held_blocks == stats.total_blocks);
  };
  check();
  CaseCache::Must(c->Close(a));
  check();
  CaseCache::Must(c->Close(b));
  check();
  // The window's blocks 0 and 1 and the first group's stand under two leaves each.
  CHECK(c->GetStats().idle_blocks == 8);
  CHECK(c->GetStats().free_blocks == 8);
  const SequenceId all = c.Open({});
  CHECK(c.Plan(all, 33).status().code() == Code::kNeverFits);
  Step step = c.Prepared(all, 32);
  std::vector<int> blocks = c.TableIn(0, all);
  for (const int block : c.TableIn(1, all)) blocks.push_back(block);
  std::sort(blocks.begin(), blocks.end());
  CHECK(std::ssize(blocks) == 16);
  CHECK(std::adjacent_find(blocks.begin(), blocks.end()) == blocks.end());
}

TEST_CASE("K161, K162: a view stays where it is when a window moves on", "[cases]") {
  WindowCache c(WindowConfig(4, 40, {{4}}, BackendKind::kCpu));
  const StepView first[] = {c->View(0), c->View(1)};
  const SequenceId id = c.Start(CaseCache::Range(0, 3));
  for (std::int64_t length = 4; length < 40; ++length) {
    Step step = c.Prepared(id, 1);
    for (int group = 0; group < 2; ++group) {
      CAPTURE(length, group);
      const StepView view = c->View(group);
      CHECK(view.slots == first[group].slots);
      CHECK(view.positions == first[group].positions);
      CHECK(view.cu_seqlens == first[group].cu_seqlens);
      CHECK(view.seqused_k == first[group].seqused_k);
      CHECK(view.block_table == first[group].block_table);
      CHECK(view.block_table_stride == first[group].block_table_stride);
      // What it says is this step's: a graph that was captured over it reads the same.
      const std::vector<int> table = c.TableIn(group, id);
      CHECK(view.seqused_k[0] == length);
      CHECK(view.positions[0] == length - 1);
      CHECK(view.slots[0] == 4 * table.back() + (length - 1) % 4);
      for (std::int64_t b = c.GivenBack(group, id); b < std::ssize(table); ++b) {
        CHECK(view.block_table[b] == table[static_cast<std::size_t>(b)]);
      }
    }
    CaseCache::Must(c->Commit(step, {}, {}));
  }
  CHECK(c.GivenBack(1, id) == 9);
}

}  // namespace
}  // namespace lariat
