/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LARIAT_LARIAT_H_
#define LARIAT_LARIAT_H_
#include <stddef.h>
#include <stdint.h>

/* Lariat for C, and for whatever calls C: one cache, its sequences, steps, layers and transfers.
 * C11 and C++. Calls and fields mean what they mean in lariat/kv_cache.h and cache_config.h, which
 * say it at length; docs/c_api.md tells how to build and link. Here is what differs.
 *
 * Codes. Every call that can fail returns a lariat_code. A call that fails changes nothing but the
 * text of lariat_last_error, and leaves its results as they were (but for a lariat_plan_failure).
 * No exception gets out.
 *
 * Structs. Each begins with struct_size, which the caller sets to sizeof the struct, in those that
 * are filled too; all structs of an array have the same. A struct may grow at its end: fields that
 * a caller does not know are 0, and a field that is 0 has its default, which its comment gives
 * where it is not 0. Fields that are set and that this library does not know are
 * LARIAT_UNSUPPORTED. Begin with zeros:
 *     lariat_cache_config config = {.struct_size = sizeof config};
 *
 * Handles. A cache is a pointer, valid until lariat_cache_destroy. Sequences, steps and transfers
 * are numbers of one cache, never used again; 0 names none, and a sequence or step that has ended
 * is LARIAT_INVALID_ARGUMENT.
 *
 * Memory. Pointers that are passed in are read during the call, but for rows, weights and outputs
 * of the append calls: device memory that must live until the stream has passed the call. Pointers
 * that are handed out belong to the cache. Null is legal where a comment says so, and for an array
 * of 0 elements.
 *
 * Streams. A cudaStream_t as void*; null is the default stream. Other backends ignore it.
 *
 * Threads. One thread at a time per cache, lariat_cache_stats and the deleters of tensors apart. */

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define LARIAT_API __attribute__((visibility("default")))
#else
#define LARIAT_API
#endif

/* Goes up when a program that was compiled with an older header could not run any more. */
#define LARIAT_ABI_VERSION 1
LARIAT_API uint32_t lariat_abi_version(void);
/* "0.1.0". */
LARIAT_API const char* lariat_version(void);

/* --- Codes and errors --------------------------------------------------------------------- */

typedef int32_t lariat_code;
enum {
  LARIAT_OK = 0,
  LARIAT_INVALID_ARGUMENT = 1,   /* the call is wrong: do not retry */
  LARIAT_UNSUPPORTED = 2,        /* valid, but this build or version does not do it */
  LARIAT_RESOURCE_EXHAUSTED = 3, /* no room now: commit, close or preempt something, then retry */
  LARIAT_NEVER_FITS = 4,         /* no room even in an empty cache */
  LARIAT_NOT_READY = 5,          /* legal later: end what is in the way, then retry */
  LARIAT_CORRUPT_DATA = 6,       /* the data cannot be trusted: close the sequence */
  LARIAT_DEVICE_ERROR = 7        /* the device failed: the cache is unusable */
};

/* "InvalidArgument"; "Unknown" for any other number. */
LARIAT_API const char* lariat_code_name(lariat_code code);

/* A cache. */
typedef struct lariat_cache lariat_cache;

/* What the last call that failed with this cache said. Null: the last one of this thread that had
 * no cache (create, footprint, a cache that was null) or that may run beside others
 * (lariat_cache_stats). Never null; valid until the next call that fails. At most 1023 bytes. */
LARIAT_API const char* lariat_last_error(const lariat_cache* cache);

/* --- Configuration ------------------------------------------------------------------------ */

