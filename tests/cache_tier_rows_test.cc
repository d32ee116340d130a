// SPDX-License-Identifier: Apache-2.0
// Random lives of sequences with real bytes and a host tier: whatever moves, is evicted, fetched or
// suspended, every row that is read is the one that was written.
#include <memory>
#include <random>

#include "backend/deferred_backend.h"
#include "support/cache_pair.h"
#include "support/device_vector.h"
#include "support/failing_copies.h"
#include "support/fault_backend.h"
#include "support/late_world.h"

namespace lariat {
namespace {

using testing::Cpu;
using testing::FailingCopies;
using testing::FaultBackend;
using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldItem;
using testing::WorldOptions;
using testing::WorldSequence;

// What a run did, so that a run which does nothing is seen.
struct Done {
  std::int64_t offloaded = 0, onboarded = 0, fetches = 0, suspends = 0, resumes = 0, failed = 0,
               evicted = 0;
};

// A backend's planned faults: the n-th call from now on, 0: none; and how many there were.
struct Faults {
  std::function<void(std::int64_t)> at;
  std::function<std::int64_t()> count;
};

// Random calls; those that the cache refuses for want of room, or as too early, are left out.
class RandomTier {
 public:
  // pass_time: lets a late device run something.
  RandomTier(RowWorld& world, const WorldOptions& options, unsigned seed,
             std::function<void()> pass_time, Faults faults = {})
      : world_(world),
        options_(options),
        random_(seed),
        pass_time_(std::move(pass_time)),
        faults_(std::move(faults)) {}

  void Calls(int count) {
    for (int i = 0; i < count; ++i) {
      if (faults_.at && Roll(3) == 0) faults_.at(1 + Roll(2));
      One();
      if (states_ != nullptr) states_->push_back(world_.cache().Snapshot());
      if (faults_.at && Roll(6) == 0) faults_.at(0);
      if (Roll(3) == 0) pass_time_();
      if (Roll(24) == 0) Check();
    }
    if (faults_.at) faults_.at(0);
    while (!world_.live().empty()) Ok(world_.Commit(stream_));
    Check();
    while (!world_.sequences().empty()) Ok(world_.Close(world_.sequences().begin()->first));
    while (!world_.transfers().empty()) Accept();
    const Stats stats = world_.cache().GetStats();
    CHECK(stats.free_blocks + stats.idle_blocks == stats.total_blocks);
    CHECK(stats.host_held == 0);
    done_.offloaded = stats.offloaded_blocks;
    done_.onboarded = stats.onboarded_blocks;
    done_.evicted = stats.evicted_blocks;
    if (faults_.at) done_.failed = faults_.count();
  }
  const Done& done() const { return done_; }
  // From now on notes the cache's state after each call.
  void Note(std::vector<std::string>& states) { states_ = &states; }

 private:
  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  SequenceId Any() {
    return std::next(world_.sequences().begin(), Roll(std::ssize(world_.sequences())))->first;
  }
  static void Ok(const Status& status) {
    if (!status.ok()) FAIL(status.ToString());
  }
  // Whether it went well; one of these codes, or a fault that was planned, is no error of the test.
  bool Went(const Status& status, std::initializer_list<Code> codes) {
    if (status.ok()) return true;
    for (const Code code : codes) {
      if (status.code() == code) return false;
    }
    if (!faults_.at || status.code() != Code::kDeviceError) FAIL(status.ToString());
    return false;
  }

  void Check() {
    if (faults_.at) faults_.at(0);
    world_.CheckRows();
    REQUIRE(world_.errors() == "");
    const Stats s = world_.cache().GetStats();
    REQUIRE(s.free_blocks + s.idle_blocks + s.held_blocks + s.reserved_blocks +
                s.in_transit_blocks ==
            s.total_blocks);
  }

  void One() {
    const std::int64_t dice = Roll(100);
    if (dice < 14 || world_.sequences().empty()) {
      const auto id = world_.Open(Tokens(static_cast<TokenId>(100 * Roll(5)), Roll(30)),
                                  Roll(5) == 0 ? "other" : "");
      if (Went(id.status(), {Code::kResourceExhausted}) && Roll(2) == 0) Fetch(*id);
    } else if (dice < 40) {
      Step();
    } else if (dice < 58) {
      Commit();
    } else if (dice < 61) {
      if (!world_.live().empty()) Went(world_.DiscardLast(stream_), {});
    } else if (dice < 70) {
      Ok(world_.Close(Any()));
    } else if (dice < 73) {
      const SequenceId id = Any();
      const std::int64_t length = std::ssize(world_.sequences().at(id).rows);
      if (length > 1) Went(world_.Truncate(id, 1 + Roll(length - 1)), {Code::kNotReady});
    } else if (dice < 77) {
      const SequenceId id = Any();
      const std::int64_t settled = world_.sequences().at(id).settled;
      if (settled == 0) return;
      Went(world_.Fork(id, Roll(2) == 0 ? -1 : 1 + Roll(settled)).status(),
           {Code::kNotReady, Code::kResourceExhausted});
    } else if (dice < 80) {
      Fetch(Any());
    } else if (dice < 86) {
      if (Went(world_.Suspend(Any()).status(),
               {Code::kNotReady, Code::kInvalidArgument, Code::kResourceExhausted})) {
        ++done_.suspends;
      }
    } else if (dice < 92) {
      const auto transfer = world_.Resume(Any());
      if (Went(transfer.status(),
               {Code::kNotReady, Code::kInvalidArgument, Code::kResourceExhausted})) {
        ++done_.resumes;
      }
    } else if (dice < 98) {
      Accept();
    } else {
      Went(world_.cache().Poll().status(), {});
    }
    DropCorrupt();
  }

