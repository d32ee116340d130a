// SPDX-License-Identifier: Apache-2.0
// The cache on a GPU: one call list on the CPU, eager on the GPU, and replayed from one captured
// graph behind a late stream. Readers, queries and pools are the same bits in all three.
#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>

#include "support/case_cache.h"
#include "support/gpu_work.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::GatherParams;

constexpr int kLayers = 2, kHeads = 2, kQHeads = 4, kDim = 16, kBlock = 4;
constexpr std::int64_t kBlocks = 26, kTokens = 48, kRows = 16;  // of a sequence, of a step
constexpr int kBatch = 4;
constexpr std::size_t kWidth = kDim + kDim;

enum class Mode { kCpu, kEager, kGraph };

CacheConfig Config() {
  CacheConfig config;
  LayerSpec layer;
  layer.kv_heads = kHeads;
  layer.k_dim = layer.v_dim = kDim;
  layer.rope = 0;
  config.layers.assign(kLayers, layer);
  config.ropes.emplace_back().rotary_dim = kDim;
  config.dtype = DType::kBF16;
  config.memory.num_blocks = kBlocks;
  config.block_size = kBlock;
  config.max_steps_in_flight = 2;
  config.max_sequences = 8;
  config.max_tokens_per_sequence = kTokens;
  config.max_tokens_per_step = kRows;
  return config;
}

void Must(const Status& status) { CaseCache::Must(status); }
void Must(const char* error) {
  if (*error != '\0') FAIL(error);
}

// One cache with a stream, the inputs and outputs of its forward pass, and what the passes gave.
class Rank {
 public:
  Rank(Mode mode, const Device& device)
      : mode_(mode), device_(device), stream_(*device_.CreateStream()) {
    auto made = KVCache::Create(Config(), device_);
    if (!made.ok()) FAIL(made.status().ToString());
    cache_ = std::make_unique<KVCache>(*std::move(made));
    input_ = *device_.Allocate(MemoryKind::kDevice, kInputBytes);
    output_ = *device_.Allocate(MemoryKind::kDevice, kOutputBytes);
  }
  ~Rank() {
    (void)device_.Synchronize(stream_);
    cache_.reset();
    device_.DestroyStream(stream_);
  }
  KVCache& cache() { return *cache_; }
  Stream stream() const { return stream_; }

  void LateUntil(int* flag) {
    if (mode_ == Mode::kGraph) Must(testing::SpinUntil(stream_, flag));
  }
  void Late(double milliseconds) {
    if (mode_ == Mode::kGraph) Must(testing::Spin(stream_, milliseconds));
  }
  // Puts bad data on the device, behind the step's arrays and before its appends.
  void Poke(std::int64_t row, std::int64_t slot) {
    Pinned& bytes = Stage(sizeof slot);
    std::memcpy(bytes.data(), &slot, sizeof slot);
    Must(device_.CopyToDevice(const_cast<std::int64_t*>(cache_->View().slots + row), bytes.data(),
                              sizeof slot, stream_));
  }

  // Appends all layers and reads all rows of the batch.
  void Forward(const Step& step, const std::vector<std::uint16_t>& input) {
    Pinned& staged = Stage(kInputBytes);
    std::memcpy(staged.data(), input.data(), kInputBytes);
    Must(device_.CopyToDevice(input_.data(), staged.data(), kInputBytes, stream_));
    if (mode_ == Mode::kGraph) {
      if (!graph_.captured()) Must(graph_.Capture(stream_, [&] { Enqueue(step); }));
      Must(graph_.Launch(stream_));
    } else {
      Enqueue(step);
    }
    Pinned& out = Stage(kInputBytes + kOutputBytes);
    Must(device_.CopyToHost(out.data(), output_.data(), kOutputBytes, stream_));
    Must(device_.CopyToHost(static_cast<char*>(out.data()) + kOutputBytes, input_.data(),
                            kInputBytes, stream_));  // q is among it, turned
    results_.push_back(&out);
  }

  void Finish() { Must(device_.Synchronize(stream_)); }
  std::size_t results() const { return results_.size(); }
  bool SameResult(const Rank& other, std::size_t i) const {
    return std::memcmp(results_[i]->data(), other.results_[i]->data(),
                       kInputBytes + kOutputBytes) == 0;
  }
  std::vector<char> Pool() {
    const std::size_t bytes = static_cast<std::size_t>(cache_->footprint().pool_bytes);
    Pinned& host = Stage(bytes);
    Must(device_.CopyToHost(host.data(), cache_->Layer(0)->k, bytes, stream_));
    Finish();
    const char* first = static_cast<const char*>(host.data());
    return {first, first + bytes};
  }

