// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "bench_ceiling.h"
#include "bench_data.h"
#include "bench_workload.h"
#include "lariat/ops.h"
#include "lariat/rope.h"

namespace lariat::tools {
namespace {

constexpr std::int64_t kPositions = 8192;   // rows of the RoPE table
constexpr std::int64_t kDecodeTokens = 64;  // up to here every token is a sequence of its own
constexpr std::int64_t kChunk = 4096;       // beyond, sequences have this many rows
constexpr std::int64_t kPoolBytes = 256 << 20;
constexpr DType kAsStored = DType::kFP8E4M3;  // stands for an `in` that is not given

// AppendRope into a block-major pool of one layer, [block][K|V][row][head][element].
class AppendWorkload : public Workload {
 public:
  using Workload::Workload;

  std::string op() const override { return "append"; }
  DType dtype() const override { return dtype_; }
  bool pdl() const override { return launch_.value != 0; }
  std::int64_t bytes() const override {
    const std::int64_t stored = tokens_ * kv_heads_ * (k_dim_ + v_dim_);
    const std::int64_t turned = tokens_ * q_heads_ * k_dim_;
    const std::int64_t table = std::min(tokens_, kPositions) * rotary_dim_ * 4;
    return stored * (InSize() + Size()) + 2 * turned * InSize() + tokens_ * 12 + table;
  }
  std::int64_t flops() const override {
    return tokens_ * (kv_heads_ + q_heads_) * (rotary_dim_ / 2) * 6;
  }

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t i, Stream stream) override {
    return AppendRope(*device_, Params(i % sets()), stream);
  }
  Status Check(Stream stream) override;
  std::unique_ptr<Workload> MakeCeiling() override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"T", &tokens_, 1, 1 << 24},
            {"q_heads", &q_heads_, 0, 1024},
            {"kv_heads", &kv_heads_, 1, 1024},
            {"k_dim", &k_dim_, 2, 512},
            {"v_dim", &v_dim_, 2, 512},
            {"rotary_dim", &rotary_dim_, 0, 512},
            {"block", &block_size_, 1, 1 << 20},
            {"style", &style_},
            {"in", &in_dtype_},
            {"launch", &launch_},
            {"dtype", &dtype_}};
  }
  double set_size() const override { return static_cast<double>(bytes()); }
  double shared_size() const override {
    const std::int64_t needed = tokens_ <= kDecodeTokens ? tokens_ : tokens_ / block_size_ + 1;
    return static_cast<double>(needed * BlockElements() * Size());  // of the pool, at least
  }
  Status Complete() override {
    if (rotary_dim_ < 0) rotary_dim_ = k_dim_;
    if (in_dtype_ == kAsStored) in_dtype_ = dtype_;
    if (dtype_ == DType::kFP64 || in_dtype_ == DType::kFP64) {
      return Unsupported("--shape: dtype and in may be fp32, fp16, bf16; append has no fp64");
    }
    if (in_dtype_ != dtype_ && in_dtype_ != DType::kFP32) {
      return Unsupported("--shape: in=" + std::string(DTypeName(in_dtype_)) +
                         "; allowed: dtype, which is " + std::string(DTypeName(dtype_)) +
                         ", or fp32");
    }
    if (k_dim_ % 2 == 0 && v_dim_ % 2 == 0 && rotary_dim_ % 2 == 0 && rotary_dim_ <= k_dim_) {
      return Status::Ok();
    }
    return InvalidArgument("--shape: k_dim=" + std::to_string(k_dim_) + ", v_dim=" +
                           std::to_string(v_dim_) + ", rotary_dim=" + std::to_string(rotary_dim_) +
                           "; allowed: even numbers, and rotary_dim up to k_dim");
  }

 private:
  std::int64_t Size() const { return static_cast<std::int64_t>(SizeOf(dtype_)); }
  std::int64_t InSize() const { return static_cast<std::int64_t>(SizeOf(in_dtype_)); }
  std::int64_t BlockElements() const { return block_size_ * kv_heads_ * (k_dim_ + v_dim_); }
  void MakePositions(std::mt19937_64& random);
  void MakeSlots(std::mt19937_64& random);
  AppendRopeParams Params(std::int64_t set) const;
  Status CompareRows(const std::byte* got, const std::byte* in, std::int64_t token,
                     std::int64_t heads, std::int64_t dim, bool turn, DType stored,
                     const char* what) const;

  std::int64_t tokens_ = 1, q_heads_ = 0, kv_heads_ = 8, k_dim_ = 128, v_dim_ = 128;
  std::int64_t rotary_dim_ = -1, block_size_ = 16;
  RopeStyle style_ = RopeStyle::kHalf;
  DType in_dtype_ = kAsStored, dtype_ = DType::kBF16;
  Choice launch_ = LaunchChoice();

  std::optional<Device> device_;
  std::int64_t blocks_ = 0;
  std::vector<std::int32_t> positions_;  // [tokens], the same in every set
  std::vector<std::int64_t> slots_;      // [sets, tokens]
  std::vector<float> cos_, sin_;         // [kPositions, rotary_dim / 2]
  std::vector<std::byte> k_, v_, q_;     // of the first set
  DeviceBuffer k_rows_, v_rows_, q_rows_, positions_array_, slots_array_, cos_table_, sin_table_;
  DeviceBuffer pool_, fault_;
};

