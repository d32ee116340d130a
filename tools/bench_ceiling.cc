// SPDX-License-Identifier: Apache-2.0
#include "bench_ceiling.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <random>
#include <span>

#include "bench_data.h"
#include "bench_product.h"

namespace lariat::tools {
namespace {

enum Kind : int { kCopy, kRead, kWrite, kNode, kSmallCopy, kGemm, kLinkDown, kLinkUp, kLinkBoth };

constexpr std::uint32_t kWritten = 0x9E3779B9;
constexpr std::int64_t kDefaultBytes = std::int64_t{256} << 20;

bool IsLink(int kind) { return kind >= kLinkDown; }

// One of the kinds above. Products and links are other workloads' launches.
class CeilingWorkload : public Workload {
 public:
  using Workload::Workload;

  std::string op() const override { return "ceiling"; }
  DType dtype() const override { return dtype_; }
  bool pdl() const override { return launch_.value != 0; }
  std::int64_t bytes() const override {
    switch (kind_.value) {
      case kCopy:
      case kSmallCopy: return 2 * bytes_;
      case kRead:
      case kWrite:
      case kLinkDown:
      case kLinkUp: return bytes_;
      case kLinkBoth: return 2 * bytes_;
      case kGemm: return 3 * size_ * size_ * static_cast<std::int64_t>(SizeOf(dtype_));
      default: return 0;
    }
  }
  std::int64_t flops() const override {
    return kind_.value == kGemm ? 2 * size_ * size_ * size_ : 0;
  }
  std::int64_t sets() const override { return 1; }
  bool capturable() const override { return !IsLink(kind_.value); }
  // The row is its own ceiling: what it reaches.
  bool is_ceiling() const override { return true; }
  bool multiplies() const override { return kind_.value == kGemm; }

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t i, Stream stream) override;
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"kind", &kind_},
            {"bytes", &bytes_, 4096, std::int64_t{1} << 36},
            {"size", &size_, 1, 65536},
            {"launch", &launch_},
            {"dtype", &dtype_}};
  }
  Status Complete() override {
    const int kind = kind_.value;
    const bool sized = kind == kGemm, moves = !sized && kind != kNode;
    const bool launches = kind == kNode || kind == kSmallCopy;
    if ((size_ >= 0 && !sized) || (bytes_ >= 0 && !moves) || (launch_.value != 0 && !launches)) {
      return InvalidArgument(std::string("--shape: kind=")
                                 .append(kind_.words[static_cast<std::size_t>(kind)])
                                 .append("; allowed: size with gemm, launch with node and "
                                         "small-copy, bytes with all others and small-copy"));
    }
    if (bytes_ < 0) bytes_ = !moves ? 0 : kind == kSmallCopy ? 4096 : kDefaultBytes;
    if (size_ < 0) size_ = sized ? 8192 : 0;
    if (bytes_ % 4096 != 0) {
      return InvalidArgument("--shape: bytes=" + std::to_string(bytes_) +
                             "; allowed: multiples of 4096");
    }
    if (!sized || dtype_ != DType::kFP64) return Status::Ok();
    return Unsupported("--shape: dtype=fp64; allowed: fp32, fp16, bf16");
  }
  double set_size() const override { return static_cast<double>(bytes()); }

 private:
  Status MakeProduct(Device& device, Stream stream);
  Status MakeLink(Device& device, Stream stream);
  Status CheckBytes(const DeviceBuffer& buffer, const std::vector<std::byte>& want, Stream stream);

  Choice kind_{
      {"copy", "read", "write", "node", "small-copy", "gemm", "link-down", "link-up", "link-both"}};
  Choice launch_ = LaunchChoice();
  std::int64_t bytes_ = -1, size_ = -1;  // -1: not given
  DType dtype_ = DType::kBF16;

  std::optional<Device> device_;
  std::unique_ptr<CeilingCalls> calls_;
  std::unique_ptr<Workload> inner_;  // of products and links
  std::vector<std::byte> data_;      // what is copied or read
  DeviceBuffer from_, to_, sums_;
};

// Again and again the same MiB: to make as many anew takes longer than all that is timed.
std::vector<std::byte> RandomBytes(std::size_t bytes) {
  std::mt19937_64 random(2);
  const std::size_t whole = std::size_t{1} << 20;
  std::vector<std::byte> data =
      RandomElements(DType::kFP32, static_cast<std::int64_t>(std::min(bytes, whole) / 4), random);
  data.resize(bytes);
  for (std::size_t at = whole; at < bytes; at += whole) {
    std::memcpy(&data[at], data.data(), std::min(whole, bytes - at));
  }
  return data;
}

Status CeilingWorkload::MakeProduct(Device& device, Stream stream) {
  if (device.kind() == BackendKind::kCpu && dtype_ != DType::kFP32) {
    return Unsupported("--shape: dtype=" + std::string(DTypeName(dtype_)) +
                       "; allowed on the CPU: fp32, in which CBLAS multiplies");
  }
  const Product product = {.rows = size_, .columns = size_, .inner = size_, .out_in = true};
  Result<std::unique_ptr<Workload>> way = FastestWay(device, product, dtype_, 1, stream);
  if (!way.ok()) return way.status();
  inner_ = *std::move(way);
  return inner_->Prepare(device, stream);
}

Status CeilingWorkload::MakeLink(Device& device, Stream stream) {
  const char* const ways[] = {"down", "up", "both"};
  inner_ = MakeSwapWorkload(hot());
  const Status shape = inner_->Configure("block=" + std::to_string(bytes_) +
                                         ",blocks=1,direction=" + ways[kind_.value - kLinkDown]);
  return shape.ok() ? inner_->Prepare(device, stream) : shape;
}

