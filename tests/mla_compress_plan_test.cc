// SPDX-License-Identifier: Apache-2.0
// What MlaCompress asks of a backend: which products, which memory, and that Warmup has asked for
// all of it before.
#include <tuple>

#include "backend/scratch_pool.h"
#include "support/backend_decorator.h"
#include "support/compress_runner.h"
#include "support/count_new.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::CompressOptions;
using testing::CompressReference;
using testing::CompressShape;
using testing::DeviceVector;
using testing::MakeCompress;
using testing::Random;
using testing::RunCompress;

// All of a product but its pointers and number of rows.
using Kind = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                        WeightLayout, DType, bool>;
Kind KindOf(const GemmParams& g) {
  return {g.columns, g.inner, g.a_stride, g.w_stride, g.c_stride, g.layout, g.dtype, g.allow_tf32};
}

// The CPU, which writes down what it is asked for, and takes scratch through a pool of its own.
class WatchedBackend : public testing::BackendDecorator {
 public:
  WatchedBackend() : BackendDecorator(*MakeBackend(BackendKind::kCpu, 0)) {}

  Result<void*> Allocate(MemoryKind kind, std::size_t bytes) override {
    allocated += static_cast<std::int64_t>(bytes);
    return BackendDecorator::Allocate(kind, bytes);
  }
  Status Gemm(const GemmParams& params, Stream stream) override {
    products.push_back(params);
    return BackendDecorator::Gemm(params, stream);
  }
  Status WarmupGemm(const GemmParams& params, Stream) override {
    warmed.push_back(params);
    return {};
  }
  std::int64_t GemmWorkspaceBytes() const override { return 1000; }
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream) override {
    CHECK(use == ScratchUse::kLatent);
    scratch += static_cast<std::int64_t>(bytes);
    if (no_scratch) return ResourceExhausted("no scratch");
    const std::int64_t before = allocated;
    Result<void*> found = pool_.Get(1, static_cast<int>(use), bytes);
    grown += allocated - before;
    return found;
  }
  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    copied += copies.size();
    if (no_copies) return DeviceError("no copies");
    return BackendDecorator::Copy(copies, stream);
  }

  // Whether a Warmup has asked for all products since.
  bool Covered() const {
    return std::all_of(products.begin(), products.end(), [&](const GemmParams& g) {
      return std::any_of(warmed.begin(), warmed.end(), [&](const GemmParams& w) {
        return KindOf(w) == KindOf(g) && w.rows >= g.rows;
      });
    });
  }

  std::vector<GemmParams> products, warmed;
  std::int64_t allocated = 0;           // bytes, of buffers and scratch
  std::int64_t scratch = 0, grown = 0;  // bytes asked for, and what the pool took for them
  std::size_t copied = 0;
  bool no_scratch = false, no_copies = false;

 private:
  ScratchPool pool_{*this};
};

struct World {
  std::shared_ptr<WatchedBackend> backend = std::make_shared<WatchedBackend>();
  Device device{backend};
};

CompressShape Small(bool in_out, std::int64_t pad) {
  CompressShape s;
  s.tokens = 5;
  s.model_dim = 24;
  s.rank = 10;
  s.heads = 3;
  s.k_dim = 8;
  s.v_dim = 6;
  s.in_out = in_out;
  s.stride_pad = s.weight_pad = pad;
  return s;
}

}  // namespace

