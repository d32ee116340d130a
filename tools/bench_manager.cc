// SPDX-License-Identifier: Apache-2.0
// `lariat bench manager`: prompts that come and go, decode steps and partial matches, in pools that
// are full and whose blocks are in random order. docs/benchmarks.md says what is timed.
#include "bench_manager.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "bench_shape.h"
#include "lariat/kv_cache.h"

namespace lariat::tools {
namespace {

constexpr int kBlock = 16;
constexpr std::int64_t kPrompt = 4096;
constexpr std::int64_t kPromptBlocks = kPrompt / kBlock;

struct Shape {
  std::int64_t blocks = 32768;
  std::int64_t sequences = 1000;
  std::int64_t children = 100000;
};

double Seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A cache and the calls of a server. The first call that fails ends it all: see status().
class World {
 public:
  World(std::int64_t blocks, std::int64_t sequences, Reuse reuse) {
    CacheConfig config;
    config.layers = {{.kv_heads = 1, .k_dim = 2, .v_dim = 2}};
    config.backend = BackendKind::kNull;
    config.memory.num_blocks = blocks;
    config.block_size = kBlock;
    config.reuse = reuse;
    config.max_sequences = static_cast<int>(sequences);
    config.max_tokens_per_sequence = 2 * kPrompt;
    config.max_tokens_per_step = std::max(kPrompt, sequences);
    Result<KVCache> made = KVCache::Create(config);
    if (Check(made.status())) cache_ = std::make_unique<KVCache>(*std::move(made));
  }

  KVCache& cache() { return *cache_; }
  const Status& status() const { return status_; }
  std::mt19937_64& random() { return random_; }
  bool Check(const Status& status) {
    if (status_.ok()) status_ = status;
    return status_.ok();
  }

  void Fill(std::span<TokenId> tokens) {
    for (TokenId& token : tokens) token = static_cast<TokenId>(random_() % 128000);
  }
  void RunStep(std::span<const StepItem> items, std::span<const StepCommit> commits) {
    Result<Step> step = cache_->Plan(items);
    if (!Check(step.status()) || !Check(cache_->Prepare(*step, {}))) return;
    Check(cache_->Commit(*step, commits, {}));
  }
  SequenceId Open(std::span<const TokenId> prompt) {
    Result<SequenceId> opened = cache_->Open(prompt);
    return Check(opened.status()) ? *opened : SequenceId::kNone;
  }
  // Match, Open, Plan, Prepare and Commit of a whole prompt, and its end.
  void Serve(std::span<const TokenId> prompt) {
    benchmark::DoNotOptimize(cache_->Match(prompt));
    const StepItem item{Open(prompt), std::ssize(prompt), 0, {}};
    RunStep(std::span(&item, 1), {});
    if (status_.ok()) Check(cache_->Close(item.sequence));
  }
  // Fills the pool with prompts of one block each, closed in random order: so blocks are evicted,
  // and then taken, in random order.
  void Scatter() {
    const std::int64_t blocks = cache_->GetStats().total_blocks;
    const std::int64_t batch = std::min<std::int64_t>(cache_->config().max_sequences, 256);
    std::vector<TokenId> prompt(kBlock);
    std::vector<SequenceId> open;
    for (std::int64_t left = blocks; left > 0 && status_.ok();) {
      std::vector<StepItem> items;
      for (; std::ssize(items) < std::min(batch, blocks) && left > 0; --left) {
        Fill(prompt);
        items.push_back({Open(prompt), kBlock, 0, {}});
      }
      RunStep(items, {});
      std::shuffle(items.begin(), items.end(), random_);
      for (const StepItem& item : items) {
        if (status_.ok()) Check(cache_->Close(item.sequence));
      }
    }
    // Again, as each of those batches is a run of blocks: many prompts take from many of them.
    for (std::int64_t i = 0; i < 2 * blocks / kPromptBlocks && status_.ok(); ++i) {
      std::vector<TokenId> unique(static_cast<std::size_t>(kPrompt));
      Fill(unique);
      Serve(unique);
    }
  }

 private:
  std::unique_ptr<KVCache> cache_;
  Status status_;
  std::mt19937_64 random_{12345};
};

// Times `sample`, which returns seconds, so many times; each time is that of `units` units.
using Sample = std::function<double()>;

ManagerRow Measure(const std::string& op, const std::string& shape, const std::string& per,
                   std::int64_t units, std::int64_t samples, const Sample& sample) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(samples));
  benchmark::RegisterBenchmark(op.c_str(),
                               [&](benchmark::State& state) {
                                 times.clear();
                                 for ([[maybe_unused]] auto iteration : state) {
                                   const double seconds = sample();
                                   state.SetIterationTime(seconds);
                                   times.push_back(seconds / static_cast<double>(units));
                                 }
                               })
      ->UseManualTime()
      ->Iterations(samples);
  struct Silent : benchmark::BenchmarkReporter {
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>&) override {}
  } silent;
  benchmark::RunSpecifiedBenchmarks(&silent);
  benchmark::ClearRegisteredBenchmarks();
  std::sort(times.begin(), times.end());
  return {op, shape, per, times[times.size() / 2], times[times.size() * 99 / 100]};
}

template <class F>
double Timed(F&& call) {
  const double start = Seconds();
  call();
  return Seconds() - start;
}

Result<ManagerRow> Cold(const Shape& shape, const std::string& text) {
  World world(shape.blocks, 256, Reuse::kBlock);
  if (world.status().ok()) world.Scatter();
  if (!world.status().ok()) return world.status();
  std::vector<TokenId> prompt(static_cast<std::size_t>(kPrompt));
  ManagerRow row = Measure("manager-cold", text, "block", kPromptBlocks, 400, [&] {
    world.Fill(prompt);
    return Timed([&] { world.Serve(prompt); });
  });
  if (!world.status().ok()) return world.status();
  return row;
}

