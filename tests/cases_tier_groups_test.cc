// SPDX-License-Identifier: Apache-2.0
// Faults that users of other caches reported in their tiers of host memory, continued: layers with
// windows, whose blocks are other groups'. See cases_tier_test.cc.
#include <map>
#include <memory>
#include <random>
#include <set>

#include "backend/deferred_backend.h"
#include "support/failing_copies.h"
#include "support/late_world.h"
#include "support/sanitized.h"
#include "support/window_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Cpu;
using testing::FailingCopies;
using testing::WindowCache;

constexpr WritePolicy kPolicies[] = {WritePolicy::kBack, WritePolicy::kThrough,
                                     WritePolicy::kAfterHits};

// Full attention and a window of 4, in blocks of 4 tokens: groups 0 and 1, whose blocks are
// numbered as one.
struct TwoGroups : WindowCache {
  TwoGroups(const CacheConfig& config, const Device& device) : WindowCache(config, device) {}
  static CacheConfig Config(std::int64_t blocks, const testing::Window& window) {
    CacheConfig config = testing::WindowConfig(4, blocks, {window}, BackendKind::kCpu);
    config.host = {.num_blocks = 20, .write = WritePolicy::kThrough};
    return config;
  }
  // Computes rows of tokens 0, 1, ..., from the hit on, and returns that.
  std::int64_t Run(SequenceId id, std::int64_t count) {
    Step step = Prepared(id, count);
    const StepRows rows = step.rows()[0];
    std::vector<float> k, v;
    for (std::int64_t n = rows.start; n < rows.start + rows.count; ++n) {
      for (const float sign : {1.0F, -1.0F}) {
        k.push_back(sign * static_cast<float>(n));
        v.push_back(sign * static_cast<float>(100 + n));
      }
    }
    const AppendInputs inputs{.dtype = DType::kFP32, .k = k.data(), .v = v.data()};
    for (int layer = 0; layer < 2; ++layer) Must(cache().Append(step, layer, inputs, {}));
    Must(cache().Commit(step, {}, {}));
    return rows.hit;
  }
  void CheckRows(SequenceId id) {
    for (int layer = 0; layer < 2; ++layer) {
      for (std::int64_t n = *cache().FirstRow(id, layer); n < Settled(id); ++n) {
        float k[2], v[2];
        Must(cache().ReadRows(id, layer, n, 1, k, v));
        const auto want = static_cast<float>(n);
        const bool right = k[0] == want && k[1] == -want && v[0] == 100 + want && v[1] == -v[0];
        if (!right) FAIL("layer " << layer << ", row " << n << ": " << k[0] << ", " << v[0]);
      }
    }
  }
  // Takes so many blocks of both groups, for tokens that nobody can find.
  void Flood(std::int64_t tokens) {
    const SequenceId id = Open({});
    Feed(id, tokens);
    Must(cache().Close(id));
  }
};

TEST_CASE("K156: a copy that fails in one group leaves the other group's", "[cases]") {
  const auto backend = std::make_shared<FailingCopies>(MakeDeferredBackend(Cpu(), 1));
  TwoGroups t(TwoGroups::Config(10, {4}), Device(backend));
  const std::vector<TokenId> text = CaseCache::Range(0, 17);
  const SequenceId a = t.Open(text);
  CHECK(t.Run(a, 17) == 0);
  CaseCache::Must(t->Close(a));
  CHECK(t->GetStats().host_used == 8);  // 4 blocks of each group
  // Two are free; 6 blocks take the window's four, which go before the others.
  t.Flood(9);
  CHECK(t->GetStats().evicted_blocks == 4);
  const PrefixMatch match = t->Match(text);
  CHECK(match.tokens == 0);
  CHECK(match.host_tokens == 16);
  // The window's block 3 is all that a load brings.
  const SequenceId b = t.Open(text);
  backend->FailEvents(true);
  const TransferId transfer = *t->Fetch(b);
  backend->FailEvents(false);
  CHECK(t->GetStats().in_transit_blocks == 1);
  CHECK(t->Accept(transfer)->failed);
  CHECK(t->GetStats().host_used == 7);
  CHECK(t->GetStats().indexed_blocks == 4);
  CHECK(t->Match(b)->host_tokens == 12);  // as far as both groups have it
  CHECK_FALSE(t->Accept(*t->Fetch(b))->failed);
  CHECK(t.Run(b, 17) == 12);
  t.CheckRows(b);
  // Computing has filled the hole. The first group's copies, its fourth too, were there all along.
  CHECK(t->GetStats().host_used == 8);
  CHECK(t->GetStats().offloaded_blocks == 9);
  CaseCache::Must(t->Close(b));
  t.Flood(20);
  CHECK(t->GetStats().indexed_blocks == 0);
  const SequenceId c = t.Open(text);
  CHECK_FALSE(t->Accept(*t->Fetch(c))->failed);
  CHECK(t.Run(c, 17) == 16);
  t.CheckRows(c);
}

