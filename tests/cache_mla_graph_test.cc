// SPDX-License-Identifier: Apache-2.0
// A cache of latents on a GPU: one call list on the CPU, eager on the GPU, and replayed from one
// captured graph behind a late stream. Rows that were given are the same bits in all three; what
// comes out of products is the same on the GPU, eager or replayed.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "support/gpu_work.h"
#include "support/mla_cache.h"

namespace lariat {
namespace {

using testing::CaseCache;
using testing::GatherParams;

constexpr int kRank = 48, kRope = 16, kWidth = kRank + kRope, kModelDim = 40;
constexpr int kHeads = 2, kNope = 8, kV = 24, kBlock = 4, kBatch = 4;
constexpr std::int64_t kBlocks = 26, kTokens = 48, kRows = 16;  // of a sequence, of a step

enum class Mode { kCpu, kEager, kGraph };

// The first layer is appended to from given rows, the second from hidden states.
CacheConfig Config() {
  CacheConfig config;
  config.layers.assign(2, {.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = kWidth, .rope = 0});
  config.ropes.emplace_back().rotary_dim = kRope;
  config.ropes[0].style = RopeStyle::kInterleavedToHalf;
  config.memory.num_blocks = kBlocks;
  config.block_size = kBlock;
  config.max_sequences = 8;
  config.max_tokens_per_sequence = kTokens;
  config.max_tokens_per_step = kRows;
  return config;
}

void Must(const Status& status) { CaseCache::Must(status); }
void Must(const char* error) {
  if (*error != '\0') FAIL(error);
}

// Where an array lies in a buffer of 2-byte elements; each begins on 256 bytes.
struct Part {
  std::size_t first = 0, count = 0;
};
class Parts {
 public:
  Part Add(std::size_t count) {
    const Part part{end_, count};
    end_ += (count + 127) / 128 * 128;
    return part;
  }
  std::size_t bytes() const { return 2 * end_; }

 private:
  std::size_t end_ = 0;
};

// What goes into a forward pass and what comes out of it.
struct Places {
  Parts in, out;
  Part rows = in.Add(kRows * kWidth), hidden = in.Add(kRows * kModelDim);
  Part cu_tokens = in.Add(2 * (kBatch + 1));  // int32
  Part norm = in.Add(kRank), w_down = in.Add(kWidth * kModelDim);
  Part w_kv_b = in.Add(kHeads * (kNope + kV) * kRank);
  Part given = out.Add(kBatch * kTokens * kWidth), projected = out.Add(kBatch * kTokens * kWidth);
  Part k = out.Add(kBatch * kTokens * kHeads * (kNope + kRope));
  Part v = out.Add(kBatch * kTokens * kHeads * kV);
};

// One cache with a stream, the inputs and outputs of its forward pass, and what the passes gave.
class Rank {
 public:
  Rank(Mode mode, const Device& device)
      : mode_(mode), device_(device), stream_(*device_.CreateStream()) {
    auto made = KVCache::Create(Config(), device_);
    if (!made.ok()) FAIL(made.status().ToString());
    cache_ = std::make_unique<KVCache>(*std::move(made));
    input_ = *device_.Allocate(MemoryKind::kDevice, places_.in.bytes());
    output_ = *device_.Allocate(MemoryKind::kDevice, places_.out.bytes());
    Must(cache_->Warmup(1, FromHidden(), stream_));
    Must(cache_->Warmup(1, Expansion(), stream_));
  }
  ~Rank() {
    (void)device_.Synchronize(stream_);
    cache_.reset();
    device_.DestroyStream(stream_);
  }
  KVCache& cache() { return *cache_; }
  Stream stream() const { return stream_; }
  void Late(double milliseconds) {
    if (mode_ == Mode::kGraph) Must(testing::Spin(stream_, milliseconds));
  }

  // Appends both layers, reads all rows of the batch and expands those of the second layer.
  void Forward(const Step& step, const std::vector<std::uint16_t>& input) {
    DeviceBuffer& staged = Stage(places_.in.bytes());
    std::memcpy(staged.data(), input.data(), places_.in.bytes());
    Must(device_.CopyToDevice(input_.data(), staged.data(), places_.in.bytes(), stream_));
    if (mode_ == Mode::kGraph) {
      if (!graph_.captured()) Must(graph_.Capture(stream_, [&] { Enqueue(step); }));
      Must(graph_.Launch(stream_));
    } else {
      Enqueue(step);
    }
    results_.push_back(&Stage(places_.out.bytes()));
    Must(device_.CopyToHost(results_.back()->data(), output_.data(), places_.out.bytes(), stream_));
  }

  void Finish() { Must(device_.Synchronize(stream_)); }
  std::size_t results() const { return results_.size(); }
  bool Same(const Rank& other, std::size_t i, const Part& part) const {
    const auto* mine = static_cast<const std::uint16_t*>(results_[i]->data()) + part.first;
    const auto* its = static_cast<const std::uint16_t*>(other.results_[i]->data()) + part.first;
    return std::memcmp(mine, its, 2 * part.count) == 0;
  }

