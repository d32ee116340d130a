// SPDX-License-Identifier: Apache-2.0
// Offsets past 2^31 elements and 2^32 bytes: sparse mappings on the CPU, real memory on CUDA.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lariat/ops.h"
#include "reference/append_rope_ref.h"
#include "support/compare.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F32;
using testing::AvailableDevices;
using testing::DeviceVector;
using testing::Random;

// A call whose rows land far apart in one allocation.
struct FarCall {
  const char* name;
  std::int64_t block_stride;  // elements
  int block_size;
  std::int64_t row_stride;
  std::vector<std::int64_t> slots;
};

// Writes one token per slot and reads each row back from where it must lie; the rows where a 32-bit
// offset would land must still be poison.
void RunFar(Device device, const FarCall& call) {
  constexpr int kDim = 8, kHeads = 2;
  const auto offset = [&](std::int64_t slot) {
    return slot / call.block_size * call.block_stride + slot % call.block_size * call.row_stride;
  };
  std::int64_t last = 0;
  for (const std::int64_t slot : call.slots) last = std::max(last, slot);
  const std::int64_t blocks = last / call.block_size + 1;
  const std::int64_t elements = offset(blocks * call.block_size - 1) + kDim * kHeads;
  INFO(device.name() << ": " << call.name << ", " << elements << " elements");
  REQUIRE(elements > (std::int64_t{1} << 31));

  Result<DeviceBuffer> pool =
      device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(elements) * 2);
  if (!pool.ok()) LARIAT_SKIP("too little memory for a pool past 2^32 bytes");
  auto* base = static_cast<std::uint16_t*>(pool->data());
  const std::uint16_t poison = 0x7F55;
  std::vector<std::int64_t> wrapped;  // where 32-bit elements or bytes would put the rows
  for (const std::int64_t slot : call.slots) {
    for (const std::int64_t at :
         {offset(slot) % (std::int64_t{1} << 31), offset(slot) * 2 % (std::int64_t{1} << 32) / 2}) {
      const auto hits = [&](std::int64_t other) { return std::abs(offset(other) - at) < 16; };
      if (!std::any_of(call.slots.begin(), call.slots.end(), hits)) wrapped.push_back(at);
    }
  }
  for (const std::int64_t at : wrapped) {
    REQUIRE(device.CopyToDevice(base + at, &poison, 2, Stream{}).ok());
    REQUIRE(device.Synchronize(Stream{}).ok());
  }

  Random random(3);
  const auto tokens = static_cast<std::int64_t>(call.slots.size());
  const auto k = random.Numbers<B16>(tokens * kHeads * kDim);
  const auto cos = random.Numbers<F32>(kDim / 2), sin = random.Numbers<F32>(kDim / 2);
  DeviceVector<std::uint16_t> k_in(device, k);
  DeviceVector<std::uint32_t> cos_in(device, cos), sin_in(device, sin);
  DeviceVector<std::int64_t> slots(device, call.slots);
  DeviceVector<std::int32_t> positions(
      device, std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 0));
  Result<DeviceBuffer> v_cache = device.Allocate(
      MemoryKind::kDevice, static_cast<std::size_t>(blocks * call.block_size * kHeads * kDim) * 2);
  REQUIRE(v_cache.ok());

  AppendRopeParams p;
  p.num_tokens = tokens;
  p.kv_heads = kHeads;
  p.k_dim = p.v_dim = p.rotary_dim = kDim;
  p.k = p.v = k_in.data();
  p.slots = slots.data();
  p.positions = positions.data();
  p.cos = reinterpret_cast<const float*>(cos_in.data());
  p.sin = reinterpret_cast<const float*>(sin_in.data());
  p.num_positions = 1;
  p.k_cache = base;
  p.v_cache = v_cache->data();
  p.num_slots = blocks * call.block_size;
  p.block_size = call.block_size;
  p.k_block_stride = call.block_stride;
  p.k_row_stride = call.row_stride;
  REQUIRE(AppendRope(device, p, Stream{}).ok());

  std::vector<long double> c, s;
  for (int i = 0; i < kDim / 2; ++i) {
    c.push_back(F32::Decode(cos[static_cast<std::size_t>(i)]));
    s.push_back(F32::Decode(sin[static_cast<std::size_t>(i)]));
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = call.slots[static_cast<std::size_t>(t)];
    std::vector<std::uint16_t> row(kDim * kHeads);
    REQUIRE(device.CopyToHost(row.data(), base + offset(slot), row.size() * 2, Stream{}).ok());
    REQUIRE(device.Synchronize(Stream{}).ok());
    std::vector<reference::Expected<B16>> expected;
    for (int head = 0; head < kHeads; ++head) {
      const auto turned = reference::RotatedHead<B16, B16>(k.data() + (t * kHeads + head) * kDim,
                                                           kDim, kDim, RopeStyle::kHalf, c, s);
      expected.insert(expected.end(), turned.begin(), turned.end());
    }
    testing::CheckElements<B16>("row of slot " + std::to_string(slot), expected, row);
  }
  for (const std::int64_t at : wrapped) {
    std::uint16_t word = 0;
    REQUIRE(device.CopyToHost(&word, base + at, 2, Stream{}).ok());
    REQUIRE(device.Synchronize(Stream{}).ok());
    INFO("element " << at);
    CHECK(word == poison);
  }
}