// Behind 18 tokens begins a chunk of 9: no row from there on reads one before. But whoever computes
// on fills a block that holds 16 and 17 too, which others find and read behind 17 tokens.
TEST_CASE("K107 with chunks: a hit that ends inside of a block has its rows in all groups",
          "[cases]") {
  const auto text = CaseCache::Range(0, 27);
  int shorter = 0, whole = 0;
  for (std::int64_t evicted = 0; evicted < 14; ++evicted) {
    CAPTURE(evicted);
    CacheConfig config = TwoGroups::Config(24, {9, LayerKind::kChunked});
    config.host = {};
    config.reuse = Reuse::kToken;
    TwoGroups t(config, Device(Cpu()));
    const SequenceId a = t.Open(text);
    t.Run(a, 27);
    CaseCache::Must(t->Close(a));
    // Evicts as many more, one by one.
    const SequenceId holder = t.Open({});
    t.Feed(holder, 4 * ((t->GetStats().free_blocks + evicted) / 2));
    const SequenceId b = t.Open(CaseCache::Range(0, 19)), c = t.Open(CaseCache::Range(0, 18));
    CaseCache::Must(t->Truncate(holder, 0));  // room for both
    (t.Match(CaseCache::Range(0, 19)) == 18 ? whole : shorter) += 1;
    t.Run(b, 19);
    t.CheckRows(b);
    t.Run(c, 18);
    t.CheckRows(c);
  }
  CHECK(whole > 0);
  CHECK(shorter > 0);
}

// --- Random lives -----------------------------------------------------------------------------

// Sequences of three groups, while calls and events of copies fail. A row's numbers are those of
// the tokens up to it, so that whoever has the same prefix must read the same.
class RandomGroups {
 public:
  RandomGroups(const CacheConfig& config, unsigned seed)
      : backend_(std::make_shared<FailingCopies>(MakeDeferredBackend(Cpu(), seed))),
        cache_(config, Device(backend_)),
        random_(seed) {}

  void Calls(int count) {
    for (int i = 0; i < count; ++i) {
      backend_->FailAt(Roll(6) == 0 ? 1 + Roll(2) : 0);
      if (Roll(8) == 0) backend_->FailEvents(Roll(4) == 0);
      One();
      backend_->FailAt(0);
      DropCorrupt();
      if (Roll(20) == 0) CheckRows();
      const Stats s = cache_->GetStats();
      REQUIRE(s.free_blocks + s.idle_blocks + s.held_blocks + s.reserved_blocks +
                  s.in_transit_blocks ==
              s.total_blocks);
    }
    CheckRows();
    while (!tokens_.empty()) Close(tokens_.begin()->first);
    while (!transfers_.empty()) Accept(transfers_.rbegin()->first);
    CHECK(cache_.Available() == cache_->GetStats().total_blocks);
    CHECK(cache_->GetStats().host_held == 0);
  }
  Stats stats() { return cache_->GetStats(); }
  std::int64_t failed = 0, corrupt = 0, windows_read = 0;