  static constexpr std::size_t kKv = kRows * kHeads * kDim, kQ = kRows * kQHeads * kDim;
  static constexpr std::size_t kInputElements = kLayers * (2 * kKv + kQ);
  static constexpr std::size_t kInputBytes = kInputElements * 2;
  static constexpr std::size_t kLayerOutput = kBatch * kTokens * kHeads * kWidth;
  static constexpr std::size_t kOutputBytes = kLayers * kLayerOutput * 2;

 private:
  using Pinned = DeviceBuffer;
  Pinned& Stage(std::size_t bytes) {
    return staged_.emplace_back(*device_.Allocate(MemoryKind::kPinnedHost, bytes));
  }
  void Enqueue(const Step& step) {
    Must(device_.Fill(output_.data(), 0xEE, kOutputBytes, stream_));
    auto* at = static_cast<std::uint16_t*>(input_.data());
    for (int layer = 0; layer < kLayers; ++layer) {
      AppendInputs inputs;
      inputs.k = at;
      inputs.v = at + kKv;
      inputs.q = at + 2 * kKv;
      inputs.q_heads = kQHeads;
      if (layer > 0) inputs.dependent_launch = DependentLaunch::kAfterWait;
      Must(cache_->Append(step, layer, inputs, stream_));
      at += 2 * kKv + kQ;
      GatherParams gather{cache_->View(), *cache_->Layer(layer), kBatch, kTokens, nullptr};
      gather.out = static_cast<std::uint16_t*>(output_.data()) + layer * kLayerOutput;
      if (mode_ == Mode::kCpu) {
        testing::GatherOnHost(gather);
      } else {
        Must(testing::GatherOnDevice(gather, stream_));
      }
    }
  }

  Mode mode_;
  Device device_;
  Stream stream_;
  std::unique_ptr<KVCache> cache_;
  DeviceBuffer input_, output_;
  testing::Graph graph_;
  std::deque<Pinned> staged_;  // lives until the stream has passed
  std::vector<Pinned*> results_;
};

// One call list on all ranks; they must answer alike.
class Ranks {
 public:
  explicit Ranks(const Device& gpu) : random_(7) {
    ranks_.push_back(std::make_unique<Rank>(Mode::kCpu, *Device::Create(BackendKind::kCpu)));
    ranks_.push_back(std::make_unique<Rank>(Mode::kEager, gpu));
    ranks_.push_back(std::make_unique<Rank>(Mode::kGraph, gpu));
  }
  Rank& operator[](std::size_t i) { return *ranks_[i]; }

