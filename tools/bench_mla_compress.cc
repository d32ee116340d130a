// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "bench_data.h"
#include "bench_product.h"
#include "bench_workload.h"
#include "lariat/ops.h"

namespace lariat::tools {
namespace {

// MlaCompress into stacked K and V.
class MlaCompressWorkload : public Workload {
 public:
  using Workload::Workload;

  std::string op() const override { return "mla-compress"; }
  DType dtype() const override { return dtype_; }
  bool pdl() const override { return launch_.value != 0; }
  std::int64_t bytes() const override {
    return (tokens_ * (model_dim_ + Outputs()) + rank_ * (model_dim_ + Outputs())) * Size();
  }
  std::int64_t flops() const override { return 2 * tokens_ * rank_ * (model_dim_ + Outputs()); }
  std::vector<Product> products() const override {
    const Product down = {
        .rows = tokens_, .columns = rank_, .inner = model_dim_, .out_in = OutIn()};
    const Product up = {.rows = tokens_, .columns = Outputs(), .inner = rank_, .out_in = OutIn()};
    return {down, up};
  }

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t i, Stream stream) override {
    return MlaCompress(*device_, Params(i % sets()), stream);
  }
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"T", &tokens_, 1, 1 << 20},
            {"model_dim", &model_dim_, 1, 1 << 20},
            {"rank", &rank_, 1, 65536},
            {"heads", &heads_, 1, 8192},
            {"k_dim", &k_dim_, 1, 8192},
            {"v_dim", &v_dim_, 1, 8192},
            {"layout", &layout_},
            {"up", &up_},
            {"path", &path_},
            {"launch", &launch_},
            {"dtype", &dtype_}};
  }
  double set_size() const override { return static_cast<double>(bytes()); }
  Status Complete() override {
    if (dtype_ != DType::kFP64) return Status::Ok();
    return Unsupported("--shape: dtype=fp64; allowed: fp32, fp16, bf16");
  }

 private:
  std::int64_t Size() const { return static_cast<std::int64_t>(SizeOf(dtype_)); }
  std::int64_t Outputs() const { return heads_ * (k_dim_ + v_dim_); }
  bool OutIn() const { return layout_.value == 1; }
  bool Packed() const { return up_.value == 1; }
  MlaCompressParams Params(std::int64_t set) const;
  double Weight(const std::vector<std::byte>& w, std::int64_t in, std::int64_t out,
                std::int64_t ins, std::int64_t outs) const {
    return LoadElement(dtype_, w.data(), OutIn() ? out * ins + in : in * outs + out);
  }
  Status CheckToken(std::int64_t token, const std::vector<std::byte>& got) const;

  // The project's seed shape: B=4, S=96, fp32.
  std::int64_t tokens_ = 384, model_dim_ = 256, rank_ = 48, heads_ = 4, k_dim_ = 32, v_dim_ = 32;
  Choice layout_{{"in-out", "out-in"}}, up_{{"apart", "packed"}}, path_{{"auto", "fused", "gemm"}};
  Choice launch_ = LaunchChoice();
  DType dtype_ = DType::kFP32;

  std::optional<Device> device_;
  std::vector<std::byte> hidden_, w_down_, w_up_k_, w_up_v_;  // of all sets
  DeviceBuffer hidden_rows_, w_down_matrix_, w_up_k_matrix_, w_up_v_matrix_, packed_, out_;
};

Status MlaCompressWorkload::Prepare(Device& device, Stream stream) {
  if (sets() > kMaxSets) {
    return InvalidArgument("--shape: T=" + std::to_string(tokens_) + " is too small to be cold");
  }
  device_ = device;
  std::mt19937_64 random(1);
  hidden_ = RandomElements(dtype_, sets() * tokens_ * model_dim_, random);
  w_down_ = RandomElements(dtype_, sets() * rank_ * model_dim_, random);
  w_up_k_ = RandomElements(dtype_, sets() * rank_ * heads_ * k_dim_, random);
  w_up_v_ = RandomElements(dtype_, sets() * rank_ * heads_ * v_dim_, random);
  for (const auto& [to, from] : {std::pair{&hidden_rows_, &hidden_},
                                 {&w_down_matrix_, &w_down_},
                                 {&w_up_k_matrix_, &w_up_k_},
                                 {&w_up_v_matrix_, &w_up_v_}}) {
    const Status copied = UploadTo(device, *from, stream, *to);
    if (!copied.ok()) return copied;
  }
  const auto allocate = [&](std::int64_t elements, DeviceBuffer& to) {
    Result<DeviceBuffer> made =
        device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(elements * Size()));
    if (made.ok()) to = *std::move(made);
    return made.status();
  };
  Status status = allocate(sets() * tokens_ * Outputs(), out_);
  if (status.ok() && Packed()) status = allocate(sets() * rank_ * Outputs(), packed_);
  for (std::int64_t set = 0; set < sets() && status.ok() && Packed(); ++set) {
    MlaCompressParams params = Params(set);
    const std::int64_t k = rank_ * heads_ * k_dim_ * Size(), v = rank_ * heads_ * v_dim_ * Size();
    params.w_up_k = static_cast<std::byte*>(w_up_k_matrix_.data()) + set * k;
    params.w_up_v = static_cast<std::byte*>(w_up_v_matrix_.data()) + set * v;
    params.w_up_k_stride = params.w_up_v_stride = 0;
    auto* const packed = static_cast<std::byte*>(packed_.data()) + set * (k + v);
    Status next = PackUpProjections(device, params, packed, stream);
    std::swap(status, next);
  }
  if (status.ok()) status = Warmup(device, Params(0), stream);
  return status.ok() ? device.Synchronize(stream) : status;
}

