// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "bench_data.h"
#include "bench_workload.h"
#include "lariat/ops.h"
#include "lariat/rope.h"

namespace lariat::tools {
namespace {

// RopeUpdate: a cache that is copied with new rows put in.
class RopeUpdateWorkload : public Workload {
 public:
  using Workload::Workload;

  std::string op() const override { return "rope-update"; }
  DType dtype() const override { return dtype_; }
  bool pdl() const override { return launch_.value != 0; }
  // Every row of the output is written, and read from the cache or from the new rows.
  std::int64_t bytes() const override {
    const std::int64_t positions = std::min(batch_ * tokens_, length_);
    return 4 * batch_ * length_ * Row() + batch_ * tokens_ * 4 +
           positions * rotary_dim_ * TableSize();
  }
  std::int64_t flops() const override { return batch_ * tokens_ * heads_ * (rotary_dim_ / 2) * 6; }

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t i, Stream stream) override {
    return RopeUpdate(*device_, Params(i % sets()), stream);
  }
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"B", &batch_, 1, 1 << 16},  {"T", &tokens_, 0, 1 << 20},
            {"L", &length_, 1, 1 << 24}, {"H", &heads_, 1, 1024},
            {"D", &dim_, 2, 512},        {"rotary_dim", &rotary_dim_, 0, 512},
            {"style", &style_},          {"launch", &launch_},
            {"dtype", &dtype_}};
  }
  double set_size() const override {
    return 4.0 * static_cast<double>(batch_ * std::max(length_, tokens_)) *
           static_cast<double>(Row());
  }
  Status Complete() override {
    if (rotary_dim_ < 0) rotary_dim_ = dim_;
    if (dim_ % 2 == 0 && rotary_dim_ % 2 == 0 && rotary_dim_ <= dim_) return Status::Ok();
    return InvalidArgument("--shape: D=" + std::to_string(dim_) +
                           ", rotary_dim=" + std::to_string(rotary_dim_) +
                           "; allowed: even numbers, and rotary_dim up to D");
  }

 private:
  std::int64_t Size() const { return static_cast<std::int64_t>(SizeOf(dtype_)); }
  DType TableDType() const { return dtype_ == DType::kFP64 ? DType::kFP64 : DType::kFP32; }
  std::int64_t TableSize() const { return static_cast<std::int64_t>(SizeOf(TableDType())); }
  std::int64_t Row() const { return heads_ * dim_ * Size(); }  // bytes of K or V of one position
  Status MakeTables();
  RopeUpdateParams Params(std::int64_t set) const;
  void PutRow(std::vector<std::byte>& want, std::int64_t b, std::int64_t t) const;

  // The first shape of the project: 256 KiB out.
  std::int64_t batch_ = 2, tokens_ = 8, length_ = 128, heads_ = 4, dim_ = 32, rotary_dim_ = -1;
  RopeStyle style_ = RopeStyle::kInterleaved;
  DType dtype_ = DType::kFP32;
  Choice launch_ = LaunchChoice();

  std::optional<Device> device_;
  std::vector<std::int32_t> positions_;  // [batch, tokens], the same in every set
  std::vector<std::byte> cos_, sin_;     // [length, rotary_dim / 2]
  std::vector<std::byte> cache_k_, cache_v_, k_new_, v_new_;  // of all sets
  DeviceBuffer cache_k_rows_, cache_v_rows_, k_rows_, v_rows_, out_, positions_array_, cos_table_,
      sin_table_, fault_;
};

Status RopeUpdateWorkload::MakeTables() {
  const std::int64_t entries = length_ * (rotary_dim_ / 2);
  std::vector<float> cos(static_cast<std::size_t>(entries)), sin(cos);
  if (rotary_dim_ > 0) {
    RopeSpec spec;
    spec.rotary_dim = static_cast<int>(rotary_dim_);
    const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
    if (!frequencies.ok()) return frequencies.status();
    FillRopeTable(*frequencies, 0, length_, cos, sin);
  }
  cos_.resize(static_cast<std::size_t>(entries * TableSize()));
  sin_.resize(cos_.size());
  for (std::int64_t i = 0; i < entries; ++i) {
    const auto at = static_cast<std::size_t>(i);
    StoreElement(TableDType(), cos_.data(), i, static_cast<double>(cos[at]));
    StoreElement(TableDType(), sin_.data(), i, static_cast<double>(sin[at]));
  }
  return Status::Ok();
}

