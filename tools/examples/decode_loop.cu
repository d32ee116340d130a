// SPDX-License-Identifier: Apache-2.0
// What a server does with a KVCache, in one file: chunked prefill, a prefix hit, two steps in
// flight while the host does not know the last tokens yet, a captured graph, drafts of which some
// are rejected, a request that is cancelled, and an attention kernel of its own that reads the
// cache in place. The "model" is a toy without weights, but each token depends on every key and
// value before it, so what comes out is compared, token by token, with a run that caches nothing.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "lariat/device.h"
#include "lariat/kv_cache.h"
#include "toy_model.cuh"

namespace {

using namespace lariat;
using namespace toy;

// One block per row and head, one thread per element: softmax(q k^T) v over all tokens up to the
// row's own, found through the block table. Slow and plain.
__global__ void Attend(const float* q, LayerView layer, StepView step, float* x) {
  const int t = blockIdx.x, head = blockIdx.y, i = threadIdx.x, kv = head / (kHeads / kKvHeads);
  if (step.slots[t] < 0) return;  // padding
  int b = 0;
  while (step.cu_seqlens[b + 1] <= t) ++b;
  const int row_in_sequence = step.seqused_k[b] - (step.cu_seqlens[b + 1] - t);
  const float query = q[t * kWidth + head * kDim + i] * rsqrtf(static_cast<float>(kDim));
  float sum = 0, out = 0;
  for (int n = 0; n <= row_in_sequence; ++n) {
    const std::int64_t block = step.block_table[b * step.block_table_stride + n / layer.block_size];
    const std::int64_t row = n % layer.block_size;
    const auto* key = static_cast<const float*>(layer.k) + block * layer.k_block_stride +
                      row * layer.k_row_stride + kv * layer.k_head_stride;
    const auto* value = static_cast<const float*>(layer.v) + block * layer.v_block_stride +
                        row * layer.v_row_stride + kv * layer.v_head_stride;
    float score = query * key[i];
    for (int lane = 16; lane > 0; lane /= 2) score += __shfl_xor_sync(0xFFFFFFFFU, score, lane);
    const float weight = __expf(score);
    sum += weight;
    out += weight * value[i];
  }
  float& target = x[t * kWidth + head * kDim + i];
  target = tanhf(0.5F * target + out / sum);
}

// One row's token: known, or a slot's last one; and the slot whose last one its output becomes.
struct Row {
  int token = 0;
  int slot = -1;
};

class Engine {
 public:
  explicit Engine(Reuse reuse) : cache(Must(KVCache::Create(Config(reuse)))) {
    Must(cudaStreamCreate(&stream));
    for (int** array : {&given, &slots, &tokens, &last})
      Must(cudaMalloc(array, kRows * sizeof(int)));
    for (float** array : {&x, &q, &k, &v}) Must(cudaMalloc(array, kRows * kWidth * sizeof(float)));
    for (int* array : {given, slots, tokens, last}) Must(cudaMemset(array, 0, kRows * sizeof(int)));
    Must(cudaMallocHost(&host_in, 4 * kRows * sizeof(int)));   // two steps' given and slots
    Must(cudaMallocHost(&host_out, 2 * kRows * sizeof(int)));  // two steps' tokens
    for (cudaEvent_t& event : done) Must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }

