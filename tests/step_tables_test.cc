// SPDX-License-Identifier: Apache-2.0
// BuildStepTables over many steps in a row, against arrays written out anew for each step.
#include <cstring>
#include <map>

#include "backend/backend.h"
#include "support/catch.h"
#include "support/device_vector.h"
#include "support/random.h"

namespace lariat {
namespace {

using testing::AvailableDevices;
using testing::DeviceVector;
using testing::Random;

struct Sequence {
  int row = 0;                      // of the resident tables
  std::int32_t length = 0;          // tokens so far
  std::vector<std::int32_t> table;  // block ids
  std::size_t sent = 0;             // entries already on the device
};

struct Entry {
  int sequence = 0;
  std::int32_t count = 0;
  std::vector<std::int32_t> positions;  // empty: the rows' own indices
};

constexpr std::int32_t kPoison = 0x5A5A5A5A;

// The device's arrays for a largest step, and the naive model of what they must hold.
class Tables {
 public:
  Tables(Device device, int block_size, int rows, std::int64_t stride, int max_tokens,
         int max_sequences)
      : device_(device),
        block_size_(block_size),
        stride_(stride),
        resident_(device, Words(static_cast<std::size_t>(rows * stride), kPoison)),
        slots_(device, std::vector<std::int64_t>(static_cast<std::size_t>(max_tokens), kPoison)),
        positions_(device, Words(static_cast<std::size_t>(max_tokens), kPoison)),
        cu_seqlens_(device, Words(static_cast<std::size_t>(max_sequences) + 1, kPoison)),
        seqused_(device, Words(static_cast<std::size_t>(max_sequences), kPoison)),
        block_table_(device, Words(static_cast<std::size_t>(max_sequences * stride), 0)),
        filled_(device, Words(static_cast<std::size_t>(max_sequences), 0)),
        fault_(device, {nullptr}) {}

  void Run(std::vector<Sequence>& sequences, const std::vector<Entry>& entries, int padded_tokens,
           int padded_sequences, FaultRecord* fault) {
    StepHeader header;
    header.num_sequences = static_cast<std::int32_t>(entries.size());
    header.padded_sequences = padded_sequences;
    header.padded_tokens = padded_tokens;
    header.fault = fault;
    std::vector<StepEntry> list(static_cast<std::size_t>(padded_sequences));
    Words words;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Sequence& sequence = sequences[static_cast<std::size_t>(entries[i].sequence)];
      StepEntry& e = list[i];
      e.resident_row = sequence.row;
      e.first_row = header.num_tokens;
      e.start = sequence.length;
      e.count = entries[i].count;
      e.delta_first = static_cast<std::int32_t>(sequence.sent);
      e.delta_count = static_cast<std::int32_t>(sequence.table.size() - sequence.sent);
      e.delta_word = static_cast<std::int32_t>(words.size());
      words.insert(words.end(), sequence.table.begin() + e.delta_first, sequence.table.end());
      sequence.sent = sequence.table.size();
      if (!entries[i].positions.empty()) {
        e.position_word = static_cast<std::int32_t>(words.size());
        words.insert(words.end(), entries[i].positions.begin(), entries[i].positions.end());
      }
      header.num_tokens += e.count;
    }
    std::vector<std::uint64_t> upload(
        (sizeof(header) + list.size() * sizeof(StepEntry) + words.size() * 4 + 7) / 8);
    auto* bytes = reinterpret_cast<std::byte*>(upload.data());
    std::memcpy(bytes, &header, sizeof(header));
    bytes += sizeof(header);
    if (!list.empty()) std::memcpy(bytes, list.data(), list.size() * sizeof(StepEntry));
    bytes += list.size() * sizeof(StepEntry);
    if (!words.empty()) std::memcpy(bytes, words.data(), words.size() * 4);

    // In device memory, in host memory, and in host memory from which the launch may take it along.
    DeviceVector<std::uint64_t> uploaded(device_, upload);
    Result<DeviceBuffer> pinned = device_.Allocate(MemoryKind::kPinnedHost, 8 * upload.size());
    REQUIRE(pinned.ok());
    std::memcpy(pinned->data(), upload.data(), 8 * upload.size());
    const int way = runs_++ % 3;
    StepTablesParams params;
    params.upload = way == 0 ? static_cast<const void*>(uploaded.data()) : pinned->data();
    params.host_bytes = way == 2 ? std::int64_t{8} * std::ssize(upload) : 0;
    params.header = header;
    params.block_size = block_size_;
    params.resident = resident_.data();
    params.table_stride = stride_;
    params.slots = slots_.data();
    params.positions = positions_.data();
    params.cu_seqlens = cu_seqlens_.data();
    params.seqused_k = seqused_.data();
    params.block_table = block_table_.data();
    params.filled = filled_.data();
    params.fault = fault_.data();
    const Status status = device_.backend().BuildStepTables(params, Stream{});
    INFO(status.ToString());
    REQUIRE(status.ok());
    Check(sequences, entries, padded_tokens, padded_sequences);
    CHECK(fault_.Read()[0] == fault);
    for (const Entry& entry : entries) {
      sequences[static_cast<std::size_t>(entry.sequence)].length += entry.count;
    }
  }