void AppendWorkload::MakePositions(std::mt19937_64& random) {
  positions_.resize(static_cast<std::size_t>(tokens_));
  std::int32_t next = 0;
  for (std::int64_t t = 0; t < tokens_; ++t) {
    if (tokens_ <= kDecodeTokens) {
      next = static_cast<std::int32_t>(random() % kPositions);
    } else if (t % kChunk == 0) {
      next = static_cast<std::int32_t>(random() % (kPositions - kChunk + 1));
    }
    positions_[static_cast<std::size_t>(t)] = next++;
  }
}

// Sets take their blocks from one random order of the pool, one set after another.
void AppendWorkload::MakeSlots(std::mt19937_64& random) {
  const bool decode = tokens_ <= kDecodeTokens;
  const std::int64_t needed = decode ? tokens_ : (tokens_ + block_size_ - 1) / block_size_;
  blocks_ = std::max(needed, (hot() ? kPoolBytes / 8 : kPoolBytes) / (BlockElements() * Size()));
  const std::vector<std::int32_t> order = Permutation(blocks_, random);
  slots_.resize(static_cast<std::size_t>(sets() * tokens_));
  for (std::int64_t set = 0; set < sets(); ++set) {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int64_t nth = set * needed + (decode ? t : t / block_size_);
      const std::int64_t row =
          decode ? static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(block_size_))
                 : t % block_size_;
      slots_[static_cast<std::size_t>(set * tokens_ + t)] =
          order[static_cast<std::size_t>(nth % blocks_)] * block_size_ + row;
    }
  }
}

Status AppendWorkload::Prepare(Device& device, Stream stream) {
  if (sets() > kMaxSets) {
    return InvalidArgument("--shape: T=" + std::to_string(tokens_) +
                           " is too small to be cold: its rows fit every cache");
  }
  device_ = device;
  std::mt19937_64 random(1);
  MakePositions(random);
  MakeSlots(random);
  const std::int64_t pairs = rotary_dim_ / 2;
  cos_.resize(static_cast<std::size_t>(kPositions * pairs));
  sin_.resize(cos_.size());
  if (pairs > 0) {
    RopeSpec spec;
    spec.rotary_dim = static_cast<int>(rotary_dim_);
    const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
    if (!frequencies.ok()) return frequencies.status();
    FillRopeTable(*frequencies, 0, kPositions, cos_, sin_);
  }
  k_ = RandomElements(in_dtype_, sets() * tokens_ * kv_heads_ * k_dim_, random);
  v_ = RandomElements(in_dtype_, sets() * tokens_ * kv_heads_ * v_dim_, random);
  q_ = RandomElements(in_dtype_, sets() * tokens_ * q_heads_ * k_dim_, random);

  const auto upload = [&](DeviceBuffer& to, const auto& from) {
    return UploadTo(device, from, stream, to);
  };
  const std::vector<FaultRecord> no_fault(1);
  for (const Status& status :
       {upload(k_rows_, k_), upload(v_rows_, v_), upload(q_rows_, q_),
        upload(positions_array_, positions_), upload(slots_array_, slots_),
        upload(cos_table_, cos_), upload(sin_table_, sin_), upload(fault_, no_fault)}) {
    if (!status.ok()) return status;
  }
  const auto pool_bytes = static_cast<std::size_t>(blocks_ * BlockElements() * Size());
  Result<DeviceBuffer> pool = device.Allocate(MemoryKind::kDevice, pool_bytes);
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  const Status poisoned = device.Fill(pool_.data(), 0xFF, pool_bytes, stream);
  return poisoned.ok() ? device.Synchronize(stream) : poisoned;
}

