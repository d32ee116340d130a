// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "bench_data.h"
#include "bench_product.h"
#include "bench_workload.h"
#include "lariat/ops.h"
#include "lariat/rope.h"

namespace lariat::tools {
namespace {

constexpr std::int64_t kPositions = 8192;   // rows of the RoPE table
constexpr std::int64_t kDecodeTokens = 64;  // up to here every token is a sequence of its own
constexpr std::int64_t kPoolBytes = 256 << 20;
constexpr std::int64_t kLargeProduct = 1024;  // tokens
constexpr float kEps = 1e-6F;

// MlaAppend into a pool of one layer, [block][row][rank + rope_dim].
class MlaAppendWorkload : public Workload {
 public:
  using Workload::Workload;

  std::string op() const override { return "mla-append"; }
  DType dtype() const override { return dtype_; }
  // Behind a large product the rows are no dependent launch, whatever is asked (lariat/ops.h).
  bool pdl() const override {
    return launch_.value != 0 && !(FromHidden() && tokens_ >= kLargeProduct);
  }
  std::int64_t bytes() const override {
    const std::int64_t in = FromHidden() ? model_dim_ : Width();
    const std::int64_t weights = FromHidden() ? Width() * model_dim_ : 0;
    const std::int64_t table = std::min(tokens_, kPositions) * rope_dim_ * 4;
    return (tokens_ * (in + Width()) + weights + rank_) * Size() + tokens_ * 12 + table;
  }
  std::int64_t flops() const override {
    return tokens_ * (FromHidden() ? 2 * model_dim_ * Width() : 4 * rank_ + 3 * rope_dim_);
  }
  std::vector<Product> products() const override {
    if (!FromHidden()) return {};
    return {{.rows = tokens_, .columns = Width(), .inner = model_dim_, .out_in = true}};
  }

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t i, Stream stream) override {
    return MlaAppend(*device_, Params(i % sets()), stream);
  }
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"T", &tokens_, 1, 1 << 22},
            {"rank", &rank_, 1, 65536},
            {"rope_dim", &rope_dim_, 0, 512},
            {"block", &block_size_, 1, 1 << 20},
            {"from", &from_},
            {"model_dim", &model_dim_, 1, 1 << 20},
            {"style", &style_},
            {"launch", &launch_},
            {"dtype", &dtype_}};
  }
  double set_size() const override { return static_cast<double>(bytes()); }
  double shared_size() const override {
    return static_cast<double>(std::max(Needed() * block_size_ * Width() * Size(), kPoolBytes));
  }
  Status Complete() override {
    if (dtype_ == DType::kFP64) {
      return Unsupported("--shape: dtype=fp64; allowed: fp32, fp16, bf16");
    }
    if (rope_dim_ % 2 == 0) return Status::Ok();
    return InvalidArgument("--shape: rope_dim=" + std::to_string(rope_dim_) +
                           "; allowed: even numbers");
  }

 private:
  std::int64_t Size() const { return static_cast<std::int64_t>(SizeOf(dtype_)); }
  std::int64_t Width() const { return rank_ + rope_dim_; }
  bool FromHidden() const { return from_.value == 1; }
  std::int64_t Needed() const {
    return tokens_ <= kDecodeTokens ? tokens_ : (tokens_ + block_size_ - 1) / block_size_;
  }
  void MakePlaces(std::mt19937_64& random);
  MlaAppendParams Params(std::int64_t set) const;
  Status CheckToken(std::int64_t token, const std::vector<std::byte>& pool) const;

  std::int64_t tokens_ = 1, rank_ = 512, rope_dim_ = 64, block_size_ = 64, model_dim_ = 7168;
  Choice from_{{"rows", "hidden"}};
  RopeStyle style_ = RopeStyle::kInterleaved;
  DType dtype_ = DType::kBF16;
  Choice launch_ = LaunchChoice(MlaAppendParams().dependent_launch);

  std::optional<Device> device_;
  std::int64_t blocks_ = 0;
  std::vector<std::int32_t> positions_;        // [tokens], the same in every set
  std::vector<std::int64_t> slots_;            // [sets, tokens]
  std::vector<float> cos_, sin_;               // [kPositions, rope_dim / 2]
  std::vector<std::byte> in_, w_down_, norm_;  // of all sets: rows or hidden; weights
  DeviceBuffer in_rows_, w_down_matrix_, norm_weight_, positions_array_, slots_array_, cos_table_,
      sin_table_, pool_, fault_;
};

