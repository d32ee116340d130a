// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "model/config_fields.h"
#include "model/families.h"

namespace lariat::model {

// Nothing real comes near.
inline constexpr std::int64_t kMaxHeads = 65536;
inline constexpr std::int64_t kMaxHeadDim = 65536;

// Heads and widths of the layers of one kind.
struct Heads {
  int kv_heads = 0;
  int k_dim = 0;
  int v_dim = 0;
  std::string k_dim_path;
};

// Reads how many KV heads there are and how wide heads are; everything at once, on construction. An
// error is left in the report, upon which the values mean nothing.
class HeadReader {
 public:
  HeadReader(const Fields& config, const Family& family, std::int64_t hidden_size, int layers,
             int q_heads);

  int kv_heads() const { return kv_heads_; }                            // the most of any layer
  const std::vector<int>& kv_by_layer() const { return kv_by_layer_; }  // empty: all alike
  const MlaDims& mla() const { return mla_; }
  const Heads& common() const { return common_; }  // of most layers; widths 0 with MLA
  // Sliding layers may have heads and widths of their own (swa_*), full ones too (global_*).
  Heads Of(LayerKind kind) const;

 private:
  void ReadKvHeads();
  void ReadKvHeadsByLayer(std::string_view name);
  void CheckKvHeads(const std::string& path, std::int64_t kv_heads) const;
  void ReadMla();
  void ReadHeadDims();

  const Fields& text_;
  const Family& family_;
  const ConfigReport& report_;
  const std::int64_t hidden_size_;
  const int layers_;
  const int q_heads_;
  int kv_heads_ = 0;
  std::vector<int> kv_by_layer_;
  MlaDims mla_;
  Heads common_;
};

}  // namespace lariat::model