 private:
  using Words = std::vector<std::int32_t>;

  void Check(const std::vector<Sequence>& sequences, const std::vector<Entry>& entries,
             int padded_tokens, int padded_sequences) {
    std::vector<std::int64_t> slots(static_cast<std::size_t>(padded_tokens), -1);
    Words positions(static_cast<std::size_t>(padded_tokens), 0);
    Words cu_seqlens, seqused(static_cast<std::size_t>(padded_sequences), 0);
    Words table(static_cast<std::size_t>(padded_sequences * stride_), 0);
    std::size_t token = 0;
    for (std::size_t b = 0; b < entries.size(); ++b) {
      const Sequence& s = sequences[static_cast<std::size_t>(entries[b].sequence)];
      cu_seqlens.push_back(static_cast<std::int32_t>(token));
      seqused[b] = s.length + entries[b].count;
      for (std::int32_t i = 0; i < entries[b].count; ++i, ++token) {
        const std::int32_t n = s.length + i;
        const std::int64_t block = s.table[static_cast<std::size_t>(n / block_size_)];
        slots[token] = block * block_size_ + n % block_size_;
        positions[token] =
            entries[b].positions.empty() ? n : entries[b].positions[static_cast<std::size_t>(i)];
      }
      const auto used = static_cast<std::size_t>((seqused[b] + block_size_ - 1) / block_size_);
      std::copy_n(s.table.begin(), used, table.begin() + static_cast<std::int64_t>(b) * stride_);
    }
    cu_seqlens.resize(static_cast<std::size_t>(padded_sequences) + 1,
                      static_cast<std::int32_t>(token));

    CheckPrefix("slots", slots_.Read(), slots);
    CheckPrefix("positions", positions_.Read(), positions);
    CheckPrefix("cu_seqlens", cu_seqlens_.Read(), cu_seqlens);
    CheckPrefix("seqused_k", seqused_.Read(), seqused);
    CheckPrefix("block_table", block_table_.Read(), table);
  }

  // What lies behind the padded step stays as the last step left it.
  template <class T>
  void CheckPrefix(const char* what, const std::vector<T>& got, const std::vector<T>& want) {
    std::vector<T>& before = Before(what, got);
    INFO(what);
    std::copy(want.begin(), want.end(), before.begin());
    CHECK((got == before));
    before = got;
  }
  std::vector<std::int32_t>& Before(const char* what, const Words& got) {
    return before32_.try_emplace(what, got).first->second;
  }
  std::vector<std::int64_t>& Before(const char* what, const std::vector<std::int64_t>& got) {
    return before64_.try_emplace(what, got).first->second;
  }

