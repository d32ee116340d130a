// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "lariat/ops.h"
#include "reference/mla_compress_ref.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat::testing {

// How an MlaCompress case is made and run, shared by the tests of it.
struct CompressShape {
  std::int64_t tokens = 1;
  int model_dim = 256, rank = 48, heads = 4, k_dim = 32, v_dim = 32;
  bool in_out = true;
  std::int64_t stride_pad = 0;  // elements between the rows of tokens
  std::int64_t weight_pad = 0;  // and between those of weights
};

struct CompressOptions {
  std::size_t offset = 0;         // elements by which arrays of tokens are moved off a boundary
  std::size_t weight_offset = 0;  // and weights
  bool default_strides = false;   // leave them 0 (the case must be contiguous, outputs not stacked)
  bool packed = false;            // through PackUpProjections
  bool stacked = false;           // k and v of a token one behind the other
  bool want_latent = true;
  MlaPath path = MlaPath::kAuto;
  DependentLaunch dependent_launch = DependentLaunch::kOff;
};

template <class F>
constexpr typename F::Bits CompressPoison() {
  return static_cast<typename F::Bits>(F::kExponentMask | 0x55);  // a NaN
}

// Random numbers of a size such that sums of `inner` products with numbers near 1 are near 1 too.
template <class F>
reference::Rows<F> RandomRows(Random& random, std::int64_t rows, std::int64_t columns,
                              std::int64_t pad, std::int64_t inner) {
  using Bits = typename F::Bits;
  reference::Rows<F> out{rows, columns, columns + pad, {}};
  out.bits.assign(static_cast<std::size_t>(rows * out.stride), CompressPoison<F>());
  const auto halvings = std::bit_width(static_cast<std::uint64_t>(inner)) / 2;
  const auto smaller = static_cast<Bits>(halvings << (F::kPrecision - 1));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      out.bits[static_cast<std::size_t>(r * out.stride + c)] =
          static_cast<Bits>(random.Number<F>() - smaller);
    }
  }
  return out;
}

template <class F>
reference::MlaCompressCase<F> MakeCompress(Random& random, const CompressShape& s) {
  reference::MlaCompressCase<F> c;
  c.tokens = s.tokens;
  c.model_dim = s.model_dim;
  c.rank = s.rank;
  c.heads = s.heads;
  c.k_dim = s.k_dim;
  c.v_dim = s.v_dim;
  c.in_out = s.in_out;
  const auto weight = [&](std::int64_t inputs, std::int64_t outputs) {
    return s.in_out ? RandomRows<F>(random, inputs, outputs, s.weight_pad, inputs)
                    : RandomRows<F>(random, outputs, inputs, s.weight_pad, inputs);
  };
  c.hidden = RandomRows<F>(random, s.tokens, s.model_dim, s.stride_pad, 1);
  c.w_down = weight(s.model_dim, s.rank);
  c.w_up_k = weight(s.rank, std::int64_t{s.heads} * s.k_dim);
  c.w_up_v = weight(s.rank, std::int64_t{s.heads} * s.v_dim);
  return c;
}

template <class F>
struct CompressReference {
  reference::LatentRows rows;
  std::vector<reference::Bounded> latent, k, v;

  explicit CompressReference(const reference::MlaCompressCase<F>& c)
      : rows(reference::LatentOf(c)),
        latent(reference::LatentBounds(c, rows)),
        k(reference::UpBounds(c, rows, c.w_up_k, c.k_dim)),
        v(reference::UpBounds(c, rows, c.w_up_v, c.v_dim)) {}
};

template <class F>
struct CompressOutcome {
  double worst = 0;      // largest error, as a fraction of its bound
  double worst_row = 0;  // as a fraction of the bound against its row's RMS
  reference::Rows<F> latent, k, v;
};

// The case's numbers and strides; no pointers.
template <class F>
MlaCompressParams ShapeOf(const reference::MlaCompressCase<F>& c, bool default_strides) {
  MlaCompressParams p;
  p.dtype = F::kDType;
  p.num_tokens = c.tokens;
  p.model_dim = c.model_dim;
  p.rank = c.rank;
  p.heads = c.heads;
  p.k_dim = c.k_dim;
  p.v_dim = c.v_dim;
  p.layout = c.in_out ? WeightLayout::kInOut : WeightLayout::kOutIn;
  p.allow_tf32 = c.tf32;
  if (default_strides) return p;
  p.hidden_stride = c.hidden.stride;
  p.w_down_stride = c.w_down.stride;
  p.w_up_k_stride = c.w_up_k.stride;
  p.w_up_v_stride = c.w_up_v.stride;
  return p;
}

