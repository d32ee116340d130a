// SPDX-License-Identifier: Apache-2.0
#include "support/row_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/catch.h"

namespace lariat::testing {

namespace {

std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ULL + b + 0x2545F4914F6CDD1DULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

double Decode(DType dtype, const void* from) {
  if (dtype == DType::kFP32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  if (dtype == DType::kBF16) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? std::numeric_limits<double>::quiet_NaN()
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

// Compares an entry of a step's array.
std::string Differs(const char* array, std::int64_t i, std::int64_t got, std::int64_t want) {
  if (got == want) return "";
  return std::string(array) + "[" + std::to_string(i) + "] is " + std::to_string(got) +
         ", should be " + std::to_string(want);
}

}  // namespace

CacheConfig RowWorld::Config(const WorldOptions& options) {
  CacheConfig config;
  const LayerSpec layer{.kind = options.kind,
                        .kv_heads = options.kv_heads,
                        .k_dim = options.k_dim,
                        .v_dim = options.v_dim,
                        .rope = options.rope ? 0 : -1};
  config.layers.assign(static_cast<std::size_t>(options.layers), layer);
  for (const LayerSpec& other : options.more) {
    config.layers.push_back(other);
    config.layers.back().rope = layer.rope;
  }
  if (options.rope) {
    RopeSpec& rope = config.ropes.emplace_back();
    rope.style = options.style;
    rope.rotary_dim = options.rotary_dim;
    rope.theta = 100.0;
  }
  config.dtype = options.dtype;
  config.memory.num_blocks = options.blocks;
  config.block_size = static_cast<int>(options.block_size);
  config.layout = options.layout;
  config.order = options.order;
  config.reader_arrays = options.reader_arrays;
  config.host = options.host;
  config.reuse = options.reuse;
  config.eviction = options.eviction;
  config.max_pinned_blocks = options.max_pinned_blocks;
  config.max_steps_in_flight = options.steps_in_flight;
  config.max_sequences = options.max_sequences;
  config.max_tokens_per_sequence = options.max_tokens_per_sequence;
  config.max_tokens_per_step = options.max_tokens_per_step;
  return config;
}

RowWorld::RowWorld(const WorldOptions& options, const Device& device, Enqueue enqueue)
    : options_(options),
      enqueue_(std::move(enqueue)),
      inputs_on_(enqueue_ ? *Device::Create(BackendKind::kCpu) : device) {
  auto made = KVCache::Create(Config(options), device);
  if (!made.ok()) FAIL(made.status().ToString());
  cache_ = std::make_unique<KVCache>(*std::move(made));
  layers_ = cache_->config().layers;
  groups_ = cache_->footprint().num_groups;
  if (options_.latent > 0) MakeLatentTables();
}

void RowWorld::Wrong(const std::string& what) {
  if (errors_.size() < 2000) errors_ += what + "\n";
}

// --- Rows -----------------------------------------------------------------------------------

void RowWorld::Feed(WorldSequence& sequence, TokenId token, std::int32_t position) {
  std::uint64_t before = sequence.rows.empty() ? 0 : sequence.rows.back().hash;
  if (sequence.rows.empty()) {
    for (const char c : sequence.salt) before = Mix(before, static_cast<unsigned char>(c));
  }
  sequence.tokens.push_back(token);
  sequence.rows.push_back({Mix(before, static_cast<std::uint32_t>(token)), position});
}

// Multiples of 1/128 in [-1, 1): exact in every type.
double RowWorld::Element(const WorldRow& row, int layer, int head, bool key, int i) {
  const std::uint64_t place = static_cast<std::uint64_t>(layer) << 32 |
                              static_cast<std::uint64_t>(head) << 16 |
                              static_cast<std::uint64_t>(i) << 1 | (key ? 1U : 0U);
  return static_cast<double>(Mix(row.hash, place) % 256) / 128.0 - 1.0;
}

// The row as stored: V as it came, K rotated in double.
void RowWorld::Value(std::vector<double>& out, const WorldRow& row, int layer, int head,
                     bool key) const {
  const LayerSpec& spec = layers_.at(static_cast<std::size_t>(layer));
  out.resize(static_cast<std::size_t>(key ? spec.k_dim : spec.v_dim));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = Element(row, layer, head, key, static_cast<int>(i));
  }
  if (!key || !options_.rope) return;
  const std::size_t half = static_cast<std::size_t>(options_.rotary_dim) / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double angle =
        row.position * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
    const bool pairs = options_.style == RopeStyle::kInterleaved;
    double& x = out[pairs ? 2 * i : i];
    double& y = out[pairs ? 2 * i + 1 : i + half];
    const double turned = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = turned;
  }
}

// Rotated keys: inputs are at most 1; a table entry, two products and a sum of at most 2 are each
// rounded once in fp32: below 6 * 2^-24 < 4 * 2^-23. Then one rounding to a stored type of 8 or 11
// bits of a value below 2: at most 2^-8, 2^-11. All else is exact.
std::string RowWorld::Compare(const void* got, const WorldRow& row, int layer, int head, bool key) {
  if (layers_.at(static_cast<std::size_t>(layer)).kind == LayerKind::kMla) {
    if (!key) return "";
    const std::vector<char>& want = LatentRow(row, layer);
    return std::memcmp(got, want.data(), want.size()) == 0 ? "" : "a latent row is another one";
  }
  double tolerance = 0;
  if (key && options_.rope) {
    tolerance = 4 * 0x1p-23;
    if (options_.dtype == DType::kBF16) tolerance += 0x1p-8;
    if (options_.dtype == DType::kFP16) tolerance += 0x1p-11;
  }
  std::vector<double> want;
  Value(want, row, layer, head, key);
  const char* at = static_cast<const char*>(got);
  for (const double value : want) {
    const double stored = Decode(options_.dtype, at);
    at += SizeOf(options_.dtype);
    if (!(std::abs(stored - value) <= tolerance)) {
      return std::string(key ? "K" : "V") + " is " + std::to_string(stored) + ", should be " +
             std::to_string(value);
    }
  }
  return "";
}

// --- Latent rows ----------------------------------------------------------------------------

// One norm weight for all layers, and the rope's rows.
void RowWorld::MakeLatentTables() {
  for (int i = 0; i < options_.latent; ++i) {
    norm_weight_.push_back(static_cast<float>(i + 1) * (i % 2 == 0 ? 0.375F : -1.0F));
  }
  if (!options_.rope) return;
  const auto frequencies = ComputeRopeFrequencies(Config(options_).ropes[0]);
  if (!frequencies.ok()) FAIL(frequencies.status().ToString());
  const std::int64_t positions = options_.max_tokens_per_sequence;
  cos_.resize(static_cast<std::size_t>(positions) * frequencies->inv_freq.size());
  sin_.resize(cos_.size());
  FillRopeTable(*frequencies, 0, positions, cos_, sin_);
}

// What MlaAppend by itself stores for a row.
const std::vector<char>& RowWorld::LatentRow(const WorldRow& row, int layer) {
  std::vector<char>& stored = latents_[{row.hash, row.position, layer}];
  if (!stored.empty()) return stored;
  std::vector<float> input;
  const int width = layers_.at(static_cast<std::size_t>(layer)).k_dim;
  for (int i = 0; i < width; ++i) {
    input.push_back(static_cast<float>(Element(row, layer, 0, true, i)));
  }
  stored.resize(static_cast<std::size_t>(width) * SizeOf(options_.dtype));
  const std::int64_t slot = 0;
  MlaAppendParams params;
  params.in_dtype = DType::kFP32;
  params.dtype = options_.dtype;
  params.style = options_.style;
  params.num_tokens = 1;
  params.rank = options_.latent;
  params.rope_dim = width - options_.latent;
  params.rotary_dim = options_.rope ? options_.rotary_dim : 0;
  params.c_kv = input.data();
  params.k_pe = input.data() + options_.latent;
  params.norm_weight = norm_weight_.data();
  params.slots = &slot;
  params.positions = &row.position;
  params.cos = cos_.data();
  params.sin = sin_.data();
  params.num_positions = options_.max_tokens_per_sequence;
  params.cache = stored.data();
  params.num_slots = 1;
  Device eager = *Device::Create(BackendKind::kCpu);
  if (const Status status = MlaAppend(eager, params, {}); !status.ok()) FAIL(status.ToString());
  return stored;
}

void RowWorld::Read(const Expected& expected) {
  ++readers_run_;
  const StepView view = cache_->View();
  const auto same = [&](const char* array, std::int64_t i, std::int64_t got, std::int64_t want) {
    if (got != want) Wrong(Differs(array, i, got, want));
  };
  for (std::int64_t b = 0; b < expected.padded_sequences; ++b) {
    const bool real = b < std::ssize(expected.entries);
    const Expected::Entry entry = real ? expected.entries[b] : Expected::Entry{};
    same("cu_seqlens", b, view.cu_seqlens[b], real ? entry.first_row : expected.tokens);
    same("seqused_k", b, view.seqused_k[b], entry.start + entry.count);
    for (std::int64_t i = 0; i < entry.count; ++i) {
      same("positions", entry.first_row + i, view.positions[entry.first_row + i],
           entry.rows[entry.start + i].position);
    }
  }
  same("cu_seqlens", expected.padded_sequences, view.cu_seqlens[expected.padded_sequences],
       expected.tokens);
  for (std::int64_t t = expected.tokens; t < expected.padded_tokens; ++t) {
    same("padding positions", t, view.positions[t], 0);
  }
  for (int group = 0; group < groups_; ++group) {
    ReadTables(expected, group);
    if (options_.reader_arrays) ReadPages(expected, group);
  }
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    ReadLayer(expected, layer);
  }
}

