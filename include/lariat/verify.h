// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "lariat/status.h"
#include "lariat/types.h"

// Replays what a real model computed through KVCache and compares what is stored with what the
// model's own cache held. Part of lariat::session. docs/verify.md has the format of a recording.

namespace lariat {

// Where, and in which type, a recording is replayed.
struct VerifyOptions {
  BackendKind backend = BackendKind::kAuto;  // kNull stores nothing to compare: kInvalidArgument
  int device_ordinal = 0;
  DType dtype = DType::kFP32;  // of the cache: fp32, fp16, bf16
};

// One recorded tensor against what the cache stored, over all passes.
struct VerifiedTensor {
  std::string name;           // "l0.cache_k"; of MLA also "l0.attn_out"
  std::int64_t elements = 0;  // of the tensor
  std::int64_t compared = 0;  // over all passes, and MLA's ways to make rows
  double max_abs = 0;         // largest error; NaN where something compared was NaN
  double max_rel_rms = 0;     // largest error as a fraction of its row's RMS
  // Every element has a bound of its own (docs/numerics.md); this is the largest of them as a
  // fraction of the row's RMS. Where ok is false: that of the element furthest beyond its bound, so
  // that ok and max_rel_rms <= tolerance say the same.
  double tolerance = 0;
  bool ok = true;
  std::string worst;  // where, what and against what, for a person; empty when ok
};

// One replay of the recording.
struct VerifiedPass {
  std::string name;             // "one-call"
  std::int64_t steps = 0;       // of the cache
  std::int64_t hit_tokens = 0;  // found cached
};

// What was compared, and how near it came.
struct VerifyReport {
  BackendKind backend = BackendKind::kCpu;  // that ran
  std::string device;                       // its name
  std::string model;                        // the recording's name for it
  DType dtype = DType::kFP32;
  std::vector<VerifiedTensor> tensors;
  std::vector<VerifiedPass> passes;  // those that ran to their end
  std::vector<std::string> missing;  // tensors that should have been compared and were not
  std::vector<std::string> reasons;  // why, and what else went wrong
  bool ok = false;                   // all passes ran, all tensors are there and ok
};

// recording: the path of a .safetensors file. Each of its sequences is one of the cache's. Five
// passes: "one-call", "step", "odd-chunks", "small-blocks" and "shared-prefix". MLA layers store
// their rows from hidden states and weights, and from given rows, whichever are there; and attend
// to what MlaExpand makes of them.
// Windows: every row is stored; those that the recording kept are compared.
// Errors: kInvalidArgument (no such file; metadata or a tensor that contradicts the config, naming
//   tensor, shape and what is expected; options), kCorruptData (no safetensors file), those of
//   Device::Create, kResourceExhausted, kDeviceError. What the cache cannot store yet is no error:
//   it is missing.
Result<VerifyReport> VerifyRecording(const std::string& recording, const ModelConfig& model,
                                     const VerifyOptions& options = {});

}  // namespace lariat
