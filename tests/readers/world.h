// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lariat/kv_cache.h"

// What the programs of this folder share: a cache on a GPU with ragged sequences in it, and
// attention in double over ReadRows, which a foreign kernel's result is compared with.
//
// The kernel reads one layer in the middle of the pool in a step of chunks, and then in a padded
// step of single rows. Logits are not scaled down, so a few rows make most of each output, and a
// row that is read from elsewhere shows.

namespace readers {

// One by one: what the readers' headers bring has names such as Layout, too.
using lariat::AppendInputs;
using lariat::BackendKind;
using lariat::CacheConfig;
using lariat::DType;
using lariat::KVCache;
using lariat::LayerKind;
using lariat::LayerSpec;
using lariat::LayerView;
using lariat::Layout;
using lariat::MlaAppendInputs;
using lariat::Order;
using lariat::Result;
using lariat::Reuse;
using lariat::SequenceId;
using lariat::Status;
using lariat::Step;
using lariat::StepHostView;
using lariat::StepItem;
using lariat::StepRows;
using lariat::StepShape;
using lariat::StepView;

inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(2);
}
template <class T>
T Must(Result<T> result) {
  Must(result.status());
  return *std::move(result);
}
inline void Must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(2);
}

struct Shape {
  Layout layout = Layout::kBlockMajor;
  Order order = Order::kNHD;
  int block_size = 16;
  int kv_heads = 4;
  int q_heads = 16;
  int k_dim = 128;
  int v_dim = 128;  // of the output; of MLA the first elements of a row
  bool mla = false;
  std::string Name() const {
    return std::string(layout == Layout::kBlockMajor ? "block-major " : "layer-major ") +
           (order == Order::kNHD ? "NHD" : "HND") + ", blocks of " + std::to_string(block_size);
  }
};

// One call of a reader. Everything in it is device memory but `host`.
struct Call {
  Shape shape;
  LayerView layer;
  StepView step;
  StepHostView host;
  int sequences = 0;      // padded
  std::int64_t rows = 0;  // padded
  void* q = nullptr;      // bf16 [rows, q_heads, k_dim]
  void* out = nullptr;    // bf16 [rows, q_heads, v_dim]
  float scale = 1.0F;     // of the logits
  cudaStream_t stream = nullptr;
};
using Attend = std::function<void(const Call&)>;

