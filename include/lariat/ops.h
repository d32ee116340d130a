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

// Which of a token's two numbers is out of range.
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

// Programmatic dependent launch: whether an operation's kernel may start while the kernel before it
// in the stream is still at work. Results are the same bits whichever it is, as long as the promise
// is kept. On devices before sm_90 and off CUDA it is kOff.
//   kOff: the kernel starts when the one before it has ended.
//   kAfterWait: it starts early, and touches no memory before all work that came before it in the
//     stream has ended and can be seen. Safe everywhere (where kernels of others that are dependent
//     launches wait too before they end, as those of this library do).
//   kIndexEarly: it starts early, and loads its indices and tables at once: slots, positions,
//     table_choice, cos and sin. Everything else waits as in kAfterWait. The caller promises that
//     no kernel that may still be running writes those. Such are the kernel before it in the stream
//     and, where that one is a dependent launch itself (of any library), the kernel before that one
//     too, and so on back to the first that is none. The arrays of a step are written by its
//     Prepare: the promise holds for an append where a kernel that is no dependent launch lies in
//     between.
// An operation lets the kernel behind it start early as well; what that one does with it is its own
// launch's choice.
enum class DependentLaunch : std::uint8_t { kOff, kAfterWait, kIndexEarly };

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
  DependentLaunch dependent_launch = DependentLaunch::kOff;
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
  // With mrope or kInterleavedToHalf kOff, whatever is asked.
  DependentLaunch dependent_launch = DependentLaunch::kOff;
};

// Errors: as RopeUpdate (kInvalidArgument also for q_out overlapping q).
Status AppendRope(Device& device, const AppendRopeParams& params, Stream stream);

// --- Multi-head latent attention ------------------------------------------------------------
//
// Matrix products accumulate in fp32 and round once to the type they are stored in. fp32 inputs are
// multiplied as fp32; allow_tf32 lets the device round them to TF32 first. The same call on the
// same device gives the same bits; docs/numerics.md has the bounds.
//
// The products' scratch memory and chosen algorithms belong to the device, one workspace per
// stream. Warmup makes them; a call that finds them missing makes them itself, which allocates, and
// answers kNotReady where the stream is being captured. A workspace grows in Warmup and never moves
// under a captured graph; a graph uses that of the stream it was captured on, so its replays must
// not run at the same time as calls on that stream, or on a later one that has its handle. On the
// CPU scratch belongs to the calling thread.

// How the matrix of a linear layer lies: rows of outputs as checkpoints hold it, or transposed.
enum class WeightLayout : std::uint8_t {
  kOutIn,  // [outputs, inputs], row-major
  kInOut   // [inputs, outputs], row-major
};

// Which of the two ways a MlaCompress takes.
//   kFused: one launch, the latent stays on chip. Built on CUDA, for in-out weights that are small
//     enough to be read by every block of the launch.
//   kGemm: a down-projection into the latent, then the up-projections, as GEMMs.
//   kAuto: kFused where it fits and is the faster one by the rule of MlaCompressPathOf.
enum class MlaPath : std::uint8_t { kAuto, kFused, kGemm };

// MlaCompress: hidden states to keys and values through a latent, without norm or RoPE.
//   latent = round(hidden W_down), k = round(latent W_up_k), v = round(latent W_up_v)
// where round is to dtype: the same latent enters both products in every path.
//   To stack both outputs as kv [T, 2, H, D], set v = k + H * D and both token strides to
//   2 * H * D. Where the outputs lie one behind the other like that and the up-projections do too
//   (PackUpProjections), both are one GEMM.
//   A stride is 0, or from the width of a row to 2^31-1. Outputs share no element with inputs or
//   with one another, but may be columns of one buffer.
struct MlaCompressParams {
  DType dtype = DType::kBF16;   // of everything: fp32, fp16, bf16
  std::int64_t num_tokens = 0;  // T: 0..2^31-1; 0 is a no-op
  int model_dim = 0;            // 1..2^20
  int rank = 0;                 // 1..65536
  int heads = 0;                // 1..8192
  int k_dim = 0;                // 1..8192
  int v_dim = 0;                // 1..8192; 0: no v
  WeightLayout layout = WeightLayout::kInOut;
  MlaPath path = MlaPath::kAuto;
  bool allow_tf32 = false;
  // Of the first kernel where it is one of ours: of kFused, or a down-projection of few tokens, as
  // in MlaAppendParams. Else kOff. kIndexEarly loads weights at once, and needs that promise for
  // them.
  DependentLaunch dependent_launch = DependentLaunch::kOff;

  const void* hidden = nullptr;    // [T, model_dim]
  std::int64_t hidden_stride = 0;  // elements from token to token; 0: contiguous, as everywhere
  // Weights; a stride counts elements from row to row of the matrix as it lies.
  const void* w_down = nullptr;  // kInOut: [model_dim, rank]
  std::int64_t w_down_stride = 0;
  const void* w_up_k = nullptr;  // kInOut: [rank, heads * k_dim]
  const void* w_up_v = nullptr;  // kInOut: [rank, heads * v_dim]
  std::int64_t w_up_k_stride = 0, w_up_v_stride = 0;

