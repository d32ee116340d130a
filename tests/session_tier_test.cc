// SPDX-License-Identifier: Apache-2.0
// A session over a cache with a host tier: prompts that are fetched, requests that are swapped.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lariat/device.h"
#include "lariat/session.h"
#include "support/catch.h"
#include "support/scripted_executor.h"
#include "support/session_world.h"

using namespace lariat;
using namespace lariat::test;

namespace {

// A model on whose clock each block takes some seconds each way, or one that does not say.
class TierExecutor : public ScriptedExecutor {
 public:
  double TransferSeconds(const TransferWork& work) override {
    CHECK(work.bytes == work.blocks * block_bytes);
    (work.to_device ? up : down) += work.blocks;
    return seconds_per_block < 0 ? -1 : seconds_per_block * static_cast<double>(work.blocks);
  }
  bool PrefersSwap(std::int64_t tokens, const TransferWork& work) override {
    asked_tokens = tokens;
    CHECK(work.blocks == (tokens + 3) / 4);
    return prefers;
  }
  double seconds_per_block = 0;
  std::int64_t block_bytes = 0, up = 0, down = 0, asked_tokens = 0;
  bool prefers = true;
};

struct TierWorld {
  TierWorld(std::int64_t blocks, std::int64_t host_blocks, Preempt preempt, double seconds,
            bool late = false, int max_batch = 8)
      : cache(Make(blocks, host_blocks, late)), observer(&cache) {
    model.seconds_per_block = seconds;
    model.block_bytes = cache.footprint().bytes_per_block;
    Result<Session> made = Session::Create(
        cache, model, {.max_batch = max_batch, .max_step_tokens = 64, .preempt = preempt},
        &observer);
    REQUIRE(made.ok());
    session.emplace(*std::move(made));
  }
  static KVCache Make(std::int64_t blocks, std::int64_t host_blocks, bool late) {
    CacheConfig config;
    config.layers = {LayerSpec{.kv_heads = 1, .k_dim = 2, .v_dim = 2}};
    config.backend = BackendKind::kNull;
    config.memory.num_blocks = blocks;
    config.host.num_blocks = host_blocks;
    config.host.write = WritePolicy::kThrough;
    config.block_size = 4;
    config.max_sequences = 9;
    config.max_tokens_per_sequence = 200;
    config.max_tokens_per_step = 64;
    Result<Device> device =
        late ? Device::CreateDeferred(BackendKind::kNull, 7) : Device::Create(BackendKind::kNull);
    REQUIRE(device.ok());
    Result<KVCache> cache = KVCache::Create(config, *device);
    REQUIRE(cache.ok());
    return *std::move(cache);
  }
  void Add(Request request) { REQUIRE(session->Add(std::move(request)).ok()); }
  void Run() { RunAll(*session); }
  void CheckEmpty() const { test::CheckEmpty(cache); }

  KVCache cache;
  TierExecutor model;
  RecordingObserver observer;
  std::optional<Session> session;
};

// Every request has its own tokens in order, whatever became of it in between.
void CheckOutputs(const TierWorld& world, std::int64_t requests) {
  CHECK(std::ssize(world.observer.done) == requests);
  for (const RequestResult& done : world.observer.done) {
    CHECK(done.outcome == Outcome::kFinished);
    std::vector<TokenId> expected(static_cast<std::size_t>(done.output_tokens));
    std::iota(expected.begin(), expected.end(), static_cast<TokenId>(1000 * (done.tag + 1)));
    CHECK(world.observer.streamed.at(done.tag) == expected);
  }
  world.CheckEmpty();
}

}  // namespace

TEST_CASE("A prompt that is in host memory alone is fetched and not computed again") {
  // Three prompts of five blocks in a pool of eight: the first is evicted by the others.
  TierWorld world(8, 32, Preempt::kRecompute, /*seconds=*/0.25);
  world.Add(MakeRequest(0, 20, 2, 100));
  world.Run();
  world.Add(MakeRequest(1, 20, 2, 200));
  world.Run();
  world.Add(MakeRequest(2, 20, 2, 300));
  world.Run();
  CHECK(world.session->stats().fetches == 0);
  const double before = world.session->now();
  world.Add(MakeRequest(3, 20, 2, 100));
  world.Run();
  const SessionStats& stats = world.session->stats();
  CHECK(stats.fetches == 1);
  CHECK(world.model.up >= 1);
  CHECK(world.observer.done.back().host_hit_tokens == stats.host_hit_tokens);
  // At least one token is computed: four of the five blocks can be found.
  CHECK(world.observer.done.back().hit_tokens == 16);
  CHECK(stats.host_hit_tokens == 4 * world.model.up);
  // The fetch, then two steps.
  const double took = world.session->now() - before;
  CHECK(std::abs(took - (0.25 * static_cast<double>(world.model.up) + 2)) < 1e-9);
  CheckOutputs(world, 4);
}

