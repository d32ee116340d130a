// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "support/gpu_work.h"

namespace lariat::testing {

namespace {

cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

const char* Text(cudaError_t error) {
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

// The rows of token n of sequence b, element by element.
__host__ __device__ void GatherToken(const GatherParams& p, std::int64_t b, std::int64_t n) {
  const LayerView& layer = p.layer;
  if (n >= p.view.seqused_k[b]) return;
  const std::int64_t block =
      p.view.block_table[b * p.view.block_table_stride + n / layer.block_size];
  const std::int64_t row = n % layer.block_size;
  const int width = layer.k_dim + layer.v_dim;
  const auto* k = static_cast<const std::uint16_t*>(layer.k) + block * layer.k_block_stride +
                  row * layer.k_row_stride;
  const auto* v = static_cast<const std::uint16_t*>(layer.v) + block * layer.v_block_stride +
                  row * layer.v_row_stride;
  std::uint16_t* out = p.out + (b * p.max_tokens + n) * layer.kv_heads * width;
  for (int head = 0; head < layer.kv_heads; ++head) {
    for (int i = 0; i < layer.k_dim; ++i) *out++ = k[head * layer.k_head_stride + i];
    for (int i = 0; i < layer.v_dim; ++i) *out++ = v[head * layer.v_head_stride + i];
  }
}

__global__ void GatherKernel(GatherParams p) { GatherToken(p, blockIdx.x, threadIdx.x); }

__global__ void SpinKernel(std::int64_t nanoseconds) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (static_cast<std::int64_t>(now - begin) < nanoseconds);
}

// Ends by itself after a minute, so that a test that fails before it sets the flag ends too.
__global__ void SpinFlagKernel(const volatile int* flag) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*flag == 0 && now - begin < 60'000'000'000);
}

}  // namespace

void GatherOnHost(const GatherParams& params) {
  for (std::int64_t b = 0; b < params.padded_sequences; ++b) {
    for (std::int64_t n = 0; n < params.max_tokens; ++n) GatherToken(params, b, n);
  }
}

const char* GatherOnDevice(const GatherParams& params, Stream stream) {
  GatherKernel<<<static_cast<unsigned>(params.padded_sequences),
                 static_cast<unsigned>(params.max_tokens), 0, Of(stream)>>>(params);
  return Text(cudaGetLastError());
}

const char* Spin(Stream stream, double milliseconds) {
  SpinKernel<<<1, 1, 0, Of(stream)>>>(static_cast<std::int64_t>(milliseconds * 1e6));
  return Text(cudaGetLastError());
}

const char* SpinUntil(Stream stream, int* flag) {
  SpinFlagKernel<<<1, 1, 0, Of(stream)>>>(flag);
  return Text(cudaGetLastError());
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
}

const char* Graph::Capture(Stream stream, const std::function<void()>& work) {
  cudaError_t error = cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) return Text(error);
  work();
  cudaGraph_t captured = nullptr;
  error = cudaStreamEndCapture(Of(stream), &captured);
  if (error != cudaSuccess) return Text(error);
  cudaGraphExec_t ready = nullptr;
  error = cudaGraphInstantiate(&ready, captured, 0);
  cudaGraphDestroy(captured);
  graph_ = ready;
  return Text(error);
}

const char* Graph::Launch(Stream stream) {
  return Text(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), Of(stream)));
}

}  // namespace lariat::testing
