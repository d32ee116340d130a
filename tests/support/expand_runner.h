// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lariat/ops.h"
#include "reference/mla_expand_ref.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat::testing {

// How an MlaExpand case is made and run, shared by the tests of it.
struct ExpandShape {
  int heads = 2, rank = 16, rope_dim = 8, nope_dim = 8, v_dim = 8;
  bool transposed = false;
  std::vector<std::int64_t> counts = {5};  // tokens of each range
  bool with_starts = false;                // ranges begin anywhere, else at 0
  std::int64_t padding = 0;                // output rows behind the last range
  int block_size = 4;
  std::int64_t spare_blocks = 2;
  std::int64_t stride_pad = 0;  // elements between rows and blocks of everything
};

// The widths of DeepSeek-V3, with fewer heads.
inline ExpandShape DeepSeek(std::vector<std::int64_t> counts) {
  ExpandShape s;
  s.heads = 16;
  s.rank = 512;
  s.rope_dim = 64;
  s.nope_dim = s.v_dim = 128;
  s.counts = std::move(counts);
  s.block_size = 64;
  return s;
}

struct ExpandOptions {
  std::size_t offset = 0;        // elements by which every array is moved off its boundary
  bool default_strides = false;  // leave them 0 (the case must be contiguous)
  bool indirect_fault = false;
};

template <class F>
struct ExpandOutcome {
  double worst = 0;  // largest error, as a fraction of its bound
  FaultRecord fault;
  std::vector<typename F::Bits> k, v;
};

template <class F>
constexpr typename F::Bits PoisonNaN() {
  return static_cast<typename F::Bits>(F::kExponentMask | 0x55);
}

inline std::vector<std::int32_t> Shuffled(Random& random, std::int64_t count) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(static_cast<std::int32_t>(i));
  for (std::int64_t i = count; i > 1; --i) {
    std::swap(all[static_cast<std::size_t>(i - 1)],
              all[static_cast<std::size_t>(random.Between(0, i - 1))]);
  }
  return all;
}

// Ranges whose blocks are scattered over the cache; all that no range names is NaN, and entries of
// the table that no token needs are far out of range.
template <class F>
reference::MlaExpandCase<F> MakeExpand(Random& random, const ExpandShape& s) {
  reference::MlaExpandCase<F> c;
  c.heads = s.heads;
  c.rank = s.rank;
  c.rope_dim = s.rope_dim;
  c.nope_dim = s.nope_dim;
  c.v_dim = s.v_dim;
  c.transposed = s.transposed;
  const std::int64_t outputs = s.heads * (s.nope_dim + s.v_dim);
  c.w_stride = (s.transposed ? outputs : s.rank) + s.stride_pad;
  c.w = random.Numbers<F>((s.transposed ? s.rank : outputs) * c.w_stride);

  c.block_size = s.block_size;
  std::int64_t blocks = s.spare_blocks;
  for (const std::int64_t count : s.counts) {
    const std::int64_t start = s.with_starts ? random.Between(0, 3 * s.block_size) : 0;
    if (s.with_starts) c.starts.push_back(static_cast<std::int32_t>(start));
    c.cu_tokens.push_back(c.cu_tokens.back() + static_cast<std::int32_t>(count));
    const std::int64_t needed = (start + count - 1) / s.block_size + 1;
    c.table_stride = std::max(c.table_stride, needed);
    blocks += needed;
  }
  c.tokens = c.cu_tokens.back() + s.padding;
  c.num_blocks = blocks;
  c.row_stride = s.rank + s.rope_dim + s.stride_pad;
  c.block_stride = s.block_size * c.row_stride + s.stride_pad;
  c.cache.assign(static_cast<std::size_t>(blocks * c.block_stride), PoisonNaN<F>());
  c.block_table.assign(s.counts.size() * static_cast<std::size_t>(c.table_stride), INT32_MIN);
  std::vector<std::int32_t> free = Shuffled(random, blocks);
  for (std::size_t r = 0; r < s.counts.size(); ++r) {
    const std::int64_t start = c.starts.empty() ? 0 : c.starts[r];
    for (std::int64_t token = start; token < start + s.counts[r]; ++token) {
      const std::int64_t entry =
          static_cast<std::int64_t>(r) * c.table_stride + token / s.block_size;
      std::int32_t& block = c.block_table[static_cast<std::size_t>(entry)];
      if (block == INT32_MIN) {
        block = free.back();
        free.pop_back();
      }
      const auto row = random.Numbers<F>(s.rank + s.rope_dim);
      std::copy(row.begin(), row.end(),
                c.cache.begin() + block * c.block_stride + token % s.block_size * c.row_stride);
    }
  }
  c.k_stride = s.heads * (s.nope_dim + s.rope_dim) + s.stride_pad;
  c.v_stride = s.heads * s.v_dim + s.stride_pad;
  c.k.assign(static_cast<std::size_t>(c.tokens * c.k_stride), PoisonNaN<F>());
  c.v.assign(static_cast<std::size_t>(c.tokens * c.v_stride), PoisonNaN<F>());
  return c;
}

