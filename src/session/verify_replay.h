// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lariat/device.h"
#include "lariat/kv_cache.h"
#include "lariat/status.h"
#include "session/recording.h"

namespace lariat::session {

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

  // One layer's rows of a step; returns when they are stored.
  //   layer: index into recording().layers, which is the cache's layer
  //   batch: the recording's sequence of each of step.rows()
  Status Append(KVCache& cache, const Step& step, std::size_t layer,
                std::span<const std::int64_t> batch);

 private:
  // Rows of K or of V on their way to the device. On the CPU, host and device are one.
  struct Stage {
    DeviceBuffer host, device;
  };
  struct LayerInputs {
    std::size_t k_row = 0, v_row = 0;  // bytes
    std::vector<std::byte> k, v;       // [B, T] rows
  };

  ReplayInputs(Device device, const Recording& recording, DType dtype)
      : device_(std::move(device)), recording_(recording), dtype_(dtype) {}
  Status Make();
  void Gather(const Step& step, std::span<const std::int64_t> batch,
              const std::vector<std::byte>& rows, std::size_t row_bytes, void* out) const;
  Result<const void*> Upload(Stage& stage, std::size_t bytes);

  Device device_;
  const Recording& recording_;
  const DType dtype_;
  Stream stream_;
  bool own_stream_ = false;
  std::vector<LayerInputs> layers_;
  Stage k_, v_;
};

// How a pass cuts the tokens into steps.
enum class ReplayChunks : std::uint8_t {
  kAll,       // one step
  kOne,       // a token a step
  kOdd,       // 1, 3, 5, ... tokens, every sequence out of step with the others
  kRecorded,  // the first call's tokens, then one a step, as the model ran
};

// One pass through a cache of its own.
class Replay {
 public:
  // Errors: those of KVCache::Create.
  static Result<Replay> Create(ReplayInputs& inputs, int block_size, Reuse reuse);

  // Every sequence on its own, from its first token.
  Status Run(ReplayChunks chunks);
  // For every sequence one that computes the first `shared` tokens, and one that finds their whole
  // blocks cached and computes the rest; the latter are the pass's sequences.
  // Errors: kCorruptData also when the hit is not that.
  Status RunShared(std::int64_t shared);

  // What the last `kept` rows of sequence b hold in one layer, widened.
  Status ReadBack(std::size_t layer, std::int64_t b, std::vector<double>& k,
                  std::vector<double>& v);

  std::int64_t steps() const { return steps_; }
  std::int64_t hit_tokens() const { return cache_.GetStats().hit_tokens; }

 private:
  Replay(ReplayInputs& inputs, KVCache cache) : inputs_(&inputs), cache_(std::move(cache)) {}
  Result<std::vector<SequenceId>> OpenAll(std::int64_t tokens);
  // One step with counts[b] tokens of each sequence, 0: none.
  //   hit: tokens that each must find cached
  Status RunStep(std::span<const SequenceId> sequences, std::span<const std::int64_t> counts,
                 std::int64_t hit);
  Status Store(Step& step, std::span<const std::int64_t> batch, std::int64_t hit);

  ReplayInputs* inputs_;
  KVCache cache_;
  std::vector<SequenceId> sequences_;
  std::int64_t steps_ = 0;
};

}  // namespace lariat::session
