// SPDX-License-Identifier: Apache-2.0
// What MlaCompress and the calls around it refuse, field by field.
#include <functional>

#include "backend/check.h"
#include "support/compress_runner.h"

namespace lariat {
namespace {

using testing::AvailableDevices;
using testing::DeviceVector;

// A good call over small buffers, all held here: T 3, model_dim 6, rank 4, 2 heads of 5 and 3.
struct GoodCall {
  explicit GoodCall(Device device)
      : in(device, std::vector<float>(256, 1)),
        k(device, std::vector<float>(64, 3)),
        v(device, std::vector<float>(64, 4)),
        latent(device, std::vector<float>(32, 5)) {
    params.dtype = DType::kFP32;
    params.num_tokens = 3;
    params.model_dim = 6;
    params.rank = 4;
    params.heads = 2;
    params.k_dim = 5;
    params.v_dim = 3;
    params.hidden = in.data();
    params.w_down = in.data() + 32;
    params.w_up_k = in.data() + 64;
    params.w_up_v = in.data() + 128;
    params.k = k.data();
    params.v = v.data();
    params.latent = latent.data();
  }
  bool Untouched() {
    return k.Read() == std::vector<float>(64, 3) && v.Read() == std::vector<float>(64, 4) &&
           latent.Read() == std::vector<float>(32, 5);
  }
  DeviceVector<float> in, k, v, latent;
  MlaCompressParams params;
};

template <class T>
T* Shifted(T* pointer, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

using Change = std::function<void(MlaCompressParams&)>;
struct Refusal {
  Code code;
  std::string start;  // of the message
  Change change;
};

// Numbers that every call looks at.
std::vector<Refusal> WrongShapes() {
  const Code unsupported = Code::kUnsupported, invalid = Code::kInvalidArgument;
  const std::int64_t large = std::int64_t{1} << 31;
  return {
      {unsupported, "dtype = fp64: MlaCompress", [](auto& p) { p.dtype = DType::kFP64; }},
      {unsupported, "dtype = fp8_e4m3", [](auto& p) { p.dtype = DType::kFP8E4M3; }},
      {invalid, "num_tokens = -1", [](auto& p) { p.num_tokens = -1; }},
      {invalid, "num_tokens = 2147483648", [=](auto& p) { p.num_tokens = large; }},
      {invalid, "model_dim = 0", [](auto& p) { p.model_dim = 0; }},
      {invalid, "model_dim = -6", [](auto& p) { p.model_dim = -6; }},
      {invalid, "model_dim = 1048577", [](auto& p) { p.model_dim = (1 << 20) + 1; }},
      {invalid, "rank = 0", [](auto& p) { p.rank = 0; }},
      {invalid, "rank = 65537", [](auto& p) { p.rank = 65537; }},
      {invalid, "heads = 0", [](auto& p) { p.heads = 0; }},
      {invalid, "heads = 8193", [](auto& p) { p.heads = 8193; }},
      {invalid, "k_dim = 0", [](auto& p) { p.k_dim = 0; }},
      {invalid, "k_dim = 8193", [](auto& p) { p.k_dim = 8193; }},
      {invalid, "v_dim = -1", [](auto& p) { p.v_dim = -1; }},
      {invalid, "v_dim = 8193", [](auto& p) { p.v_dim = 8193; }},
      {invalid, "layout = 2", [](auto& p) { p.layout = static_cast<WeightLayout>(2); }},
      {invalid, "path = 3", [](auto& p) { p.path = static_cast<MlaPath>(3); }},
      {invalid, "hidden_stride = 5: must be 0, or 6", [](auto& p) { p.hidden_stride = 5; }},
      {invalid, "hidden_stride = -6", [](auto& p) { p.hidden_stride = -6; }},
      {invalid, "hidden_stride = 2147483648", [=](auto& p) { p.hidden_stride = large; }},
      {invalid, "w_down_stride = 3", [](auto& p) { p.w_down_stride = 3; }},
      {invalid, "w_down_stride = 5",
       [](auto& p) {
         p.layout = WeightLayout::kOutIn;
         p.w_down_stride = 5;
       }},
      {invalid, "w_down_stride = 2147483648", [=](auto& p) { p.w_down_stride = large; }},
      {invalid, "w_up_k_stride = 9", [](auto& p) { p.w_up_k_stride = 9; }},
      {invalid, "w_up_k_stride = 3",
       [](auto& p) {
         p.layout = WeightLayout::kOutIn;
         p.w_up_k_stride = 3;
       }},
      {invalid, "w_up_k_stride = 2147483648", [=](auto& p) { p.w_up_k_stride = large; }},
      {invalid, "w_up_v_stride = 5", [](auto& p) { p.w_up_v_stride = 5; }},
      {invalid, "w_up_v_stride = 2147483648", [=](auto& p) { p.w_up_v_stride = large; }},
      {invalid, "k_token_stride = 9", [](auto& p) { p.k_token_stride = 9; }},
      {invalid, "k_token_stride = 2147483648", [=](auto& p) { p.k_token_stride = large; }},
      {invalid, "v_token_stride = 5", [](auto& p) { p.v_token_stride = 5; }},
      {invalid, "v_token_stride = -1", [](auto& p) { p.v_token_stride = -1; }},
      {invalid, "v_token_stride = 2147483648", [=](auto& p) { p.v_token_stride = large; }},
      {invalid, "latent_stride = 3", [](auto& p) { p.latent_stride = 3; }},
      {invalid, "latent_stride = 2147483648", [=](auto& p) { p.latent_stride = large; }},
      {invalid, "hidden: its size",
       [](auto& p) {
         p.num_tokens = check::kMaxInt32;
         p.hidden_stride = check::kMaxInt32;
       }},
      {invalid, "k: its size",
       [](auto& p) {
         p.num_tokens = check::kMaxInt32;
         p.k_token_stride = check::kMaxInt32;
       }},
      {unsupported, "path = kFused",
       [](auto& p) {
         p.path = MlaPath::kFused;
         p.layout = WeightLayout::kOutIn;
       }},
      {unsupported, "path = kFused",
       [](auto& p) {
         p.path = MlaPath::kFused;
         p.rank = p.k_dim = p.model_dim = 4096;
       }},
  };
}

}  // namespace

TEST_CASE("compress: wrong arguments are refused by name, and nothing is written") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    for (const Refusal& refusal : WrongShapes()) {
      MlaCompressParams bad = good.params;
      refusal.change(bad);
      for (const Status& status :
           {MlaCompress(device, bad, Stream{}), Warmup(device, bad, Stream{}),
            WorkspaceBytes(device, bad).status()}) {
        INFO(refusal.start << ": " << status.ToString());
        CHECK(status.code() == refusal.code);
        CHECK(status.message().rfind(refusal.start, 0) == 0);
      }
      // No tokens excuse nothing else.
      if (bad.num_tokens != 3) continue;
      bad.num_tokens = 0;
      CHECK(MlaCompress(device, bad, Stream{}).code() == refusal.code);
    }
    CHECK(good.Untouched());
  }
}