TEST_CASE("A fetch stops neither what runs nor who comes behind it") {
  TierWorld world(16, 64, Preempt::kRecompute, /*seconds=*/10);
  world.Add(MakeRequest(0, 20, 2, 100));
  world.Run();
  for (TokenId other = 1; other <= 3; ++other) {  // evicts it
    world.Add(MakeRequest(static_cast<std::uint64_t>(other), 40, 2, 1000 * other));
    world.Run();
  }
  world.Add(MakeRequest(4, 8, 12, 7000));
  REQUIRE(*world.session->RunStep());
  world.Add(MakeRequest(5, 20, 2, 100));
  world.Add(MakeRequest(6, 8, 2, 8000));
  const std::int64_t first = world.model.steps;
  world.Run();
  CHECK(world.session->stats().fetches == 1);
  // Request 6 began in the next step, request 5 when its blocks had come.
  const std::vector<SeenItem> next = world.model.Step(first + 1);
  REQUIRE(next.size() == 2);
  CHECK(next[0].tag == 4);
  CHECK(next[1].tag == 6);
  CHECK(world.observer.done.back().tag == 5);
  CHECK(world.observer.done.back().hit_tokens == 16);
  CheckOutputs(world, 7);
}

TEST_CASE("A request that is swapped out goes on where it was") {
  for (const double seconds : {0.0, 0.5, -1.0}) {
    for (const bool late : {false, true}) {
      INFO("seconds per block " << seconds << ", late " << late);
      TierWorld world(12, 64, Preempt::kSwap, seconds, late);
      for (std::uint64_t tag = 0; tag < 4; ++tag) {
        world.Add(MakeRequest(tag, 10, 20, static_cast<TokenId>(100 * tag)));
      }
      world.Run();
      const SessionStats& stats = world.session->stats();
      CHECK(stats.preemptions > 0);
      CHECK(stats.swaps == stats.preemptions);
      CHECK(stats.recomputed_tokens == 0);
      CHECK(stats.tokens_appended == 4 * (10 + 20 - 1));
      for (const auto& end : world.observer.ends) CHECK(end.finished);
      CheckOutputs(world, 4);
    }
  }
}

TEST_CASE("Swap or recompute is the executor's choice, and a full host tier computes again") {
  TierWorld asked(12, 64, Preempt::kAuto, 0.5);
  asked.model.prefers = false;
  TierWorld full(12, 2, Preempt::kSwap, 0.5);
  for (TierWorld* world : {&asked, &full}) {
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
      world->Add(MakeRequest(tag, 10, 20, static_cast<TokenId>(100 * tag)));
    }
    world->Run();
    CHECK(world->session->stats().preemptions > 0);
    CHECK(world->session->stats().swaps == 0);
    CHECK(world->session->stats().recomputed_tokens > 0);
    CheckOutputs(*world, 4);
  }
  CHECK(asked.model.asked_tokens > 0);
}

TEST_CASE("A request may be cancelled while it is swapped out or fetched") {
  TierWorld world(12, 64, Preempt::kSwap, 5);
  std::vector<RequestId> ids;
  for (std::uint64_t tag = 0; tag < 4; ++tag) {
    const auto id = world.session->Add(MakeRequest(tag, 10, 20, static_cast<TokenId>(100 * tag)));
    REQUIRE(id.ok());
    ids.push_back(*id);
  }
  while (world.session->stats().swaps == 0) REQUIRE(*world.session->RunStep());
  CHECK(world.session->waiting() > 0);
  REQUIRE(world.session->Cancel(ids.back()).ok());
  world.Run();
  CHECK(world.session->stats().cancelled == 1);
  CHECK(world.session->stats().finished == 3);
  world.CheckEmpty();
}

TEST_CASE("A fetch that nobody waits for any more gives its blocks back") {
  for (const bool cancels : {true, false}) {
    INFO("cancelled: " << cancels);
    TierWorld world(10, 64, Preempt::kRecompute, /*seconds=*/100);
    world.Add(MakeRequest(0, 17, 2, 100));
    world.Run();
    world.Add(MakeRequest(1, 37, 2, 1000));
    world.Run();
    const auto id = world.session->Add(MakeRequest(2, 17, 2, 100));
    REQUIRE(id.ok());
    world.Add(MakeRequest(3, 4, 3, 5000));
    REQUIRE(*world.session->RunStep());
    REQUIRE(world.session->stats().fetches == 1);
    REQUIRE(world.cache.GetStats().in_transit_blocks > 0);
    if (cancels) {
      REQUIRE(world.session->Cancel(*id).ok());
      world.Run();
      world.Add(MakeRequest(4, 36, 2, 9000));  // needs all of the pool
      world.Run();
      CHECK(world.session->stats().finished == 4);
    }
    world.session.reset();
    world.CheckEmpty();
  }
}

TEST_CASE("Small pools: every request that is swapped ends, and no step is empty") {
  for (std::int64_t blocks = 7; blocks <= 9; ++blocks) {
    for (int seed = 0; seed < 60; ++seed) {
      INFO("blocks " << blocks << ", seed " << seed);
      TierWorld world(blocks, 64, Preempt::kSwap, seed % 2 == 0 ? 1000 : 0.01);
      std::int64_t tokens = 0;
      for (std::uint64_t tag = 0; tag < 3; ++tag) {
        const std::int64_t prompt = 6 + (seed * 7 + static_cast<std::int64_t>(tag) * 5) % 6;
        const std::int64_t output = 6 + (seed * 3 + static_cast<std::int64_t>(tag) * 11) % 11;
        world.Add(MakeRequest(tag, prompt, output, static_cast<TokenId>(100 * tag)));
        tokens += output;
      }
      world.Run();
      CheckOutputs(world, 3);
      CHECK(world.session->stats().output_tokens == tokens);
      CHECK(world.session->stats().recomputed_tokens == 0);
    }
  }
}
