// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/device.h"
#include "lariat/rope.h"

namespace lariat::cache {

// One rope's cos and sin on the device: [positions, rotary_dim / 2] each, fp32; two of those in
// a row where the rope depends on the sequence's length: first for up to the original length, then
// for `positions` tokens.
struct RopeTable {
  DeviceBuffer cos;
  DeviceBuffer sin;
};

// Makes and uploads the tables of all ropes, positions 0 to `positions` - 1; empty buffers on a
// device without memory. Blocks until the uploads are done.
Result<std::vector<RopeTable>> MakeRopeTables(Device& device, std::span<const RopeSpec> ropes,
                                              std::int64_t positions);

}  // namespace lariat::cache
