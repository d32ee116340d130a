// SPDX-License-Identifier: Apache-2.0
// Layers with windows beside full attention, on the CPU: the bytes of their rows, the tables that
// readers get, a fault in one group's block.
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "backend/backend.h"
#include "support/count_new.h"
#include "support/window_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::Window;
using testing::WindowCache;
using testing::WindowConfig;

// A cache whose rows hold numbers of their own: each row that is computed gets the next one. So a
// row tells which step wrote it, and a sequence which rows it should have.
class Rows : public WindowCache {
 public:
  explicit Rows(const CacheConfig& config) : WindowCache(config) {}

  void Know(SequenceId id, std::vector<float> rows) { rows_[id] = std::move(rows); }
  std::vector<float>& of(SequenceId id) { return rows_[id]; }

  // Plans, prepares and appends; the hit's rows are those of `from`.
  Step Run(const std::vector<StepItem>& items, SequenceId from = SequenceId::kNone,
           const StepShape& shape = {}) {
    auto planned = cache().Plan(items, shape);
    if (!planned.ok()) FAIL(planned.status().ToString());
    Step step = *std::move(planned);
    Must(cache().Prepare(step, {}));
    // Memory of its own for padding too: NaN, which must not be stored anywhere.
    std::vector<float> k(static_cast<std::size_t>(2 * step.padded_tokens()),
                         std::numeric_limits<float>::quiet_NaN());
    for (const StepRows& rows : step.rows()) {
      std::vector<float>& mine = rows_[rows.sequence];
      if (rows.hit > 0) mine.assign(rows_[from].begin(), rows_[from].begin() + rows.hit);
      mine.resize(static_cast<std::size_t>(rows.start));
      for (std::int64_t i = 0; i < rows.count; ++i) {
        const auto at = static_cast<std::size_t>(2 * (rows.first_row + i));
        mine.push_back(++number_);
        k[at] = number_;
        k[at + 1] = -number_;
      }
    }
    for (int layer = 0; layer < Layers(); ++layer) {
      std::vector<float> of_layer = k;
      for (float& element : of_layer) element += 0.25F * static_cast<float>(layer);
      const AppendInputs inputs{.dtype = DType::kFP32, .k = of_layer.data(), .v = k.data()};
      Must(cache().Append(step, layer, inputs, {}));
    }
    return step;
  }
  void Keep(Step step, const std::vector<StepCommit>& commits = {}) {
    for (const StepRows& rows : step.rows()) {
      for (const StepCommit& commit : commits) {
        if (commit.sequence != rows.sequence) continue;
        of(commit.sequence).resize(static_cast<std::size_t>(rows.start + commit.kept));
      }
    }
    Must(cache().Commit(step, commits, {}));
  }
  // Every row that a layer still has is the one that was computed.
  void Check(SequenceId id) {
    const std::vector<float>& rows = rows_[id];
    const std::int64_t length = Settled(id);
    REQUIRE(length == std::ssize(rows));
    for (int layer = 0; layer < Layers(); ++layer) {
      const std::int64_t first = *cache().FirstRow(id, layer);
      const auto count = static_cast<std::size_t>(length - first);
      std::vector<float> k(2 * count), v(2 * count);
      Must(cache().ReadRows(id, layer, first, length - first, k.data(), v.data()));
      for (std::size_t i = 0; i < count; ++i) {
        const float want = rows[static_cast<std::size_t>(first) + i];
        const float of_layer = 0.25F * static_cast<float>(layer);
        const bool right = k[2 * i] == want + of_layer && k[2 * i + 1] == of_layer - want &&
                           v[2 * i] == want && v[2 * i + 1] == -want;
        if (!right) FAIL("layer " << layer << ", row " << first << " + " << i << ": " << k[2 * i]);
      }
      if (first == 0) continue;
      CHECK(cache().ReadRows(id, layer, first - 1, 1, k.data(), v.data()).code() ==
            Code::kInvalidArgument);
    }
  }

