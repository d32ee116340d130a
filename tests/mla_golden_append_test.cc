// SPDX-License-Identifier: Apache-2.0
// What MlaAppend stores from recorded hidden states, against the caches of a published
// implementation.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lariat/ops.h"
#include "support/catch.h"
#include "support/device_vector.h"
#include "support/mla_recording.h"

namespace lariat {
namespace {

using reference::ProductSum;
using reference::Row;
using testing::AvailableDevices;
using testing::Checked;
using testing::DeviceVector;
using testing::kHalfRecording;
using testing::kInterleavedRecording;
using testing::kU;
using testing::Layer;
using testing::Paged;
using testing::RecordedBound;
using testing::Recording;
using testing::Tensor;
using testing::Turned;
using testing::TurnedRow;
using testing::U;

// What MlaAppend stores from hidden, as [B * T, rank + rope].
Tensor Append(Device device, const Recording& recording, const Layer& layer) {
  const MlaDims& dims = recording.model.mla;
  const std::int64_t width = dims.kv_lora_rank + dims.qk_rope_head_dim;
  const Paged paged(layer, width);
  const std::size_t pairs = recording.frequencies.inv_freq.size();
  std::vector<float> cos(U(layer.length) * pairs), sin(cos.size());
  FillRopeTable(recording.frequencies, 0, layer.length, cos, sin);
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < layer.tokens(); ++row) {
    slots.push_back(paged.Slot(row / layer.length, row % layer.length));
    positions.push_back(static_cast<std::int32_t>(row % layer.length));
  }
  DeviceVector<float> hidden(device, layer.hidden.values), w_down(device, layer.w_down.values);
  DeviceVector<float> w_norm(device, layer.w_norm.values), cache(device, paged.Poison());
  DeviceVector<float> cos_in(device, cos), sin_in(device, sin);
  DeviceVector<std::int64_t> slots_in(device, slots);
  DeviceVector<std::int32_t> positions_in(device, positions);
  MlaAppendParams p;
  p.in_dtype = p.dtype = DType::kFP32;
  p.style = recording.rope().style;
  p.num_tokens = layer.tokens();
  p.rank = dims.kv_lora_rank;
  p.rope_dim = p.rotary_dim = dims.qk_rope_head_dim;
  p.hidden = hidden.data();
  p.model_dim = static_cast<int>(layer.hidden.columns);
  p.w_down = w_down.data();
  p.norm_weight = w_norm.data();
  p.eps = static_cast<float>(recording.eps);
  p.slots = slots_in.data();
  p.positions = positions_in.data();
  p.cos = cos_in.data();
  p.sin = sin_in.data();
  p.num_positions = layer.length;
  p.cache = cache.data();
  p.num_slots = paged.blocks() * Paged::kBlockSize;
  p.block_size = Paged::kBlockSize;
  const Status status = MlaAppend(device, p, Stream{});
  INFO(status.ToString());
  REQUIRE(status.ok());
  const std::vector<float> stored = cache.Read();
  Tensor rows{{}, width};
  for (const std::int64_t slot : slots) {
    const auto from = stored.begin() + slot * width;
    rows.values.insert(rows.values.end(), from, from + width);
  }
  return rows;
}

// A stored latent is c = x w / r, with r the root of the mean square of the x and eps. Each x is a
// sum that may be off by its bound; they move 1 / r by at most sum |x| bound / sum x^2 of it; and
// the norm itself rounds at most 16 times on either side (the recording's ran in fp32), 32 units.
Row LatentBounds(const Row& x, const Row& x_bound, const Row& recorded) {
  double squares = 0, moved = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    squares += x[i] * x[i];
    moved += std::fabs(x[i]) * x_bound[i];
  }
  Row bounds;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    bounds.push_back(std::fabs(recorded[i]) *
                     (x_bound[i] / std::fabs(x[i]) + moved / squares + 32 * kU));
  }
  return bounds;
}

double CheckRows(const std::string& stem) {
  const Recording recording(stem);
  const int rank = recording.model.mla.kv_lora_rank, rope = recording.model.mla.qk_rope_head_dim;
  double worst = 0;
  for (Device& device : AvailableDevices()) {
    for (const Layer& layer : recording.layers) {
      INFO(stem << " on " << device.name());
      const Tensor stored = Append(device, recording, layer);
      for (std::int64_t row = 0; row < layer.tokens(); ++row) {
        Row down, bound;
        for (int i = 0; i < rank + rope; ++i) {
          ProductSum sum;
          for (std::int64_t j = 0; j < layer.hidden.columns; ++j) {
            sum.Add(layer.hidden.At(row, j), layer.w_down.At(i, j));
          }
          down.push_back(sum.value);
          bound.push_back(RecordedBound(sum));
        }
        const Row latent_bounds = LatentBounds(down, bound, layer.latent.Of(row, 0, rank));
        for (int i = 0; i < rank; ++i) {
          Checked(std::fabs(stored.At(row, i) - layer.latent.At(row, i)), latent_bounds[U(i)],
                  worst);
        }
        const TurnedRow k_pe = Turned(recording, {down.begin() + rank, down.end()},
                                      {bound.begin() + rank, bound.end()}, row % layer.length);
        for (int i = 0; i < rope; ++i) {
          Checked(std::fabs(stored.At(row, rank + i) - layer.k_pe.At(row, i)), k_pe.bound[U(i)],
                  worst);
        }
      }
    }
  }
  return worst;
}

TEST_CASE("Own MLA recordings: MlaAppend from hidden stores their caches") {
  double worst = 0;
  for (const std::string& stem : testing::OwnMlaRecordings()) {
    worst = std::max(worst, CheckRows(stem));
  }
  CAPTURE(worst);
  CHECK(worst >= 0.05);
}

TEST_CASE("Public MLA recordings with yarn: MlaAppend from hidden stores their caches") {
  if (!testing::HasGolden()) LARIAT_SKIP("golden/deepseek_v3_mla* are absent");
  const double worst = std::max(CheckRows(kInterleavedRecording), CheckRows(kHalfRecording));
  CAPTURE(worst);
  CHECK(worst >= 0.05);
}

}  // namespace
}  // namespace lariat
