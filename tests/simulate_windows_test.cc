// SPDX-License-Identifier: Apache-2.0
// Layers with windows, and layers of several kinds, replayed with every row compared that a later
// one still attends to.
#include <string>
#include <vector>

#include "lariat/simulator.h"
#include "support/catch.h"
#include "support/checked_simulation.h"
#include "support/few_cases.h"
#include "support/simulator_inputs.h"

namespace lariat {
namespace {

using test::MakeConfig;
using test::Run;
using test::RunChecked;
using test::SmallTrace;
using test::Workload;

LayerSpec Layer(LayerKind kind, int window) {
  return {.kind = kind, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .rope = 0, .window = window};
}

// smollm2-135m with other layers.
ModelConfig WithLayers(const std::vector<LayerSpec>& layers) {
  ModelConfig model = *ModelPreset("smollm2-135m");
  model.layers = layers;
  model.num_layers = static_cast<int>(layers.size());
  for (RopeSpec& rope : model.ropes) rope.rotary_dim = 16;
  return model;
}

// gpt-oss: windows and full layers in turn. Gemma-3: five windows, then one full layer.
ModelConfig Alternating(int window) {
  const LayerSpec sliding = Layer(LayerKind::kSliding, window), full = Layer(LayerKind::kFull, 0);
  return WithLayers({sliding, full, sliding, full});
}
ModelConfig FiveToOne(int window) {
  std::vector<LayerSpec> layers(7, Layer(LayerKind::kSliding, window));
  layers[5] = Layer(LayerKind::kFull, 0);
  return WithLayers(layers);
}
// Llama-4's chunks, two windows, and one window alone.
ModelConfig Chunked(int chunk) {
  const LayerSpec chunked = Layer(LayerKind::kChunked, chunk);
  return WithLayers({chunked, chunked, chunked, Layer(LayerKind::kFull, 0)});
}
ModelConfig TwoWindows() {
  return WithLayers(
      {Layer(LayerKind::kSliding, 9), Layer(LayerKind::kFull, 0), Layer(LayerKind::kSliding, 40)});
}
ModelConfig WindowsAlone() {
  return WithLayers({Layer(LayerKind::kSliding, 24), Layer(LayerKind::kSliding, 24),
                     Layer(LayerKind::kSliding, 5)});
}
// MLA beside full layers and windows.
ModelConfig MixedWithMla() {
  ModelConfig model = test::SmallMla();
  model.layers[1] = Layer(LayerKind::kFull, 0);
  model.layers[1].rope = -1;
  model.layers.push_back(Layer(LayerKind::kSliding, 20));
  model.layers.back().rope = -1;
  model.num_layers = 4;
  return model;
}

struct Used {
  std::int64_t preemptions = 0, swaps = 0, host_hits = 0, hits = 0, evicted = 0;
  void Add(const SimulationResult& r) {
    preemptions += r.session.preemptions;
    swaps += r.session.swaps;
    host_hits += r.session.host_hit_tokens;
    hits += r.session.hit_tokens;
    evicted += r.cache.evicted_blocks;
  }
};

struct Case {
  ModelConfig model;
  Trace trace;
  std::int64_t blocks;
  int block_size;
  std::int64_t chunk;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](ModelConfig model, std::int64_t blocks, int block_size, std::int64_t chunk) {
    cases.push_back({model, Workload("in=64,out=60,n=8,prefix=37"), blocks, block_size, chunk});
  };
  add(Alternating(20), 40, 16, 300);
  add(Alternating(1), 200, 3, 50);
  add(Alternating(16), 30, 16, 40);
  add(FiveToOne(20), 100, 16, 300);
  add(FiveToOne(7), 900, 1, 64);
  add(FiveToOne(200), 110, 16, 2048);
  add(Chunked(24), 90, 16, 300);
  add(Chunked(10), 250, 4, 33);
  add(TwoWindows(), 50, 16, 100);
  add(WindowsAlone(), 44, 16, 300);
  cases.push_back({Alternating(30), SmallTrace(), 170, 16, 512});
  return cases;
}

void CheckCases(BackendKind backend, bool tier) {
  Used used;
  test::CaseCounter counter;
  for (const Case& of : Cases()) {
    for (const Reuse reuse : {Reuse::kBlock, Reuse::kToken}) {
      for (const int way : {0, 1, 2}) {
        if (counter.LeaveOut()) continue;
        INFO("blocks " << of.blocks << " of " << of.block_size << ", layers "
                       << of.model.layers.size() << ", way " << way);
        SimulatorConfig config = MakeConfig(backend, of.blocks, of.block_size);
        config.model = of.model;
        config.prefill_chunk = of.chunk;
        config.reuse = reuse;
        config.seed = 5;
        if (tier) {
          config.host.num_blocks = of.blocks * (way == 0 ? 4 : 1);
          config.host.write = static_cast<WritePolicy>(way);
          config.preempt = way == 2 ? Preempt::kRecompute : Preempt::kSwap;
        } else if (way == 1) {
          config.draft_tokens = 3;
          config.acceptance = 0.6;
        } else if (way == 2) {
          config.beams = 2;
          config.eviction = EvictionPolicy::kPriority;
        }
        used.Add(RunChecked(of.trace, config));
      }
    }
  }
  if (test::FewCases()) return;
  CHECK(used.preemptions > 0);
  CHECK(used.hits > 0);
  CHECK(used.evicted > 0);
  if (!tier) return;
  CHECK(used.swaps > 0);
  CHECK(used.host_hits > 0);
}

}  // namespace

