// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lariat/ops.h"
#include "reference/mla_append_ref.h"
#include "support/compare.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat::testing {

// How a MlaAppend case is made and run from given rows, shared by the tests of it.
struct MlaAppendOptions {
  std::size_t offset = 0;        // elements by which every array is moved off its boundary
  bool default_strides = false;  // leave them 0 (the case must be contiguous)
  bool indirect_fault = false;
  DependentLaunch dependent_launch = DependentLaunch::kAfterWait;
};

template <class Out>
struct MlaAppendOutcome {
  long double worst = 0;  // largest error of a latent, as a fraction of its bound
  FaultRecord fault;
  std::vector<typename Out::Bits> cache;
};

// The case's numbers; no pointers.
template <class In, class Out>
MlaAppendParams ShapeOf(const reference::MlaAppendCase<In, Out>& c, bool default_strides) {
  MlaAppendParams p;
  p.in_dtype = In::kDType;
  p.dtype = Out::kDType;
  p.style = c.style;
  p.num_tokens = c.tokens;
  p.rank = c.rank;
  p.rope_dim = c.rope_dim;
  p.rotary_dim = c.rotary_dim;
  p.eps = c.eps;
  p.num_positions = c.num_positions;
  p.table_mask = c.table_mask;
  p.num_slots = c.num_slots;
  p.block_size = c.block_size;
  if (default_strides) return p;
  p.c_kv_stride = c.c_kv_stride;
  p.k_pe_stride = c.k_pe_stride;
  p.block_stride = c.block_stride;
  p.row_stride = c.row_stride;
  return p;
}

// The largest error of the latents, as a fraction of its bound.
template <class In, class Out>
long double LatentError(const reference::MlaAppendCase<In, Out>& c,
                        const std::vector<reference::Expected<Out>>& expected,
                        const std::vector<typename Out::Bits>& cache) {
  long double worst = 0;
  for (const std::int64_t slot : c.slots) {
    if (slot < 0 || slot >= c.num_slots) continue;
    for (int i = 0; i < c.rank; ++i) {
      const auto at = static_cast<std::size_t>(slot / c.block_size * c.block_stride +
                                               slot % c.block_size * c.row_stride + i);
      const reference::Expected<Out>& e = expected[at];
      if (e.moved || !std::isfinite(e.value) || !std::isfinite(e.rounded)) continue;
      worst = std::max(worst, std::fabs(Out::Decode(cache[at]) - e.value) / e.bound);
    }
  }
  return worst;
}

// Runs a case on a device and checks every element of the cache against the reference.
template <class In, class Out>
MlaAppendOutcome<Out> RunMlaAppend(Device device, const reference::MlaAppendCase<In, Out>& c,
                                   const MlaAppendOptions& options = {}) {
  using InBits = typename In::Bits;
  DeviceVector<InBits> c_kv(device, c.c_kv, options.offset), k_pe(device, c.k_pe, options.offset);
  DeviceVector<InBits> norm_weight(device, c.norm_weight, options.offset);
  DeviceVector<std::uint32_t> cos(device, c.cos, options.offset),
      sin(device, c.sin, options.offset);
  DeviceVector<std::int64_t> slots(device, c.slots);
  DeviceVector<std::int32_t> positions(device, c.positions);
  DeviceVector<std::uint32_t> table_choice(device, c.table_choice);
  DeviceVector<typename Out::Bits> cache(device, c.cache, options.offset);
  DeviceVector<FaultRecord> fault(device, {FaultRecord{}});
  DeviceVector<FaultRecord*> word(device, {fault.data()});

  MlaAppendParams p = ShapeOf(c, options.default_strides);
  p.c_kv = c_kv.data();
  p.k_pe = k_pe.data();
  if (!c.norm_weight.empty()) p.norm_weight = norm_weight.data();
  p.slots = slots.data();
  p.positions = positions.data();
  if (!c.table_choice.empty()) p.table_choice = table_choice.data();
  p.cos = reinterpret_cast<const float*>(cos.data());
  p.sin = reinterpret_cast<const float*>(sin.data());
  p.cache = cache.data();
  if (options.indirect_fault) {
    p.fault_indirect = word.data();
  } else {
    p.fault = fault.data();
  }
  p.dependent_launch = options.dependent_launch;
  const Status status = MlaAppend(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());

  INFO(device.name() << ": " << DTypeName(In::kDType) << " to " << DTypeName(Out::kDType)
                     << " style " << static_cast<int>(c.style) << " T " << c.tokens << " rank "
                     << c.rank << " rope " << c.rope_dim << "," << c.rotary_dim << " block "
                     << c.block_size << " eps " << c.eps << " offset " << options.offset);
  const auto expected = reference::MlaAppend(c);
  MlaAppendOutcome<Out> got;
  got.cache = cache.Read();
  CHECK(CheckElements<Out>("cache", expected.cache, got.cache) <= 1.0L);
  got.worst = LatentError(c, expected.cache, got.cache);
  CHECK((c_kv.Read() == c.c_kv));
  CHECK((k_pe.Read() == c.k_pe));
  got.fault = fault.Read()[0];
  CHECK(got.fault.lock == 0);
  CHECK(got.fault.kind == expected.fault);
  CHECK(got.fault.token == expected.token);
  CHECK(got.fault.value == expected.value);
  return got;
}

