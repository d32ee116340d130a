// SPDX-License-Identifier: Apache-2.0
// What MlaExpand and its companions refuse, field by field.
#include <limits>
#include <string>
#include <vector>

#include "lariat/ops.h"
#include "support/device_vector.h"

namespace lariat {
namespace {

using testing::AvailableDevices;
using testing::DeviceVector;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 4;

// Shapes alone: 5 tokens, 2 heads of 3 + 2 and 3, rank 4, blocks of 4 rows.
MlaExpandParams GoodShape() {
  MlaExpandParams p;
  p.dtype = DType::kFP32;
  p.num_tokens = 5;
  p.heads = 2;
  p.rank = 4;
  p.rope_dim = 2;
  p.nope_dim = 3;
  p.v_dim = 3;
  p.num_ranges = 1;
  p.block_table_stride = 2;
  p.num_blocks = 2;
  p.block_size = 4;
  return p;
}

// A good call over small buffers, all held here.
struct GoodCall {
  explicit GoodCall(Device device)
      : w(device, std::vector<float>(48, 1)),
        cache(device, std::vector<float>(48, 1)),
        k(device, std::vector<float>(200, 3)),
        v(device, std::vector<float>(200, 5)),
        cu_tokens(device, {0, 5}),
        starts(device, {0}),
        block_table(device, {0, 1}),
        fault(device, {FaultRecord{}}),
        word(device, {nullptr}),
        params(GoodShape()) {
    params.w_kv_b = w.data();
    params.cu_tokens = cu_tokens.data();
    params.starts = starts.data();
    params.block_table = block_table.data();
    params.cache = cache.data();
    params.k = k.data();
    params.v = v.data();
  }
  DeviceVector<float> w, cache, k, v;
  DeviceVector<std::int32_t> cu_tokens, starts, block_table;
  DeviceVector<FaultRecord> fault;
  DeviceVector<FaultRecord*> word;
  MlaExpandParams params;
};

template <class T>
T* Shifted(T* pointer, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) +
                              static_cast<std::uintptr_t>(bytes));
}

const void* ShiftedBytes(const void* pointer, int bytes) {
  return Shifted(static_cast<const char*>(pointer), bytes);
}
void* ShiftedBytes(void* pointer, int bytes) { return Shifted(static_cast<char*>(pointer), bytes); }

}  // namespace