 private:
  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  SequenceId Any() { return std::next(tokens_.begin(), Roll(std::ssize(tokens_)))->first; }
  // Whether a call went well; else it came too early, found no room, or met a planned fault.
  static bool Went(const Status& status) {
    const Code code = status.code();
    const bool allowed = status.ok() || code == Code::kNotReady || code == Code::kDeviceError ||
                         code == Code::kInvalidArgument || code == Code::kResourceExhausted;
    if (!allowed) FAIL(status.ToString());
    return status.ok();
  }
  void One() {
    const std::int64_t dice = Roll(100);
    if (dice < 15 || tokens_.empty()) {
      const auto prompt = CaseCache::Range(static_cast<TokenId>(100 * Roll(4)), Roll(40));
      const auto id = cache_->Open(prompt);
      if (!Went(id.status())) return;
      tokens_[*id] = prompt;
      if (Roll(2) == 0) Started(*id, cache_->Fetch(*id), true);
    } else if (dice < 50) {
      Feed(Any());
    } else if (dice < 60) {
      Close(Any());
    } else if (dice < 66) {
      Fork(Any());
    } else if (dice < 76) {
      const SequenceId id = Any();
      Started(id, cache_->Suspend(id), false);
    } else if (dice < 90) {
      const SequenceId id = Any();
      Started(id, cache_->Resume(id), true);
    } else if (dice < 97) {
      if (transfers_.empty()) return;
      Accept(std::next(transfers_.begin(), Roll(std::ssize(transfers_)))->first);
    } else {
      Went(cache_->Poll().status());
    }
  }
  void Close(SequenceId id) {
    CaseCache::Must(cache_->Close(id));
    tokens_.erase(id);
    away_.erase(id);
  }
  void Started(SequenceId id, const Result<TransferId>& started, bool up) {
    if (!Went(started.status())) return;
    const bool waits = up && *started != TransferId::kNone;
    if (waits) transfers_[*started] = id;
    if (!up || waits) {
      away_.insert(id);
    } else {
      away_.erase(id);
    }
  }
  void Accept(TransferId id) {
    const auto report = cache_->Accept(id);
    CaseCache::Must(report.status());
    if (report->failed) ++failed;
    while (!transfers_.empty() && transfers_.begin()->first <= id) {
      away_.erase(transfers_.begin()->second);
      transfers_.erase(transfers_.begin());
    }
  }
  void Fork(SequenceId id) {
    const Extent extent = *cache_->GetExtent(id);
    const std::int64_t length =
        extent.min_length + Roll(1 + std::max<std::int64_t>(0, extent.settled - extent.min_length));
    const auto child = cache_->Fork(id, length);
    if (!Went(child.status())) return;
    const std::vector<TokenId>& tokens = tokens_[id];
    tokens_[*child] = {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length)};
  }
  void DropCorrupt() {
    std::vector<SequenceId> lost;
    for (const auto& [id, tokens] : tokens_) {
      if (cache_->GetExtent(id).status().code() == Code::kCorruptData) lost.push_back(id);
    }
    for (const SequenceId id : lost) Close(id);
    corrupt += std::ssize(lost);
  }
  // Below 2^19, so that a quarter is kept.
  static float Number(const std::vector<TokenId>& tokens, std::int64_t row) {
    std::uint64_t hash = 0;
    for (std::int64_t n = 0; n <= row; ++n) {
      hash = (hash + static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(n)]) + 1) *
             0x9E3779B97F4A7C15U;
      hash ^= hash >> 29;
    }
    return static_cast<float>(hash >> 45);
  }
  void Feed(SequenceId id) {
    std::vector<TokenId>& tokens = tokens_[id];
    auto planned = cache_.Plan(id, 1 + Roll(12));
    if (!planned.ok() && planned.status().code() == Code::kNeverFits) return;
    if (!Went(planned.status())) return;
    Step step = *std::move(planned);
    CaseCache::Must(cache_->Prepare(step, {}));
    const StepRows rows = step.rows()[0];
    const std::int64_t end = rows.start + rows.count;
    const std::int64_t told = std::ssize(tokens);
    while (std::ssize(tokens) < end) tokens.push_back(static_cast<TokenId>(5000 + Roll(2)));
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<float> k, v;
      for (std::int64_t n = rows.start; n < end; ++n) {
        const float number = Number(tokens, n);
        const auto of_layer = 0.25F * static_cast<float>(layer);
        k.insert(k.end(), {number + of_layer, of_layer - number});
        v.insert(v.end(), {number, -number});
      }
      const AppendInputs inputs{.dtype = DType::kFP32, .k = k.data(), .v = v.data()};
      CaseCache::Must(cache_->Append(step, layer, inputs, {}));
    }
    const auto fed =
        std::span(tokens).subspan(static_cast<std::size_t>(std::min(told, end)),
                                  static_cast<std::size_t>(std::max<std::int64_t>(0, end - told)));
    const StepCommit commit{id, rows.count, fed};
    CaseCache::Must(cache_->Commit(step, std::span(&commit, 1), {}));
  }
  void CheckRows() {
    for (const auto& [id, tokens] : tokens_) {
      const std::int64_t settled = cache_.Settled(id);
      for (int layer = 0; layer < 3 && settled > 0; ++layer) {
        float k[2], v[2];
        if (away_.count(id) > 0) {
          REQUIRE(cache_->ReadRows(id, layer, settled - 1, 1, k, v).code() == Code::kNotReady);
          continue;
        }
        const std::int64_t first = *cache_->FirstRow(id, layer);
        if (first > 0) ++windows_read;
        for (std::int64_t n = first; n < settled; ++n) {
          CaseCache::Must(cache_->ReadRows(id, layer, n, 1, k, v));
          const float number = Number(tokens, n);
          const auto of_layer = 0.25F * static_cast<float>(layer);
          const bool right = k[0] == number + of_layer && k[1] == of_layer - number &&
                             v[0] == number && v[1] == -number;
          if (!right) FAIL("layer " << layer << ", row " << n << ": " << k[0] << ", " << v[0]);
        }
      }
    }
  }

  std::shared_ptr<FailingCopies> backend_;
  WindowCache cache_;
  std::mt19937_64 random_;
  std::map<SequenceId, std::vector<TokenId>> tokens_;  // of prompts, and fed
  std::set<SequenceId> away_;
  std::map<TransferId, SequenceId> transfers_;
};

