// SPDX-License-Identifier: Apache-2.0
// Layers with windows beside full attention, in cases worked out by hand: which blocks are held,
// given back, found again and refused.
#include <algorithm>
#include <random>

#include "support/window_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Window;
using testing::WindowCache;
using testing::WindowConfig;

// Blocks of 4 tokens and, mostly, a window of 4: a row reads the 3 tokens before it, so behind L
// tokens the blocks from (L - 3) / 4 on are wanted.
constexpr Window kFour = {4};

TEST_CASE("Blocks out of a window are idle or free right after Commit", "[cache]") {
  WindowCache c(4, 7, {kFour});
  const std::vector<TokenId> prompt = CaseCache::Range(0, 9);
  const SequenceId a = c.Open(prompt);
  Step step = c.Prepared(a, 9);
  CHECK(c.Held(a) == 6);  // 3 of each group: rows of this step read all of them
  CHECK(c->GetStats().reserved_blocks == 6);
  CaseCache::Must(c->Commit(step, {}, {}));
  // (9 - 3) / 4 = 1: the window's first block is given back. Its tokens are known: it is cached.
  CHECK(c.GivenBack(1, a) == 1);
  CHECK(c.GivenBack(0, a) == 0);
  CHECK(c.Held(a) == 5);
  Stats stats = c->GetStats();
  CHECK(stats.held_blocks == 5);
  CHECK(stats.idle_blocks == 1);
  CHECK(stats.free_blocks == 1);
  CHECK(stats.indexed_blocks == 4);  // 2 full blocks, in each group
  CHECK(*c->FirstRow(a, 0) == 0);
  CHECK(*c->FirstRow(a, 1) == 4);
  // The next Plan takes it: 13 tokens are one block more in each group.
  step = c.Prepared(a, 4);
  stats = c->GetStats();
  CHECK(stats.evicted_blocks == 1);
  CHECK(stats.free_blocks + stats.idle_blocks == 0);
  CaseCache::Must(c->Commit(step, {}, {}));
  CHECK(c.GivenBack(1, a) == 2);  // (13 - 3) / 4
  // What it holds of the text is still found: behind 8 tokens the window wants block 1 alone.
  CHECK(c.Match(prompt) == 8);
}

TEST_CASE("Blocks out of a window are free where their tokens are not known", "[cache]") {
  WindowCache c(4, 8, {kFour});
  const SequenceId a = c.Open({});
  c.Feed(a, 9);
  CHECK(c.GivenBack(1, a) == 1);
  CHECK(c->GetStats().idle_blocks == 0);
  CHECK(c->GetStats().free_blocks == 3);
  // Their ids come later: the window's block 0 is not cached then, but its block 1.
  CaseCache::Must(c->SetTokens(a, CaseCache::Range(0, 9)));
  CHECK(c->GetStats().indexed_blocks == 3);
  CHECK(c.Match(CaseCache::Range(0, 9)) == 8);
  CHECK(c.Match(CaseCache::Range(0, 8)) == 0);  // 4 tokens would want block 0
}

TEST_CASE("A hit whose window is gone is shortened, and computing fills the hole", "[cache]") {
  // 5 blocks of each group, of which the last ones are not full.
  WindowCache c(4, 12, {kFour});
  const std::vector<TokenId> text = CaseCache::Range(0, 17);
  CaseCache::Must(c->Close(c.Start(text)));
  CHECK(c->GetStats().idle_blocks == 8);
  CHECK(c.Match(text) == 16);
  // Whoever shares 8 tokens of it takes the first two blocks, of the window the second one: they
  // are the last ones to go after that.
  CaseCache::Must(
      c->Close(c.Start(CaseCache::Join(CaseCache::Range(0, 8), CaseCache::Range(90, 1)))));
  CHECK(c->GetStats().hit_tokens == 8);
  // 8 blocks for someone else: 4 are free. What was let go of first are the window's blocks 0 and
  // 2, out of it at the first Commit, then at the Close 3, and the full layer's 3.
  const SequenceId other = c.Open({});
  Step step = c.Prepared(other, 13);
  CHECK(c->GetStats().evicted_blocks == 4);
  CaseCache::Must(c->Discard(step, {}));
  CaseCache::Must(c->Close(other));
  // So 12 tokens of the text are known, and behind the first 8 of them the window is there.
  CHECK(c.Match(text) == 8);
  const SequenceId b = c.Open(text);
  CHECK(c->Match(b)->tokens == 8);
  CHECK(c->Match(b)->blocks == 2);
  CHECK(c.Feed(b, 17) == 8);
  // Its block 2 gave way to the cached one; beside that one there was a hole.
  CHECK(c->GetStats().merged_blocks == 1);
  CHECK(c.Match(text) == 16);
  CHECK(c.Match(CaseCache::Range(0, 13)) == 12);
}