  Device device_;
  int runs_ = 0;
  int block_size_;
  std::int64_t stride_;
  DeviceVector<std::int32_t> resident_;
  DeviceVector<std::int64_t> slots_;
  DeviceVector<std::int32_t> positions_, cu_seqlens_, seqused_, block_table_, filled_;
  DeviceVector<FaultRecord*> fault_;
  std::map<std::string, Words> before32_;
  std::map<std::string, std::vector<std::int64_t>> before64_;
};

// Grows a sequence's table to hold `tokens`; ids up to 2^30, so that slots pass 2^32.
void Grow(Random& random, Sequence& sequence, std::int32_t tokens, int block_size) {
  while (static_cast<std::int64_t>(sequence.table.size()) * block_size < tokens) {
    sequence.table.push_back(static_cast<std::int32_t>(random.Between(0, 1 << 30)));
  }
}

void RandomSteps(Device device, unsigned seed, int block_size, int max_sequences, int steps) {
  Random random(seed);
  const int rows = max_sequences + 2;
  const std::int64_t stride = 40;
  const int max_tokens = 96 + max_sequences;
  Tables tables(device, block_size, rows, stride, max_tokens, max_sequences);
  std::vector<Sequence> sequences(static_cast<std::size_t>(rows));
  for (int row = 0; row < rows; ++row) sequences[static_cast<std::size_t>(row)].row = row;
  FaultRecord records[2];
  for (int step = 0; step < steps; ++step) {
    std::vector<Entry> entries;
    int tokens = 0;
    for (int i = 0; i < rows && std::ssize(entries) < max_sequences; ++i) {
      Sequence& s = sequences[static_cast<std::size_t>((i + step) % rows)];
      if (random.Chance(40)) continue;
      const bool full = s.length + 40 > stride * block_size;
      if (full || random.Chance(10)) {  // a new sequence takes the row
        s.length = 0;
        s.table.clear();
        s.sent = 0;
      } else if (random.Chance(15) && s.length > 1) {  // cut back, its last block replaced
        s.length -= static_cast<std::int32_t>(random.Between(1, s.length - 1));
        s.table.resize(static_cast<std::size_t>(s.length / block_size));
        s.sent = std::min(s.sent, s.table.size());
      }
      Entry e;
      e.sequence = s.row;
      e.count = static_cast<std::int32_t>(random.Chance(60) ? 1 : random.Between(1, 30));
      if (s.length + e.count > stride * block_size || tokens + e.count > max_tokens) continue;
      // Sometimes a block more than the step needs.
      Grow(random, s, s.length + e.count + (random.Chance(20) ? block_size : 0), block_size);
      if (std::ssize(s.table) > stride) s.table.resize(static_cast<std::size_t>(stride));
      if (random.Chance(20)) {
        for (int p = 0; p < e.count; ++p) {
          e.positions.push_back(static_cast<std::int32_t>(random.Between(0, 1000)));
        }
      }
      tokens += e.count;
      entries.push_back(e);
    }
    const int padded_tokens = static_cast<int>(random.Between(tokens, max_tokens));
    const int padded_sequences =
        static_cast<int>(random.Between(static_cast<int>(entries.size()), max_sequences));
    INFO("step " << step << " on " << device.name());
    tables.Run(sequences, entries, padded_tokens, padded_sequences, &records[step % 2]);
  }
}

}  // namespace

TEST_CASE("step tables: random steps in a row leave no stale tails") {
  for (Device& device : AvailableDevices()) {
    RandomSteps(device, 1, 1, 5, 150);
    RandomSteps(device, 2, 4, 8, 150);
    RandomSteps(device, 3, 16, 3, 100);
    RandomSteps(device, 4, 6, 40, 60);
  }
}

TEST_CASE("step tables: lengths around a block's end") {  // K52, K53
  for (Device& device : AvailableDevices()) {
    Tables tables(device, 4, 1, 8, 16, 1);
    std::vector<Sequence> sequences(1);
    sequences[0].table = {10, 11, 12};
    for (const std::int32_t count : {3, 1, 1, 3, 1}) {  // to 3, 4, 5, 8, 9 tokens
      tables.Run(sequences, {{0, count, {}}}, 8, 1, nullptr);
    }
    CHECK(sequences[0].length == 9);
  }
}

TEST_CASE("step tables: a smaller batch after a larger one") {  // K167, K168
  for (Device& device : AvailableDevices()) {
    Tables tables(device, 16, 6, 8, 64, 4);
    std::vector<Sequence> sequences(6);
    Random random(5);
    for (int i = 0; i < 6; ++i) {
      sequences[static_cast<std::size_t>(i)].row = i;
      Grow(random, sequences[static_cast<std::size_t>(i)], 100, 16);
    }
    tables.Run(sequences, {{0, 3, {}}, {1, 6, {}}, {2, 11, {}}, {3, 11, {}}}, 31, 4, nullptr);
    tables.Run(sequences, {{4, 30, {}}, {5, 25, {}}}, 64, 4, nullptr);
    tables.Run(sequences, {}, 4, 4, nullptr);  // nothing but padding
    tables.Run(sequences, {{4, 1, {}}}, 1, 1, nullptr);
    tables.Run(sequences, {{0, 1, {7}}, {5, 1, {}}}, 64, 4, nullptr);
    tables.Run(sequences, {}, 0, 0, nullptr);
  }
}

TEST_CASE("step tables: a long prompt and a long table") {
  for (Device& device : AvailableDevices()) {
    Tables tables(device, 2, 2, 6000, 9000, 2);
    std::vector<Sequence> sequences(2);
    sequences[1].row = 1;
    Random random(6);
    Grow(random, sequences[0], 11000, 2);
    Grow(random, sequences[1], 500, 2);
    tables.Run(sequences, {{0, 8000, {}}, {1, 499, {}}}, 9000, 2, nullptr);
    tables.Run(sequences, {{1, 1, {}}, {0, 1, {}}}, 2, 2, nullptr);
    tables.Run(sequences, {{0, 2900, {}}}, 2900, 2, nullptr);
  }
}

}  // namespace lariat