inline std::uint16_t ToBF16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline double FromBF16(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

// Device memory with bf16 in it.
class Numbers {
 public:
  explicit Numbers(const std::vector<std::uint16_t>& values) : count_(values.size()) {
    Must(cudaMalloc(&data_, std::max<std::size_t>(1, count_) * 2));
    Must(cudaMemcpy(data_, values.data(), count_ * 2, cudaMemcpyHostToDevice));
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  ~Numbers() { cudaFree(data_); }
  void* data() const { return data_; }
  std::vector<std::uint16_t> Read() const {
    std::vector<std::uint16_t> values(count_);
    Must(cudaMemcpy(values.data(), data_, count_ * 2, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

class World {
 public:
  explicit World(const Shape& shape) : shape_(shape), cache_(Must(KVCache::Create(Config()))) {
    Must(cudaStreamCreate(&stream_));
  }
  ~World() { cudaStreamDestroy(stream_); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The largest difference that `attend` makes in a step of chunks.
  // causal: false for readers of single rows alone, whose chunks are then one row
  double Chunks(const Attend& attend, bool single_rows = false) {
    Fill();
    const int counts[] = {1, 7, 16, 33, 100, 2, 64};
    std::vector<StepItem> items;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      items.push_back({.sequence = ids_[i], .num_tokens = single_rows ? 1 : counts[i]});
    }
    return Run(items, {}, &attend);
  }
  // The same of one row a sequence, padded as for a captured graph, or not.
  double Decode(const Attend& attend, bool padded) {
    Fill();
    std::vector<StepItem> items;
    for (const SequenceId id : ids_) items.push_back({.sequence = id, .num_tokens = 1});
    const StepShape shape = padded ? StepShape{kSequences, kSequences} : StepShape{};
    return Run(items, shape, &attend);
  }
  // Of what is compared with, how far a right reader may be off: values are below 1, and their
  // weights sum to 1. Weights (2^-9 of each) and the result (2^-9) are rounded to bf16; as much
  // again for exponentials and sums in fp32.
  static constexpr double kBound = 3 * 0x1p-9;

 private:
  static constexpr int kSequences = 10, kLayers = 3, kLayer = 1;

  CacheConfig Config() const {
    CacheConfig config;
    LayerSpec layer{.kv_heads = shape_.kv_heads, .k_dim = shape_.k_dim, .v_dim = shape_.v_dim};
    if (shape_.mla) {
      layer = {.kind = LayerKind::kMla, .kv_heads = 1, .k_dim = shape_.k_dim, .v_dim = 0};
    }
    config.layers.assign(kLayers, layer);
    config.backend = BackendKind::kCuda;
    config.block_size = shape_.block_size;
    config.layout = shape_.layout;
    config.order = shape_.order;
    config.max_sequences = kSequences;
    config.max_tokens_per_sequence = 2048;
    config.max_tokens_per_step = 4096;
    config.memory.num_blocks = 4096 / shape_.block_size + 2 * kSequences;
    config.reuse = Reuse::kNone;
    config.reader_arrays = true;
    return config;
  }

  // Sequences of ragged lengths, a few rows of each in turn, so that their blocks are mixed.
  void Fill() {
    if (!ids_.empty()) return;
    const std::int64_t lengths[] = {1, 15, 16, 17, 300, 1000, 511};
    for (std::size_t i = 0; i < std::size(lengths); ++i) ids_.push_back(Must(cache_.Open({})));
    for (std::int64_t done = 0; done < 1000; done += 100) {
      std::vector<StepItem> items;
      for (std::size_t i = 0; i < ids_.size(); ++i) {
        const std::int64_t rows = std::min<std::int64_t>(100, lengths[i] - done);
        if (rows > 0) items.push_back({.sequence = ids_[i], .num_tokens = rows});
      }
      Run(items, {}, nullptr);
    }
  }

  std::vector<std::uint16_t> Random(std::int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
    for (std::uint16_t& value : values) value = ToBF16(uniform(random_));
    return values;
  }

  double Run(const std::vector<StepItem>& items, const StepShape& shape, const Attend* attend) {
    Step step = Must(cache_.Plan(items, shape));
    Must(cache_.Prepare(step, {stream_}));
    const std::int64_t rows = step.padded_tokens();
    for (int layer = 0; layer < kLayers; ++layer) Append(step, layer, rows);
    double error = 0;
    if (attend != nullptr) {
      const std::vector<std::uint16_t> q = Random(rows * shape_.q_heads * shape_.k_dim);
      const Numbers queries(q);
      const Numbers out(std::vector<std::uint16_t>(
          static_cast<std::size_t>(rows * shape_.q_heads * shape_.v_dim), 0x7FFF));  // NaN
      Call call;
      call.shape = shape_;
      call.layer = Must(cache_.Layer(kLayer));
      call.step = cache_.View(call.layer.group);
      call.host = cache_.HostView(call.layer.group);
      call.sequences = step.padded_sequences();
      call.rows = rows;
      call.q = queries.data();
      call.out = out.data();
      call.stream = stream_;
      (*attend)(call);
      Must(cudaStreamSynchronize(stream_));
      const std::vector<StepRows> batch(step.rows().begin(), step.rows().end());
      Must(cache_.Commit(step, {}, {stream_}));
      for (const StepRows& of : batch) error = std::max(error, Compare(of, q, out.Read()));
      return error;
    }
    Must(cudaStreamSynchronize(stream_));
    Must(cache_.Commit(step, {}, {stream_}));
    return error;
  }

  void Append(const Step& step, int layer, std::int64_t rows) {
    const Numbers k(Random(rows * shape_.kv_heads * shape_.k_dim));
    const Numbers v(Random(rows * shape_.kv_heads * shape_.v_dim));
    if (shape_.mla) {
      MlaAppendInputs inputs;
      inputs.dtype = DType::kBF16;
      inputs.kv_lora_rank = shape_.v_dim;
      inputs.c_kv = k.data();
      inputs.k_pe = static_cast<std::uint16_t*>(k.data()) + shape_.v_dim;
      inputs.c_kv_stride = inputs.k_pe_stride = shape_.k_dim;
      Must(cache_.MlaAppend(step, layer, inputs, {stream_}));
    } else {
      const AppendInputs inputs{.dtype = DType::kBF16, .k = k.data(), .v = v.data()};
      Must(cache_.Append(step, layer, inputs, {stream_}));
    }
    Must(cudaStreamSynchronize(stream_));  // before the inputs are freed
  }

  // softmax(scale q k^T) v in double, over the rows that the cache says are stored.
  double Compare(const StepRows& rows, const std::vector<std::uint16_t>& q,
                 const std::vector<std::uint16_t>& out) {
    const std::int64_t length = rows.start + rows.count;
    const auto heads = static_cast<std::size_t>(shape_.kv_heads);
    const auto k_dim = static_cast<std::size_t>(shape_.k_dim);
    const auto v_dim = static_cast<std::size_t>(shape_.v_dim);
    std::vector<std::uint16_t> k(static_cast<std::size_t>(length) * heads * k_dim);
    std::vector<std::uint16_t> v(static_cast<std::size_t>(length) * heads * v_dim);
    Must(cache_.ReadRows(rows.sequence, kLayer, 0, length, k.data(), v.data()));
    std::vector<double> logits(static_cast<std::size_t>(length));
    double largest = 0;
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const auto row = static_cast<std::size_t>(rows.first_row + i);
      const auto last = static_cast<std::size_t>(rows.start + i);
      for (std::size_t head = 0; head < static_cast<std::size_t>(shape_.q_heads); ++head) {
        const std::size_t kv = head / (static_cast<std::size_t>(shape_.q_heads) / heads);
        const std::size_t at = row * static_cast<std::size_t>(shape_.q_heads) + head;
        double top = -1e300, sum = 0;
        for (std::size_t n = 0; n <= last; ++n) {
          double dot = 0;
          for (std::size_t e = 0; e < k_dim; ++e) {
            dot += FromBF16(q[at * k_dim + e]) * FromBF16(k[(n * heads + kv) * k_dim + e]);
          }
          logits[n] = dot;
          top = std::max(top, dot);
        }
        std::vector<double> want(v_dim, 0.0);
        for (std::size_t n = 0; n <= last; ++n) {
          const double weight = std::exp(logits[n] - top);
          sum += weight;
          for (std::size_t e = 0; e < v_dim; ++e) {
            // Of MLA the values are the latents.
            const std::uint16_t value =
                shape_.mla ? k[n * k_dim + e] : v[(n * heads + kv) * v_dim + e];
            want[e] += weight * FromBF16(value);
          }
        }
        for (std::size_t e = 0; e < v_dim; ++e) {
          const double error = std::abs(FromBF16(out[at * v_dim + e]) - want[e] / sum);
          largest = std::isfinite(error) ? std::max(largest, error) : 1e9;
        }
      }
    }
    return largest;
  }

  Shape shape_;
  KVCache cache_;
  cudaStream_t stream_ = nullptr;
  std::vector<SequenceId> ids_;
  std::mt19937 random_{7};
};

// A line of the table in docs/layouts.md.
inline bool Report(const char* reader, const Shape& shape, const char* what, double error) {
  const bool yes = error <= World::kBound;
  std::printf("%s, %s, %s: reads in place: %s, largest error %.2e (a right reader: up to %.2e)\n",
              reader, shape.Name().c_str(), what, yes ? "yes" : "NO", error, World::kBound);
  std::fflush(stdout);
  return yes;
}

// A reader told the wrong strides has to fail, or the comparison sees nothing.
inline bool ReportControl(const char* reader, double error) {
  const bool seen = error > 10 * World::kBound;
  std::printf("%s, control with wrong strides: largest error %.2e, %s\n", reader, error,
              seen ? "seen" : "NOT SEEN");
  return seen;
}

inline constexpr Layout kLayouts[] = {Layout::kBlockMajor, Layout::kLayerMajor};
inline constexpr Order kOrders[] = {Order::kNHD, Order::kHND};

}  // namespace readers
