// SPDX-License-Identifier: Apache-2.0
// MlaExpand through a cache: bit for bit what it gives over plain buffers. Faults in the arrays
// that it and MlaAppend read.
#include <vector>

#include "reference/formats.h"
#include "support/mla_cache.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::AvailableDevices;
using testing::CaseCache;
using testing::DeviceVector;
using testing::kLatentRank;
using testing::kLatentRope;
using testing::kLatentWidth;
using testing::LatentConfig;
using testing::Make;
using testing::Prepared;
using testing::Random;

// --- MlaExpand --------------------------------------------------------------------------------

constexpr int kHeads = 3, kNope = 6, kV = 5;
constexpr int kKeyWidth = kHeads * (kNope + kLatentRope), kValueWidth = kHeads * kV;

// Some tokens of each of three sequences (and none of a fourth), as keys and values.
template <class F>
struct Expansion {
  using Bits = typename F::Bits;
  std::vector<std::int32_t> cu_tokens, starts;  // no starts: all 0
  std::int64_t num_tokens = 0;
  std::vector<Bits> k, v;  // results

  // Calls run(inputs) with buffers of the device, and keeps what it gives.
  template <class Run>
  void Make(Device& device, const DeviceVector<Bits>& w_kv_b, Run run) {
    DeviceVector<std::int32_t> cu(device, cu_tokens), from(device, starts);
    DeviceVector<Bits> k_there(device, Filled(num_tokens * kKeyWidth));
    DeviceVector<Bits> v_there(device, Filled(num_tokens * kValueWidth));
    MlaExpandInputs in;
    in.kv_lora_rank = kLatentRank;
    in.heads = kHeads;
    in.nope_dim = kNope;
    in.v_dim = kV;
    in.w_kv_b = w_kv_b.data();
    in.num_tokens = num_tokens;
    in.cu_tokens = cu.data();
    in.starts = starts.empty() ? nullptr : from.data();
    in.k = k_there.data();
    in.v = v_there.data();
    CaseCache::Must(run(in));
    k = k_there.Read();
    v = v_there.Read();
  }
  static std::vector<Bits> Filled(std::int64_t elements) {
    return std::vector<Bits>(static_cast<std::size_t>(elements), F::kCanonicalNaN);
  }
};

// The same from rows that lie one behind the other, kRun of them for each sequence.
constexpr int kRun = 12;

template <class F>
Status ExpandPlainRows(Device& device, const MlaExpandInputs& in,
                       const DeviceVector<typename F::Bits>& rows) {
  DeviceVector<std::int32_t> table(device, {0, 1, 2, 0});
  MlaExpandParams p;
  p.dtype = F::kDType;
  p.num_tokens = in.num_tokens;
  p.heads = in.heads;
  p.rank = in.kv_lora_rank;
  p.rope_dim = kLatentRope;
  p.nope_dim = in.nope_dim;
  p.v_dim = in.v_dim;
  p.w_kv_b = in.w_kv_b;
  p.num_ranges = 4;
  p.cu_tokens = in.cu_tokens;
  p.starts = in.starts;
  p.block_table = table.data();
  p.block_table_stride = 1;
  p.cache = rows.data();
  p.num_blocks = 3;
  p.block_size = kRun;
  p.k = in.k;
  p.v = in.v;
  const Status status = MlaExpand(device, p, {});
  return status.ok() ? device.Synchronize({}) : status;
}

template <class F>
void CheckExpanded(Device device) {
  INFO(device.name() << ": " << DTypeName(F::kDType));
  Random random(5);
  CacheConfig config = LatentConfig();
  config.dtype = F::kDType;
  KVCache cache = Make(config, device);
  const SequenceId a = *cache.Open(CaseCache::Range(0, 9));
  Step step = Prepared(cache, {{a, 9, 0, {}}}, {});
  testing::AppendRows<F>(cache, step, random);
  CaseCache::Must(cache.Commit(step, {}, {}));
  // A sequence that found two blocks, one that goes on, a new one, and padding.
  const SequenceId b = *cache.Open(CaseCache::Range(0, 9)),
                   c = *cache.Open(CaseCache::Range(50, 5));
  step = Prepared(cache, {{b, 9, 0, {}}, {a, 1, 0, {}}, {c, 5, 0, {}}}, {10, 4});
  REQUIRE(step.rows()[0].hit == 8);
  testing::AppendRows<F>(cache, step, random);
  DeviceVector<typename F::Bits> w_kv_b(device,
                                        random.Numbers<F>(kHeads * (kNope + kV) * kLatentRank));
  // All that the sequences hold, with two rows of padding; then a few of each.
  std::vector<Expansion<F>> got(2);
  got[0] = {{0, 9, 19, 24, 24}, {}, 26, {}, {}};
  got[1] = {{0, 3, 4, 6, 6}, {6, 9, 1, 0}, 6, {}, {}};
  std::vector<Expansion<F>> expected = got;
  for (Expansion<F>& expansion : got) {
    expansion.Make(device, w_kv_b, [&](const MlaExpandInputs& in) {
      if (Status s = cache.Warmup(1, in, {}); !s.ok()) return s;
      return cache.MlaExpand(step, 1, in, {});
    });
  }
  CaseCache::Must(cache.Commit(step, {}, {}));
  std::vector<typename F::Bits> rows(3 * kRun * kLatentWidth, F::kCanonicalNaN);
  const std::pair<SequenceId, std::int64_t> held[] = {{b, 9}, {a, 10}, {c, 5}};
  for (std::ptrdiff_t i = 0; i < 3; ++i) {
    const auto stored = testing::StoredRows<F>(cache, held[i].first, 1, held[i].second);
    std::copy(stored.begin(), stored.end(), rows.begin() + i * kRun * kLatentWidth);
  }
  const DeviceVector<typename F::Bits> plain(device, rows);
  for (std::size_t i = 0; i < 2; ++i) {
    CAPTURE(i);
    expected[i].Make(device, w_kv_b, [&](const MlaExpandInputs& in) {
      return ExpandPlainRows<F>(device, in, plain);
    });
    CHECK((got[i].k == expected[i].k));
    CHECK((got[i].v == expected[i].v));
  }
  // Token 9 of the second sequence, which this step wrote: its k_pe stands in every head.
  for (int head = 0; head < kHeads; ++head) {
    for (int e = 0; e < kLatentRope; ++e) {
      CHECK(got[0].k[static_cast<std::size_t>(18 * kKeyWidth + head * (kNope + kLatentRope) +
                                              kNope + e)] ==
            rows[static_cast<std::size_t>((kRun + 9) * kLatentWidth + kLatentRank + e)]);
    }
  }
  CHECK(cache.Poll()->faults.empty());
}

