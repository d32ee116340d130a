// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "lariat/ops.h"
#include "reference/append_rope_ref.h"
#include "support/compare.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat::testing {

// How an AppendRope case is made and run, shared by the tests of it.
struct AppendOptions {
  std::size_t offset = 0;        // elements by which every array is moved off its boundary
  bool default_strides = false;  // leave them 0 (the case must be contiguous)
  bool indirect_fault = false;
  bool q_in_place = false;
  DependentLaunch dependent_launch = DependentLaunch::kOff;
};

template <class In, class Out>
struct AppendOutcome {
  long double worst = 0;  // largest error, as a fraction of its bound
  FaultRecord fault;
  std::vector<typename Out::Bits> k_cache, v_cache;
  std::vector<typename In::Bits> q_out;
};

inline void SetStrides(const reference::InputStrides& from, std::int64_t& token,
                       std::int64_t& head) {
  token = from.token;
  head = from.head;
}
inline void SetStrides(const reference::CacheStrides& from, std::int64_t& block, std::int64_t& row,
                       std::int64_t& head) {
  block = from.block;
  row = from.row;
  head = from.head;
}

// The case's numbers; no pointers.
template <class In, class Out>
AppendRopeParams ShapeOf(const reference::AppendRopeCase<In, Out>& c, bool default_strides) {
  AppendRopeParams p;
  p.in_dtype = In::kDType;
  p.dtype = Out::kDType;
  p.style = c.style;
  p.num_tokens = c.tokens;
  p.kv_heads = c.kv_heads;
  p.q_heads = c.q_heads;
  p.k_dim = c.k_dim;
  p.v_dim = c.v_dim;
  p.rotary_dim = c.rotary_dim;
  p.num_positions = c.num_positions;
  p.num_slots = c.num_slots;
  p.block_size = c.block_size;
  p.table_mask = c.table_mask;
  if (!c.sections.empty()) {
    p.position_sections = 3;
    p.section_stride = c.tokens;
    std::copy(c.sections.begin(), c.sections.end(), p.section_pairs);
    p.section_layout = c.alternating_sections ? MropeLayout::kInterleaved : MropeLayout::kSectioned;
  }
  if (default_strides) return p;
  SetStrides(c.k_strides, p.k_token_stride, p.k_head_stride);
  SetStrides(c.v_strides, p.v_token_stride, p.v_head_stride);
  SetStrides(c.q_strides, p.q_token_stride, p.q_head_stride);
  SetStrides(c.k_cache_strides, p.k_block_stride, p.k_row_stride, p.k_cache_head_stride);
  SetStrides(c.v_cache_strides, p.v_block_stride, p.v_row_stride, p.v_cache_head_stride);
  return p;
}

// Runs a case on a device and checks every element of every output against the reference.
template <class In, class Out>
AppendOutcome<In, Out> RunAppend(Device device, const reference::AppendRopeCase<In, Out>& given,
                                 const AppendOptions& options = {}) {
  using InBits = typename In::Bits;
  reference::AppendRopeCase<In, Out> c = given;
  if (options.q_in_place) c.q_out = c.q;
  DeviceVector<InBits> k(device, c.k, options.offset), v(device, c.v, options.offset);
  DeviceVector<InBits> q(device, c.q, options.offset), q_out(device, c.q_out, options.offset);
  DeviceVector<std::uint32_t> cos(device, c.cos, options.offset),
      sin(device, c.sin, options.offset);
  DeviceVector<std::int64_t> slots(device, c.slots);
  DeviceVector<std::int32_t> positions(device, c.positions);
  DeviceVector<std::uint32_t> table_choice(device, c.table_choice);
  DeviceVector<typename Out::Bits> k_cache(device, c.k_cache, options.offset);
  DeviceVector<typename Out::Bits> v_cache(device, c.v_cache, options.offset);
  DeviceVector<FaultRecord> fault(device, {FaultRecord{}});
  DeviceVector<FaultRecord*> word(device, {fault.data()});

  AppendRopeParams p = ShapeOf(c, options.default_strides);
  p.k = k.data();
  p.v = v.data();
  p.q = q.data();
  p.q_out = options.q_in_place ? q.data() : q_out.data();
  p.slots = slots.data();
  p.positions = positions.data();
  if (!c.table_choice.empty()) p.table_choice = table_choice.data();
  p.cos = reinterpret_cast<const float*>(cos.data());
  p.sin = reinterpret_cast<const float*>(sin.data());
  p.k_cache = k_cache.data();
  p.v_cache = v_cache.data();
  if (options.indirect_fault) {
    p.fault_indirect = word.data();
  } else {
    p.fault = fault.data();
  }
  p.dependent_launch = options.dependent_launch;
  const Status status = AppendRope(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());

  INFO(device.name() << ": " << DTypeName(In::kDType) << " to " << DTypeName(Out::kDType)
                     << " style " << static_cast<int>(c.style) << " T " << c.tokens << " heads "
                     << c.kv_heads << "+" << c.q_heads << " dims " << c.k_dim << "," << c.v_dim
                     << " rotary " << c.rotary_dim << " block " << c.block_size << " offset "
                     << options.offset << " launch " << static_cast<int>(options.dependent_launch));
  const auto expected = reference::AppendRope(c);
  AppendOutcome<In, Out> got;
  got.k_cache = k_cache.Read();
  got.v_cache = v_cache.Read();
  got.q_out = options.q_in_place ? q.Read() : q_out.Read();
  got.worst = CheckElements<Out>("k_cache", expected.k_cache, got.k_cache);
  got.worst = std::max(got.worst, CheckElements<Out>("v_cache", expected.v_cache, got.v_cache));
  got.worst = std::max(got.worst, CheckElements<In>("q_out", expected.q_out, got.q_out));
  CHECK((k.Read() == c.k));
  if (!options.q_in_place) CHECK((q.Read() == c.q));
  got.fault = fault.Read()[0];
  CHECK(got.fault.lock == 0);
  CHECK(got.fault.kind == expected.fault);
  CHECK(got.fault.token == expected.token);
  CHECK(got.fault.value == expected.value);
  return got;
}

