// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/product_trial.h"

#include <algorithm>
#include <limits>
#include <random>

#include "backend/cuda/first_of_fastest.h"

namespace lariat::cuda {
namespace {

constexpr std::size_t kComparedBytes = std::size_t{256} << 10;
constexpr std::size_t kPatternBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;  // no device has room for so many
constexpr int kLaunches = 8;                                   // of one replay
constexpr int kReplays = 5;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Numbers of random sign and mantissa around 1, as 16-bit or 32-bit elements: products of equal
// numbers would take less power and so less time.
std::vector<std::uint32_t> Pattern(DType dtype) {
  const std::uint32_t random_bits = dtype == DType::kFP32   ? 0x807FFFFF
                                    : dtype == DType::kBF16 ? 0x807F807F
                                                            : 0x83FF83FF;
  const std::uint32_t fixed_bits = dtype == DType::kFP32   ? 0x3F800000
                                   : dtype == DType::kBF16 ? 0x3F803F80
                                                           : 0x3C003C00;
  std::mt19937 random(1);
  std::vector<std::uint32_t> words(kPatternBytes / 4);
  for (std::uint32_t& word : words) {
    word = (static_cast<std::uint32_t>(random()) & random_bits) | fixed_bits;
  }
  return words;
}

// Allocates and fills; each copy doubles what is filled.
bool MakeMatrix(std::size_t bytes, const std::vector<std::uint32_t>& pattern, void** memory,
                cudaStream_t stream) {
  bytes = std::max(bytes, kPatternBytes);
  if (cudaMalloc(memory, bytes) != cudaSuccess) return false;
  auto* const to = static_cast<std::byte*>(*memory);
  if (cudaMemcpyAsync(to, pattern.data(), kPatternBytes, cudaMemcpyHostToDevice, stream) !=
      cudaSuccess) {
    return false;
  }
  for (std::size_t filled = kPatternBytes; filled < bytes; filled *= 2) {
    const std::size_t next = std::min(filled, bytes - filled);
    if (cudaMemcpyAsync(to + filled, to, next, cudaMemcpyDeviceToDevice, stream) != cudaSuccess) {
      return false;
    }
  }
  return true;
}

}  // namespace

ProductTrial::~ProductTrial() {
  for (void* memory : {a_, w_, params_.c}) static_cast<void>(cudaFree(memory));
  if (begin_ != nullptr) static_cast<void>(cudaEventDestroy(begin_));
  if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  static_cast<void>(cudaGetLastError());  // of an allocation that found no room
}

bool ProductTrial::Open() {
  const auto size = static_cast<std::int64_t>(SizeOf(params_.dtype));
  const std::int64_t w_rows =
      params_.layout == WeightLayout::kOutIn ? params_.columns : params_.inner;
  const std::int64_t more = params_.batch - 1;
  const std::int64_t a = params_.rows * params_.a_stride;
  const std::int64_t w = w_rows * params_.w_stride + more * params_.w_batch_stride;
  const std::int64_t c = params_.rows * params_.c_stride + more * params_.c_batch_stride;
  const std::vector<std::uint32_t> pattern = Pattern(params_.dtype);
  if (std::max({a, w, c}) > kMostElements) return false;
  c_bytes_ = static_cast<std::size_t>(c * size);
  if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess ||
      cudaEventCreate(&begin_) != cudaSuccess || cudaEventCreate(&end_) != cudaSuccess ||
      !MakeMatrix(static_cast<std::size_t>(a * size), pattern, &a_, stream_) ||
      !MakeMatrix(static_cast<std::size_t>(w * size), pattern, &w_, stream_) ||
      cudaMalloc(&params_.c, c_bytes_) != cudaSuccess) {
    return false;
  }
  params_.a = a_;
  params_.w = w_;
  return cudaStreamSynchronize(stream_) == cudaSuccess;  // the pattern is read until then
}

std::vector<std::byte> ProductTrial::Result(const Launch& way) {
  const std::size_t part = std::min(c_bytes_, kComparedBytes);
  std::vector<std::byte> bytes(2 * part);
  const auto* const c = static_cast<const std::byte*>(params_.c);
  const auto read = [&](std::byte* to, const std::byte* from) {
    return cudaMemcpyAsync(to, from, part, cudaMemcpyDeviceToHost, stream_) == cudaSuccess;
  };
  const bool ran = cudaMemsetAsync(params_.c, 0, c_bytes_, stream_) == cudaSuccess &&
                   way(params_, stream_) && read(bytes.data(), c) &&
                   read(bytes.data() + part, c + c_bytes_ - part) &&
                   cudaStreamSynchronize(stream_) == cudaSuccess;
  if (!ran) bytes.clear();
  return bytes;
}

double ProductTrial::Seconds(const Launch& way) {
  if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    return kNever;
  }
  bool launched = true;
  for (int i = 0; i < kLaunches; ++i) launched = way(params_, stream_) && launched;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  launched = cudaStreamEndCapture(stream_, &graph) == cudaSuccess && launched;
  launched = launched && cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess;
  double best = kNever;
  for (int i = 0; i < kReplays && launched; ++i) {
    // The first keeps the device busy while the timed one is put into the queue.
    float milliseconds = 0;
    launched = cudaGraphLaunch(replay, stream_) == cudaSuccess &&
               cudaEventRecord(begin_, stream_) == cudaSuccess &&
               cudaGraphLaunch(replay, stream_) == cudaSuccess &&
               cudaEventRecord(end_, stream_) == cudaSuccess &&
               cudaEventSynchronize(end_) == cudaSuccess &&
               cudaEventElapsedTime(&milliseconds, begin_, end_) == cudaSuccess;
    if (launched) best = std::min(best, static_cast<double>(milliseconds) / 1e3 / kLaunches);
  }
  if (replay != nullptr) static_cast<void>(cudaGraphExecDestroy(replay));
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  return best;
}

std::size_t ProductTrial::Best(const GemmParams& params, const std::vector<Launch>& ways) {
  ProductTrial trial(params);
  if (ways.empty() || !trial.Open()) return 0;
  const std::vector<std::byte> first = trial.Result(ways[0]);
  if (first.empty()) return 0;
  std::vector<double> seconds = {trial.Seconds(ways[0])};
  for (std::size_t i = 1; i < ways.size(); ++i) {
    seconds.push_back(trial.Result(ways[i]) == first ? trial.Seconds(ways[i]) : kNever);
  }
  return FirstOfFastest(seconds);
}

}  // namespace lariat::cuda