// Checks every element of rows, and that what lies between them is still poison. Returns the
// largest error as a fraction of its bound.
template <class F>
double CheckRows(const std::string& what, const std::vector<reference::Bounded>& expected,
                 const reference::Rows<F>& actual) {
  double worst = 0;
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < actual.rows; ++r) {
    for (std::int64_t c = 0; c < actual.columns; ++c) {
      const reference::Bounded& e = expected[static_cast<std::size_t>(r * actual.columns + c)];
      const auto value = static_cast<double>(
          F::Decode(actual.bits[static_cast<std::size_t>(r * actual.stride + c)]));
      const double error = std::fabs(value - e.value);
      if (!(error <= e.bound) && ++wrong <= 3) {
        UNSCOPED_INFO(what << "[" << r << ", " << c << "] = " << value << " instead of " << e.value
                           << ", bound " << e.bound);
      }
      if (e.bound > 0) worst = std::max(worst, error / e.bound);
    }
  }
  INFO(what << ": " << wrong << " wrong");
  CHECK(wrong == 0);
  return worst;
}

// The largest error against the RMS of its row, as a fraction of that bound; 0 for narrow shapes.
template <class F>
double CheckRowRms(const reference::MlaCompressCase<F>& c,
                   const std::vector<reference::Bounded>& expected,
                   const reference::Rows<F>& actual) {
  if (actual.columns < 64 || c.rank < 16) return 0;
  double worst = 0;
  for (std::int64_t r = 0; r < actual.rows; ++r) {
    double squares = 0;
    for (std::int64_t i = 0; i < actual.columns; ++i) {
      const double value = expected[static_cast<std::size_t>(r * actual.columns + i)].value;
      squares += value * value;
    }
    const double rms = std::sqrt(squares / static_cast<double>(actual.columns));
    for (std::int64_t i = 0; i < actual.columns; ++i) {
      const double value = expected[static_cast<std::size_t>(r * actual.columns + i)].value;
      const auto got = static_cast<double>(
          F::Decode(actual.bits[static_cast<std::size_t>(r * actual.stride + i)]));
      worst = std::max(worst, std::fabs(got - value) / reference::RowBound(c, value, rms));
    }
  }
  CHECK(worst <= 1);
  return worst;
}

// Columns [first, first + columns) of rows.
template <class F>
reference::Rows<F> PartOf(const reference::Rows<F>& all, std::int64_t first, std::int64_t columns) {
  reference::Rows<F> part{all.rows, columns, columns, {}};
  for (std::int64_t r = 0; r < all.rows; ++r) {
    const auto row = all.bits.begin() + static_cast<std::ptrdiff_t>(r * all.stride + first);
    part.bits.insert(part.bits.end(), row, row + static_cast<std::ptrdiff_t>(columns));
  }
  return part;
}

template <class F>
bool GapsArePoison(const reference::Rows<F>& all) {
  for (std::size_t i = 0; i < all.bits.size(); ++i) {
    const bool gap = static_cast<std::int64_t>(i) % all.stride >= all.columns;
    if (gap && all.bits[i] != CompressPoison<F>()) return false;
  }
  return true;
}

template <class F>
reference::Rows<F> EmptyRows(std::int64_t rows, std::int64_t columns, std::int64_t pad) {
  reference::Rows<F> out{rows, columns, columns + pad, {}};
  out.bits.assign(static_cast<std::size_t>(rows * out.stride), CompressPoison<F>());
  return out;
}