TEST_CASE("simulate: windows on the CPU, every row compared") {
  CheckCases(BackendKind::kCpu, /*tier=*/false);
}

TEST_CASE("simulate: windows with a host tier on the CPU, every row compared") {
  CheckCases(BackendKind::kCpu, /*tier=*/true);
}

TEST_CASE("simulate: windows on CUDA, every row compared") {
  if (!Device::Create(BackendKind::kCuda).ok()) LARIAT_SKIP("no CUDA device");
  CheckCases(BackendKind::kCuda, /*tier=*/false);
  CheckCases(BackendKind::kCuda, /*tier=*/true);
}

TEST_CASE("simulate: MLA beside full layers and windows, every row compared") {
  SimulatorConfig config = MakeConfig(BackendKind::kCpu, 60, 16);
  config.model = MixedWithMla();
  const SimulationResult result = RunChecked(Workload("in=64,out=60,n=6,prefix=37"), config);
  CHECK(result.session.hit_tokens > 0);
}

// With memory for all, a window loses no hit: what it gives back stays cached.
TEST_CASE("simulate: a model with windows finds what one without them finds") {
  for (const Reuse reuse : {Reuse::kBlock, Reuse::kToken}) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 0, 16);
    config.reuse = reuse;
    const SimulationResult full = Run(SmallTrace(), config);
    config.model = FiveToOne(20);
    const SimulationResult windows = Run(SmallTrace(), config);
    CHECK(full.session.hit_tokens > 0);
    CHECK(windows.session.hit_tokens == full.session.hit_tokens);
  }
}

// One sequence of 124 tokens: the full layer's group takes 8 blocks of 16; of a window of 20 no
// more than 19 + 40 rows of a chunk are held, which may touch 5 blocks.
TEST_CASE("simulate: windows take no more than a window and a chunk") {
  SimulatorConfig config = MakeConfig(BackendKind::kNull, 200, 16);
  config.model = Alternating(20);
  config.prefill_chunk = 40;
  const SimulationResult result = Run(Workload("in=120,out=4,n=1"), config);
  CHECK(result.cache.peak_used_blocks <= 8 + 5);
  CHECK(result.cache.peak_used_blocks > 8);
  // A pool of just that much serves it; without windows it would take 16 blocks.
  config.memory.num_blocks = 13;
  CHECK(Run(Workload("in=120,out=4,n=3"), config).session.finished == 3);
}

TEST_CASE("simulate: a fault in a window's rows is seen") {
  for (const InjectedFault fault :
       {InjectedFault::kStale, InjectedFault::kShift, InjectedFault::kBit}) {
    SimulatorConfig config = MakeConfig(BackendKind::kCpu, 100, 16);
    config.model = Alternating(200);
    config.check = true;
    config.fault = fault;
    config.fault_step = 2;
    const SimulationResult result = Run(Workload("in=64,out=20,n=4,prefix=37"), config);
    CHECK(result.check->fault_fired);
    CHECK(result.check->mismatches > 0);
  }
}

TEST_CASE("simulate: presets with windows run") {
  for (const char* const model : {"gemma-2-2b", "gemma-3-27b", "gpt-oss-120b", "mistral-7b-v0.1"}) {
    SimulatorConfig config = MakeConfig(BackendKind::kNull, 4000, 16);
    config.model = *ModelPreset(model);
    const Trace trace = Workload("in=3000,out=20,n=4,prefix=512");
    const SimulationResult result = Run(trace, config);
    INFO(model);
    CHECK(result.session.finished == 4);
    CHECK(result.session.hit_tokens == 3 * 512);
  }
}

}  // namespace lariat
