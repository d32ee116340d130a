// SPDX-License-Identifier: Apache-2.0
// Backend::Gemm on every device that answers, against sums in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/first_of_fastest.h"
#include "reference/mla_compress_ref.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::DeviceVector;
using testing::Random;

struct Shape {
  std::int64_t rows = 1, columns = 1, inner = 1;
  int batch = 1;
  bool out_in = true;
  std::int64_t pad = 0;    // elements between rows, and between matrices
  std::size_t offset = 0;  // of every array
};

template <class F>
constexpr typename F::Bits Poison() {
  return static_cast<typename F::Bits>(F::kExponentMask | 0x55);
}

// Rows of numbers with poison between them.
template <class F>
std::vector<typename F::Bits> Matrix(Random& random, std::int64_t rows, std::int64_t columns,
                                     std::int64_t pad) {
  std::vector<typename F::Bits> bits;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < columns; ++i) bits.push_back(random.Number<F>());
    bits.insert(bits.end(), static_cast<std::size_t>(pad), Poison<F>());
  }
  return bits;
}

// Runs one product and checks it by the bound of docs/numerics.md (Products; with the terms of
// MlaCompress for tensor cores). Returns the largest error as a fraction of it.
template <class F>
double Run(Device device, Random& random, const Shape& s) {
  using Bits = typename F::Bits;
  const std::int64_t w_rows = s.out_in ? s.columns : s.inner;
  const std::int64_t w_columns = s.out_in ? s.inner : s.columns;
  GemmParams g;
  g.dtype = F::kDType;
  g.rows = s.rows;
  g.columns = s.columns;
  g.inner = s.inner;
  g.batch = s.batch;
  g.layout = s.out_in ? WeightLayout::kOutIn : WeightLayout::kInOut;
  g.a_stride = s.inner + s.pad;
  g.w_stride = w_columns + s.pad;
  g.w_batch_stride = w_rows * g.w_stride + s.pad;
  // The matrices of a batch lie side by side in each row of C.
  g.c_batch_stride = s.columns + s.pad;
  g.c_stride = s.batch * g.c_batch_stride;
  const auto a_bits = Matrix<F>(random, s.rows, s.inner, s.pad);
  std::vector<Bits> w_bits;
  for (int m = 0; m < s.batch; ++m) {
    const auto one = Matrix<F>(random, w_rows, w_columns, s.pad);
    w_bits.insert(w_bits.end(), one.begin(), one.end());
    w_bits.insert(w_bits.end(), static_cast<std::size_t>(s.pad), Poison<F>());
  }
  DeviceVector<Bits> a(device, a_bits, s.offset), w(device, w_bits, s.offset);
  DeviceVector<Bits> c(
      device, std::vector<Bits>(static_cast<std::size_t>(s.rows * g.c_stride), Poison<F>()),
      s.offset);
  g.a = a.data();
  g.w = w.data();
  g.c = c.data();
  INFO(device.name() << " " << DTypeName(F::kDType) << ": " << s.rows << " x " << s.columns << " x "
                     << s.inner << ", batch " << s.batch << " out_in " << s.out_in << " pad "
                     << s.pad << " offset " << s.offset);
  const Status status = device.backend().Gemm(g, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());
  const std::vector<Bits> got = c.Read();

  const auto decode = [](const std::vector<Bits>& bits) {
    std::vector<double> values;
    for (const Bits b : bits) values.push_back(static_cast<double>(F::Decode(b)));
    return values;
  };
  const std::vector<double> av = decode(a_bits), wv = decode(w_bits), cv = decode(got);
  const auto rounding = reference::ProductRounding::Of<F>(false);
  double worst = 0;
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t i = 0; i < g.c_stride; ++i) {
      const std::int64_t m = i / g.c_batch_stride, column = i % g.c_batch_stride;
      const auto at = static_cast<std::size_t>(r * g.c_stride + i);
      if (column >= s.columns) {
        wrong += got[at] != Poison<F>();
        continue;
      }
      double value = 0, squares = 0, sizes = 0;
      for (std::int64_t k = 0; k < s.inner; ++k) {
        const std::int64_t in_w = s.out_in ? column * g.w_stride + k : k * g.w_stride + column;
        const double product = av[static_cast<std::size_t>(r * g.a_stride + k)] *
                               wv[static_cast<std::size_t>(m * g.w_batch_stride + in_w)];
        value += product;
        squares += product * product;
        sizes += std::fabs(product);
      }
      const auto n = static_cast<double>(s.inner);
      const reference::Bounded bounded = reference::Stored(
          value, {n * rounding.sum * rounding.sum * squares, n * rounding.sum * sizes}, 0,
          rounding);
      const double error = std::fabs(cv[at] - value);
      wrong += !(error <= bounded.bound);
      worst = std::max(worst, error / bounded.bound);
    }
  }
  CHECK(wrong == 0);
  return worst;
}

template <class F>
void RunAll(unsigned seed) {
  for (Device& device : testing::AvailableDevices()) {
    Random random(seed);
    double worst = 0;
    for (int i = 0; i < 40; ++i) {
      Shape s;
      s.rows = random.Between(1, random.Chance(20) ? 300 : 20);
      s.columns = random.Between(1, random.Chance(20) ? 600 : 70);
      s.inner = random.Between(1, random.Chance(20) ? 600 : 70);
      if (random.Chance(20)) s.rows = 1;
      if (random.Chance(20)) s.columns = 1;
      if (random.Chance(30)) s.batch = static_cast<int>(random.Between(2, 4));
      if (s.rows * s.columns * s.inner * s.batch > 2'000'000) continue;
      s.out_in = random.Chance(50);
      s.pad = random.OneOf<std::int64_t>({0, 0, 1, 5, 8});
      if (random.Chance(30)) s.offset = static_cast<std::size_t>(random.Between(1, 8));
      worst = std::max(worst, Run<F>(device, random, s));
    }
    // Around the borders of the tiles that the CPU takes, several in each direction.
    for (const std::int64_t more : {-1, 0, 1}) {
      worst = std::max(worst, Run<F>(device, random, {256 + more, 3, 5, 2, more == 0, 1, 0}));
      worst = std::max(worst, Run<F>(device, random, {2, 1024 + more, 3, 1, more != 0, 0, 1}));
      worst = std::max(worst, Run<F>(device, random, {3, 2, 1536 + more, 1, more == 0, 3, 0}));
    }
    INFO(device.name() << " " << DTypeName(F::kDType) << ": " << worst << " of the bounds");
    CHECK(worst >= 0.05);
    CHECK(worst <= 1);
  }
}

}  // namespace

TEST_CASE("products: of ways that are equally fast the first is taken") {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto first = [](std::vector<double> seconds) { return cuda::FirstOfFastest(seconds); };
  CHECK(first({1.0}) == 0);
  CHECK(first({1.03, 1.0}) == 0);
  CHECK(first({1.05, 1.0}) == 1);
  CHECK(first({2.0, 1.05, 1.03, 1.0, 1.0}) == 2);
  CHECK(first({kNever, 5.0, 4.9}) == 1);
  CHECK(first({kNever, kNever}) == 0);
  CHECK(first({}) == 0);
}

TEST_CASE("gemm: every size, layout, stride and batch, fp32") { RunAll<F32>(1); }
TEST_CASE("gemm: every size, layout, stride and batch, fp16") { RunAll<F16>(2); }
TEST_CASE("gemm: every size, layout, stride and batch, bf16") { RunAll<B16>(3); }

}  // namespace lariat