 private:
  DeviceBuffer& Stage(std::size_t bytes) {
    return staged_.emplace_back(*device_.Allocate(MemoryKind::kPinnedHost, bytes));
  }
  std::uint16_t* In(const Part& part) const {
    return static_cast<std::uint16_t*>(input_.data()) + part.first;
  }
  std::uint16_t* Out(const Part& part) const {
    return static_cast<std::uint16_t*>(output_.data()) + part.first;
  }
  MlaAppendInputs FromRows() const {
    MlaAppendInputs in;
    in.kv_lora_rank = kRank;
    in.c_kv = In(places_.rows);
    in.k_pe = In(places_.rows) + kRank;
    in.c_kv_stride = in.k_pe_stride = kWidth;
    in.norm_weight = In(places_.norm);
    return in;
  }
  MlaAppendInputs FromHidden() const {
    MlaAppendInputs in;
    in.kv_lora_rank = kRank;
    in.hidden = In(places_.hidden);
    in.model_dim = kModelDim;
    in.w_down = In(places_.w_down);
    in.norm_weight = In(places_.norm);
    return in;
  }
  MlaExpandInputs Expansion() const {
    MlaExpandInputs in;
    in.kv_lora_rank = kRank;
    in.heads = kHeads;
    in.nope_dim = kNope;
    in.v_dim = kV;
    in.w_kv_b = In(places_.w_kv_b);
    in.num_tokens = kBatch * kTokens;
    in.cu_tokens = reinterpret_cast<const std::int32_t*>(In(places_.cu_tokens));
    in.k = Out(places_.k);
    in.v = Out(places_.v);
    return in;
  }
  void Gather(int layer, const Part& part) {
    GatherParams gather{cache_->View(), *cache_->Layer(layer), kBatch, kTokens, Out(part)};
    if (mode_ == Mode::kCpu) {
      testing::GatherOnHost(gather);
    } else {
      Must(testing::GatherOnDevice(gather, stream_));
    }
  }
  void Enqueue(const Step& step) {
    Must(device_.Fill(output_.data(), 0xEE, places_.out.bytes(), stream_));
    Must(cache_->MlaAppend(step, 0, FromRows(), stream_));
    Must(cache_->MlaAppend(step, 1, FromHidden(), stream_));
    Gather(0, places_.given);
    Gather(1, places_.projected);
    Must(cache_->MlaExpand(step, 1, Expansion(), stream_));
  }

  const Places places_;
  Mode mode_;
  Device device_;
  Stream stream_;
  std::unique_ptr<KVCache> cache_;
  DeviceBuffer input_, output_;
  testing::Graph graph_;
  std::deque<DeviceBuffer> staged_;  // lives until the stream has passed
  std::vector<DeviceBuffer*> results_;
};

// One call list on all ranks; they must answer alike.
class Ranks {
 public:
  explicit Ranks(const Device& gpu) : random_(19) {
    ranks_.push_back(std::make_unique<Rank>(Mode::kCpu, *Device::Create(BackendKind::kCpu)));
    ranks_.push_back(std::make_unique<Rank>(Mode::kEager, gpu));
    ranks_.push_back(std::make_unique<Rank>(Mode::kGraph, gpu));
  }
  Rank& operator[](std::size_t i) { return *ranks_[i]; }

  template <class F>
  Code All(F call) {
    const Code first = call(*ranks_[0]).code();
    for (std::size_t i = 1; i < ranks_.size(); ++i) {
      REQUIRE(call(*ranks_[i]).code() == first);
      REQUIRE(ranks_[i]->cache().Snapshot() == ranks_[0]->cache().Snapshot());
    }
    return first;
  }
  SequenceId Open(const std::vector<TokenId>& prompt) {
    SequenceId id = SequenceId::kNone;
    REQUIRE(All([&](Rank& rank) {
              auto opened = rank.cache().Open(prompt);
              if (opened.ok()) id = *opened;
              return opened.status();
            }) == Code::kOk);
    return id;
  }
  bool Run(const std::vector<StepItem>& items) {
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
    const std::vector<std::uint16_t> input = Input(steps[0]);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Must(ranks_[i]->cache().Prepare(steps[i], ranks_[i]->stream()));
      ranks_[i]->Forward(steps[i], input);
    }
    return true;
  }
  void Commit() {
    std::size_t next = 0;
    REQUIRE(All([&](Rank& rank) {
              return rank.cache().Commit(live_.front()[next++], {}, rank.stream());
            }) == Code::kOk);
    live_.pop_front();
  }
  std::size_t live() const { return live_.size(); }
  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  void CompareAll() {
    const Places places;
    for (auto& rank : ranks_) rank->Finish();
    for (std::size_t n = 0; n < ranks_[0]->results(); ++n) {
      CAPTURE(n);
      REQUIRE(ranks_[1]->Same(*ranks_[0], n, places.given));
      for (const Part& part : {places.given, places.projected, places.k, places.v}) {
        REQUIRE(ranks_[2]->Same(*ranks_[1], n, part));
      }
    }
  }