TEST_CASE("A hit that ends inside of a block wants its window too", "[cache]") {
  CacheConfig config = WindowConfig(4, 11, {kFour});
  config.reuse = Reuse::kToken;
  WindowCache c(config);
  const std::vector<TokenId> text = CaseCache::Range(0, 11);
  CaseCache::Must(c->Close(c.Start(text)));
  CHECK(c->GetStats().idle_blocks == 6);
  CHECK(c.Match(text) == 10);
  // The window's block 0 goes first, which is not wanted; then 1 and 2.
  const SequenceId other = c.Open({});
  Step step = c.Prepared(other, 12);
  CHECK(c->GetStats().evicted_blocks == 1);
  CHECK(c.Match(text) == 10);
  CaseCache::Must(c->Discard(step, {}));
  step = c.Prepared(other, 13);
  CHECK(c->GetStats().evicted_blocks == 3);
  CHECK(c->GetStats().indexed_blocks == 3);
  CHECK(c.Match(text) == 0);
}

TEST_CASE("A pin holds the window at its prefix's end", "[cache]") {
  CacheConfig config = WindowConfig(4, 12, {kFour});
  config.max_pinned_blocks = 4;
  WindowCache c(config);
  const std::vector<TokenId> text = CaseCache::Range(0, 17);
  CaseCache::Must(c->Close(c.Start(text)));
  CHECK(c->Pin(CaseCache::Range(0, 16)).code() == Code::kResourceExhausted);  // 4 and 1
  CaseCache::Must(c->Pin(CaseCache::Range(0, 12)));
  CHECK(c->GetStats().pinned_blocks == 4);
  CHECK(c->GetStats().idle_blocks == 4);
  // All that is not pinned goes: 4 free blocks, and the 4 idle ones.
  const SequenceId other = c.Open({});
  Step step = c.Prepared(other, 16);
  CHECK(c->GetStats().evicted_blocks == 4);
  CHECK(c.Match(text) == 12);
  CHECK(c->Pin(CaseCache::Range(0, 8)).code() == Code::kInvalidArgument);  // its window is gone
  CaseCache::Must(c->Discard(step, {}));
  CHECK(*c->Remove(text) == 0);
  CHECK(*c->Remove(CaseCache::Range(0, 12)) == 2);  // of the full layer and of the window
  CHECK(c->GetStats().pinned_blocks == 0);
  CHECK(c->GetStats().idle_blocks == 2);
}

TEST_CASE("Windows of two sizes slide each by itself", "[cache]") {
  WindowCache c(4, 20, {{2}, {9}});
  const std::vector<TokenId> text = CaseCache::Range(0, 17);
  const SequenceId a = c.Start(text);
  CHECK(c.GivenBack(1, a) == 4);  // from token 16 on
  CHECK(c.GivenBack(2, a) == 2);  // from token 9 on
  CHECK(c.Held(a) == 5 + 1 + 3);
  CHECK(c->BlocksFor(17, 17) == 9);
  CHECK(c->GetStats().idle_blocks == 6);
  CHECK(*c->FirstRow(a, 1) == 16);
  CHECK(*c->FirstRow(a, 2) == 8);
  CHECK(c.MinLength(a) == 17);  // the first token that reads none before 16; of the other one 16
  // A hit of 16 tokens wants token 15 of the one, 8 to 15 of the other.
  const SequenceId b = c.Open(text);
  const Step step = c.Prepared(b, 1);
  CHECK(step.rows()[0].hit == 16);
  CHECK(c.GivenBack(1, b) == 3);
  CHECK(c.GivenBack(2, b) == 2);
}