enum { LARIAT_BF16 = 0, LARIAT_FP16 = 1, LARIAT_FP32 = 2 };
enum {
  LARIAT_BACKEND_AUTO = 0,
  LARIAT_BACKEND_CPU = 1,
  LARIAT_BACKEND_CUDA = 2,
  LARIAT_BACKEND_NULL = 3
};
enum {
  LARIAT_LAYER_FULL = 0,
  LARIAT_LAYER_SLIDING = 1,
  LARIAT_LAYER_CHUNKED = 2,
  LARIAT_LAYER_MLA = 3,
  LARIAT_LAYER_LINEAR = 4
};
enum { LARIAT_LAYOUT_BLOCK_MAJOR = 0, LARIAT_LAYOUT_LAYER_MAJOR = 1 };
enum { LARIAT_ORDER_NHD = 0, LARIAT_ORDER_HND = 1 };
enum { LARIAT_REUSE_BLOCK = 0, LARIAT_REUSE_NONE = 1, LARIAT_REUSE_TOKEN = 2 };
enum { LARIAT_EVICT_LRU = 0, LARIAT_EVICT_PRIORITY = 1 };
enum { LARIAT_WRITE_BACK = 0, LARIAT_WRITE_THROUGH = 1, LARIAT_WRITE_AFTER_HITS = 2 };
enum {
  LARIAT_ROPE_DEFAULT = 0,
  LARIAT_ROPE_LINEAR = 1,
  LARIAT_ROPE_DYNAMIC = 2,
  LARIAT_ROPE_YARN = 3,
  LARIAT_ROPE_LLAMA3 = 4,
  LARIAT_ROPE_LONGROPE = 5,
  LARIAT_ROPE_PROPORTIONAL = 6
};
enum { LARIAT_HALF = 0, LARIAT_INTERLEAVED = 1, LARIAT_INTERLEAVED_TO_HALF = 2 };
enum { LARIAT_MROPE_SECTIONED = 0, LARIAT_MROPE_INTERLEAVED = 1 };

/* lariat::LayerSpec. */
typedef struct lariat_layer {
  uint32_t struct_size;
  int32_t kind; /* LARIAT_LAYER_... */
  int32_t kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  int32_t rope; /* index into ropes; -1: keys are stored as they come. 0 is the first rope */
  int32_t window;
} lariat_layer;

/* lariat::RopeSpec. */
typedef struct lariat_rope {
  uint32_t struct_size;
  int32_t type;  /* LARIAT_ROPE_... */
  int32_t style; /* LARIAT_HALF, ... */
  int32_t rotary_dim;
  double theta;  /* 0: 10000 */
  double factor; /* 0: 1 */
  int64_t original_max_position_embeddings;
  double low_freq_factor;  /* 0: 1 */
  double high_freq_factor; /* 0: 4 */
  double beta_fast;        /* 0: 32 */
  double beta_slow;        /* 0: 1 */
  double attention_factor; /* 0: none given; so the next two */
  double mscale;
  double mscale_all_dim;
  const double* short_factor; /* [num_factors] */
  const double* long_factor;  /* [num_factors] */
  int32_t num_factors;        /* longrope: rotary_dim / 2 */
  int32_t no_truncate;        /* RopeSpec::truncate is false */
  int32_t turned_dim;
  int32_t mrope_layout; /* LARIAT_MROPE_... */
  int32_t num_mrope_sections;
  int32_t mrope_sections[4];
  int32_t reserved; /* 0 */
} lariat_rope;

/* lariat::CacheConfig, and in it its Shard, MemoryConfig and HostTier. */
typedef struct lariat_cache_config {
  uint32_t struct_size;
  int32_t dtype; /* LARIAT_BF16, ... */
  const lariat_layer* layers;
  const lariat_rope* ropes;
  int32_t num_layers;
  int32_t num_ropes;
  int32_t shard_rank;
  int32_t shard_size; /* 0: 1 */
  int32_t backend;    /* LARIAT_BACKEND_... */
  int32_t device_ordinal;
  int64_t num_blocks; /* exactly one of num_blocks, bytes and unlimited */
  int64_t bytes;
  int32_t unlimited;  /* 1: grows for ever; null backend only */
  int32_t block_size; /* 0: 16 */
  int32_t layout;     /* LARIAT_LAYOUT_... */
  int32_t order;      /* LARIAT_ORDER_... */
  int32_t reuse;      /* LARIAT_REUSE_... */
  int32_t eviction;   /* LARIAT_EVICT_... */
  int64_t max_pinned_blocks;
  int32_t max_steps_in_flight; /* 0: 2 */
  int32_t max_sequences;       /* 0: 256 */
  int64_t max_tokens_per_sequence;
  int64_t max_tokens_per_step; /* 0: 8192 */
  int64_t host_num_blocks;     /* of the host tier: one of the two; neither: none */
  int64_t host_bytes;
  int32_t host_write;            /* LARIAT_WRITE_... */
  int32_t host_write_after_hits; /* 0: 2 */
  int64_t host_clean_blocks;
  int32_t reader_arrays; /* 1: lariat_step_view from kv_indptr on, and lariat_cache_host_view */
  int32_t cpu_threads;   /* of the CPU backend; 0: 1 */
  void* caller_memory;   /* the pool's, if not null; it outlives the cache and all its tensors */
  int64_t caller_bytes;
  int64_t max_events; /* for lariat_cache_drain_events; 0: there are none */
} lariat_cache_config;

