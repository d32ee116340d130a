// SPDX-License-Identifier: Apache-2.0
// MlaAppend and MlaCompress through a cache: what they store is, bit for bit, what they and Append
// store over plain buffers.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/formats.h"
#include "support/backend_decorator.h"
#include "support/mla_cache.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using reference::F32;
using testing::AvailableDevices;
using testing::CaseCache;
using testing::DeviceVector;
using testing::kLatentRank;
using testing::kLatentRope;
using testing::kLatentWidth;
using testing::LatentConfig;
using testing::Make;
using testing::Prepared;
using testing::Random;

// --- MlaAppend --------------------------------------------------------------------------------

// Sequences turn by one of two tables.
CacheConfig TwoTables() {
  CacheConfig config = LatentConfig();
  RopeSpec& rope = config.ropes[0];
  rope.type = RopeType::kLongrope;
  rope.factor = 4;
  rope.original_max_position_embeddings = 16;
  rope.short_factor = {1, 1.5, 2, 2.5};
  rope.long_factor = {3, 5, 7, 9};
  return config;
}

constexpr std::int64_t kShort = 7, kLong = 5, kPadded = 16;
constexpr int kModelDim = 19;

// What the operation stores of the same inputs by itself, one row behind the other: `kShort` rows
// that turn by the first table and `kLong` ones that turn by the second. The padding is skipped.
template <class Out>
std::vector<typename Out::Bits> StoredByOperation(Device& device, const CacheConfig& config,
                                                  const MlaAppendInputs& inputs) {
  std::vector<float> cos, sin;
  const auto positions = config.max_tokens_per_sequence;
  for (const std::int64_t length : {std::int64_t{0}, positions}) {
    const auto frequencies = ComputeRopeFrequencies(config.ropes[0], length);
    REQUIRE(frequencies.ok());
    std::vector<float> c(static_cast<std::size_t>(positions) * frequencies->inv_freq.size());
    std::vector<float> s(c.size());
    FillRopeTable(*frequencies, 0, positions, c, s);
    cos.insert(cos.end(), c.begin(), c.end());
    sin.insert(sin.end(), s.begin(), s.end());
  }
  std::vector<std::int64_t> slots(kPadded, -1);
  std::vector<std::int32_t> at(kPadded, 0);
  std::vector<std::uint32_t> choice(kPadded, 0);
  for (std::int64_t t = 0; t < kShort + kLong; ++t) {
    const auto row = static_cast<std::size_t>(t);
    slots[row] = t;
    at[row] = static_cast<std::int32_t>(t < kShort ? t : t - kShort);
    choice[row] = t < kShort ? 0 : 1;
  }
  DeviceVector<float> cos_there(device, cos), sin_there(device, sin);
  DeviceVector<std::int64_t> slots_there(device, slots);
  DeviceVector<std::int32_t> at_there(device, at);
  DeviceVector<std::uint32_t> choice_there(device, choice);
  DeviceVector<typename Out::Bits> rows(
      device, std::vector<typename Out::Bits>((kShort + kLong) * kLatentWidth));
  MlaAppendParams p;
  p.in_dtype = inputs.dtype;
  p.dtype = Out::kDType;
  p.style = config.ropes[0].style;
  p.num_tokens = kPadded;
  p.rank = kLatentRank;
  p.rope_dim = kLatentRope;
  p.rotary_dim = config.ropes[0].rotary_dim;
  p.hidden = inputs.hidden;
  p.model_dim = inputs.model_dim;
  p.w_down = inputs.w_down;
  p.c_kv = inputs.c_kv;
  p.k_pe = inputs.k_pe;
  p.c_kv_stride = inputs.c_kv_stride;
  p.k_pe_stride = inputs.k_pe_stride;
  p.norm_weight = inputs.norm_weight;
  p.eps = inputs.eps;
  p.slots = slots_there.data();
  p.positions = at_there.data();
  p.cos = cos_there.data();
  p.sin = sin_there.data();
  p.num_positions = positions;
  p.table_choice = choice_there.data();
  p.table_mask = 1;
  p.cache = rows.data();
  p.num_slots = kShort + kLong;
  CaseCache::Must(MlaAppend(device, p, {}));
  return rows.Read();
}