 private:
  // bf16 of sizes near 1, and where each sequence's expanded rows begin.
  std::vector<std::uint16_t> Input(const Step& step) {
    const Places places;
    std::vector<std::uint16_t> input(places.in.bytes() / 2);
    for (std::uint16_t& x : input) {
      const std::uint64_t bits = random_();
      x = static_cast<std::uint16_t>((bits & 0x8000) | ((120 + (bits >> 20) % 8) << 7) |
                                     ((bits >> 32) & 0x7f));
    }
    std::int32_t cu_tokens[kBatch + 1] = {};
    for (int b = 0; b < kBatch; ++b) {
      const bool real = b < std::ssize(step.rows());
      const auto row = static_cast<std::size_t>(b);
      const std::int64_t length = real ? step.rows()[row].start + step.rows()[row].count : 0;
      cu_tokens[b + 1] = cu_tokens[b] + static_cast<std::int32_t>(length);
    }
    std::memcpy(&input[places.cu_tokens.first], cu_tokens, sizeof(cu_tokens));
    return input;
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::deque<std::vector<Step>> live_;  // of each rank
};

TEST_CASE("One captured graph appends and expands the latents of 60 changing steps", "[cuda]") {
  auto gpu = Device::Create(BackendKind::kCuda);
  if (!gpu.ok()) LARIAT_SKIP("no CUDA device answers");
  Ranks ranks(*gpu);
  std::vector<SequenceId> open;
  int steps = 0;
  for (int turn = 0; steps < 60 && turn < 2000; ++turn) {
    if (open.size() < 6 && ranks.Roll(2) == 0) {
      const TokenId first = static_cast<TokenId>(100 * ranks.Roll(3));
      open.push_back(ranks.Open(CaseCache::Range(first, 1 + ranks.Roll(20))));
    }
    if (ranks.Roll(8) == 0) ranks[2].Late(2.0);
    std::vector<StepItem> items;
    for (const SequenceId id : open) {
      const Extent extent = *ranks[0].cache().GetExtent(id);
      const std::int64_t rows = std::min<std::int64_t>(1 + ranks.Roll(4), kTokens - extent.planned);
      if (rows >= 1 && items.size() < kBatch) items.push_back({id, rows, 0, {}});
    }
    const bool ran = !items.empty() && ranks.Run(items);
    steps += ran ? 1 : 0;
    if (!open.empty() && (!ran || ranks.Roll(4) == 0)) {  // in flight or not
      const auto victim = static_cast<std::size_t>(ranks.Roll(std::ssize(open)));
      REQUIRE(ranks.All([&](Rank& rank) { return rank.cache().Close(open[victim]); }) == Code::kOk);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    while (ranks.live() > static_cast<std::size_t>(ranks.Roll(4) == 0 ? 0 : 1)) ranks.Commit();
  }
  while (ranks.live() > 0) ranks.Commit();
  CHECK(steps == 60);
  CHECK(ranks[0].cache().GetStats().hit_tokens > 0);
  CHECK(ranks[0].cache().GetStats().evicted_blocks > 0);
  ranks.CompareAll();
}

TEST_CASE("What Warmup makes is missed while a stream is captured", "[cuda]") {
  auto gpu = Device::Create(BackendKind::kCuda);
  if (!gpu.ok()) LARIAT_SKIP("no CUDA device answers");
  Device device = *gpu;
  KVCache cache = testing::Make(Config(), device);
  const Stream stream = *device.CreateStream();
  DeviceBuffer memory = *device.Allocate(MemoryKind::kDevice, 2 * kRows * kModelDim * kWidth);
  Must(device.Fill(memory.data(), 0, memory.size(), stream));
  MlaAppendInputs hidden;
  hidden.kv_lora_rank = kRank;
  hidden.hidden = hidden.w_down = memory.data();
  hidden.model_dim = kModelDim;
  MlaAppendInputs given;
  given.kv_lora_rank = kRank;
  given.c_kv = given.k_pe = memory.data();
  const SequenceId id = *cache.Open(CaseCache::Range(0, 5));
  const StepItem item{id, 5, 0, {}};
  Step step = *cache.Plan(std::span(&item, 1));
  Must(cache.Prepare(step, stream));
  Status from_rows, from_hidden;
  {
    testing::Graph graph;
    Must(graph.Capture(stream, [&] {
      from_rows = cache.MlaAppend(step, 0, given, stream);  // needs nothing made
      from_hidden = cache.MlaAppend(step, 1, hidden, stream);
    }));
    CHECK(from_rows.code() == Code::kOk);
    CHECK(from_hidden.code() == Code::kNotReady);
    Must(cache.Warmup(1, hidden, stream));
  }
  testing::Graph graph;
  Must(graph.Capture(stream, [&] { from_hidden = cache.MlaAppend(step, 1, hidden, stream); }));
  CHECK(from_hidden.code() == Code::kOk);
  Must(graph.Launch(stream));
  Must(cache.Commit(step, {}, stream));
  Must(device.Synchronize(stream));
  CHECK(cache.Poll()->faults.empty());
  device.DestroyStream(stream);
}

}  // namespace
}  // namespace lariat