/* --- The cache ---------------------------------------------------------------------------- */

/* `cache` is set where the answer is LARIAT_OK. */
LARIAT_API lariat_code lariat_cache_create(const lariat_cache_config* config, lariat_cache** cache);

/* Drops live steps, waits for their device work and frees everything; where a tensor of
 * lariat_cache_layer_tensor is left, the call returns at once, and the tensor's deleter does that.
 * Null is a no-op. */
LARIAT_API void lariat_cache_destroy(lariat_cache* cache);

/* lariat::MemoryFootprint. */
typedef struct lariat_footprint {
  uint32_t struct_size;
  int32_t num_groups; /* layers with a block table of their own: groups 0 to num_groups - 1 */
  int64_t bytes_per_token;
  int64_t bytes_per_block;
  int64_t num_blocks;
  int64_t pool_bytes;
  int64_t rope_table_bytes;
  int64_t step_array_bytes;
  int64_t pinned_host_bytes;
  int64_t num_host_blocks;
  int64_t host_tier_bytes;
  int64_t padding_bytes;
  int64_t event_log_bytes;
} lariat_footprint;

/* What a cache would take. Allocates nothing on the device. */
LARIAT_API lariat_code lariat_config_footprint(const lariat_cache_config* config,
                                               lariat_footprint* footprint);
LARIAT_API lariat_code lariat_cache_footprint(lariat_cache* cache, lariat_footprint* footprint);

/* lariat::Stats. */
typedef struct lariat_stats {
  uint32_t struct_size;
  int32_t reserved;
  int64_t total_blocks;
  int64_t free_blocks;
  int64_t idle_blocks;
  int64_t held_blocks;
  int64_t reserved_blocks;
  int64_t in_transit_blocks;
  int64_t peak_used_blocks;
  int64_t indexed_blocks;
  int64_t pinned_blocks;
  int64_t evicted_blocks;
  int64_t quota_evicted_blocks;
  int64_t expired_blocks;
  int64_t merged_blocks;
  int64_t copied_blocks;
  int64_t hit_tokens;
  int64_t tokens_committed;
  int64_t sequences;
  int64_t live_steps;
  int64_t host_blocks;
  int64_t host_used;
  int64_t host_held;
  int64_t offloaded_blocks;
  int64_t onboarded_blocks;
  int64_t host_evicted;
  int64_t events;
  int64_t lost_events;
} lariat_stats;

/* From any thread, until lariat_cache_destroy begins. */
LARIAT_API lariat_code lariat_cache_stats(const lariat_cache* cache, lariat_stats* stats);

/* The most blocks that a sequence of `settled` tokens holds while rows [settled, end) are computed
 * in steps of up to step_tokens rows (0: in one). 0 <= settled <= end <= max_tokens_per_sequence.
 */
LARIAT_API lariat_code lariat_cache_blocks_for(lariat_cache* cache, int64_t settled, int64_t end,
                                               int64_t step_tokens, int64_t* blocks);

/* Drops everything cached that no sequence holds. */
LARIAT_API lariat_code lariat_cache_clear(lariat_cache* cache);

/* Gives the pool's memory back to the device, and takes it again, empty: lariat::KVCache::Release
 * and Reacquire. LARIAT_NOT_READY also while a tensor of lariat_cache_layer_tensor is left, which
 * would name memory that is another's by then. */
LARIAT_API lariat_code lariat_cache_release(lariat_cache* cache);
LARIAT_API lariat_code lariat_cache_reacquire(lariat_cache* cache);

/* lariat::PollReport. */
typedef struct lariat_poll_report {
  uint32_t struct_size;
  int32_t live_steps;
  int32_t pending_events;
  int32_t num_faults;             /* to be read by lariat_cache_fault */
  int32_t num_finished_transfers; /* to be read by lariat_cache_finished_transfer */
} lariat_poll_report;