  template <class F>
  Code All(F call) {
    const Code first = call(*ranks_[0]).code();
    for (std::size_t i = 1; i < ranks_.size(); ++i) REQUIRE(call(*ranks_[i]).code() == first);
    for (std::size_t i = 1; i < ranks_.size(); ++i) {
      REQUIRE(ranks_[i]->cache().Snapshot() == ranks_[0]->cache().Snapshot());
    }
    return first;
  }
  SequenceId Open(const std::vector<TokenId>& prompt) {
    SequenceId id = SequenceId::kNone;
    const Code code = All([&](Rank& rank) {
      auto opened = rank.cache().Open(prompt);
      if (opened.ok()) id = *opened;
      return opened.status();
    });
    return code == Code::kOk ? id : SequenceId::kNone;
  }
  // Plans, prepares and runs a step; false when there was no room.
  bool Run(const std::vector<StepItem>& items, std::int64_t poke_row = -1) {
    std::vector<Step>& steps = live_.emplace_back();
    const Code code = All([&](Rank& rank) {
      auto planned = rank.cache().Plan(items, {kRows, kBatch});
      if (planned.ok()) steps.push_back(*std::move(planned));
      return planned.status();
    });
    if (code != Code::kOk) {
      live_.pop_back();
      return false;
    }
    items_.push_back(items);
    std::vector<std::uint16_t> input(Rank::kInputElements);
    // bf16 of sizes near 1, never NaN: sign, exponent 120..127, fraction.
    for (std::uint16_t& x : input) {
      const std::uint64_t bits = random_();
      x = static_cast<std::uint16_t>((bits & 0x8000) | ((120 + (bits >> 20) % 8) << 7) |
                                     ((bits >> 32) & 0x7f));
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Must(ranks_[i]->cache().Prepare(steps[i], ranks_[i]->stream()));
      if (poke_row >= 0) ranks_[i]->Poke(poke_row, kBlocks * kBlock + 9);
      ranks_[i]->Forward(steps[i], input);
    }
    return true;
  }
  void Commit(const std::vector<StepCommit>& commits) {
    std::size_t next = 0;
    REQUIRE(All([&](Rank& rank) {
              return rank.cache().Commit(live_.front()[next++], commits, rank.stream());
            }) == Code::kOk);
    live_.pop_front();
    items_.pop_front();
  }
  std::deque<std::vector<Step>>& live() { return live_; }
  // Of the sequence in the step to be committed next.
  std::int64_t drafts(SequenceId id) const {
    for (const StepItem& item : items_.front()) {
      if (item.sequence == id) return item.num_drafts;
    }
    return 0;
  }
  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  void CompareAll() {
    for (auto& rank : ranks_) rank->Finish();
    const std::vector<char> pool = ranks_[0]->Pool();
    for (std::size_t i = 1; i < ranks_.size(); ++i) {
      CAPTURE(i);
      for (std::size_t n = 0; n < ranks_[0]->results(); ++n) {
        if (!ranks_[i]->SameResult(*ranks_[0], n)) FAIL("step " << n << " of rank " << i);
      }
      CHECK(ranks_[i]->Pool() == pool);
    }
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::deque<std::vector<Step>> live_;  // of each rank
  std::deque<std::vector<StepItem>> items_;
};

TEST_CASE("K162, K165, K166: one captured graph replays 100 steps of changing sequences",
          "[cuda]") {
  auto gpu = Device::Create(BackendKind::kCuda);
  if (!gpu.ok()) LARIAT_SKIP("no CUDA device answers");
  Ranks ranks(*gpu);
  std::vector<SequenceId> open;
  int steps = 0, cancelled = 0;
  for (int turn = 0; steps < 100 && turn < 2000; ++turn) {
    if (open.size() < 6 && ranks.Roll(3) == 0) {
      const SequenceId id = ranks.Open(
          CaseCache::Range(static_cast<TokenId>(100 * ranks.Roll(3)), 1 + ranks.Roll(20)));
      if (id != SequenceId::kNone) open.push_back(id);
    }
    if (open.empty()) continue;
    if (ranks.Roll(8) == 0) ranks[2].Late(2.0);
    std::vector<StepItem> items;
    for (const SequenceId id : open) {
      const Extent extent = *ranks[0].cache().GetExtent(id);
      const std::int64_t rows = std::min<std::int64_t>(1 + ranks.Roll(4), kTokens - extent.planned);
      if (rows < 1 || items.size() == kBatch) continue;
      items.push_back({id, rows, extent.planned >= extent.known ? ranks.Roll(rows) : 0, {}});
    }
    const bool ran = !items.empty() && ranks.Run(items);
    steps += ran ? 1 : 0;
    if (!ran || ranks.Roll(3) == 0) {  // a cancel, in flight or not
      const std::size_t victim = static_cast<std::size_t>(ranks.Roll(std::ssize(open)));
      cancelled += ranks.live().empty() ? 0 : 1;
      REQUIRE(ranks.All([&](Rank& rank) { return rank.cache().Close(open[victim]); }) == Code::kOk);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(victim));
    } else if (ranks.Roll(6) == 0) {
      SequenceId child = SequenceId::kNone;
      const SequenceId parent = open[static_cast<std::size_t>(ranks.Roll(std::ssize(open)))];
      const Code code = ranks.All([&](Rank& rank) {
        auto forked = rank.cache().Fork(parent);
        if (forked.ok()) child = *forked;
        return forked.status();
      });
      if (code == Code::kOk) open.push_back(child);
    }
    // One step stays in flight, mostly.
    while (ranks.live().size() > static_cast<std::size_t>(ranks.Roll(4) == 0 ? 0 : 1)) {
      std::vector<StepCommit> commits;
      for (const StepRows& rows : ranks.live().front()[0].rows()) {
        if (std::find(open.begin(), open.end(), rows.sequence) == open.end()) continue;
        const std::int64_t drafts = ranks.drafts(rows.sequence);
        commits.push_back({rows.sequence, rows.count - ranks.Roll(drafts + 1), {}});
      }
      ranks.Commit(commits);
    }
  }
  while (!ranks.live().empty()) ranks.Commit({});
  CHECK(steps == 100);
  CHECK(cancelled > 3);
  CHECK(ranks[0].cache().GetStats().hit_tokens > 0);
  ranks.CompareAll();
}

