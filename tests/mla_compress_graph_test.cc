// SPDX-License-Identifier: Apache-2.0
// MlaCompress in a captured graph.
#include <memory>

#include "support/compress_runner.h"
#include "support/few_cases.h"
#include "support/gpu_work.h"

namespace lariat {
namespace {

using reference::B16;
using testing::CompressShape;
using testing::DeviceVector;
using testing::Random;

void Must(const Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}
void Must(const char* error) {
  if (*error != '\0') FAIL(error);
}

// A call with all its buffers, on a device and stream of its own.
class World {
 public:
  explicit World(std::int64_t tokens, MlaPath path, bool want_latent = false)
      : device_(*Device::Create(BackendKind::kCuda)), stream_(*device_.CreateStream()) {
    Random random(1);
    CompressShape shape;
    shape.tokens = tokens;
    const auto c = testing::MakeCompress<B16>(random, shape);
    const auto put = [&](const std::vector<std::uint16_t>& bits) {
      return held_.emplace_back(std::make_unique<DeviceVector<std::uint16_t>>(device_, bits))
          ->data();
    };
    call = testing::ShapeOf(c, true);
    call.path = path;
    call.hidden = hidden_ = put(c.hidden.bits);
    call.w_down = put(c.w_down.bits);
    call.w_up_k = put(c.w_up_k.bits);
    call.w_up_v = put(c.w_up_v.bits);
    const std::vector<std::uint16_t> empty(static_cast<std::size_t>(tokens * 256), 0x7FC1);
    auto* const kv = put(empty);
    kv_ = held_.back().get();
    call.k = kv;
    call.v = kv + 128;
    call.k_token_stride = call.v_token_stride = 256;
    if (want_latent)
      call.latent = put(std::vector<std::uint16_t>(static_cast<std::size_t>(tokens * 48)));
  }
  ~World() {
    (void)device_.Synchronize(stream_);
    device_.DestroyStream(stream_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Status Call() { return MlaCompress(device_, call, stream_); }
  Status WarmUp(const MlaCompressParams& p) { return Warmup(device_, p, stream_); }
  const char* Capture(testing::Graph& graph, Status& status) {
    return graph.Capture(stream_, [&] { status = Call(); });
  }
  void Launch(testing::Graph& graph) { Must(graph.Launch(stream_)); }
  // Other hidden states, of bytes that are small numbers.
  void Change(std::uint8_t byte) {
    Must(device_.Fill(hidden_, byte, static_cast<std::size_t>(call.num_tokens) * 256 * 2, stream_));
  }
  void Clear() {
    Must(device_.Fill(call.k, 0, static_cast<std::size_t>(call.num_tokens) * 256 * 2, stream_));
  }
  std::vector<std::uint16_t> Results() {
    Must(device_.Synchronize(stream_));
    return kv_->Read();
  }

  MlaCompressParams call;

 private:
  Device device_;
  Stream stream_;
  std::vector<std::unique_ptr<DeviceVector<std::uint16_t>>> held_;
  DeviceVector<std::uint16_t>* kv_ = nullptr;
  std::uint16_t* hidden_ = nullptr;
};

bool NoGpu() { return !Device::Create(BackendKind::kCuda).ok(); }

}  // namespace

TEST_CASE("compress: captured before Warmup is kNotReady, and works after it") {
  if (NoGpu()) LARIAT_SKIP("no CUDA device answers");
  // Warmup tries a hundred launches for each power of two.
  const std::int64_t tokens = test::FewCases() ? 3 : 65;
  for (const bool want_latent : {false, true}) {
    World world(tokens, MlaPath::kGemm, want_latent);
    testing::Graph early, graph;
    Status status;
    Must(world.Capture(early, status));
    INFO(status.ToString());
    CHECK(status.code() == Code::kNotReady);
    CHECK(world.Results() ==
          std::vector<std::uint16_t>(static_cast<std::size_t>(tokens) * 256, 0x7FC1));
    // Warmed for more tokens, and before there are buffers.
    MlaCompressParams shape = world.call;
    shape.num_tokens = test::FewCases() ? 4 : 100;
    shape.hidden = shape.w_down = shape.w_up_k = shape.w_up_v = shape.k = shape.v = nullptr;
    Must(world.WarmUp(shape));
    Must(world.Capture(graph, status));
    Must(status);
    for (const std::uint8_t byte : std::vector<std::uint8_t>{0x3F, 0x3D, 0xBE}) {
      world.Change(byte);
      Must(world.Call());
      const auto eager = world.Results();
      world.Clear();
      world.Launch(graph);
      CHECK((world.Results() == eager));
      CHECK(eager[0] != 0);
      // A workspace that grows leaves the graph what it has.
      shape.num_tokens *= test::FewCases() ? 2 : 20;
      Must(world.WarmUp(shape));
      world.Clear();
      world.Launch(graph);
      CHECK((world.Results() == eager));
    }
  }
}

TEST_CASE("compress: the fused path needs no Warmup to be captured") {
  if (NoGpu()) LARIAT_SKIP("no CUDA device answers");
  for (const std::int64_t tokens : {1, 65, 384}) {
    World world(tokens, MlaPath::kAuto);
    testing::Graph graph;
    Status status;
    Must(world.Capture(graph, status));
    Must(status);
    world.Launch(graph);
    const auto replayed = world.Results();
    world.Clear();
    Must(world.Call());
    CHECK((world.Results() == replayed));
    world.Change(0x3E);
    Must(world.Call());
    const auto eager = world.Results();
    world.Clear();
    world.Launch(graph);
    CHECK((world.Results() == eager));
    CHECK((eager != replayed));
  }
}

}  // namespace lariat