enum { LARIAT_FAULT_SLOT = 1, LARIAT_FAULT_POSITION = 2 };
/* lariat::StepFault. */
typedef struct lariat_fault {
  uint32_t struct_size;
  int32_t kind; /* LARIAT_FAULT_... */
  uint64_t step;
  int64_t token;
  int64_t value;
} lariat_fault;

/* lariat::TransferReport. */
typedef struct lariat_transfer_report {
  uint32_t struct_size;
  int32_t failed; /* 1: its copies failed */
  uint64_t transfer;
} lariat_transfer_report;

/* Never blocks. */
LARIAT_API lariat_code lariat_cache_poll(lariat_cache* cache, lariat_poll_report* report);
/* One entry of the last poll that succeeded. */
LARIAT_API lariat_code lariat_cache_fault(lariat_cache* cache, int32_t index, lariat_fault* fault);
LARIAT_API lariat_code lariat_cache_finished_transfer(lariat_cache* cache, int32_t index,
                                                      lariat_transfer_report* report);

/* --- Sequences ---------------------------------------------------------------------------- */

/* Retention. No field has a default: last_token -1 is to the end, priority 35 is what others have.
 */
typedef struct lariat_retention {
  uint32_t struct_size;
  int32_t priority; /* 0..100 */
  int64_t first_token;
  int64_t last_token; /* exclusive */
  int64_t ttl_ms;
} lariat_retention;

/* lariat::OpenOptions. */
typedef struct lariat_open_options {
  uint32_t struct_size;
  int32_t num_extra_keys;
  const void* salt; /* bytes of any kind */
  size_t salt_size;
  const void* adapter;
  size_t adapter_size;
  const uint64_t* extra_keys; /* [num_extra_keys] */
  int64_t max_length;         /* 0: the cache's max_tokens_per_sequence */
  const lariat_retention* retention;
  int32_t num_retention;
  int32_t reserved; /* 0 */
} lariat_open_options;

/* lariat::PrefixMatch. */
typedef struct lariat_prefix_match {
  uint32_t struct_size;
  int32_t reserved;
  int64_t tokens;
  int64_t blocks;
  int64_t idle_blocks;
  int64_t host_tokens;
} lariat_prefix_match;

/* `options` may be null in all calls that take them. */
LARIAT_API lariat_code lariat_cache_match(lariat_cache* cache, const int32_t* prompt,
                                          int64_t num_tokens, const lariat_open_options* options,
                                          lariat_prefix_match* match);
LARIAT_API lariat_code lariat_sequence_open(lariat_cache* cache, const int32_t* prompt,
                                            int64_t num_tokens, const lariat_open_options* options,
                                            uint64_t* sequence);
/* lariat_cache_match for a sequence that was not planned yet. */
LARIAT_API lariat_code lariat_sequence_match(lariat_cache* cache, uint64_t sequence,
                                             lariat_prefix_match* match);
LARIAT_API lariat_code lariat_sequence_close(lariat_cache* cache, uint64_t sequence);
LARIAT_API lariat_code lariat_sequence_truncate(lariat_cache* cache, uint64_t sequence,
                                                int64_t length);
/* length -1: all settled tokens. */
LARIAT_API lariat_code lariat_sequence_fork(lariat_cache* cache, uint64_t sequence, int64_t length,
                                            uint64_t* fork);
LARIAT_API lariat_code lariat_sequence_set_tokens(lariat_cache* cache, uint64_t sequence,
                                                  const int32_t* tokens, int64_t num_tokens);

/* lariat::Extent. */
typedef struct lariat_extent {
  uint32_t struct_size;
  int32_t reserved;
  int64_t settled;
  int64_t planned;
  int64_t known;
  int64_t min_length;
} lariat_extent;

LARIAT_API lariat_code lariat_sequence_extent(lariat_cache* cache, uint64_t sequence,
                                              lariat_extent* extent);
/* The device blocks of a sequence in one group of layers (lariat_layer_view), in host memory; -1:
 * given back, for no later row reads it. Valid until the next call that changes it. */
