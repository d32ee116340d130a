// SPDX-License-Identifier: Apache-2.0
// Random lives of sequences with real bytes, on streams that run late.
#include <random>

#include "support/late_world.h"

namespace lariat {
namespace {

using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldItem;
using testing::WorldOptions;
using testing::WorldSequence;

// Random calls; those that the cache refuses for want of room, or as too early, are left out.
class RandomWorld {
 public:
  RandomWorld(const WorldOptions& options, unsigned seed)
      : options_(options), random_(seed), late_(options) {
    streams_[1] = *late_.backend->CreateStream();
  }

  void Calls(int count) {
    for (int i = 0; i < count; ++i) {
      One();
      // Mostly late, now and then caught up.
      if (Roll(3) == 0) late_.backend->RunSome(Roll(12), random_);
      if (Roll(40) == 0) Check();
      if (Roll(8) == 0 && world().live().empty()) stream_ = streams_[Roll(2)];
    }
    while (!world().live().empty()) Ok(world().Commit(stream_));
    Check();
    while (!world().sequences().empty()) Ok(world().Close(world().sequences().begin()->first));
    const Stats stats = world().cache().GetStats();
    CHECK(stats.free_blocks + stats.idle_blocks == stats.total_blocks);
    CHECK(world().readers_run() > 0);
  }

 private:
  RowWorld& world() { return late_.world; }
  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  SequenceId Any() {
    return std::next(world().sequences().begin(), Roll(std::ssize(world().sequences())))->first;
  }
  static void Ok(const Status& status) {
    if (!status.ok()) FAIL(status.ToString());
  }
  static void OkOr(Code code, const Status& status) {
    if (!status.ok() && status.code() != code) FAIL(status.ToString());
  }

  void Check() {
    world().CheckRows();
    for (Stream stream : streams_) late_.Finish(stream);
    REQUIRE(world().errors() == "");
  }

  void One() {
    const std::int64_t dice = Roll(100);
    if (dice < 15 || world().sequences().empty()) {
      const auto id = world().Open(Tokens(static_cast<TokenId>(100 * Roll(2)), Roll(20)),
                                   Roll(4) == 0 ? "other" : "");
      OkOr(Code::kResourceExhausted, id.status());
    } else if (dice < 50) {
      Step();
    } else if (dice < 72) {
      Commit();
    } else if (dice < 77) {
      if (!world().live().empty()) Ok(world().DiscardLast(stream_));
    } else if (dice < 86) {
      Ok(world().Close(Any()));
    } else if (dice < 91) {
      const SequenceId id = Any();
      const std::int64_t length = std::ssize(world().sequences().at(id).rows);
      if (length > 1) Ok(world().Truncate(id, 1 + Roll(length - 1)));
    } else if (dice < 96) {
      const SequenceId id = Any();
      const std::int64_t settled = world().sequences().at(id).settled;
      if (settled == 0) return;
      const auto child = world().Fork(id, Roll(2) == 0 ? -1 : 1 + Roll(settled));
      if (!child.ok() && child.status().code() != Code::kResourceExhausted) {
        OkOr(Code::kNotReady, child.status());
      }
    } else if (dice < 98) {
      Ok(world().TellAll(Any()));
    } else {
      REQUIRE(world().cache().Poll().ok());
    }
  }

  void Step() {
    std::vector<WorldItem> items;
    for (std::int64_t i = 1 + Roll(3); i > 0; --i) {
      WorldItem item{.sequence = Any(), .num_tokens = 1 + Roll(9)};
      for (const WorldItem& other : items) {
        if (other.sequence == item.sequence) return;
      }
      const WorldSequence& sequence = world().sequences().at(item.sequence);
      if (std::ssize(sequence.rows) >= std::ssize(sequence.prompt) && Roll(3) == 0) {
        item.num_drafts = Roll(item.num_tokens);
      }
      if (std::ssize(sequence.rows) + item.num_tokens > options_.max_tokens_per_sequence) return;
      if (Roll(2) == 0) {  // sequences that go on alike
        item.tokens = Tokens(static_cast<TokenId>(1000 + std::ssize(sequence.rows)), 10);
      }
      items.push_back(item);
    }
    StepShape shape;
    if (Roll(3) == 0) shape = {40, options_.max_sequences};
    const Status status = world().Run(items, stream_, shape);
    if (status.code() != Code::kResourceExhausted) OkOr(Code::kNotReady, status);
  }

  void Commit() {
    if (world().live().empty()) return;
    std::map<SequenceId, std::int64_t> kept;
    for (const StepRows& rows : world().live().front().rows) {
      const std::int64_t drafts = world().live().front().drafts.at(rows.sequence);
      if (drafts > 0) kept[rows.sequence] = rows.count - Roll(drafts + 1);
    }
    Ok(world().Commit(stream_, kept, Roll(3) == 0 ? Roll(4) : 100));
  }

  WorldOptions options_;
  std::mt19937_64 random_;
  LateWorld late_;
  Stream streams_[2] = {};
  Stream stream_ = {};
};

TEST_CASE("Readers on a late stream see what was planned, in random worlds", "[cache]") {
  const int seed = GENERATE(range(0, 36));
  WorldOptions options;
  if (seed >= 24) options = testing::MlaWorld();
  options.block_size = (seed % 4 == 0) ? 1 : (seed % 4 == 1) ? 16 : 4;
  options.blocks = (options.block_size == 1) ? 60 : (options.block_size == 16) ? 7 : 18;
  options.steps_in_flight = 1 + seed % 3;
  options.rope = seed % 5 != 0;
  options.reuse = seed / 12 == 1 ? Reuse::kBlock : Reuse::kToken;
  options.style = seed % 2 == 0 ? RopeStyle::kHalf : RopeStyle::kInterleaved;
  if (seed % 4 == 3 && options.latent > 0) options.style = RopeStyle::kInterleavedToHalf;
  options.rotary_dim = seed % 3 == 0 ? 2 : 4;
  options.layout = seed / 2 % 3 == 1 ? Layout::kLayerMajor : Layout::kBlockMajor;
  options.order = seed / 3 % 2 == 1 ? Order::kHND : Order::kNHD;
  options.dtype = seed % 6 == 4 ? DType::kBF16 : seed % 6 == 5 ? DType::kFP16 : DType::kFP32;
  options.reader_arrays = seed % 2 == 1;
  CAPTURE(seed);
  RandomWorld world(options, static_cast<unsigned>(seed));
  world.Calls(400);
}

}  // namespace
}  // namespace lariat