template <class In, class Out>
void CheckStored(Device device, bool from_hidden) {
  INFO(device.name() << ": " << DTypeName(In::kDType) << " to " << DTypeName(Out::kDType)
                     << (from_hidden ? " from hidden" : " from rows"));
  Random random(11);
  CacheConfig config = TwoTables();
  config.dtype = Out::kDType;
  config.shard = {2, 3};
  KVCache cache = Make(config, device);
  const SequenceId a = *cache.Open(CaseCache::Range(0, kShort), {.max_length = 16});
  const SequenceId b = *cache.Open(CaseCache::Range(0, kLong), {.max_length = 40});
  Step step = Prepared(cache, {{a, kShort, 0, {}}, {b, kLong, 0, {}}}, {kPadded, 3});
  std::vector<std::vector<typename Out::Bits>> expected;
  for (int layer = 0; layer < 2; ++layer) {
    DeviceVector<typename In::Bits> weight(device, random.Numbers<In>(kLatentRank));
    DeviceVector<typename In::Bits> hidden(
        device, testing::PaddedRows<In>(random, kShort + kLong, kPadded, kModelDim));
    DeviceVector<typename In::Bits> w_down(device, random.Numbers<In>(kLatentWidth * kModelDim));
    DeviceVector<typename In::Bits> rows(
        device, testing::PaddedRows<In>(random, kShort + kLong, kPadded, kLatentWidth));
    MlaAppendInputs inputs;
    inputs.dtype = In::kDType;
    inputs.kv_lora_rank = kLatentRank;
    if (from_hidden) {
      inputs.hidden = hidden.data();
      inputs.model_dim = kModelDim;
      inputs.w_down = w_down.data();
    } else {
      inputs.c_kv = rows.data();
      inputs.k_pe = rows.data() + kLatentRank;
      inputs.c_kv_stride = inputs.k_pe_stride = kLatentWidth;
    }
    inputs.norm_weight = layer == 0 ? weight.data() : nullptr;
    inputs.eps = 0.25F;
    CaseCache::Must(cache.Warmup(layer, inputs, {}));
    CaseCache::Must(cache.MlaAppend(step, layer, inputs, {}));
    expected.push_back(StoredByOperation<Out>(device, config, inputs));
  }
  CaseCache::Must(cache.Commit(step, {}, {}));
  for (int layer = 0; layer < 2; ++layer) {
    auto got = testing::StoredRows<Out>(cache, a, layer, kShort);
    const auto rest = testing::StoredRows<Out>(cache, b, layer, kLong);
    got.insert(got.end(), rest.begin(), rest.end());
    CHECK((got == expected[static_cast<std::size_t>(layer)]));
  }
  CHECK(cache.Poll()->faults.empty());
}

TEST_CASE("What MlaAppend stores through a cache is what it stores by itself", "[mla]") {
  for (const Device& device : AvailableDevices()) {
    for (const bool from_hidden : {false, true}) {
      CheckStored<B16, B16>(device, from_hidden);
      CheckStored<F16, F16>(device, from_hidden);
      CheckStored<F32, F32>(device, from_hidden);
      CheckStored<F32, B16>(device, from_hidden);
      CheckStored<F32, F16>(device, from_hidden);
    }
  }
}

// --- MlaCompress ------------------------------------------------------------------------------

constexpr int kKvHeads = 2, kKDim = 8, kVDim = 6, kQHeads = 3, kRank = 7;
constexpr int kKWidth = kKvHeads * kKDim, kVWidth = kKvHeads * kVDim;

CacheConfig FullConfig(DType dtype) {
  CacheConfig config = LatentConfig();
  config.layers.assign(2, {.kv_heads = kKvHeads, .k_dim = kKDim, .v_dim = kVDim, .rope = 0});
  config.ropes[0].style = RopeStyle::kInterleaved;
  config.dtype = dtype;
  return config;
}

// One layer's operands, and the buffers that a call writes besides the cache.
template <class In>
struct CompressCase {
  using Bits = typename In::Bits;
  CompressCase(const Device& device, Random& random, std::int64_t rows)
      : hidden(device, testing::PaddedRows<In>(random, rows, kPadded, kModelDim)),
        w_down(device, random.Numbers<In>(kModelDim * kRank)),
        w_up_k(device, random.Numbers<In>(kRank * kKWidth)),
        w_up_v(device, random.Numbers<In>(kRank * kVWidth)),
        q(device, testing::PaddedRows<In>(random, rows, kPadded, kQHeads * kKDim)),
        latent(device, std::vector<Bits>(kPadded * kRank)) {}
  DeviceVector<Bits> hidden, w_down, w_up_k, w_up_v, q, latent;