LARIAT_API lariat_code lariat_sequence_block_table(lariat_cache* cache, uint64_t sequence,
                                                   int32_t group, const int32_t** blocks,
                                                   int64_t* num_blocks);
/* The first token whose row a layer still has: 0 but for a layer with a window. */
LARIAT_API lariat_code lariat_sequence_first_row(lariat_cache* cache, uint64_t sequence,
                                                 int32_t layer, int64_t* first);
/* Copies settled rows of one layer to host memory; k or v may be null. Waits for the device. */
LARIAT_API lariat_code lariat_sequence_read_rows(lariat_cache* cache, uint64_t sequence,
                                                 int32_t layer, int64_t first, int64_t count,
                                                 void* k, void* v);

/* The host tier. `transfer` 0: nothing was to be copied. */
LARIAT_API lariat_code lariat_sequence_fetch(lariat_cache* cache, uint64_t sequence,
                                             uint64_t* transfer);
LARIAT_API lariat_code lariat_sequence_suspend(lariat_cache* cache, uint64_t sequence,
                                               uint64_t* transfer);
LARIAT_API lariat_code lariat_sequence_resume(lariat_cache* cache, uint64_t sequence,
                                              uint64_t* transfer);
/* `report` may be null. */
LARIAT_API lariat_code lariat_transfer_accept(lariat_cache* cache, uint64_t transfer,
                                              lariat_transfer_report* report);

/* --- What stays ---------------------------------------------------------------------------- */

LARIAT_API lariat_code lariat_cache_pin(lariat_cache* cache, const int32_t* prompt,
                                        int64_t num_tokens, const lariat_open_options* options);
LARIAT_API lariat_code lariat_cache_unpin(lariat_cache* cache, const int32_t* prompt,
                                          int64_t num_tokens, const lariat_open_options* options);
/* `blocks` may be null; so in the next call. */
LARIAT_API lariat_code lariat_cache_remove(lariat_cache* cache, const int32_t* prompt,
                                           int64_t num_tokens, const lariat_open_options* options,
                                           int64_t* blocks);
LARIAT_API lariat_code lariat_cache_remove_salt(lariat_cache* cache, const void* salt,
                                                size_t salt_size, int64_t* blocks);
LARIAT_API lariat_code lariat_cache_expire(lariat_cache* cache, int64_t now_ms);
LARIAT_API lariat_code lariat_cache_set_quota(lariat_cache* cache, const void* salt,
                                              size_t salt_size, int64_t max_idle_blocks);

/* --- Events of the index: lariat/kv_event.h, docs/events.md ------------------------------- */

enum { LARIAT_EVENT_STORED = 0, LARIAT_EVENT_REMOVED = 1, LARIAT_EVENT_CLEARED = 2 };
enum { LARIAT_TIER_DEVICE = 0, LARIAT_TIER_HOST = 1 };
/* Bytes of a block's name (lariat/block_hash.h). */
enum { LARIAT_HASH_SIZE = 16 };

/* lariat::KVEvent. */
typedef struct lariat_event {
  uint32_t struct_size;
  int32_t kind; /* LARIAT_EVENT_... */
  int32_t tier; /* LARIAT_TIER_... */
  int32_t group;
  int32_t num_tokens;
  int32_t reserved;
  uint64_t number; /* counts up by 1; what is left out was lost */
  int64_t first_token;
  const int32_t* tokens; /* [num_tokens]; valid until the next call that changes the cache */
  uint8_t hash[LARIAT_HASH_SIZE];
  uint8_t parent[LARIAT_HASH_SIZE];
} lariat_event;

/* Changes of the index since the last call, oldest first. `count`: how many of `events`, which has
 * room for `room`, were filled. */
LARIAT_API lariat_code lariat_cache_drain_events(lariat_cache* cache, lariat_event* events,
                                                 int64_t room, int64_t* count);
/* What is in the index now: the same call with the cursor at 0 first, until count < room. */
LARIAT_API lariat_code lariat_cache_list_blocks(lariat_cache* cache, int64_t* cursor,
                                                lariat_event* events, int64_t room, int64_t* count);

/* The names that a cache gives to blocks. `options` may be null, of those that are given
 * max_length and retention do not matter. `hash` [LARIAT_HASH_SIZE] is filled. */