 private:
  int Layers() { return static_cast<int>(cache().config().layers.size()); }

  std::map<SequenceId, std::vector<float>> rows_;
  float number_ = 0;
};

CacheConfig OnCpu(int block_size, std::int64_t blocks, const std::vector<Window>& windows) {
  return WindowConfig(block_size, blocks, windows, BackendKind::kCpu);
}

TEST_CASE("Copies of shared blocks have the rows of every group", "[cache]") {
  Rows rows(OnCpu(4, 24, {{4}, {7, LayerKind::kChunked}}));
  const SequenceId a = rows.Open({});
  rows.Keep(rows.Run({{a, 10, 0, {}}}));
  rows.Check(a);
  const SequenceId b = *rows->Fork(a), c = *rows->Fork(a, 9);
  rows.Know(b, rows.of(a));
  rows.Know(c, {rows.of(a).begin(), rows.of(a).begin() + 9});
  for (const SequenceId id : {a, b, c}) rows.Check(id);
  rows.Keep(rows.Run({{c, 1, 0, {}}, {a, 3, 0, {}}, {b, 1, 0, {}}}));
  CHECK(rows->GetStats().copied_blocks == 2 * 3);  // the last one of the three writes in place
  for (const SequenceId id : {a, b, c}) rows.Check(id);
  // A step that is thrown away leaves the source in place.
  const SequenceId d = *rows->Fork(b);
  rows.Know(d, rows.of(b));
  const std::vector<int> full = rows.TableIn(0, d), side = rows.TableIn(1, d);
  Step step = rows.Run({{d, 2, 0, {}}});
  CHECK(rows.TableIn(1, d) != side);
  CaseCache::Must(rows->Discard(step, {}));
  CHECK(rows.TableIn(0, d) == full);
  CHECK(rows.TableIn(1, d) == side);
  rows.of(d) = rows.of(b);
  for (const SequenceId id : {a, b, c, d}) rows.Check(id);
}

TEST_CASE("A hit that ends inside of a block has its rows in every group", "[cache]") {
  CacheConfig config = OnCpu(4, 24, {{4}, {6, LayerKind::kChunked}});
  config.reuse = Reuse::kToken;
  Rows rows(config);
  const SequenceId a = rows.Open(CaseCache::Range(0, 11));
  rows.Keep(rows.Run({{a, 11, 0, {}}}));
  CaseCache::Must(rows->Close(a));
  for (const std::int64_t same : {10, 9, 7, 6, 5}) {
    CAPTURE(same);
    const SequenceId b =
        rows.Open(CaseCache::Join(CaseCache::Range(0, same), CaseCache::Range(90, 2)));
    Step step = rows.Run({{b, 20, 0, {}}}, a);
    CHECK(step.rows()[0].hit == same);
    for (const int layer : {0, 1, 2}) {  // what its whole blocks have is there before the Commit
      const std::int64_t first = *rows->FirstRow(b, layer), whole = same / 4 * 4;
      if (first >= whole) continue;
      std::vector<float> v(static_cast<std::size_t>(2 * (whole - first)));
      CaseCache::Must(rows->ReadRows(b, layer, first, whole - first, nullptr, v.data()));
      CHECK(v[0] == rows.of(a)[static_cast<std::size_t>(first)]);
    }
    rows.Keep(std::move(step));
    rows.Check(b);
    CaseCache::Must(rows->Close(b));
  }
}