TEST_CASE("K155, K156: whatever copies fail, no group's rows are another's", "[cases]") {
  std::int64_t failed = 0, corrupt = 0, windows_read = 0, onboarded = 0, hits = 0;
  for (unsigned seed = 0; seed < testing::HalfIfSanitized(220U); ++seed) {
    CAPTURE(seed);
    CacheConfig config = testing::WindowConfig(seed % 2 == 0 ? 4 : 2, 40,
                                               {{4}, {9, LayerKind::kChunked}}, BackendKind::kCpu);
    config.max_sequences = 6;
    config.max_tokens_per_sequence = 60;
    config.host.num_blocks = seed % 4 < 2 ? 60 : 20;
    config.host.write = kPolicies[seed % 3];
    config.host.write_after_hits = 1;
    config.host.clean_blocks = 10;
    if (seed % 5 == 4) config.reuse = Reuse::kToken;
    RandomGroups random(config, seed);
    random.Calls(4000);
    failed += random.failed;
    corrupt += random.corrupt;
    windows_read += random.windows_read;
    onboarded += random.stats().onboarded_blocks;
    hits += random.stats().hit_tokens;
  }
  CAPTURE(failed, corrupt, windows_read, onboarded, hits);
  CHECK(failed > 100);
  CHECK(corrupt > 50);
  CHECK(windows_read > 1000);
  CHECK(onboarded > 1000);
  CHECK(hits > 1000);
}

}  // namespace
}  // namespace lariat
