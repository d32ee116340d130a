// SPDX-License-Identifier: Apache-2.0
// The ranges that a profiler sees: this program is one, by NVTX's static injection.
#define NVTX_NO_IMPL  // what a tool sees of it
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/case_cache.h"

namespace {

struct Seen {
  std::vector<std::string> names;  // of ranges, as they began
  std::string domain;
  int depth = 0, deepest = 0;
};

Seen& TheSeen() {
  static Seen seen;
  return seen;
}

int PushEx(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  Seen& seen = TheSeen();
  seen.names.emplace_back(attributes->message.ascii);
  seen.deepest = std::max(seen.deepest, ++seen.depth);
  return seen.depth;
}

int Pop(nvtxDomainHandle_t) { return --TheSeen().depth; }

nvtxDomainHandle_t CreateDomain(const char* name) {
  TheSeen().domain = name;
  static int domain = 0;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

template <class F>
NvtxFunctionPointer Untyped(F* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

int Inject(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = Untyped(PushEx);
  *table[NVTX_CBID_CORE2_DomainRangePop] = Untyped(Pop);
  *table[NVTX_CBID_CORE2_DomainCreateA] = Untyped(CreateDomain);
  return 1;
}

}  // namespace

extern "C" {
extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = Inject;
}

namespace lariat {
namespace {

using testing::CaseCache;

// On the CPU, and where a CUDA device answers on that too.
std::vector<BackendKind> Backends() {
  std::vector<BackendKind> kinds = {BackendKind::kCpu};
  if (Device::Create(BackendKind::kCuda, 0).ok()) kinds.push_back(BackendKind::kCuda);
  return kinds;
}

TEST_CASE("Device work is marked by ranges", "[cache]") {
  for (const BackendKind kind : Backends()) {
    CacheConfig config = CaseCache::Config(4, 8, kind);
    config.host.num_blocks = 8;
    CaseCache c(config);
    Device& device = c->device();
    Result<DeviceBuffer> rows = device.Allocate(MemoryKind::kDevice, 256);
    REQUIRE(rows.ok());
    CaseCache::Must(device.Fill(rows->data(), 0, 256, {}));
    const SequenceId id = c.Open(CaseCache::Range(0, 6));
    Seen& seen = TheSeen();
    seen.names.clear();
    Step step = c.Prepared(id, 6);
    const AppendInputs inputs = {.dtype = DType::kFP32, .k = rows->data(), .v = rows->data()};
    CaseCache::Must(c->Append(step, 0, inputs, {}));
    CaseCache::Must(c->Commit(step, {}, {}));
    CHECK(c->Suspend(id).ok());
    const Result<TransferId> back = c->Resume(id);
    REQUIRE(back.ok());
    if (*back != TransferId::kNone) CHECK(c->Accept(*back).ok());

    CHECK(seen.domain == "lariat");
    CHECK(seen.depth == 0);
    // Calls of the cache begin with a capital letter; in them are operations of the device.
    std::vector<std::string> calls, operations;
    for (const std::string& name : seen.names) {
      const bool is_call = name.front() >= 'A' && name.front() <= 'Z';
      (is_call ? calls : operations).push_back(name);
    }
    std::erase(calls, "WriteBack");
    CHECK(calls == std::vector<std::string>{"Prepare", "Append", "Suspend", "Resume"});
    CHECK(seen.deepest == (kind == BackendKind::kCuda ? 2 : 1));
    const auto count = [&](const char* name) {
      return std::count(operations.begin(), operations.end(), name);
    };
    CHECK(count("step_tables") == (kind == BackendKind::kCuda ? 1 : 0));
    CHECK(count("append_rope") == (kind == BackendKind::kCuda ? 1 : 0));
  }
}

}  // namespace
}  // namespace lariat