TEST_CASE("Rows stay what they are while windows slide in all ways", "[cache]") {
  std::mt19937 random(11);
  const auto roll = [&](std::int64_t sides) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(sides));
  };
  std::int64_t checked = 0;
  for (int run = 0; run < 30; ++run) {
    const int block = 1 + static_cast<int>(roll(6));
    CacheConfig config = OnCpu(block, 60,
                               {{1 + static_cast<int>(roll(3 * block))},
                                {1 + static_cast<int>(roll(3 * block)), LayerKind::kChunked}});
    config.max_steps_in_flight = 2;
    Rows rows(config);
    std::vector<SequenceId> open = {rows.Open({})};
    for (int call = 0; call < 60; ++call) {
      const std::size_t at = static_cast<std::size_t>(roll(std::ssize(open)));
      const SequenceId id = open[at];
      const std::int64_t length = rows.Settled(id), least = rows.MinLength(id);
      const std::int64_t kind = roll(10);
      if (kind == 0 && open.size() < 4) {
        const std::int64_t to = least + roll(length - least + 1);
        open.push_back(*rows->Fork(id, to));
        rows.Know(open.back(), {rows.of(id).begin(), rows.of(id).begin() + to});
      } else if (kind == 1) {
        const std::int64_t to = least + roll(length - least + 1);
        CaseCache::Must(rows->Truncate(id, to));
        rows.of(id).resize(static_cast<std::size_t>(to));
      } else if (kind == 2 && open.size() > 1) {
        CaseCache::Must(rows->Close(id));
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        const std::int64_t count = 1 + roll(2 * block), drafts = roll(count);
        if (length + count + 1 > 60 || rows.Available() < 8 * (count / block + 3)) {
          CaseCache::Must(rows->Truncate(id, 0));
          rows.of(id).clear();
          continue;
        }
        // One step, or two that live at once.
        Step first = rows.Run({{id, count, drafts, {}}});
        if (drafts == 0) {
          Step second = rows.Run({{id, 1, 0, {}}});
          const std::vector<float> all = rows.of(id);
          rows.Keep(std::move(first));
          rows.Keep(std::move(second));
          rows.of(id) = all;
        } else {
          rows.Keep(std::move(first), {{id, count - roll(drafts + 1), {}}});
        }
      }
      for (const SequenceId each : open) rows.Check(each);
      checked += std::ssize(open);
    }
  }
  CHECK(checked > 1500);
}

TEST_CASE("Padded tables of each group are those of its sequences", "[cache]") {
  Rows rows(OnCpu(4, 40, {{4}, {6}}));
  const SequenceId a = rows.Open({}), b = rows.Open({}), c = rows.Open({});
  rows.Keep(rows.Run({{a, 13, 0, {}}, {b, 6, 0, {}}}));
  for (int round = 0; round < 4; ++round) {
    Step step = rows.Run({{b, 3, 0, {}}, {a, 1, 0, {}}, {c, 2, 0, {}}}, {}, {16, 5});
    CHECK(step.padded_tokens() == 16);
    for (const int group : {0, 1, 2}) {
      CAPTURE(round, group);
      const StepView view = rows->View(group);
      for (int s = 0; s < 3; ++s) {
        const StepRows& of = step.rows()[static_cast<std::size_t>(s)];
        const std::vector<int> table = rows.TableIn(group, of.sequence);
        const std::int32_t* const row = view.block_table + s * view.block_table_stride;
        for (std::size_t n = 0; n < table.size(); ++n) {
          if (table[n] != -1) CHECK(row[n] == table[n]);
          if (table[n] == -1) CHECK((row[n] >= 0 && row[n] < 40));
        }
        for (std::int64_t i = 0; i < of.count; ++i) {
          const std::int64_t position = of.start + i;
          CHECK(view.slots[of.first_row + i] ==
                std::int64_t{table[static_cast<std::size_t>(position / 4)]} * 4 + position % 4);
        }
        CHECK(view.seqused_k[s] == of.start + of.count);
        CHECK(view.cu_seqlens[s + 1] - view.cu_seqlens[s] == of.count);
      }
      for (int t = 6; t < 16; ++t) CHECK(view.slots[t] == -1);
      for (int s = 3; s < 5; ++s) {
        CHECK(view.seqused_k[s] == 0);
        CHECK(view.cu_seqlens[s + 1] == 6);
        for (std::int64_t n = 0; n < view.block_table_stride; ++n) {
          CHECK(view.block_table[s * view.block_table_stride + n] == 0);
        }
      }
    }
    rows.Keep(std::move(step));
    for (const SequenceId id : {a, b, c}) rows.Check(id);
  }
  CHECK(rows->View(3).slots == nullptr);
}

