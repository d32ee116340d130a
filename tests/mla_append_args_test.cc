// SPDX-License-Identifier: Apache-2.0
// What MlaAppend refuses, field by field.
#include <limits>

#include "backend/backend.h"
#include "support/mla_append_runner.h"

namespace lariat {
namespace {

using testing::AvailableDevices;
using testing::DeviceVector;

// A good call over small buffers, all held here.
struct GoodCall {
  explicit GoodCall(Device device)
      : in(device, std::vector<float>(256, 1)),
        cache(device, std::vector<float>(64, 3)),
        slots(device, {0, 1, 2}),
        positions(device, {0, 1, 0}),
        choice(device, {0, 1, 0}),
        fault(device, {FaultRecord{}}),
        word(device, {nullptr}) {
    rows.in_dtype = rows.dtype = DType::kFP32;
    rows.num_tokens = 3;
    rows.rank = 5;
    rows.rope_dim = 3;
    rows.rotary_dim = 2;
    rows.c_kv = rows.k_pe = rows.norm_weight = in.data();
    rows.slots = slots.data();
    rows.positions = positions.data();
    rows.cos = rows.sin = in.data();
    rows.num_positions = 2;
    rows.cache = cache.data();
    rows.num_slots = 8;
    rows.block_size = 4;
    hidden = rows;
    hidden.c_kv = hidden.k_pe = nullptr;
    hidden.hidden = hidden.w_down = in.data();
    hidden.model_dim = 7;
  }
  DeviceVector<float> in, cache;
  DeviceVector<std::int64_t> slots;
  DeviceVector<std::int32_t> positions;
  DeviceVector<std::uint32_t> choice;
  DeviceVector<FaultRecord> fault;
  DeviceVector<FaultRecord*> word;
  MlaAppendParams rows, hidden;  // from given rows, from hidden
};

template <class T>
T* Shifted(T* pointer, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

// Changes a good call and looks at the answer: code, start of the message, no byte written.
class Refusals {
 public:
  Refusals(Device device, GoodCall& good, const MlaAppendParams& params)
      : device_(std::move(device)), good_(good), params_(params) {}

  template <class Change>
  Status StatusOf(Change change) {
    MlaAppendParams changed = params_;
    change(changed);
    return MlaAppend(device_, changed, Stream{});
  }
  template <class Change>
  void Expect(Code code, const std::string& start, Change change) {
    const Status status = StatusOf(change);
    INFO(start << ": " << status.ToString());
    CHECK(status.code() == code);
    CHECK(status.message().rfind(start, 0) == 0);
    CHECK(good_.cache.Read() == std::vector<float>(64, 3));
  }

 private:
  Device device_;
  GoodCall& good_;
  MlaAppendParams params_;
};

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 4;

}  // namespace

TEST_CASE("mla append: wrong arguments are refused by name, and nothing is written") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    for (const MlaAppendParams& call : {good.rows, good.hidden}) {
      Refusals refused(device, good, call);
      const Code unsupported = Code::kUnsupported;
      refused.Expect(unsupported, "in_dtype = fp8_e4m3",
                     [](auto& p) { p.in_dtype = DType::kFP8E4M3; });
      refused.Expect(unsupported, "in_dtype = fp64", [](auto& p) { p.in_dtype = DType::kFP64; });
      refused.Expect(unsupported, "dtype = fp8_e4m3", [](auto& p) { p.dtype = DType::kFP8E4M3; });
      refused.Expect(unsupported, "dtype = fp64", [](auto& p) { p.dtype = DType::kFP64; });
      refused.Expect(unsupported, "dtype = fp32", [](auto& p) { p.in_dtype = DType::kBF16; });
      refused.Expect(unsupported, "dtype = fp16", [](auto& p) {
        p.in_dtype = DType::kBF16;
        p.dtype = DType::kFP16;
      });

      const Code invalid = Code::kInvalidArgument;
      refused.Expect(invalid, "style", [](auto& p) { p.style = static_cast<RopeStyle>(9); });
      refused.Expect(invalid, "num_tokens = -1", [](auto& p) { p.num_tokens = -1; });
      refused.Expect(invalid, "num_tokens", [](auto& p) { p.num_tokens = std::int64_t{1} << 31; });
      refused.Expect(invalid, "rank = 0", [](auto& p) { p.rank = 0; });
      refused.Expect(invalid, "rank = 65537", [](auto& p) { p.rank = 65537; });
      refused.Expect(invalid, "rope_dim = -1", [](auto& p) { p.rope_dim = -1; });
      refused.Expect(invalid, "rope_dim = 65537", [](auto& p) { p.rope_dim = 65537; });
      refused.Expect(invalid, "dependent_launch = 3",
                     [](auto& p) { p.dependent_launch = static_cast<DependentLaunch>(3); });
      refused.Expect(invalid, "rotary_dim = 4", [](auto& p) { p.rotary_dim = 4; });
      refused.Expect(invalid, "rotary_dim = 1", [](auto& p) { p.rotary_dim = 1; });
      refused.Expect(invalid, "rotary_dim = -2", [](auto& p) { p.rotary_dim = -2; });
      refused.Expect(invalid, "block_size = 0", [](auto& p) { p.block_size = 0; });
      refused.Expect(invalid, "num_slots = 7", [](auto& p) { p.num_slots = 7; });
      refused.Expect(invalid, "num_slots = -4", [](auto& p) { p.num_slots = -4; });
      refused.Expect(invalid, "num_positions = 0", [](auto& p) { p.num_positions = 0; });
      refused.Expect(invalid, "num_positions = -1", [](auto& p) { p.num_positions = -1; });
      refused.Expect(invalid, "num_positions", [&](auto& p) {
        p.table_choice = good.choice.data();
        p.num_positions = std::int64_t{1} << 31;
      });
      for (const float eps : {-1e-6F, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        refused.Expect(invalid, "eps = ", [&](auto& p) { p.eps = eps; });
      }
      refused.Expect(invalid, "block_stride = -1", [](auto& p) { p.block_stride = -1; });
      refused.Expect(invalid, "row_stride = -1", [](auto& p) { p.row_stride = -1; });
      refused.Expect(invalid, "cache:", [](auto& p) { p.block_stride = kHuge * 3; });
      refused.Expect(invalid, "cache:", [](auto& p) { p.row_stride = kHuge; });
      refused.Expect(invalid, "cos:", [](auto& p) { p.num_positions = kHuge; });
    }
    // What belongs to one source of rows alone.
    Refusals rows(device, good, good.rows);
    const Code invalid = Code::kInvalidArgument;
    rows.Expect(invalid, "c_kv_stride = -1", [](auto& p) { p.c_kv_stride = -1; });
    rows.Expect(invalid, "k_pe_stride = -1", [](auto& p) { p.k_pe_stride = -1; });
    rows.Expect(invalid, "c_kv:", [](auto& p) { p.c_kv_stride = kHuge; });
    rows.Expect(invalid, "k_pe:", [](auto& p) { p.k_pe_stride = kHuge; });
    Refusals hidden(device, good, good.hidden);
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      hidden.Expect(invalid, "w_down_stride = 6", [&](auto& p) {
        p.layout = layout;
        p.w_down_stride = 6;
      });
      hidden.Expect(invalid, "w_down_stride = 2147483648", [&](auto& p) {
        p.layout = layout;
        p.w_down_stride = std::int64_t{1} << 31;
      });
    }
    hidden.Expect(invalid, "w_down_stride = 7", [](auto& p) {
      p.layout = WeightLayout::kInOut;
      p.w_down_stride = 7;
    });
    hidden.Expect(invalid, "layout", [](auto& p) { p.layout = static_cast<WeightLayout>(7); });
    hidden.Expect(invalid, "model_dim = 0", [](auto& p) { p.model_dim = 0; });
    hidden.Expect(invalid, "model_dim = 1048577", [](auto& p) { p.model_dim = (1 << 20) + 1; });
    hidden.Expect(invalid, "hidden_stride = 6", [](auto& p) { p.hidden_stride = 6; });
    hidden.Expect(invalid, "hidden_stride = -7", [](auto& p) { p.hidden_stride = -7; });
    hidden.Expect(invalid, "hidden_stride", [](auto& p) { p.hidden_stride = 1LL << 31; });
  }
}

