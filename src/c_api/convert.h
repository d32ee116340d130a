// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/lariat.h"

// C structs to the library's, and back.

namespace lariat::c_api {

inline constexpr DType kDTypes[] = {DType::kBF16, DType::kFP16, DType::kFP32};
inline constexpr LayerKind kLayerKinds[] = {LayerKind::kFull, LayerKind::kSliding,
                                            LayerKind::kChunked, LayerKind::kMla,
                                            LayerKind::kLinear};
// A value's place in one of the two.
std::int32_t NumberOf(DType dtype);
std::int32_t NumberOf(LayerKind kind);

// Errors of all: kInvalidArgument, kUnsupported, naming the field as the C struct does. What a
// field may be beyond that is left to the calls that take the result.
Status Convert(const lariat_cache_config* from, CacheConfig& to);
Status Convert(const lariat_append_inputs* from, AppendInputs& to);
Status Convert(const lariat_mla_append_inputs* from, MlaAppendInputs& to);
Status Convert(const lariat_mla_expand_inputs* from, MlaExpandInputs& to);
Status Convert(const lariat_mla_compress_inputs* from, MlaCompressInputs& to);

// Options, and what they point to. Not to be copied.
struct Options {
  OpenOptions options;
  std::vector<Retention> retention;
};
// Null: the defaults.
Status Convert(const lariat_open_options* from, Options& to);

lariat_footprint ToC(const MemoryFootprint& from);
lariat_stats ToC(const Stats& from);

}  // namespace lariat::c_api
