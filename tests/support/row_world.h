// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lariat/kv_cache.h"

namespace lariat::testing {

// A naive K/V store beside a real cache: every row's K and V are a function of the tokens up to it,
// so whoever has the same prefix must read the same bytes, and whoever has not, other ones. MLA's
// rows are K alone, and must be the bits that the operation stores when it is called by itself.
//
// After each step's appends it leaves a reader on the stream, as an attention kernel would stand
// there: when the reader runs, late perhaps, it compares the step's arrays and every row of the
// batch, through the block table, with the naive store as it was when the step was planned.
struct WorldOptions {
  DType dtype = DType::kFP32;
  std::int64_t block_size = 4;
  std::int64_t blocks = 24;
  int layers = 2, kv_heads = 2, k_dim = 4, v_dim = 6;
  bool rope = true;
  RopeStyle style = RopeStyle::kHalf;
  int rotary_dim = 4;
  int steps_in_flight = 2;
  int max_sequences = 6;
  std::int64_t max_tokens_per_sequence = 48;
  std::int64_t max_tokens_per_step = 64;
  Layout layout = Layout::kBlockMajor;
  Order order = Order::kNHD;
  bool reader_arrays = false;
  Reuse reuse = Reuse::kBlock;
  HostTier host = {};
  LayerKind kind = LayerKind::kFull;
  int latent = 0;                    // kv_lora_rank of MLA layers (which have kv_heads 1, v_dim 0)
  std::vector<LayerSpec> more = {};  // layers behind those: other groups
  EvictionPolicy eviction = EvictionPolicy::kLru;
  std::int64_t max_pinned_blocks = 0;
};

// Latents of 5 elements, k_pe of 6, of which 4 turn.
inline WorldOptions MlaWorld(WorldOptions options = {}) {
  options.kv_heads = 1;
  options.k_dim = 11;
  options.v_dim = 0;
  options.kind = LayerKind::kMla;
  options.latent = 5;
  return options;
}

// The first token that a row at `position` of such a layer attends to.
inline std::int64_t FirstAttended(const LayerSpec& layer, std::int64_t position) {
  if (layer.kind == LayerKind::kChunked) return position / layer.window * layer.window;
  if (layer.kind != LayerKind::kSliding) return 0;
  return position < layer.window ? 0 : position - (layer.window - 1);
}

struct WorldRow {
  std::uint64_t hash = 0;  // of the salt and the tokens up to and with this one
  std::int32_t position = 0;
};

struct WorldSequence {
  std::string salt;
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;  // planned rows
  std::vector<WorldRow> rows;   // of `tokens`
  std::int64_t settled = 0;
  std::int64_t base = 0;  // settled, or the hit of a first step that is live
  bool away = false;      // suspended or in transit
};

struct WorldItem {
  SequenceId sequence = SequenceId::kNone;
  std::int64_t num_tokens = 1;
  std::int64_t num_drafts = 0;
  std::vector<TokenId> tokens = {};  // fed past the prompt; missing ones are made up
  std::vector<std::int32_t> positions = {};
};

struct WorldStep {
  Step step;
  std::vector<StepRows> rows;
  std::map<SequenceId, std::int64_t> drafts;
  std::map<SequenceId, std::int64_t> left;  // rows that no Truncate dropped
};

class RowWorld {
 public:
  // enqueue: puts work behind what is on the stream; runs it at once where the device is eager.
  //   Null: no reader is left, and what appends read is memory that any device can; for devices
  //   whose memory the host cannot read.
  using Enqueue = std::function<void(Stream, std::function<void()>)>;
  static CacheConfig Config(const WorldOptions& options);
  // Fails the test if the cache cannot be made.
  RowWorld(const WorldOptions& options, const Device& device, Enqueue enqueue);

  KVCache& cache() { return *cache_; }
  std::map<SequenceId, WorldSequence>& sequences() { return sequences_; }
  std::deque<WorldStep>& live() { return live_; }
  // What readers and checks found wrong, "" if nothing.
  const std::string& errors() const { return errors_; }
  std::int64_t readers_run() const { return readers_run_; }

