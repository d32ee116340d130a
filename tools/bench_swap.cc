// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>
#include <random>

#include "bench_data.h"
#include "bench_workload.h"

namespace lariat::tools {
namespace {

enum Direction : int { kDown, kUp, kBoth };

// Bytes of each direction where the number of blocks is not given.
constexpr std::int64_t kDefaultBytes = std::int64_t{256} << 20;

// Blocks of a device pool that go to pinned pages or come from there, in random order on both
// sides. Down and up have blocks, pages and streams of their own.
class SwapWorkload : public Workload {
 public:
  using Workload::Workload;
  ~SwapWorkload() override {
    if (!device_) return;
    for (const Event& event : {fork_, join_}) {
      if (event.handle != nullptr) device_->DestroyEvent(event);
    }
    if (up_stream_) device_->DestroyStream(*up_stream_);
  }

  std::string op() const override { return "swap"; }
  DType dtype() const override { return DType::kBF16; }
  // Over the link: what is read on one side and written on the other counts once.
  std::int64_t bytes() const override { return (direction_.value == kBoth ? 2 : 1) * SideBytes(); }
  std::int64_t flops() const override { return 0; }
  std::int64_t sets() const override { return 1; }
  // The batched copy call refuses a capture.
  bool capturable() const override { return false; }
  std::unique_ptr<Workload> MakeCeiling() override;

  Status Prepare(Device& device, Stream stream) override;
  Status Launch(std::int64_t, Stream stream) override {
    return Run(down_.copies, up_.copies, stream);
  }
  // All blocks of a direction as one copy.
  Status LaunchWhole(Stream stream) { return Run(down_.whole, up_.whole, stream); }
  Status Check(Stream stream) override;

 protected:
  std::vector<ShapeField> fields() override {
    return {{"block", &block_, 1, 1 << 30},
            {"blocks", &blocks_, 1, 1 << 24},
            {"direction", &direction_}};
  }
  double set_size() const override {
    return (direction_.value == kBoth ? 2.0 : 1.0) * static_cast<double>(block_) *
           static_cast<double>(blocks_);
  }
  Status Complete() override {
    if (blocks_ < 0) blocks_ = std::max<std::int64_t>(1, kDefaultBytes / block_);
    return Status::Ok();
  }

 private:
  // What one direction copies.
  struct Side {
    DeviceBuffer pool, pages;
    std::vector<BlockCopy> copies;  // block by block
    std::vector<BlockCopy> whole;   // the same bytes at once
  };

  std::int64_t SideBytes() const { return block_ * blocks_; }
  Status MakeSide(bool down, std::mt19937_64& random, Stream stream, Side& side);
  Status Run(std::span<const BlockCopy> down, std::span<const BlockCopy> up, Stream stream);
  Status CheckSide(bool down, const Side& side, Stream stream);

  std::int64_t block_ = 2 << 20, blocks_ = -1;
  Choice direction_{{"down", "up", "both"}};

  std::optional<Device> device_;
  std::optional<Stream> up_stream_;
  Event fork_, join_;
  std::vector<std::byte> data_;  // of either direction's source
  Side down_, up_;
};

// The ceiling: the workload's bytes in one copy each way.
class WholeCopies : public Workload {
 public:
  explicit WholeCopies(SwapWorkload& swap) : Workload(swap.hot()), swap_(swap) {}
  std::string op() const override { return swap_.op(); }
  DType dtype() const override { return swap_.dtype(); }
  std::int64_t bytes() const override { return swap_.bytes(); }
  std::int64_t flops() const override { return 0; }
  std::int64_t sets() const override { return 1; }
  bool capturable() const override { return false; }
  Status Prepare(Device&, Stream) override { return Status::Ok(); }
  Status Launch(std::int64_t, Stream stream) override { return swap_.LaunchWhole(stream); }
  Status Check(Stream) override { return Status::Ok(); }

 protected:
  std::vector<ShapeField> fields() override { return {}; }
  Status Complete() override { return Status::Ok(); }
  double set_size() const override { return 0; }