struct MlaAppendShape {
  std::int64_t tokens = 1;
  int rank = 8, rope_dim = 8, rotary_dim = 8, block_size = 1;
  std::int64_t blocks = 1, num_positions = 1;
  RopeStyle style = RopeStyle::kInterleaved;
  float eps = 1e-6F;
  bool normed = true;
  std::int64_t stride_pad = 0;              // elements between tokens, rows and blocks
  int padded_percent = 0, bad_percent = 0;  // tokens with negative, with wrong slots or positions
  bool any_bits = false;
  bool two_tables = false;
};

// DeepSeek's widths.
inline MlaAppendShape DeepSeek(std::int64_t tokens) {
  MlaAppendShape s;
  s.tokens = tokens;
  s.rank = 512;
  s.rope_dim = s.rotary_dim = 64;
  s.block_size = 64;
  s.blocks = tokens / 64 + 2;
  s.num_positions = 50;
  return s;
}

// Distinct slots in random order, and positions; some of them wrong where the shape says so.
template <class In, class Out>
void MakePlaces(Random& random, const MlaAppendShape& s, reference::MlaAppendCase<In, Out>& c) {
  std::vector<std::int64_t> slots;
  for (std::int64_t slot = 0; slot < c.num_slots; ++slot) slots.push_back(slot);
  for (std::size_t i = slots.size(); i > 1; --i) {
    std::swap(slots[i - 1],
              slots[static_cast<std::size_t>(random.Between(0, static_cast<std::int64_t>(i) - 1))]);
  }
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const auto at = static_cast<std::size_t>(t);
    std::int64_t slot = at < slots.size() ? slots[at] : -1;
    std::int64_t position = random.Between(0, s.num_positions - 1);
    if (random.Chance(s.padded_percent)) slot = random.OneOf<std::int64_t>({-1, INT64_MIN, -9});
    if (random.Chance(s.bad_percent)) {
      slot = random.OneOf<std::int64_t>({c.num_slots, INT64_MAX, c.num_slots + (1LL << 32)});
    }
    if (random.Chance(s.bad_percent)) {
      position = random.OneOf<std::int64_t>({-1, s.num_positions, INT32_MIN, INT32_MAX});
    }
    c.slots.push_back(slot);
    c.positions.push_back(static_cast<std::int32_t>(position));
  }
}

// Random values; poison (NaNs of no other origin) in the cache.
template <class In, class Out>
reference::MlaAppendCase<In, Out> MakeMlaAppend(Random& random, const MlaAppendShape& s) {
  reference::MlaAppendCase<In, Out> c;
  c.tokens = s.tokens;
  c.rank = s.rank;
  c.rope_dim = s.rope_dim;
  c.rotary_dim = s.rotary_dim;
  c.block_size = s.block_size;
  c.num_slots = s.blocks * s.block_size;
  c.num_positions = s.num_positions;
  c.style = s.style;
  c.eps = s.eps;
  c.c_kv_stride = s.rank + s.stride_pad;
  c.k_pe_stride = s.rope_dim + s.stride_pad;
  c.row_stride = s.rank + s.rope_dim + s.stride_pad;
  c.block_stride = s.block_size * c.row_stride + s.stride_pad;
  c.c_kv = random.Numbers<In>(s.tokens * c.c_kv_stride, s.any_bits);
  c.k_pe = random.Numbers<In>(s.tokens * c.k_pe_stride, s.any_bits);
  if (s.normed) c.norm_weight = random.Numbers<In>(s.rank, s.any_bits);
  const std::int64_t table = (s.two_tables ? 2 : 1) * s.num_positions * (s.rotary_dim / 2);
  c.cos = random.Numbers<reference::F32>(table, s.any_bits);
  c.sin = random.Numbers<reference::F32>(table, s.any_bits);
  const auto poison = static_cast<typename Out::Bits>(Out::kExponentMask | 0x55);
  c.cache.assign(static_cast<std::size_t>(s.blocks * c.block_stride), poison);
  MakePlaces(random, s, c);
  if (s.two_tables) {
    c.table_mask = 1U << random.Between(0, 31);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      c.table_choice.push_back(random.Chance(50) ? c.table_mask : ~c.table_mask);
    }
  }
  return c;
}

}  // namespace lariat::testing
