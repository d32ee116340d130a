// SPDX-License-Identifier: Apache-2.0
// `lariat bench tier`: sequences that are suspended and resumed through KVCache, and steps beside
// them. docs/benchmarks.md says what is timed.
#include "bench_tier.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "bench_data.h"
#include "bench_shape.h"
#include "bench_tier_appends.h"
#include "bench_timer.h"
#include "lariat/kv_cache.h"

namespace lariat::tools {
namespace {

constexpr int kBlock = 16;
constexpr int kMoves = 11;       // samples of a move
constexpr int kSteps = 1000;     // samples of a step, at most
constexpr double kPatience = 5;  // seconds for them

struct Shape {
  std::int64_t layers = 32, kv_heads = 8, dim = 128;
  std::int64_t blocks = 128;    // of a sequence that moves
  std::int64_t sequences = 64;  // of a step of decoding
  std::int64_t tokens = 4096;   // of a step whose appends are timed
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Quantile(std::vector<double>& samples, double q) {
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), samples.begin() + at, samples.end());
  return samples[static_cast<std::size_t>(at)];
}

// A cache with two sequences that move and a server's steps. The first call that fails ends it all:
// see status().
class World {
 public:
  World(Device device, const Shape& shape);
  ~World() {
    cache_.reset();
    for (const Stream& stream : {stream_, up_stream_}) device_.DestroyStream(stream);
  }
  const Status& status() const { return status_; }
  Status Run(std::vector<TierRow>& rows, const std::string& shape);

 private:
  bool Check(const Status& status) {
    if (status_.ok()) status_ = status;
    return status_.ok();
  }
  template <class T>
  T Take(Result<T> result) {
    return Check(result.status()) ? *std::move(result) : T{};
  }
  SequenceId Grown(std::int64_t tokens);
  // Until Poll has told of the transfer.
  void Wait(TransferId transfer);
  double Suspend(SequenceId sequence);
  double Resume(SequenceId sequence);
  double Both(SequenceId up, SequenceId down);
  double Whole(bool down, bool up);
  std::vector<std::byte> Rows(SequenceId sequence);
  void MoveRows(std::vector<TierRow>& rows, const std::string& shape);

  // Seconds of Prepare, with its tables; and of its tables alone, on the device's clock.
  double PrepareDecode();
  double UploadDecode(Timer& timer);
  template <class Sample>
  void StepRows(std::vector<TierRow>& rows, const std::string& shape, const char* name,
                Sample sample);
  void AppendRows(std::vector<TierRow>& rows, const std::string& shape);
  // Starts a suspend and a resume at once, and says whether both are on their way still.
  void StartPair();
  bool PairRuns();
  void EndPair();

  Shape shape_;
  Device device_;
  Stream stream_;
  Status status_;
  std::int64_t bytes_ = 0;  // of a sequence that moves
  std::unique_ptr<KVCache> cache_;
  SequenceId moves_[2] = {};
  std::vector<StepItem> decode_;
  StepItem chunk_;
  DeviceBuffer rows_in_;
  DeviceBuffer whole_down_, pages_down_, whole_up_, pages_up_;
  Stream up_stream_;
  TransferId up_ = TransferId::kNone, down_ = TransferId::kNone;
  bool up_done_ = false, down_done_ = false;
};

World::World(Device device, const Shape& shape) : shape_(shape), device_(std::move(device)) {
  CacheConfig config;
  const LayerSpec layer{.kv_heads = static_cast<int>(shape.kv_heads),
                        .k_dim = static_cast<int>(shape.dim),
                        .v_dim = static_cast<int>(shape.dim)};
  config.layers.assign(static_cast<std::size_t>(shape.layers), layer);
  config.block_size = kBlock;
  config.reuse = Reuse::kNone;  // a suspended sequence leaves nothing on the device
  config.max_sequences = static_cast<int>(shape.sequences) + 3;
  config.max_tokens_per_sequence = std::max(shape.blocks * kBlock, shape.tokens);
  config.max_tokens_per_step = config.max_tokens_per_sequence;
  config.memory.num_blocks = 3 * shape.blocks + shape.sequences + shape.tokens / kBlock + 2;
  config.host.num_blocks = 2 * shape.blocks;
  Result<KVCache> made = KVCache::Create(config, device_);
  if (!Check(made.status())) return;
  cache_ = std::make_unique<KVCache>(*std::move(made));
  bytes_ = shape.blocks * cache_->footprint().bytes_per_block;
  stream_ = Take(device_.CreateStream());
  up_stream_ = Take(device_.CreateStream());
  const auto bytes = static_cast<std::size_t>(bytes_);
  whole_down_ = Take(device_.Allocate(MemoryKind::kDevice, bytes));
  whole_up_ = Take(device_.Allocate(MemoryKind::kDevice, bytes));
  pages_down_ = Take(device_.Allocate(MemoryKind::kPinnedHost, bytes));
  pages_up_ = Take(device_.Allocate(MemoryKind::kPinnedHost, bytes));
  std::mt19937_64 random(1);
  const std::int64_t row = shape.kv_heads * shape.dim;
  rows_in_ = Take(Upload(
      device_, RandomElements(DType::kBF16, config.max_tokens_per_step * row, random), stream_));
  if (!status_.ok()) return;
  for (SequenceId& id : moves_) id = Grown(shape.blocks * kBlock);
  for (std::int64_t i = 0; i < shape.sequences; ++i) decode_.push_back({Grown(1), 1, 0, {}});
  chunk_ = {Take(cache_->Open({})), shape.tokens, 0, {}};
}

// A sequence of random rows.
SequenceId World::Grown(std::int64_t tokens) {
  const SequenceId id = Take(cache_->Open({}));
  const StepItem item{id, tokens, 0, {}};
  Result<lariat::Step> step = cache_->Plan({&item, 1});
  if (!Check(step.status()) || !Check(cache_->Prepare(*step, stream_))) return id;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const AppendInputs inputs{.dtype = DType::kBF16, .k = rows_in_.data(), .v = rows_in_.data()};
    if (!Check(cache_->Append(*step, layer, inputs, stream_))) return id;
  }
  Check(cache_->Commit(*step, {}, stream_));
  Check(device_.Synchronize(stream_));
  return id;
}