TEST_CASE("A chunk begins anew though its size is no multiple of a block", "[cache]") {
  WindowCache c(4, 20, {{6, LayerKind::kChunked}});
  const SequenceId a = c.Start(CaseCache::Range(0, 11));
  CHECK(c.GivenBack(1, a) == 1);  // the chunk began at 6
  CHECK(c.MinLength(a) == 6);
  c.Feed(a, 1, {11});
  CHECK(c.GivenBack(1, a) == 3);  // the next row begins a chunk: it reads none before 12
  CHECK(c.Held(a) == 3);
  CHECK(c.MinLength(a) == 12);
  c.Feed(a, 1, {12});
  CHECK(c.Held(a) == 4 + 1);
  // Where a chunk begins nothing of it is wanted.
  CHECK(c.Match(CaseCache::Range(0, 13)) == 12);
}

TEST_CASE("What may be refused names the least length", "[cache]") {
  WindowCache c(4, 12, {kFour});
  const SequenceId a = c.Start(CaseCache::Range(0, 9));
  CHECK(c.MinLength(a) == 7);  // reads from token 4 on
  const std::string name = "sequence " + std::to_string(static_cast<std::uint64_t>(a));
  const std::string before = c->Snapshot();
  for (const std::int64_t length : {1, 4, 6}) {
    const std::string want = "length " + std::to_string(length) + " of " + name +
                             ": a window before it is given back; allowed are 0, and 7 "
                             "(Extent::min_length) and more";
    CHECK(c->Truncate(a, length).message() == want);
    CHECK(c->Truncate(a, length).code() == Code::kInvalidArgument);
    CHECK(c->Fork(a, length).status().message() == want);
    CHECK(c->Fork(a, length).status().code() == Code::kInvalidArgument);
  }
  CHECK(c->BlockTable(a, 2).status().message().find("group 2") != std::string::npos);
  CHECK(c->BlockTable(a, 2).status().code() == Code::kInvalidArgument);
  CHECK(c->BlockTable(a, -1).status().code() == Code::kInvalidArgument);
  CHECK(c->FirstRow(a, 2).status().code() == Code::kInvalidArgument);
  CHECK(c->Snapshot() == before);
  CaseCache::Must(c->Truncate(a, 7));
  CHECK(c.GivenBack(1, a) == 1);
  CHECK(c.MinLength(a) == 7);
  CaseCache::Must(c->Truncate(a, 0));
  CHECK(c.MinLength(a) == 0);
  CHECK(c.Held(a) == 0);
  c.Feed(a, 5, CaseCache::Range(0, 5));
  CHECK(c.Held(a) == 4);

  const CacheConfig config = WindowConfig(4, 12, {{0}});
  const Status refused = KVCache::Create(config).status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("layers[1].window 0") != std::string::npos);
  CHECK(refused.message().find("1 to 1073741824") != std::string::npos);
}