// Sets take their blocks from one random order of the pool, one set after another.
void MlaAppendWorkload::MakePlaces(std::mt19937_64& random) {
  const bool decode = tokens_ <= kDecodeTokens;
  blocks_ =
      std::max(Needed(), (hot() ? kPoolBytes / 8 : kPoolBytes) / (block_size_ * Width() * Size()));
  const std::vector<std::int32_t> order = Permutation(blocks_, random);
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const auto position =
        decode ? random() % kPositions : static_cast<std::uint64_t>(t) % kPositions;
    positions_.push_back(static_cast<std::int32_t>(position));
  }
  for (std::int64_t set = 0; set < sets(); ++set) {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int64_t nth = set * Needed() + (decode ? t : t / block_size_);
      slots_.push_back(order[static_cast<std::size_t>(nth % blocks_)] * block_size_ +
                       t % block_size_);
    }
  }
}

Status MlaAppendWorkload::Prepare(Device& device, Stream stream) {
  if (sets() > kMaxSets) {
    return InvalidArgument("--shape: T=" + std::to_string(tokens_) + " is too small to be cold");
  }
  device_ = device;
  std::mt19937_64 random(1);
  MakePlaces(random);
  cos_.resize(static_cast<std::size_t>(kPositions * (rope_dim_ / 2)));
  sin_.resize(cos_.size());
  if (rope_dim_ > 0) {
    RopeSpec spec;
    spec.rotary_dim = static_cast<int>(rope_dim_);
    const Result<RopeFrequencies> frequencies = ComputeRopeFrequencies(spec);
    if (!frequencies.ok()) return frequencies.status();
    FillRopeTable(*frequencies, 0, kPositions, cos_, sin_);
  }
  in_ = RandomElements(dtype_, sets() * tokens_ * (FromHidden() ? model_dim_ : Width()), random);
  if (FromHidden()) w_down_ = RandomElements(dtype_, sets() * Width() * model_dim_, random);
  norm_ = RandomElements(dtype_, rank_, random);
  const auto upload = [&](DeviceBuffer& to, const auto& from) {
    return UploadTo(device, from, stream, to);
  };
  const std::vector<FaultRecord> no_fault(1);
  for (const Status& status :
       {upload(in_rows_, in_), upload(w_down_matrix_, w_down_), upload(norm_weight_, norm_),
        upload(positions_array_, positions_), upload(slots_array_, slots_),
        upload(cos_table_, cos_), upload(sin_table_, sin_), upload(fault_, no_fault)}) {
    if (!status.ok()) return status;
  }
  const auto pool_bytes = static_cast<std::size_t>(blocks_ * block_size_ * Width() * Size());
  Result<DeviceBuffer> pool = device.Allocate(MemoryKind::kDevice, pool_bytes);
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  Status status = device.Fill(pool_.data(), 0xFF, pool_bytes, stream);
  if (status.ok()) status = Warmup(device, Params(0), stream);
  return status.ok() ? device.Synchronize(stream) : status;
}

MlaAppendParams MlaAppendWorkload::Params(std::int64_t set) const {
  MlaAppendParams params;
  params.in_dtype = params.dtype = dtype_;
  params.style = style_;
  params.num_tokens = tokens_;
  params.rank = static_cast<int>(rank_);
  params.rope_dim = params.rotary_dim = static_cast<int>(rope_dim_);
  const std::int64_t in = FromHidden() ? model_dim_ : Width();
  auto* const rows = static_cast<std::byte*>(in_rows_.data()) + set * tokens_ * in * Size();
  if (FromHidden()) {
    params.hidden = rows;
    params.model_dim = static_cast<int>(model_dim_);
    params.w_down =
        static_cast<std::byte*>(w_down_matrix_.data()) + set * Width() * model_dim_ * Size();
  } else {  // as a down-projection leaves them: one row after another
    params.c_kv = rows;
    params.k_pe = rows + rank_ * Size();
    params.c_kv_stride = params.k_pe_stride = Width();
  }
  params.norm_weight = norm_weight_.data();
  params.eps = kEps;
  params.slots = static_cast<const std::int64_t*>(slots_array_.data()) + set * tokens_;
  params.positions = static_cast<const std::int32_t*>(positions_array_.data());
  params.cos = static_cast<const float*>(cos_table_.data());
  params.sin = static_cast<const float*>(sin_table_.data());
  params.num_positions = kPositions;
  params.cache = pool_.data();
  params.num_slots = blocks_ * block_size_;
  params.block_size = static_cast<int>(block_size_);
  params.fault = static_cast<FaultRecord*>(fault_.data());
  params.dependent_launch = static_cast<DependentLaunch>(launch_.value);
  return params;
}

