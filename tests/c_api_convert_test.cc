// SPDX-License-Identifier: Apache-2.0
// Each field of a C struct arrives in the field it is named after: all are set, to values of their
// own.
#include <cstring>
#include <vector>

#include "c_api/convert.h"
#include "support/catch.h"

namespace lariat {
namespace {

using c_api::Convert;

template <class T>
T Struct() {
  T made = {};
  made.struct_size = sizeof(T);
  return made;
}

const int kPlaces[16] = {};
const void* Place(int i) { return &kPlaces[i]; }
void* MutablePlace(int i) { return const_cast<int*>(&kPlaces[i]); }

TEST_CASE("C API: a configuration arrives whole", "[c_api]") {
  const double short_factor[] = {1.5, 2.5}, long_factor[] = {3.5, 4.5};
  auto rope = Struct<lariat_rope>();
  rope.type = LARIAT_ROPE_LONGROPE;
  rope.style = LARIAT_INTERLEAVED_TO_HALF;
  rope.rotary_dim = 4;
  rope.theta = 1.0;
  rope.factor = 2.0;
  rope.original_max_position_embeddings = 3;
  rope.low_freq_factor = 4.0;
  rope.high_freq_factor = 5.0;
  rope.beta_fast = 6.0;
  rope.beta_slow = 7.0;
  rope.attention_factor = 8.0;
  rope.mscale = 9.0;
  rope.mscale_all_dim = 10.0;
  rope.short_factor = short_factor;
  rope.long_factor = long_factor;
  rope.num_factors = 2;
  rope.no_truncate = 1;
  rope.turned_dim = 11;
  rope.mrope_layout = LARIAT_MROPE_INTERLEAVED;
  rope.num_mrope_sections = 3;
  for (int i = 0; i < 3; ++i) rope.mrope_sections[i] = 12 + i;
  const lariat_layer layers[] = {{sizeof(lariat_layer), LARIAT_LAYER_CHUNKED, 1, 2, 3, 4, 5},
                                 {sizeof(lariat_layer), LARIAT_LAYER_LINEAR, 6, 7, 8, -1, 9}};
  auto config = Struct<lariat_cache_config>();
  config.dtype = LARIAT_FP16;
  config.layers = layers;
  config.num_layers = 2;
  config.ropes = &rope;
  config.num_ropes = 1;
  config.shard_rank = 20;
  config.shard_size = 21;
  config.backend = LARIAT_BACKEND_NULL;
  config.device_ordinal = 22;
  config.num_blocks = 23;
  config.bytes = 24;
  config.unlimited = 1;
  config.block_size = 25;
  config.layout = LARIAT_LAYOUT_LAYER_MAJOR;
  config.order = LARIAT_ORDER_HND;
  config.reuse = LARIAT_REUSE_TOKEN;
  config.eviction = LARIAT_EVICT_PRIORITY;
  config.max_pinned_blocks = 26;
  config.max_steps_in_flight = 27;
  config.max_sequences = 28;
  config.max_tokens_per_sequence = 29;
  config.max_tokens_per_step = 30;
  config.host_num_blocks = 31;
  config.host_bytes = 32;
  config.host_write = LARIAT_WRITE_AFTER_HITS;
  config.host_write_after_hits = 33;
  config.host_clean_blocks = 34;
  config.reader_arrays = 1;
  config.cpu_threads = 36;
  config.caller_memory = &config;
  config.caller_bytes = 35;

  CacheConfig to;
  REQUIRE(Convert(&config, to).ok());
  RopeSpec want;
  want.type = RopeType::kLongrope;
  want.style = RopeStyle::kInterleavedToHalf;
  want.rotary_dim = 4;
  want.theta = 1.0;
  want.factor = 2.0;
  want.original_max_position_embeddings = 3;
  want.low_freq_factor = 4.0;
  want.high_freq_factor = 5.0;
  want.beta_fast = 6.0;
  want.beta_slow = 7.0;
  want.truncate = false;
  want.attention_factor = 8.0;
  want.mscale = 9.0;
  want.mscale_all_dim = 10.0;
  want.short_factor = {1.5, 2.5};
  want.long_factor = {3.5, 4.5};
  want.turned_dim = 11;
  want.mrope_sections = {12, 13, 14};
  want.mrope_layout = MropeLayout::kInterleaved;
  CHECK(to.ropes == std::vector{want});
  CHECK(to.layers == std::vector<LayerSpec>{{LayerKind::kChunked, 1, 2, 3, 4, 5},
                                            {LayerKind::kLinear, 6, 7, 8, -1, 9}});
  CHECK(to.dtype == DType::kFP16);
  CHECK(to.shard.rank == 20);
  CHECK(to.shard.size == 21);
  CHECK(to.backend == BackendKind::kNull);
  CHECK(to.device_ordinal == 22);
  CHECK(to.memory.num_blocks == 23);
  CHECK(to.memory.bytes == 24);
  CHECK(to.memory.unlimited);
  CHECK(to.block_size == 25);
  CHECK(to.layout == Layout::kLayerMajor);
  CHECK(to.order == Order::kHND);
  CHECK(to.reuse == Reuse::kToken);
  CHECK(to.eviction == EvictionPolicy::kPriority);
  CHECK(to.max_pinned_blocks == 26);
  CHECK(to.max_steps_in_flight == 27);
  CHECK(to.max_sequences == 28);
  CHECK(to.max_tokens_per_sequence == 29);
  CHECK(to.max_tokens_per_step == 30);
  CHECK(to.host.num_blocks == 31);
  CHECK(to.host.bytes == 32);
  CHECK(to.host.write == WritePolicy::kAfterHits);
  CHECK(to.host.write_after_hits == 33);
  CHECK(to.host.clean_blocks == 34);
  CHECK(to.reader_arrays);
  CHECK(to.cpu_threads == 36);
  CHECK(to.memory.caller_memory == &config);
  CHECK(to.memory.caller_bytes == 35);
}

TEST_CASE("C API: a configuration of zeros is the default one", "[c_api]") {
  const auto rope = Struct<lariat_rope>();
  auto config = Struct<lariat_cache_config>();
  config.ropes = &rope;
  config.num_ropes = 1;
  CacheConfig to;
  REQUIRE(Convert(&config, to).ok());
  const CacheConfig standard;
  CHECK(to.ropes == std::vector<RopeSpec>{{}});
  CHECK(to.dtype == standard.dtype);
  CHECK(to.shard.size == standard.shard.size);
  CHECK(to.backend == standard.backend);
  CHECK(to.block_size == standard.block_size);
  CHECK(to.layout == standard.layout);
  CHECK(to.order == standard.order);
  CHECK(to.reuse == standard.reuse);
  CHECK(to.eviction == standard.eviction);
  CHECK(to.cpu_threads == standard.cpu_threads);
  CHECK(to.max_steps_in_flight == standard.max_steps_in_flight);
  CHECK(to.max_sequences == standard.max_sequences);
  CHECK(to.max_tokens_per_step == standard.max_tokens_per_step);
  CHECK(to.host.write == standard.host.write);
  CHECK(to.host.write_after_hits == standard.host.write_after_hits);
  const auto append = Struct<lariat_append_inputs>();
  AppendInputs appended;
  REQUIRE(Convert(&append, appended).ok());
  CHECK(appended.dependent_launch == AppendInputs().dependent_launch);
  const auto latent = Struct<lariat_mla_append_inputs>();
  MlaAppendInputs latents;
  REQUIRE(Convert(&latent, latents).ok());
  CHECK(latents.dependent_launch == MlaAppendInputs().dependent_launch);
  CHECK(latents.eps == MlaAppendInputs().eps);
  CHECK(latents.layout == MlaAppendInputs().layout);
}

TEST_CASE("C API: the inputs of a layer arrive whole", "[c_api]") {
  auto append = Struct<lariat_append_inputs>();
  append.dtype = LARIAT_FP32;
  append.k = Place(0);
  append.v = Place(1);
  append.q = MutablePlace(2);
  append.q_heads = 3;
  append.dependent_launch = LARIAT_LAUNCH_INDEX_EARLY;
  append.k_token_stride = 4;
  append.k_head_stride = 5;
  append.v_token_stride = 6;
  append.v_head_stride = 7;
  append.q_token_stride = 8;
  append.q_head_stride = 9;
  AppendInputs to;
  REQUIRE(Convert(&append, to).ok());
  CHECK(to.dtype == DType::kFP32);
  CHECK(to.k == Place(0));
  CHECK(to.v == Place(1));
  CHECK(to.q == Place(2));
  CHECK(to.q_heads == 3);
  CHECK(to.dependent_launch == DependentLaunch::kIndexEarly);
  CHECK(to.k_token_stride == 4);
  CHECK(to.k_head_stride == 5);
  CHECK(to.v_token_stride == 6);
  CHECK(to.v_head_stride == 7);
  CHECK(to.q_token_stride == 8);
  CHECK(to.q_head_stride == 9);
}

TEST_CASE("C API: the inputs of an MLA layer arrive whole", "[c_api]") {
  auto append = Struct<lariat_mla_append_inputs>();
  append.dtype = LARIAT_FP16;
  append.kv_lora_rank = 1;
  append.model_dim = 2;
  append.hidden = Place(3);
  append.hidden_stride = 4;
  append.w_down = Place(5);
  append.w_down_stride = 6;
  append.c_kv = Place(7);
  append.k_pe = Place(8);
  append.c_kv_stride = 9;
  append.k_pe_stride = 10;
  append.norm_weight = Place(11);
  append.eps = 12.0F;
  append.layout = LARIAT_IN_OUT;
  append.allow_tf32 = 1;
  append.dependent_launch = LARIAT_LAUNCH_OFF;
  MlaAppendInputs to;
  REQUIRE(Convert(&append, to).ok());
  CHECK(to.dtype == DType::kFP16);
  CHECK(to.kv_lora_rank == 1);
  CHECK(to.model_dim == 2);
  CHECK(to.hidden == Place(3));
  CHECK(to.hidden_stride == 4);
  CHECK(to.w_down == Place(5));
  CHECK(to.w_down_stride == 6);
  CHECK(to.c_kv == Place(7));
  CHECK(to.k_pe == Place(8));
  CHECK(to.c_kv_stride == 9);
  CHECK(to.k_pe_stride == 10);
  CHECK(to.norm_weight == Place(11));
  CHECK(to.eps == 12.0F);
  CHECK(to.layout == WeightLayout::kInOut);
  CHECK(to.allow_tf32);
  CHECK(to.dependent_launch == DependentLaunch::kOff);
}

TEST_CASE("C API: the inputs of an expansion arrive whole", "[c_api]") {
  auto expand = Struct<lariat_mla_expand_inputs>();
  expand.kv_lora_rank = 1;
  expand.heads = 2;
  expand.nope_dim = 3;
  expand.v_dim = 4;
  expand.layout = LARIAT_IN_OUT;
  expand.allow_tf32 = 1;
  expand.w_kv_b = Place(5);
  expand.w_kv_b_stride = 6;
  expand.num_tokens = 7;
  expand.cu_tokens = &kPlaces[8];
  expand.starts = &kPlaces[9];
  expand.k = MutablePlace(10);
  expand.v = MutablePlace(11);
  expand.k_token_stride = 12;
  expand.v_token_stride = 13;
  MlaExpandInputs to;
  REQUIRE(Convert(&expand, to).ok());
  CHECK(to.kv_lora_rank == 1);
  CHECK(to.heads == 2);
  CHECK(to.nope_dim == 3);
  CHECK(to.v_dim == 4);
  CHECK(to.layout == WeightLayout::kInOut);
  CHECK(to.allow_tf32);
  CHECK(to.w_kv_b == Place(5));
  CHECK(to.w_kv_b_stride == 6);
  CHECK(to.num_tokens == 7);
  CHECK(to.cu_tokens == &kPlaces[8]);
  CHECK(to.starts == &kPlaces[9]);
  CHECK(to.k == Place(10));
  CHECK(to.v == Place(11));
  CHECK(to.k_token_stride == 12);
  CHECK(to.v_token_stride == 13);
}

TEST_CASE("C API: the inputs of a compression arrive whole", "[c_api]") {
  auto compress = Struct<lariat_mla_compress_inputs>();
  compress.dtype = LARIAT_FP16;
  compress.model_dim = 1;
  compress.rank = 2;
  compress.layout = LARIAT_OUT_IN;
  compress.path = LARIAT_MLA_PATH_GEMM;
  compress.allow_tf32 = 1;
  compress.q_heads = 3;
  compress.hidden = Place(4);
  compress.hidden_stride = 5;
  compress.w_down = Place(6);
  compress.w_down_stride = 7;
  compress.w_up_k = Place(8);
  compress.w_up_k_stride = 9;
  compress.w_up_v = Place(10);
  compress.w_up_v_stride = 11;
  compress.latent = MutablePlace(12);
  compress.latent_stride = 13;
  compress.q = MutablePlace(14);
  compress.q_token_stride = 15;
  compress.q_head_stride = 16;
  compress.dependent_launch = LARIAT_LAUNCH_INDEX_EARLY;
  MlaCompressInputs to;
  REQUIRE(Convert(&compress, to).ok());
  CHECK(to.dtype == DType::kFP16);
  CHECK(to.model_dim == 1);
  CHECK(to.rank == 2);
  CHECK(to.layout == WeightLayout::kOutIn);
  CHECK(to.path == MlaPath::kGemm);
  CHECK(to.allow_tf32);
  CHECK(to.q_heads == 3);
  CHECK(to.hidden == Place(4));
  CHECK(to.hidden_stride == 5);
  CHECK(to.w_down == Place(6));
  CHECK(to.w_down_stride == 7);
  CHECK(to.w_up_k == Place(8));
  CHECK(to.w_up_k_stride == 9);
  CHECK(to.w_up_v == Place(10));
  CHECK(to.w_up_v_stride == 11);
  CHECK(to.latent == Place(12));
  CHECK(to.latent_stride == 13);
  CHECK(to.q == Place(14));
  CHECK(to.q_token_stride == 15);
  CHECK(to.q_head_stride == 16);
  CHECK(to.dependent_launch == DependentLaunch::kIndexEarly);
}

TEST_CASE("C API: the options of a sequence arrive whole", "[c_api]") {
  const std::uint64_t keys[] = {7, 8};
  const lariat_retention retention[] = {{sizeof(lariat_retention), 1, 2, 3, 4}};
  auto options = Struct<lariat_open_options>();
  options.salt = "salted";
  options.salt_size = 4;
  options.adapter = "adapter";
  options.adapter_size = 5;
  options.extra_keys = keys;
  options.num_extra_keys = 2;
  options.max_length = 6;
  options.retention = retention;
  options.num_retention = 1;
  c_api::Options to;
  REQUIRE(Convert(&options, to).ok());
  CHECK(to.options.salt == "salt");
  CHECK(to.options.adapter == "adapt");
  CHECK(to.options.extra_keys.data() == keys);
  CHECK(to.options.extra_keys.size() == 2);
  CHECK(to.options.max_length == 6);
  REQUIRE(to.options.retention.size() == 1);
  CHECK(to.options.retention[0].priority == 1);
  CHECK(to.options.retention[0].first_token == 2);
  CHECK(to.options.retention[0].last_token == 3);
  CHECK(to.options.retention[0].ttl_ms == 4);
}

TEST_CASE("C API: counters and footprints arrive whole", "[c_api]") {
  // Both structs have the same numbers in the same order, one of them behind its size.
  constexpr std::size_t kCounters = sizeof(Stats) / sizeof(std::int64_t);
  static_assert(sizeof(lariat_stats) == (1 + kCounters) * sizeof(std::int64_t));
  std::int64_t numbers[kCounters];
  for (std::size_t i = 0; i < kCounters; ++i) numbers[i] = 100 + static_cast<std::int64_t>(i);
  Stats stats;
  std::memcpy(&stats, numbers, sizeof(stats));
  const lariat_stats counted = c_api::ToC(stats);
  CHECK(std::memcmp(&counted.total_blocks, numbers, sizeof(numbers)) == 0);
  CHECK(counted.host_evicted == stats.host_evicted);

  const lariat_footprint footprint = c_api::ToC({.bytes_per_token = 1,
                                                 .bytes_per_block = 2,
                                                 .num_groups = 3,
                                                 .padding_bytes = 4,
                                                 .num_blocks = 5,
                                                 .pool_bytes = 6,
                                                 .rope_table_bytes = 7,
                                                 .step_array_bytes = 8,
                                                 .pinned_host_bytes = 9,
                                                 .num_host_blocks = 10,
                                                 .host_tier_bytes = 11});
  CHECK(footprint.bytes_per_token == 1);
  CHECK(footprint.bytes_per_block == 2);
  CHECK(footprint.num_groups == 3);
  CHECK(footprint.padding_bytes == 4);
  CHECK(footprint.num_blocks == 5);
  CHECK(footprint.pool_bytes == 6);
  CHECK(footprint.rope_table_bytes == 7);
  CHECK(footprint.step_array_bytes == 8);
  CHECK(footprint.pinned_host_bytes == 9);
  CHECK(footprint.num_host_blocks == 10);
  CHECK(footprint.host_tier_bytes == 11);
}

}  // namespace
}  // namespace lariat