void World::Wait(TransferId transfer) {
  while (status_.ok()) {
    const PollReport report = Take(cache_->Poll());
    for (const TransferReport& one : report.finished_transfers) {
      if (one.id == transfer) return;
    }
  }
}

double World::Suspend(SequenceId sequence) {
  const double begin = Now();
  Wait(Take(cache_->Suspend(sequence)));
  return Now() - begin;
}

double World::Resume(SequenceId sequence) {
  const double begin = Now();
  const TransferId transfer = Take(cache_->Resume(sequence));
  if (status_.ok()) Take(cache_->Accept(transfer));
  return Now() - begin;
}

double World::Both(SequenceId up, SequenceId down) {
  const double begin = Now();
  const TransferId resumed = Take(cache_->Resume(up));
  const TransferId suspended = Take(cache_->Suspend(down));
  if (status_.ok()) Take(cache_->Accept(resumed));
  Wait(suspended);
  return Now() - begin;
}

// The same bytes in one copy each way.
double World::Whole(bool down, bool up) {
  const auto bytes = static_cast<std::size_t>(bytes_);
  const double begin = Now();
  if (down) {
    Check(device_.CopyToHost(pages_down_.data(), whole_down_.data(), bytes, stream_));
  }
  if (up) Check(device_.CopyToDevice(whole_up_.data(), pages_up_.data(), bytes, up_stream_));
  if (down) Check(device_.Synchronize(stream_));
  if (up) Check(device_.Synchronize(up_stream_));
  return Now() - begin;
}

// Of the first and the last layer.
std::vector<std::byte> World::Rows(SequenceId sequence) {
  const std::int64_t tokens = shape_.blocks * kBlock;
  const auto plane = static_cast<std::size_t>(tokens * shape_.kv_heads * shape_.dim * 2);
  std::vector<std::byte> rows(4 * plane);
  std::byte* to = rows.data();
  for (const int layer : {0, static_cast<int>(shape_.layers) - 1}) {
    Check(cache_->ReadRows(sequence, layer, 0, tokens, to, to + plane));
    to += 2 * plane;
  }
  return rows;
}

void World::MoveRows(std::vector<TierRow>& rows, const std::string& shape) {
  const std::vector<std::byte> before = Rows(moves_[0]);
  Suspend(moves_[0]);
  Suspend(moves_[1]);
  Resume(moves_[0]);
  if (status_.ok() && Rows(moves_[0]) != before) {
    Check(CorruptData("tier: rows came back from the host as others"));
  }
  std::vector<double> moves[3], wholes[3];  // down, up, both
  for (int i = 0; i < kMoves && status_.ok(); ++i) {
    moves[0].push_back(Suspend(moves_[0]));
    wholes[0].push_back(Whole(true, false));
    moves[1].push_back(Resume(moves_[0]));
    wholes[1].push_back(Whole(false, true));
    moves[2].push_back(Both(moves_[1], moves_[0]));
    wholes[2].push_back(Whole(true, true));
    std::swap(moves_[0], moves_[1]);
  }
  if (!status_.ok()) return;
  const char* const names[] = {"tier-suspend", "tier-resume", "tier-both"};
  for (int i = 0; i < 3; ++i) {
    const double gigabytes = (i == 2 ? 2 : 1) * static_cast<double>(bytes_) / 1e9;
    TierRow row{names[i], shape, Quantile(moves[i], 0.5), Quantile(moves[i], 0.99)};
    row.gb_per_s = gigabytes / row.median_s;
    row.ceiling = gigabytes / Quantile(wholes[i], 0.5);
    rows.push_back(row);
  }
}