// One row in double, within a bound that covers the sums' roundings and the one to the type.
Status MlaAppendWorkload::CheckToken(std::int64_t token, const std::vector<std::byte>& pool) const {
  const double u = RoundingUnit(dtype_), e = 0x1p-24;
  std::vector<double> row, error;
  for (std::int64_t i = 0; i < Width(); ++i) {
    if (!FromHidden()) {
      row.push_back(LoadElement(dtype_, in_.data(), token * Width() + i));
      error.push_back(0);
      continue;
    }
    double sum = 0, size = 0;
    for (std::int64_t j = 0; j < model_dim_; ++j) {
      const double term = LoadElement(dtype_, in_.data(), token * model_dim_ + j) *
                          LoadElement(dtype_, w_down_.data(), i * model_dim_ + j);
      sum += term;
      size += std::abs(term);
    }
    row.push_back(sum);
    error.push_back(static_cast<double>(model_dim_ + 1) * e * size + u * std::abs(sum));
  }
  double squares = 0, squares_error = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank_); ++i) {
    squares += row[i] * row[i];
    squares_error += (2 * std::abs(row[i]) + error[i]) * error[i];
  }
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(rank_) + double{kEps});
  // Of the inverse: half the sum's relative error, and the few roundings behind it.
  const double relative =
      squares_error / squares / 2 + e * (static_cast<double>(rank_) / 8 + 48) / 2 + 6 * e;
  const std::int64_t position = positions_[static_cast<std::size_t>(token)], pairs = rope_dim_ / 2;
  const std::int64_t slot = slots_[static_cast<std::size_t>(token)];
  const auto compare = [&](std::int64_t i, double want, double bound) -> Status {
    const double got = LoadElement(dtype_, pool.data(), slot * Width() + i);
    if (std::abs(got - want) <= bound + u * (std::abs(want) + bound)) return Status::Ok();
    return CorruptData("mla-append: element " + std::to_string(i) + " of token " +
                       std::to_string(token) + " is " + std::to_string(got) +
                       ", by the plain loop " + std::to_string(want));
  };
  for (std::int64_t i = 0; i < rank_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double w = LoadElement(dtype_, norm_.data(), i);
    const double want = row[at] * inverse * w;
    const double bound =
        std::abs(want) * relative + (1 + relative) * inverse * std::abs(w) * error[at];
    if (Status s = compare(i, want, bound); !s.ok()) return s;
  }
  for (std::int64_t i = 0; i < pairs; ++i) {
    const bool half = style_ == RopeStyle::kHalf;
    const std::int64_t first = rank_ + (half ? i : 2 * i),
                       second = half ? first + pairs : first + 1;
    const auto a = static_cast<std::size_t>(first), b = static_cast<std::size_t>(second);
    const auto table = static_cast<std::size_t>(position * pairs + i);
    const double c = double{cos_[table]}, s = double{sin_[table]};
    const double bound = error[a] + error[b] + 4 * e * (std::abs(row[a]) + std::abs(row[b]));
    if (Status x = compare(first, row[a] * c - row[b] * s, bound); !x.ok()) return x;
    if (Status y = compare(second, row[a] * s + row[b] * c, bound); !y.ok()) return y;
  }
  return Status::Ok();
}

// All tokens from rows; a few from hidden, which would take the host minutes.
Status MlaAppendWorkload::Check(Stream stream) {
  const Status launched = Launch(0, stream);
  if (!launched.ok()) return launched;
  const auto pool = Download(*device_, pool_, pool_.size(), stream);
  if (!pool.ok()) return pool.status();
  const auto fault = Download(*device_, fault_, sizeof(FaultRecord), stream);
  if (!fault.ok()) return fault.status();
  if (std::any_of(fault->begin(), fault->end(), [](std::byte b) { return b != std::byte{0}; })) {
    return CorruptData("mla-append: recorded a fault");
  }
  const std::int64_t checked = FromHidden() ? std::min(tokens_, kCheckedTokens) : tokens_;
  for (std::int64_t i = 0; i < checked; ++i) {
    const std::int64_t token = checked == 1 ? 0 : i * (tokens_ - 1) / (checked - 1);
    const Status same = CheckToken(token, *pool);
    if (!same.ok()) return same;
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<Workload> MakeMlaAppendWorkload(bool hot) {
  return std::make_unique<MlaAppendWorkload>(hot);
}

}  // namespace lariat::tools
