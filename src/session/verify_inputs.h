// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lariat/device.h"
#include "lariat/kv_cache.h"
#include "lariat/status.h"
#include "session/recording.h"
#include "session/verify_bounds.h"

namespace lariat::session {

// To the storage type, rounded to nearest even; and back.
std::vector<std::byte> Narrow(const std::vector<double>& values, DType dtype);
void Widen(const std::vector<std::byte>& bytes, DType dtype, std::vector<double>& values);

// A layer of the cache. An MLA layer of the recording whose rows can be made in both ways is two.
struct ReplayLayer {
  std::size_t recorded = 0;  // index into Recording::layers
  LatentSource source = LatentSource::kRows;
};
std::vector<ReplayLayer> ReplayLayersOf(const Recording& recording);

// Keys and values that were made of one sequence's latents.
struct ExpandedRows {
  std::vector<double> k;  // [T, heads, nope + rope]
  std::vector<double> v;  // [T, heads, v]
};

// The inputs of a recording in the cache's type, and the memory in which steps take them.
class ReplayInputs {
 public:
  // Errors: kResourceExhausted, kDeviceError.
  static Result<std::unique_ptr<ReplayInputs>> Create(Device device, const Recording& recording,
                                                      DType dtype);
  ~ReplayInputs();
  ReplayInputs(const ReplayInputs&) = delete;
  ReplayInputs& operator=(const ReplayInputs&) = delete;

  const Recording& recording() const { return recording_; }
  Device& device() { return device_; }
  DType dtype() const { return dtype_; }
  Stream stream() const { return stream_; }
  // The cache's layers, in order.
  const std::vector<ReplayLayer>& layers() const { return layers_; }
  const RecordedLayer& Recorded(std::size_t layer) const {
    return recording_.layers[layers_[layer].recorded];
  }

  // One layer's rows of a step; returns when they are stored.
  //   batch: the recording's sequence of each of step.rows()
  Status Append(KVCache& cache, const Step& step, std::size_t layer,
                std::span<const std::int64_t> batch);

  // Keys and values of an MLA layer with attention to compare, of those sequences that are whole
  // with this step.
  //   out: [B], those sequences' are filled
  Status Expand(KVCache& cache, const Step& step, std::size_t layer,
                std::span<const std::int64_t> batch, std::span<ExpandedRows> out);

 private:
  // Rows on their way to the device. On the CPU, host and device are one.
  struct Stage {
    DeviceBuffer host, device;
  };
  // [B, T] rows.
  struct Rows {
    std::vector<std::byte> bytes;
    std::size_t row = 0;  // bytes
  };
  struct LayerInputs {
    Rows k, v;                          // MLA: k is hidden, or [c_kv | k_pe]
    DType dtype = DType::kFP32;         // of them
    DeviceBuffer w_down, norm, w_kv_b;  // MLA; none where not needed
  };

  ReplayInputs(Device device, const Recording& recording, DType dtype)
      : device_(std::move(device)), recording_(recording), dtype_(dtype) {}
  Status Make();
  Status MakeMla(const ReplayLayer& layer, LayerInputs& inputs);
  Result<DeviceBuffer> ToDevice(const std::vector<double>& values, DType dtype);
  Status MakeStage(Stage& stage, std::size_t bytes);
  // Moves the step's rows to the device.
  Result<const void*> Take(Stage& stage, const Rows& rows, const Step& step,
                           std::span<const std::int64_t> batch);
  Status AppendMla(KVCache& cache, const Step& step, std::size_t layer,
                   std::span<const std::int64_t> batch);
  Status ReadExpanded(const RecordedMla& mla, std::span<const std::int32_t> cu_tokens,
                      std::span<const std::int64_t> batch, std::span<ExpandedRows> out);

  Device device_;
  const Recording& recording_;
  const DType dtype_;
  Stream stream_;
  bool own_stream_ = false;
  std::vector<ReplayLayer> layers_;
  std::vector<LayerInputs> inputs_;  // of layers_
  Stage k_, v_;
  DeviceBuffer cu_tokens_, expanded_k_, expanded_v_;
};

}  // namespace lariat::session