MlaCompressParams MlaCompressWorkload::Params(std::int64_t set) const {
  const auto at = [&](const DeviceBuffer& buffer, std::int64_t elements_per_set) {
    return static_cast<std::byte*>(buffer.data()) + set * elements_per_set * Size();
  };
  const std::int64_t k_row = heads_ * k_dim_;
  MlaCompressParams params;
  params.dtype = dtype_;
  params.num_tokens = tokens_;
  params.model_dim = static_cast<int>(model_dim_);
  params.rank = static_cast<int>(rank_);
  params.heads = static_cast<int>(heads_);
  params.k_dim = static_cast<int>(k_dim_);
  params.v_dim = static_cast<int>(v_dim_);
  params.layout = OutIn() ? WeightLayout::kOutIn : WeightLayout::kInOut;
  params.path = static_cast<MlaPath>(path_.value);
  params.dependent_launch = static_cast<DependentLaunch>(launch_.value);
  params.hidden = at(hidden_rows_, tokens_ * model_dim_);
  params.w_down = at(w_down_matrix_, rank_ * model_dim_);
  params.w_up_k = at(w_up_k_matrix_, rank_ * k_row);
  params.w_up_v = at(w_up_v_matrix_, rank_ * heads_ * v_dim_);
  if (Packed()) {
    params.w_up_k = at(packed_, rank_ * Outputs());
    params.w_up_v =
        static_cast<const std::byte*>(params.w_up_k) + (OutIn() ? rank_ * k_row : k_row) * Size();
    if (!OutIn()) params.w_up_k_stride = params.w_up_v_stride = Outputs();
  }
  params.k = at(out_, tokens_ * Outputs());
  params.v = static_cast<std::byte*>(params.k) + k_row * Size();
  params.k_token_stride = params.v_token_stride = Outputs();
  return params;
}

// Every output within the bound of docs/numerics.md, element by element, with the latent rounded
// once: u the type's rounding unit, e = 2^-24 that of the sums.
Status MlaCompressWorkload::CheckToken(std::int64_t token,
                                       const std::vector<std::byte>& got) const {
  const double u = RoundingUnit(dtype_), e = 0x1p-24;
  std::vector<double> latent, latent_error;
  for (std::int64_t r = 0; r < rank_; ++r) {
    double sum = 0, size = 0;
    for (std::int64_t i = 0; i < model_dim_; ++i) {
      const double term = LoadElement(dtype_, hidden_.data(), token * model_dim_ + i) *
                          Weight(w_down_, i, r, model_dim_, rank_);
      sum += term;
      size += std::abs(term);
    }
    latent.push_back(sum);
    latent_error.push_back(static_cast<double>(model_dim_ + 1) * e * size + u * std::abs(sum));
  }
  for (std::int64_t o = 0; o < Outputs(); ++o) {
    const bool is_k = o < heads_ * k_dim_;
    const std::int64_t out = is_k ? o : o - heads_ * k_dim_;
    const std::int64_t outs = heads_ * (is_k ? k_dim_ : v_dim_);
    double sum = 0, error = 0;
    for (std::int64_t r = 0; r < rank_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const double w = Weight(is_k ? w_up_k_ : w_up_v_, r, out, rank_, outs);
      sum += latent[at] * w;
      error += std::abs(w) * (latent_error[at] + static_cast<double>(rank_ + 1) * e *
                                                     (std::abs(latent[at]) + latent_error[at]));
    }
    const double bound = error + u * (std::abs(sum) + error);
    const double value = LoadElement(dtype_, got.data(), token * Outputs() + o);
    if (std::abs(value - sum) <= bound) continue;
    return CorruptData("mla-compress: output " + std::to_string(o) + " of token " +
                       std::to_string(token) + " is " + std::to_string(value) +
                       ", by the plain loop " + std::to_string(sum));
  }
  return Status::Ok();
}

// The first, the last, and tokens between them: all would take the host minutes.
Status MlaCompressWorkload::Check(Stream stream) {
  const auto bytes = static_cast<std::size_t>(tokens_ * Outputs() * Size());
  const Status poisoned = device_->Fill(out_.data(), 0xFF, bytes, stream);
  if (!poisoned.ok()) return poisoned;
  const Status launched = Launch(0, stream);
  if (!launched.ok()) return launched;
  const auto got = Download(*device_, out_, bytes, stream);
  if (!got.ok()) return got.status();
  const std::int64_t checked = std::min(tokens_, kCheckedTokens);
  for (std::int64_t i = 0; i < checked; ++i) {
    const Status same = CheckToken(checked == 1 ? 0 : i * (tokens_ - 1) / (checked - 1), *got);
    if (!same.ok()) return same;
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<Workload> MakeMlaCompressWorkload(bool hot) {
  return std::make_unique<MlaCompressWorkload>(hot);
}

}  // namespace lariat::tools