  void* k = nullptr;  // [T, heads, k_dim]
  void* v = nullptr;  // [T, heads, v_dim]
  std::int64_t k_token_stride = 0, v_token_stride = 0;
  void* latent = nullptr;  // [T, rank]; null: not wanted
  std::int64_t latent_stride = 0;
};

// Errors: kInvalidArgument (a field out of range, a missing or misaligned pointer, outputs that
//   overlap inputs or one another), kUnsupported (dtype; path kFused where it does not fit),
//   kNotReady (captured before Warmup), kResourceExhausted (workspace), kDeviceError.
Status MlaCompress(Device& device, const MlaCompressParams& params, Stream stream);

// The path that kAuto takes: kFused or kGemm, by shape, type and layout alone; on the CPU kGemm.
// Where many tokens take kFused, fewer do too.
MlaPath MlaCompressPathOf(const Device& device, const MlaCompressParams& params);

// Copies two up-projections behind one another into `packed`, which then takes their place: row by
// row for kInOut (both strides become heads * (k_dim + v_dim)), else w_up_v behind w_up_k. Points
// w_up_k, w_up_v and their strides there. dtype, rank, heads, k_dim, v_dim, layout and the two
// matrices are read.
//   packed: rank * heads * (k_dim + v_dim) elements
// Errors: as MlaCompress.
Status PackUpProjections(Device& device, MlaCompressParams& params, void* packed, Stream stream);

// MlaAppend: stores one latent row per token, [c_kv | k_pe]: the latent after its RMSNorm, then the
// part of the key that turns. Slots, positions, tables and faults are as for AppendRope.
//   From hidden: row = round(hidden W_down) to in_dtype, then as from given rows.
//   From given rows: with x the latent and w its norm's weight,
//     c_kv = x * (1 / sqrt(sum(x^2) / rank + eps)) * w
//   in fp32, each operation rounded, the sum in the order that docs/numerics.md fixes; k_pe turned;
//   one rounding to dtype. These are the same bits on CPU and CUDA.
struct MlaAppendParams {
  DType in_dtype = DType::kBF16;  // of hidden, w_down, c_kv, k_pe, norm_weight: fp32, fp16, bf16
  DType dtype = DType::kBF16;     // stored: in_dtype, or narrower than fp32
  RopeStyle style = RopeStyle::kInterleaved;
  std::int64_t num_tokens = 0;  // T: 0..2^31-1; 0 is a no-op
  int rank = 0;                 // kv_lora_rank: 1..65536
  int rope_dim = 0;             // qk_rope_head_dim: 0..65536; 0: no k_pe
  int rotary_dim = 0;  // elements of k_pe that turn: even, 0..rope_dim; 0: positions are not read

  // Either hidden and the down-projection ...
  const void* hidden = nullptr;  // [T, model_dim]; null: given rows
  std::int64_t hidden_stride = 0;
  int model_dim = 0;  // 1..2^20
  WeightLayout layout = WeightLayout::kOutIn;
  const void* w_down = nullptr;  // kv_a_proj_with_mqa; kOutIn: [rank + rope_dim, model_dim]
  std::int64_t w_down_stride = 0;
  bool allow_tf32 = false;
  // ... or its result.
  const void* c_kv = nullptr;                     // [T, rank], before the norm
  const void* k_pe = nullptr;                     // [T, rope_dim], before RoPE
  std::int64_t c_kv_stride = 0, k_pe_stride = 0;  // elements from token to token

  const void* norm_weight = nullptr;  // [rank]; null: c_kv is stored as it comes
  // >= 0. Of this norm it is 1e-6 in DeepSeek's models, whatever the config's rms_norm_eps
  // (ModelConfig::mla.norm_eps).
  float eps = 1e-6F;

  const std::int64_t* slots = nullptr;      // [T]
  const std::int32_t* positions = nullptr;  // [T]
  const float* cos = nullptr;               // [num_positions, rotary_dim / 2]
  const float* sin = nullptr;               // [num_positions, rotary_dim / 2]
  std::int64_t num_positions = 0;
  const std::uint32_t* table_choice = nullptr;  // as AppendRopeParams
  std::uint32_t table_mask = 0;

  // kIndexEarly loads weights at once too, and needs that promise for them: w_down and norm_weight.
  // From hidden with 1,024 tokens or more it is kOff: the products are then of a kind that lets no
  // kernel start early. The product itself is a dependent launch where it is a kernel of ours: of
  // one token (kAfterWait, kIndexEarly), or of up to 64 (kIndexEarly).
  DependentLaunch dependent_launch = DependentLaunch::kAfterWait;

  void* cache = nullptr;  // row r of block b at b * block_stride + r * row_stride
  std::int64_t num_slots = 0;
  int block_size = 1;
  std::int64_t block_stride = 0, row_stride = 0;  // elements