// MlaAppend: tokens read 2^30 elements apart, their rows stored as far apart as the slots say.
void RunFarMla(Device device, const FarCall& call) {
  constexpr int kRank = 8, kRope = 8, kWidth = kRank + kRope;
  constexpr std::int64_t kTokenStride = std::int64_t{1} << 30;
  const auto offset = [&](std::int64_t slot) {
    return slot / call.block_size * call.block_stride + slot % call.block_size * call.row_stride;
  };
  const std::int64_t slots_end =
      (*std::max_element(call.slots.begin(), call.slots.end()) / call.block_size + 1) *
      call.block_size;
  const auto tokens = static_cast<std::int64_t>(call.slots.size());
  const std::int64_t read = (tokens - 1) * kTokenStride + kWidth;
  const std::int64_t stored = offset(slots_end - 1) + kWidth;
  INFO(device.name() << ": " << call.name << ", " << stored << " elements");
  REQUIRE(read > (std::int64_t{1} << 31));
  REQUIRE(stored > (std::int64_t{1} << 31));
  Result<DeviceBuffer> from =
      device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(read) * 2);
  Result<DeviceBuffer> to =
      device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(stored) * 2);
  if (!from.ok() || !to.ok()) LARIAT_SKIP("too little memory for pools past 2^32 bytes");
  auto* const input = static_cast<std::uint16_t*>(from->data());
  auto* const cache = static_cast<std::uint16_t*>(to->data());

  Random random(5);
  std::vector<std::vector<std::uint16_t>> rows;
  for (std::int64_t t = 0; t < tokens; ++t) {
    rows.push_back(random.Numbers<B16>(kWidth));
    REQUIRE(device.CopyToDevice(input + t * kTokenStride, rows.back().data(), 2 * kWidth, Stream{})
                .ok());
    REQUIRE(device.Synchronize(Stream{}).ok());
  }
  DeviceVector<std::int64_t> slots(device, call.slots);
  MlaAppendParams p;
  p.num_tokens = tokens;
  p.rank = kRank;
  p.rope_dim = kRope;
  p.c_kv = input;
  p.k_pe = input + kRank;
  p.c_kv_stride = p.k_pe_stride = kTokenStride;
  p.slots = slots.data();
  p.cache = cache;
  p.num_slots = slots_end;
  p.block_size = call.block_size;
  p.block_stride = call.block_stride;
  p.row_stride = call.row_stride;
  REQUIRE(MlaAppend(device, p, Stream{}).ok());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<std::size_t>(t);
    std::vector<std::uint16_t> row(kWidth);
    REQUIRE(
        device.CopyToHost(row.data(), cache + offset(call.slots[at]), 2 * kWidth, Stream{}).ok());
    REQUIRE(device.Synchronize(Stream{}).ok());
    CHECK(row == rows[at]);
  }
}