Status RopeUpdateWorkload::Prepare(Device& device, Stream stream) {
  if (sets() > kMaxSets) {
    return InvalidArgument("--shape: B=" + std::to_string(batch_) +
                           ",L=" + std::to_string(length_) + " is too small to be cold");
  }
  device_ = device;
  std::mt19937_64 random(1);
  // Distinct within a sequence, as far as there are so many.
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::vector<std::int32_t> order = Permutation(length_, random);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      positions_.push_back(order[static_cast<std::size_t>(t % length_)]);
    }
  }
  const Status tables = MakeTables();
  if (!tables.ok()) return tables;
  const std::int64_t cached = sets() * batch_ * length_ * heads_ * dim_;
  const std::int64_t fresh = sets() * batch_ * tokens_ * heads_ * dim_;
  cache_k_ = RandomElements(dtype_, cached, random);
  cache_v_ = RandomElements(dtype_, cached, random);
  k_new_ = RandomElements(dtype_, fresh, random);
  v_new_ = RandomElements(dtype_, fresh, random);
  const auto upload = [&](DeviceBuffer& to, const auto& from) {
    return UploadTo(device, from, stream, to);
  };
  const std::vector<FaultRecord> no_fault(1);
  for (const Status& status :
       {upload(cache_k_rows_, cache_k_), upload(cache_v_rows_, cache_v_), upload(k_rows_, k_new_),
        upload(v_rows_, v_new_), upload(positions_array_, positions_), upload(cos_table_, cos_),
        upload(sin_table_, sin_), upload(fault_, no_fault)}) {
    if (!status.ok()) return status;
  }
  Result<DeviceBuffer> out =
      device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(2 * cached * Size()));
  if (out.ok()) out_ = *std::move(out);
  return out.status();
}

RopeUpdateParams RopeUpdateWorkload::Params(std::int64_t set) const {
  const auto at = [set](const DeviceBuffer& buffer, std::int64_t bytes_per_set) {
    return static_cast<std::byte*>(buffer.data()) + set * bytes_per_set;
  };
  RopeUpdateParams params;
  params.dtype = dtype_;
  params.table_dtype = TableDType();
  params.style = style_;
  params.batch = batch_;
  params.new_tokens = tokens_;
  params.cache_len = length_;
  params.heads = static_cast<int>(heads_);
  params.head_dim = static_cast<int>(dim_);
  params.rotary_dim = static_cast<int>(rotary_dim_);
  params.k_new = at(k_rows_, batch_ * tokens_ * Row());
  params.v_new = at(v_rows_, batch_ * tokens_ * Row());
  params.cos = cos_table_.data();
  params.sin = sin_table_.data();
  params.cache_k = at(cache_k_rows_, batch_ * length_ * Row());
  params.cache_v = at(cache_v_rows_, batch_ * length_ * Row());
  params.positions = static_cast<const std::int32_t*>(positions_array_.data());
  params.out = at(out_, 2 * batch_ * length_ * Row());
  params.fault = static_cast<FaultRecord*>(fault_.data());
  params.dependent_launch = static_cast<DependentLaunch>(launch_.value);
  return params;
}

// Writes token (b, t) of the first set into `want`, [2, B, L, H, D].
void RopeUpdateWorkload::PutRow(std::vector<std::byte>& want, std::int64_t b,
                                std::int64_t t) const {
  const std::int64_t token = b * tokens_ + t;
  const std::int64_t position = positions_[static_cast<std::size_t>(token)];
  std::byte* const k = want.data() + (b * length_ + position) * Row();
  std::memcpy(k, k_new_.data() + token * Row(), static_cast<std::size_t>(Row()));
  std::memcpy(k + batch_ * length_ * Row(), v_new_.data() + token * Row(),
              static_cast<std::size_t>(Row()));
  const std::int64_t pairs = rotary_dim_ / 2;
  const bool half = style_ == RopeStyle::kHalf;
  for (std::int64_t head = 0; head < heads_; ++head) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const std::int64_t first = head * dim_ + (half ? i : 2 * i);
      const std::int64_t second = head * dim_ + (half ? i + pairs : 2 * i + 1);
      double x = LoadElement(dtype_, k, first), y = LoadElement(dtype_, k, second);
      RotatePair(dtype_, x, y, LoadElement(TableDType(), cos_.data(), position * pairs + i),
                 LoadElement(TableDType(), sin_.data(), position * pairs + i));
      StoreElement(dtype_, k, first, x);
      StoreElement(dtype_, k, second, y);
    }
  }
}

Status RopeUpdateWorkload::Check(Stream stream) {
  const std::int64_t cached = batch_ * length_ * Row();
  const Status poisoned =
      device_->Fill(out_.data(), 0xFF, static_cast<std::size_t>(2 * cached), stream);
  if (!poisoned.ok()) return poisoned;
  const Status launched = Launch(0, stream);
  if (!launched.ok()) return launched;
  const auto got = Download(*device_, out_, static_cast<std::size_t>(2 * cached), stream);
  if (!got.ok()) return got.status();
  const auto fault = Download(*device_, fault_, sizeof(FaultRecord), stream);
  if (!fault.ok()) return fault.status();
  FaultRecord record;
  std::memcpy(&record, fault->data(), sizeof(record));
  if (record.kind != FaultKind::kNone) return CorruptData("rope-update: recorded a fault");

  std::vector<std::byte> want(cache_k_.begin(), cache_k_.begin() + cached);
  want.insert(want.end(), cache_v_.begin(), cache_v_.begin() + cached);
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t t = 0; t < tokens_; ++t) PutRow(want, b, t);
  }
  const auto differs = std::mismatch(want.begin(), want.end(), got->begin()).first;
  if (differs == want.end()) return Status::Ok();
  return CorruptData("rope-update: element " + std::to_string((differs - want.begin()) / Size()) +
                     " of out differs from the plain loop");
}

}  // namespace

std::unique_ptr<Workload> MakeRopeUpdateWorkload(bool hot) {
  return std::make_unique<RopeUpdateWorkload>(hot);
}

}  // namespace lariat::tools
