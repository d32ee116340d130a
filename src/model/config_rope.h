// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lariat/kv_cache.h"
#include "lariat/rope.h"
#include "model/config_fields.h"
#include "model/families.h"

namespace lariat::model {

// Reads the rotation rules of a config: rope_scaling or rope_parameters (one block, or one per kind
// of layer), and what stands beside it.
class RopeReader {
 public:
  // max_positions: of the config; 0: unknown.
  RopeReader(const Fields& config, const Family& family, std::int64_t max_positions);

  // The rule of layers of `kind` whose keys are head_dim wide. kSliding reads the family's rule for
  // local layers. head_dim_path: the field to blame for a width that cannot turn.
  RopeSpec Read(LayerKind kind, int head_dim, const std::string& head_dim_path) const;
  // The same of an MLA model, whose keys turn whole.
  RopeSpec ReadMla(int qk_rope_head_dim) const;

 private:
  struct Block;
  std::optional<Fields> BlockOf(LayerKind kind) const;
  double Theta(const std::optional<Fields>& block) const;
  double Partial(const std::optional<Fields>& block, std::string& path) const;
  void SetRotaryDim(const std::optional<Fields>& block, int head_dim,
                    const std::string& head_dim_path, RopeSpec& spec) const;
  void ReadBlock(const Fields& block, RopeSpec& spec) const;
  void ReadScaling(const Fields& block, RopeSpec& spec) const;
  std::int64_t OriginalPositions(const Fields& block, const RopeSpec& spec) const;
  void ReadMrope(const Fields& block, RopeSpec& spec) const;
  void Validate(const std::string& path, const RopeSpec& spec) const;
  RopeSpec Finish(const std::optional<Fields>& block, RopeSpec spec) const;

  const Fields& config_;
  const Family& family_;
  const std::int64_t max_positions_;
  std::string block_name_;       // empty: the config has none
  const Json* block_ = nullptr;  // null: none
  bool by_kind_ = false;         // block_ holds one block per kind of layer
};

}  // namespace lariat::model
