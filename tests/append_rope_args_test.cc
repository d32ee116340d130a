// SPDX-License-Identifier: Apache-2.0
// What AppendRope refuses, field by field.
#include <limits>

#include "support/append_runner.h"

namespace lariat {
namespace {

using testing::AvailableDevices;
using testing::DeviceVector;

// A good call over small buffers, all held here.
struct GoodCall {
  explicit GoodCall(Device device)
      : in(device, std::vector<float>(256, 1)),
        cache(device, std::vector<float>(64, 3)),
        q_out(device, std::vector<float>(128, 5)),
        slots(device, {0, 1, 2}),
        positions(device, {0, 1, 0}),
        fault(device, {FaultRecord{}}),
        word(device, {nullptr}) {
    params.in_dtype = params.dtype = DType::kFP32;
    params.num_tokens = 3;
    params.kv_heads = 2;
    params.q_heads = 4;
    params.k_dim = params.v_dim = params.rotary_dim = 4;
    params.k = params.v = params.q = in.data();
    params.q_out = q_out.data();
    params.slots = slots.data();
    params.positions = positions.data();
    params.cos = params.sin = in.data();
    params.num_positions = 2;
    params.k_cache = params.v_cache = cache.data();
    params.num_slots = 8;
    params.block_size = 4;
  }
  DeviceVector<float> in, cache, q_out;
  DeviceVector<std::int64_t> slots;
  DeviceVector<std::int32_t> positions;
  DeviceVector<FaultRecord> fault;
  DeviceVector<FaultRecord*> word;
  AppendRopeParams params;
};

template <class T>
T* Shifted(T* pointer, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

}  // namespace

TEST_CASE("append: wrong arguments are refused by name, and nothing is written") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const auto refused = [&](Code code, const std::string& start, auto change) {
      AppendRopeParams bad = good.params;
      change(bad);
      const Status status = AppendRope(device, bad, Stream{});
      INFO(start << ": " << status.ToString());
      CHECK(status.code() == code);
      CHECK(status.message().rfind(start, 0) == 0);
      CHECK(good.cache.Read() == std::vector<float>(64, 3));
      CHECK(good.q_out.Read() == std::vector<float>(128, 5));
    };
    const Code unsupported = Code::kUnsupported;
    refused(unsupported, "in_dtype = fp8_e4m3", [](auto& p) { p.in_dtype = DType::kFP8E4M3; });
    refused(unsupported, "in_dtype = fp64", [](auto& p) { p.in_dtype = DType::kFP64; });
    refused(unsupported, "dtype = fp8_e4m3", [](auto& p) { p.dtype = DType::kFP8E4M3; });
    refused(unsupported, "dtype = fp64", [](auto& p) { p.dtype = DType::kFP64; });
    refused(unsupported, "dtype = fp32", [](auto& p) { p.in_dtype = DType::kBF16; });
    refused(unsupported, "dtype = fp16", [](auto& p) {
      p.in_dtype = DType::kBF16;
      p.dtype = DType::kFP16;
    });
    refused(unsupported, "check_slots", [](auto& p) { p.check_slots = true; });
    refused(unsupported, "k_scale", [](auto& p) { p.k_scale = 2; });
    refused(unsupported, "v_scale", [](auto& p) { p.v_scale = 0; });

    const Code invalid = Code::kInvalidArgument;
    refused(invalid, "position_sections = 2", [](auto& p) { p.position_sections = 2; });
    refused(invalid, "section_pairs", [](auto& p) { p.position_sections = 3; });
    refused(invalid, "style", [](auto& p) { p.style = static_cast<RopeStyle>(9); });
    refused(invalid, "dependent_launch = 3",
            [](auto& p) { p.dependent_launch = static_cast<DependentLaunch>(3); });
    refused(invalid, "num_tokens = -1", [](auto& p) { p.num_tokens = -1; });
    refused(invalid, "num_tokens", [](auto& p) { p.num_tokens = std::int64_t{1} << 31; });
    refused(invalid, "kv_heads = 0", [](auto& p) { p.kv_heads = 0; });
    refused(invalid, "kv_heads = -3", [](auto& p) { p.kv_heads = -3; });
    refused(invalid, "q_heads = -1", [](auto& p) { p.q_heads = -1; });
    refused(invalid, "k_dim = 5", [](auto& p) { p.k_dim = 5; });
    refused(invalid, "k_dim = 514", [](auto& p) { p.k_dim = 514; });
    refused(invalid, "v_dim = 0", [](auto& p) { p.v_dim = 0; });
    refused(invalid, "v_dim = 7", [](auto& p) { p.v_dim = 7; });
    refused(invalid, "rotary_dim = 6", [](auto& p) { p.rotary_dim = 6; });
    refused(invalid, "rotary_dim = 1", [](auto& p) { p.rotary_dim = 1; });
    refused(invalid, "block_size = 0", [](auto& p) { p.block_size = 0; });
    refused(invalid, "num_slots = 7", [](auto& p) { p.num_slots = 7; });
    refused(invalid, "num_slots = -4", [](auto& p) { p.num_slots = -4; });
    refused(invalid, "num_positions = 0", [](auto& p) { p.num_positions = 0; });
    refused(invalid, "num_positions = -1", [](auto& p) { p.num_positions = -1; });
    refused(invalid, "k_token_stride", [](auto& p) { p.k_token_stride = -1; });
    refused(invalid, "k_head_stride", [](auto& p) { p.k_head_stride = -1; });
    refused(invalid, "v_token_stride", [](auto& p) { p.v_token_stride = -1; });
    refused(invalid, "v_head_stride", [](auto& p) { p.v_head_stride = -1; });
    refused(invalid, "q_token_stride", [](auto& p) { p.q_token_stride = -1; });
    refused(invalid, "q_head_stride", [](auto& p) { p.q_head_stride = -1; });
    refused(invalid, "k_block_stride", [](auto& p) { p.k_block_stride = -1; });
    refused(invalid, "k_row_stride", [](auto& p) { p.k_row_stride = -1; });
    refused(invalid, "k_cache_head_stride", [](auto& p) { p.k_cache_head_stride = -1; });
    refused(invalid, "v_block_stride", [](auto& p) { p.v_block_stride = -1; });
    refused(invalid, "v_row_stride", [](auto& p) { p.v_row_stride = -1; });
    refused(invalid, "v_cache_head_stride", [](auto& p) { p.v_cache_head_stride = -1; });
    const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 4;
    refused(invalid, "k:", [&](auto& p) { p.k_token_stride = huge; });
    refused(invalid, "v:", [&](auto& p) { p.v_head_stride = huge * 2; });
    refused(invalid, "q:", [&](auto& p) { p.q_head_stride = huge; });
    refused(invalid, "k_cache:", [&](auto& p) { p.k_block_stride = huge; });
    refused(invalid, "v_cache:", [&](auto& p) { p.v_row_stride = huge; });
    refused(invalid, "cos:", [&](auto& p) { p.num_positions = huge; });
  }
}