TEST_CASE("mla append: missing, misaligned and overlapping pointers are refused by name") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const Code invalid = Code::kInvalidArgument;
    for (const MlaAppendParams& call : {good.rows, good.hidden}) {
      Refusals refused(device, good, call);
      refused.Expect(invalid, "slots = null", [](auto& p) { p.slots = nullptr; });
      refused.Expect(invalid, "positions = null", [](auto& p) { p.positions = nullptr; });
      refused.Expect(invalid, "cos = null", [](auto& p) { p.cos = nullptr; });
      refused.Expect(invalid, "sin = null", [](auto& p) { p.sin = nullptr; });
      refused.Expect(invalid, "cache = null", [](auto& p) { p.cache = nullptr; });
      refused.Expect(invalid,
                     "norm_weight = ", [](auto& p) { p.norm_weight = Shifted(p.norm_weight, 2); });
      refused.Expect(invalid, "slots = ", [](auto& p) { p.slots = Shifted(p.slots, 4); });
      refused.Expect(invalid,
                     "positions = ", [](auto& p) { p.positions = Shifted(p.positions, 2); });
      refused.Expect(invalid, "cos = ", [](auto& p) { p.cos = Shifted(p.cos, 2); });
      refused.Expect(invalid, "sin = ", [](auto& p) { p.sin = Shifted(p.sin, 1); });
      refused.Expect(invalid, "cache = ", [](auto& p) { p.cache = Shifted(p.cache, 2); });
      refused.Expect(invalid, "table_choice = ", [&](auto& p) {
        p.table_choice = Shifted(good.choice.data(), 2);
      });
      refused.Expect(invalid,
                     "fault = ", [&](auto& p) { p.fault = Shifted(good.fault.data(), 4); });
      refused.Expect(invalid, "fault_indirect = ", [&](auto& p) {
        p.fault_indirect = Shifted(good.word.data(), 4);
      });
      refused.Expect(invalid, "fault and fault_indirect", [&](auto& p) {
        p.fault = good.fault.data();
        p.fault_indirect = good.word.data();
      });
      refused.Expect(invalid, "cache overlaps norm_weight",
                     [&](auto& p) { p.norm_weight = good.cache.data() + 60; });
    }
    Refusals rows(device, good, good.rows);
    rows.Expect(invalid, "c_kv = null", [](auto& p) { p.c_kv = nullptr; });
    rows.Expect(invalid, "k_pe = null", [](auto& p) { p.k_pe = nullptr; });
    rows.Expect(invalid, "c_kv = ", [](auto& p) { p.c_kv = Shifted(p.c_kv, 2); });
    rows.Expect(invalid, "k_pe = ", [](auto& p) { p.k_pe = Shifted(p.k_pe, 1); });
    rows.Expect(invalid, "cache overlaps c_kv", [&](auto& p) { p.c_kv = good.cache.data() + 63; });
    rows.Expect(invalid, "cache overlaps k_pe", [&](auto& p) { p.k_pe = good.cache.data(); });
    Refusals hidden(device, good, good.hidden);
    hidden.Expect(invalid, "hidden = ", [](auto& p) { p.hidden = Shifted(p.hidden, 2); });
    hidden.Expect(invalid, "w_down = null", [](auto& p) { p.w_down = nullptr; });
    hidden.Expect(invalid, "w_down = ", [](auto& p) { p.w_down = Shifted(p.w_down, 2); });
    hidden.Expect(invalid, "hidden and c_kv", [&](auto& p) { p.c_kv = good.in.data(); });
    hidden.Expect(invalid, "hidden and c_kv", [&](auto& p) { p.k_pe = good.in.data(); });
    hidden.Expect(invalid, "cache overlaps hidden",
                  [&](auto& p) { p.hidden = good.cache.data() + 40; });
    hidden.Expect(invalid, "cache overlaps w_down", [&](auto& p) { p.w_down = good.cache.data(); });
  }
}