// Of a step that is discarded.
double World::PrepareDecode() {
  Result<lariat::Step> step = cache_->Plan(decode_);
  if (!Check(step.status())) return 0;
  const double begin = Now();
  if (!Check(cache_->Prepare(*step, stream_))) return 0;
  Check(device_.Synchronize(stream_));
  const double end = Now();
  Check(cache_->Discard(*step, stream_));
  return end - begin;
}

double World::UploadDecode(Timer& timer) {
  Result<lariat::Step> step = cache_->Plan(decode_);
  if (!Check(step.status())) return 0;
  const double seconds = Take(timer.Once(stream_, [&] { return cache_->Prepare(*step, stream_); }));
  if (status_.ok()) Check(cache_->Discard(*step, stream_));
  return seconds;
}

// The resume first: it takes blocks that no copy reads.
void World::StartPair() {
  up_ = Take(cache_->Resume(moves_[1]));
  down_ = Take(cache_->Suspend(moves_[0]));
  up_done_ = down_done_ = false;
  std::swap(moves_[0], moves_[1]);
}

bool World::PairRuns() {
  for (const TransferReport& one : Take(cache_->Poll()).finished_transfers) {
    up_done_ = up_done_ || one.id == up_;
    down_done_ = down_done_ || one.id == down_;
  }
  return !up_done_ && !down_done_;
}

void World::EndPair() {
  if (status_.ok()) Take(cache_->Accept(up_));
  while (status_.ok() && !down_done_) PairRuns();
}

// Alone, and beside copies in both directions: of those only samples count that both outlasted.
template <class Sample>
void World::StepRows(std::vector<TierRow>& rows, const std::string& shape, const char* name,
                     Sample sample) {
  std::vector<double> alone, beside;
  for (int i = 0; i < 3 && status_.ok(); ++i) sample();  // warm-up
  double begin = Now();
  while (std::ssize(alone) < kSteps && status_.ok() && Now() - begin < kPatience) {
    alone.push_back(sample());
  }
  if (!status_.ok()) return;
  rows.push_back({name, shape, Quantile(alone, 0.5), Quantile(alone, 0.99)});
  begin = Now();
  for (int pairs = 0; std::ssize(beside) < kSteps && status_.ok() && Now() - begin < kPatience;
       ++pairs) {
    if (pairs == 10 && beside.empty()) return;  // copies that run at once leave no room beside
    StartPair();
    while (status_.ok() && PairRuns()) {
      const double seconds = sample();
      if (PairRuns()) beside.push_back(seconds);
    }
    EndPair();
  }
  if (!status_.ok() || beside.empty()) return;
  TierRow row{std::string(name) + "-beside", shape, Quantile(beside, 0.5), Quantile(beside, 0.99)};
  row.alone = row.median_s / Quantile(alone, 0.5);
  rows.push_back(row);
}

// One step's appends, again and again.
void World::AppendRows(std::vector<TierRow>& rows, const std::string& shape) {
  Result<lariat::Step> step = cache_->Plan(std::span<const StepItem>(&chunk_, 1));
  if (!Check(step.status()) || !Check(cache_->Prepare(*step, stream_))) return;
  CacheAppends appends(*cache_, *step, rows_in_.data());
  const std::unique_ptr<Timer> timer = MakeTimer(device_);
  if (Check(timer->Begin(appends, stream_))) {
    StepRows(rows, shape, "tier-append", [&] { return Take(timer->Sample()); });
  }
  timer->End();
  Check(cache_->Discard(*step, stream_));
}

Status World::Run(std::vector<TierRow>& rows, const std::string& shape) {
  if (status_.ok()) MoveRows(rows, shape);
  if (status_.ok()) StepRows(rows, shape, "tier-prepare", [&] { return PrepareDecode(); });
  if (status_.ok()) {
    const std::unique_ptr<Timer> timer = MakeTimer(device_);
    StepRows(rows, shape, "tier-upload", [&] { return UploadDecode(*timer); });
  }
  if (status_.ok()) AppendRows(rows, shape);
  return status_;
}

}  // namespace

Result<std::vector<TierRow>> RunTierBench(Device device, const std::vector<std::string>& shapes) {
  std::vector<TierRow> rows;
  for (const std::string& text : shapes.empty() ? std::vector<std::string>{""} : shapes) {
    Shape shape;
    const ShapeField fields[] = {{"layers", &shape.layers, 1, 1024},
                                 {"kv_heads", &shape.kv_heads, 1, 1024},
                                 {"dim", &shape.dim, 2, 512},
                                 {"blocks", &shape.blocks, 1, 1 << 16},
                                 {"sequences", &shape.sequences, 1, 4096},
                                 {"tokens", &shape.tokens, 1, 1 << 16}};
    if (Status read = ReadShape(text, fields); !read.ok()) return read;
    World world(device, shape);
    if (Status run = world.Run(rows, ShapeText(fields)); !run.ok()) return run;
  }
  return rows;
}

}  // namespace lariat::tools
