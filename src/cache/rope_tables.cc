// SPDX-License-Identifier: Apache-2.0
#include "cache/rope_tables.h"

#include <algorithm>

#include "backend/backend.h"

namespace lariat::cache {

namespace {

constexpr std::int64_t kChunk = 4096;  // positions worked out and uploaded at once

// Writes the rows of one table from row `row` of the buffers on.
Status FillTable(Device& device, const RopeFrequencies& frequencies, std::int64_t positions,
                 std::int64_t row, RopeTable& table) {
  const std::size_t width = frequencies.inv_freq.size();
  std::vector<float> cos(kChunk * width);
  std::vector<float> sin(kChunk * width);
  for (std::int64_t first = 0; first < positions; first += kChunk) {
    const std::int64_t count = std::min(kChunk, positions - first);
    FillRopeTable(frequencies, first, count, cos, sin);
    const std::size_t at = static_cast<std::size_t>(row + first) * width;
    const std::size_t bytes = static_cast<std::size_t>(count) * width * 4;
    const Stream stream;
    if (Status s = device.CopyToDevice(static_cast<float*>(table.cos.data()) + at, cos.data(),
                                       bytes, stream);
        !s.ok()) {
      return s;
    }
    if (Status s = device.CopyToDevice(static_cast<float*>(table.sin.data()) + at, sin.data(),
                                       bytes, stream);
        !s.ok()) {
      return s;
    }
    // The host arrays are filled again in the next round.
    if (Status s = device.Synchronize(stream); !s.ok()) return s;
  }
  return {};
}

Result<RopeTable> MakeTable(Device& device, const RopeSpec& spec, std::int64_t positions) {
  // A table of the original length, and, where that is not long enough, one of the full length.
  const bool two = RopeTableFor(spec, positions) != 0;
  RopeTable table;
  for (DeviceBuffer* buffer : {&table.cos, &table.sin}) {
    const std::int64_t bytes = (two ? 2 : 1) * positions * (spec.rotary_dim / 2) * 4;
    Result<DeviceBuffer> allocated =
        device.Allocate(MemoryKind::kDevice, static_cast<std::size_t>(bytes));
    if (!allocated.ok()) return allocated.status();
    *buffer = *std::move(allocated);
  }
  for (int number = 0; number < (two ? 2 : 1); ++number) {
    const Result<RopeFrequencies> frequencies =
        ComputeRopeFrequencies(spec, number == 0 ? 0 : positions);
    if (!frequencies.ok()) return frequencies.status();
    if (Status s = FillTable(device, *frequencies, positions, number * positions, table); !s.ok()) {
      return s;
    }
  }
  return table;
}

}  // namespace

Result<std::vector<RopeTable>> MakeRopeTables(Device& device, std::span<const RopeSpec> ropes,
                                              std::int64_t positions) {
  std::vector<RopeTable> tables(ropes.size());
  if (!device.backend().has_memory()) return tables;
  for (std::size_t i = 0; i < ropes.size(); ++i) {
    Result<RopeTable> made = MakeTable(device, ropes[i], positions);
    if (!made.ok()) return made.status();
    tables[i] = *std::move(made);
  }
  return tables;
}

}  // namespace lariat::cache