AppendRopeParams AppendWorkload::Params(std::int64_t set) const {
  const auto at = [set](const DeviceBuffer& buffer, std::int64_t bytes_per_set) {
    return static_cast<std::byte*>(buffer.data()) + set * bytes_per_set;
  };
  AppendRopeParams params;
  params.in_dtype = in_dtype_;
  params.dtype = dtype_;
  params.style = style_;
  params.num_tokens = tokens_;
  params.kv_heads = static_cast<int>(kv_heads_);
  params.q_heads = static_cast<int>(q_heads_);
  params.k_dim = static_cast<int>(k_dim_);
  params.v_dim = static_cast<int>(v_dim_);
  params.rotary_dim = static_cast<int>(rotary_dim_);
  params.k = at(k_rows_, tokens_ * kv_heads_ * k_dim_ * InSize());
  params.v = at(v_rows_, tokens_ * kv_heads_ * v_dim_ * InSize());
  if (q_heads_ > 0) {
    params.q_out = at(q_rows_, tokens_ * q_heads_ * k_dim_ * InSize());
    params.q = params.q_out;
  }
  params.slots = static_cast<const std::int64_t*>(slots_array_.data()) + set * tokens_;
  params.positions = static_cast<const std::int32_t*>(positions_array_.data());
  params.cos = static_cast<const float*>(cos_table_.data());
  params.sin = static_cast<const float*>(sin_table_.data());
  params.num_positions = kPositions;
  params.k_cache = pool_.data();
  params.v_cache =
      static_cast<std::byte*>(pool_.data()) + block_size_ * kv_heads_ * k_dim_ * Size();
  params.num_slots = blocks_ * block_size_;
  params.block_size = static_cast<int>(block_size_);
  params.k_block_stride = params.v_block_stride = BlockElements();
  params.k_row_stride = kv_heads_ * k_dim_;
  params.v_row_stride = kv_heads_ * v_dim_;
  params.k_cache_head_stride = k_dim_;
  params.v_cache_head_stride = v_dim_;
  params.fault = static_cast<FaultRecord*>(fault_.data());
  params.dependent_launch = static_cast<DependentLaunch>(launch_.value);
  return params;
}

// One token's heads as they should be stored, against `got`.
Status AppendWorkload::CompareRows(const std::byte* got, const std::byte* in, std::int64_t token,
                                   std::int64_t heads, std::int64_t dim, bool turn, DType stored,
                                   const char* what) const {
  const std::int64_t pairs = turn ? rotary_dim_ / 2 : 0;
  const std::int64_t size = static_cast<std::int64_t>(SizeOf(stored));
  std::vector<double> row(static_cast<std::size_t>(dim));
  std::vector<std::byte> want(static_cast<std::size_t>(dim * size));
  const std::int64_t table = positions_[static_cast<std::size_t>(token)] * pairs;
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t first = (token * heads + head) * dim;
    for (std::int64_t i = 0; i < dim; ++i) {
      row[static_cast<std::size_t>(i)] = LoadElement(in_dtype_, in, first + i);
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
      const bool half = style_ == RopeStyle::kHalf;
      double& x = row[static_cast<std::size_t>(half ? i : 2 * i)];
      double& y = row[static_cast<std::size_t>(half ? i + pairs : 2 * i + 1)];
      RotatePair(in_dtype_, x, y, static_cast<double>(cos_[static_cast<std::size_t>(table + i)]),
                 static_cast<double>(sin_[static_cast<std::size_t>(table + i)]));
    }
    for (std::int64_t i = 0; i < dim; ++i) {
      StoreElement(stored, want.data(), i, row[static_cast<std::size_t>(i)]);
    }
    if (std::memcmp(got + head * dim * size, want.data(), want.size()) != 0) {
      return CorruptData(std::string("append: ") + what + " of token " + std::to_string(token) +
                         ", head " + std::to_string(head) + " differs from the plain loop");
    }
  }
  return Status::Ok();
}