TEST_CASE("compress: one product where both projections lie side by side, else two") {
  Random random(1);
  for (const bool in_out : {true, false}) {
    for (const std::int64_t pad : {0, 3}) {
      const auto c = MakeCompress<F32>(random, Small(in_out, pad));
      const CompressReference<F32> expected(c);
      for (const bool packed : {false, true}) {
        for (const bool stacked : {false, true}) {
          for (const bool want_latent : {false, true}) {
            World world;
            CompressOptions options;
            options.packed = packed;
            options.stacked = stacked;
            options.want_latent = want_latent;
            RunCompress(world.device, c, expected, options);
            const bool one = packed && stacked;
            CHECK(world.backend->products.size() == (one ? 2 : 3));
            CHECK(world.backend->products.back().columns == (one ? 3 * (8 + 6) : 3 * 6));
            // A latent that is not wanted: rows padded to 8 elements.
            CHECK(world.backend->scratch == (want_latent ? 0 : 5 * 16 * 4));
          }
        }
      }
    }
  }
  // No v.
  CompressShape keys = Small(true, 0);
  keys.v_dim = 0;
  const auto c = MakeCompress<F16>(random, keys);
  World world;
  CompressOptions options;
  options.packed = true;
  RunCompress(world.device, c, CompressReference<F16>(c), options);
  CHECK(world.backend->products.size() == 2);
  // Nothing at all.
  CompressShape none = Small(true, 0);
  none.tokens = 0;
  World idle;
  REQUIRE(
      MlaCompress(idle.device, testing::ShapeOf(MakeCompress<B16>(random, none), true), Stream{})
          .ok());
  CHECK(idle.backend->products.empty());
  CHECK(idle.backend->allocated == 0);
}

// One token, or a rank of one: matrices that lie one behind the other, with rows too short to be
// side by side.
TEST_CASE("compress: what only looks like one matrix makes two products") {
  Random random(2);
  for (const bool one_token : {true, false}) {
    World world;
    CompressShape shape = Small(true, 0);
    shape.v_dim = shape.k_dim;
    if (one_token) shape.tokens = 1;
    if (!one_token) shape.rank = 1;
    const auto c = MakeCompress<F32>(random, shape);
    const CompressReference<F32> expected(c);
    DeviceVector<std::uint32_t> hidden(world.device, c.hidden.bits);
    DeviceVector<std::uint32_t> w_down(world.device, c.w_down.bits);
    std::vector<std::uint32_t> both;
    for (std::int64_t r = 0; r < c.rank; ++r) {
      const auto row = static_cast<std::ptrdiff_t>(24 * r);
      both.insert(both.end(), c.w_up_k.bits.begin() + row, c.w_up_k.bits.begin() + row + 24);
      both.insert(both.end(), c.w_up_v.bits.begin() + row, c.w_up_v.bits.begin() + row + 24);
    }
    DeviceVector<std::uint32_t> w_up(world.device, both);
    DeviceVector<std::uint32_t> out(
        world.device, std::vector<std::uint32_t>(static_cast<std::size_t>(c.tokens) * 48));
    MlaCompressParams p = testing::ShapeOf(c, true);
    p.hidden = hidden.data();
    p.w_down = w_down.data();
    p.w_up_k = w_up.data();
    p.w_up_v = w_up.data() + 24;
    p.k = out.data();
    p.v = out.data() + 24;
    (one_token ? p.w_up_k_stride : p.k_token_stride) = 48;
    (one_token ? p.w_up_v_stride : p.v_token_stride) = 48;
    REQUIRE(MlaCompress(world.device, p, Stream{}).ok());
    CHECK(world.backend->products.size() == 3);
    const reference::Rows<F32> all{c.tokens, 48, 48, out.Read()};
    testing::CheckRows("k", expected.k, testing::PartOf(all, 0, 24));
    testing::CheckRows("v", expected.v, testing::PartOf(all, 24, 24));
  }
}