TEST_CASE("expand: wrong numbers are refused by name, before anything is written") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const auto refused = [&](Code code, const std::string& start, auto change) {
      MlaExpandParams bad = good.params;
      change(bad);
      const Result<std::int64_t> bytes = WorkspaceBytes(device, bad);
      for (const Status& status :
           {MlaExpand(device, bad, Stream{}), Warmup(device, bad, Stream{}), bytes.status()}) {
        INFO(start << ": " << status.ToString());
        CHECK(status.code() == code);
        CHECK(status.message().rfind(start, 0) == 0);
      }
      CHECK(good.k.Read() == std::vector<float>(200, 3));
      CHECK(good.v.Read() == std::vector<float>(200, 5));
    };
    refused(Code::kUnsupported, "dtype = fp64", [](auto& p) { p.dtype = DType::kFP64; });
    refused(Code::kUnsupported, "dtype = fp8_e4m3", [](auto& p) { p.dtype = DType::kFP8E4M3; });

    const Code invalid = Code::kInvalidArgument;
    refused(invalid, "num_tokens = -1", [](auto& p) { p.num_tokens = -1; });
    refused(invalid, "num_tokens", [](auto& p) { p.num_tokens = std::int64_t{1} << 31; });
    refused(invalid, "heads = 0", [](auto& p) { p.heads = 0; });
    refused(invalid, "heads = 8193", [](auto& p) { p.heads = 8193; });
    refused(invalid, "rank = 0", [](auto& p) { p.rank = 0; });
    refused(invalid, "rank = 65537", [](auto& p) { p.rank = 65537; });
    refused(invalid, "rope_dim = -1", [](auto& p) { p.rope_dim = -1; });
    refused(invalid, "rope_dim = 8193", [](auto& p) { p.rope_dim = 8193; });
    refused(invalid, "nope_dim = -1", [](auto& p) { p.nope_dim = -1; });
    refused(invalid, "nope_dim = 8193", [](auto& p) { p.nope_dim = 8193; });
    refused(invalid, "v_dim = -1", [](auto& p) { p.v_dim = -1; });
    refused(invalid, "v_dim = 8193", [](auto& p) { p.v_dim = 8193; });
    refused(invalid, "layout = 2", [](auto& p) { p.layout = static_cast<WeightLayout>(2); });
    refused(invalid, "num_ranges = -1", [](auto& p) { p.num_ranges = -1; });
    refused(invalid, "block_table_stride = 0", [](auto& p) { p.block_table_stride = 0; });
    refused(invalid, "block_table_stride = -1", [](auto& p) { p.block_table_stride = -1; });
    refused(invalid, "num_blocks = -1", [](auto& p) { p.num_blocks = -1; });
    refused(invalid, "block_size = 0", [](auto& p) { p.block_size = 0; });
    // Rows of a product must not overlap: 24 outputs, keys of 10 elements, values of 6.
    refused(invalid, "w_kv_b_stride = 3: must be 0, or 4..", [](auto& p) { p.w_kv_b_stride = 3; });
    refused(invalid, "w_kv_b_stride = 11: must be 0, or 12..", [](auto& p) {
      p.layout = WeightLayout::kInOut;
      p.w_kv_b_stride = 11;
    });
    refused(invalid, "w_kv_b_stride", [](auto& p) { p.w_kv_b_stride = std::int64_t{1} << 31; });
    refused(invalid, "k_token_stride = 9: must be 0, or 10..",
            [](auto& p) { p.k_token_stride = 9; });
    refused(invalid, "k_token_stride", [](auto& p) { p.k_token_stride = std::int64_t{1} << 31; });
    refused(invalid, "v_token_stride = 5: must be 0, or 6..",
            [](auto& p) { p.v_token_stride = 5; });
    refused(invalid, "v_token_stride = -1", [](auto& p) { p.v_token_stride = -1; });
    refused(invalid, "block_stride = -1", [](auto& p) { p.block_stride = -1; });
    refused(invalid, "row_stride = -1", [](auto& p) { p.row_stride = -1; });
    refused(invalid, "cache:", [](auto& p) { p.block_stride = 4 * kHuge; });
    refused(invalid, "cache:", [](auto& p) { p.row_stride = 2 * kHuge; });
    refused(invalid, "cache:", [](auto& p) { p.num_blocks = kHuge; });
    refused(invalid, "block_table:", [](auto& p) { p.block_table_stride = 2 * kHuge; });
  }
}

