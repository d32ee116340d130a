// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.h"

#include <algorithm>
#include <optional>

#include "c_api/structs.h"

namespace lariat::c_api {

namespace {

// What a field that is 0 stands for.
template <class T>
T Or(T value, T standard) {
  return value == T{} ? standard : value;
}

template <class E, std::size_t N>
std::int32_t PlaceOf(E value, const E (&choices)[N]) {
  return static_cast<std::int32_t>(std::find(choices, choices + N, value) - choices);
}

std::optional<double> Given(double value) {
  return value == 0.0 ? std::nullopt : std::optional<double>(value);
}

Status ConvertLayer(const lariat_layer& from, LayerSpec& to) {
  to.kv_heads = from.kv_heads;
  to.k_dim = from.k_dim;
  to.v_dim = from.v_dim;
  to.rope = from.rope;
  to.window = from.window;
  return Choose("layers.kind", from.kind, kLayerKinds, to.kind);
}

Status ConvertFactors(std::string_view name, const double* from, int count,
                      std::vector<double>& to) {
  if (from == nullptr) return Status::Ok();
  const auto factors = Span(name, from, count);
  if (!factors.ok()) return factors.status();
  to.assign(factors->begin(), factors->end());
  return Status::Ok();
}

Status ConvertRope(const lariat_rope& from, RopeSpec& to) {
  constexpr RopeType kTypes[] = {RopeType::kDefault,     RopeType::kLinear, RopeType::kDynamic,
                                 RopeType::kYarn,        RopeType::kLlama3, RopeType::kLongrope,
                                 RopeType::kProportional};
  constexpr RopeStyle kStyles[] = {RopeStyle::kHalf, RopeStyle::kInterleaved,
                                   RopeStyle::kInterleavedToHalf};
  constexpr MropeLayout kLayouts[] = {MropeLayout::kSectioned, MropeLayout::kInterleaved};
  const RopeSpec standard;
  to.rotary_dim = from.rotary_dim;
  to.theta = Or(from.theta, standard.theta);
  to.factor = Or(from.factor, standard.factor);
  to.original_max_position_embeddings = from.original_max_position_embeddings;
  to.low_freq_factor = Or(from.low_freq_factor, standard.low_freq_factor);
  to.high_freq_factor = Or(from.high_freq_factor, standard.high_freq_factor);
  to.beta_fast = Or(from.beta_fast, standard.beta_fast);
  to.beta_slow = Or(from.beta_slow, standard.beta_slow);
  to.truncate = from.no_truncate == 0;
  to.attention_factor = Given(from.attention_factor);
  to.mscale = Given(from.mscale);
  to.mscale_all_dim = Given(from.mscale_all_dim);
  to.turned_dim = from.turned_dim;
  if (from.num_mrope_sections < 0 || from.num_mrope_sections > 4) {
    return InvalidArgument(std::string("ropes.num_mrope_sections is ")
                               .append(std::to_string(from.num_mrope_sections))
                               .append("; allowed are 0 to 4"));
  }
  to.mrope_sections.assign(from.mrope_sections, from.mrope_sections + from.num_mrope_sections);
  Status status = CheckReserved("ropes", from.reserved);
  if (status.ok()) status = Choose("ropes.type", from.type, kTypes, to.type);
  if (status.ok()) status = Choose("ropes.style", from.style, kStyles, to.style);
  if (status.ok()) {
    status = Choose("ropes.mrope_layout", from.mrope_layout, kLayouts, to.mrope_layout);
  }
  if (status.ok()) {
    status =
        ConvertFactors("ropes.short_factor", from.short_factor, from.num_factors, to.short_factor);
  }
  if (status.ok()) {
    status =
        ConvertFactors("ropes.long_factor", from.long_factor, from.num_factors, to.long_factor);
  }
  return status;
}

Status ChooseAll(const lariat_cache_config& from, CacheConfig& to) {
  constexpr BackendKind kBackends[] = {BackendKind::kAuto, BackendKind::kCpu, BackendKind::kCuda,
                                       BackendKind::kNull};
  constexpr Layout kLayouts[] = {Layout::kBlockMajor, Layout::kLayerMajor};
  constexpr Order kOrders[] = {Order::kNHD, Order::kHND};
  constexpr Reuse kReuses[] = {Reuse::kBlock, Reuse::kNone, Reuse::kToken};
  constexpr EvictionPolicy kEvictions[] = {EvictionPolicy::kLru, EvictionPolicy::kPriority};
  constexpr WritePolicy kWrites[] = {WritePolicy::kBack, WritePolicy::kThrough,
                                     WritePolicy::kAfterHits};
  Status status = Choose("dtype", from.dtype, kDTypes, to.dtype);
  if (status.ok()) status = Choose("backend", from.backend, kBackends, to.backend);
  if (status.ok()) status = Choose("layout", from.layout, kLayouts, to.layout);
  if (status.ok()) status = Choose("order", from.order, kOrders, to.order);
  if (status.ok()) status = Choose("reuse", from.reuse, kReuses, to.reuse);
  if (status.ok()) status = Choose("eviction", from.eviction, kEvictions, to.eviction);
  if (status.ok()) status = Choose("host_write", from.host_write, kWrites, to.host.write);
  return status;
}

}  // namespace

std::int32_t NumberOf(DType dtype) { return PlaceOf(dtype, kDTypes); }
std::int32_t NumberOf(LayerKind kind) { return PlaceOf(kind, kLayerKinds); }

Status Convert(const lariat_cache_config* caller, CacheConfig& to) {
  lariat_cache_config from;
  Status status = Read("config", caller, from);
  if (!status.ok()) return status;
  status = ForEach("layers", from.layers, from.num_layers, [&](const lariat_layer& layer) {
    return ConvertLayer(layer, to.layers.emplace_back());
  });
  if (!status.ok()) return status;
  status = ForEach("ropes", from.ropes, from.num_ropes, [&](const lariat_rope& rope) {
    return ConvertRope(rope, to.ropes.emplace_back());
  });
  if (!status.ok()) return status;
  const CacheConfig standard;
  to.shard = {from.shard_rank, Or(from.shard_size, standard.shard.size)};
  to.device_ordinal = from.device_ordinal;
  to.cpu_threads = Or(from.cpu_threads, standard.cpu_threads);
  to.memory.num_blocks = from.num_blocks;
  to.memory.bytes = from.bytes;
  to.memory.unlimited = from.unlimited != 0;
  to.block_size = Or(from.block_size, standard.block_size);
  to.max_pinned_blocks = from.max_pinned_blocks;
  to.max_steps_in_flight = Or(from.max_steps_in_flight, standard.max_steps_in_flight);
  to.max_sequences = Or(from.max_sequences, standard.max_sequences);
  to.max_tokens_per_sequence = from.max_tokens_per_sequence;
  to.max_tokens_per_step = Or(from.max_tokens_per_step, standard.max_tokens_per_step);
  to.host.num_blocks = from.host_num_blocks;
  to.host.bytes = from.host_bytes;
  to.host.write_after_hits = Or(from.host_write_after_hits, standard.host.write_after_hits);
  to.host.clean_blocks = from.host_clean_blocks;
  to.reader_arrays = from.reader_arrays != 0;
  to.memory.caller_memory = from.caller_memory;
  to.memory.caller_bytes = from.caller_bytes;
  to.max_events = from.max_events;
  return ChooseAll(from, to);
}

Status Convert(const lariat_open_options* caller, Options& to) {
  if (caller == nullptr) return Status::Ok();
  lariat_open_options from;
  Status status = Read("options", caller, from);
  if (!status.ok()) return status;
  if (from.salt == nullptr && from.salt_size != 0) return InvalidArgument("options.salt: null");
  if (from.adapter == nullptr && from.adapter_size != 0) {
    return InvalidArgument("options.adapter: null");
  }
  to.options.salt = {static_cast<const char*>(from.salt), from.salt_size};
  to.options.adapter = {static_cast<const char*>(from.adapter), from.adapter_size};
  const auto keys = Span("options.extra_keys", from.extra_keys, from.num_extra_keys);
  if (!keys.ok()) return keys.status();
  to.options.extra_keys = *keys;
  to.options.max_length = from.max_length;
  const auto add = [&](const lariat_retention& retention) {
    to.retention.push_back({.first_token = retention.first_token,
                            .last_token = retention.last_token,
                            .priority = retention.priority,
                            .ttl_ms = retention.ttl_ms});
    return Status::Ok();
  };
  status = ForEach("options.retention", from.retention, from.num_retention, add);
  to.options.retention = to.retention;
  return status.ok() ? CheckReserved("options", from.reserved) : status;
}

}  // namespace lariat::c_api