// Slots and block tables of a group. Of what was given back a table names any block.
void RowWorld::ReadTables(const Expected& expected, int group) {
  const StepView view = cache_->View(group);
  const auto same = [&](const char* array, std::int64_t i, std::int64_t got, std::int64_t want) {
    if (got != want) Wrong("group " + std::to_string(group) + ": " + Differs(array, i, got, want));
  };
  const std::int64_t block = options_.block_size;
  for (std::int64_t b = 0; b < expected.padded_sequences; ++b) {
    const bool real = b < std::ssize(expected.entries);
    const Expected::Entry entry = real ? expected.entries[b] : Expected::Entry{};
    const std::int64_t length = entry.start + entry.count;
    const std::int32_t* const row = view.block_table + b * view.block_table_stride;
    for (std::int64_t j = 0; j < view.block_table_stride; ++j) {
      const std::int32_t want = j * block < length ? entry.tables.at(group).at(j) : 0;
      if (want >= 0) same("block_table", b * view.block_table_stride + j, row[j], want);
      if (row[j] < 0 || row[j] >= options_.blocks) Wrong("a table's entry is no block");
    }
    for (std::int64_t n = entry.start; n < length; ++n) {
      const std::int64_t i = entry.first_row + n - entry.start;
      same("slots", i, view.slots[i], entry.tables[group][n / block] * block + n % block);
    }
  }
  for (std::int64_t t = expected.tokens; t < expected.padded_tokens; ++t) {
    same("padding slots", t, view.slots[t], -1);
  }
}