TEST_CASE("compress: missing, misaligned and overlapping memory is refused by name") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const auto refused = [&](const std::string& start, const Change& change) {
      MlaCompressParams bad = good.params;
      change(bad);
      const Status status = MlaCompress(device, bad, Stream{});
      INFO(start << ": " << status.ToString());
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().rfind(start, 0) == 0);
    };
    refused("hidden = null", [](auto& p) { p.hidden = nullptr; });
    refused("w_down = null", [](auto& p) { p.w_down = nullptr; });
    refused("w_up_k = null", [](auto& p) { p.w_up_k = nullptr; });
    refused("w_up_v = null", [](auto& p) { p.w_up_v = nullptr; });
    refused("k = null", [](auto& p) { p.k = nullptr; });
    refused("v = null", [](auto& p) { p.v = nullptr; });
    refused("hidden = ", [](auto& p) { p.hidden = Shifted(p.hidden, 2); });
    refused("w_down = ", [](auto& p) { p.w_down = Shifted(p.w_down, 1); });
    refused("w_up_k = ", [](auto& p) { p.w_up_k = Shifted(p.w_up_k, 3); });
    refused("w_up_v = ", [](auto& p) { p.w_up_v = Shifted(p.w_up_v, 2); });
    refused("k = ", [](auto& p) { p.k = Shifted(p.k, 2); });
    refused("v = ", [](auto& p) { p.v = Shifted(p.v, 2); });
    refused("latent = ", [](auto& p) { p.latent = Shifted(p.latent, 2); });

    auto* const in = const_cast<float*>(static_cast<const float*>(good.params.hidden));
    auto* const k = static_cast<float*>(good.params.k);
    refused("k overlaps hidden", [=](auto& p) { p.k = in + 17; });
    refused("k overlaps w_down", [=](auto& p) { p.k = in + 32 + 23; });
    refused("v overlaps w_up_k", [=](auto& p) { p.v = in + 64 + 39; });
    refused("v overlaps w_up_v", [=](auto& p) { p.v = in + 128 - 17; });
    refused("latent overlaps w_up_v", [=](auto& p) { p.latent = in + 128; });
    refused("v overlaps k", [=](auto& p) { p.v = k + 29; });
    refused("v overlaps k", [=](auto& p) { p.v = k + 1; });
    refused("latent overlaps k", [=](auto& p) { p.latent = k; });
    refused("latent overlaps v", [](auto& p) { p.latent = p.v; });
    // Rows of one buffer: a column too near, and a row that reaches into the next one.
    refused("v overlaps k", [=](auto& p) {
      p.k_token_stride = p.v_token_stride = 16;
      p.v = k + 9;
    });
    refused("v overlaps k", [=](auto& p) {
      p.k_token_stride = p.v_token_stride = 15;
      p.v = k + 10;
    });
    refused("v overlaps k", [=](auto& p) {
      p.k_token_stride = p.v_token_stride = 16;
      p.k = k + 6 + 16;
      p.v = k + 1;
    });
    CHECK(good.Untouched());

    // What is legal beside them: columns of one buffer, in either order.
    const auto taken = [&](const Change& change) {
      MlaCompressParams p = good.params;
      change(p);
      const Status status = MlaCompress(device, p, Stream{});
      INFO(status.ToString());
      CHECK(status.ok());
    };
    taken([](auto&) {});
    taken([=](auto& p) {
      p.k_token_stride = p.v_token_stride = 16;
      p.v = k + 10;
    });
    taken([=](auto& p) {
      p.k_token_stride = p.v_token_stride = 16;
      p.k = k + 6;
      p.v = k;
    });
    taken([=](auto& p) {
      p.k_token_stride = p.v_token_stride = p.latent_stride = 20;
      p.k = k + 10;
      p.v = k + 4;
      p.latent = k;
    });
    taken([](auto& p) { p.v = nullptr, p.w_up_v = nullptr, p.v_dim = 0; });
    taken([](auto& p) { p.latent = nullptr; });
    REQUIRE(device.Synchronize(Stream{}).ok());
    MlaCompressParams none;
    none.dtype = DType::kFP16;
    none.model_dim = none.rank = none.heads = none.k_dim = 8;
    CHECK(MlaCompress(device, none, Stream{}).ok());
    CHECK(Warmup(device, none, Stream{}).ok());
    CHECK(*WorkspaceBytes(device, none) == 0);
  }
}