// A reserved range whose pages repeat one small file, but for its last piece and the piece around
// the middle: an output of many GiB that costs a few MiB.
class RepeatedMemory {
 public:
  RepeatedMemory(std::size_t pieces, std::size_t own) : bytes_(pieces * kPiece) {
    const int file = memfd_create("repeated", 0);
    REQUIRE(file >= 0);
    REQUIRE(ftruncate(file, 3 * kPiece) == 0);
    memory_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory_ != MAP_FAILED);
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t part = i + 1 == pieces ? 2 : (i == own ? 1 : 0);
      void* at = mmap(static_cast<char*>(memory_) + i * kPiece, kPiece, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(part * kPiece));
      REQUIRE(at != MAP_FAILED);
    }
    close(file);
  }
  ~RepeatedMemory() { munmap(memory_, bytes_); }
  std::uint16_t* data() const { return static_cast<std::uint16_t*>(memory_); }
  static constexpr std::size_t kPiece = std::size_t{4} << 20;

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

struct BigUpdate {
  static constexpr int kHeads = 8, kDim = 512;
  static constexpr std::int64_t kRow = kHeads * kDim;
  // out: 2 x (2^30 + 2 rows of slack) elements of 2 bytes.
  static constexpr std::int64_t kLength = (std::int64_t{1} << 30) / kRow + 2048;
  static constexpr std::int64_t kHalf = kLength * kRow;
};

// Puts one token into the last row; checks it, its neighbour and the same rows of V.
void CheckBigUpdate(Device device, const std::uint16_t* cache, std::uint16_t* out,
                    std::uint16_t cache_word) {
  using Big = BigUpdate;
  Random random(4);
  const auto k = random.Numbers<B16>(Big::kRow), v = random.Numbers<B16>(Big::kRow);
  DeviceVector<std::uint16_t> k_new(device, k), v_new(device, v);
  const auto table = random.Numbers<F32>(2);
  const std::int64_t last = Big::kLength - 1;
  // Two columns wide, so that a table of every position stays small.
  std::vector<std::uint32_t> tables(static_cast<std::size_t>(Big::kLength), 0);
  tables[static_cast<std::size_t>(last)] = table[0];
  DeviceVector<std::uint32_t> cos(device, tables);
  tables[static_cast<std::size_t>(last)] = table[1];
  DeviceVector<std::uint32_t> sin(device, tables);
  DeviceVector<std::int32_t> positions(device, {static_cast<std::int32_t>(last)});
  RopeUpdateParams p;
  p.dtype = DType::kBF16;
  p.batch = p.new_tokens = 1;
  p.cache_len = Big::kLength;
  p.heads = Big::kHeads;
  p.head_dim = Big::kDim;
  p.rotary_dim = 2;
  p.k_new = k_new.data();
  p.v_new = v_new.data();
  p.cos = cos.data();
  p.sin = sin.data();
  p.cache_k = p.cache_v = cache;
  p.positions = positions.data();
  p.out = out;
  const Status status = RopeUpdate(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());

  const auto read = [&](std::int64_t at) {
    std::vector<std::uint16_t> row(Big::kRow);
    REQUIRE(device.CopyToHost(row.data(), out + at, row.size() * 2, Stream{}).ok());
    REQUIRE(device.Synchronize(Stream{}).ok());
    return row;
  };
  std::vector<reference::Expected<B16>> turned;
  for (int head = 0; head < Big::kHeads; ++head) {
    const auto row = reference::RotatedHead<B16, B16>(
        k.data() + head * Big::kDim, Big::kDim, 2, RopeStyle::kInterleaved, {F32::Decode(table[0])},
        {F32::Decode(table[1])});
    turned.insert(turned.end(), row.begin(), row.end());
  }
  testing::CheckElements<B16>("last row of K", turned, read(last * Big::kRow));
  CHECK(read(Big::kHalf + last * Big::kRow) == v);
  const std::vector<std::uint16_t> old(Big::kRow, cache_word);
  CHECK(read((last - 1) * Big::kRow) == old);
  CHECK(read(Big::kHalf + (last - 1) * Big::kRow) == old);
}

}  // namespace