Status CeilingWorkload::Prepare(Device& device, Stream stream) {
  device_ = device;
  calls_ = device.kind() == BackendKind::kCuda ? MakeCudaCeilingCalls()
                                               : MakeCpuCeilingCalls(device.cpu_threads());
  if (kind_.value == kGemm) return MakeProduct(device, stream);
  if (IsLink(kind_.value)) return MakeLink(device, stream);
  if (kind_.value == kNode) return Status::Ok();
  const auto bytes = static_cast<std::size_t>(bytes_);
  if (kind_.value != kWrite) {
    data_ = RandomBytes(bytes);
    if (const Status s = UploadTo(device, data_, stream, from_); !s.ok()) return s;
  }
  if (kind_.value == kRead) {
    const std::vector<std::uint32_t> zeros(static_cast<std::size_t>(calls_->ReadSums(bytes_)));
    return UploadTo(device, zeros, stream, sums_);
  }
  Result<DeviceBuffer> to = device.Allocate(MemoryKind::kDevice, bytes);
  if (!to.ok()) return to.status();
  to_ = *std::move(to);
  const Status poisoned = device.Fill(to_.data(), 0xFF, bytes, stream);
  return poisoned.ok() ? device.Synchronize(stream) : poisoned;
}

Status CeilingWorkload::Launch(std::int64_t i, Stream stream) {
  const bool dependent = launch_.value != 0;
  switch (kind_.value) {
    case kCopy: return calls_->Copy(to_.data(), from_.data(), bytes_, false, stream);
    case kRead:
      return calls_->Read(from_.data(), bytes_, static_cast<std::uint32_t*>(sums_.data()), stream);
    case kWrite: return calls_->Write(to_.data(), bytes_, kWritten, stream);
    case kNode: return calls_->Nothing(dependent, stream);
    case kSmallCopy:  // there and back: each reads what the one before it wrote
      return i % 2 == 0 ? calls_->Copy(to_.data(), from_.data(), bytes_, dependent, stream)
                        : calls_->Copy(from_.data(), to_.data(), bytes_, dependent, stream);
    default: return inner_->Launch(i, stream);
  }
}

Status CeilingWorkload::CheckBytes(const DeviceBuffer& buffer, const std::vector<std::byte>& want,
                                   Stream stream) {
  const auto got = Download(*device_, buffer, want.size(), stream);
  if (!got.ok()) return got.status();
  if (std::memcmp(want.data(), got->data(), want.size()) == 0) return Status::Ok();
  const auto differs = std::mismatch(want.begin(), want.end(), got->begin()).first;
  return CorruptData("ceiling: byte " + std::to_string(differs - want.begin()) +
                     " is not what it should be");
}

Status CeilingWorkload::Check(Stream stream) {
  if (kind_.value == kNode) return Launch(0, stream);
  if (inner_ != nullptr) return inner_->Check(stream);
  if (const Status s = Launch(0, stream); !s.ok()) return s;
  std::vector<std::byte> want = std::move(data_);
  if (kind_.value == kWrite) {
    want.resize(static_cast<std::size_t>(bytes_));
    for (std::size_t i = 0; i < want.size(); i += 4) std::memcpy(&want[i], &kWritten, 4);
  }
  if (kind_.value != kRead) return CheckBytes(to_, want, stream);
  const auto got = Download(*device_, sums_, sums_.size(), stream);
  if (!got.ok()) return got.status();
  std::uint32_t sum = 0;
  for (const std::span<const std::byte> words :
       {std::span<const std::byte>(want), std::span(*got)}) {
    for (std::size_t i = 0; i < words.size(); i += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, words.data() + i, 4);
      sum ^= word;
    }
  }
  return sum == 0 ? Status::Ok() : CorruptData("ceiling: the words that were read are others");
}

}  // namespace

Status CopiesWorkload::Launch(std::int64_t i, Stream stream) {
  for (const BlockCopy& copy : copies_(i)) {
    const auto bytes = static_cast<std::int64_t>(copy.bytes);
    if (Status s = calls_->Copy(copy.dst, copy.src, bytes, false, stream); !s.ok()) return s;
  }
  return Status::Ok();
}

std::unique_ptr<Workload> MakeCeilingWorkload(bool hot) {
  return std::make_unique<CeilingWorkload>(hot);
}

std::string CopyCeilingShape(BackendKind backend) {
  const std::int64_t bytes = std::int64_t{1} << (backend == BackendKind::kCuda ? 30 : 28);
  return "kind=copy,bytes=" + std::to_string(bytes);
}

Result<double> MeasureCopyCeiling(Device& device, Stream stream) {
  CeilingWorkload copy(false);
  try {
    const std::unique_ptr<Timer> timer = MakeTimer(device);
    Status status = copy.Configure(CopyCeilingShape(device.kind()));
    if (status.ok()) status = copy.Prepare(device, stream);
    if (status.ok()) status = copy.Check(stream);
    if (!status.ok()) return status;
    const Result<double> seconds = MedianSeconds(*timer, copy, stream, 11);
    if (!seconds.ok()) return seconds;
    return static_cast<double>(copy.bytes()) / *seconds;
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "the copy ceiling: " + copy.NoRoom().message());
  }
}

#ifndef LARIAT_BENCH_CUDA
std::unique_ptr<CeilingCalls> MakeCudaCeilingCalls() { return nullptr; }
#endif

}  // namespace lariat::tools