TEST_CASE("expand: missing, misaligned and overlapping pointers are refused by name") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const auto status_of = [&](auto change) {
      MlaExpandParams changed = good.params;
      change(changed);
      return MlaExpand(device, changed, Stream{});
    };
    const auto refused = [&](const std::string& start, auto change) {
      const Status status = status_of(change);
      INFO(start << ": " << status.ToString());
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().rfind(start, 0) == 0);
      CHECK(good.k.Read() == std::vector<float>(200, 3));
      CHECK(good.v.Read() == std::vector<float>(200, 5));
    };
    refused("w_kv_b = null", [](auto& p) { p.w_kv_b = nullptr; });
    refused("cu_tokens = null", [](auto& p) { p.cu_tokens = nullptr; });
    refused("block_table = null", [](auto& p) { p.block_table = nullptr; });
    refused("cache = null", [](auto& p) { p.cache = nullptr; });
    refused("k = null", [](auto& p) { p.k = nullptr; });
    refused("v = null", [](auto& p) { p.v = nullptr; });
    refused("w_kv_b = ", [](auto& p) { p.w_kv_b = ShiftedBytes(p.w_kv_b, 2); });
    refused("cu_tokens = ", [](auto& p) { p.cu_tokens = Shifted(p.cu_tokens, 1); });
    refused("starts = ", [](auto& p) { p.starts = Shifted(p.starts, 2); });
    refused("block_table = ", [](auto& p) { p.block_table = Shifted(p.block_table, 2); });
    refused("cache = ", [](auto& p) { p.cache = ShiftedBytes(p.cache, 1); });
    refused("k = ", [](auto& p) { p.k = ShiftedBytes(p.k, 2); });
    refused("v = ", [](auto& p) { p.v = ShiftedBytes(p.v, 2); });
    refused("fault = ", [&](auto& p) { p.fault = Shifted(good.fault.data(), 4); });
    refused("fault_indirect = ", [&](auto& p) { p.fault_indirect = Shifted(good.word.data(), 4); });
    refused("fault and fault_indirect", [&](auto& p) {
      p.fault = good.fault.data();
      p.fault_indirect = good.word.data();
    });

    refused("k overlaps w_kv_b", [&](auto& p) { p.w_kv_b = good.k.data() + 49; });
    refused("k overlaps cache", [&](auto& p) { p.cache = good.k.data() + 2; });
    refused("v overlaps cache", [&](auto& p) { p.cache = good.v.data() + 29; });
    refused("v overlaps w_kv_b", [&](auto& p) { p.w_kv_b = good.v.data(); });
    const auto as_ints = [](float* floats) { return reinterpret_cast<std::int32_t*>(floats); };
    refused("k overlaps cu_tokens", [&](auto& p) { p.cu_tokens = as_ints(good.k.data()); });
    refused("v overlaps starts", [&](auto& p) { p.starts = as_ints(good.v.data()); });
    refused("k overlaps block_table", [&](auto& p) { p.block_table = as_ints(good.k.data()); });
    refused("v overlaps k", [&](auto& p) { p.v = p.k; });
    refused("v overlaps k", [&](auto& p) { p.v = good.k.data() + 49; });
    refused("v overlaps k", [&](auto& p) { p.k = good.v.data() + 29; });
    // Columns of one buffer [T, k | v] do not overlap.
    const auto columns = [&](int k_column, int v_column, std::int64_t v_stride) {
      return [&, k_column, v_column, v_stride](auto& p) {
        p.k = good.k.data() + k_column;
        p.v = good.k.data() + v_column;
        p.k_token_stride = 17;
        p.v_token_stride = v_stride;
      };
    };
    for (const auto& [k_column, v_column] : {std::pair{0, 9}, {0, 12}, {5, 0}, {8, 3}}) {
      refused("v overlaps k", columns(k_column, v_column, 17));
    }
    refused("v overlaps k", columns(0, 10, 18));
    for (const auto& [k_column, v_column] : {std::pair{0, 10}, {0, 11}, {6, 0}, {7, 0}, {0, 27}}) {
      CHECK(status_of(columns(k_column, v_column, 17)).ok());
    }
  }
}

TEST_CASE("expand: what no work needs may be missing") {
  for (Device& device : AvailableDevices()) {
    GoodCall good(device);
    const auto status_of = [&](auto change) {
      MlaExpandParams changed = good.params;
      change(changed);
      return MlaExpand(device, changed, Stream{});
    };
    CHECK(status_of([](auto& p) { p.starts = nullptr; }).ok());
    CHECK(status_of([](auto& p) {
            p.v_dim = 0;
            p.v = nullptr;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.nope_dim = p.rope_dim = 0;
            p.k = nullptr;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.nope_dim = p.v_dim = 0;
            p.w_kv_b = nullptr;
            p.v = nullptr;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.num_blocks = 0;
            p.cache = nullptr;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.num_ranges = 0;
            p.cu_tokens = p.starts = p.block_table = nullptr;
          }).ok());
    CHECK(status_of([](auto& p) {
            p.num_tokens = 0;
            p.w_kv_b = p.cache = nullptr;
            p.k = p.v = nullptr;
          }).ok());
  }
}