  void Fetch(SequenceId id) {
    const auto transfer = world_.Fetch(id);
    if (Went(transfer.status(),
             {Code::kNotReady, Code::kInvalidArgument, Code::kResourceExhausted}) &&
        *transfer != TransferId::kNone) {
      ++done_.fetches;
    }
  }

  void Accept() {
    if (world_.transfers().empty()) return;
    const auto any = std::next(world_.transfers().begin(), Roll(std::ssize(world_.transfers())));
    const auto report = world_.Accept(any->first);
    if (Went(report.status(), {}) && !faults_.at) REQUIRE_FALSE(report->failed);
  }

  // Sequences whose copy was lost.
  void DropCorrupt() {
    if (!faults_.at) return;
    std::vector<SequenceId> corrupt;
    for (const auto& [id, sequence] : world_.sequences()) {
      if (world_.cache().GetExtent(id).status().code() == Code::kCorruptData) corrupt.push_back(id);
    }
    for (const SequenceId id : corrupt) Ok(world_.Close(id));
  }

  void Step() {
    std::vector<WorldItem> items;
    for (std::int64_t i = 1 + Roll(3); i > 0; --i) {
      WorldItem item{.sequence = Any(), .num_tokens = 1 + Roll(14)};
      for (const WorldItem& other : items) {
        if (other.sequence == item.sequence) return;
      }
      const WorldSequence& sequence = world_.sequences().at(item.sequence);
      if (std::ssize(sequence.rows) >= std::ssize(sequence.prompt) && Roll(3) == 0) {
        item.num_drafts = Roll(item.num_tokens);
      }
      if (std::ssize(sequence.rows) + item.num_tokens > options_.max_tokens_per_sequence) return;
      if (Roll(2) == 0) {  // sequences that go on alike
        item.tokens = Tokens(static_cast<TokenId>(1000 + std::ssize(sequence.rows)), 14);
      }
      items.push_back(item);
    }
    const std::size_t live = world_.live().size();
    const Status run = world_.Run(items, stream_);
    if (Went(run, {Code::kResourceExhausted, Code::kNotReady})) return;
    if (world_.live().size() == live) return;
    faults_.at(0);  // it failed in the appends: they are made again
    Ok(world_.AppendAll(stream_));
  }

  void Commit() {
    if (world_.live().empty()) return;
    std::map<SequenceId, std::int64_t> kept;
    for (const StepRows& rows : world_.live().front().rows) {
      const std::int64_t drafts = world_.live().front().drafts.at(rows.sequence);
      if (drafts > 0) kept[rows.sequence] = rows.count - Roll(drafts + 1);
    }
    Went(world_.Commit(stream_, kept, Roll(4) == 0 ? Roll(4) : 100), {});
  }

