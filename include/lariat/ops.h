// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "lariat/device.h"
#include "lariat/rope.h"
#include "lariat/status.h"
#include "lariat/types.h"

// The project's operations over caller buffers: stateless, ordered on the given stream, never
// synchronised here, capturable in a CUDA graph. Buffers are memory of the Device that is passed.
//
// Arithmetic (docs/numerics.md): a pair (x, y) turns into (x*c - y*s, x*s + y*c) in fp32 (fp64 for
// kFP64), each product and the sum rounded to nearest even, then one rounding to the type stored;
// a NaN that went through arithmetic or a conversion is stored as the type's canonical quiet NaN,
// what is only moved keeps its bytes. Results are the same bits on CPU and CUDA.
//
// Strides count elements and are not negative. A stride of 0 means contiguous, as if written out: a
// head follows a head, a row holds its heads, a block its rows (or, where heads are outermost, its
// heads). Pointers are multiples of their element's size; 16-byte aligned pointers and strides,
// with widths that are multiples of 8, are what runs at full speed.
//
// A pointer that no work needs may be null (inputs of no tokens, tables with rotary_dim 0). On the
// null backend pointers are not looked at.

namespace lariat {

enum class FaultKind : std::int32_t { kNone = 0, kSlot = 1, kPosition = 2 };

// What an operation found wrong in device data: the smallest token index with a slot or position
// out of range, and that value. Such a token is skipped; nothing outside its row is touched.
// Zero it before use. One record may serve many launches of one stream.
struct FaultRecord {
  std::uint32_t lock = 0;             // used on the device
  FaultKind kind = FaultKind::kNone;  // of the token below
  std::int64_t token = 0;
  std::int64_t value = 0;
};

// RopeUpdate: a contiguous cache, copied with new rows put in.
//   out[0, b, l, h, :] = cache_k[b, l, h, :], and out[1, ...] = cache_v[...], but for each (b, t)
//   in order of t, row l = positions[b, t] is the rotated k_new[b, t] and the raw v_new[b, t]. Of
//   colliding positions the last t wins, whole rows. A position outside [0, L) is skipped and
//   recorded (token b * T + t). The rotation reads row positions[b, t] of cos and sin.
// out may not overlap an input. T = 0 copies; B = 0 or L = 0 is a no-op. One launch.
struct RopeUpdateParams {
  DType dtype = DType::kFP32;  // of k_new, v_new, cache_k, cache_v, out: fp32, fp64, fp16, bf16
  DType table_dtype = DType::kFP32;  // of cos and sin: dtype, or fp32 (fp64 needs fp64)
  RopeStyle style = RopeStyle::kInterleaved;
  std::int64_t batch = 0;                   // B: 0..2^31-1
  std::int64_t new_tokens = 0;              // T: 0..2^31-1
  std::int64_t cache_len = 0;               // L: 0..2^31-1
  int heads = 0;                            // H: 1..8192
  int head_dim = 0;                         // D: even, 2..512
  int rotary_dim = 0;                       // even, 0..D; elements past it are copied
  const void* k_new = nullptr;              // [B, T, H, D]
  const void* v_new = nullptr;              // [B, T, H, D]
  const void* cos = nullptr;                // [L, rotary_dim / 2]
  const void* sin = nullptr;                // [L, rotary_dim / 2]
  const void* cache_k = nullptr;            // [B, L, H, D]
  const void* cache_v = nullptr;            // [B, L, H, D]
  const std::int32_t* positions = nullptr;  // [B, T]
  void* out = nullptr;                      // [2, B, L, H, D]
  FaultRecord* fault = nullptr;             // device-visible; may be null
};

// Errors: kInvalidArgument (a field out of range, a missing or misaligned pointer, out overlapping
//   an input), kUnsupported (dtype), kDeviceError.
Status RopeUpdate(Device& device, const RopeUpdateParams& params, Stream stream);

// AppendRope: rotates K (and Q) by position and stores K and V rows at their slots, in place.
//   Token t goes to block slots[t] / block_size, row slots[t] % block_size:
//     k_cache + block * k_block_stride + row * k_row_stride + head * k_cache_head_stride + element
//   and V alike. A negative slot stores nothing; a slot >= num_slots, or a position outside
//   [0, num_positions), stores nothing and is recorded (slot before position). q turns whatever the
//   slot; where the position is out of range it stays as it is (q_out: copied). The position of a
//   token that has a negative slot and no q is not looked at. Of three positions the first that is
//   out of range is recorded.
//   kInterleavedToHalf cannot turn q in place; a q whose position is out of range keeps its order.
// REQUIRES: the non-negative slots of one call are distinct; a cache's rows do not overlap.
struct AppendRopeParams {
  DType in_dtype = DType::kBF16;  // of k, v, q, q_out: fp32, fp16, bf16
  DType dtype = DType::kBF16;     // stored: in_dtype, or narrower than fp32
  RopeStyle style = RopeStyle::kHalf;
  std::int64_t num_tokens = 0;  // T: 0..2^31-1; 0 is a no-op
  int kv_heads = 0;             // 1..8192
  int q_heads = 0;              // 0..8192; 0: no q
  int k_dim = 0;                // even, 2..512; also q's width
  int v_dim = 0;                // even, 2..512
  int rotary_dim = 0;  // even, 0..k_dim; 0: nothing turns, cos, sin and positions are not read