  MlaCompressInputs Inputs() const {
    MlaCompressInputs in;
    in.dtype = In::kDType;
    in.model_dim = kModelDim;
    in.rank = kRank;
    in.hidden = hidden.data();
    in.w_down = w_down.data();
    in.w_up_k = w_up_k.data();
    in.w_up_v = w_up_v.data();
    in.latent = latent.data();
    in.q = q.data();
    in.q_heads = kQHeads;
    return in;
  }
};

// MlaCompress into buffers of the caller, then Append.
template <class In>
Status CompressThenAppend(KVCache& cache, const Step& step, int layer,
                          const CompressCase<In>& given) {
  DeviceVector<typename In::Bits> kv(cache.device(),
                                     std::vector<typename In::Bits>(kPadded * (kKWidth + kVWidth)));
  MlaCompressParams p;
  p.dtype = In::kDType;
  p.num_tokens = kPadded;
  p.model_dim = kModelDim;
  p.rank = kRank;
  p.heads = kKvHeads;
  p.k_dim = kKDim;
  p.v_dim = kVDim;
  p.hidden = given.hidden.data();
  p.w_down = given.w_down.data();
  p.w_up_k = given.w_up_k.data();
  p.w_up_v = given.w_up_v.data();
  p.k = kv.data();
  p.v = kv.data() + kKWidth;
  p.k_token_stride = p.v_token_stride = kKWidth + kVWidth;
  p.latent = given.latent.data();
  if (Status s = MlaCompress(cache.device(), p, {}); !s.ok()) return s;
  AppendInputs rows;
  rows.dtype = In::kDType;
  rows.k = p.k;
  rows.v = p.v;
  rows.k_token_stride = rows.v_token_stride = kKWidth + kVWidth;
  rows.q = given.q.data();
  rows.q_heads = kQHeads;
  if (Status s = cache.Append(step, layer, rows, {}); !s.ok()) return s;
  return cache.device().Synchronize({});
}

template <class In, class Out>
struct Compressed {
  std::vector<typename In::Bits> q, latent;  // of both layers
  std::vector<typename Out::Bits> k, v;
};

// Two sequences' rows in both layers, by one call that is launched so, or by two.
template <class In, class Out>
Compressed<In, Out> Compress(const Device& device, std::optional<DependentLaunch> one_call) {
  Random random(29);
  KVCache cache = Make(FullConfig(Out::kDType), device);
  const SequenceId a = *cache.Open(CaseCache::Range(0, 9)),
                   b = *cache.Open(CaseCache::Range(50, 4));
  Step step = Prepared(cache, {{a, 9, 0, {}}, {b, 4, 0, {}}}, {kPadded, 3});
  Compressed<In, Out> result;
  for (int layer = 0; layer < 2; ++layer) {
    CompressCase<In> given(device, random, 13);
    if (one_call) {
      CaseCache::Must(cache.Warmup(layer, given.Inputs(), {}));
      MlaCompressInputs inputs = given.Inputs();
      inputs.dependent_launch = *one_call;
      CaseCache::Must(cache.MlaCompress(step, layer, inputs, {}));
    } else {
      CaseCache::Must(CompressThenAppend(cache, step, layer, given));
    }
    for (const auto& [to, from] :
         {std::pair{&result.q, &given.q}, std::pair{&result.latent, &given.latent}}) {
      const auto values = from->Read();
      to->insert(to->end(), values.begin(), values.end());
    }
  }
  CaseCache::Must(cache.Commit(step, {}, {}));
  for (const auto& [id, count] : {std::pair{a, 9}, std::pair{b, 4}}) {
    for (int layer = 0; layer < 2; ++layer) {
      const auto rows = static_cast<std::size_t>(count);
      std::vector<typename Out::Bits> k(rows * kKWidth), v(rows * kVWidth);
      CaseCache::Must(cache.ReadRows(id, layer, 0, count, k.data(), v.data()));
      result.k.insert(result.k.end(), k.begin(), k.end());
      result.v.insert(result.v.end(), v.begin(), v.end());
    }
  }
  return result;
}

template <class In, class Out>
void CheckCompressed(const Device& device) {
  INFO(device.name() << ": " << DTypeName(In::kDType) << " to " << DTypeName(Out::kDType));
  const auto expected = Compress<In, Out>(device, std::nullopt);
  CHECK(expected.k.front() != expected.k.back());
  for (const auto launch :
       {DependentLaunch::kOff, DependentLaunch::kAfterWait, DependentLaunch::kIndexEarly}) {
    INFO("launch " << static_cast<int>(launch));
    const auto got = Compress<In, Out>(device, launch);
    CHECK((got.k == expected.k));
    CHECK((got.v == expected.v));
    CHECK((got.q == expected.q));
    CHECK((got.latent == expected.latent));
  }
}