struct AppendShape {
  std::int64_t tokens = 1;
  int kv_heads = 1, q_heads = 0, k_dim = 8, v_dim = 8, rotary_dim = 8, block_size = 1;
  std::int64_t blocks = 1, num_positions = 1;
  RopeStyle style = RopeStyle::kHalf;
  std::int64_t stride_pad = 0;              // elements between tokens, heads, rows and blocks
  bool heads_outermost = false;             // of a cache block
  int padded_percent = 0, bad_percent = 0;  // tokens with negative, with wrong slots or positions
  bool any_bits = false;
  std::vector<int> sections = {};  // mrope
  bool alternating_sections = false;
  bool two_tables = false;
};

inline reference::InputStrides InputOf(int heads, int dim, std::int64_t pad) {
  return {heads * (dim + pad) + pad, dim + pad};
}

inline reference::CacheStrides CacheOf(const AppendShape& s, int dim) {
  const std::int64_t width = dim + s.stride_pad;
  if (s.heads_outermost) {
    const std::int64_t head = s.block_size * width + s.stride_pad;
    return {s.kv_heads * head + s.stride_pad, width, head};
  }
  const std::int64_t row = s.kv_heads * width + s.stride_pad;
  return {s.block_size * row + s.stride_pad, row, width};
}

// Distinct slots in random order; random values; poison (NaNs of no other origin) in the caches.
template <class In, class Out>
reference::AppendRopeCase<In, Out> MakeAppend(Random& random, const AppendShape& s) {
  reference::AppendRopeCase<In, Out> c;
  c.tokens = s.tokens;
  c.kv_heads = s.kv_heads;
  c.q_heads = s.q_heads;
  c.k_dim = s.k_dim;
  c.v_dim = s.v_dim;
  c.rotary_dim = s.rotary_dim;
  c.block_size = s.block_size;
  c.num_slots = s.blocks * s.block_size;
  c.num_positions = s.num_positions;
  c.style = s.style;
  c.sections = s.sections;
  c.alternating_sections = s.alternating_sections;
  c.k_strides = InputOf(s.kv_heads, s.k_dim, s.stride_pad);
  c.v_strides = InputOf(s.kv_heads, s.v_dim, s.stride_pad);
  c.q_strides = InputOf(s.q_heads, s.k_dim, s.stride_pad);
  c.k_cache_strides = CacheOf(s, s.k_dim);
  c.v_cache_strides = CacheOf(s, s.v_dim);
  c.k = random.Numbers<In>(s.tokens * c.k_strides.token, s.any_bits);
  c.v = random.Numbers<In>(s.tokens * c.v_strides.token, s.any_bits);
  c.q = random.Numbers<In>(s.tokens * c.q_strides.token, s.any_bits);
  c.q_out.assign(c.q.size(), static_cast<typename In::Bits>(In::kExponentMask | 0x2A));
  const std::int64_t table = (s.two_tables ? 2 : 1) * s.num_positions * (s.rotary_dim / 2);
  c.cos = random.Numbers<reference::F32>(table, s.any_bits);
  c.sin = random.Numbers<reference::F32>(table, s.any_bits);
  const auto poison = static_cast<typename Out::Bits>(Out::kExponentMask | 0x55);
  c.k_cache.assign(static_cast<std::size_t>(s.blocks * c.k_cache_strides.block), poison);
  c.v_cache.assign(static_cast<std::size_t>(s.blocks * c.v_cache_strides.block), poison);

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
  // The other two positions of each token, a few of them wrong too.
  for (std::int64_t n = 0; !s.sections.empty() && n < 2 * s.tokens; ++n) {
    const bool bad = random.Chance(s.bad_percent);
    c.positions.push_back(bad ? random.OneOf<std::int32_t>({-7, INT32_MAX})
                              : static_cast<std::int32_t>(random.Between(0, s.num_positions - 1)));
  }
  if (s.two_tables) {
    c.table_mask = 1U << random.Between(0, 31);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      c.table_choice.push_back(random.Chance(50) ? c.table_mask : ~c.table_mask);
    }
  }
  return c;
}

}  // namespace lariat::testing