TEST_CASE("A fault in one group's block takes the text out of all of them", "[cache]") {
  WindowCache c(OnCpu(4, 16, {{4}}));
  const std::vector<TokenId> text = CaseCache::Range(0, 13);
  const SequenceId clean = c.Start(CaseCache::Range(50, 9));
  const SequenceId a = c.Open(text);
  const std::vector<float> input(64, 1.0F);
  const auto append = [&](const Step& step) {
    for (const int layer : {0, 1}) {
      CaseCache::Must(c->Append(step, layer,
                                {.dtype = DType::kFP32, .k = input.data(), .v = input.data()}, {}));
    }
  };
  Step step = c.Prepared(a, 4);
  append(step);
  CaseCache::Must(c->Commit(step, {}, {}));
  step = c.Prepared(a, 9);
  const_cast<std::int64_t*>(c->View(1).slots)[2] = 16 * 4 + 3;  // of the layer with a window alone
  append(step);
  CaseCache::Must(c->Commit(step, {}, {}));
  CHECK(c.Match(text) == 12);
  CHECK(c->GetStats().indexed_blocks == 4 + 6);
  const auto report = c->Poll();
  REQUIRE(report.ok());
  REQUIRE(report->faults.size() == 1);
  CHECK(report->faults[0].kind == FaultKind::kSlot);
  CHECK(report->faults[0].token == 2);
  CHECK(report->faults[0].value == 67);
  CHECK(c.Match(text) == 4);  // what the step before wrote
  CHECK(c->GetStats().indexed_blocks == 4 + 2);
  CHECK(c.Plan(a, 1).status().code() == Code::kCorruptData);
  CHECK(c->BlockTable(a, 1).status().code() == Code::kCorruptData);
  CHECK(c->FirstRow(a, 1).status().code() == Code::kCorruptData);
  CHECK(c.MinLength(clean) == 7);
  CaseCache::Must(c->Close(a));
  CaseCache::Must(c->Close(clean));
  const Stats stats = c->GetStats();
  CHECK(stats.free_blocks + stats.idle_blocks == 16);
  CHECK(stats.idle_blocks == 6);
}

TEST_CASE("A Commit without memory changes nothing, however many blocks it wrote", "[cache]") {
  for (const int sequences : {1, 3, 8}) {
    CacheConfig config = OnCpu(4, 300, {{4}, {6}, {3, LayerKind::kChunked}});
    config.max_sequences = sequences;  // by which a cache's first memory is measured
    WindowCache c(config);
    std::vector<StepItem> items;
    for (int s = 0; s < sequences; ++s) items.push_back({c.Open({}), 1, 0, {}});
    for (const StepItem& item : items) c.Feed(item.sequence, 1);
    for (StepItem& item : items) item.num_tokens = 9;  // in a block that there is, and two more
    Step step = *c->Plan(items);
    CaseCache::Must(c->Prepare(step, {}));
    const std::string before = c->Snapshot();
    Status committed;
    for (std::int64_t allowed = 0; allowed < 20; ++allowed) {
      {
        const testing::FailNewAfter failing(allowed);
        committed = c->Commit(step, {}, {});
      }
      if (committed.ok()) break;
      CHECK(committed.message() == "out of memory");
      REQUIRE(c->Snapshot() == before);
    }
    CaseCache::Must(committed);
    for (const StepItem& item : items) CHECK(c.Settled(item.sequence) == 10);
  }
}

}  // namespace
}  // namespace lariat