TEST_CASE("compress: Warmup takes null pointers, but no misaligned ones") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    MlaCompressParams p = good.params;
    p.hidden = p.w_down = p.w_up_k = p.w_up_v = p.k = p.v = p.latent = nullptr;
    CHECK(Warmup(device, p, Stream{}).ok());
    p.w_up_v = Shifted(good.params.w_up_v, 2);
    const Status status = Warmup(device, p, Stream{});
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().rfind("w_up_v = ", 0) == 0);
    CHECK(good.Untouched());
  }
}

// The null backend takes the fused path for every shape that is one.
TEST_CASE("compress: the path of a wrong shape is kGemm") {
  std::vector<Device> devices = AvailableDevices();
  GoodCall good(devices[0]);
  devices.push_back(*Device::Create(BackendKind::kNull));
  CHECK(MlaCompressPathOf(devices.back(), good.params) == MlaPath::kFused);
  for (const Device& device : devices) {
    for (const Refusal& refusal : WrongShapes()) {
      const bool is_shape = refusal.start.find(" = ") != std::string::npos &&
                            refusal.start.find("stride") == std::string::npos &&
                            refusal.start.find("kFused") == std::string::npos;
      if (!is_shape) continue;
      MlaCompressParams bad = good.params;
      refusal.change(bad);
      INFO(device.name() << " " << refusal.start);
      CHECK(MlaCompressPathOf(device, bad) == MlaPath::kGemm);
    }
  }
}