TEST_CASE("mla append: what no work needs may be missing") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    for (const MlaAppendParams& call : {good.rows, good.hidden}) {
      Refusals calls(device, good, call);
      CHECK(calls.StatusOf([](auto&) {}).ok());
      CHECK(calls
                .StatusOf([](auto& p) {
                  p.rotary_dim = 0;
                  p.cos = p.sin = nullptr;
                  p.positions = nullptr;
                  p.num_positions = 0;
                })
                .ok());
      CHECK(calls
                .StatusOf([](auto& p) {
                  p.rope_dim = p.rotary_dim = 0;
                  p.k_pe = nullptr;
                })
                .ok());
      CHECK(calls
                .StatusOf([](auto& p) {
                  p.num_slots = 0;
                  p.cache = nullptr;
                })
                .ok());
      CHECK(calls.StatusOf([](auto& p) { p.norm_weight = nullptr; }).ok());
      CHECK(calls.StatusOf([](auto& p) { p.num_tokens = 0; }).ok());
      // Rows that share a buffer with the cache's, in columns or between blocks of their own.
      CHECK(calls
                .StatusOf([&](auto& p) {
                  p.num_slots = 4;
                  p.block_size = 2;
                  p.row_stride = 14;
                  p.block_stride = 28;
                  p.norm_weight = nullptr;
                  if (p.hidden == nullptr) {
                    p.c_kv = good.cache.data() + 8;
                    p.c_kv_stride = 14;
                  }
                })
                .ok());
      CHECK(calls
                .StatusOf([&](auto& p) {
                  p.block_stride = 35;
                  p.norm_weight = good.cache.data() + 55;
                  p.num_slots = 4;
                })
                .ok());
    }
  }
}

