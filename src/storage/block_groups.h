// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lariat/cache_config.h"

namespace lariat::storage {

// Layers that share one block table.
struct BlockGroup {
  LayerKind kind = LayerKind::kFull;
  int window = 0;           // as LayerSpec::window
  std::vector<int> layers;  // ascending
  std::int64_t bytes_per_token = 0;
};

// Puts layers into groups whose blocks are to be of one size: that of the first group's, or of a
// single layer of another kind that is larger.
//
// The first group keeps all tokens: it has all layers of full attention, or else all MLA layers, or
// else, where every layer has a window, those of the widest one. The layers of another kind or
// window become as many groups as it takes for none to be larger than the first; the last one of
// them may be smaller. So what every token of a sequence takes is never padded, and what is padded
// is only taken by the tokens of a window.
//
// layers: with this rank's heads; not empty
std::vector<BlockGroup> MakeGroups(std::span<const LayerSpec> layers, DType dtype);

}  // namespace lariat::storage
