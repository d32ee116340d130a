// SPDX-License-Identifier: Apache-2.0
// Reads off a captured graph what a launch consists of: the truth, whatever chose it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <spdlog/fmt/fmt.h>

#include <cstdlib>
#include <memory>

#include "bench_explain.h"

namespace lariat::tools {
namespace {

// A function of the driver, which is not linked; null where it has none of that name.
template <class Function>
Function* DriverCall(const char* name) {
  void* call = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t asked =
      cudaGetDriverEntryPointByVersion(name, &call, 12030, cudaEnableDefault, &found);
#else
  const cudaError_t asked = cudaGetDriverEntryPoint(name, &call, cudaEnableDefault, &found);
#endif
  if (asked != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Function*>(call);
}

// "lariat::cuda::(anonymous namespace)::F<8, 2>(Args)" to "F<8, 2>".
std::string Readable(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  if (status != 0) return mangled;
  std::string name = text.get();
  for (const char* const part :
       {"lariat::cuda::", "lariat::tools::", "lariat::", "(anonymous namespace)::", "void "}) {
    for (std::size_t at = name.find(part); at != std::string::npos; at = name.find(part)) {
      name.erase(at, std::string(part).size());
    }
  }
  // Up to the arguments: the first bracket that is outside of the template's.
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

std::string Dim(unsigned x, unsigned y, unsigned z) {
  if (z > 1) return fmt::format("{} x {} x {}", x, y, z);
  return y > 1 ? fmt::format("{} x {}", x, y) : std::to_string(x);
}

std::string DescribeKernel(cudaGraphNode_t node, bool early) {
  auto* const get_params =
      DriverCall<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>("cuGraphKernelNodeGetParams");
  auto* const function_name = DriverCall<CUresult(const char**, CUfunction)>("cuFuncGetName");
  auto* const kernel_function = DriverCall<CUresult(CUfunction*, CUkernel)>("cuKernelGetFunction");
  auto* const attribute =
      DriverCall<CUresult(int*, CUfunction_attribute, CUfunction)>("cuFuncGetAttribute");
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (get_params == nullptr || get_params(node, &params) != CUDA_SUCCESS) return "kernel";
  CUfunction function = params.func;
  if (function == nullptr && params.kern != nullptr && kernel_function != nullptr) {
    kernel_function(&function, params.kern);
  }
  const char* name = nullptr;
  if (function != nullptr && function_name != nullptr) function_name(&name, function);
  int registers = 0, fixed = 0;
  if (function != nullptr && attribute != nullptr) {
    attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    attribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function);
  }
  return fmt::format("kernel {}: {} blocks of {} threads, {} bytes shared, {} registers{}",
                     name == nullptr ? "of unknown name" : Readable(name),
                     Dim(params.gridDimX, params.gridDimY, params.gridDimZ),
                     Dim(params.blockDimX, params.blockDimY, params.blockDimZ),
                     params.sharedMemBytes + static_cast<unsigned>(fixed), registers,
                     early ? ", a dependent launch" : "");
}

// The nodes that may start before the one before them has ended.
std::vector<cudaGraphNode_t> EarlyNodes(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> early;
#if CUDART_VERSION >= 13000
  std::size_t count = 0;
  if (cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count) != cudaSuccess) return early;
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count) != cudaSuccess) {
    return early;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i].type == cudaGraphDependencyTypeProgrammatic) early.push_back(to[i]);
  }
#else
  static_cast<void>(graph);
#endif
  return early;
}

std::vector<std::string> DescribeNodes(cudaGraph_t graph) {
  std::size_t count = 0;
  if (cudaGraphGetNodes(graph, nullptr, &count) != cudaSuccess) return {};
  std::vector<cudaGraphNode_t> nodes(count);
  if (cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess) return {};
  const std::vector<cudaGraphNode_t> early = EarlyNodes(graph);
  std::vector<std::string> lines;
  // Two launches were captured: the second has one before it.
  for (std::size_t i = count / 2; i < count; ++i) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    if (cudaGraphNodeGetType(nodes[i], &type) != cudaSuccess) continue;
    if (type == cudaGraphNodeTypeKernel) {
      bool starts_early = false;
      for (const cudaGraphNode_t node : early) starts_early = starts_early || node == nodes[i];
      lines.push_back(DescribeKernel(nodes[i], starts_early));
    } else if (type == cudaGraphNodeTypeMemcpy) {
      lines.emplace_back("a copy by the driver");
    } else if (type == cudaGraphNodeTypeMemset) {
      lines.emplace_back("a fill by the driver");
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> ExplainKernels(Workload& workload, Stream stream) {
  if (!workload.capturable()) return {"calls that cannot be captured: copies by the driver"};
  auto* const handle = static_cast<cudaStream_t>(stream.handle);
  if (cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return {};
  Status launched = workload.Launch(0, stream);
  if (launched.ok()) {
    Status second = workload.Launch(1, stream);
    std::swap(launched, second);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(handle, &graph);
  std::vector<std::string> lines;
  if (ended == cudaSuccess && launched.ok()) lines = DescribeNodes(graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return lines;
}

}  // namespace lariat::tools