// The case's numbers; no pointers.
template <class F>
MlaExpandParams ShapeOf(const reference::MlaExpandCase<F>& c, bool default_strides) {
  MlaExpandParams p;
  p.dtype = F::kDType;
  p.num_tokens = c.tokens;
  p.heads = c.heads;
  p.rank = c.rank;
  p.rope_dim = c.rope_dim;
  p.nope_dim = c.nope_dim;
  p.v_dim = c.v_dim;
  p.layout = c.transposed ? WeightLayout::kInOut : WeightLayout::kOutIn;
  p.allow_tf32 = c.tf32;
  p.num_ranges = c.ranges();
  p.block_table_stride = c.table_stride;
  p.num_blocks = c.num_blocks;
  p.block_size = c.block_size;
  if (default_strides) return p;
  p.w_kv_b_stride = c.w_stride;
  p.block_stride = c.block_stride;
  p.row_stride = c.row_stride;
  p.k_token_stride = c.k_stride;
  p.v_token_stride = c.v_stride;
  return p;
}

// Checks every element. Returns the largest error as a fraction of its bound.
template <class F>
double CheckProducts(const std::string& what, const std::vector<reference::MlaElement<F>>& expected,
                     const std::vector<typename F::Bits>& actual) {
  REQUIRE(actual.size() == expected.size());
  double worst = 0;
  std::int64_t wrong = 0;
  const auto report = [&](std::size_t i, const std::string& why) {
    if (++wrong > 3) return;
    UNSCOPED_INFO(what << "[" << i << "] = 0x" << std::hex << std::uint64_t{actual[i]} << ": "
                       << why);
  };
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const reference::MlaElement<F>& e = expected[i];
    if (e.moved) {
      if (actual[i] != e.bits) report(i, "is not the bits that should lie there");
      continue;
    }
    const double error = std::fabs(static_cast<double>(F::Decode(actual[i])) - e.value);
    if (!(error <= e.bound)) {
      report(i, "is further than the bound from " + std::to_string(e.value));
    } else if (e.bound > 0) {
      worst = std::max(worst, error / e.bound);
    }
  }
  INFO(what << ": " << wrong << " of " << actual.size() << " wrong");
  CHECK(wrong == 0);
  return worst;
}

// Runs a case on a device, twice, and checks every element of the outputs against the reference.
template <class F>
ExpandOutcome<F> RunExpand(Device device, const reference::MlaExpandCase<F>& c,
                           const ExpandOptions& options = {}) {
  using Bits = typename F::Bits;
  DeviceVector<Bits> w(device, c.w, options.offset), cache(device, c.cache, options.offset);
  DeviceVector<Bits> k(device, c.k, options.offset), v(device, c.v, options.offset);
  DeviceVector<std::int32_t> cu_tokens(device, c.cu_tokens), starts(device, c.starts);
  DeviceVector<std::int32_t> block_table(device, c.block_table);
  DeviceVector<FaultRecord> fault(device, {FaultRecord{}});
  DeviceVector<FaultRecord*> word(device, {fault.data()});
  MlaExpandParams p = ShapeOf(c, options.default_strides);
  p.w_kv_b = w.data();
  p.cache = cache.data();
  p.cu_tokens = cu_tokens.data();
  if (!c.starts.empty()) p.starts = starts.data();
  p.block_table = block_table.data();
  p.k = k.data();
  p.v = v.data();
  if (options.indirect_fault) {
    p.fault_indirect = word.data();
  } else {
    p.fault = fault.data();
  }
  INFO(device.name() << ": " << DTypeName(F::kDType) << " T " << c.tokens << " ranges "
                     << c.ranges() << " heads " << c.heads << " rank " << c.rank << " dims "
                     << c.nope_dim << "+" << c.rope_dim << "," << c.v_dim << " block "
                     << c.block_size << " transposed " << c.transposed << " offset "
                     << options.offset);
  const Status status = MlaExpand(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());

  const auto expected = reference::MlaExpand(c);
  ExpandOutcome<F> got;
  got.k = k.Read();
  got.v = v.Read();
  got.worst =
      std::max(CheckProducts<F>("k", expected.k, got.k), CheckProducts<F>("v", expected.v, got.v));
  got.fault = fault.Read()[0];
  CHECK(got.fault.lock == 0);
  CHECK(got.fault.kind == expected.fault);
  CHECK(got.fault.token == expected.row);
  CHECK(got.fault.value == expected.value);
  CHECK((w.Read() == c.w));
  CHECK((cache.Read() == c.cache));
  REQUIRE(MlaExpand(device, p, Stream{}).ok());
  CHECK((k.Read() == got.k));
  CHECK((v.Read() == got.v));
  return got;
}

}  // namespace lariat::testing