// The lists of blocks: from that of the first token that is attended to, to that of the last row.
void RowWorld::ReadPages(const Expected& expected, int group) {
  const StepView view = cache_->View(group);
  const auto same = [&](const char* array, std::int64_t i, std::int64_t got, std::int64_t want) {
    if (got != want) Wrong("group " + std::to_string(group) + ": " + Differs(array, i, got, want));
  };
  int layer = 0;
  while (cache_->Layer(layer)->group != group) ++layer;
  const std::int64_t block = options_.block_size;
  std::int64_t pages = 0;
  for (std::int64_t b = 0; b < expected.padded_sequences; ++b) {
    same("kv_indptr", b, view.kv_indptr[b], pages);
    if (b >= std::ssize(expected.entries)) {
      same("padding kv_start", b, view.kv_start[b], 0);
      same("padding last_page_len", b, view.last_page_len[b], 0);
      continue;
    }
    const Expected::Entry& entry = expected.entries[b];
    const std::int64_t first = FirstAttended(layers_[layer], entry.start) / block;
    same("kv_start", b, view.kv_start[b], first * block);
    std::int64_t j = first;
    for (; j * block < entry.start + entry.count; ++j) {
      same("kv_indices", pages, view.kv_indices[pages], entry.tables.at(group).at(j));
      ++pages;
    }
    same("last_page_len", b, view.last_page_len[b], entry.start + entry.count - (j - 1) * block);
    for (std::int64_t i = 0; i < entry.count; ++i) {
      same("batch_indices", entry.first_row + i, view.batch_indices[entry.first_row + i], b);
    }
  }
  same("kv_indptr", expected.padded_sequences, view.kv_indptr[expected.padded_sequences], pages);
  for (std::int64_t t = expected.tokens; t < expected.padded_tokens; ++t) {
    same("padding batch_indices", t, view.batch_indices[t], -1);
  }
}