TEST_CASE("A fork at a window's edge shares what it wants, and copies it to write", "[cache]") {
  WindowCache c(4, 16, {kFour});
  const SequenceId a = c.Start(CaseCache::Range(0, 9));
  const std::vector<int> full = c.TableIn(0, a), side = c.TableIn(1, a);
  const SequenceId b = *c->Fork(a, 7);
  CHECK(c.TableIn(0, b) == std::vector<int>{full[0], full[1]});
  CHECK(c.TableIn(1, b) == std::vector<int>{-1, side[1]});
  CHECK(c.MinLength(b) == 7);
  c.Feed(b, 1, {70});
  CHECK(c->GetStats().copied_blocks == 2);  // of both groups
  CHECK(c.TableIn(0, b)[0] == full[0]);
  CHECK(c.TableIn(0, b)[1] != full[1]);
  CHECK(c.TableIn(1, b)[1] != side[1]);
  // All of it: the last block, which nobody else can find, is copied by the first one to write.
  const SequenceId d = *c->Fork(a);
  c.Feed(a, 1, {9});
  CHECK(c->GetStats().copied_blocks == 4);
  CHECK(c.TableIn(1, a)[2] != side[2]);
  c.Feed(d, 1, {80});
  CHECK(c->GetStats().copied_blocks == 4);
  CHECK(c.TableIn(1, d) == std::vector<int>{-1, side[1], side[2]});
  const SequenceId none = *c->Fork(a, 0);
  CHECK(c.Held(none) == 0);
  CHECK(c.MinLength(none) == 0);
}

TEST_CASE("The window follows the drafts that are kept, not those that were made", "[cache]") {
  for (std::int64_t kept = 1; kept <= 5; ++kept) {
    CAPTURE(kept);
    WindowCache c(4, 16, {kFour});
    const SequenceId a = c.Start(CaseCache::Range(0, 7));
    CHECK(c.GivenBack(1, a) == 1);  // behind 7 tokens, those from 4 on
    Step step = c.Prepared(a, 5, 4);
    CHECK(c.Held(a) == 3 + 2);
    const std::vector<TokenId> fed = CaseCache::Range(7, kept);
    const StepCommit commit{a, kept, fed};
    CaseCache::Must(c->Commit(step, std::span(&commit, 1), {}));
    const std::int64_t length = 7 + kept, blocks = (length + 3) / 4;
    const std::int64_t first = (length - 3) / 4;  // 2 from 11 tokens on
    CHECK(first == (kept < 4 ? 1 : 2));
    CHECK(std::ssize(c.TableIn(1, a)) == blocks);
    CHECK(c.GivenBack(1, a) == first);
    CHECK(c.MinLength(a) == 4 * first + 3);
    CHECK(c->GetStats().held_blocks == blocks + blocks - first);
  }
}

TEST_CASE("A window slides with the step that is committed, not with those behind it", "[cache]") {
  for (const bool discards : {false, true}) {
    CAPTURE(discards);
    WindowCache c(4, 16, {kFour});
    const SequenceId a = c.Open({});
    Step first = c.Prepared(a, 8), second = c.Prepared(a, 5);
    CHECK(c.Held(a) == 4 + 4);
    CaseCache::Must(c->Commit(first, {}, {}));
    CHECK(c.GivenBack(1, a) == 1);  // the second step's first row, 8, reads from 5 on
    CHECK(c.Held(a) == 4 + 3);
    CHECK(c->GetStats().free_blocks == 9);
    // What is given back may be taken while that step runs.
    const SequenceId b = c.Open({});
    CHECK(c.Plan(b, 16).ok());  // 8 of the 9
    if (discards) {
      CaseCache::Must(c->Discard(second, {}));
      CHECK(c.Held(a) == 2 + 1);
      CHECK(c.MinLength(a) == 7);
    } else {
      CaseCache::Must(c->Commit(second, {}, {}));
      CHECK(c.GivenBack(1, a) == 2);  // from 10 on
      CHECK(c.Held(a) == 4 + 2);
    }
  }
}

TEST_CASE("What would fit once the steps before have ended may be tried again", "[cache]") {
  WindowCache c(1, 9, {{2}});
  const SequenceId a = c.Open({});
  c.Feed(a, 3);
  Step step = c.Prepared(a, 1);
  // 6 tokens are 6 blocks and, read from token 3 on, 3; but tokens 2 and 3 are held still.
  CHECK(c.Held(a) == 4 + 2);
  CHECK(c.Plan(a, 2).status().code() == Code::kResourceExhausted);
  CHECK(c.Plan(a, 3).status().code() == Code::kNeverFits);  // 7 and 4
  CaseCache::Must(c->Commit(step, {}, {}));
  CHECK(c.Plan(a, 2).ok());
}