TEST_CASE("expand: the workspace is the latents, beside what products take") {
  for (Device& device : AvailableDevices()) {
    const auto bytes_of = [&](auto change) {
      MlaExpandParams p = GoodShape();
      change(p);
      const Result<std::int64_t> bytes = WorkspaceBytes(device, p);
      REQUIRE(bytes.ok());
      return *bytes;
    };
    const std::int64_t one = bytes_of([](auto& p) { p.num_tokens = 1; });
    CHECK(bytes_of([](auto& p) { p.num_tokens = 1001; }) - one == 1000 * 4 * 4);
    CHECK(bytes_of([](auto& p) { p.num_tokens = 0; }) == 0);
    CHECK(bytes_of([](auto& p) { p.nope_dim = p.v_dim = 0; }) == 0);
    if (device.kind() == BackendKind::kCpu) CHECK(one == 16);
    CHECK(Warmup(device, GoodShape(), Stream{}).ok());
    MlaExpandParams none = GoodShape();
    none.num_tokens = 0;
    CHECK(Warmup(device, none, Stream{}).ok());
    const float address = 0;
    none = GoodShape();
    none.w_kv_b = ShiftedBytes(static_cast<const void*>(&address), 2);
    CHECK(Warmup(device, none, Stream{}).message().rfind("w_kv_b = ", 0) == 0);
  }
}

TEST_CASE("expand: the null backend checks the shape and takes any address") {
  Result<Device> device = Device::Create(BackendKind::kNull);
  REQUIRE(device.ok());
  MlaExpandParams params = GoodShape();
  CHECK(MlaExpand(*device, params, Stream{}).ok());
  CHECK(Warmup(*device, params, Stream{}).ok());
  const Result<std::int64_t> bytes = WorkspaceBytes(*device, params);
  REQUIRE(bytes.ok());
  CHECK(*bytes == 0);
  params.rank = 0;
  CHECK(MlaExpand(*device, params, Stream{}).code() == Code::kInvalidArgument);
}

TEST_CASE("absorb: wrong fields are refused by name") {
  const std::vector<float> w(48);
  MlaExpandParams good = GoodShape();
  good.w_kv_b = w.data();
  CHECK(AbsorbViews(good).ok());
  const auto refused = [&](Code code, const std::string& start, auto change) {
    MlaExpandParams bad = good;
    change(bad);
    const Result<AbsorbedProjections> views = AbsorbViews(bad);
    REQUIRE_FALSE(views.ok());
    INFO(start << ": " << views.status().ToString());
    CHECK(views.status().code() == code);
    CHECK(views.status().message().rfind(start, 0) == 0);
  };
  const Code invalid = Code::kInvalidArgument;
  refused(Code::kUnsupported, "dtype = fp64", [](auto& p) { p.dtype = DType::kFP64; });
  refused(invalid, "heads = 0", [](auto& p) { p.heads = 0; });
  refused(invalid, "rank = -1", [](auto& p) { p.rank = -1; });
  refused(invalid, "nope_dim = -1", [](auto& p) { p.nope_dim = -1; });
  refused(invalid, "v_dim = 8193", [](auto& p) { p.v_dim = 8193; });
  refused(invalid, "layout = 7", [](auto& p) { p.layout = static_cast<WeightLayout>(7); });
  refused(invalid, "w_kv_b_stride = 3", [](auto& p) { p.w_kv_b_stride = 3; });
  refused(invalid, "w_kv_b = null", [](auto& p) { p.w_kv_b = nullptr; });
  refused(invalid, "w_kv_b = ", [](auto& p) { p.w_kv_b = ShiftedBytes(p.w_kv_b, 1); });
  // Fields of the cache and the outputs are not looked at.
  MlaExpandParams weights = good;
  weights.num_tokens = weights.num_blocks = weights.block_size = -1;
  CHECK(AbsorbViews(weights).ok());
}

}  // namespace lariat