Status AppendWorkload::Check(Stream stream) {
  const Status launched = Launch(0, stream);
  if (!launched.ok()) return launched;
  const auto pool = Download(*device_, pool_, pool_.size(), stream);
  if (!pool.ok()) return pool.status();
  const std::int64_t q_row = q_heads_ * k_dim_ * InSize();
  const auto q = Download(*device_, q_rows_, static_cast<std::size_t>(tokens_ * q_row), stream);
  if (!q.ok()) return q.status();
  const auto fault = Download(*device_, fault_, sizeof(FaultRecord), stream);
  if (!fault.ok()) return fault.status();
  FaultRecord record;
  std::memcpy(&record, fault->data(), sizeof(record));
  if (record.kind != FaultKind::kNone) return CorruptData("append: recorded a fault");

  const std::int64_t k_row = kv_heads_ * k_dim_ * Size(), v_row = kv_heads_ * v_dim_ * Size();
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const std::int64_t slot = slots_[static_cast<std::size_t>(t)];
    const std::byte* block = pool->data() + slot / block_size_ * BlockElements() * Size();
    const std::int64_t row = slot % block_size_;
    for (const Status& status :
         {CompareRows(block + row * k_row, k_.data(), t, kv_heads_, k_dim_, true, dtype_, "K"),
          CompareRows(block + block_size_ * k_row + row * v_row, v_.data(), t, kv_heads_, v_dim_,
                      false, dtype_, "V"),
          CompareRows(q->data() + t * q_row, q_.data(), t, q_heads_, k_dim_, true, in_dtype_,
                      "Q")}) {
      if (!status.ok()) return status;
    }
  }
  return Status::Ok();
}

// On the CPU: rows as they lie to the pool as it lies, q to another set or to memory of its own.
// On CUDA it is the copy of large buffers.
std::unique_ptr<Workload> AppendWorkload::MakeCeiling() {
  if (device_->kind() != BackendKind::kCpu) return nullptr;
  const auto k = static_cast<std::size_t>(tokens_ * kv_heads_ * k_dim_ * InSize());
  const auto v = static_cast<std::size_t>(tokens_ * kv_heads_ * v_dim_ * InSize());
  const auto q = static_cast<std::size_t>(tokens_ * q_heads_ * k_dim_ * InSize());
  // Where there is no other set, q goes to memory of its own.
  const auto other_q = std::make_shared<std::vector<std::max_align_t>>(
      sets() > 1 ? 0 : q / sizeof(std::max_align_t) + 1);
  const auto copies = [=, this](std::int64_t i) {
    const AppendRopeParams from = Params(i % sets()), next = Params((i + 1) % sets());
    auto* const pool = static_cast<std::byte*>(pool_.data());
    const std::size_t room = pool_.size() - std::min(pool_.size(), std::max(k, v));
    const auto at = [&](std::size_t bytes) { return pool + bytes % (room + 1) / 64 * 64; };
    const std::size_t first = static_cast<std::size_t>(i % sets()) * (k + v);
    return std::array<BlockCopy, 3>{{{at(first), from.k, std::min(k, pool_.size())},
                                     {at(first + k), from.v, std::min(v, pool_.size())},
                                     {sets() > 1 ? next.q_out : other_q->data(), from.q, q}}};
  };
  return std::make_unique<CopiesWorkload>(*this, device_->cpu_threads(), copies);
}

}  // namespace

std::unique_ptr<Workload> MakeAppendWorkload(bool hot) {
  return std::make_unique<AppendWorkload>(hot);
}

}  // namespace lariat::tools