TEST_CASE("An item that copies its tail and one whose hit is copied, in one step", "[cache]") {
  CacheConfig config = WindowConfig(4, 24, {kFour});
  config.reuse = Reuse::kToken;
  WindowCache c(config);
  CaseCache::Must(c->Close(c.Start(CaseCache::Range(50, 7))));  // 6 tokens of it will be found
  const SequenceId a = c.Start(CaseCache::Range(0, 6)), fork = *c->Fork(a);
  const SequenceId b = c.Open(CaseCache::Range(50, 7));
  const std::vector<int> before = c.TableIn(1, a);
  const StepItem items[] = {{a, 1, 0, {}}, {b, 7, 0, {}}};
  Step step = *c->Plan(items);
  CHECK(step.rows()[1].hit == 6);
  CaseCache::Must(c->Prepare(step, {}));
  CHECK(c->GetStats().copied_blocks == 4);
  CHECK(c.TableIn(1, fork) == before);
  CHECK(c.TableIn(1, a)[0] == before[0]);
  CHECK(c.TableIn(1, a)[1] != before[1]);
  CaseCache::Must(c->Commit(step, {}, {}));
  for (const SequenceId id : {a, b}) CHECK(c.Held(id) == 2 + 1);  // 7 tokens: a window from 4 on
}

// --- What a sequence holds at most ------------------------------------------------------------

TEST_CASE("BlocksFor is never less than what a sequence holds", "[cache]") {
  std::mt19937 random(3);
  const auto roll = [&](int sides) {
    return static_cast<int>(random() % static_cast<unsigned>(sides));
  };
  std::int64_t steps = 0, exact = 0;
  for (int run = 0; run < 300; ++run) {
    const int block = 1 + roll(9);
    std::vector<Window> windows;
    for (int n = 1 + roll(2); n > 0; --n) {
      windows.push_back(
          {1 + roll(4 * block), roll(3) == 0 ? LayerKind::kChunked : LayerKind::kSliding});
    }
    CacheConfig config = WindowConfig(block, 0, windows);
    config.memory = {};
    config.memory.unlimited = true;
    WindowCache c(config);
    const SequenceId a = c.Open({});
    if (roll(4) > 0) c.Feed(a, 1 + roll(60));
    const std::int64_t settled = c.Settled(a), end = settled + 1 + roll(100);
    const std::int64_t chunk = 1 + roll(roll(2) == 0 ? 4 : 40);
    CAPTURE(run, block, settled, end, chunk);
    CHECK(c.Held(a) == c->BlocksFor(settled, settled));
    std::int64_t most = 0;
    while (c.Settled(a) < end) {
      const std::int64_t from = c.Settled(a);
      const std::int64_t count =
          std::min(end - from, roll(3) == 0 ? 1 + roll(static_cast<int>(chunk)) : chunk);
      Step step = c.Prepared(a, count);
      CHECK(c.Held(a) == c->BlocksFor(from, from + count));
      most = std::max(most, c.Held(a));
      CaseCache::Must(c->Commit(step, {}, {}));
      CHECK(c.Held(a) == c->BlocksFor(from + count, from + count));
      ++steps;
    }
    const std::int64_t bound = c->BlocksFor(settled, end, chunk);
    CHECK(most <= bound);
    exact += most == bound ? 1 : 0;
    CHECK(bound <= c->BlocksFor(settled, end));
  }
  CHECK(steps > 2000);
  CHECK(exact > 60);  // so it is no idle bound
}

// --- Groups -----------------------------------------------------------------------------------

CacheConfig Pattern(int layers, int kv_heads, int dim, int window, int full_every) {
  CacheConfig config = CaseCache::Config(16, 1000);
  config.dtype = DType::kBF16;
  LayerSpec layer = config.layers[0];
  layer.kv_heads = kv_heads;
  layer.k_dim = layer.v_dim = dim;
  config.layers.clear();
  for (int i = 0; i < layers; ++i) {
    const bool full = (i + 1) % full_every == 0;
    layer.kind = full ? LayerKind::kFull : LayerKind::kSliding;
    layer.window = full ? 0 : window;
    config.layers.push_back(layer);
  }
  return config;
}

