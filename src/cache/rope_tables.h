// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/device.h"
#include "lariat/rope.h"

namespace lariat::cache {

// One rope's cos and sin on the device: [positions, rotary_dim / 2] each, fp32.
struct RopeTable {
  DeviceBuffer cos;
  DeviceBuffer sin;
};

// Makes and uploads the tables of all ropes, positions 0 to `positions` - 1; empty buffers on a
// device without memory. Blocks until the uploads are done. kDynamic is worked out for a sequence
// of `positions` tokens, so that every key of the cache turns by one table.
Result<std::vector<RopeTable>> MakeRopeTables(Device& device, std::span<const RopeSpec> ropes,
                                              std::int64_t positions);

}  // namespace lariat::cache