TEST_CASE("large offsets: appends past 2^31 elements and 2^32 bytes") {
  const std::vector<FarCall> calls = {
      // K43: 64000 blocks of 65536 elements; block 32768 is the first past 2^31.
      {"blocks of 65536", 65536, 16, 16, {32767 * 16, 32768 * 16 + 3, 63999 * 16 + 15, 5}},
      // K44: row stride 2^30: row 4 wraps to row 0 in 32 bits.
      {"row stride 2^30", std::int64_t{1} << 33, 8, std::int64_t{1} << 30, {4, 2, 3, 0}},
      // K45: a packed pool of many layers; block 2065 is the last below 2^31.
      {"block stride 1039680", 1039680, 16, 16, {2065 * 16, 2066 * 16 + 1, 4200 * 16, 16}},
      // K46: K seen through a buffer that it shares with V.
      {"row stride 4096", 4096, 1, 4096, {524287, 524288, 1048577, 1}},
      // A block size that is no power of two.
      {"blocks of 48 rows", 1048576, 48, 16, {2047 * 48 + 47, 2048 * 48 + 1, 4097 * 48 + 30}},
  };
  for (Device& device : AvailableDevices()) {
    for (const FarCall& call : calls) RunFar(device, call);
  }
}

TEST_CASE("large offsets: MlaAppend past 2^31 elements and 2^32 bytes") {
  const std::vector<FarCall> calls = {
      {"blocks of 65536", 65536, 16, 16, {32768 * 16 + 3, 63999 * 16 + 15, 5}},
      {"row stride 2^30", std::int64_t{1} << 33, 8, std::int64_t{1} << 30, {4, 2, 0}},
      // Rows of 17 elements, which are stored one by one.
      {"odd strides", 1048579, 48, 17, {2047 * 48 + 47, 2049 * 48 + 1, 4097 * 48 + 30}},
  };
  for (Device& device : AvailableDevices()) {
    for (const FarCall& call : calls) RunFarMla(device, call);
  }
}

TEST_CASE("large offsets: RopeUpdate past 2^31 elements and 2^32 bytes on the CPU") {
  using Big = BigUpdate;
  Result<Device> device = Device::Create(BackendKind::kCpu);
  REQUIRE(device.ok());
  constexpr std::size_t kPiece = RepeatedMemory::kPiece / 2;  // elements
  static_assert(Big::kHalf % kPiece == 0);
  const std::size_t half = Big::kHalf / kPiece;
  RepeatedMemory cache(half, half), out(2 * half, half - 1);
  std::fill_n(cache.data() + Big::kHalf - kPiece, kPiece, std::uint16_t{0x4321});
  CheckBigUpdate(*device, cache.data(), out.data(), 0x4321);
}

TEST_CASE("large offsets: RopeUpdate past 2^31 elements and 2^32 bytes on CUDA") {
  using Big = BigUpdate;
  Result<Device> device = Device::Create(BackendKind::kCuda);
  if (!device.ok()) LARIAT_SKIP("no CUDA device");
  Result<DeviceBuffer> cache = device->Allocate(MemoryKind::kDevice, Big::kHalf * 2);
  Result<DeviceBuffer> out = device->Allocate(MemoryKind::kDevice, Big::kHalf * 4);
  if (!cache.ok() || !out.ok()) LARIAT_SKIP("too little device memory");
  REQUIRE(device->Fill(cache->data(), 0x43, cache->size(), Stream{}).ok());
  REQUIRE(device->Fill(out->data(), 0xFF, out->size(), Stream{}).ok());
  CheckBigUpdate(*device, static_cast<std::uint16_t*>(cache->data()),
                 static_cast<std::uint16_t*>(out->data()), 0x4343);
}

}  // namespace lariat