// What the step's rows attend to in one layer.
void RowWorld::ReadLayer(const Expected& expected, int layer) {
  const std::int64_t block = options_.block_size;
  const LayerView planes = *cache_->Layer(layer);
  const std::int64_t size = static_cast<std::int64_t>(SizeOf(planes.dtype));
  for (const Expected::Entry& entry : expected.entries) {
    const std::vector<std::int32_t>& table = entry.tables.at(planes.group);
    std::int64_t n = FirstAttended(layers_[layer], entry.start);
    for (; n < std::ssize(entry.rows); ++n) {
      if (table[n / block] < 0) {
        Wrong("a reader's token " + std::to_string(n) + " was given back");
        continue;
      }
      for (int head = 0; head < planes.kv_heads; ++head) {
        const std::int64_t k = table[n / block] * planes.k_block_stride +
                               n % block * planes.k_row_stride + head * planes.k_head_stride;
        const std::int64_t v = table[n / block] * planes.v_block_stride +
                               n % block * planes.v_row_stride + head * planes.v_head_stride;
        const std::string wrong =
            Compare(static_cast<char*>(planes.k) + k * size, entry.rows[n], layer, head, true) +
            Compare(static_cast<char*>(planes.v) + v * size, entry.rows[n], layer, head, false);
        if (!wrong.empty()) {
          Wrong("layer " + std::to_string(layer) + ": a reader's token " + std::to_string(n) +
                " in block " + std::to_string(table[n / block]) + ": " + wrong);
        }
      }
    }
  }
}

void RowWorld::CheckRows() {
  for (const auto& [id, sequence] : sequences_) {
    const auto extent = cache_->GetExtent(id);
    if (!extent.ok() || extent->settled != sequence.settled) {
      Wrong("settled is " + std::to_string(extent.ok() ? extent->settled : -1) + ", should be " +
            std::to_string(sequence.settled));
      continue;
    }
    if (sequence.away) {
      if (cache_->ReadRows(id, 0, 0, 0, nullptr, nullptr).code() != Code::kNotReady) {
        Wrong("rows of a sequence that is away can be read");
      }
      continue;
    }
    // Until the first Commit those of the hit, as far as whole blocks have them.
    const std::int64_t length = sequence.settled > 0
                                    ? sequence.settled
                                    : sequence.base / options_.block_size * options_.block_size;
    for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
      if (length > 0) CheckRows(id, sequence, layer, length);
    }
  }
}

void RowWorld::CheckRows(SequenceId id, const WorldSequence& sequence, int layer,
                         std::int64_t length) {
  const LayerSpec& spec = layers_[layer];
  const std::size_t size = SizeOf(options_.dtype);
  const auto k_head = static_cast<std::size_t>(spec.k_dim) * size;
  const auto v_head = static_cast<std::size_t>(spec.v_dim) * size;
  const auto heads = static_cast<std::size_t>(spec.kv_heads);
  const auto first = cache_->FirstRow(id, layer);
  if (!first.ok() || *first > FirstAttended(spec, std::max(sequence.settled, sequence.base))) {
    return Wrong("layer " + std::to_string(layer) + " has its rows from " +
                 (first.ok() ? std::to_string(*first) : first.status().ToString()) +
                 " on only, of " + std::to_string(length));
  }
  if (*first >= length) return;
  const auto count = static_cast<std::size_t>(length - *first);
  std::vector<char> k(count * heads * k_head, 0x7f), v(count * heads * v_head, 0x7f);
  const Status read = cache_->ReadRows(id, layer, *first, length - *first, k.data(), v.data());
  if (!read.ok()) {
    // A hit that was removed from the index since cannot be read until it is settled.
    if (sequence.settled == 0 && read.code() == Code::kInvalidArgument) return;
    return Wrong("ReadRows: " + read.ToString());
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t n = static_cast<std::size_t>(*first) + i;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t at = i * heads + head;
      const int h = static_cast<int>(head);
      const std::string wrong = Compare(k.data() + at * k_head, sequence.rows[n], layer, h, true) +
                                Compare(v.data() + at * v_head, sequence.rows[n], layer, h, false);
      if (!wrong.empty()) {
        Wrong("layer " + std::to_string(layer) + ": ReadRows' token " + std::to_string(n) + ": " +
              wrong);
      }
    }
  }
}

}  // namespace lariat::testing