LARIAT_API lariat_code lariat_hash_root(const lariat_open_options* options, uint32_t rope_choice,
                                        uint8_t* hash);
LARIAT_API lariat_code lariat_hash_block(const uint8_t* parent, const int32_t* tokens,
                                         int64_t num_tokens, uint8_t* hash);

/* --- Steps --------------------------------------------------------------------------------- */

/* lariat::StepItem. */
typedef struct lariat_step_item {
  uint32_t struct_size;
  int32_t num_positions;
  uint64_t sequence;
  int64_t num_tokens;
  int64_t num_drafts;
  const int32_t* positions; /* [num_positions]; none: the row's index in the sequence */
} lariat_step_item;

/* lariat::StepShape. */
typedef struct lariat_step_shape {
  uint32_t struct_size;
  int32_t max_sequences;
  int64_t max_tokens;
} lariat_step_shape;

/* lariat::PlanFailure. */
typedef struct lariat_plan_failure {
  uint32_t struct_size;
  int32_t capacity;      /* in: room in the two arrays, which may be null where it is 0 */
  uint64_t* sequences;   /* in: filled with the sequences that need blocks ... */
  int64_t* blocks;       /* ... and how many each needs */
  int64_t num_sequences; /* out: how many there are, more than capacity perhaps */
  int64_t needed;        /* out, as the next two */
  int64_t available;
  int64_t in_transit;
} lariat_plan_failure;

/* shape, failure: may be null. failure is filled when the answer is LARIAT_RESOURCE_EXHAUSTED or
 * LARIAT_NEVER_FITS. */
LARIAT_API lariat_code lariat_step_plan(lariat_cache* cache, const lariat_step_item* items,
                                        int32_t num_items, const lariat_step_shape* shape,
                                        lariat_plan_failure* failure, uint64_t* step);
/* Undoes a plan that was not prepared. One that was is discarded, at once or as soon as the steps
 * behind it have ended; the number ends here. */
LARIAT_API lariat_code lariat_step_drop(lariat_cache* cache, uint64_t step);

/* What a lariat::Step tells of itself. */
typedef struct lariat_step_info {
  uint32_t struct_size;
  int32_t num_sequences; /* entries of lariat_step_rows */
  int32_t padded_sequences;
  int32_t reserved;
  int64_t num_tokens;
  int64_t padded_tokens;
} lariat_step_info;

/* lariat::StepRows. */
typedef struct lariat_rows {
  uint32_t struct_size;
  int32_t reserved;
  uint64_t sequence;
  int64_t first_row;
  int64_t start;
  int64_t count;
  int64_t hit;
} lariat_rows;

LARIAT_API lariat_code lariat_step_get_info(lariat_cache* cache, uint64_t step,
                                            lariat_step_info* info);
/* Rows of item `index`. */
LARIAT_API lariat_code lariat_step_get_rows(lariat_cache* cache, uint64_t step, int32_t index,
                                            lariat_rows* rows);
LARIAT_API lariat_code lariat_step_prepare(lariat_cache* cache, uint64_t step, void* stream);

/* lariat::StepCommit. */
typedef struct lariat_commit {
  uint32_t struct_size;
  int32_t num_tokens;
  uint64_t sequence;
  int64_t kept;
  const int32_t* tokens; /* [num_tokens] */
} lariat_commit;

/* Sequences that are not named keep all their rows. The step's number ends with success. */
LARIAT_API lariat_code lariat_step_commit(lariat_cache* cache, uint64_t step,
                                          const lariat_commit* commits, int32_t num_commits,
                                          void* stream);
LARIAT_API lariat_code lariat_step_discard(lariat_cache* cache, uint64_t step, void* stream);

/* --- One layer's rows ----------------------------------------------------------------------- */

/* The default is OFF of lariat_step_append and AFTER_WAIT of lariat_step_mla_append. */
enum {
  LARIAT_LAUNCH_DEFAULT = 0,
  LARIAT_LAUNCH_OFF = 1,
  LARIAT_LAUNCH_AFTER_WAIT = 2,
  LARIAT_LAUNCH_INDEX_EARLY = 3
};
/* How weights lie; no default other than 0. */
enum { LARIAT_OUT_IN = 0, LARIAT_IN_OUT = 1 };
enum { LARIAT_MLA_PATH_AUTO = 0, LARIAT_MLA_PATH_FUSED = 1, LARIAT_MLA_PATH_GEMM = 2 };