Result<ManagerRow> Warm(const Shape& shape, const std::string& text) {
  World world(shape.blocks, 256, Reuse::kBlock);
  if (world.status().ok()) world.Scatter();
  // One prompt's room is left for the blocks that every prompt has to itself.
  const std::int64_t count = shape.blocks / kPromptBlocks - 1;
  std::vector<std::vector<TokenId>> prompts(static_cast<std::size_t>(count));
  for (std::vector<TokenId>& prompt : prompts) {
    prompt.resize(static_cast<std::size_t>(kPrompt));
    world.Fill(prompt);
    if (world.status().ok()) world.Serve(prompt);
  }
  if (!world.status().ok()) return world.status();
  ManagerRow row = Measure("manager-warm", text, "block", kPromptBlocks, 1000, [&] {
    const auto which = world.random()() % prompts.size();
    return Timed([&] { world.Serve(prompts[which]); });
  });
  if (!world.status().ok()) return world.status();
  const std::int64_t hit = world.cache().GetStats().hit_tokens;
  if (hit < 1000 * (kPrompt - kBlock)) return CorruptData("a prompt that is cached was not found");
  return row;
}

Result<ManagerRow> DecodeStep(const Shape& shape, const std::string& text) {
  const std::int64_t samples = 200;
  const std::int64_t blocks = shape.sequences * (2 + (samples + kBlock - 1) / kBlock);
  World world(std::max(blocks, 2 * kPromptBlocks), shape.sequences, Reuse::kBlock);
  if (world.status().ok()) world.Scatter();
  std::vector<StepItem> items;
  std::vector<StepCommit> commits;
  std::vector<TokenId> prompt(kBlock), fed(static_cast<std::size_t>(shape.sequences));
  for (std::size_t i = 0; i < fed.size() && world.status().ok(); ++i) {
    world.Fill(prompt);
    const SequenceId id = world.Open(std::span(prompt).first(1 + i % kBlock));
    const StepItem first{id, kBlock, 0, {}};
    world.RunStep(std::span(&first, 1), {});
    items.push_back({id, 1, 0, {}});
    commits.push_back({id, 1, std::span(&fed[i], 1)});
  }
  if (!world.status().ok()) return world.status();
  ManagerRow row = Measure("manager-step", text, "sequence", shape.sequences, samples, [&] {
    world.Fill(fed);
    return Timed([&] { world.RunStep(items, commits); });
  });
  if (!world.status().ok()) return world.status();
  return row;
}

Result<ManagerRow> Partial(const Shape& shape, const std::string& text) {
  World world(shape.children + 16, 1, Reuse::kToken);
  std::vector<TokenId> prompt(2 * kBlock);  // without a tail, which would take a block too
  world.Fill(prompt);
  const std::span<TokenId> child = std::span(prompt).subspan(kBlock, kBlock);
  std::vector<std::vector<TokenId>> asked;
  for (std::int64_t i = 0; i < shape.children && world.status().ok(); ++i) {
    world.Fill(child);
    world.Serve(prompt);
    if (i % 97 == 0) asked.push_back(prompt);
  }
  if (!world.status().ok()) return world.status();
  for (std::vector<TokenId>& one : asked) {
    one.push_back(0);
    world.Fill(std::span(one).subspan(kBlock + kBlock / 2));  // half a block agrees
    if (world.cache().Match(one).tokens < kBlock + kBlock / 2) {
      return CorruptData("a prompt that is cached in part was not found");
    }
  }
  constexpr std::int64_t kMatches = 16;
  return Measure("manager-partial", text, "match", kMatches, 2000, [&] {
    const std::size_t at = world.random()() % asked.size();
    return Timed([&] {
      for (std::size_t i = 0; i < kMatches; ++i) {
        benchmark::DoNotOptimize(world.cache().Match(asked[(at + 37 * i) % asked.size()]));
      }
    });
  });
}

using Case = Result<ManagerRow> (*)(const Shape& shape, const std::string& text);

Status Add(Case run, const Shape& shape, const char* key, std::int64_t value,
           std::vector<ManagerRow>& rows) {
  try {
    Result<ManagerRow> row = run(shape, std::string(key) + "=" + std::to_string(value));
    if (!row.ok()) return row.status();
    rows.push_back(*std::move(row));
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("takes more memory than there is");
  }
}

}  // namespace

Result<std::vector<ManagerRow>> RunManagerBench(const std::vector<std::string>& shapes) {
  std::vector<Shape> given;
  for (const std::string& text : shapes) {
    Shape shape;
    const ShapeField fields[] = {{"blocks", &shape.blocks, 2 * kPromptBlocks, 1 << 24},
                                 {"sequences", &shape.sequences, 1, 1 << 17},
                                 {"children", &shape.children, 2 * kPromptBlocks, 1 << 24}};
    if (Status read = ReadShape(text, fields); !read.ok()) return read;
    given.push_back(shape);
  }
  if (given.empty()) given = {{}, {std::int64_t{1} << 20, 10000, 0}};
  std::vector<ManagerRow> rows;
  for (const Shape& s : given) {
    Status added = Add(Cold, s, "blocks", s.blocks, rows);
    if (added.ok()) added = Add(Warm, s, "blocks", s.blocks, rows);
    if (added.ok()) added = Add(DecodeStep, s, "sequences", s.sequences, rows);
    if (added.ok() && s.children > 0) added = Add(Partial, s, "children", s.children, rows);
    if (!added.ok()) return added;
  }
  return rows;
}

}  // namespace lariat::tools