TEST_CASE("compress: PackUpProjections puts rows side by side, or one matrix behind the other") {
  for (Device& device : testing::AvailableDevices()) {
    Random random(3);
    for (const bool in_out : {true, false}) {
      for (const std::int64_t pad : {0, 5}) {
        CompressShape shape = Small(in_out, pad);
        shape.rank = 300;  // more rows than are copied at a time
        const auto c = MakeCompress<B16>(random, shape);
        DeviceVector<std::uint16_t> k(device, c.w_up_k.bits), v(device, c.w_up_v.bits);
        DeviceVector<std::uint16_t> packed(device, std::vector<std::uint16_t>(300 * 42));
        MlaCompressParams p = testing::ShapeOf(c, pad == 0);
        p.w_up_k = k.data();
        p.w_up_v = v.data();
        REQUIRE(PackUpProjections(device, p, packed.data(), Stream{}).ok());
        CHECK(p.w_up_k == packed.data());
        CHECK(p.w_up_v == packed.data() + (in_out ? 24 : 24 * 300));
        CHECK(p.w_up_k_stride == (in_out ? 42 : 300));
        CHECK(p.w_up_v_stride == p.w_up_k_stride);
        const auto got = packed.Read();
        std::size_t wrong = 0;
        for (std::int64_t r = 0; r < c.w_up_k.rows + (in_out ? 0 : c.w_up_v.rows); ++r) {
          for (std::int64_t i = 0; i < (in_out ? 42 : 300); ++i) {
            const bool is_v = in_out ? i >= 24 : r >= 24;
            const auto& from = is_v ? c.w_up_v : c.w_up_k;
            const std::int64_t row = !in_out && is_v ? r - 24 : r;
            const std::int64_t column = in_out && is_v ? i - 24 : i;
            wrong += got[static_cast<std::size_t>(r * (in_out ? 42 : 300) + i)] !=
                     from.bits[static_cast<std::size_t>(row * from.stride + column)];
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
  // A failure leaves the parameters as they were.
  World world;
  world.backend->no_copies = true;
  static float memory[16];
  MlaCompressParams before;
  before.dtype = DType::kFP32;
  before.rank = before.heads = before.k_dim = before.v_dim = 1;
  before.w_up_k = before.w_up_v = memory;
  MlaCompressParams p = before;
  std::vector<float> packed(2);
  CHECK(PackUpProjections(world.device, p, packed.data(), Stream{}).code() == Code::kDeviceError);
  CHECK(p.w_up_k == before.w_up_k);
  CHECK(p.w_up_k_stride == before.w_up_k_stride);
}

TEST_CASE("compress: after Warmup no call needs anything new") {
  Random random(4);
  for (const bool in_out : {true, false}) {
    for (const std::int64_t pad : {0, 3}) {
      for (const bool packed : {false, true}) {
        for (const bool stacked : {false, true}) {
          for (const bool want_latent : {false, true}) {
            CAPTURE(in_out, pad, packed, stacked, want_latent);
            const auto c = MakeCompress<B16>(random, Small(in_out, pad));
            World world;
            CompressOptions options;
            options.packed = packed;
            options.stacked = stacked;
            options.want_latent = want_latent;
            // Strides alone, as for buffers that do not exist yet.
            MlaCompressParams p = testing::ShapeOf(c, false);
            p.num_tokens = 9;
            if (packed) p.w_up_k_stride = p.w_up_v_stride = in_out ? 42 : 10;
            p.k_token_stride = stacked ? 42 + pad : 24 + pad;
            p.v_token_stride = stacked ? 42 + pad : 18 + pad;
            std::uint16_t latent = 0;
            if (want_latent) p.latent = &latent;
            p.latent_stride = 10 + pad;
            REQUIRE(Warmup(world.device, p, Stream{}).ok());
            CHECK(world.backend->products.empty());
            const std::int64_t asked = world.backend->scratch;
            const Result<std::int64_t> workspace = WorkspaceBytes(world.device, p);
            REQUIRE(workspace.ok());
            CHECK(*workspace == 1000 + asked);  // the products' and its own
            CHECK(asked == (want_latent ? 0 : 9 * 16 * 2));
            const std::int64_t grown = world.backend->grown;
            RunCompress(world.device, c, CompressReference<B16>(c), options);
            CHECK(world.backend->Covered());
            CHECK(world.backend->grown == grown);
          }
        }
      }
    }
  }
}

TEST_CASE("compress: the workspace is what the backend allocates") {
  Random random(5);
  for (const std::int64_t tokens : {0, 1, 400, 4096}) {
    CompressShape shape;
    shape.tokens = tokens;
    shape.rank = 45;
    for (const DType dtype : {DType::kFP32, DType::kBF16}) {
      World world;
      MlaCompressParams p = testing::ShapeOf(MakeCompress<F32>(random, shape), true);
      p.dtype = dtype;
      const Result<std::int64_t> workspace = WorkspaceBytes(world.device, p);
      REQUIRE(workspace.ok());
      CHECK(world.backend->allocated == 0);
      REQUIRE(Warmup(world.device, p, Stream{}).ok());
      const std::int64_t latent = tokens * 48 * static_cast<std::int64_t>(SizeOf(dtype));
      CHECK(*workspace == (tokens == 0 ? 0 : 1000 + latent));
      // A pool's least buffer is 4096 bytes.
      CHECK(world.backend->allocated == (tokens == 0 ? 0 : std::max<std::int64_t>(latent, 4096)));
      const std::int64_t allocated = world.backend->allocated;
      for (p.num_tokens = tokens; p.num_tokens > 0; p.num_tokens /= 3) {
        REQUIRE(Warmup(world.device, p, Stream{}).ok());
      }
      CHECK(world.backend->allocated == allocated);
      // A latent of the caller's takes none.
      std::uint32_t place = 0;
      p.num_tokens = tokens;
      p.latent = &place;
      CHECK(*WorkspaceBytes(world.device, p) == (tokens == 0 ? 0 : 1000));
    }
  }
  // No memory, no workspace.
  Device null = *Device::Create(BackendKind::kNull);
  MlaCompressParams p = testing::ShapeOf(MakeCompress<F32>(random, CompressShape{}), true);
  for (const MlaPath path : {MlaPath::kAuto, MlaPath::kFused, MlaPath::kGemm}) {
    p.path = path;
    CHECK(*WorkspaceBytes(null, p) == 0);
    CHECK(Warmup(null, p, Stream{}).ok());
    CHECK(MlaCompress(null, p, Stream{}).ok());
  }
  CHECK(PackUpProjections(null, p, nullptr, Stream{}).ok());
}

TEST_CASE("compress: no room for scratch is a Status, and no product runs") {
  World world;
  world.backend->no_scratch = true;
  Random random(6);
  const auto c = MakeCompress<F32>(random, Small(true, 0));
  DeviceVector<std::uint32_t> in(world.device, c.hidden.bits), w(world.device, c.w_up_k.bits);
  DeviceVector<std::uint32_t> k(world.device, std::vector<std::uint32_t>(5 * 24, 7));
  DeviceVector<std::uint32_t> v(world.device, std::vector<std::uint32_t>(5 * 18, 7));
  MlaCompressParams p = testing::ShapeOf(c, true);
  p.hidden = in.data();
  p.w_down = p.w_up_k = p.w_up_v = w.data();
  p.k = k.data();
  p.v = v.data();
  CHECK(MlaCompress(world.device, p, Stream{}).code() == Code::kResourceExhausted);
  CHECK(Warmup(world.device, p, Stream{}).code() == Code::kResourceExhausted);
  CHECK(world.backend->products.empty());
  CHECK(k.Read() == std::vector<std::uint32_t>(5 * 24, 7));
}

TEST_CASE("compress: a steady call on the CPU takes no memory") {
  Device cpu = *Device::Create(BackendKind::kCpu);
  Random random(7);
  const auto run = [&](auto format) {
    using F = decltype(format);
    using Bits = typename F::Bits;
    const auto c = MakeCompress<F>(random, CompressShape{});
    DeviceVector<Bits> hidden(cpu, c.hidden.bits), w_down(cpu, c.w_down.bits);
    DeviceVector<Bits> w_up(cpu, c.w_up_k.bits), k(cpu, std::vector<Bits>(128));
    DeviceVector<Bits> v(cpu, std::vector<Bits>(128));
    MlaCompressParams p = testing::ShapeOf(c, true);
    p.hidden = hidden.data();
    p.w_down = w_down.data();
    p.w_up_k = p.w_up_v = w_up.data();
    p.k = k.data();
    p.v = v.data();
    REQUIRE(Warmup(cpu, p, Stream{}).ok());
    REQUIRE(MlaCompress(cpu, p, Stream{}).ok());
    const std::int64_t before = testing::CountOfNew();
    bool ok = true;
    for (int i = 0; i < 3; ++i) ok = MlaCompress(cpu, p, Stream{}).ok() && ok;
    CHECK(testing::CountOfNew() == before);
    CHECK(ok);
  };
  run(F32{});
  run(F16{});
  run(B16{});
}

}  // namespace lariat