TEST_CASE("append: missing, misaligned and overlapping pointers are refused by name") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const auto status_of = [&](auto change) {
      AppendRopeParams changed = good.params;
      change(changed);
      return AppendRope(device, changed, Stream{});
    };
    const auto refused = [&](const std::string& start, auto change) {
      const Status status = status_of(change);
      INFO(start << ": " << status.ToString());
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().rfind(start, 0) == 0);
    };
    refused("k = null", [](auto& p) { p.k = nullptr; });
    refused("v = null", [](auto& p) { p.v = nullptr; });
    refused("q = null", [](auto& p) { p.q = nullptr; });
    refused("q_out = null", [](auto& p) { p.q_out = nullptr; });
    refused("slots = null", [](auto& p) { p.slots = nullptr; });
    refused("positions = null", [](auto& p) { p.positions = nullptr; });
    refused("cos = null", [](auto& p) { p.cos = nullptr; });
    refused("sin = null", [](auto& p) { p.sin = nullptr; });
    refused("k_cache = null", [](auto& p) { p.k_cache = nullptr; });
    refused("v_cache = null", [](auto& p) { p.v_cache = nullptr; });
    refused("k = ", [](auto& p) { p.k = Shifted(static_cast<const char*>(p.k), 2); });
    refused("v = ", [](auto& p) { p.v = Shifted(static_cast<const char*>(p.v), 1); });
    refused("q = ", [](auto& p) { p.q = Shifted(static_cast<const char*>(p.q), 3); });
    refused("slots = ", [](auto& p) { p.slots = Shifted(p.slots, 4); });
    refused("positions = ", [](auto& p) { p.positions = Shifted(p.positions, 2); });
    refused("cos = ", [](auto& p) { p.cos = Shifted(p.cos, 2); });
    refused("k_cache = ", [](auto& p) { p.k_cache = Shifted(static_cast<char*>(p.k_cache), 2); });
    refused("fault = ", [&](auto& p) { p.fault = Shifted(good.fault.data(), 4); });
    refused("fault_indirect = ", [&](auto& p) { p.fault_indirect = Shifted(good.word.data(), 4); });
    refused("fault and fault_indirect", [&](auto& p) {
      p.fault = good.fault.data();
      p.fault_indirect = good.word.data();
    });
    // q_out may be q, but not a shifted q, be it by elements, heads or tokens.
    for (const int shift : {1, 3, 4, 5, 12, 16, 47}) {
      refused("q_out overlaps q", [&](auto& p) { p.q_out = good.in.data() + shift; });
    }
    CHECK(status_of([&](auto& p) { p.q_out = good.in.data() + 64; }).ok());
    // Columns of one strided buffer do not overlap: [T, q | k | v | q_out].
    const auto columns = [&](int q_out_column) {
      return status_of([&](auto& p) {
        p.q_token_stride = 40;
        p.q_out = good.in.data() + q_out_column;
      });
    };
    CHECK(columns(16).ok());
    CHECK(columns(24).ok());
    CHECK(columns(25).code() == Code::kInvalidArgument);
    CHECK(columns(15).code() == Code::kInvalidArgument);
    // What no work needs may be missing.
    CHECK(status_of([](auto& p) {
            p.rotary_dim = 0;
            p.cos = p.sin = nullptr;
            p.positions = nullptr;
            p.num_positions = 0;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.q_heads = 0;
            p.q = p.q_out = nullptr;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.num_slots = 0;
            p.k_cache = p.v_cache = nullptr;
          }).ok());
  }
}

TEST_CASE("append: the null backend checks the shape and takes any address") {
  Result<Device> device = Device::Create(BackendKind::kNull);
  REQUIRE(device.ok());
  AppendRopeParams params;
  params.num_tokens = 4;
  params.kv_heads = 1;
  params.k_dim = params.v_dim = params.rotary_dim = 4;
  CHECK(AppendRope(*device, params, Stream{}).ok());
  params.k_dim = 3;
  CHECK(AppendRope(*device, params, Stream{}).code() == Code::kInvalidArgument);
}

}  // namespace lariat
