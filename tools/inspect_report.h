// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "lariat/types.h"

namespace lariat::tools {

// What `lariat inspect` was asked.
struct InspectQuery {
  DType dtype = DType::kBF16;
  std::optional<std::int64_t> memory;  // bytes
  int block_size = 0;                  // tokens; 0: 16, or 64 for MLA
  std::vector<std::int64_t> lengths;   // of sequences, for `memory`; empty: some powers of two
  bool rope = false;                   // print table rows
  std::vector<std::int64_t> positions;
  std::int64_t length = -1;  // chooses the table; -1: the largest position and one
};

// One rope's frequencies and rows.
struct RopeRows {
  RopeFrequencies frequencies;
  double softmax_scale_factor = 1.0;
  std::vector<std::int64_t> positions;
  std::vector<float> cos, sin;  // [positions, pairs]
};

// What a memory of some size holds.
struct MemoryFit {
  int block_size = 0;
  std::int64_t bytes_per_block = 0;  // a cache's: of the layers of one group
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;  // windows not counted
  // How many of that length at once, at rest, windows counted where that is known.
  std::vector<std::int64_t> lengths, sequences;
  bool counts_windows = false;
};

bool IsMla(const ModelConfig& model);

// Errors: kInvalidArgument: the model has no RoPE.
Result<RopeRows> MakeRopeRows(const ModelConfig& model, const RopeSpec& spec,
                              const InspectQuery& query);
MemoryFit FitMemory(const ModelConfig& model, const InspectQuery& query);

// The JSON document of docs/models.md, and a table for a person.
std::string InspectJson(const ModelConfig& model, const InspectQuery& query,
                        const std::optional<RopeRows>& rope);
std::string InspectText(const ModelConfig& model, const InspectQuery& query,
                        const std::optional<RopeRows>& rope);

// All presets.
std::string PresetsJson();
std::string PresetsText();

}  // namespace lariat::tools