  const void* k = nullptr;  // [T, kv_heads, k_dim]
  const void* v = nullptr;  // [T, kv_heads, v_dim]
  const void* q = nullptr;  // [T, q_heads, k_dim]
  void* q_out = nullptr;    // [T, q_heads, k_dim], strides as q; may be q itself, else no overlap
  std::int64_t k_token_stride = 0, k_head_stride = 0;
  std::int64_t v_token_stride = 0, v_head_stride = 0;
  std::int64_t q_token_stride = 0, q_head_stride = 0;

  const std::int64_t* slots = nullptr;      // [T]
  const std::int32_t* positions = nullptr;  // [position_sections, T]
  int position_sections = 1;                // 1, or 3: mrope, each pair turns by one of them
  std::int64_t section_stride = 0;          // elements from one section to the next; 0: T
  int section_pairs[3] = {0, 0, 0};         // mrope: pairs of each section, sum rotary_dim / 2
  MropeLayout section_layout = MropeLayout::kSectioned;
  const float* cos = nullptr;  // [num_positions, rotary_dim / 2]
  const float* sin = nullptr;  // [num_positions, rotary_dim / 2]
  std::int64_t num_positions = 0;
  // Two tables, for tokens of sequences that turn by one or the other: cos and sin are then
  // [2, num_positions, rotary_dim / 2], and token t takes the second where table_choice[t] has a
  // bit of table_mask. Null: one table.
  const std::uint32_t* table_choice = nullptr;  // [T]
  std::uint32_t table_mask = 0;

  void* k_cache = nullptr;
  void* v_cache = nullptr;
  std::int64_t num_slots = 0;  // blocks * block_size; with 0 the caches may be null
  int block_size = 1;
  std::int64_t k_block_stride = 0, k_row_stride = 0, k_cache_head_stride = 0;
  std::int64_t v_block_stride = 0, v_row_stride = 0, v_cache_head_stride = 0;

  // Where faults go: a record, or a device word that holds a record's address at run time (so that
  // a captured graph can be pointed at another record); null: not recorded.
  FaultRecord* fault = nullptr;
  FaultRecord* const* fault_indirect = nullptr;

  bool check_slots = false;              // true: kUnsupported
  float k_scale = 1.0F, v_scale = 1.0F;  // fp8 only
};

// Errors: as RopeUpdate (kInvalidArgument also for q_out overlapping q).
Status AppendRope(Device& device, const AppendRopeParams& params, Stream stream);

}  // namespace lariat