TEST_CASE("compress: PackUpProjections refuses by name and leaves its parameters") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    DeviceVector<float> packed(device, std::vector<float>(64, 6));
    const auto refused = [&](Code code, const std::string& start, const Change& change,
                             int shift = 0) {
      MlaCompressParams bad = good.params;
      change(bad);
      const MlaCompressParams before = bad;
      const Status status = PackUpProjections(device, bad, Shifted(packed.data(), shift), Stream{});
      INFO(start << ": " << status.ToString());
      CHECK(status.code() == code);
      CHECK(status.message().rfind(start, 0) == 0);
      CHECK(bad.w_up_k == before.w_up_k);
      CHECK(bad.w_up_v_stride == before.w_up_v_stride);
    };
    const Code invalid = Code::kInvalidArgument;
    refused(Code::kUnsupported, "dtype = fp64", [](auto& p) { p.dtype = DType::kFP64; });
    refused(invalid, "rank = 0", [](auto& p) { p.rank = 0; });
    refused(invalid, "heads = 0", [](auto& p) { p.heads = 0; });
    refused(invalid, "k_dim = 0", [](auto& p) { p.k_dim = 0; });
    refused(invalid, "v_dim = -2", [](auto& p) { p.v_dim = -2; });
    refused(invalid, "layout = 7", [](auto& p) { p.layout = static_cast<WeightLayout>(7); });
    refused(invalid, "w_up_k_stride = 9", [](auto& p) { p.w_up_k_stride = 9; });
    refused(invalid, "w_up_v_stride = 5", [](auto& p) { p.w_up_v_stride = 5; });
    refused(invalid, "w_up_k = null", [](auto& p) { p.w_up_k = nullptr; });
    refused(invalid, "w_up_v = null", [](auto& p) { p.w_up_v = nullptr; });
    refused(
        invalid, "packed = ", [](auto&) {}, 2);
    refused(invalid, "packed overlaps w_up_k", [&](auto& p) { p.w_up_k = packed.data() + 63; });
    refused(invalid, "packed overlaps w_up_v", [&](auto& p) { p.w_up_v = packed.data(); });
    CHECK(packed.Read() == std::vector<float>(64, 6));
    MlaCompressParams p = good.params;
    CHECK(PackUpProjections(device, p, nullptr, Stream{}).message().rfind("packed = null", 0) == 0);
    // The rest of the call is not looked at.
    p.num_tokens = -7;
    p.model_dim = 0;
    p.k = p.v = nullptr;
    CHECK(PackUpProjections(device, p, packed.data(), Stream{}).ok());
  }
}

}  // namespace lariat