/* Strides count elements; 0: contiguous. */
typedef struct lariat_append_inputs {
  uint32_t struct_size;
  int32_t dtype;
  const void* k;
  const void* v;
  void* q; /* may be null */
  int32_t q_heads;
  int32_t dependent_launch; /* LARIAT_LAUNCH_... */
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  int64_t q_token_stride;
  int64_t q_head_stride;
} lariat_append_inputs;

/* Either hidden and w_down, or c_kv and k_pe. */
typedef struct lariat_mla_append_inputs {
  uint32_t struct_size;
  int32_t dtype;
  int32_t kv_lora_rank;
  int32_t model_dim;
  const void* hidden;
  int64_t hidden_stride;
  const void* w_down;
  int64_t w_down_stride;
  const void* c_kv;
  const void* k_pe;
  int64_t c_kv_stride;
  int64_t k_pe_stride;
  const void* norm_weight; /* may be null: no norm */
  float eps;               /* 0: 1e-6 */
  int32_t layout;          /* LARIAT_OUT_IN, LARIAT_IN_OUT */
  int32_t allow_tf32;
  int32_t dependent_launch; /* LARIAT_LAUNCH_... */
} lariat_mla_append_inputs;

/* lariat::MlaExpandInputs. */
typedef struct lariat_mla_expand_inputs {
  uint32_t struct_size;
  int32_t kv_lora_rank;
  int32_t heads;
  int32_t nope_dim;
  int32_t v_dim;
  int32_t layout; /* LARIAT_OUT_IN, LARIAT_IN_OUT */
  int32_t allow_tf32;
  int32_t reserved; /* 0 */
  const void* w_kv_b;
  int64_t w_kv_b_stride;
  int64_t num_tokens;
  const int32_t* cu_tokens; /* device memory, as the next three */
  const int32_t* starts;    /* may be null */
  void* k;
  void* v;
  int64_t k_token_stride;
  int64_t v_token_stride;
} lariat_mla_expand_inputs;

/* lariat::MlaCompressInputs. */
typedef struct lariat_mla_compress_inputs {
  uint32_t struct_size;
  int32_t dtype;
  int32_t model_dim;
  int32_t rank;
  int32_t layout; /* LARIAT_OUT_IN, LARIAT_IN_OUT */
  int32_t path;   /* LARIAT_MLA_PATH_... */
  int32_t allow_tf32;
  int32_t q_heads;
  const void* hidden;
  int64_t hidden_stride;
  const void* w_down;
  int64_t w_down_stride;
  const void* w_up_k;
  int64_t w_up_k_stride;
  const void* w_up_v;
  int64_t w_up_v_stride;
  void* latent; /* may be null */
  int64_t latent_stride;
  void* q; /* may be null */
  int64_t q_token_stride;
  int64_t q_head_stride;
  int32_t dependent_launch; /* LARIAT_LAUNCH_... */
  int32_t reserved;         /* 0 */
} lariat_mla_compress_inputs;

LARIAT_API lariat_code lariat_step_append(lariat_cache* cache, uint64_t step, int32_t layer,
                                          const lariat_append_inputs* inputs, void* stream);
LARIAT_API lariat_code lariat_step_mla_append(lariat_cache* cache, uint64_t step, int32_t layer,
                                              const lariat_mla_append_inputs* inputs, void* stream);
LARIAT_API lariat_code lariat_step_mla_expand(lariat_cache* cache, uint64_t step, int32_t layer,
                                              const lariat_mla_expand_inputs* inputs, void* stream);
LARIAT_API lariat_code lariat_step_mla_compress(lariat_cache* cache, uint64_t step, int32_t layer,
                                                const lariat_mla_compress_inputs* inputs,
                                                void* stream);
/* Make what such calls need on a stream, before one is captured. */
LARIAT_API lariat_code lariat_warmup_mla_append(lariat_cache* cache, int32_t layer,
                                                const lariat_mla_append_inputs* inputs,
                                                void* stream);
LARIAT_API lariat_code lariat_warmup_mla_expand(lariat_cache* cache, int32_t layer,
                                                const lariat_mla_expand_inputs* inputs,
                                                void* stream);