TEST_CASE("mla append: Warmup and WorkspaceBytes check as the call does") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    MlaAppendParams p = good.hidden;
    p.hidden = p.w_down = nullptr;  // not there yet: model_dim tells what the call will be
    CHECK(Warmup(device, p, Stream{}).ok());
    const Result<std::int64_t> bytes = WorkspaceBytes(device, p);
    REQUIRE(bytes.ok());
    CHECK(*bytes - device.backend().GemmWorkspaceBytes() == 3 * 8 * 4);
    CHECK(*WorkspaceBytes(device, good.rows) == 0);
    CHECK(Warmup(device, good.rows, Stream{}).ok());
    p.w_down = Shifted(good.hidden.w_down, 2);
    CHECK(Warmup(device, p, Stream{}).message().rfind("w_down = ", 0) == 0);
    p.w_down_stride = 3;
    CHECK(Warmup(device, p, Stream{}).message().rfind("w_down_stride = 3", 0) == 0);
    CHECK(WorkspaceBytes(device, p).status().message().rfind("w_down_stride = 3", 0) == 0);
  }
}

TEST_CASE("mla append: the null backend checks the shape and takes any address") {
  Result<Device> device = Device::Create(BackendKind::kNull);
  REQUIRE(device.ok());
  MlaAppendParams params;
  params.num_tokens = 4;
  params.rank = 4;
  CHECK(MlaAppend(*device, params, Stream{}).ok());
  params.hidden = Shifted<const char>(nullptr, 3);
  CHECK(MlaAppend(*device, params, Stream{}).code() == Code::kInvalidArgument);  // model_dim
  params.model_dim = 6;
  CHECK(MlaAppend(*device, params, Stream{}).ok());
  CHECK(Warmup(*device, params, Stream{}).ok());
  CHECK(*WorkspaceBytes(*device, params) == 0);
  params.rank = 0;
  CHECK(MlaAppend(*device, params, Stream{}).code() == Code::kInvalidArgument);
}

}  // namespace lariat