// Runs a case on a device and checks every element of every output against the reference, and
// that nothing else was written.
template <class F>
CompressOutcome<F> RunCompress(Device device, const reference::MlaCompressCase<F>& c,
                               const CompressReference<F>& expected,
                               const CompressOptions& options = {}, Stream stream = {}) {
  using Bits = typename F::Bits;
  const std::int64_t pad = c.hidden.stride - c.model_dim;
  const std::int64_t k_width = std::int64_t{c.heads} * c.k_dim;
  const std::int64_t v_width = std::int64_t{c.heads} * c.v_dim;
  reference::Rows<F> latent = EmptyRows<F>(c.tokens, c.rank, pad);
  // Stacked: all of it in k's buffer.
  reference::Rows<F> k = EmptyRows<F>(c.tokens, options.stacked ? k_width + v_width : k_width, pad);
  reference::Rows<F> v = EmptyRows<F>(options.stacked ? 0 : c.tokens, v_width, pad);
  const auto put = [&](const std::vector<Bits>& bits) {
    return DeviceVector<Bits>(device, bits, options.offset);
  };
  const auto put_weight = [&](const std::vector<Bits>& bits) {
    return DeviceVector<Bits>(device, bits, options.weight_offset);
  };
  auto hidden = put(c.hidden.bits);
  auto w_down = put_weight(c.w_down.bits);
  auto w_up_k = put_weight(c.w_up_k.bits), w_up_v = put_weight(c.w_up_v.bits);
  auto k_out = put(k.bits), v_out = put(v.bits), latent_out = put(latent.bits);
  auto packed = put_weight(std::vector<Bits>(
      options.packed ? static_cast<std::size_t>(c.rank * (k_width + v_width)) : 0));

  MlaCompressParams p = ShapeOf(c, options.default_strides);
  p.path = options.path;
  p.dependent_launch = options.dependent_launch;
  p.hidden = hidden.data();
  p.w_down = w_down.data();
  p.w_up_k = w_up_k.data();
  p.w_up_v = w_up_v.data();
  p.k = k_out.data();
  p.v = options.stacked ? k_out.data() + k_width : v_out.data();
  if (options.want_latent) p.latent = latent_out.data();
  if (!options.default_strides) {
    p.k_token_stride = k.stride;
    p.v_token_stride = options.stacked ? k.stride : v.stride;
    p.latent_stride = latent.stride;
  }
  INFO(device.name() << ": " << DTypeName(F::kDType) << " T " << c.tokens << " model_dim "
                     << c.model_dim << " rank " << c.rank << " heads " << c.heads << " dims "
                     << c.k_dim << "," << c.v_dim << " in_out " << c.in_out << " pad " << pad << ","
                     << c.w_down.stride - c.w_down.columns << " offsets " << options.offset << ","
                     << options.weight_offset << " packed " << options.packed << " stacked "
                     << options.stacked << " path " << static_cast<int>(options.path) << " launch "
                     << static_cast<int>(options.dependent_launch));
  if (options.packed) {
    const Status status = PackUpProjections(device, p, packed.data(), stream);
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  const Status status = MlaCompress(device, p, stream);
  INFO(status.ToString());
  REQUIRE(status.ok());
  REQUIRE(device.Synchronize(stream).ok());
  CHECK((hidden.Read() == c.hidden.bits));
  CHECK((w_down.Read() == c.w_down.bits));
  CHECK((w_up_k.Read() == c.w_up_k.bits));
  CHECK((w_up_v.Read() == c.w_up_v.bits));
  k.bits = k_out.Read();
  v.bits = v_out.Read();
  latent.bits = latent_out.Read();
  CHECK(GapsArePoison(k));
  CHECK(GapsArePoison(v));
  CHECK(GapsArePoison(latent));

  CompressOutcome<F> out;
  out.k = PartOf(k, 0, k_width);
  out.v = options.stacked ? PartOf(k, k_width, v_width) : PartOf(v, 0, v_width);
  out.latent = PartOf(latent, 0, c.rank);
  out.worst = std::max(CheckRows("k", expected.k, out.k), CheckRows("v", expected.v, out.v));
  out.worst_row = std::max(CheckRowRms(c, expected.k, out.k), CheckRowRms(c, expected.v, out.v));
  if (!options.want_latent) {
    CHECK((latent.bits == EmptyRows<F>(c.tokens, c.rank, pad).bits));
    return out;
  }
  out.worst = std::max(out.worst, CheckRows("latent", expected.latent, out.latent));
  // The products take the latent as it was put out: rounded, in every path.
  const reference::LatentRows known = reference::KnownLatent(c, out.latent);
  CheckRows("k of the latent", reference::UpBounds(c, known, c.w_up_k, c.k_dim), out.k);
  CheckRows("v of the latent", reference::UpBounds(c, known, c.w_up_v, c.v_dim), out.v);
  return out;
}

}  // namespace lariat::testing