LARIAT_API lariat_code lariat_warmup_mla_compress(lariat_cache* cache, int32_t layer,
                                                  const lariat_mla_compress_inputs* inputs,
                                                  void* stream);

/* --- Views ---------------------------------------------------------------------------------- */

/* Device arrays of the most recently prepared step, at addresses that never change. */
typedef struct lariat_step_view {
  uint32_t struct_size;
  int32_t reserved;
  const int64_t* slots;
  const int32_t* positions;
  const uint32_t* rope_choice;
  const int32_t* cu_seqlens;
  const int32_t* seqused_k;
  const int32_t* block_table;
  int64_t block_table_stride;
  /* With reader_arrays, else null. */
  const int32_t* kv_indptr;
  const int32_t* kv_indices;
  const int32_t* kv_start;
  const int32_t* last_page_len;
  const int32_t* batch_indices;
} lariat_step_view;

/* The same in host memory, valid until the next lariat_step_prepare. All null without
 * reader_arrays, before the first step, and on the null backend. */
typedef struct lariat_host_view {
  uint32_t struct_size;
  int32_t num_sequences;     /* padded: n */
  const int32_t* cu_seqlens; /* [n + 1] */
  const int32_t* seqused_k;  /* [n], so the last two */
  const int32_t* kv_indptr;  /* [n + 1] */
  const int32_t* kv_start;
  const int32_t* last_page_len;
  int32_t max_seqlen_q;
  int32_t max_seqlen_k;
} lariat_host_view;

/* lariat::LayerView. */
typedef struct lariat_layer_view {
  uint32_t struct_size;
  int32_t dtype;
  int32_t group; /* whose slots and block table are the layer's */
  int32_t kind;  /* LARIAT_LAYER_... */
  int32_t window;
  int32_t kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  int32_t block_size;
  int32_t reserved;
  int64_t num_blocks;
  void* k;
  void* v;
  int64_t k_block_stride; /* elements, as all strides */
  int64_t k_row_stride;
  int64_t k_head_stride;
  int64_t v_block_stride;
  int64_t v_row_stride;
  int64_t v_head_stride;
  const float* cos;
  const float* sin;
  int64_t num_positions;
} lariat_layer_view;

/* Slots and block table are those of a group; all groups share the rest. */
LARIAT_API lariat_code lariat_cache_view(lariat_cache* cache, int32_t group,
                                         lariat_step_view* view);
/* As KVCache::HostView. */
LARIAT_API lariat_code lariat_cache_host_view(lariat_cache* cache, int32_t group,
                                              lariat_host_view* view);
LARIAT_API lariat_code lariat_cache_layer(lariat_cache* cache, int32_t layer,
                                          lariat_layer_view* view);

/* A layer's K or V as a DLPack tensor [num_blocks, block_size, kv_heads, dim] over the pool itself,
 * strided, no copy (MLA: K holds the latent rows, of one head; there is no V). The struct is
 * DLPack's (dlpack/dlpack.h, or lariat/dlpack.h).
 *
 * Who outlives whom: the tensor holds the pool. It may be used, and its deleter called, after
 * lariat_cache_destroy, and the memory is given back when both that and the deleters of all tensors
 * have been called. The deleter is called once, from any thread, when no work that reads the
 * tensor is left on the device.
 * What is in it: rows that a committed sequence holds stay as they are while the sequence is open.
 * Others belong to the cache: a block that its sequence let go of may be overwritten by a later
 * step. Reads are ordered against appends by the stream, as in any attention kernel. Writing to
 * rows that are not of a prepared step is not allowed.
 * Errors: LARIAT_INVALID_ARGUMENT (no such layer, a V that is not there), LARIAT_UNSUPPORTED (null
 *   backend), LARIAT_NOT_READY (the pool was released). */
enum { LARIAT_K = 0, LARIAT_V = 1 };
struct DLManagedTensor;
LARIAT_API lariat_code lariat_cache_layer_tensor(lariat_cache* cache, int32_t layer, int32_t which,
                                                 struct DLManagedTensor** tensor);

#ifdef __cplusplus
}
#endif
#endif /* LARIAT_LARIAT_H_ */