  RowWorld& world_;
  const WorldOptions options_;
  std::mt19937_64 random_;
  std::function<void()> pass_time_;
  const Faults faults_;
  std::vector<std::string>* states_ = nullptr;
  Stream stream_ = {};
  Done done_;
};

WorldOptions OptionsOf(int seed) {
  WorldOptions options;
  options.block_size = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 8 : 4;
  options.blocks = options.block_size == 1 ? 60 : options.block_size == 8 ? 10 : 18;
  options.steps_in_flight = 1 + seed % 3;
  options.max_sequences = 7;
  options.reuse = seed % 4 == 3 ? Reuse::kToken : Reuse::kBlock;
  options.rope = seed % 2 == 0;
  options.host.num_blocks = options.blocks * (1 + seed % 5) / 2;
  options.host.write = static_cast<WritePolicy>(seed % 5 % 3);
  options.host.write_after_hits = 1 + seed % 2;
  options.host.clean_blocks = seed % 7 == 6 ? 0 : options.blocks / 2;
  return options;
}

void Add(Done& sum, const Done& one) {
  sum.offloaded += one.offloaded;
  sum.onboarded += one.onboarded;
  sum.fetches += one.fetches;
  sum.suspends += one.suspends;
  sum.resumes += one.resumes;
  sum.failed += one.failed;
  sum.evicted += one.evicted;
}

std::string Text(const Done& sum) {
  return testing::Text("offloaded ", sum.offloaded, ", onboarded ", sum.onboarded, ", fetches ",
                       sum.fetches, ", suspends ", sum.suspends, ", resumes ", sum.resumes,
                       ", evicted ", sum.evicted, ", failed copies ", sum.failed);
}

void AtOnce(Stream, const std::function<void()>& work) { work(); }

TEST_CASE("Tier rows: copies late and poisoned, steps at once", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    WorldOptions options = OptionsOf(seed);
    if (seed >= 24) options = testing::MlaWorld(options);
    const Device device = *Device::CreateDeferred(BackendKind::kCpu, static_cast<unsigned>(seed));
    RowWorld world(options, device, AtOnce);
    RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
    tier.Calls(4000);
    Add(sum, tier.done());
    CHECK(world.readers_run() > 0);
  }
  INFO(Text(sum));
  CHECK(sum.offloaded > 8000);
  CHECK(sum.onboarded > 4000);
  CHECK(sum.fetches > 800);
  CHECK(sum.resumes > 400);
}

TEST_CASE("Tier rows: everything late, streams in any order", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    LateWorld late(options);
    std::mt19937_64 random(static_cast<unsigned>(seed));
    RandomTier tier(late.world, options, static_cast<unsigned>(seed + 100), [&] {
      late.backend->RunSome(static_cast<std::int64_t>(random() % 24), random);
    });
    tier.Calls(4000);
    late.Finish();
    REQUIRE(late.world.errors() == "");
    Add(sum, tier.done());
  }
  INFO(Text(sum));
  CHECK(sum.onboarded > 2500);
}

TEST_CASE("Tier rows: no state depends on how long a copy takes", "[tier]") {
  for (int seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    std::vector<std::string> states[3];
    for (unsigned i = 0; i < 2; ++i) {
      const Device device = *Device::CreateDeferred(BackendKind::kCpu, 1000 * i + 7);
      RowWorld world(options, device, AtOnce);
      RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
      tier.Note(states[i]);
      tier.Calls(800);
    }
    LateWorld late(options);
    std::mt19937_64 random(static_cast<unsigned>(seed));
    RandomTier tier(late.world, options, static_cast<unsigned>(seed), [&] {
      late.backend->RunSome(static_cast<std::int64_t>(random() % 24), random);
    });
    tier.Note(states[2]);
    tier.Calls(800);
    late.Finish();
    REQUIRE(states[0].size() == 800);
    CHECK(states[0] == states[1]);
    CHECK(states[0] == states[2]);
  }
}

TEST_CASE("Tier rows: copies that fail are misses, never hits", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    const auto failing =
        std::make_shared<FailingCopies>(MakeDeferredBackend(Cpu(), static_cast<unsigned>(seed)));
    RowWorld world(options, Device(failing), AtOnce);
    RandomTier tier(
        world, options, static_cast<unsigned>(seed + 200), [] {},
        {[&](std::int64_t n) { failing->FailAt(n); }, [&] { return failing->failed(); }});
    tier.Calls(4000);
    Add(sum, tier.done());
  }
  INFO(Text(sum));
  CHECK(sum.failed > 1000);
  CHECK(sum.onboarded > 1500);
}

TEST_CASE("Tier rows: whatever call of the device fails", "[tier]") {
  Done sum;
  for (int seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const WorldOptions options = OptionsOf(seed);
    const auto faulty =
        std::make_shared<FaultBackend>(MakeDeferredBackend(Cpu(), static_cast<unsigned>(seed)));
    std::int64_t count = 0;
    {
      RowWorld world(options, Device(faulty), AtOnce);
      RandomTier tier(world, options, static_cast<unsigned>(seed + 300), [] {},
                      {[&](std::int64_t n) {
                         count += faulty->failed();
                         faulty->FailAt(n == 0 ? 0 : n * 3);
                       },
                       [&] { return count; }});
      tier.Calls(4000);
      Add(sum, tier.done());
    }
    CHECK(faulty->outstanding() == 0);
    CHECK(faulty->wrong_frees() == 0);
  }
  INFO(Text(sum));
  CHECK(sum.failed > 4000);
  CHECK(sum.onboarded > 1500);
}

TEST_CASE("Tier rows: as every device runs them, read back", "[tier]") {
  for (const Device& device : testing::AvailableDevices()) {
    CAPTURE(device.name());
    Done sum;
    for (int seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      const WorldOptions options = OptionsOf(seed);
      RowWorld world(options, device, nullptr);
      RandomTier tier(world, options, static_cast<unsigned>(seed), [] {});
      tier.Calls(1000);
      Add(sum, tier.done());
    }
    INFO(Text(sum));
    CHECK(sum.onboarded > 200);
  }
}

}  // namespace
}  // namespace lariat
