// SPDX-License-Identifier: Apache-2.0
// The CPU backend with several threads and every width of vectors: the same bits as with one thread
// and none.
#include <atomic>
#include <thread>
#include <vector>

#include "backend/cpu/crew.h"
#include "backend/cpu/stream.h"
#include "backend/cpu/vector.h"
#include "support/append_runner.h"

namespace lariat {
namespace {

using cpu::Crew;
using cpu::Width;
using reference::B16;
using reference::F16;
using reference::F32;
using testing::AppendOptions;
using testing::AppendShape;
using testing::DeviceVector;
using testing::MakeAppend;
using testing::Random;
using testing::RunAppend;

std::vector<Width> Widths() {
  std::vector<Width> widths;
  const Width widest = cpu::WidestVectors();
  for (const Width width : {Width::kBase, Width::kAvx2, Width::kAvx512}) {
    if (width <= widest) widths.push_back(width);
  }
  return widths;
}

// Takes narrower vectors while it lives.
class Narrower {
 public:
  explicit Narrower(Width width) { cpu::UseWidth(width); }
  ~Narrower() { cpu::UseWidth(Width::kAvx512); }
};

Device CpuDevice(int threads) {
  Result<Device> device = Device::Create(BackendKind::kCpu, 0, {.cpu_threads = threads});
  REQUIRE(device.ok());
  REQUIRE(device->cpu_threads() == threads);
  return *device;
}

// Calls large enough to be shared: ranges are of 128 KiB.
template <class In, class Out>
void SameBits(unsigned seed) {
  Random random(seed);
  const Device alone = CpuDevice(1), three = CpuDevice(3);
  for (const RopeStyle style :
       {RopeStyle::kHalf, RopeStyle::kInterleaved, RopeStyle::kInterleavedToHalf}) {
    AppendShape s;
    s.tokens = 220;
    s.kv_heads = 2;
    s.q_heads = 1;
    s.k_dim = 2 * static_cast<int>(random.Between(64, 100));
    s.v_dim = 2 * static_cast<int>(random.Between(30, 45));
    s.rotary_dim = 2 * static_cast<int>(random.Between(33, 64));  // more than a tile, and a rest
    s.block_size = 16;
    s.blocks = 15;
    s.num_positions = 50;
    s.style = style;
    s.stride_pad = random.OneOf<std::int64_t>({0, 3});
    s.padded_percent = 10;
    s.bad_percent = 2;
    s.any_bits = true;
    const auto c = MakeAppend<In, Out>(random, s);
    AppendOptions options;
    options.q_in_place = style != RopeStyle::kInterleavedToHalf;
    const auto want = [&] {
      const Narrower narrower(Width::kBase);
      return RunAppend(alone, c, options);  // against the reference, with the smallest fault
    }();
    for (const Width width : Widths()) {
      const Narrower narrower(width);
      for (const Device& device : {alone, three}) {
        if (device.cpu_threads() == 3 && width != Widths().back()) continue;
        const auto got = RunAppend(device, c, options);
        INFO(cpu::WidthName(width) << ", threads " << device.cpu_threads());
        CHECK(got.k_cache == want.k_cache);
        CHECK(got.v_cache == want.v_cache);
        CHECK(got.q_out == want.q_out);
      }
    }
  }
}

// What a call leaves that is just large enough to go past the caches: K, V and q, in a pool that
// lies `off` elements off its boundary.
template <class F>
std::vector<typename F::Bits> StoredAt(std::size_t off, int threads, RopeStyle style) {
  using Bits = typename F::Bits;
  constexpr std::int64_t kHeads = 4, kDim = 128, kRow = kHeads * kDim, kBlock = 16;
  constexpr std::int64_t kTokens =
      cpu::kPastBytes / (2 * kRow * std::int64_t{sizeof(Bits)}) + kBlock - 3;
  constexpr std::int64_t kSlots = (kTokens / kBlock + 1) * kBlock;
  static_assert(kTokens % 11 != 0);  // a slot for each
  Device device = CpuDevice(threads);
  std::uint32_t state = 1;
  const auto numbers = [&](std::int64_t count) {  // of any bits but NaNs and infinities
    std::vector<Bits> bits(static_cast<std::size_t>(count));
    for (Bits& word : bits) {
      state = state * 1664525 + 1013904223;
      word = static_cast<Bits>(static_cast<Bits>(state >> (32 - 8 * sizeof(Bits))) &
                               ~(Bits{1} << (8 * sizeof(Bits) - 2)));
    }
    return bits;
  };
  DeviceVector<Bits> rows(device, numbers(kTokens * kRow)), q(device, numbers(kTokens * kDim));
  DeviceVector<Bits> k_cache(device, std::vector<Bits>(kSlots * kRow), off);
  DeviceVector<Bits> v_cache(device, std::vector<Bits>(kSlots * kRow), off);
  std::vector<float> turns(32 * 8);
  for (std::size_t i = 0; i < turns.size(); ++i) turns[i] = 1 - static_cast<float>(i) / 128;
  DeviceVector<float> table(device, turns);
  std::vector<std::int64_t> order(kTokens);
  std::vector<std::int32_t> places(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    order[static_cast<std::size_t>(t)] = t * 11 % kTokens;
    places[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t % 8);
  }
  order[5] = -1;
  DeviceVector<std::int64_t> slots(device, order);
  DeviceVector<std::int32_t> positions(device, places);
  AppendRopeParams p;
  p.in_dtype = p.dtype = F::kDType;
  p.style = style;
  p.num_tokens = kTokens;
  p.kv_heads = kHeads;
  p.q_heads = style == RopeStyle::kInterleavedToHalf ? 0 : 1;
  p.k_dim = p.v_dim = kDim;
  p.rotary_dim = 64;
  p.num_positions = 8;
  p.block_size = kBlock;
  p.num_slots = kSlots;
  p.k = p.v = rows.data();
  p.q = p.q_out = p.q_heads > 0 ? q.data() : nullptr;
  p.k_cache = k_cache.data();
  p.v_cache = v_cache.data();
  p.slots = slots.data();
  p.positions = positions.data();
  p.cos = p.sin = table.data();
  const Status status = AppendRope(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());
  std::vector<Bits> all = k_cache.Read();
  for (DeviceVector<Bits>* const array : {&v_cache, &q}) {
    const std::vector<Bits> more = array->Read();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// The same where rows are whole lines, which go past the caches, and where they are not.
template <class F>
void PastCaches(RopeStyle style) {
  const auto through = StoredAt<F>(1, 1, style);
  for (const Width width : Widths()) {
    const Narrower narrower(width);
    INFO(cpu::WidthName(width));
    CHECK((StoredAt<F>(0, 1, style) == through));
  }
  CHECK((StoredAt<F>(0, 3, style) == through));
}

}  // namespace

TEST_CASE("cpu threads: more than the caches keep goes past them, with the same bits") {
  PastCaches<B16>(RopeStyle::kHalf);
  PastCaches<F32>(RopeStyle::kInterleaved);
  PastCaches<F16>(RopeStyle::kInterleavedToHalf);
}

TEST_CASE("cpu threads: appends give the same bits in all types, widths and numbers of threads") {
  SameBits<F32, F32>(1);
  SameBits<F16, F16>(2);
  SameBits<B16, B16>(3);
  SameBits<F32, F16>(4);
  SameBits<F32, B16>(5);
}

TEST_CASE("cpu threads: a crew takes every item once, whoever calls") {
  auto made = Crew::Create(4);
  REQUIRE(made.ok());
  Crew& crew = **made;
  CHECK(crew.threads() == 4);
  // Two callers at a time: one has the crew, the other works alone.
  const auto call = [&](int seed) {
    Random random(static_cast<unsigned>(seed));
    for (int i = 0; i < 300; ++i) {
      const std::int64_t count = random.Between(0, 200), grain = random.Between(1, 40);
      std::vector<std::atomic<int>> taken(static_cast<std::size_t>(count));
      std::atomic<int> short_ranges = 0;
      crew.Share(count, grain, [&](std::int64_t first, std::int64_t last) {
        if (last - first < grain && last != count) ++short_ranges;
        for (std::int64_t at = first; at < last; ++at) ++taken[static_cast<std::size_t>(at)];
      });
      int wrong = short_ranges;
      for (const std::atomic<int>& times : taken) wrong += times == 1 ? 0 : 1;
      if (wrong != 0) return false;
    }
    return true;
  };
  bool other_ok = false;
  std::thread other([&] { other_ok = call(1); });
  const bool ok = call(2);
  other.join();
  CHECK(ok);
  CHECK(other_ok);
}

TEST_CASE("cpu threads: several threads share the work") {
  auto made = Crew::Create(3);
  REQUIRE(made.ok());
  // Each range waits for another one to begin, so one thread alone would never end.
  std::atomic<int> begun = 0;
  (*made)->Share(2, 1, [&](std::int64_t, std::int64_t) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
  });
  CHECK(begun == 2);
}

TEST_CASE("cpu threads: products of 16-bit types do not depend on their number") {
  Random random(6);
  const std::int64_t tokens = 70, model = 700, rank = 520;
  std::vector<std::vector<std::uint16_t>> results;
  const auto hidden = random.Numbers<B16>(tokens * model, false);
  const auto down = random.Numbers<B16>(rank * model, false);
  for (const int threads : {1, 3}) {
    for (const Width width : Widths()) {
      const Narrower narrower(width);
      Device device = CpuDevice(threads);
      DeviceVector<std::uint16_t> a(device, hidden), w(device, down);
      DeviceVector<std::uint16_t> cache(device, std::vector<std::uint16_t>(tokens * rank));
      std::vector<std::int64_t> places;
      for (std::int64_t t = 0; t < tokens; ++t) places.push_back(tokens - 1 - t);
      DeviceVector<std::int64_t> slots(device, places);
      MlaAppendParams p;
      p.in_dtype = p.dtype = DType::kBF16;
      p.num_tokens = tokens;
      p.rank = static_cast<int>(rank);
      p.rope_dim = p.rotary_dim = 0;
      p.hidden = a.data();
      p.model_dim = static_cast<int>(model);
      p.w_down = w.data();
      p.slots = slots.data();
      p.cache = cache.data();
      p.num_slots = tokens;
      p.block_size = 1;
      const Status status = MlaAppend(device, p, Stream{});
      INFO(status.ToString());
      REQUIRE(status.ok());
      results.push_back(cache.Read());
      CHECK(results.back() == results.front());
    }
  }
}

TEST_CASE("cpu threads: a number out of range is refused") {
  for (const int threads : {0, -1, 1025}) {
    for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kNull, BackendKind::kAuto}) {
      const Result<Device> device = Device::Create(kind, 0, {.cpu_threads = threads});
      REQUIRE(!device.ok());
      CHECK(device.status().code() == Code::kInvalidArgument);
      CHECK(device.status().message().find("cpu_threads = " + std::to_string(threads)) !=
            std::string::npos);
    }
  }
  const Result<Device> null = Device::Create(BackendKind::kNull, 0, {.cpu_threads = 2});
  REQUIRE(null.ok());
  CHECK(null->cpu_threads() == 1);
  CHECK(null->Tuning().empty());
  const auto lines = CpuDevice(2).Tuning();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("2 threads") != std::string::npos);
  CHECK(lines[0].find(cpu::WidthName(cpu::WidestVectors())) != std::string::npos);
}

}  // namespace lariat
