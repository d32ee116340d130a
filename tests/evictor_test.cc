// SPDX-License-Identifier: Apache-2.0
// The eviction orders by themselves, over random trees of blocks.
#include <algorithm>
#include <random>

#include "blocks/lru_evictor.h"
#include "blocks/priority_evictor.h"
#include "support/catch.h"

namespace lariat {
namespace {

using blocks::BlockId;
using blocks::kNoBlock;

constexpr std::size_t kLanes = 3;

// A block is below its parent and in its lane; what is held has all that is above it held.
struct World {
  explicit World(blocks::Evictor& tested, unsigned seed) : evictor(tested), random(seed) {
    evictor.Grow(kBlocks, kLanes);
    for (BlockId b = 0; b < kBlocks; ++b) {
      parent[b] = b == 0 || random() % 4 == 0 ? -2 : static_cast<std::int32_t>(random() % b);
      lane[b] = parent[b] < 0 ? random() % kLanes : lane[parent[b]];
    }
  }

  static constexpr BlockId kBlocks = 40;
  blocks::Evictor& evictor;
  std::mt19937 random;
  std::int32_t parent[kBlocks];
  std::size_t lane[kBlocks];
  int priority[kBlocks];
  std::vector<BlockId> idle;  // oldest first

  bool IsIdle(BlockId block) const { return std::count(idle.begin(), idle.end(), block) > 0; }
  bool HasBelow(BlockId block) const {
    return std::any_of(idle.begin(), idle.end(), [&](BlockId b) { return parent[b] == block; });
  }
  // A block becomes idle after those below it; what was evicted comes back under a held one alone.
  void Release() {
    const BlockId block = static_cast<BlockId>(random() % kBlocks);
    for (BlockId b = block + 1; b < kBlocks; ++b) {
      if (parent[b] == block && !IsIdle(b)) return;
    }
    if (IsIdle(block) || (parent[block] >= 0 && IsIdle(parent[block]))) return;
    priority[block] = static_cast<int>(random() % 4);
    evictor.SetPriority(block, priority[block]);
    evictor.Add(block, parent[block], lane[block]);
    idle.push_back(block);
  }
  // A path is claimed from its root on. Returns what was idle.
  std::vector<BlockId> Claim(BlockId block) {
    std::vector<BlockId> path;
    for (std::int32_t b = block; b >= 0; b = parent[b]) path.insert(path.begin(), b);
    std::vector<BlockId> taken;
    std::copy_if(path.begin(), path.end(), std::back_inserter(taken),
                 [&](BlockId b) { return IsIdle(b); });
    const bool at_once = random() % 2 == 0;
    if (at_once) evictor.RemovePath(taken, lane[block]);
    for (const BlockId b : taken) {
      if (!at_once) evictor.Remove(b, lane[b]);
      idle.erase(std::find(idle.begin(), idle.end(), b));
    }
    return taken;
  }
  BlockId NaiveVictim(std::size_t of, bool priorities) const {
    BlockId victim = kNoBlock;
    for (const BlockId b : idle) {
      if (lane[b] != of || HasBelow(b)) continue;
      if (victim == kNoBlock || (priorities && priority[b] < priority[victim])) victim = b;
    }
    return victim;
  }
  std::vector<BlockId> Ages(std::size_t of) const {
    std::vector<BlockId> ages;
    evictor.ByAge(of, ages);
    return ages;
  }
  std::vector<BlockId> NaiveAges(std::size_t of) const {
    std::vector<BlockId> ages;
    std::copy_if(idle.begin(), idle.end(), std::back_inserter(ages),
                 [&](BlockId b) { return lane[b] == of; });
    return ages;
  }
};

void Run(blocks::Evictor& evictor, bool priorities, unsigned seed) {
  World w(evictor, seed);
  for (int i = 0; i < 600; ++i) {
    if (w.random() % 8 != 0) {
      w.Release();
    } else {
      // Victims and claims that are taken back, or not.
      const std::vector<BlockId> before = w.idle;
      std::vector<BlockId> taken = w.Claim(static_cast<BlockId>(w.random() % World::kBlocks));
      const std::size_t lane = w.random() % kLanes;
      std::vector<BlockId> next;
      evictor.NextVictims(lane, w.random() % 10, next);
      for (const BlockId promised : next) {
        const BlockId victim = evictor.Victim(lane);
        REQUIRE(victim == promised);
        REQUIRE(victim == w.NaiveVictim(lane, priorities));
        evictor.Remove(victim, lane);
        w.idle.erase(std::find(w.idle.begin(), w.idle.end(), victim));
        taken.push_back(victim);
      }
      if (w.random() % 2 == 0) {
        for (auto b = taken.rbegin(); b != taken.rend(); ++b) evictor.Restore(*b, w.lane[*b]);
        w.idle = before;
      }
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      REQUIRE(evictor.Victim(lane) == w.NaiveVictim(lane, priorities));
      REQUIRE(w.Ages(lane) == w.NaiveAges(lane));
    }
  }
}

TEST_CASE("Orders of eviction are those of a naive list", "[cache]") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    blocks::LruEvictor lru;
    Run(lru, /*priorities=*/false, seed);
    blocks::PriorityEvictor priority;
    Run(priority, /*priorities=*/true, seed);
  }
}

TEST_CASE("A path that is released at once stands as if block by block", "[cache]") {
  blocks::LruEvictor at_once, one_by_one;
  const std::vector<BlockId> paths[] = {{5, 3, 8}, {1}, {}, {0, 7, 2, 6}};
  for (blocks::LruEvictor* evictor : {&at_once, &one_by_one}) evictor->Grow(9, 1);
  for (const std::vector<BlockId>& path : paths) {
    at_once.AddPath(path, 0);
    for (auto b = path.rbegin(); b != path.rend(); ++b) one_by_one.Add(*b, kNoBlock, 0);
    std::vector<BlockId> got, want;
    at_once.ByAge(0, got);
    one_by_one.ByAge(0, want);
    REQUIRE(got == want);
    REQUIRE(at_once.Victim(0) == one_by_one.Victim(0));
  }
}

TEST_CASE("A block's priority is changed at its age", "[cache]") {
  blocks::PriorityEvictor evictor;
  evictor.Grow(4, 1);
  for (BlockId b = 0; b < 3; ++b) evictor.Add(b, -2, 0);
  const auto change = [&](BlockId block, int priority) {
    evictor.Remove(block, 0);
    evictor.SetPriority(block, priority);
    evictor.Restore(block, 0);
  };
  change(0, 50);
  CHECK(evictor.Victim(0) == 1);
  change(2, 10);
  CHECK(evictor.Victim(0) == 2);
  change(0, kDefaultPriority);
  change(2, kDefaultPriority);
  std::vector<BlockId> order;
  evictor.NextVictims(0, 3, order);
  CHECK(order == std::vector<BlockId>{0, 1, 2});
}

}  // namespace
}  // namespace lariat
