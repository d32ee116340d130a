// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "bench_data.h"
#include "bench_product.h"
#include "bench_workload.h"
#include "lariat/ops.h"

namespace lariat::tools {
namespace {

constexpr std::int64_t kChunk = 4096;  // tokens of a sequence
constexpr std::int64_t kPoolBytes = 256 << 20;

// MlaExpand of whole sequences from a pool of one layer, [block][row][rank + rope_dim].
class MlaExpandWorkload : public Workload {
 public:
  using Workload::Workload;

  std::string op() const override { return "mla-expand"; }
  DType dtype() const override { return dtype_; }
  std::int64_t bytes() const override {
    return (tokens_ * (Width() + heads_ * (KDim() + v_dim_)) + heads_ * (nope_ + v_dim_) * rank_) *
           Size();
  }
  std::int64_t flops() const override { return 2 * tokens_ * heads_ * (nope_ + v_dim_) * rank_; }
  std::vector<Product> products() const override {
    return {
        {.rows = tokens_, .columns = heads_ * (nope_ + v_dim_), .inner = rank_, .out_in = true}};
  }

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t i, Stream stream) override {
    return MlaExpand(*device_, Params(i % sets()), stream);
  }
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"T", &tokens_, 1, 1 << 20},         {"heads", &heads_, 1, 1024},
            {"rank", &rank_, 1, 65536},          {"rope_dim", &rope_dim_, 0, 512},
            {"nope_dim", &nope_, 1, 1024},       {"v_dim", &v_dim_, 1, 1024},
            {"block", &block_size_, 1, 1 << 20}, {"dtype", &dtype_}};
  }
  double set_size() const override { return static_cast<double>(bytes()); }
  double shared_size() const override {
    return static_cast<double>(std::max(tokens_ * Width() * Size(), kPoolBytes));
  }
  Status Complete() override {
    if (dtype_ != DType::kFP64) return Status::Ok();
    return Unsupported("--shape: dtype=fp64; allowed: fp32, fp16, bf16");
  }

 private:
  std::int64_t Size() const { return static_cast<std::int64_t>(SizeOf(dtype_)); }
  std::int64_t Width() const { return rank_ + rope_dim_; }
  std::int64_t KDim() const { return nope_ + rope_dim_; }
  std::int64_t Ranges() const { return (tokens_ + kChunk - 1) / kChunk; }
  std::int64_t TableStride() const { return (kChunk + block_size_ - 1) / block_size_; }
  std::int64_t RowOf(std::int64_t token) const;  // of the first set, in the pool
  MlaExpandParams Params(std::int64_t set) const;
  Status CheckToken(std::int64_t token, const std::vector<std::byte>& k,
                    const std::vector<std::byte>& v) const;

  std::int64_t tokens_ = 1024, heads_ = 128, rank_ = 512, rope_dim_ = 64, nope_ = 128, v_dim_ = 128,
               block_size_ = 64;
  DType dtype_ = DType::kBF16;

  std::optional<Device> device_;
  std::int64_t blocks_ = 0;
  std::vector<std::int32_t> tables_;     // [sets, ranges, table stride]
  std::vector<std::int32_t> cu_tokens_;  // [ranges + 1]
  std::vector<std::byte> pool_, w_;      // w: of all sets
  DeviceBuffer pool_rows_, w_matrix_, tables_array_, cu_array_, k_, v_, fault_;
};

Status MlaExpandWorkload::Prepare(Device& device, Stream stream) {
  if (sets() > kMaxSets) {
    return InvalidArgument("--shape: T=" + std::to_string(tokens_) + " is too small to be cold");
  }
  device_ = device;
  std::mt19937_64 random(1);
  const std::int64_t entries = Ranges() * TableStride();
  blocks_ = std::max(entries, kPoolBytes / (block_size_ * Width() * Size()));
  const std::vector<std::int32_t> order = Permutation(blocks_, random);
  for (std::int64_t i = 0; i < sets() * entries; ++i) {
    tables_.push_back(order[static_cast<std::size_t>(i % blocks_)]);
  }
  for (std::int64_t r = 0; r <= Ranges(); ++r) {
    cu_tokens_.push_back(static_cast<std::int32_t>(std::min(r * kChunk, tokens_)));
  }
  pool_ = RandomElements(dtype_, blocks_ * block_size_ * Width(), random);
  w_ = RandomElements(dtype_, sets() * heads_ * (nope_ + v_dim_) * rank_, random);
  const auto upload = [&](DeviceBuffer& to, const auto& from) {
    return UploadTo(device, from, stream, to);
  };
  const std::vector<FaultRecord> no_fault(1);
  for (const Status& status :
       {upload(pool_rows_, pool_), upload(w_matrix_, w_), upload(tables_array_, tables_),
        upload(cu_array_, cu_tokens_), upload(fault_, no_fault)}) {
    if (!status.ok()) return status;
  }
  for (const auto& [to, dim] : {std::pair{&k_, KDim()}, {&v_, v_dim_}}) {
    Result<DeviceBuffer> made = device.Allocate(
        MemoryKind::kDevice, static_cast<std::size_t>(sets() * tokens_ * heads_ * dim * Size()));
    if (!made.ok()) return made.status();
    *to = *std::move(made);
  }
  const Status warm = Warmup(device, Params(0), stream);
  return warm.ok() ? device.Synchronize(stream) : warm;
}