 private:
  SwapWorkload& swap_;
};

std::unique_ptr<Workload> SwapWorkload::MakeCeiling() {
  return std::make_unique<WholeCopies>(*this);
}

Status SwapWorkload::MakeSide(bool down, std::mt19937_64& random, Stream stream, Side& side) {
  const auto bytes = static_cast<std::size_t>(SideBytes());
  Result<DeviceBuffer> pool = device_->Allocate(MemoryKind::kDevice, bytes);
  if (!pool.ok()) return pool.status();
  Result<DeviceBuffer> pages = device_->Allocate(MemoryKind::kPinnedHost, bytes);
  if (!pages.ok()) return pages.status();
  side.pool = *std::move(pool);
  side.pages = *std::move(pages);
  const DeviceBuffer& from = down ? side.pool : side.pages;
  const DeviceBuffer& to = down ? side.pages : side.pool;
  const auto at = [&](const DeviceBuffer& buffer, std::int32_t block) {
    return static_cast<std::byte*>(buffer.data()) + block * block_;
  };
  const std::vector<std::int32_t> sources = Permutation(blocks_, random);
  const std::vector<std::int32_t> targets = Permutation(blocks_, random);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    side.copies.push_back(
        {at(to, targets[i]), at(from, sources[i]), static_cast<std::size_t>(block_)});
  }
  side.whole.push_back({to.data(), from.data(), bytes});
  return device_->CopyToDevice(from.data(), data_.data(), bytes, stream);
}

Status SwapWorkload::Prepare(Device& device, Stream stream) {
  device_ = device;
  Result<Stream> up = device.CreateStream();
  if (!up.ok()) return up.status();
  up_stream_ = *up;
  for (Event* event : {&fork_, &join_}) {
    Result<Event> made = device.CreateEvent();
    if (!made.ok()) return made.status();
    *event = *made;
  }
  std::mt19937_64 random(1);
  data_ = RandomElements(DType::kBF16, (SideBytes() + 1) / 2, random);
  if (direction_.value != kUp) {
    if (const Status s = MakeSide(true, random, stream, down_); !s.ok()) return s;
  }
  if (direction_.value != kDown) {
    if (const Status s = MakeSide(false, random, stream, up_); !s.ok()) return s;
  }
  return device.Synchronize(stream);
}

// Both directions at once, each on its stream; the launch ends when both have ended.
Status SwapWorkload::Run(std::span<const BlockCopy> down, std::span<const BlockCopy> up,
                         Stream stream) {
  if (direction_.value == kDown) return device_->Copy(down, stream);
  if (direction_.value == kUp) return device_->Copy(up, stream);
  Status status = device_->Record(fork_, stream);
  if (status.ok()) status = device_->Wait(*up_stream_, fork_);
  if (status.ok()) status = device_->Copy(down, stream);
  if (status.ok()) status = device_->Copy(up, *up_stream_);
  if (status.ok()) status = device_->Record(join_, *up_stream_);
  if (status.ok()) status = device_->Wait(stream, join_);
  return status;
}

Status SwapWorkload::CheckSide(bool down, const Side& side, Stream stream) {
  const auto got = Download(*device_, down ? side.pages : side.pool,
                            static_cast<std::size_t>(SideBytes()), stream);
  if (!got.ok()) return got.status();
  const auto* const from = static_cast<const std::byte*>((down ? side.pool : side.pages).data());
  const auto* const to = static_cast<const std::byte*>((down ? side.pages : side.pool).data());
  for (const BlockCopy& copy : side.copies) {
    const std::ptrdiff_t source = static_cast<const std::byte*>(copy.src) - from;
    const std::ptrdiff_t target = static_cast<const std::byte*>(copy.dst) - to;
    if (std::memcmp(got->data() + target, data_.data() + source, copy.bytes) == 0) continue;
    return CorruptData("swap: block " + std::to_string(target / block_) + " of the copies " +
                       (down ? "down" : "up") + " differs from what was there");
  }
  return Status::Ok();
}

Status SwapWorkload::Check(Stream stream) {
  const auto bytes = static_cast<std::size_t>(SideBytes());
  if (direction_.value != kUp) std::memset(down_.pages.data(), 0xFF, bytes);
  if (direction_.value != kDown) {
    if (const Status s = device_->Fill(up_.pool.data(), 0xFF, bytes, stream); !s.ok()) return s;
  }
  if (const Status s = Launch(0, stream); !s.ok()) return s;
  if (direction_.value != kUp) {
    if (const Status s = CheckSide(true, down_, stream); !s.ok()) return s;
  }
  if (direction_.value != kDown) {
    if (const Status s = CheckSide(false, up_, stream); !s.ok()) return s;
  }
  data_ = {};
  return Status::Ok();
}

}  // namespace

std::unique_ptr<Workload> MakeSwapWorkload(bool hot) { return std::make_unique<SwapWorkload>(hot); }

}  // namespace lariat::tools