  Result<SequenceId> Open(const std::vector<TokenId>& prompt, const std::string& salt = "",
                          std::span<const Retention> retention = {});
  // Plan, Prepare, all Appends and the reader.
  Status Run(const std::vector<WorldItem>& items, Stream stream, const StepShape& shape = {});
  // The three parts of it.
  Status Plan(const std::vector<WorldItem>& items, const StepShape& shape, Step& step);
  Status Prepare(Step step, const std::vector<WorldItem>& items, Stream stream);
  Status AppendAll(Stream stream);

  // kept: of each named sequence; the others keep all. given: how many ids are told, at most.
  Status Commit(Stream stream, const std::map<SequenceId, std::int64_t>& kept = {},
                std::int64_t given = 1 << 20);
  Status DiscardLast(Stream stream);
  Status Close(SequenceId id);
  Status Truncate(SequenceId id, std::int64_t length);
  Result<SequenceId> Fork(SequenceId id, std::int64_t length = -1);
  // Tells the cache the ids it was not told.
  Status TellAll(SequenceId id);
  // Transfers. Their sequences are away until they are accepted, or a suspended one resumed.
  Result<TransferId> Fetch(SequenceId id) { return Start(id, cache_->Fetch(id), true); }
  Result<TransferId> Suspend(SequenceId id) { return Start(id, cache_->Suspend(id), false); }
  Result<TransferId> Resume(SequenceId id) { return Start(id, cache_->Resume(id), true); }
  // Not accepted yet, with the sequence that waits for it.
  const std::map<TransferId, SequenceId>& transfers() const { return transfers_; }
  Result<TransferReport> Accept(TransferId id);
  // Compares all settled rows of all sequences, and those of hits, by ReadRows, from where a
  // layer's window begins.
  void CheckRows();

 private:
  // A step's batch as the naive store has it when the step is prepared.
  struct Expected {
    struct Entry {
      std::int64_t first_row = 0, start = 0, count = 0;
      std::vector<WorldRow> rows;                     // [start + count]
      std::vector<std::vector<std::int32_t>> tables;  // by group
    };
    std::vector<Entry> entries;
    std::int64_t tokens = 0, padded_tokens = 0;
    int padded_sequences = 0;
  };

  Result<TransferId> Start(SequenceId id, const Result<TransferId>& started, bool up);
  void CheckRows(SequenceId id, const WorldSequence& sequence, int layer, std::int64_t length);
  static double Element(const WorldRow& row, int layer, int head, bool key, int i);
  void MakeLatentTables();
  Status AppendLayer(int layer, const float* k, const float* v, Stream stream);
  const std::vector<char>& LatentRow(const WorldRow& row, int layer);
  void Feed(WorldSequence& sequence, TokenId token, std::int32_t position);
  void Value(std::vector<double>& out, const WorldRow& row, int layer, int head, bool key) const;
  std::string Compare(const void* got, const WorldRow& row, int layer, int head, bool key);
  void Read(const Expected& expected);
  void ReadTables(const Expected& expected, int group);
  void ReadPages(const Expected& expected, int group);
  void ReadLayer(const Expected& expected, int layer);
  void Wrong(const std::string& what);

  WorldOptions options_;
  std::vector<LayerSpec> layers_;
  int groups_ = 1;
  Enqueue enqueue_;
  std::unique_ptr<KVCache> cache_;
  std::map<SequenceId, WorldSequence> sequences_;
  std::deque<WorldStep> live_;
  std::map<TransferId, SequenceId> transfers_;
  Device inputs_on_;                            // what appends read
  std::deque<DeviceBuffer> inputs_;             // must outlive the stream's work
  std::vector<float> norm_weight_, cos_, sin_;  // of MLA
  std::map<std::tuple<std::uint64_t, std::int32_t, int>, std::vector<char>> latents_;
  std::string errors_;
  std::int64_t readers_run_ = 0;
  TokenId made_up_ = -1;
};

}  // namespace lariat::testing