TEST_CASE("MlaCompress into a cache is MlaCompress, then Append", "[mla]") {
  for (const Device& device : AvailableDevices()) {
    CheckCompressed<B16, B16>(device);
    CheckCompressed<F32, F32>(device);
    CheckCompressed<F32, F16>(device);
    CheckCompressed<F32, B16>(device);
  }
}

TEST_CASE("MlaCompress refuses what Append would, before anything is computed", "[mla]") {
  Random random(1);
  const Device device = *Device::Create(BackendKind::kCpu);
  KVCache cache = Make(FullConfig(DType::kBF16), device);
  const SequenceId a = *cache.Open(CaseCache::Range(0, 9));
  const Step step = Prepared(cache, {{a, 9, 0, {}}}, {kPadded, 1});
  CompressCase<B16> given(device, random, 9);
  const auto latent = given.latent.Read();
  MlaCompressInputs in = given.Inputs();
  in.dtype = DType::kFP16;
  Status status = cache.MlaCompress(step, 0, in, {});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message() == "dtype fp16: allowed are the cache's bf16 and fp32");
  in = given.Inputs();
  in.q_heads = 0;
  status = cache.MlaCompress(step, 0, in, {});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("q_heads 0") != std::string::npos);
  in = given.Inputs();
  in.q_heads = 9000;
  status = cache.MlaCompress(step, 0, in, {});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("q_heads = 9000") != std::string::npos);
  in = given.Inputs();
  in.q = static_cast<std::byte*>(in.q) + 1;
  status = cache.MlaCompress(step, 0, in, {});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("q = ") != std::string::npos);
  in = given.Inputs();
  in.hidden = nullptr;
  CHECK(cache.MlaCompress(step, 0, in, {}).code() == Code::kInvalidArgument);
  in = given.Inputs();
  in.rank = 0;
  CHECK(cache.MlaCompress(step, 0, in, {}).code() == Code::kInvalidArgument);
  CHECK(cache.Warmup(0, in, {}).code() == Code::kInvalidArgument);
  CHECK(given.latent.Read() == latent);
}

// --- Warmup -----------------------------------------------------------------------------------

// The CPU, and the most that was asked of it.
class Recorder : public testing::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream stream) override {
    (use == ScratchUse::kRows ? rows_bytes : latent_bytes) = bytes;
    return BackendDecorator::Scratch(use, bytes, stream);
  }
  Status WarmupGemm(const GemmParams& params, Stream stream) override {
    gemm_rows = std::max(gemm_rows, params.rows);
    return BackendDecorator::WarmupGemm(params, stream);
  }
  std::size_t rows_bytes = 0, latent_bytes = 0;
  std::int64_t gemm_rows = 0;
};

TEST_CASE("Warmup makes what a step of the most rows takes", "[mla]") {
  Random random(2);
  const auto backend = std::make_shared<Recorder>(*MakeBackend(BackendKind::kCpu, 0));
  const Device device(backend);
  KVCache full = Make(FullConfig(DType::kBF16), device);
  const CompressCase<F32> given(device, random, 9);
  CaseCache::Must(full.Warmup(0, given.Inputs(), {}));
  CHECK(backend->rows_bytes == 32 * (kKWidth + kVWidth) * 4);
  CHECK(backend->gemm_rows == 32);
  const SequenceId a = *full.Open(CaseCache::Range(0, 9));
  const Step step = Prepared(full, {{a, 9, 0, {}}}, {kPadded, 1});
  CaseCache::Must(full.MlaCompress(step, 0, given.Inputs(), {}));
  CHECK(backend->rows_bytes == kPadded * (kKWidth + kVWidth) * 4);

  KVCache latents = Make(LatentConfig(), device);
  MlaAppendInputs hidden;
  hidden.kv_lora_rank = kLatentRank;
  hidden.model_dim = kModelDim;
  backend->gemm_rows = 0;
  CaseCache::Must(latents.Warmup(0, hidden, {}));
  CHECK(backend->latent_bytes == 32 * kLatentWidth * 2);
  CHECK(backend->gemm_rows == 32);
  backend->gemm_rows = 0;
  MlaExpandInputs expand;
  expand.kv_lora_rank = kLatentRank;
  expand.heads = 3;
  expand.nope_dim = 6;
  expand.v_dim = 5;
  expand.num_tokens = 20;
  CaseCache::Must(latents.Warmup(1, expand, {}));
  CHECK(backend->gemm_rows == 20);
}

}  // namespace
}  // namespace lariat