MlaExpandParams MlaExpandWorkload::Params(std::int64_t set) const {
  const auto at = [&](const DeviceBuffer& buffer, std::int64_t elements_per_set) {
    return static_cast<std::byte*>(buffer.data()) + set * elements_per_set * Size();
  };
  MlaExpandParams params;
  params.dtype = dtype_;
  params.num_tokens = tokens_;
  params.heads = static_cast<int>(heads_);
  params.rank = static_cast<int>(rank_);
  params.rope_dim = static_cast<int>(rope_dim_);
  params.nope_dim = static_cast<int>(nope_);
  params.v_dim = static_cast<int>(v_dim_);
  params.w_kv_b = at(w_matrix_, heads_ * (nope_ + v_dim_) * rank_);
  params.num_ranges = static_cast<int>(Ranges());
  params.cu_tokens = static_cast<const std::int32_t*>(cu_array_.data());
  params.block_table =
      static_cast<const std::int32_t*>(tables_array_.data()) + set * Ranges() * TableStride();
  params.block_table_stride = TableStride();
  params.cache = pool_rows_.data();
  params.num_blocks = blocks_;
  params.block_size = static_cast<int>(block_size_);
  params.k = at(k_, tokens_ * heads_ * KDim());
  params.v = at(v_, tokens_ * heads_ * v_dim_);
  params.fault = static_cast<FaultRecord*>(fault_.data());
  return params;
}

std::int64_t MlaExpandWorkload::RowOf(std::int64_t token) const {
  const std::int64_t at = token % kChunk;
  const std::int64_t entry = token / kChunk * TableStride() + at / block_size_;
  return tables_[static_cast<std::size_t>(entry)] * block_size_ + at % block_size_;
}

Status MlaExpandWorkload::CheckToken(std::int64_t token, const std::vector<std::byte>& k,
                                     const std::vector<std::byte>& v) const {
  const double u = RoundingUnit(dtype_), e = 0x1p-24;
  const std::int64_t row = RowOf(token) * Width();
  const auto compare = [&](bool is_k, std::int64_t head, std::int64_t i) -> Status {
    const std::int64_t weights = (head * (nope_ + v_dim_) + (is_k ? i : nope_ + i)) * rank_;
    double sum = 0, size = 0;
    for (std::int64_t r = 0; r < rank_; ++r) {
      const double term =
          LoadElement(dtype_, pool_.data(), row + r) * LoadElement(dtype_, w_.data(), weights + r);
      sum += term;
      size += std::abs(term);
    }
    const double bound = static_cast<double>(rank_ + 1) * e * size;
    const std::int64_t at = (token * heads_ + head) * (is_k ? KDim() : v_dim_) + i;
    const double got = LoadElement(dtype_, is_k ? k.data() : v.data(), at);
    if (std::abs(got - sum) <= bound + u * (std::abs(sum) + bound)) return Status::Ok();
    return CorruptData(std::string("mla-expand: ") + (is_k ? "k" : "v") + " of token " +
                       std::to_string(token) + ", head " + std::to_string(head) + " is " +
                       std::to_string(got) + ", by the plain loop " + std::to_string(sum));
  };
  for (std::int64_t head = 0; head < heads_; ++head) {
    for (std::int64_t i = 0; i < nope_; ++i) {
      if (Status s = compare(true, head, i); !s.ok()) return s;
    }
    for (std::int64_t i = 0; i < v_dim_; ++i) {
      if (Status s = compare(false, head, i); !s.ok()) return s;
    }
    const std::int64_t at = (token * heads_ + head) * KDim() + nope_;
    if (std::memcmp(k.data() + at * Size(), pool_.data() + (row + rank_) * Size(),
                    static_cast<std::size_t>(rope_dim_ * Size())) != 0) {
      return CorruptData("mla-expand: k_pe of token " + std::to_string(token) + ", head " +
                         std::to_string(head) + " differs from the row's");
    }
  }
  return Status::Ok();
}

Status MlaExpandWorkload::Check(Stream stream) {
  const Status launched = Launch(0, stream);
  if (!launched.ok()) return launched;
  const auto k =
      Download(*device_, k_, static_cast<std::size_t>(tokens_ * heads_ * KDim() * Size()), stream);
  if (!k.ok()) return k.status();
  const auto v =
      Download(*device_, v_, static_cast<std::size_t>(tokens_ * heads_ * v_dim_ * Size()), stream);
  if (!v.ok()) return v.status();
  const std::int64_t checked = std::min(tokens_, kCheckedTokens);
  for (std::int64_t i = 0; i < checked; ++i) {
    const std::int64_t token = checked == 1 ? 0 : i * (tokens_ - 1) / (checked - 1);
    const Status same = CheckToken(token, *k, *v);
    if (!same.ok()) return same;
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<Workload> MakeMlaExpandWorkload(bool hot) {
  return std::make_unique<MlaExpandWorkload>(hot);
}

}  // namespace lariat::tools