  FaultRecord* fault = nullptr;
  FaultRecord* const* fault_indirect = nullptr;
};

// One launch from given rows; from hidden, one behind the GEMM.
// Errors: as MlaCompress.
// REQUIRES: the non-negative slots of one call are distinct; a cache's rows do not overlap.
Status MlaAppend(Device& device, const MlaAppendParams& params, Stream stream);

// MlaExpand: cached latents of ragged ranges to keys and values, one row per token.
//   Output row cu_tokens[r] + i is token starts[r] + i of range r, found by row r of block_table:
//     k[t, h] = [round(W_UK[h] c_kv) | k_pe], v[t, h] = round(W_UV[h] c_kv)
//   kv_b_proj holds per head nope_dim rows of W_UK, then v_dim rows of W_UV.
//   Rows past cu_tokens[num_ranges] and rows whose block is not in [0, num_blocks) come out as from
//   a latent of zeros; the latter are recorded (kSlot, the row, the block), as is a token index
//   below 0 or past the table's row (kPosition, the row, the index).
struct MlaExpandParams {
  DType dtype = DType::kBF16;   // of everything: fp32, fp16, bf16
  std::int64_t num_tokens = 0;  // output rows: 0..2^31-1; 0 is a no-op
  int heads = 0;                // 1..8192
  int rank = 0;                 // 1..65536
  int rope_dim = 0;             // 0..8192
  int nope_dim = 0;             // 0..8192; 0: k is k_pe alone
  int v_dim = 0;                // 0..8192; 0: no v
  WeightLayout layout = WeightLayout::kOutIn;
  const void* w_kv_b = nullptr;  // kOutIn: [heads * (nope_dim + v_dim), rank]
  std::int64_t w_kv_b_stride = 0;
  bool allow_tf32 = false;

  int num_ranges = 0;                         // 0..2^31-1
  const std::int32_t* cu_tokens = nullptr;    // [num_ranges + 1], ascending from 0
  const std::int32_t* starts = nullptr;       // [num_ranges]; null: all 0
  const std::int32_t* block_table = nullptr;  // [num_ranges, block_table_stride]
  std::int64_t block_table_stride = 0;        // entries of a row, >= 1

  const void* cache = nullptr;  // rows of rank + rope_dim, as MlaAppendParams
  std::int64_t num_blocks = 0;
  int block_size = 1;
  std::int64_t block_stride = 0, row_stride = 0;

  void* k = nullptr;  // [T, heads, nope_dim + rope_dim]; may be null where that width is 0
  void* v = nullptr;  // [T, heads, v_dim]
  std::int64_t k_token_stride = 0, v_token_stride = 0;

  FaultRecord* fault = nullptr;
  FaultRecord* const* fault_indirect = nullptr;
};

// A gather (which also writes k_pe to every head) and one GEMM for k and one for v.
// Errors: as MlaCompress.
Status MlaExpand(Device& device, const MlaExpandParams& params, Stream stream);

// One matrix per head within kv_b_proj: element (row, column) of head h is at
// data + h * head_stride + row * row_stride + column * column_stride, in elements.
struct HeadMatrices {
  const void* data = nullptr;
  int heads = 0, rows = 0, columns = 0;
  std::int64_t head_stride = 0, row_stride = 0, column_stride = 0;
};

// W_UK and W_UV as absorbed attention multiplies by them: the query of head h becomes
// W_UK[h]^T q_nope, of rank elements, and meets latents; its output is W_UV[h] (sum p c_kv). The
// softmax scale stays that of the whole head, 1 / sqrt(nope_dim + rope_dim), times
// SoftmaxScaleFactor.
struct AbsorbedProjections {
  HeadMatrices w_uk;  // [heads][nope_dim, rank]
  HeadMatrices w_uv;  // [heads][v_dim, rank]
};

// Views; nothing is copied or read. dtype, heads, rank, nope_dim, v_dim, layout, w_kv_b and its
// stride are used. Errors: kInvalidArgument, kUnsupported (dtype).
Result<AbsorbedProjections> AbsorbViews(const MlaExpandParams& params);

// Gets the device ready for calls like this one with up to params.num_tokens tokens on `stream`:
// chooses the algorithms of each bucket of T and makes the workspace. Widths, types, layouts and
// strides are read, and the alignment of pointers that are not null; a null pointer counts as
// aligned. A MlaAppend is one from hidden where hidden is set or model_dim is not 0. May allocate
// and block the host, which then tries algorithms on matrices of its own; not to be captured.
// Errors: as the call itself.
Status Warmup(Device& device, const MlaCompressParams& params, Stream stream);
Status Warmup(Device& device, const MlaAppendParams& params, Stream stream);
Status Warmup(Device& device, const MlaExpandParams& params, Stream stream);

// Bytes of the stream's workspace that such a call takes, all its uses together. 0 on the null
// backend.
Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaCompressParams& params);
Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaAppendParams& params);
Result<std::int64_t> WorkspaceBytes(const Device& device, const MlaExpandParams& params);

}  // namespace lariat