  // Plans, prepares and launches a step. Its rows' tokens are in out(id) once Wait(id) returns.
  Step Launch(std::span<const StepItem> items, const std::vector<Row>& rows, bool graph) {
    Step step = Must(cache.Plan(items, graph ? StepShape{kSequences, kSequences} : StepShape{}));
    Must(cache.Prepare(step, {stream}));
    const int turn = step.id() % 2, padded = static_cast<int>(step.padded_tokens());
    int* in = host_in + turn * 2 * kRows;
    for (int t = 0; t < padded; ++t) {
      const Row row = t < static_cast<int>(rows.size()) ? rows[t] : Row{};
      in[t] = row.token;
      in[kRows + t] = row.slot;
    }
    Must(cudaMemcpyAsync(given, in, kRows * sizeof(int), cudaMemcpyHostToDevice, stream));
    Must(cudaMemcpyAsync(slots, in + kRows, kRows * sizeof(int), cudaMemcpyHostToDevice, stream));
    if (graph && captured == nullptr) Capture(step);
    graph ? Must(cudaGraphLaunch(captured, stream)) : Forward(step, padded);
    Must(cudaMemcpyAsync(host_out + turn * kRows, tokens, kRows * sizeof(int),
                         cudaMemcpyDeviceToHost, stream));
    Must(cudaEventRecord(done[turn], stream));
    return step;
  }
  const int* Wait(std::uint64_t step) {
    Must(cudaEventSynchronize(done[step % 2]));
    return host_out + (step % 2) * kRows;
  }
  void Commit(Step& step, std::span<const StepCommit> commits) {
    Must(cache.Commit(step, commits, {stream}));
  }

  KVCache cache;

 private:
  void Forward(const Step& step, int rows) {
    Embed<<<rows, kWidth, 0, stream>>>(given, last, x);
    for (int layer = 0; layer < kLayers; ++layer) {
      Project<<<rows, kWidth, 0, stream>>>(x, layer, q, k, v);
      const AppendInputs inputs{.dtype = DType::kFP32, .k = k, .v = v, .q = q, .q_heads = kHeads};
      Must(cache.Append(step, layer, inputs, {stream}));
      const LayerView view = Must(cache.Layer(layer));
      Attend<<<dim3(rows, kHeads), kDim, 0, stream>>>(q, view, cache.View(view.group), x);
    }
    Sample<<<rows, kVocab, 0, stream>>>(x, slots, tokens, last);
    Must(cudaGetLastError());
  }
  // Once: the arrays that later steps are read from lie where this one's do.
  void Capture(const Step& step) {
    cudaGraph_t made = nullptr;
    Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Forward(step, kSequences);
    Must(cudaStreamEndCapture(stream, &made));
    Must(cudaGraphInstantiate(&captured, made, 0));
    Must(cudaGraphDestroy(made));
  }

  cudaStream_t stream = nullptr;
  cudaGraphExec_t captured = nullptr;
  int *given = nullptr, *slots = nullptr, *tokens = nullptr, *last = nullptr;
  int *host_in = nullptr, *host_out = nullptr;
  float *x = nullptr, *q = nullptr, *k = nullptr, *v = nullptr;
  cudaEvent_t done[2] = {};
};

// A prompt in chunks of up to kRows rows; returns the token behind it, the slot's last one now.
int Prefill(Engine& engine, SequenceId sequence, const std::vector<TokenId>& prompt, int slot,
            std::int64_t* hit) {
  std::int64_t done = Must(engine.cache.Match(sequence)).tokens;
  if (hit != nullptr) *hit = done;
  while (true) {
    const std::int64_t count = std::min<std::int64_t>(kRows, std::ssize(prompt) - done);
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < count; ++i) rows.push_back({prompt[done + i], -1});
    done += count;
    if (done == std::ssize(prompt)) rows.back().slot = slot;
    const StepItem item{sequence, count, 0, {}};
    Step step = engine.Launch({&item, 1}, rows, false);
    const int* out = engine.Wait(step.id());
    engine.Commit(step, {});
    if (done == std::ssize(prompt)) return out[count - 1];
  }
}

// The same text without a cache: for each token all rows before it, again, in a contiguous buffer.
std::vector<TokenId> Uncached(std::vector<TokenId> text, int generate) {
  Engine engine(Reuse::kNone);
  for (int i = 0; i < generate; ++i) {
    const SequenceId sequence = Must(engine.cache.Open(text));
    text.push_back(Prefill(engine, sequence, text, 0, nullptr));
    Must(engine.cache.Close(sequence));
  }
  return text;
}

}  // namespace