TEST_CASE("Alternating layers are two groups without padding", "[cache]") {
  const CacheConfig config = Pattern(24, 8, 64, 128, 2);
  const auto footprint = KVCache::Footprint(config);
  REQUIRE(footprint.ok());
  CHECK(footprint->num_groups == 2);
  CHECK(footprint->padding_bytes == 0);
  CHECK(footprint->bytes_per_token == 24 * 2048);  // 8 heads of 64 + 64 elements of 2 bytes
  CHECK(footprint->bytes_per_block == 16 * 12 * 2048);
  CHECK(footprint->pool_bytes == 1000 * footprint->bytes_per_block);
  WindowCache c(config);
  CHECK(c->Layer(0)->group == 1);  // the first group has the full layers
  CHECK(c->Layer(0)->window == 128);
  CHECK(c->Layer(0)->kind == LayerKind::kSliding);
  CHECK(c->Layer(1)->group == 0);
  CHECK(c->Layer(1)->window == 0);
  const SequenceId a = c.Open({});
  for (int i = 0; i < 4; ++i) c.Feed(a, 60);
  // 240 tokens: 15 blocks; behind them the window wants tokens 113 to 239, from block 7 on.
  CHECK(c.Held(a) == 15 + 8);
}

TEST_CASE("One full layer in six is seven groups, the last one padded", "[cache]") {
  const CacheConfig config = Pattern(62, 16, 128, 1024, 6);
  const auto footprint = KVCache::Footprint(config);
  REQUIRE(footprint.ok());
  // 10 full layers; 52 with windows are five groups of 10, and one of 2 with room for 8 more.
  CHECK(footprint->num_groups == 7);
  CHECK(footprint->bytes_per_token == 62 * 8192);  // 16 heads of 128 + 128 elements of 2 bytes
  CHECK(footprint->bytes_per_block == 16 * 10 * 8192);
  CHECK(footprint->padding_bytes == 16 * 8 * 8192);
  WindowCache c(config);
  CHECK(c->Layer(5)->group == 0);
  CHECK(c->Layer(0)->group == 1);
  CHECK(c->Layer(10)->group == 1);  // layers 0-4, 6-10
  CHECK(c->Layer(12)->group == 2);
  CHECK(c->Layer(60)->group == 6);
  CHECK(c->Layer(61)->group == 6);
  const SequenceId a = c.Open({});
  c.Feed(a, 17);
  CHECK(c.Held(a) == 7 * 2);
}

// A block that a fork has cached under other ids keeps what is beside it, whatever the sequence
// that shared it is told later.
TEST_CASE("Ids that come late and differ from a fork's leave its blocks of windows alone",
          "[cache]") {
  WindowCache c(4, 14, {{8}});
  const std::vector<TokenId> text = CaseCache::Range(1, 13);
  const SequenceId x = c.Open({});  // its first block is cached without the window's
  c.Feed(x, 13);
  CaseCache::Must(c->SetTokens(x, text));
  const SequenceId p = c.Open({});
  c.Feed(p, 4);
  const SequenceId fork = *c->Fork(p, 4);
  CaseCache::Must(c->SetTokens(fork, CaseCache::Range(50, 4)));
  CaseCache::Must(c->SetTokens(p, std::span(text).first(4)));
  CaseCache::Must(c->Close(fork));
  const TokenId next[] = {11};
  c.Feed(p, 1, {next, next + 1});
  CaseCache::Must(c->Close(x));
  const std::vector<int> mine = c.TableIn(1, p);
  for (TokenId round = 1; round <= 4; ++round) {  // all that is idle is taken
    const SequenceId q = c.Start(CaseCache::Range(1000 * round, 16));
    for (const int block : c.TableIn(1, q)) {
      CHECK((block == -1 || std::count(mine.begin(), mine.end(), block) == 0));
    }
    CaseCache::Must(c->Close(q));
  }
}

}  // namespace
}  // namespace lariat