TEST_CASE("K164: two steps in flight and a cancel on a late GPU stream", "[cuda]") {
  auto gpu = Device::Create(BackendKind::kCuda);
  if (!gpu.ok()) LARIAT_SKIP("no CUDA device answers");
  Ranks ranks(*gpu);
  const SequenceId a = ranks.Open(CaseCache::Range(0, 40)),
                   b = ranks.Open(CaseCache::Range(50, 30));
  for (int i = 0; i < 5; ++i) {
    REQUIRE(ranks.Run({{a, 8, 0, {}}, {b, i < 3 ? 8 : 1, 0, {}}}));
    ranks.Commit({});
  }
  Result<DeviceBuffer> flag = gpu->Allocate(MemoryKind::kMappedHost, sizeof(int));
  REQUIRE(flag.ok());
  auto* const go = static_cast<volatile int*>(flag->data());
  *go = 0;
  ranks[2].LateUntil(static_cast<int*>(flag->data()));
  REQUIRE(ranks.Run({{a, 1, 0, {}}, {b, 1, 0, {}}}));
  REQUIRE(ranks.Run({{a, 1, 0, {}}, {b, 1, 0, {}}}));
  REQUIRE(ranks.All([&](Rank& rank) { return rank.cache().Close(a); }) == Code::kOk);
  ranks.Commit({});
  ranks.Commit({});
  // A newcomer takes a's blocks while the stream has not begun with its last readers.
  const SequenceId c = ranks.Open(CaseCache::Range(500, 44));
  for (int i = 0; i < 3; ++i) {
    if (i == 2) {
      // The third plan comes round to the staging of the first late step, and waits for it.
      CHECK(ranks[2].cache().Poll()->pending_events == 4);
      *go = 1;
    }
    REQUIRE(ranks.Run({{c, 15, 0, {}}, {b, 1, 0, {}}}));
    ranks.Commit({});
  }
  CHECK(ranks[0].cache().GetStats().evicted_blocks > 0);
  ranks.CompareAll();
}

TEST_CASE("A fault recorded by a replayed graph names the right step", "[cuda]") {
  auto gpu = Device::Create(BackendKind::kCuda);
  if (!gpu.ok()) LARIAT_SKIP("no CUDA device answers");
  Ranks ranks(*gpu);
  const std::vector<TokenId> prompt = CaseCache::Range(0, 9);
  const SequenceId a = ranks.Open(prompt), b = ranks.Open(CaseCache::Range(70, 20));
  REQUIRE(ranks.Run({{a, 4, 0, {}}}));
  ranks.Commit({});
  for (int i = 0; i < 5; ++i) {
    REQUIRE(ranks.Run({{b, 2, 0, {}}}));
    ranks.Commit({});
  }
  REQUIRE(ranks.Run({{b, 1, 0, {}}, {a, 5, 0, {}}}, /*poke_row=*/2));
  const std::uint64_t bad = ranks.live().front()[0].id();
  ranks.Commit({});
  REQUIRE(ranks.Run({{b, 1, 0, {}}}));  // replays behind it record nothing
  ranks.Commit({});
  ranks.CompareAll();
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    KVCache& cache = ranks[i].cache();
    const auto report = cache.Poll();
    REQUIRE(report.ok());
    REQUIRE(report->faults.size() == 1);
    CHECK(report->faults[0].step == bad);
    CHECK(report->faults[0].kind == FaultKind::kSlot);
    CHECK(report->faults[0].token == 2);
    CHECK(report->faults[0].value == kBlocks * kBlock + 9);
    CHECK(cache.Poll()->faults.empty());
    CHECK(cache.Match(prompt).tokens == 4);
    const StepItem item{a, 1, 0, {}};
    CHECK(cache.Plan(std::span(&item, 1)).status().code() == Code::kCorruptData);
    CHECK(cache.Close(a).ok());
  }
}

}  // namespace
}  // namespace lariat