int main() {
  if (!Device::Create(BackendKind::kCuda).ok()) {
    std::puts("SKIPPED: no CUDA device");
    return 0;
  }
  std::vector<TokenId> prompts[3];
  for (int t = 0; t < 60; ++t) {
    prompts[0].push_back(t * 37 % kVocab);
    prompts[1].push_back(t < 44 ? prompts[0].back() : t);  // the first 44 tokens are shared
    if (t < 10) prompts[2].push_back(200 - t);
  }
  constexpr int kSteps = 20, kDrafts = 3;
  std::vector<TokenId> want[2];
  for (int s = 0; s < 2; ++s) want[s] = Uncached(prompts[s], kSteps + 8);

  Engine engine(Reuse::kToken);
  SequenceId ids[3];
  std::vector<TokenId> text[3] = {prompts[0], prompts[1], prompts[2]};
  for (int s = 0; s < 3; ++s) {
    std::int64_t hit = 0;
    ids[s] = Must(engine.cache.Open(prompts[s]));
    text[s].push_back(Prefill(engine, ids[s], prompts[s], s, &hit));
    Expect(hit == (s == 1 ? 44 : 0), "the prefix hit is not what the prompts share");
  }

  // Decoding, two steps in flight: the next one is planned and launched before this one's tokens
  // are known. A step's commit names what its rows took in, which the step before put out.
  int running = 3;
  struct Flight {
    Step step;
    int sequences = 0;
  } before;
  const auto land = [&](Flight& flight) {  // its tokens have come: the next rows' inputs
    const int* out = engine.Wait(flight.step.id());
    std::vector<StepCommit> commits;
    for (int s = 0; s < flight.sequences; ++s) {
      commits.push_back({ids[s], 1, {&text[s].back(), 1}});
    }
    engine.Commit(flight.step, commits);
    for (int s = 0; s < flight.sequences; ++s) text[s].push_back(out[s]);
  };
  for (int i = 0; i < kSteps; ++i) {
    std::vector<StepItem> items;
    std::vector<Row> rows;
    for (int s = 0; s < running; ++s) {
      items.push_back({ids[s], 1, 0, {}});
      rows.push_back({-1 - s, s});
    }
    Flight next{engine.Launch(items, rows, /*graph=*/true), running};
    if (before.step.valid()) land(before);
    before = std::move(next);
    if (i == 7) {  // the client of the third one has gone, in the middle of a step
      Must(engine.cache.Close(ids[2]));
      running = 2;
    }
  }
  land(before);

  // One step with drafts for the first sequence: two are right, the third one is not.
  const std::size_t at = text[0].size();
  std::vector<Row> rows = {{text[0].back(), -1}};
  std::vector<TokenId> fed = {text[0].back()};
  for (int d = 0; d < kDrafts; ++d) {
    fed.push_back(d < 2 ? want[0][at + d] : (want[0][at + d] + 1) % kVocab);
    rows.push_back({fed.back(), -1});
  }
  const StepItem item{ids[0], 1 + kDrafts, kDrafts, {}};
  Step step = engine.Launch({&item, 1}, rows, false);
  const int* out = engine.Wait(step.id());
  std::size_t kept = 1;
  while (kept <= kDrafts && out[kept - 1] == fed[kept]) text[0].push_back(fed[kept++]);
  Expect(kept == 3, "two drafts are right");
  text[0].push_back(out[kept - 1]);
  const StepCommit commit{ids[0], static_cast<std::int64_t>(kept), std::span(fed).first(kept)};
  engine.Commit(step, {&commit, 1});

  for (int s = 0; s < 2; ++s) {
    for (std::size_t t = 0; t < text[s].size(); ++t)
      Expect(text[s][t] == want[s][t], "a token differs from the uncached run");
  }
  for (int s = 0; s < 2; ++s) Must(engine.cache.Close(ids[s]));
  const Stats stats = engine.cache.GetStats();
  Expect(stats.held_blocks + stats.reserved_blocks == 0, "blocks are held after all have ended");
  std::printf("decode_loop: %zu and %zu tokens as without a cache; %lld cached tokens found\n",
              text[0].size(), text[1].size(), static_cast<long long>(stats.hit_tokens));
  return 0;
}