TEST_CASE("MlaExpand gives what is cached, hits and the rows of this step", "[mla]") {
  for (const Device& device : AvailableDevices()) {
    CheckExpanded<B16>(device);
    CheckExpanded<F16>(device);
    CheckExpanded<F32>(device);
  }
}

// --- Faults -----------------------------------------------------------------------------------

enum class Bad { kSlot, kPosition, kTable };

// Spoils row 3 of the step's arrays (a's first), or the first block of a's table, behind Prepare.
void Spoil(KVCache& cache, Bad bad) {
  Device& device = cache.device();
  const StepView view = cache.View();
  const std::int64_t slot = 16 * 4 + 5;
  const std::int32_t position = -7, block = 99;
  if (bad == Bad::kSlot) {
    CaseCache::Must(device.CopyToDevice(const_cast<std::int64_t*>(view.slots) + 3, &slot, 8, {}));
  } else if (bad == Bad::kPosition) {
    CaseCache::Must(
        device.CopyToDevice(const_cast<std::int32_t*>(view.positions) + 3, &position, 4, {}));
  } else {
    CaseCache::Must(device.CopyToDevice(
        const_cast<std::int32_t*>(view.block_table) + view.block_table_stride, &block, 4, {}));
  }
  CaseCache::Must(device.Synchronize({}));
}

void CheckFault(const Device& device, Bad bad) {
  INFO(device.name() << ": " << static_cast<int>(bad));
  Random random(3);
  KVCache cache = Make(LatentConfig(), device);
  const SequenceId b = *cache.Open(CaseCache::Range(70, 3)),
                   a = *cache.Open(CaseCache::Range(0, 9));
  Step step = Prepared(cache, {{b, 3, 0, {}}, {a, 5, 0, {}}}, {16, 4});
  if (bad != Bad::kTable) Spoil(cache, bad);
  testing::AppendRows<B16>(cache, step, random);
  if (bad == Bad::kTable) {
    Spoil(cache, bad);
    DeviceVector<B16::Bits> w_kv_b(cache.device(),
                                   random.Numbers<B16>(kHeads * (kNope + kV) * kLatentRank));
    Expansion<B16> all{{0, 3, 8, 8, 8}, {}, 8, {}, {}};
    all.Make(cache.device(), w_kv_b,
             [&](const MlaExpandInputs& in) { return cache.MlaExpand(step, 0, in, {}); });
    // Tokens 0 to 3 of a cannot be found; token 4, in its second block, can.
    for (std::size_t t = 0; t < 8; ++t) {
      const bool lost = t >= 3 && t < 7;
      CHECK((all.k[t * kKeyWidth + kNope] == 0) == lost);
    }
  }
  const std::uint64_t id = step.id();
  CaseCache::Must(cache.Commit(step, {}, {}));
  CaseCache::Must(cache.device().Synchronize({}));
  const auto report = cache.Poll();
  REQUIRE(report.ok());
  REQUIRE(report->faults.size() == 1);
  CHECK(report->faults[0].step == id);
  CHECK(report->faults[0].kind ==
        (bad == Bad::kPosition ? FaultKind::kPosition : FaultKind::kSlot));
  CHECK(report->faults[0].token == 3);
  CHECK(report->faults[0].value == (bad == Bad::kSlot ? 69 : bad == Bad::kPosition ? -7 : 99));
  CHECK(cache.Match(CaseCache::Range(0, 9)).tokens == 0);
  CHECK(cache.GetExtent(a).status().code() == Code::kCorruptData);
  CHECK(cache.Close(a).ok());
}

TEST_CASE("A step of latents whose arrays go bad on the device is reported", "[mla]") {
  for (const Device& device : AvailableDevices()) {
    for (const Bad bad : {Bad::kSlot, Bad::kPosition, Bad::kTable}) CheckFault(device, bad);
  }
}

}  // namespace
}  // namespace lariat
